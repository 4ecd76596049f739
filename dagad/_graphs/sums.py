"""Trees of sums whose shape depends on the number of terms alone, so that the bits do too.

The tree is binary: neighbours are added, then neighbours of these, and a last one without a neighbour goes up as it is.
A task adds `FAN_IN` terms, three levels at once; whoever owns a run of chunks adds up the subtrees that lie in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dagad._errors import StructureError
from dagad._graphs.linearization import Linearization
from dagad._pytrees import pytree
from dagad_scheduler.private import Task, TaskRef

Key = Any


class UnitPart(TaskRef):
    """A reference to what a linearization holds of one argument's cotangent for the seed 1."""

    __slots__ = ("place",)

    def __init__(self, key: Key, place: int) -> None:
        super().__init__(key)
        self.place = place


_NUMERIC = (np.ndarray, np.generic, int, float, complex)
_NUMBERS = {float, np.float64}
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
    """The same tree of sums, term after term: holds one partial sum a level."""

    __slots__ = ("_partials",)

    def __init__(self) -> None:
        self._partials: list[tuple[int, Any, bool]] = []  # level, sum, whether its memory was allocated here

    def push(self, term: Any) -> None:
        """Add the next term."""
        partials, level, ours = self._partials, 0, False
        if type(term) is Linearization:
            term = term.value
        while partials and partials[-1][0] == level:
            term, ours = _sum_of_two(partials.pop()[1:], (term, ours))
            level += 1
        partials.append((level, term, ours))

    def total(self) -> Any:
        """Return the sum of all terms."""
        *others, (_, *last) = self._partials
        term, ours = last
        for _, *partial in reversed(others):
            term, ours = _sum_of_two(partial, (term, ours))
        return term


class Subtree(NamedTuple):
    """Terms `start` to ``start + 2**level`` of a tree, or as many of these as there are."""

    start: int
    level: int


def subtrees(start: int, stop: int, n_terms: int) -> list[Subtree]:
    """Return the largest subtrees of the tree over `n_terms` that together are its terms `start` to `stop`.

    >>> subtrees(0, 5, 8)
    [Subtree(start=0, level=2), Subtree(start=4, level=0)]
    >>> subtrees(4, 7, 7)
    [Subtree(start=4, level=2)]
    """
    found: list[Subtree] = []
    while start < stop:
        level = 0
        while not start % (2 << level) and (start + (2 << level) <= stop or stop == n_terms) and 1 << level < n_terms:
            level += 1
        while stop == n_terms and level and start + (1 << level - 1) >= n_terms:
            level -= 1  # the higher ones are the same terms
        found.append(Subtree(start, level))
        start += 1 << level
    return found


def halves(part: Subtree, n_terms: int) -> list[Subtree]:
    """Return the two subtrees that a subtree adds; itself where it is a single term."""
    start, level = part
    while level and start + (1 << level - 1) >= n_terms:
        level -= 1
    if not level:
        return [Subtree(start, 0)]
    return [Subtree(start, level - 1), Subtree(start + (1 << level - 1), level - 1)]


def assembled(sums: Mapping[Subtree, Any], n_terms: int, root: Subtree | None = None) -> Any:
    """Return the sum of a tree, or of the subtree `root`, from those of subtrees that together are all of it."""

    def at(start: int, level: int) -> tuple[Any, bool]:
        found = Subtree(start, level)
        if found in sums:
            return sums[found], False
        half = 1 << level - 1
        if start + half >= n_terms:
            return at(start, level - 1)
        return _sum_of_two(at(start, level - 1), at(start + half, level - 1))

    return at(*(root or (0, (n_terms - 1).bit_length())))[0]


def add_up(*terms: Any) -> Any:
    """Add values or cotangents, neighbours first; None adds nothing. Never writes into what it was given."""
    numbers = list(terms)
    if set(map(type, numbers)) <= _NUMBERS:
        while len(numbers) > 1:
            rest = numbers[-1:] if len(numbers) % 2 else []
            numbers = [a + b for a, b in zip(numbers[::2], numbers[1::2], strict=False)] + rest
        return numbers[0] if numbers else None
    level = [(term.value if type(term) is Linearization else term, False) for term in terms]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [_sum_of_two(a, b) for a, b in pairs] + (level[-1:] if len(level) % 2 else [])
    return level[0][0] if level else None


def _sum_of_two(a: Any, b: Any) -> tuple[Any, bool]:
    """Add two terms, each with whether its memory was allocated here and may be written to."""
    (a, a_ours), (b, b_ours) = a, b
    if a is None:
        return b, b_ours
    if b is None:
        return a, a_ours
    return _add(a, b, a_ours), True


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
    a_leaves, a_def = pytree.flatten_with_none(total)
    b_leaves, b_def = pytree.flatten_with_none(term)
    pytree.check_same_structure(a_def, b_def, "The partial sums of two chunks differ in structure")
    return pytree.unflatten(a_def, [_add_leaf(a, b, ours) for a, b in zip(a_leaves, b_leaves, strict=True)])


def _add_leaf(a: Any, b: Any, ours: bool) -> Any:
    if type(a) is np.ndarray and type(b) is np.ndarray:
        if a.shape != b.shape:
            _refuse_shapes(a, b)
        # In place only into memory allocated here: the first sum made it.
        return np.add(a, b, a) if ours and a.ndim and a.dtype == b.dtype else a + b
    if a is None or b is None:
        alone = b if a is None else a
        # A copy, unless it is ours: what this becomes part of will be added to in place.
        return alone if ours and b is None else _copied(alone)
    if type(a) in _NUMBERS and type(b) in _NUMBERS:
        return a + b
    # What stands in a list may be a list again, which `+` would put behind the other one.
    if not (pytree.is_leaf(a) and pytree.is_leaf(b)):
        return _add(a, b, ours)
    if np.shape(a) != np.shape(b):
        _refuse_shapes(a, b)
    return a + b


def _copied(term: Any) -> Any:
    if isinstance(term, _NUMERIC):
        return term.copy() if type(term) is np.ndarray else term
    leaves, treedef = pytree.flatten_with_none(term)
    return pytree.unflatten(treedef, [leaf.copy() if type(leaf) is np.ndarray else leaf for leaf in leaves])


def _refuse_shapes(a: Any, b: Any) -> None:
    raise StructureError(
        f"The partial sums of two chunks differ in shape: {np.shape(a)} and {np.shape(b)}. Each chunk has to return "
        "the same shape, however many rows it has; sum over the rows inside the function."
    )
