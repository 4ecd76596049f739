"""`grainsize="auto"`: two timed calls per function and shapes, remembered so that the bits never change in between.

State: `_MEMORY`, the grainsizes found, by the code of the chunk function (weakly: they go with it) and the shapes.
Changed under its lock.
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable, Hashable
from time import perf_counter
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from dagad import _tree
from dagad._engines.explicit import Explicit
from dagad._plan import Timing, choose_grainsize

logger = logging.getLogger("dagad")


class _Memory:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sizes: WeakKeyDictionary[Any, dict[Hashable, int]] = WeakKeyDictionary()

    def find(self, owner: Any, shapes: Hashable) -> int | None:
        with self._lock:
            return self._sizes.get(owner, {}).get(shapes)

    def settle(self, owner: Any, shapes: Hashable, size: int) -> int:
        """Remember a size, unless another thread was faster: then return that one."""
        with self._lock:
            return self._sizes.setdefault(owner, {}).setdefault(shapes, size)


_MEMORY = _Memory()


def find_grainsize(fun: Any, arguments: Any, n_rows: int, run: Callable[[int, int], None], weight: float) -> int:
    """Return the rows per chunk for a function and arguments of these shapes.

    `run(start, stop)` runs one chunk of these rows; `weight` says how many times longer value and gradient take.
    """
    owner, shapes = code_of(fun), _shapes(arguments)
    known = _MEMORY.find(owner, shapes)
    if known is not None:
        return known
    try:
        size = choose_grainsize(n_rows, *_measure(n_rows, run, weight))
    except Exception:  # the user's: raised again by the chunk that it belongs to, with its rows
        return n_rows
    size = _MEMORY.settle(owner, shapes, size)
    logger.info("dagad: grainsize=%d for %s on %d rows", size, _name(fun), n_rows)
    return size


def _measure(n_rows: int, run: Callable[[int, int], None], weight: float) -> tuple[Timing, Timing | None]:
    """Time a small and, if it may pay to cut, a larger call; no row is used twice."""
    few = max(1, n_rows // 64)
    small = _timed(0, few, run, weight)
    more = max(few + 1, n_rows // 8)
    one_chunk_is_best = choose_grainsize(n_rows, small, Timing(2 * few, 2 * small.seconds)) == n_rows
    if one_chunk_is_best or 2 * few + more > n_rows:
        return small, None
    # Once more: the first call also paid for what is only done once.
    again = _timed(few, 2 * few, run, weight)
    small = min(small, again, key=lambda timing: timing.seconds)
    return small, _timed(2 * few, 2 * few + more, run, weight)


def _timed(start: int, stop: int, run: Callable[[int, int], None], weight: float) -> Timing:
    began = perf_counter()
    run(start, stop)
    return Timing(stop - start, weight * (perf_counter() - began))


def code_of(fun: Any) -> Any:
    """Return what stays the same when a function is defined again, in a loop say: its code, where it has one."""
    if isinstance(fun, Explicit):
        return code_of(fun.fun)
    if isinstance(fun, functools.partial):
        return code_of(fun.func)
    if isinstance(fun, MethodType):
        return code_of(fun.__func__)
    for name in ("__wrapped__", "fun"):  # all that one decorator made share its code; so do autograd's primitives
        inner = getattr(fun, name, None)
        if callable(inner):
            return code_of(inner)
    if isinstance(fun, FunctionType):
        return fun.__code__
    call = getattr(type(fun), "__call__", None)  # noqa: B004  # the function is wanted, not whether there is one
    return call.__code__ if isinstance(call, FunctionType) else _remembered(fun)


def _name(fun: Any) -> str:
    while not hasattr(fun, "__qualname__") and hasattr(fun, "fun"):
        fun = fun.fun
    return str(getattr(fun, "__qualname__", fun))


def _shapes(arguments: Any) -> Hashable:
    leaves, treedef = _tree.flatten(arguments, is_leaf=lambda tree: isinstance(tree, list))
    return str(treedef), tuple(_shape(leaf) for leaf in leaves)


def _shape(leaf: Any) -> Hashable:
    leaf = _tree.plain(leaf)
    if isinstance(leaf, list):
        # Looking at every item would cost as much as a chunk; the first one tells light rows from heavy ones.
        return "list", len(leaf), _shapes(leaf[0]) if leaf else ()
    return (leaf.shape, leaf.dtype.str) if isinstance(leaf, np.ndarray) else type(leaf).__name__


def _remembered(fun: Any) -> Any:
    """Return a function if it can be a weak key, else its type."""
    try:
        weakref.ref(fun)
        hash(fun)
    except TypeError:
        return type(fun)
    return fun
