"""Trees of sums whose shape depends on the number of terms alone, so that the bits do too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from dask._task_spec import Task, TaskRef

from dagad import _tree
from dagad._errors import StructureError
from dagad._linearization import Linearization

Key = Any


class UnitPart(TaskRef):
    """A reference to what a linearization holds of one argument's cotangent for the seed 1."""

    __slots__ = ("place",)

    def __init__(self, key: Key, place: int) -> None:
        super().__init__(key)
        self.place = place


_NUMERIC = (np.ndarray, np.generic, int, float, complex)
FAN_IN = 8  # wide enough to cost little, narrow enough that few partial gradients are alive at once


def sum_tree(terms: Sequence[Any], key_of: Callable[[int, int], Key]) -> tuple[Any, dict[Key, Task]]:
    """Return a reference to the sum of `terms`, in their order, and the tasks that compute it.

    `key_of(level, position)` names the nodes.
    """
    tasks: dict[Key, Task] = {}
    level = 0
    while len(terms) > 1:
        above = []
        for position, start in enumerate(range(0, len(terms), FAN_IN)):
            key = key_of(level, position)
            some = terms[start : start + FAN_IN]
            if type(some[0]) is UnitPart:
                tasks[key] = Task(key, add_up_unit_parts, some[0].place, *some)
            else:
                tasks[key] = Task(key, add_up, *some)
            above.append(TaskRef(key))
        terms, level = above, level + 1
    return terms[0], tasks


class RunningTree:
    """The same tree of sums, term after term: holds at most `FAN_IN` partial sums a level."""

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels: list[list[Any]] = [[]]

    def push(self, term: Any) -> None:
        """Add the next term."""
        levels, level = self._levels, 0
        terms = levels[0]
        terms.append(term)
        while len(terms) == FAN_IN:
            term, levels[level] = add_up(*terms), []
            level += 1
            if level == len(levels):
                levels.append([])
            terms = levels[level]
            terms.append(term)

    def total(self) -> Any:
        """Return the sum of all terms."""
        below: list[Any] = []
        for terms in self._levels:
            below = [add_up(*terms, *below)] if terms or below else []
        return below[0]


def add_up(*terms: Any) -> Any:
    """Add values or cotangents in their order; None adds nothing. Never writes into what it was given."""
    total, ours = None, False
    for term in terms:
        if type(term) is Linearization:
            term = term.value
        if total is None:
            total = term
        elif term is not None:
            total = _add(total, term, ours)
            ours = True
    return total


def add_up_unit_parts(place: int, *linearizations: Linearization) -> Any:
    """Add the cotangents of one argument for the seed 1."""
    return add_up(*[linearization.gradient(place) for linearization in linearizations])


def _add(total: Any, term: Any, ours: bool) -> Any:
    kind = type(total)
    if kind is type(term) and (kind is np.float64 or kind is float):
        return total + term
    if kind is list and type(term) is list and len(total) == len(term):
        return [_add_leaf(a, b, ours) for a, b in zip(total, term, strict=True)]
    if isinstance(total, _NUMERIC) and isinstance(term, _NUMERIC):
        return _add_leaf(total, term, ours)
    a_leaves, a_def = _tree.flatten_with_none(total)
    b_leaves, b_def = _tree.flatten_with_none(term)
    _tree.check_same_structure(a_def, b_def, "The partial sums of two chunks differ in structure")
    return _tree.unflatten(a_def, [_add_leaf(a, b, ours) for a, b in zip(a_leaves, b_leaves, strict=True)])


def _add_leaf(a: Any, b: Any, ours: bool) -> Any:
    if type(a) is np.ndarray and type(b) is np.ndarray:
        if a.shape != b.shape:
            _refuse_shapes(a, b)
        # In place only into memory allocated here: the first sum made it.
        return np.add(a, b, a) if ours and a.ndim and a.dtype == b.dtype else a + b
    if a is None or b is None:
        return b if a is None else a
    if np.shape(a) != np.shape(b):
        _refuse_shapes(a, b)
    return a + b


def _refuse_shapes(a: Any, b: Any) -> None:
    raise StructureError(
        f"The partial sums of two chunks differ in shape: {np.shape(a)} and {np.shape(b)}. Each chunk has to return "
        "the same shape, however many rows it has; sum over the rows inside the function."
    )
