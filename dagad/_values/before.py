"""Functions as they were before they ran, to be run again later: what they have remembered since is left out."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import FunctionType
from typing import Any, NamedTuple

from dagad._errors import ClosureError
from dagad._values.closures import Contents, Make, as_now, carriers_of, contents_of, held_by, taken_out, unchanged
from dagad._values.homes import is_closed, root_of
from dagad._values.kinds import CELL, FIXED, FUNCTION, INSTANCE, MAPPING, METHOD, PARTIAL, SERIES, SET, WRAPPER, kind_of
from dagad._values.walk import Walk, leading_to, leads_nowhere

# What may hold something else after a run, and what leads to it.
_CHANGING = frozenset({CELL, FUNCTION, INSTANCE, MAPPING, SERIES, SET})
_LOOKED_INTO = _CHANGING | {FIXED, METHOD, PARTIAL, WRAPPER}


class _Known(NamedTuple):
    """A part of a function, and what it held."""

    part: Any
    contents: Contents


class Before:
    """Functions, in builtin containers too, as they are when this is made: see `at`.

    A derivative runs them later. A loop has gone on by then, and a solver has run them with plain values: what they
    remember of that, for arguments that are the same, is plain too, and no derivative would go through it. So objects,
    containers and variables that hold something else by then are made again as they were, anew for each derivative.
    What is reached by the name of a global, and arrays that objects hold, are read as they are by then.
    """

    def __init__(self, fun: object) -> None:
        self._now = as_now(fun)
        walk = None if leads_nowhere(self._now) else Walk(self._now)
        self._carriers = set() if walk is None else carriers_of(walk)
        self._boxes = {} if walk is None else walk.boxes
        self._known = _known(fun)
        if self._now is not fun:
            self._known |= _known(self._now)
        usual = taken_out(self._now, self._boxes, self._carriers)[1] if self._boxes else None
        self._makes: dict[frozenset[int], Make | None] = {frozenset(): usual}

    def at(self, leaves: Sequence[Any]) -> Any:
        """Return the functions as they were, with these in the place of the traced values."""
        changed = frozenset(key for key, (part, before) in self._known.items() if _differ(before, contents_of(part)))
        if changed not in self._makes:
            self._makes[changed] = self._anew(changed)
        make = self._makes[changed]
        return unchanged(self._now, leaves) if make is None else make(leaves)

    def _anew(self, changed: frozenset[int]) -> Make | None:
        """Return what makes again all that is not what it was; what can't be made again stays."""
        contents = {key: known.contents for key, known in self._known.items()}
        parts, owners = held_by(self._now, _is_looked_into, contents)
        # Variables and containers that are ours alone have what they had, and the first derivative would change them.
        own = {key for key, part in parts.items() if kind_of(type(part)) is CELL or key in changed}
        fresh = {key for key in own if _can_be_made(parts[key])}
        carriers = fresh | leading_to(fresh, owners)
        try:
            return taken_out(self._now, self._boxes, self._carriers | carriers, contents)[1]
        except ClosureError:
            return self._makes[frozenset()]


def _known(fun: object) -> dict[int, _Known]:
    parts, owners = held_by(fun, _is_looked_into)
    ours = {key for key, part in parts.items() if type(part) is FunctionType and _is_closed(part)}
    # What a library keeps in variables, and in containers there, is its own affair.
    cells = {key for key, part in parts.items() if kind_of(type(part)) is CELL and not ours.isdisjoint(owners[key])}
    left_out = ours | cells | {key for key in parts if cells.issuperset(owners[key])}
    return {
        key: _Known(part, contents_of(part))
        for key, part in parts.items()
        if key not in left_out and kind_of(type(part)) in _CHANGING
    }


def _is_looked_into(part: object) -> bool:
    kind = kind_of(type(part))
    if kind is INSTANCE:
        return not _is_closed(type(part))
    return kind in _LOOKED_INTO and not getattr(part, "_is_autograd_primitive", False)


def _is_closed(thing: Any) -> bool:
    root = root_of(thing)
    return root == "dagad" or is_closed(root)


def _can_be_made(part: object) -> bool:
    try:
        kind_of(type(part)).making(part)
    except ClosureError:
        return False
    return True


def _differ(before: Contents, now: Contents) -> bool:
    for one, other in zip(before, now, strict=True):
        if len(one) != len(other) or not all(map(operator.is_, one, other)):
            return True
    return False
