"""Functions as they were before they ran, to be run again later: what they have remembered since is left out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from dagad._errors import ClosureError
from dagad._values.baseline import SOME, Noted, copied
from dagad._values.closures import Make, as_now, carriers_of, taken_out, unchanged
from dagad._values.kinds import CELL, FUNCTION, INSTANCE, kind_of
from dagad._values.reach import held_by, is_part, opened, owned_by_libraries
from dagad._values.walk import Walk, leading_to, leads_nowhere, led_to_by


class _Way(NamedTuple):
    """How to make functions again, and arrays that they held, of which each gets copies."""

    make: Make
    arrays: list[Any]


class Before:
    """Functions, in builtin containers too, as they are when this is made: see `at`.

    A derivative runs them later. A loop has gone on by then, and a solver has run them with plain values: what they
    remember of that, for arguments that are the same, is plain too, and no derivative would go through it. So objects,
    containers and variables that hold something else by then are made again as they were, anew for each derivative.
    What is reached by the name of a global, and large arrays that objects hold, are not: see `named`. Long containers
    are read as they are by then.

    Attributes
    ----------
    now
        The functions with variables of their own.
    """

    def __init__(self, fun: object) -> None:
        self.now = as_now(fun)
        walk = None if leads_nowhere(self.now) else Walk(self.now)
        self._carriers = set() if walk is None else carriers_of(walk)
        self._boxes = {} if walk is None else walk.boxes
        self._known, self._copies = _known(fun)
        if self.now is not fun:
            known, copies = _known(self.now)
            self._known, self._copies = self._known | known, self._copies | copies
        usual = taken_out(self.now, self._boxes, self._carriers)[1] if self._boxes else None
        self._usual = _Way(usual or functools.partial(unchanged, self.now), [])
        self._ways = {frozenset[int](): self._usual}

    @property
    def has_changed(self) -> bool:
        """Whether anything that the functions carry holds something else by now."""
        return bool(self._changed())

    def at(self, leaves: Sequence[Any]) -> Any:
        """Return the functions as they were, with these in the place of the traced values."""
        changed = self._changed()
        if changed not in self._ways:
            self._refuse_made_otherwise(changed)
            self._ways[changed] = self._anew(changed)
        make, arrays = self._ways[changed]
        return make([*leaves, *map(copied, arrays)])

    def _changed(self) -> frozenset[int]:
        return frozenset(key for key, noted in self._known.items() if noted.has_changed())

    def _refuse_made_otherwise(self, changed: frozenset[int]) -> None:
        for noted in (self._known[key] for key in changed):
            if noted.is_made_otherwise:
                part = noted.part
                what = "code" if kind_of(type(part)) is FUNCTION else "class"
                name = part.__qualname__ if what == "code" else type(part).__qualname__
                raise ClosureError(
                    "A derivative of what a solver found runs the function that it was given again, and what it holds "
                    f"is not what it was then: something was given another {what}, that of `{name}`, as what loads a "
                    "module anew does. Solve again, and differentiate that."
                )

    def _anew(self, changed: frozenset[int]) -> _Way:
        """Return what makes again all that is not what it was; what can't be made again stays."""
        contents = {key: noted.held for key, noted in self._known.items()}
        parts, owners = held_by(self.now, is_part, contents, opened)
        # Variables and containers that are ours alone have what they had, and the first derivative would change them.
        own = {
            key for key, part in parts.items() if kind_of(type(part)) is CELL or (key in changed and key in contents)
        }
        # Another one in the place of what can't be made again, and holds some of it, there is not.
        stays = led_to_by([key for key, part in parts.items() if not can_be_made(part)], owners)
        # Something may know an object by its `id`, which another one has not.
        keyed = {part for held in contents.values() for part in held.parts if type(part) is int}
        fresh = {key for key in own - keyed - stays - self._copies.keys() if can_be_made(parts[key])}
        arrays = [key for key in parts if key in changed and key in self._copies and key not in stays]
        carriers = self._carriers | fresh | leading_to([*fresh, *arrays], owners)
        try:
            make = taken_out(self.now, self._boxes, carriers, contents, arrays)[1]
        except ClosureError:
            return self._usual
        return _Way(make, [self._copies[key] for key in arrays])


def _known(fun: object) -> tuple[dict[int, Noted], dict[int, Any]]:
    """Return what may change, with what it holds, and copies of small arrays, buffers and tables."""
    parts, owners = held_by(fun, is_part, inside=opened)
    known, copies = dict[int, Noted](), dict[int, Any]()
    for key in parts.keys() - owned_by_libraries(parts, owners):
        noted = Noted.of(parts[key], SOME)
        copy = None if noted is None or noted.numbers is None else copied(parts[key])
        if noted is not None and (noted.numbers is None or copy is not None):
            known[key] = noted
            if copy is not None:
                copies[key] = copy
    return known, copies


def can_be_made(part: object) -> bool:
    """Return whether something can be made again, with other things in it: not what has more than its attributes."""
    kind = kind_of(type(part))
    if kind is INSTANCE and opened(part).rest:
        return False
    try:
        kind.making(part)
    except ClosureError:
        return False
    return True
