"""The explicit engine: chunk functions that return their own derivative."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from dagad._errors import ArgumentsError, NotDifferentiableError, StructureError
from dagad._tracebacks import public
from dagad._tracing.flat_functions import Flat, FlatFunction, Leaves
from dagad._values import pytree
from dagad._words import described, name_of


class ExplicitEngine:
    """The engine of functions that return their own pullback.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> def by_hand(rows, theta):
    ...     return theta * rows.sum(), lambda seed: (None, seed * rows.sum())
    >>> def total(theta):
    ...     return dagad.reduce_sum(by_hand, np.arange(4.0), theta, engine="explicit")
    >>> float(dagad.grad(total)(2.0))
    6.0
    """

    __slots__ = ()
    name = "explicit"
    pulls_all = True  # its pullback looks at the cotangents itself, those that it gets and those that it returns

    def takes(self, leaf: Any) -> bool:
        """Take everything: the function's pullback speaks of all that it returned."""
        del leaf
        return True

    def value(self, fun: Any, leaves: Leaves) -> list[Any]:
        """Return the first of what the function returns."""
        return self.linearize(fun, leaves)[0]

    def linearize(self, fun: Any, leaves: Leaves) -> tuple[list[Any], OwnPullback]:
        """Call the function; see `Engine.linearize`."""
        pair = fun.run(leaves)
        # To find the name costs as much as a chunk.
        good = type(pair) is tuple and len(pair) == 2 and callable(pair[1])
        value, pullback = pair if good else checked_pair(pair, fun.name)
        outputs = fun.flatten(value)
        return outputs, OwnPullback(fun, leaves, outputs, pullback)

    def pushforward(self, fun: Flat, n: int) -> Flat:
        """Refuse: there is no rule."""
        del fun, n
        raise NotDifferentiableError(
            "Forward mode was asked for, through a function that is marked explicit, which has a pullback only. Use "
            "reverse mode, `dagad.vjp` or `dagad.jacrev`, or write it with numpy, without `explicit`."
        )

    def pullback(self, fun: Flat, n: int) -> Flat:
        """Refuse: there is no rule."""
        del fun, n
        raise NotDifferentiableError(_FIRST_ONLY)


_FIRST_ONLY = (
    "A derivative of a derivative was asked for, through a function that is marked explicit, whose pullback gives "
    "first derivatives only. Write it with numpy, without `explicit`."
)


_BARE = frozenset({np.ndarray, np.float64, float})


class OwnPullback:
    """The pullback that a function brings along, on leaves."""

    __slots__ = ("_fun", "_leaves", "_outputs", "_pullback")

    def __init__(self, fun: FlatFunction, leaves: Leaves, outputs: Sequence[Any], pullback: Any) -> None:
        self._fun, self._leaves, self._outputs, self._pullback = fun, leaves, outputs, pullback

    def __call__(self, cotangents: Sequence[Any]) -> list[Any]:
        if len(cotangents) != 1 or type(cotangents[0]) not in _BARE:
            if any(map(pytree.is_traced, cotangents)):
                raise NotDifferentiableError(_FIRST_ONLY)
            if all(part is None for part in cotangents):
                return [None] * len(self._leaves)
            pairs = zip(cotangents, self._outputs, strict=True)
            cotangents = [pytree.zeros_like(output) if part is None else part for part, output in pairs]
        return _checked(self._fun.extract(self._pullback(self._fun.merge(cotangents))), self._leaves)

    def nbytes(self) -> int:
        """Return the bytes of what went in and came out; the rest is the function's secret."""
        return sum(getattr(leaf, "nbytes", 8) for leaf in (*self._leaves, *self._outputs))


class Explicit:
    """A chunk function that returns its value and its pullback; see `explicit`."""

    __dagad_wraps__ = True

    def __init__(self, fun: Callable[..., tuple[Any, Callable[[Any], Any]]]) -> None:
        functools.update_wrapper(self, fun)
        self.fun = fun

    @property
    def __dagad_engine__(self) -> ExplicitEngine:
        return ExplicitEngine()

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Callable[[Any], Any]]:
        return self.fun(*args, **kwargs)

    def value(self, *args: Any, **kwargs: Any) -> Any:
        """Return the value alone."""
        return checked_pair(self.fun(*args, **kwargs), name_of(self.fun))[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return Explicit, (self.fun,)


@public
def explicit(fun: Callable[..., tuple[Any, Callable[[Any], Any]]]) -> Explicit:
    """Mark a chunk function that returns its own derivative beside its value.

    Parameters
    ----------
    fun
        ``fun(rows, *shared) -> (value, pullback)``, where ``pullback(cotangent)`` takes a cotangent of the value's
        structure and returns one cotangent for each argument of `fun`, of that argument's structure; None for an
        argument that is constant.

    Returns
    -------
    Explicit
        The function, to go wherever a chunk function goes. Called by hand, it does what `fun` does; its `value` is the
        function of the value alone. As a task of a graph write ``dask.delayed(marked.value)(...)``: then the value is
        what Dask computes too. In a derivative, ``dask.delayed(marked)(...)`` means the same.

    Raises
    ------
    ArgumentsError
        If `fun` can't be called.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.extend import explicit
    >>> @explicit
    ... def half_square(rows, theta):
    ...     residual = rows - theta
    ...     return 0.5 * residual @ residual, lambda seed: (None, -seed * residual.sum())
    >>> data = np.array([1.0, 2.0, 6.0])
    >>> value, slope = dagad.value_and_grad(lambda theta: dagad.reduce_sum(half_square, data, theta, grainsize=2))(1.0)
    >>> float(value), float(slope)
    (13.0, -6.0)
    """
    if not callable(fun):
        raise ArgumentsError(
            f"`explicit` marks a function, and was given {described(fun)}. Write `@dagad.extend.explicit` above one."
        )
    return Explicit(fun)


def checked_pair(pair: Any, name: str) -> tuple[Any, Callable[[Any], Any]]:
    """Return what an explicit function returned, if it is a value and a pullback."""
    if not (isinstance(pair, tuple) and len(pair) == 2 and callable(pair[1])):
        raise StructureError(
            f"`{name}` is marked explicit, so it has to return `(value, pullback)`; it returned {described(pair)}."
        )
    return pair


def check_count(cotangents: Any, n_arguments: int) -> Sequence[Any]:
    """Return what an explicit pullback returned, if it is one cotangent per argument."""
    if isinstance(cotangents, tuple | list) and len(cotangents) == n_arguments:
        return cotangents
    found = len(cotangents) if isinstance(cotangents, tuple | list) else described(cotangents)
    raise StructureError(
        f"An explicit pullback has to return one cotangent for each of {n_arguments} arguments, None for a constant "
        f"one; it returned {found}."
    )


def refuse_keywords() -> NoReturn:
    """Refuse to pull where what is differentiated was given by keyword: cotangents are of positional arguments."""
    raise NotDifferentiableError(
        "A function that is marked explicit was given by keyword what is being differentiated; its pullback returns "
        "cotangents of positional arguments only. Pass it by position."
    )


def _checked(cotangents: list[Any], leaves: Sequence[Any]) -> list[Any]:
    result = []
    for cotangent, leaf in zip(cotangents, leaves, strict=True):
        if type(cotangent) is type(leaf) is np.ndarray:  # nearly always
            if cotangent.shape == leaf.shape and cotangent.dtype == leaf.dtype:
                result.append(cotangent)
                continue
        elif cotangent is None:
            raise NotDifferentiableError(
                "An explicit pullback returned None for an argument that is being differentiated. Return its "
                "cotangent, or don't ask for that argument's gradient."
            )
        result.append(pytree.cast_like(cotangent, leaf, "A cotangent that an explicit pullback returned"))
    return result
