"""One call of a function that an engine differentiates, inside what autograd traces: one node on its tape."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from dagad._engines.explicit_rules import check_count, refuse_keywords
from dagad._tracing.embedded import traced_engine
from dagad._tracing.flat_functions import Engine, FlatFunction
from dagad._types import Args, Cotangents, Kwargs
from dagad._values import pytree
from dagad._values.canonical import canonical
from dagad._values.partition import Partition
from dagad._words import name_of


class EngineCall:
    """A function that an engine differentiates, to be called with what autograd traces."""

    __slots__ = ("_engine", "fun")

    def __init__(self, engine: Engine, fun: Callable[..., Any]) -> None:
        self._engine, self.fun = engine, fun

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = BoundCall(self._engine, self.fun, pytree.all_opened(args), pytree.all_opened(kwargs))
        return traced_engine(self._engine).run(bound, bound.leaves)


class BoundCall(FlatFunction):
    """A function at its arguments, as a function of those leaves that somebody traces."""

    __slots__ = ("_args", "_fun", "_kwargs", "_n_args", "leaves")
    is_also_numpys = True  # in a task, which Dask calls with numpy's arrays: its value is to be what comes of these

    def __init__(self, engine: Engine, fun: Callable[..., Any], args: Args, kwargs: Kwargs) -> None:
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

    def arranged(self, cotangents: Sequence[Any]) -> tuple[Any, ...]:
        """Return one cotangent for each positional argument, from those of the leaves; None for constants."""
        found: tuple[Any, ...] = self._args.arrange(iter(cotangents))
        return found

    def extract(self, cotangents: Cotangents) -> list[Any]:
        if self._kwargs.positions:
            refuse_keywords()
        return self._args.extract(tuple(check_count(cotangents, self._n_args)))


def _spread(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fun(*args, **kwargs)
