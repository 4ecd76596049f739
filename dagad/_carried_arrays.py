"""The arrays that a chunk function carries -> laid out as they would arrive in another process, or as they are now."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import numpy as np

from dagad._copies import contents_of, with_cells
from dagad._engines.explicit import Explicit
from dagad._items import ExplicitItemSum, ItemSum

Take = Callable[[Any], Any]


def with_arrays(fun: Any, take: Take) -> Any:
    """Return a function with `take(array)` for the arrays in its closures, defaults and partials, and in its helpers'.

    It is the function itself where `take` changes none of them.
    """
    return _taken(fun, take, frozenset())


def _taken(obj: Any, take: Take, within: frozenset[int]) -> Any:
    if type(obj) is np.ndarray:
        return take(obj)
    if type(obj) is FunctionType:
        # One that calls itself stays as it is further in, and so does a decorated helper: its identity may count, as
        # that of autograd's primitives does.
        plain = id(obj) not in within and not (within and obj.__dict__)
        return _function(obj, take, within | {id(obj)}) if plain else obj
    if type(obj) is functools.partial:
        parts = (obj.func, *obj.args, *obj.keywords.values())
        made = [_taken(part, take, within) for part in parts]
        if all(a is b for a, b in zip(parts, made, strict=True)):
            return obj
        args, keywords = made[1 : 1 + len(obj.args)], made[1 + len(obj.args) :]
        return functools.partial(made[0], *args, **dict(zip(obj.keywords, keywords, strict=True)))
    if type(obj) in (Explicit, ItemSum, ExplicitItemSum):
        inner = _taken(obj.fun, take, within)
        return obj if inner is obj.fun else type(obj)(inner)
    return obj


def _function(function: FunctionType, take: Take, within: frozenset[int]) -> FunctionType:
    cells, defaults = function.__closure__ or (), function.__defaults__ or ()
    keywords = function.__kwdefaults__ or {}
    if not cells and not defaults and not keywords:
        return function
    new_cells = [_cell(cell, take, within) for cell in cells]
    new_defaults = [_taken(default, take, within) for default in (*defaults, *keywords.values())]
    pairs = zip((*cells, *defaults, *keywords.values()), (*new_cells, *new_defaults), strict=True)
    if all(old is new for old, new in pairs):
        return function
    made = with_cells(function, new_cells)
    made.__defaults__ = tuple(new_defaults[: len(defaults)]) or None
    made.__kwdefaults__ = dict(zip(keywords, new_defaults[len(defaults) :], strict=True)) or None
    return made


def _cell(cell: CellType, take: Take, within: frozenset[int]) -> CellType:
    """Return the same cell where nothing in it changes: others may write to it."""
    for contents in contents_of(cell):
        taken = _taken(contents, take, within)
        if taken is not contents:
            return CellType(taken)
    return cell
