"""The explicit engine: chunk functions that bring their own derivative."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dagad._engines.base import Call, LeafPullback
from dagad._errors import NotDifferentiableError, StructureError
from dagad._pytrees import pytree


class Explicit:
    """A chunk function that returns its value and its pullback; see `explicit`."""

    __dagad_wraps__ = True

    def __init__(self, fun: Callable[..., tuple[Any, Callable[[Any], Any]]]) -> None:
        functools.update_wrapper(self, fun)
        self.fun = fun

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Callable[[Any], Any]]:
        return self.fun(*args, **kwargs)

    def value(self, *args: Any) -> Any:
        """Return the value alone."""
        return value_and_pullback(self.fun, args)[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return Explicit, (self.fun,)


def explicit(fun: Callable[..., tuple[Any, Callable[[Any], Any]]]) -> Explicit:
    """Mark a chunk function that brings its own derivative.

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
        what Dask computes too. In a derivative, ``dask.delayed(marked)(...)`` stands for the same.

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
        raise NotDifferentiableError(f"`explicit` marks a function; got {fun!r}.")
    return Explicit(fun)


class ExplicitEngine:
    """Asks the function for its own pullback."""

    __slots__ = ()
    name = "explicit"
    may_remember = True  # it is never recorded, so what it keeps from one run can't be taken for a constant in the next

    def linearize(self, call: Call, leaves: Sequence[Any]) -> tuple[Any, LeafPullback, Callable[[], int]]:
        """Call the function; see `Engine.linearize`."""
        if any(map(pytree.is_traced, leaves)):
            raise NotDifferentiableError(
                "A derivative of a derivative was asked for, through a function that is marked explicit: its pullback "
                "is a first derivative only. Write it with `autograd.numpy`, without `explicit`, to go further."
            )
        value, own_pullback = value_and_pullback(call.fun, call.arguments(leaves))
        if type(value) is float or type(value) is np.float64:  # nearly always
            return value, lambda seeds: _checked(call.leaf_cotangents(own_pullback(seeds[0])), leaves), _no_bytes
        outputs, treedef = pytree.flatten(value)

        def pullback(cotangents: Sequence[Any]) -> list[Any]:
            filled = [pytree.zeros_like(o) if c is None else c for c, o in zip(cotangents, outputs, strict=True)]
            parts = own_pullback(pytree.unflatten(treedef, filled))
            return _checked(call.leaf_cotangents(parts), leaves)

        return value, pullback, lambda: sum(getattr(leaf, "nbytes", 8) for leaf in (*leaves, *outputs))


def _no_bytes() -> int:
    return 0


def value_and_pullback(fun: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, Callable[[Any], Any]]:
    """Call an explicit function and check that it returned a pair."""
    pair = fun(*args)
    if not (isinstance(pair, tuple) and len(pair) == 2 and callable(pair[1])):
        raise StructureError(
            f"`{getattr(fun, '__name__', fun)}` is marked explicit, so it has to return `(value, pullback)`; "
            f"it returned a {type(pair).__name__}."
        )
    return pair


def check_count(cotangents: Any, n_arguments: int) -> Sequence[Any]:
    """Return what an explicit pullback returned, if it is one cotangent per argument."""
    if isinstance(cotangents, tuple | list) and len(cotangents) == n_arguments:
        return cotangents
    found = len(cotangents) if isinstance(cotangents, tuple | list) else f"a {type(cotangents).__name__}"
    raise StructureError(
        f"An explicit pullback has to return one cotangent for each of {n_arguments} arguments, None for a constant "
        f"one; it returned {found}."
    )


def _checked(cotangents: list[Any], leaves: Sequence[Any]) -> list[Any]:
    result = []
    for cotangent, leaf in zip(cotangents, leaves, strict=True):
        if cotangent is None:
            raise NotDifferentiableError(
                "An explicit pullback returned None for an argument that is being differentiated. Return its "
                "cotangent, or don't ask for that argument's gradient."
            )
        result.append(pytree.cast_like(cotangent, leaf, "An explicit pullback returned a cotangent"))
    return result
