"""What functions of the user's give, in memory that they don't write to when they are called again.

A compiled kernel fills a buffer that it has allocated once, and returns that for every chunk: what is added up later
would be the last chunk's, as many times. Such an array is known by who holds it: one that was made for this call is
held by nobody but the result. That costs no copy. Any other one is copied, before the function is called again.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any

import numpy as np

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


def _is_deep(part: Any) -> bool:
    return type(part) is not np.ndarray and not pytree.is_leaf(part)
