"""Functions that a solver is given: what they are made of that somebody traces, and how to make them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dagad._tracing.tape import traceable
from dagad._values import pytree
from dagad._values.closures import hoist
from dagad._values.partition import Partition


class Call:
    """A function with its arguments beyond the first ones, and the traced values that it is made of."""

    def __init__(self, fun: Callable[..., Any], args: Any) -> None:
        self.hoisted, self._make = hoist(fun)
        self._args = Partition.of(pytree.all_opened(tuple(args)), pytree.is_traced)

    @property
    def params(self) -> list[Any]:
        """The traced values, from closures and among the arguments."""
        return [*self.hoisted, *self._args.taken]

    def at(self, params: Sequence[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the function and its further arguments, with these in the place of the traced values."""
        n = len(self.hoisted)
        return self._make(params[:n]), self._args.merge(iter(params[n:]))

    def plain(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the function and its further arguments, with nothing traced."""
        return self.at(list(map(plain, self.params)))


def plain(leaf: Any) -> Any:
    """Return a value that nobody traces, as functions are given it where nobody does."""
    return traceable(pytree.plain(leaf))


def is_anything_traced(*values: Any) -> bool:
    """Return whether any leaf of some values is traced."""
    return any(map(pytree.is_traced, pytree.flatten(values)[0]))
