"""What of numpy is changed while a thread traces for jax: all of it is here, and undone when the last one is through.

===================================  ==============================================================================
`np.asarray`, `np.array`,            what is traced stays traced: these ask no protocol. Changed only for a function
`np.asanyarray`,                     that has called one of them with what is traced: it is traced once more then
`np.ascontiguousarray`
`numpy.random.bit_generator`:        where every generator of numpy's without a seed gets one: that it was asked is
`randbits`                           seen, since numbers that are drawn while a function is traced would be the same
                                     for ever
`random.Random`: `seed`              the same, of generators of Python's
`os.urandom`, `os.getrandom`,        the same, of the system's generator, which `secrets` draws from, too
`random._urandom`
`uuid.UUID`: `__init__`              the same, of what is drawn to identify something
===================================  ==============================================================================

Others see nothing of it: in a thread that does not trace, and where a library calls them, these are numpy's own, with
its results and its errors. Somebody may keep one for ever (`from numpy import asarray`, while a function is traced):
it goes on as numpy's own.

State, all of it in `_Patch`: how many threads hold it, under its lock; how often the calling one does, and has called
what is patched.
"""

from __future__ import annotations

import contextlib
import inspect
import pkgutil
import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, MethodType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dagad._engines.xla import lines
from dagad._engines.xla.conversions import as_dtype
from dagad._engines.xla.protocols import common_dtype
from dagad._engines.xla.traced import XlaArray
from dagad._types import Args, DType, Value


class _Patched:
    """Stands for a function of a module or class: in threads that hold the patch `takes_over` has a say."""

    def __init__(self, path: str, takes_over: Callable[..., bool], here: _Here) -> None:
        self.path, self.takes_over, self.here = path, takes_over, here
        home, self.name = re.split(r"[.:](?=\w+$)", path)
        self.home = pkgutil.resolve_name(home)
        self.stock = getattr(self.home, self.name)
        self.__module__, self.__doc__ = self.stock.__module__, self.stock.__doc__
        with contextlib.suppress(ValueError):  # functions in C have none in older releases
            self.__signature__ = inspect.signature(self.stock)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.here.n_calls += 1
        if self.here.depth and self.takes_over(sys._getframe(1), args):
            trace = _traced_in(args[0])._trace
            trace.is_numpys = True
            with trace.inside():
                found = _made(args, **kwargs)
                return found.copy() if self.name == "array" and kwargs.get("copy", True) else found
        return self.stock(*args, **kwargs)

    def __get__(self, owner: object, kind: object) -> Any:
        is_method = isinstance(self.home, type) and owner is not None  # functions of modules are bound to nothing
        return MethodType(self, owner) if is_method else self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stock, name)

    def __repr__(self) -> str:
        return repr(self.stock)

    def __reduce__(self) -> Any:
        return pkgutil.resolve_name, (self.path,)


class _Here(threading.local):
    depth = n_calls = 0


def _is_there(path: str) -> bool:
    """Return whether there is such a function: not every system has each."""
    try:
        pkgutil.resolve_name(path)
    except AttributeError:
        return False
    return True


class _Patch:
    """Names of modules and classes that are others while any thread holds them; reentrant."""

    def __init__(self, paths: str, takes_over: Callable[..., bool]) -> None:
        self.lock, self.here, self.n = threading.Lock(), _Here(), 0
        self.ours = [_Patched(path, takes_over, self.here) for path in paths.split() if _is_there(path)]

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self.lock:
            self.n += 1
            if self.n == 1:
                for one in self.ours:
                    if getattr(one.home, one.name) is one.stock:  # or somebody has put something there, which stays
                        setattr(one.home, one.name, one)
        self.here.depth += 1
        try:
            yield
        finally:
            self.here.depth -= 1
            with self.lock:
                self.n -= 1
                if not self.n:
                    for one in self.ours:
                        if getattr(one.home, one.name) is one:
                            setattr(one.home, one.name, one.stock)


def _is_of_traced(frame: FrameType, args: Args) -> bool:
    return bool(args) and _traced_in(args[0]) is not None and lines.is_of_user(frame)


def _traced_in(value: Value) -> Any:
    """Return what is traced, or the first such item of lists and tuples; None without one."""
    if isinstance(value, list | tuple):
        return next((found for found in map(_traced_in, value) if found is not None), None)
    return value if isinstance(value, XlaArray) else None


def _made(
    args: tuple[Any, ...], dtype: DType = None, *, copy: bool | None = None, order: str | None = None, **rest: Any
) -> Any:
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


def _is_none_of_ours(frame: FrameType, args: Args) -> bool:
    return False


arrays_stay_traced = _Patch("numpy:asarray numpy:array numpy:asanyarray numpy:ascontiguousarray", _is_of_traced)
seeds_are_seen = _Patch(
    "numpy.random.bit_generator:randbits random:Random.seed random:_urandom os:urandom os:getrandom uuid:UUID.__init__",
    _is_none_of_ours,
)
