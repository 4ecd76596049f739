"""What a solver is given: functions, with what somebody traces in them, to be run later as they are now; and data.

A derivative runs these functions when the solver is done, and reads these data then. One that is not that of the values
is refused: such a function remembers what it computed for the solver.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from dagad._engines.differences import Compared
from dagad._errors import NotDifferentiableError
from dagad._tracing.flat_functions import Leaves
from dagad._tracing.tape import traceable
from dagad._types import Args, Array, Function, Leaf
from dagad._values import pytree
from dagad._values.before import Before
from dagad._values.canonical import snapshot
from dagad._values.closures import closure_convert
from dagad._values.named import Named
from dagad.solvers._arithmetic import Arithmetic

Found = TypeVar("Found")
MakeField = Callable[[Sequence[Any]], Callable[[Any, Any], Any]]


class Then:
    """Functions, in containers too, as they are now, before a solver runs them: derivatives run them later.

    Where they run some of them only, these are `run`.
    """

    def __init__(self, fun: object, run: object = None) -> None:
        self._before = Before(fun)
        self._named = Named(fun if run is None else run, self._before.now)

    def settle(self) -> None:
        """Note that the functions have run: what has changed meanwhile is their own affair."""
        self._named.settle()

    @property
    def has_changed(self) -> bool:
        """Whether anything that the functions read has changed, by themselves or not."""
        return self._before.has_changed or self._named.has_changed

    def at(self, leaves: Sequence[Any]) -> Any:
        """Return the functions as they were, with these in the place of the traced values."""
        return self._named.put_back(self._before.at(leaves))


class Given:
    """A function with its arguments beyond the first ones, and the traced values that they are made of.

    What the solver runs `beside` it may change what it reads, and is no arithmetic then.

    Attributes
    ----------
    params
        The traced values, from closures and among the arguments, in objects there too.
    """

    def __init__(self, fun: Callable[..., Any], args: Args, *beside: Callable[..., Any]) -> None:
        self._given = fun, pytree.all_opened(tuple(args))
        self.params: list[Any]
        is_alone = None not in map(Arithmetic.of, beside)
        self._known = Arithmetic.of(self._given) if is_alone else None
        if self._known is None:
            self.params, self._make = closure_convert(self._given)
        else:
            self.params, self._make = self._known.leaves, self._known.at
        self._make_then = self._make
        self._then: Then | None = None

    def keep(self) -> None:
        """Keep what is not traced as it is now, before a solver runs the function: derivatives run it later."""
        if self._known is not None:
            self._make_then = self._known.kept().at
            return
        self._then = Then(self._given)
        self._make_then = self._then.at

    def after(self, found: Found) -> Found:
        """Return what a solver has found, and note that it has run the function."""
        if self._then is not None:
            self._then.settle()
        return found

    @property
    def remembers(self) -> bool:
        """Whether the function changes what it reads, as far as it has been run since `keep`."""
        return self._known is None and (self._then is None or self._then.has_changed)

    @property
    def key(self) -> Any:
        """What is the same for functions that compute the same; None where the code does not tell that they do."""
        return None if self._known is None else self._known.key

    def at(self, params: Sequence[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the function and its further arguments, with these in the place of the traced values; see `keep`."""
        return _pair(self._make_then(params))

    def plain(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the function and its further arguments, with nothing traced."""
        return _pair(self._make(list(map(plain, self.params))))


def _pair(made: tuple[Function, tuple[Any, ...]]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    fun, args = made
    return fun, tuple(args)


def plain(leaf: Leaf) -> Any:
    """Return a value that nobody traces, as functions are given it where nobody does."""
    return traceable(pytree.plain(leaf))


def taken(data: Array) -> Any:
    """Return data as they are now, in the precision in which scipy computes: derivatives read them later.

    A loop may write each round's state, or its points, into one array.
    """
    if not pytree.is_traced(data):
        return snapshot(np.asarray(data, np.result_type(data, float)))
    dtype = pytree.dtype_of(plain(data))
    exact = np.result_type(dtype, float)
    return data if dtype == exact else data.astype(exact)


def refuse_remembered(name: str) -> NoReturn:
    """Refuse a function whose derivative is not that of its values: it takes what it remembers of another call."""
    raise NotDifferentiableError(
        f"A derivative of what `{name}` found was asked for, and a function that it was given compares a value being "
        "differentiated with another, which it is equal to, and has another derivative than its values: it remembers "
        "what it has computed for that value before, without a derivative, or has a kink there. Compute it anew each "
        "time, or make the object that remembers anew for each call of the solver: what that call puts there is left "
        "out again."
    )


def compare_at(points: Sequence[tuple[Any, Any]], make: MakeField, params: Leaves, name: str) -> None:
    """Compare the derivative of a right-hand side, or of an integrand, with a difference at some points."""

    def slope(t: Array, leaves: Leaves) -> list[Any]:
        return [make(leaves[1:])(t, leaves[0])]

    for t, y in points:
        at = functools.partial(slope, t)
        Compared(at, 1, functools.partial(refuse_remembered, name)).look([y, *params])


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
