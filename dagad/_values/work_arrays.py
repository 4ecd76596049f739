"""What functions of the user's give, in memory that they don't write to when they are called again.

A compiled kernel fills a buffer that it has allocated once, and returns that for every chunk: what is added up later
would be the last chunk's, as many times. Such an array is known by who holds it: one that was made for this call is
held by nobody but the result. That costs no copy. Any other one is copied, before the function is called again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from sys import getrefcount
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from dagad._types import Array, Tree
from dagad._values import pytree


def _holders_of_one() -> tuple[int, int]:
    """Return what Python counts for an array that one local variable holds: there, and in a function it is given to."""

    def given_to(held: Array) -> int:
        return getrefcount(held)

    alone = np.empty(0)
    return getrefcount(alone), given_to(alone)


# From Python 3.14 on, what a caller lends to a function is not counted twice.
ALONE, GIVEN = _holders_of_one()
IN_A_CONTAINER = ALONE + 1  # what is counted for one that is in a variable and in a container, or another array's base
_KINDS: frozenset[Any] = frozenset({tuple, list})


def is_own(array: Array) -> bool:
    """Return whether an array has memory of its own, or is the only view of some that nobody else holds."""
    base = array.base
    return base is None or (type(base) is np.ndarray and base.base is None and getrefcount(base) <= IN_A_CONTAINER)


def kept(given: Any) -> Any:
    """Return what a function gave, with copies of the arrays that others hold too; a variable of the caller has it."""
    kind = type(given)
    if kind is np.ndarray:
        return given if getrefcount(given) <= GIVEN and is_own(given) else given.copy("K")
    if kind in _KINDS and getrefcount(given) <= GIVEN and not any(map(_is_deep, given)):
        found = []
        for part in given:
            theirs = type(part) is np.ndarray and (getrefcount(part) > IN_A_CONTAINER or not is_own(part))
            found.append(part.copy("K") if theirs else part)
        return kind(found)
    return copied(given)


def copied(tree: Tree) -> Any:
    """Return a pytree with copies of its arrays."""
    if type(tree) is np.ndarray:
        return tree.copy("K")
    leaves, treedef = pytree.flatten(tree)
    if np.ndarray not in map(type, leaves):
        return tree
    return pytree.unflatten(treedef, [leaf.copy("K") if type(leaf) is np.ndarray else leaf for leaf in leaves])


def sharing(arrays: Iterable[Array]) -> set[int]:
    """Return the ids of arrays with entries that another one has, too, and that can be written to by one of them.

    Arrays that lie in one another, as the columns of a large table do, are compared `_MOST_PAIRS` times at most.
    """
    groups: dict[int, list[Array]] = {}
    for array in arrays:
        memory: Any = array
        while (base := getattr(memory, "base", None)) is not None:
            memory = base
        groups.setdefault(id(memory), []).append(array)
    return {key for group in groups.values() if len(group) > 1 for key in _overlapping(group)}


def _overlapping(arrays: list[Array]) -> Iterator[int]:
    open_ones, left = list[tuple[int, Array]](), _MOST_PAIRS
    bounds = [(*byte_bounds(array), array) for array in arrays if array.size]
    for low, high, array in sorted(bounds, key=lambda one: one[:2]):
        open_ones = [(end, other) for end, other in open_ones if end > low]
        for _, other in open_ones[:left]:
            if (array.flags.writeable or other.flags.writeable) and _have_in_common(array, other):
                yield from (id(array), id(other))
        left -= len(open_ones)
        if left <= 0:
            return
        open_ones.append((high, array))


_MOST_PAIRS = 1000


def _have_in_common(one: Array, other: Array) -> bool:
    try:
        return bool(np.shares_memory(one, other, max_work=1000))  # type: ignore[arg-type]  # numpy's types lack numbers
    except np.exceptions.TooHardError:
        return True


def _is_deep(part: object) -> bool:
    return type(part) is not np.ndarray and not pytree.is_leaf(part)
