"""Functions of an engine inside tasks of Dask graphs, whose other parts (numpy's, Dask's own) are autograd's.

A task that Dask made may run several functions: of those that a blockwise operation fused, some are the user's, and
some add up a block. Autograd follows them all, and meets a user's function as one node, which is the engine's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from dagad._engines.explicit import check_count, refuse_keywords
from dagad._engines.registry import own_engine
from dagad._tracing.embedded import traced_engine
from dagad._tracing.flat_functions import Engine, FlatFunction
from dagad._values import pytree
from dagad._values.canonical import canonical
from dagad._values.partition import Partition
from dagad._words import name_of

# Packages whose functions are numpy's, or take what they are given as it is.
_AUTOGRADS = frozenset(
    "_operator autograd builtins cytoolz dagad dagad_scheduler dask distributed functools itertools numpy operator "
    "pandas scipy tlz toolz xarray".split()
)


class EngineCall:
    """A function that an engine differentiates, to be called with what autograd traces."""

    __slots__ = ("_engine", "fun")

    def __init__(self, engine: Engine, fun: Callable[..., Any]) -> None:
        self._engine, self.fun = engine, fun

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = _BoundCall(self._engine, self.fun, pytree.all_opened(args), pytree.all_opened(kwargs))
        return traced_engine(self._engine).run(bound, bound.leaves)


class _BoundCall(FlatFunction):
    """A function at its arguments, as a function of those leaves that somebody traces."""

    __slots__ = ("_args", "_fun", "_kwargs", "_n_args", "leaves")

    def __init__(self, engine: Engine, fun: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._fun, self._n_args = fun, len(args)
        self._args, self._kwargs = Partition.of(args, pytree.is_traced), Partition.of(kwargs, pytree.is_traced)
        self.leaves = [canonical(leaf) for side in (self._args, self._kwargs) for leaf in side.taken]
        self.takes, self.n_leaves, self.given = engine.takes, len(self.leaves), None

    @property
    def name(self) -> str:
        return name_of(self._fun)

    def function(self, leaves: Sequence[Any]) -> Callable[..., Any]:
        del leaves  # a task carries none: they come by its dependencies
        return functools.partial(_spread, self._fun)

    def arguments(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        rest = iter(leaves)
        return self._args.merge(rest), self._kwargs.merge(rest)

    def extract(self, cotangents: Any) -> list[Any]:
        if self._kwargs.positions:
            refuse_keywords()
        return self._args.extract(tuple(check_count(cotangents, self._n_args)))


def _spread(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fun(*args, **kwargs)


def is_autograds(function: Any) -> bool:
    """Return whether a function of a task is left to autograd: of numpy, Dask or Python, or what makes an object."""
    if isinstance(function, functools.partial):
        return is_autograds(function.func)
    module = getattr(function, "__module__", None) or type(function).__module__
    return isinstance(function, type) or str(module).partition(".")[0] in _AUTOGRADS


def by_engine(function: Any, engine: Engine | None) -> Any:
    """Return what a task is to call in place of a function, so that what is not autograd's is the engine's.

    A function that brings its own engine is that one's; without `engine` all others are autograd's.
    """
    if isinstance(function, functools.partial):
        inner = by_engine(function.func, engine)
        return function if inner is function.func else functools.partial(inner, *function.args, **function.keywords)
    if type(function).__name__ == "Compose":  # of toolz or cytoolz
        parts = [*reversed(function.funcs), function.first]
        found = [by_engine(part, engine) for part in parts]
        return function if found == parts else type(function)(found)
    fun, own = own_engine(function)
    if own is not None:
        return EngineCall(own, fun)
    return function if engine is None or is_autograds(function) else EngineCall(engine, function)
