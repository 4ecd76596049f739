"""What functions read by name, as it was before they ran: others may have changed it when a derivative runs them.

State: `_changed_by`, by the codes of functions, what they were seen to change themselves, of `_REMEMBERED` at most.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from dagad._errors import ClosureError
from dagad._types import Array
from dagad._values import kinds
from dagad._values.before import SMALL, differ, is_closed_to_us, is_long
from dagad._values.bytecode import binds_globals, globals_of, imports_of, looks_up_words, names_of, takes_all_attributes
from dagad._values.canonical import is_frozen
from dagad._values.closures import Contents, contents_of, held_by, is_rule
from dagad._values.homes import is_closed, is_installed, root_of
from dagad._values.kinds import CELL, FUNCTION, HOMES, INSTANCE, MAPPING, SERIES, SET, kind_of
from dagad._values.names import Scopes
from dagad._values.rescoped import MISSING, Slot, affected, made_again
from dagad._values.walk import runs_unnamed

_CHANGING = frozenset({CELL, FUNCTION, INSTANCE, MAPPING, SERIES, SET})
_LOOKED_INTO = _CHANGING | {kinds.FIXED, kinds.METHOD, kinds.PARTIAL, kinds.WRAPPER, kinds.DESCRIPTOR, kinds.CACHED}
_LONG = frozenset({MAPPING, SERIES, SET})
_NUMBERS = (bool, int, float, complex, str, bytes, np.generic)
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), FunctionType, CellType, ModuleType, np.float64})
_DEEP = 20  # containers in containers
_ANY = object()  # any entry that comes or goes
# A name in a scope, an entry of a part, or a whole part, by the id of the scope or of the part.
Key = tuple[int, Any] | int


class _Known(NamedTuple):
    """A part, and what it held."""

    part: Any
    held: Contents


class _Place(NamedTuple):
    """An array or a long container, what was in it or in some places of it, and a copy where it is small."""

    part: Any
    noted: Any
    copy: Array | None


class Named:
    """What functions read as globals, in modules and in classes, and what these hold, as it is now.

    What changes while the functions run is their own affair: `settle` leaves it out. What others have changed is put
    back for a function made anew, where it can be, or refused: see `put_back`. Attributes that no function names are
    not read; of large arrays and long containers some places are compared.

    ============  ==================================================================================================
    `_slots`      what names mean
    `_known`      what may hold something else later, reached from there
    `_places`     arrays and long containers; large arrays that the functions hold, too
    `_readers`    for each name, the ids of the functions that read it as a global
    `_written`    names that the functions bind themselves
    `_own`        what has changed while they ran
    `_seen`       what had changed before they ran last
    ============  ==================================================================================================
    """

    def __init__(self, fun: object, now: object) -> None:
        """Note what functions name; `now` are the same with variables of their own: see `closures.as_now`."""
        self._slots: dict[Key, Slot] = {}
        self._known: dict[int, _Known] = {}
        self._places: dict[int, _Place] = {}
        self._readers: dict[Key, list[int]] = {}
        self._written, self._own, self._seen = set[Key](), set[Key](), set[Key]()
        self._codes: dict[int, CodeType] = {}
        self._parts: dict[int, Any] = {}
        self._scopes = Scopes(_counts_unnamed)
        roots = [[fun]]  # kept, or something else might get the id of one
        self._held, self._owners = held_by(roots[0], _is_looked_into)
        self._note_large(now is fun, now)
        fresh = self._named_by(self._held.values())
        while fresh:
            roots.append(fresh)
            parts, owners = held_by(fresh, self._is_fresh)
            for key, above in owners.items():
                self._owners.setdefault(key, []).extend(above)
            self._parts |= parts
            self._note(parts, owners)
            self._note_places(fresh)
            fresh = self._named_by(parts.values())
        self._roots = roots

    # What there is

    def _is_fresh(self, part: object) -> bool:
        return id(part) not in self._parts and _is_looked_into(part)

    def _named_by(self, parts: Iterable[Any]) -> list[Any]:
        """Note the names that parts read, and return what they mean."""
        found: list[Any] = []
        for part in parts:
            kind = kind_of(type(part))
            if kind is FUNCTION:
                if not is_closed_to_us(part) and not is_installed(part.__module__):
                    found += self._read(part)
            elif kind in HOMES:
                self._scopes.enter(part)
            elif kind is INSTANCE:
                for cls in type(part).__mro__:
                    if not is_closed_to_us(cls):
                        self._scopes.enter(cls)
        for home, name, value in self._scopes.fresh():
            scope = vars(home) if isinstance(home, ModuleType) else home
            self._slots[id(scope), name] = Slot(scope, name, value, is_global=False)
            found.append(value)
        return found

    def _read(self, function: FunctionType) -> Iterator[Any]:
        """Note the globals that a function of the user's reads, and yield what they mean, and modules it imports."""
        scope = function.__globals__
        words, reads, binds, imports = _named_in(function.__code__, scope.get("__package__"))
        self._codes[id(function.__code__)] = function.__code__
        self._scopes.meet(words)
        for name in reads:
            value = scope.get(name, MISSING)
            if type(value) is ModuleType and is_installed(value.__name__):  # often
                continue
            if value is MISSING and (hasattr(builtins, name) or name not in function.__code__.co_names):
                continue
            key = id(scope), name
            self._readers.setdefault(key, []).append(id(function))
            if key not in self._slots:
                self._slots[key] = Slot(scope, name, value, is_global=True)
            if name in binds:
                self._written.add(key)
            yield value
        for name in imports:
            if isinstance(module := sys.modules.get(name), ModuleType) and not is_installed(name):
                yield module

    def _note(self, parts: Mapping[int, Any], owners: Mapping[int, list[int]]) -> None:
        """Note what parts hold; what a library keeps in variables, and in containers there, is its own affair."""
        closed = {key for key, part in parts.items() if type(part) is FunctionType and is_closed_to_us(part)}
        left_out = set(closed)
        if closed:
            cells = {key for key, part in parts.items() if kind_of(type(part)) is CELL}
            cells = {key for key in cells if not closed.isdisjoint(owners[key])}
            left_out |= cells | {key for key in parts if cells.issuperset(owners[key])}
        for key, part in parts.items():
            if key in left_out:
                continue
            if type(part) is np.ndarray:
                self._note_places((part,))
            elif kind_of(type(part)) in _CHANGING:
                held = contents_of(part)
                self._known[key] = _Known(part, held)
                self._note_places(held.parts, key)

    def _note_places(self, parts: Iterable[Any], owner: int | None = None) -> None:
        """Note arrays, and long containers, which are not looked into."""
        for part in parts:
            if type(part) is np.ndarray:
                if id(part) not in self._places and part.dtype.kind in "biufc" and not is_frozen(part):
                    self._places[id(part)] = _Place(part, _looked_at(part), part.copy() if part.size <= SMALL else None)
            elif type(part) not in _PLAIN and is_long(part):
                self._places[id(part)] = _Place(part, _some_of(part), None)
                self._owners.setdefault(id(part), []).extend([] if owner is None else [owner])

    def _note_large(self, is_same: bool, now: object) -> None:
        """Note large arrays that objects hold: those in variables are copied."""
        large = [part for part in self._held.values() if type(part) is np.ndarray and part.size > SMALL]
        if large:
            same = self._held if is_same else held_by([now], _is_looked_into)[0]
            self._note_places(part for part in large if id(part) in same)

    # What has changed

    def settle(self) -> None:
        """Leave out what has changed since it was last looked: the functions, which have run, did that."""
        changed = set(self._changes(is_exact=True)) - self._seen
        self._own |= changed
        if changed:
            if len(_changed_by) > _REMEMBERED:
                _changed_by.clear()
            known = _changed_by.setdefault(frozenset(self._codes.values()), set())
            if len(known) < _REMEMBERED:  # to find out what all of many entries are called takes long
                known.update(map(self._label, itertools.islice(changed, _REMEMBERED)))

    @property
    def has_changed(self) -> bool:
        """Whether anything has changed, by the functions themselves too, as far as it was looked at."""
        return bool(self._own) or any(True for _ in self._changes(is_exact=True))

    def _changes(self, is_exact: bool) -> Iterator[Key]:
        """Yield what is something else by now; with `is_exact` also what is another object, though it is like it."""
        own = self._own if is_exact else self._own | self._written
        for key, slot in self._slots.items():
            value = slot.now()
            if value is not slot.value and key not in own and (is_exact or not self._are_alike(slot.value, value)):
                yield key
        for number, (part, before) in self._known.items():
            if number not in own and _is_touched(part, before):
                now = contents_of(part)
                yield from (key for key in self._entries_changed(part, before, now, is_exact) if key not in own)
        for number, place in self._places.items():
            if number not in own and not _is_as_noted(place.part, place.noted):
                yield number

    def _entries_changed(self, part: Any, before: Contents, now: Contents, is_exact: bool) -> Iterator[Key]:
        old, new, number = _entries(part, before), _entries(part, now), id(part)
        if old is None or new is None or (kind_of(type(part)) is SERIES and len(before.rest) != len(now.rest)):
            yield number
            return
        for name in {**old, **new}:
            was, value = old.get(name, MISSING), new.get(name, MISSING)
            if was is value or not (is_exact or self._may_be_read(part, name)):
                continue
            if is_exact:
                yield number, name
                if was is MISSING or value is MISSING:
                    yield number, _ANY
            elif was is MISSING or value is MISSING:
                if (number, _ANY) not in self._own:
                    yield number, name
            elif not self._are_alike(was, value):
                yield number, name

    def _may_be_read(self, part: Any, name: Any) -> bool:
        """Return whether an entry may be read: an attribute that no function names is not."""
        if kind_of(type(part)) is not INSTANCE:
            return True
        word = name[1] if isinstance(name, tuple) else name
        return any(word in names_of(code) or takes_all_attributes(code) for code in self._codes.values())

    def _is_read(self, number: int, seen: set[int]) -> bool:
        """Return whether a part may be read: one that only attributes hold which no function names is not."""
        owners = self._owners.get(number, ())
        if not owners or any(id(slot.value) == number for slot in self._slots.values()):
            return True
        for owner in owners:
            if owner not in seen:
                seen.add(owner)
                part = self._parts.get(owner, self._held.get(owner))
                if part is None or (self._leads_to(part, number) and self._is_read(owner, seen)):
                    return True
        return False

    def _leads_to(self, part: Any, number: int) -> bool:
        if kind_of(type(part)) is not INSTANCE:
            return True
        held = self._known[id(part)].held if id(part) in self._known else contents_of(part)
        pairs = zip(held.attributes, held.values, strict=True)
        return any(id(value) == number and self._may_be_read(part, name) for name, value in pairs)

    def _are_alike(self, old: Any, new: Any, depth: int = 0) -> bool:
        """Return whether something is like another one as that was when it was noted."""
        if old is new:
            return True
        if type(old) is not type(new) or depth > _DEEP:
            return False
        if isinstance(old, _NUMBERS):
            return bool(old == new or (old != old and new != new))
        if type(old) is np.ndarray:
            noted = self._places[id(old)].noted if id(old) in self._places else _looked_at(old)
            return old.shape == new.shape and old.dtype == new.dtype and _is_as_noted(new, noted)
        if type(old) is FunctionType and (old.__code__ != new.__code__ or old.__globals__ is not new.__globals__):
            return False
        if not _is_looked_into(old) or isinstance(old, set) or is_long(new) or kind_of(type(old)) in HOMES:
            return False
        before, now = self._known[id(old)].held if id(old) in self._known else contents_of(old), contents_of(new)
        return all(
            len(ones) == len(others)
            and all(self._are_alike(*pair, depth + 1) for pair in zip(ones, others, strict=True))
            for ones, others in zip(before, now, strict=True)
        )

    # As it was

    def put_back(self, made: Any) -> Any:
        """Return functions like these that read what was there when it was noted; refuse what can't be made so."""
        self._seen = set(self._changes(is_exact=True))
        changed = set(self._changes(is_exact=False)) if self._seen else set()
        changed = {key for key in changed if key in self._slots or self._is_read(_part_of(key), set())}
        if changed and (known := _changed_by.get(frozenset(self._codes.values()))):
            changed = {key for key in changed if self._label(key) not in known}
        if not changed:
            return made
        slots = {key for key in changed if key in self._slots}
        parts = set(map(_part_of, changed - slots))
        graph = affected(self._slots, self._readers, self._owners, slots, parts, self._written)
        arrays = {key: self._places[key].copy for key in parts if key in self._places}
        if graph is not None and all(copy is not None for copy in arrays.values()):
            held = {key: self._known[key].held for key in parts if key in self._known}
            try:
                return made_again(made, graph, {**self._held, **self._parts}, held, arrays, _is_looked_into)
            except ClosureError:
                pass
        raise ClosureError(
            "A derivative of what a solver found runs the function that it was given again, and what the function "
            f"reads is not what it was then: {', '.join(sorted(map(self._label, changed)))}. Pass what changes by "
            "`args`, or have the function read it from a variable of the function around it: what that held is kept."
        )

    def _label(self, key: Key) -> str:
        """Return what the user would call what has changed."""
        if key in self._slots:
            return self._slots[key].label
        if isinstance(key, tuple):
            number, name = key
            return f"{_label_of_entry(self._known[number].part, name)} of {self._label_of_part(number, set())}"
        return self._label_of_part(key, set())

    def _label_of_part(self, number: int, seen: set[int]) -> str:
        for slot in self._slots.values():
            if id(slot.value) == number:
                return slot.label
        seen.add(number)
        for owner in self._owners.get(number, ()):
            part = self._parts.get(owner, self._held.get(owner))
            if part is not None and owner not in seen:
                held = self._known[owner].held if owner in self._known else contents_of(part)
                entries = _entries(part, held) or {}
                name = next((name for name, value in entries.items() if id(value) == number), _ANY)
                return f"{_label_of_entry(part, name)} of {self._label_of_part(owner, seen)}"
        return "an object that it holds"


# What functions of some codes were seen to change: a work array may have held once what is there again.
_changed_by: dict[frozenset[CodeType], set[str]] = {}
_REMEMBERED = 100


def _label_of_entry(part: Any, name: Any) -> str:
    kind = kind_of(type(part))
    if name is _ANY or kind in (CELL, FUNCTION, SET):
        return "what is in a variable" if kind in (CELL, FUNCTION) else "an item"
    if isinstance(name, int) or kind is MAPPING:
        return f"[{name!r}]"
    return f"`{name if isinstance(name, str) else name[1]}`"


class _Words(NamedTuple):
    """The names in a code: all of them, those of globals that it may read, that it binds, and of modules."""

    every: tuple[str, ...]
    reads: tuple[str, ...]
    binds: tuple[str, ...]
    imports: tuple[str, ...]


@functools.lru_cache(maxsize=1024)
def _named_in(code: CodeType, package: str | None) -> _Words:
    every, binds = names_of(code), binds_globals(code)
    reads = dict.fromkeys([*globals_of(code), *binds, *(every if looks_up_words(code) else ())])
    return _Words(every, tuple(reads), binds, imports_of(code, package))


def _part_of(key: Key) -> int:
    return key[0] if isinstance(key, tuple) else key


_counts_unnamed = functools.partial(runs_unnamed, frozenset())


def _is_looked_into(part: Any) -> bool:
    kind = kind_of(type(part))
    if kind is INSTANCE:
        return not is_closed_to_us(type(part))
    if kind in HOMES:
        home = part.__name__ if isinstance(part, ModuleType) else part.__module__
        return not is_closed(root_of(part)) and not is_installed(home)
    if kind in _LONG:
        return len(part) <= SMALL
    return kind in _LOOKED_INTO and not (kind is FUNCTION and is_rule(part))


def _is_touched(part: Any, before: Contents) -> bool:
    """Return whether something holds other objects than before."""
    cls = type(part)
    if cls is list:  # this and functions: only to be quick
        now = part.copy()
        return len(now) != len(before.rest) or not all(map(operator.is_, now, before.rest))
    if cls is FunctionType and not (before.first or before.rest):
        return bool(part.__defaults__ or part.__kwdefaults__ or part.__dict__)
    return differ(before, contents_of(part))


def _entries(part: Any, held: Contents) -> dict[Any, Any] | None:
    """Return what an object held, by the names of attributes, keys or places; None where only all of it counts."""
    kind = kind_of(type(part))
    if kind is SET:
        return None
    own = dict(zip(held.attributes, held.values, strict=True))
    if kind is not MAPPING:
        return {**dict(enumerate([*held.first, *held.rest])), **own}
    count = len(held.rest) // 2
    if not all(type(key) is str for key in held.rest[:count]):
        return None
    return {**dict(zip(held.rest[:count], held.rest[count:], strict=False)), **own}


def _looked_at(array: Array) -> bytes:
    """Return the bytes of an array; of a large one, of numbers in some places."""
    if array.size <= SMALL:
        return bytes(array.tobytes())
    some: Array = array.flat[:: -(-array.size // SMALL)]
    return bytes(some.tobytes())


def _some_of(part: Any) -> tuple[Any, ...]:
    items = part.values() if isinstance(part, dict) else part
    return (len(part), *itertools.islice(items, SMALL))


def _is_as_noted(part: Any, noted: Any) -> bool:
    if type(part) is not np.ndarray:
        now = _some_of(part)
        return now[0] == noted[0] and all(one is other for one, other in zip(now[1:], noted[1:], strict=True))
    return bool(_looked_at(part) == noted)
