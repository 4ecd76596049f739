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


def _holders_of_one() -> int:
    alone = np.empty(0)
    return getrefcount(alone)


ALONE = _holders_of_one()  # what Python counts for an array that one local variable, or one container, holds
IN_A_CALL = ALONE + 1  # and for one that is in a container and in a variable, or in those of two functions
_KINDS: frozenset[Any] = frozenset({tuple, list})


def is_own(array: Array) -> bool:
    """Return whether an array has memory of its own, or is the only view of some that nobody else holds."""
    base = array.base
    return base is None or (type(base) is np.ndarray and base.base is None and getrefcount(base) <= IN_A_CALL)


def kept(given: Any) -> Any:
    """Return what a function gave, with copies of the arrays that others hold too; a variable of the caller has it."""
    kind = type(given)
    if kind is np.ndarray:
        return given if getrefcount(given) <= IN_A_CALL and is_own(given) else given.copy("K")
    if kind in _KINDS and getrefcount(given) <= IN_A_CALL and not any(map(_is_deep, given)):
        found = []
        for part in given:
            theirs = type(part) is np.ndarray and (getrefcount(part) > IN_A_CALL or not is_own(part))
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
