"""All that something holds, and what functions in it mean by names: one traversal for whoever asks what has changed.

What belongs to a library holds nothing of its users, but for what is usually used to hold values; it may lead to
functions of theirs.
"""

from __future__ import annotations

import builtins
import functools
import gc
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from sys import getrefcount
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from dagad._types import Array
from dagad._values.bytecode import (
    CHANGE,
    binds_globals,
    changes_others,
    globals_of,
    imports_of,
    looks_up_words,
    names_of,
)
from dagad._values.contents import attributes_of, n_items
from dagad._values.homes import is_closed, is_installed, root_of
from dagad._values.kinds import CACHED, CELL, FUNCTION, HOMES, INSTANCE, MAPPING, SERIES, SET, kind_of
from dagad._values.names import Scopes, Unnamed
from dagad._values.work_arrays import IN_A_CONTAINER, is_own

MISSING = object()  # what a name means that is not there
SMALL = 1000  # entries of a container that is looked into; numbers of an array that is copied, or compared in full
_PLAIN = frozenset(
    {type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis), CodeType, np.dtype}
    | {np.float64, np.float32, np.int64, np.int32, np.bool_, np.ufunc}
)
_LONG = (MAPPING, SERIES, SET)
# Libraries whose objects hold what users gave them, as attributes.
_CHANGEABLE = frozenset("argparse configparser multiprocessing networkx optparse shelve sympy".split())  # by any method
_HOLDERS = _CHANGEABLE | {"numpy", "queue", "scipy", "weakref"}
WHOLE, ANY = object(), object()  # a part as a whole; any entry of one that comes or goes
Key = tuple[int, Any]  # a name in a scope, by the id of the scope; an entry of a part, by the id of the part


class Contents(NamedTuple):
    """What an object holds: see `Kind`."""

    first: Sequence[Any]
    rest: Sequence[Any]
    attributes: Sequence[Any]
    values: Sequence[Any]

    @property
    def parts(self) -> list[Any]:
        """All parts."""
        return [*self.first, *self.rest, *self.values]


NOTHING = Contents((), (), (), ())


def contents_of(obj: object) -> Contents:
    """Return what an object holds now."""
    kind = kind_of(type(obj))
    names, values = attributes_of(obj) if kind.attributes else ((), [])
    return Contents(kind.first(obj), kind.rest(obj), names, values)


def opened(part: object) -> Contents:
    """Return what is looked into of what a part holds: not of libraries' objects, and not of long containers."""
    return _opened(part, has_memory=False, is_whole=False)


def opened_with_memory(part: object) -> Contents:
    """Return the same, and what is remembered by `functools.lru_cache`."""
    return _opened(part, has_memory=True, is_whole=False)


def opened_in_full(part: object) -> Contents:
    """Return the same, with all entries of long containers."""
    return _opened(part, has_memory=True, is_whole=True)


def _opened(part: Any, has_memory: bool, is_whole: bool) -> Contents:
    cls: Any = type(part)
    kind = kind_of(cls)
    if kind is CELL:
        return Contents((), CELL.rest(part), (), ())
    if kind is FUNCTION:
        return NOTHING if is_rule(part) else Contents(part.__closure__ or (), FUNCTION.rest(part), (), ())
    if kind is INSTANCE:
        if issubclass(cls, weakref.ref):  # of a dict of weak values, say
            return Contents((part(),), (), (), ())
        if cls in weakref.ProxyTypes:
            return Contents(_stood_for_by(part), (), (), ())
        if root_of(cls) == "torch" and hasattr(cls, "parameters"):  # a layer; its attributes are many, and torch's
            return Contents((), _learned_by(part), (), ())
        is_holder = not is_closed_to_us(cls) or issubclass(cls, threading.local) or root_of(cls) in _HOLDERS
        return contents_of(part) if is_holder else NOTHING
    if kind in HOMES or (cls is np.ndarray and not part.dtype.hasobject):
        return NOTHING
    if kind is CACHED and has_memory:
        return Contents(gc.get_referents(part) if is_whole else _remembered_by(part), (), (), ())
    return NOTHING if not is_whole and kind in _LONG and n_items(part) > SMALL else contents_of(part)


def _learned_by(layer: Any) -> list[Any]:
    try:
        return [*layer.parameters(), *layer.buffers()]
    except Exception:  # of one that is not made to the end
        return []


def _stood_for_by(proxy: Any) -> list[Any]:
    """Return what a weak proxy stands for, if that is there: a method that it is asked for is bound to it."""
    try:
        return [proxy.__dir__.__self__]
    except Exception:
        return []


def _remembered_by(cached: Any) -> list[Any]:
    """Return the function that `functools.lru_cache` calls, and what it remembers.

    Not the dict which has all that, and changes whenever it remembers or forgets something; it stands before the
    function.
    """
    found = gc.get_referents(cached)
    for index in range(1, len(found)):
        if found[index] is cached.__wrapped__ and type(found[index - 1]) is dict:
            own = found.pop(index - 1)
            return [*found, *own, *own.values()]
    return found


def is_part(part: object) -> bool:
    """Return whether something may hold what may change."""
    return type(part) not in _PLAIN


def is_long(part: object) -> bool:
    """Return whether a container holds so much that it is data: to compare it takes longer than most calls."""
    return kind_of(type(part)) in _LONG and n_items(part) > SMALL


def is_rule(obj: object) -> bool:
    """Return whether this is a primitive of autograd's: its identity counts, rules are found by it."""
    return bool(getattr(obj, "_is_autograd_primitive", False))


def is_closed_to_us(thing: object) -> bool:
    """Return whether a function or a class is ours, or a library's that holds nothing of its users."""
    return _is_closed_module(str(thing.__name__ if isinstance(thing, ModuleType) else thing.__module__))


@functools.lru_cache(maxsize=1024)
def _is_closed_module(name: str) -> bool:
    return is_closed(name.partition(".")[0])


def held_by(
    root: object,
    is_followed: Callable[[Any], bool],
    contents: Mapping[int, Contents] | None = None,
    inside: Callable[[Any], Contents] | None = None,
) -> tuple[dict[int, Any], dict[int, list[int]]]:
    """Return the arrays and other parts that something holds, by their ids, and the ids of what has each of them.

    Parts that are not followed count as data, with all that they hold. What is in `contents`, by ids, holds that; of
    others `inside` says what they hold.
    """
    known = contents or {}
    parts: dict[int, Any] = {}
    owners: dict[int, list[int]] = {}
    stack = [root]
    while stack:
        owner = stack.pop()
        held = known.get(id(owner))
        if held is not None:
            inner: Sequence[Any] = held.parts
        else:
            inner = kind_of(type(owner)).parts(owner) if inside is None else inside(owner).parts
        for part in inner:
            is_array, key = type(part) is np.ndarray, id(part)
            if not (is_array or is_followed(part)):
                continue
            owners.setdefault(key, []).append(id(owner))
            if key not in parts:
                parts[key] = part
                if part is not root and not (is_array and inside is None):
                    stack.append(part)
    return parts, owners


class Slot(NamedTuple):
    """A name, where it is looked up, and what it meant; `is_global` where functions alone read it, as a global."""

    home: Any
    name: str
    value: Any
    is_global: bool

    def now(self) -> Any:
        """Return what the name means now."""
        return (self.home if type(self.home) is dict else vars(self.home)).get(self.name, MISSING)

    @property
    def label(self) -> str:
        """What the user would call it."""
        if self.is_global:
            return f"the global `{self.name}`"
        home = self.home["__name__"] if type(self.home) is dict else self.home.__name__
        return f"`{home}.{self.name}`"


class Reach:
    """What something holds, and what its functions mean by names, with all that is held there; each part once.

    Attributes
    ----------
    held
        What it holds, by id.
    named
        What is reached from there by a name, by id.
    contents
        What is in each part that was looked into, by id.
    owners
        For each part the ids of what has it.
    slots
        What names mean.
    readers
        For each name the ids of the functions that read it as a global.
    written
        Names that the functions bind themselves.
    codes
        What the functions are made of that were found, without those of packages.
    is_full
        Whether there is more than was asked for.
    """

    def __init__(
        self,
        root: object,
        unnamed: Unnamed,
        inside: Callable[[Any], Contents] = opened_with_memory,
        most: int = sys.maxsize,
    ) -> None:
        self.named, self.codes = dict[int, Any](), dict[int, CodeType]()
        self.slots, self.readers, self.written = dict[Key, Slot](), dict[Key, list[int]](), set[Key]()
        self._scopes, self._kept = Scopes(unnamed), [[root]]  # or something else might get the id of one
        self._inside, self._most, self.is_full, self._entered = inside, most, False, set[int]()
        self.held, self.contents, self.owners = dict[int, Any](), dict[int, Contents](), dict[int, list[int]]()
        self._gather(self._kept[0], self.held)
        fresh = self._meant_by(self.held.values())
        while fresh and not self.is_full:
            self._kept.append(fresh)
            before = len(self.named)
            self._gather(fresh, self.named)
            fresh = self._meant_by(itertools.islice(self.named.values(), before, None))
        self._present = self._scopes.present()

    def _gather(self, roots: list[Any], found: dict[int, Any]) -> None:
        """Find what roots hold: what was found holds its parts, of which the first are looked into."""
        stack: list[tuple[int, Sequence[Any]]] = [(id(roots), roots)]
        while stack:
            above, inner = stack.pop()
            for part in inner:
                if type(part) in _PLAIN:
                    continue
                key = id(part)
                self.owners.setdefault(key, []).append(above)
                if key in found:
                    continue
                if len(found) == self._most:
                    self.is_full = True
                    return
                found[key] = part
                held = self.contents[key] if key in self.contents else self._inside(part)
                self.contents[key] = held
                if held is not NOTHING:
                    stack.append((key, held.parts[: 2 * SMALL]))

    def _meant_by(self, parts: Iterable[Any]) -> list[Any]:
        """Note the names that parts read, and return what they mean."""
        found: list[Any] = []
        for part in parts:
            kind = kind_of(type(part))
            if kind is FUNCTION:
                if not is_closed_to_us(part) and not is_installed(part.__module__):
                    found += self._read(part)
            elif kind in HOMES:
                self._enter([part] if isinstance(part, ModuleType) else [*part.__mro__, *type(part).__mro__])
            elif kind is INSTANCE:
                self._enter(type(part).__mro__)
        for home, name, value in self._scopes.fresh():
            scope = vars(home) if isinstance(home, ModuleType) else home
            self.slots[id(scope), name] = Slot(scope, name, value, is_global=False)
            found.append(value)
        return found

    def _enter(self, homes: Iterable[Any]) -> None:
        for home in homes:
            if id(home) in self._entered:
                continue
            self._entered.add(id(home))
            if not is_closed_to_us(home) and not is_installed(_name_of_home(home)):
                self._scopes.enter(home)

    def _read(self, function: FunctionType) -> Iterator[Any]:
        """Note the globals that a function of the user's reads, and yield what they mean, and modules it imports."""
        scope = function.__globals__
        words, reads, binds, imports = _named_in(function.__code__, scope.get("__package__"))
        self.codes[id(function.__code__)] = function.__code__
        self._scopes.meet(words)
        for name in reads:
            value = scope.get(name, MISSING)
            if type(value) is ModuleType and is_installed(value.__name__):  # often
                continue
            if value is MISSING and (hasattr(builtins, name) or name not in function.__code__.co_names):
                continue
            key = id(scope), name
            self.readers.setdefault(key, []).append(id(function))
            if key not in self.slots:
                self.slots[key] = Slot(scope, name, value, is_global=True)
            if name in binds:
                self.written.add(key)
            yield value
        for name in imports:
            if isinstance(module := sys.modules.get(name), ModuleType) and not is_installed(name):
                yield module

    def rebound(self) -> Iterator[Key]:
        """Yield names that mean another object by now, and those that nothing had in a module or a class."""
        for home, names, present in self._present:
            for name in (names & vars(home).keys()) - present:
                scope = vars(home) if isinstance(home, ModuleType) else home
                self.slots.setdefault((id(scope), name), Slot(scope, name, MISSING, is_global=False))
        for key, slot in self.slots.items():
            if slot.now() is not slot.value:
                yield key

    def part(self, key: int) -> Any:
        """Return what has an id; None if nothing that was found has it."""
        return self.named.get(key, self.held.get(key))

    def may_change(self) -> bool:
        """Return whether a program may change what it reaches, as its bytecode says."""
        parts = (*self.held.values(), *self.named.values())
        if any(map(changes_others, self.codes.values())):
            return True
        if any(is_drawn_from(cls) or root_of(cls) in _CHANGEABLE for cls in set(map(type, parts))):
            return True
        return any(type(part) is BuiltinFunctionType and part.__name__ in CHANGE for part in parts)

    def shares(self, array: Array, besides: Container[int]) -> bool:
        """Return whether the memory of an array is held by something else than what is listed by its ids."""
        for part in (*self.held.values(), *self.named.values()):
            if isinstance(part, np.ndarray) and np.may_share_memory(part, array):
                if any(owner not in besides for owner in self.owners[id(part)]):
                    return True
        return False


def _name_of_home(part: object) -> str | None:
    name: str | None = part.__name__ if isinstance(part, ModuleType) else part.__module__
    return name


def owned_by_libraries(parts: Mapping[int, Any], owners: Mapping[int, Sequence[int]]) -> set[int]:
    """Return the ids of what libraries keep in variables, and in containers there: their own affair."""
    closed = {key for key, part in parts.items() if type(part) is FunctionType and is_closed_to_us(part)}
    if not closed:
        return closed
    cells = {key for key, part in parts.items() if kind_of(type(part)) is CELL}
    cells = {key for key in cells if not closed.isdisjoint(owners[key])}
    return closed | cells | {key for key in parts if cells.issuperset(owners[key])}


def remembered(parts: Mapping[int, Any], owners: Mapping[int, Sequence[int]]) -> set[int]:
    """Return the ids of what only `functools.lru_cache` has, which a copy of it would not remember."""
    caches = {key: id(part.__wrapped__) for key, part in parts.items() if kind_of(type(part)) is CACHED}
    found = set[int]()
    for key in parts if caches else ():  # whatever holds one comes before it
        if all(owner in found or caches.get(owner, key) != key for owner in owners[key]):
            found.add(key)
    return found


def is_drawn_from(cls: Any) -> bool:
    """Return whether objects of a class give another thing each time: where one stands may not be seen."""
    if hasattr(cls, "__next__"):
        return True
    return hasattr(cls, "random") and kind_of(cls) is INSTANCE and is_closed_to_us(cls)  # numpy's, Python's


def all_of_a_class(*_: object) -> bool:
    """Return that what is in a class counts, though no code names it."""
    return True


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


def written_elsewhere(fun: object, arrays: Mapping[int, Array], owners: Mapping[int, list[int]]) -> set[int]:
    """Return the ids of arrays that a function may write into, past their owners, as bytecode says.

    Such a function means one array by two names, as that of a variable and that of an attribute.
    """
    suspects = {}
    for key in arrays:
        array = arrays[key]  # not by `items`, whose tuple would hold it too
        if array.flags.writeable and (not is_own(array) or getrefcount(array) > IN_A_CONTAINER + len(owners[key])):
            suspects[key] = array
    if not suspects:
        return set()
    reach, through = Reach(fun, all_of_a_class, most=MOST), {each for key in suspects for each in owners[key]}
    return {key for key, array in suspects.items() if reach.may_change() and reach.shares(array, through)}


MOST = 20_000  # parts that are looked into where that is only to be quick
