"""What functions read by name, as it was before they ran: others may have changed it when a derivative runs them.

State: `_changed_by`, by the codes of functions, what they were seen to change themselves, of `_REMEMBERED` at most.
"""

from __future__ import annotations

import itertools
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from dagad._errors import ClosureError
from dagad._values.baseline import SOME, copied, some_bits_of, some_numbers_in
from dagad._values.before import can_be_made
from dagad._values.kinds import CELL, CONTAINERS, FUNCTION, MAPPING, METHOD, PARTIAL, SET, kind_of
from dagad._values.picture import ByName, Picture, entries_of
from dagad._values.reach import (
    ANY,
    MISSING,
    NOTHING,
    WHOLE,
    Key,
    contents_of,
    held_by,
    is_long,
    is_part,
    opened,
    opened_with_memory,
    remembered,
)
from dagad._values.rescoped import affected, made_again
from dagad._values.walk import led_to_by

_NUMBERS = (bool, int, float, complex, str, bytes, np.generic)
_DEEP = 20  # containers in containers


class Named:
    """What functions read as globals, in modules and in classes, and what these hold, as it is now.

    What changes while the functions run is their own affair: `settle` leaves it out. What others have changed is put
    back for a function made anew, where it can be, or refused: see `put_back`. Attributes that no function names are
    not read; of large arrays and long containers some places are compared.

    ===========  ===================================================================================================
    `_picture`   what is reached by names, and what is held and can't be made again, as it is now
    `_fixed`     the latter, and what is only remembered
    `_copies`    small arrays, buffers and tables among the former
    `_own`       what has changed while they ran
    `_seen`      what had changed before they ran last
    ===========  ===================================================================================================
    """

    def __init__(self, fun: object, now: object) -> None:
        """Note what functions name; `now` are the same with variables of their own: see `closures.as_now`."""
        self._own, self._seen = set[Key](), set[Key]()
        inside, later = ByName(opened_with_memory), ByName(SOME.held)
        self._reach = inside.reach(fun)
        later.names = inside.names
        self._picture = Picture(self._reach, SOME._replace(held=later))
        self._known, self._codes = self._picture.known, self._picture.codes
        self._picture.add(self._reach.named)
        found = ((key, copied(noted.part)) for key, noted in self._known.items() if noted.numbers is not None)
        self._copies = {key: copy for key, copy in found if copy is not None}
        held, owners = self._reach.held, self._reach.owners
        only_remembered = remembered(held | self._reach.named, owners)
        fixed = {key: part for key, part in held.items() if _stays(part)}
        below = led_to_by(fixed, owners) | only_remembered  # others in their places would not be there
        fixed |= {key: held[key] for key in below & held.keys()}
        if fixed and now is not fun:
            same = held_by([now], is_part, inside=opened_with_memory)[0]  # arrays in variables are copied
            fixed = {key: part for key, part in fixed.items() if key in same}
        self._fixed = only_remembered | fixed.keys()
        self._picture.add(fixed, held)

    # What has changed

    def settle(self) -> None:
        """Leave out what has changed since it was last looked: the functions, which have run, did that."""
        changed = set(self._picture.changes(self._own)) - self._seen
        self._own |= changed
        if changed:
            if len(_changed_by) > _REMEMBERED:
                _changed_by.clear()
            known = _changed_by.setdefault(self._codes, set())
            if len(known) < _REMEMBERED:  # to find out what all of many entries are called takes long
                known.update(map(self._label, itertools.islice(changed, _REMEMBERED)))

    @property
    def has_changed(self) -> bool:
        """Whether anything has changed, by the functions themselves too, as far as it was looked at."""
        return bool(self._own) or any(True for _ in self._picture.changes())

    def _is_another(self, key: Key) -> bool:
        """Return whether something that has changed may be read, and is not like what was there."""
        if key in self._reach.written:
            return False
        if key in self._reach.slots:
            slot = self._reach.slots[key]
            return self._picture.names_in(slot) and not self._are_alike(slot.value, slot.now())
        number, name = key
        noted = self._known[number]
        if name is WHOLE:
            return not self._picture.is_drawn_from_only(number) and self._is_read(number, set())
        if name is ANY or not (self._picture.names(noted.part, name) and self._is_read(number, set())):
            return False
        was, value = ((entries_of(noted.part, held) or {}).get(name, MISSING) for held in (noted.held, noted.now()))
        if was is MISSING or value is MISSING:
            return (number, ANY) not in self._own
        return not self._are_alike(was, value)

    def _is_read(self, number: int, seen: set[int]) -> bool:
        """Return whether a part may be read: one that only attributes hold which no function names is not."""
        owners = self._reach.owners.get(number, ())
        if not owners or any(id(slot.value) == number for slot in self._reach.slots.values()):
            return True
        for owner in owners:
            if owner not in seen:
                seen.add(owner)
                part = self._reach.part(owner)
                if part is None or (self._leads_to(part, number) and self._is_read(owner, seen)):
                    return True
        return False

    def _leads_to(self, part: object, number: int) -> bool:
        held = self._known[id(part)].held if id(part) in self._known else contents_of(part)
        pairs = list(zip(held.attributes, held.values, strict=True))
        named = [self._picture.names(part, name) for name, value in pairs if id(value) == number]
        return any(named) or not named

    def _are_alike(self, old: Any, new: Any, depth: int = 0) -> bool:
        """Return whether something is like another one as that was when it was noted."""
        if old is new:
            return True
        if type(old) is not type(new) or depth > _DEEP:
            return False
        if isinstance(old, _NUMBERS):
            return bool(old == new or (old != old and new != new))
        noted = self._known.get(id(old))
        if type(old) is np.ndarray and not old.dtype.hasobject:
            numbers = None if noted is None else noted.numbers
            return some_bits_of(new) == (some_bits_of(old) if numbers is None else numbers)
        if type(old) is FunctionType and (old.__code__ != new.__code__ or old.__globals__ is not new.__globals__):
            return False
        before, now = (opened(old), opened(new)) if noted is None else (noted.held, noted._replace(part=new).now())
        if isinstance(old, set) or is_long(new):
            return False
        numbers, ours = some_numbers_in(old) if noted is None else noted.numbers, some_numbers_in(new)
        if numbers != ours or (numbers is None and before is NOTHING):
            return False
        return all(
            len(ones) == len(others)
            and all(self._are_alike(*pair, depth + 1) for pair in zip(ones, others, strict=True))
            for ones, others in zip(before, now, strict=True)
        )

    # As it was

    def put_back(self, made: object) -> Any:
        """Return functions like these that read what was there when it was noted; refuse what can't be made so."""
        self._seen = set(self._picture.changes(self._own))
        changed = set(filter(self._is_another, self._seen))
        if changed and (known := _changed_by.get(self._codes)):
            changed = {key for key in changed if self._label(key) not in known}
        if not changed:
            return made
        slots = changed & self._reach.slots.keys()
        parts = {number for number, _ in changed - slots}
        graph = affected(self._reach, slots, parts) if self._fixed.isdisjoint(parts) else None
        if graph is not None and (
            any(self._known[number].is_made_otherwise for number in parts) or self._lead_back(graph.parts)
        ):
            graph = None
        copies = {key: self._copies.get(key) for key in parts if self._known[key].numbers is not None}
        rest = [self._known[key].part for key in parts - copies.keys()]
        if graph is not None and not any(each is None for each in copies.values()) and all(map(can_be_made, rest)):
            held = {key: self._known[key].held for key in parts}
            try:
                return made_again(made, graph, self._reach, held, copies)
            except ClosureError:
                pass
        raise ClosureError(
            "A derivative of what a solver found runs the function that it was given again, and what the function "
            f"reads is not what it was then: {', '.join(sorted(map(self._label, changed)))}. Pass what changes by "
            "`args`, or have the function read it from a variable of the function around it: what that held is kept."
        )

    def _lead_back(self, parts: set[int]) -> bool:
        """Return whether what has come anywhere since leads to one of these parts, as a property that is cached may.

        It would lead to that one, not to the one that is made in its place.
        """
        for noted in self._known.values():
            before = {id(part) for part in noted.held.parts}
            fresh = [part for part in noted.now().parts if id(part) not in before and is_part(part)]
            if fresh and not parts.isdisjoint(held_by(fresh, is_part, inside=opened)[0]):
                return True
        return False

    def _label(self, key: Key) -> str:
        """Return what the user would call what has changed."""
        if key in self._reach.slots:
            return self._reach.slots[key].label
        number, name = key
        label = self._label_of_part(number, set())
        return label if name is WHOLE else f"{_label_of_entry(self._known[number].part, name)} of {label}"

    def _label_of_part(self, number: int, seen: set[int]) -> str:
        for slot in self._reach.slots.values():
            if id(slot.value) == number:
                return slot.label
        seen.add(number)
        for owner in self._reach.owners.get(number, ()):
            part = self._reach.part(owner)
            if part is not None and owner not in seen:
                held = self._known[owner].held if owner in self._known else contents_of(part)
                entries = entries_of(part, held) or {}
                name = next((name for name, value in entries.items() if id(value) == number), ANY)
                return f"{_label_of_entry(part, name)} of {self._label_of_part(owner, seen)}"
        return "an object that it holds"


# What functions of some codes were seen to change: a work array may have held once what is there again.
_changed_by: dict[frozenset[CodeType], set[str]] = {}
_REMEMBERED = 100


def _label_of_entry(part: object, name: Any) -> str:
    kind = kind_of(type(part))
    if name is ANY or kind in (CELL, FUNCTION, SET):
        return "what is in a variable" if kind in (CELL, FUNCTION) else "an item"
    if isinstance(name, int) or kind is MAPPING:
        return f"[{name!r}]" if kind in CONTAINERS else "a part"
    return f"`{name if isinstance(name, str) else name[1]}`"


_MADE_AGAIN = CONTAINERS | {FUNCTION, CELL, PARTIAL, METHOD}


def _stays(part: object) -> bool:
    """Return whether no other one can be put in the place of something that is held."""
    if kind_of(type(part)) in _MADE_AGAIN:
        return is_long(part)
    return copied(part) is None and (opened(part) is NOTHING or not can_be_made(part))
