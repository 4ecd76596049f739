"""Functions that a solver is given: what they are made of that somebody traces, and how to make them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dagad._errors import NotDifferentiableError
from dagad._tracing.tape import traceable
from dagad._types import Args, Leaf
from dagad._values import pytree
from dagad._values.closures import Make, as_now, hoist
from dagad._values.partition import Partition


class Call:
    """A function with its arguments beyond the first ones, and the traced values that it is made of."""

    def __init__(self, fun: Callable[..., Any], args: Args) -> None:
        self._given = fun, pytree.all_opened(tuple(args))
        self.hoisted, self._make = hoist(fun)
        self._args = Partition.of(self._given[1], pytree.is_traced)
        self._make_then, self._args_then = self._make, self._args

    def settle(self) -> None:
        """Keep what is not traced as it is now: derivatives run the function later, after a loop has gone on."""
        fun, args = self._given
        self._make_then, self._args_then = hoist(as_now(fun))[1], Partition.of(as_now(args), pytree.is_traced)

    @property
    def params(self) -> list[Any]:
        """The traced values, from closures and among the arguments."""
        return [*self.hoisted, *self._args.taken]

    def at(self, params: Sequence[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the function and its further arguments, with these in the place of the traced values; see `settle`."""
        return self._with(self._make_then, self._args_then, params)

    def plain(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the function and its further arguments, with nothing traced."""
        return self._with(self._make, self._args, list(map(plain, self.params)))

    def _with(self, make: Make, args: Partition, params: Sequence[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        n = len(self.hoisted)
        return make(params[:n]), args.merge(iter(params[n:]))


def plain(leaf: Leaf) -> Any:
    """Return a value that nobody traces, as functions are given it where nobody does."""
    return traceable(pytree.plain(leaf))


def is_anything_traced(*values: Any) -> bool:
    """Return whether any leaf of some values is traced."""
    return any(map(pytree.is_traced, pytree.flatten(values)[0]))


def refuse_traced_options(name: str, options: dict[str, Any]) -> None:
    """Refuse tolerances, lengths of steps and the like that somebody traces: a solution is no function of them."""
    for option, value in options.items():
        if is_anything_traced(value):
            raise NotDifferentiableError(
                f"A derivative in `{option}` of `{name}` was asked for: it says how a solution is found, and the "
                "solution is no function of it. Give a plain number, which depends on nothing that is differentiated."
            )
