"""A call of a function of scipy's, with values in it that somebody traces: scipy gets plain ones."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import autograd.numpy as anp
import numpy as np
from scipy.optimize import Bounds

from dagad._engines.differences import Compared
from dagad._engines.elsewhere import refuse_numbers
from dagad._engines.ruled import Followed, applied
from dagad._errors import NotDifferentiableError
from dagad._executors.member import by_itself
from dagad._tracing.flat_functions import Leaves
from dagad._tracing.operands import vector_of
from dagad._types import Array, Value
from dagad._values import pytree
from dagad._values.closures import closure_convert
from dagad._words import name_of
from dagad.solvers._given import Then, refuse_remembered
from dagad.solvers._implicit import given_to_solvers

_LOCKED = frozenset({"cobyqa"})  # these hold a lock of scipy's while they call the function
_NOT_RUN = frozenset({"callback", "fprime", "fprime2", "hess", "hessp", "method", "options"})  # by derivatives
Function = TypeVar("Function", bound=Callable[..., Any])


def called_like(scipys: Callable[..., Any]) -> Callable[[Function], Function]:
    """Return a decorator that gives a function the signature of one of scipy's, as the installed release has it."""
    signature = inspect.signature(scipys)

    def signed(fun: Function) -> Function:
        fun.__signature__ = signature  # type: ignore[attr-defined]  # functions have it where somebody gives it
        return fun

    return signed


class ScipyCall:
    """What a function of scipy's was called with, and what it returned.

    Attributes
    ----------
    given
        The arguments, by name.
    boxes
        The values in them that somebody traces, in closures too; none, and nothing else is needed.
    result
        What scipy returned.
    """

    def __init__(self, scipys: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        refuse_numbers(f"`dagad.solvers.{name_of(scipys)}`", args, kwargs)
        self.given = dict(inspect.signature(scipys).bind(*args, **kwargs).arguments)
        if "bounds" in self.given:
            self.given["bounds"] = _own_bounds(self.given["bounds"])
        self.boxes, self._make = closure_convert(self.given)
        self.plain = self.at(list(map(given_to_solvers, self.boxes))) if self.boxes else self.given
        run = {name: part for name, part in self.given.items() if name not in _NOT_RUN}
        then = Then(self.given, run) if self.boxes else None  # derivatives run the functions later
        with by_itself(str(self.given.get("method")).lower() in _LOCKED):
            self.result = scipys(**self.plain)
        if then is not None:
            then.settle()
            self._make = then.at
        self._scipys = scipys

    @property
    def name(self) -> str:
        """What sentences call it."""
        return f"scipy.optimize.{name_of(self._scipys)}"

    def at(self, leaves: Leaves) -> dict[str, Any]:
        """Return the arguments with leaves in place of the traced values."""
        made: dict[str, Any] = self._make(leaves)
        return made

    @property
    def then(self) -> dict[str, Any]:
        """The plain arguments as they were when this was called, whatever a loop has changed since."""
        return self.at(list(map(given_to_solvers, self.boxes)))

    def followed(self, value: Value, fun: Callable[[Any, dict[str, Any]], Any], x: Array) -> Any:
        """Return a value that scipy computed, with the derivatives of ``fun(x, given)``."""
        is_array = isinstance(value, np.ndarray)

        def flat(leaves: Leaves) -> list[Any]:
            found = vector_of(fun(leaves[0], self.at(leaves[1:])))
            return [anp.reshape(found, np.shape(value)) if np.ndim(value) else found[0]]

        if not pytree.is_differentiable(value) or (is_array and not value.size):
            return value
        compared = Compared(flat, 1, functools.partial(refuse_remembered, self.name))
        return applied(Followed([value], compared), [x, *self.boxes])[0]

    def refuse(self, message: str, remedy: str) -> None:
        """Refuse the derivative of what was not found."""
        raise NotDifferentiableError(
            f"`{self.name}` did not converge: {' '.join(message.split()).rstrip('.')}. What it returned may be used, "
            f"and has no derivative. {remedy}"
        )


def _own_bounds(bounds: Any) -> Any:
    """Return bounds that stay as they are: an iterator is used up by scipy, and a loop may write into arrays."""
    if isinstance(bounds, Iterator):
        return list(bounds)
    if not isinstance(bounds, Bounds):  # arrays in tuples and lists are kept as everything else is
        return bounds
    if any(map(pytree.is_traced, (bounds.lb, bounds.ub))):
        raise NotDifferentiableError(
            "A `scipy.optimize.Bounds` was made of values that are being differentiated, and keeps plain numbers. Give "
            "the bounds themselves: `bounds=[(low, high), ...]`, a pair for each unknown, to `minimize`, and "
            "`bounds=(lows, highs)` to `least_squares`."
        )
    return Bounds(np.array(bounds.lb), np.array(bounds.ub), np.array(bounds.keep_feasible))


def positional(given: dict[str, Any]) -> tuple[Any, ...]:
    """Return `args` as scipy takes them: one that is no tuple stands for itself."""
    args = pytree.open_containers(given.get("args", ()))
    return args if isinstance(args, tuple) else (args,)
