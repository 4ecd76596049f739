"""Functions as they were before they ran, to be run again later: what they have remembered since is left out."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from dagad._errors import ClosureError
from dagad._types import Array
from dagad._values.closures import (
    Contents,
    Make,
    as_now,
    carriers_of,
    contents_of,
    held_by,
    is_rule,
    taken_out,
    unchanged,
)
from dagad._values.homes import is_closed, root_of
from dagad._values.kinds import CELL, FIXED, FUNCTION, INSTANCE, MAPPING, METHOD, PARTIAL, SERIES, SET, WRAPPER, kind_of
from dagad._values.walk import Walk, leading_to, leads_nowhere

SMALL = 1000  # numbers of an array that is copied: arguments that are remembered are about as large as parameters
# What may hold something else after a run, and what leads to it.
_CHANGING = frozenset({CELL, FUNCTION, INSTANCE, MAPPING, SERIES, SET})
_LOOKED_INTO = _CHANGING | {FIXED, METHOD, PARTIAL, WRAPPER}


class _Known(NamedTuple):
    """A part of a function, and what it held."""

    part: Any
    contents: Contents


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
        self._known, self._arrays = _known(fun)
        if self.now is not fun:
            known, arrays = _known(self.now)
            self._known, self._arrays = self._known | known, self._arrays | arrays
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
            self._ways[changed] = self._anew(changed)
        make, arrays = self._ways[changed]
        return make([*leaves, *(array.copy() for array in arrays)])

    def _changed(self) -> frozenset[int]:
        return _changed_of(self._known, self._arrays)

    def _anew(self, changed: frozenset[int]) -> _Way:
        """Return what makes again all that is not what it was; what can't be made again stays."""
        contents = {key: known.contents for key, known in self._known.items()}
        parts, owners = held_by(self.now, _is_looked_into, contents)
        # Variables and containers that are ours alone have what they had, and the first derivative would change them.
        own = {
            key for key, part in parts.items() if kind_of(type(part)) is CELL or (key in changed and key in contents)
        }
        # Something may know an object by its `id`, which another one has not.
        keyed = {part for held in contents.values() for part in held.parts if type(part) is int}
        fresh = {key for key in own - keyed if _can_be_made(parts[key])}
        arrays = [key for key in parts if key in changed and key in self._arrays]
        carriers = self._carriers | fresh | leading_to([*fresh, *arrays], owners)
        try:
            make = taken_out(self.now, self._boxes, carriers, contents, arrays)[1]
        except ClosureError:
            return self._usual
        return _Way(make, [self._arrays[key][1] for key in arrays])


def _changed_of(known: dict[int, _Known], arrays: dict[int, tuple[Any, Any]]) -> frozenset[int]:
    return frozenset(
        [key for key, (part, before) in known.items() if differ(before, contents_of(part))]
        + [key for key, (part, before) in arrays.items() if not _are_alike(part, before)]
    )


def _known(fun: object) -> tuple[dict[int, _Known], dict[int, tuple[Any, Any]]]:
    """Return what may change, with what it holds, and small arrays, with copies."""
    parts, owners = held_by(fun, _is_looked_into)
    ours = {key for key, part in parts.items() if type(part) is FunctionType and is_closed_to_us(part)}
    # What a library keeps in variables, and in containers there, is its own affair.
    cells = {key for key, part in parts.items() if kind_of(type(part)) is CELL and not ours.isdisjoint(owners[key])}
    left_out = ours | cells | {key for key in parts if cells.issuperset(owners[key])}
    known = {
        key: _Known(part, contents_of(part))
        for key, part in parts.items()
        if key not in left_out and kind_of(type(part)) in _CHANGING
    }
    arrays = [(key, part) for key, part in parts.items() if type(part) is np.ndarray and part.dtype.kind in "biufc"]
    return known, {key: (part, part.copy()) for key, part in arrays if part.size <= SMALL and part.flags.writeable}


def is_long(part: Any) -> bool:
    """Return whether a container holds so much that it is data: to compare it takes longer than most calls."""
    return kind_of(type(part)) in (MAPPING, SERIES, SET) and len(part) > SMALL


def _is_looked_into(part: object) -> bool:
    kind = kind_of(type(part))
    if kind is INSTANCE:
        return not is_closed_to_us(type(part))
    is_known = kind in _LOOKED_INTO and not is_rule(part)
    return is_known and not is_long(part)


def is_closed_to_us(thing: Any) -> bool:
    """Return whether a function or a class is ours, or a library's that holds nothing of its users."""
    root = root_of(thing)
    return root == "dagad" or is_closed(root)


def _can_be_made(part: object) -> bool:
    try:
        kind_of(type(part)).making(part)
    except ClosureError:
        return False
    return True


def differ(before: Contents, now: Contents) -> bool:
    """Return whether something holds other objects than before."""
    for one, other in zip(before, now, strict=True):
        if len(one) != len(other) or not all(map(operator.is_, one, other)):
            return True
    return False


def _are_alike(array: Array, before: Array) -> bool:
    return bool(array.tobytes() == before.tobytes())
