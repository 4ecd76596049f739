"""`grainsize="auto"`: two timed calls per function and shapes, remembered so that the bits never change in between.

State: `_SIZES`, the grainsizes found, by the code of the chunk function and the shapes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Any

import numpy as np

from dagad._executors.planning import Timing, choose_grainsize
from dagad._remembered import Remembered
from dagad._types import Function, Leaf, Tree
from dagad._values import pytree
from dagad._values.fingerprint import identity_of
from dagad._words import name_of

logger = logging.getLogger("dagad")


MOST_SIZES = 4096
_SIZES: Remembered[int] = Remembered(MOST_SIZES)


Run = Callable[[int, int], Any]


def find_grainsize(
    fun: Function, arguments: Tree, n_rows: int, run: Run, weight: float, *, is_compiled: bool = False
) -> int:
    """Return the rows per chunk for a function and arguments of these shapes.

    `run(start, stop)` runs one chunk of these rows; `weight` says how many times longer value and gradient take. What
    is compiled for each number of rows runs once before it is timed.
    """

    def timed(start: int, stop: int) -> Timing:
        if is_compiled:
            run(start, stop)
        began = perf_counter()
        run(start, stop)
        return Timing(stop - start, weight * (perf_counter() - began))

    key = identity_of(fun), _shapes(arguments)
    known = _SIZES.find(key)
    if known is not None:
        return known
    try:
        size = choose_grainsize(n_rows, *_measure(n_rows, timed))
    except Exception:  # the user's: raised again by the chunk that it belongs to, with its rows
        return n_rows
    size = _SIZES.change(key, lambda found: found or size)  # another thread may have been faster
    logger.info("dagad: grainsize=%d for %s on %d rows", size, name_of(fun), n_rows)
    return size


def _measure(n_rows: int, timed: Callable[[int, int], Timing]) -> tuple[Timing, Timing | None]:
    """Time a small and, if it may pay to cut, a larger call, of other rows."""
    few = max(1, n_rows // 64)
    small = timed(0, few)
    more = max(few + 1, n_rows // 8)
    one_chunk_is_best = choose_grainsize(n_rows, small, Timing(2 * few, 2 * small.seconds)) == n_rows
    if one_chunk_is_best or 2 * few + more > n_rows:
        return small, None
    # Once more: the first call also paid for what is only done once.
    again = timed(few, 2 * few)
    small = min(small, again, key=lambda timing: timing.seconds)
    return small, timed(2 * few, 2 * few + more)


def _shapes(arguments: Tree) -> Hashable:
    leaves, treedef = pytree.flatten(arguments, is_leaf=lambda tree: isinstance(tree, list))
    return str(treedef), tuple(_shape(leaf) for leaf in leaves)


def _shape(leaf: Leaf) -> Hashable:
    leaf = pytree.plain(leaf)
    if isinstance(leaf, list):
        # Looking at every item would cost as much as a chunk; the first one tells light rows from heavy ones.
        return "list", len(leaf), _shapes(leaf[0]) if leaf else ()
    if isinstance(leaf, np.ndarray):
        return leaf.shape, leaf.dtype.str
    if isinstance(leaf, float):  # numpy's too: what is moved a little is one of these, and has to be cut as before
        return "float", ""
    return type(leaf).__name__, str(getattr(leaf, "shape", ""))  # of a table, a stored array
