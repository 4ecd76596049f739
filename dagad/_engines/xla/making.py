"""How arrays are made while a function is traced for jax: `np.asarray` of what is traced is what it was.

`np.array` and its kind ask no protocol, so while jax traces, `numpy` has ours under these names, for what users call:
with anything that is not traced, or called by a library, they are numpy's own. And a generator without a seed is
refused. State: `_HELD`, how many threads trace, under its lock; the last one out puts numpy's own back.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dagad._engines.xla import lines, refusals
from dagad._engines.xla.protocols import as_dtype, common_dtype, holds_traced
from dagad._engines.xla.traced import XlaArray
from dagad._errors import NotDifferentiableError


def _made(args: tuple[Any, ...], dtype: Any = None, *, copy: Any = None, order: Any = None, **rest: Any) -> Any:
    """Return what numpy makes an array of, traced."""
    del copy, order
    (what, *others) = args
    dtype = others[0] if others else dtype
    if isinstance(what, list | tuple):
        leaves, treedef = jax.tree.flatten(what)
        common = common_dtype(leaves)
        what = jnp.array(jax.tree.unflatten(treedef, [as_dtype(leaf, common) for leaf in leaves]))
    if dtype is not None:
        what = np.astype(what, np.dtype(dtype))
    missing = rest.get("ndmin", 0) - what.ndim
    return what if missing <= 0 else what[(None,) * missing]


class _Ours:
    """Stands for a function of numpy's that makes an array."""

    def __init__(self, home: Any, name: str, act: Callable[..., Any]) -> None:
        self.home, self.name, self.stock, self.act = home, name, getattr(home, name), act

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.act(self.stock, sys._getframe(1), args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stock, name)

    def __reduce__(self) -> Any:
        return getattr, (self.home, self.name)


def _array(stock: Any, frame: Any, args: Any, kwargs: Any) -> Any:
    if args and holds_traced(args[0]) and _holds_ours(args[0]) and lines.is_of_user(frame):
        return _made(args, **kwargs)
    return stock(*args, **kwargs)


def _holds_ours(value: Any) -> bool:
    return any(map(_holds_ours, value)) if isinstance(value, list | tuple) else isinstance(value, XlaArray)


def _generator(stock: Any, frame: Any, args: Any, kwargs: Any) -> Any:
    seed = args[0] if args else kwargs.get("seed")
    tracing = getattr(_HELD.here, "depth", 0)
    if seed is None and tracing and lines.is_users(frame):
        raise NotDifferentiableError(refusals.of_draws("The function", "a generator that it makes without a seed"))
    return stock(*args, **kwargs)


class _Held:
    def __init__(self) -> None:
        self.lock, self.here, self.n = threading.Lock(), threading.local(), 0
        arrays = ("asarray", "array", "asanyarray", "ascontiguousarray")
        self.ours = [_Ours(np, name, _array) for name in arrays]
        self.ours.append(_Ours(np.random, "default_rng", _generator))


_HELD = _Held()


@contextlib.contextmanager
def arrays_are_traced() -> Iterator[None]:
    """Have numpy make traced arrays of traced arrays."""
    with _HELD.lock:
        _HELD.n += 1
        if _HELD.n == 1:
            for one in _HELD.ours:
                if getattr(one.home, one.name) is one.stock:  # or somebody has put something there, which stays
                    setattr(one.home, one.name, one)
    _HELD.here.depth = getattr(_HELD.here, "depth", 0) + 1
    try:
        yield
    finally:
        _HELD.here.depth -= 1
        with _HELD.lock:
            _HELD.n -= 1
            if not _HELD.n:
                for one in _HELD.ours:
                    if getattr(one.home, one.name) is one:
                        setattr(one.home, one.name, one.stock)
