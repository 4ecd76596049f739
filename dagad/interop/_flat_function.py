"""A function of a pytree as a function of one vector, which is what scipy's optimizers take."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from dagad._api.higher_order import hessian, hvp
from dagad._api.program import check_function
from dagad._api.transforms import check_number, value_and_grad, vjp
from dagad._errors import ArgumentsError
from dagad._tracebacks import public
from dagad._types import Args, Array, Tree
from dagad._words import described, name_of
from dagad.interop._parameters import Parameters, is_same_point, number


class FlatFunction:
    """A function of a pytree as a function of one vector, with its derivatives.

    It remembers the last point: `gradient` after `value` at the same one goes on from there, and a value alone starts
    no pullback. What `fun` reads beside has to stay as it is: for other data, make another one.

    Parameters
    ----------
    fun, x0, args
        See `minimize`.

    Attributes
    ----------
    x0
        The start as a vector.
    names
        What the numbers of a vector are, in its order: ``"slopes[0]"``. Keys of a dict are sorted.

    Examples
    --------
    >>> import numpy as np
    >>> import scipy.optimize
    >>> from dagad.interop.scipy import FlatFunction
    >>> flat = FlatFunction(lambda p: np.sum(p["a"] ** 2) * p["b"], {"a": np.array([1.0, 2.0]), "b": 3.0})
    >>> flat.x0, flat.value(flat.x0), flat.gradient(flat.x0)
    (array([1., 2., 3.]), 15.0, array([ 6., 12.,  5.]))
    >>> bool(scipy.optimize.check_grad(flat.value, flat.gradient, flat.x0) < 1e-6)
    True
    """

    @public
    def __init__(self, fun: Callable[..., Any], x0: Tree, args: tuple[Any, ...] = ()) -> None:
        check_function(fun, "interop.scipy")
        self._fun = with_args(fun, args)
        self.parameters = Parameters(x0)
        self.x0, self.names = self.parameters.x0, self.parameters.labels
        # The last point, its value, its gradient if that is known, and else what gives it.
        self._last: tuple[Any, float, Any, Callable[[], Any] | None] | None = None

    @public
    def value_only(self, x: Array) -> float:
        """Return the value at a vector, and keep nothing for a gradient there."""
        known = self._at(x)
        return float(known[1]) if known else number(check_number(self._fun(self.tree(x)), name_of(self._fun)))

    @public
    def value(self, x: Array) -> float:
        """Return the value at a vector. No pullback runs, and `gradient` at the same vector runs nothing else."""
        known = self._at(x)
        if known is None:
            value, pullback = vjp(self._fun, self.tree(x))
            check_number(value, name_of(self._fun))
            known = self._last = np.array(x), number(value), None, lambda: pullback(np.ones_like(value))[0]
        return float(known[1])

    @public
    def gradient(self, x: Array) -> Any:
        """Return the gradient at a vector."""
        return self.value_and_gradient(x)[1]

    @public
    def value_and_gradient(self, x: Array) -> tuple[float, Any]:
        """Return the value and the gradient at a vector."""
        known = self._at(x)
        if known is None:
            value, gradient = value_and_grad(self._fun)(self.tree(x))
            known = self._last = np.array(x), number(value), self.parameters.flat(gradient), None
        elif known[3] is not None:
            point, value, _, pullback = known
            known = self._last = point, value, self.parameters.flat(pullback()), None
        return known[1], known[2].copy()  # whoever asks may write into it

    @public
    def hessp(self, x: Array, v: Array) -> Any:
        """Return the Hessian at a vector, times another vector."""
        return self.parameters.flat(hvp(self._fun, (self.tree(x),), (self.tree(v),))[0])

    @public
    def hessian(self, x: Array) -> Any:
        """Return the Hessian at a vector, a matrix."""
        sizes = self.parameters.sizes
        rows = hessian(lambda *leaves: self._fun(self.parameters.joined(leaves)), tuple(range(len(sizes))))
        return np.block(
            [
                [np.reshape(block, (n, m)) for m, block in zip(sizes, row, strict=True)]
                for n, row in zip(sizes, rows(*self.parameters.leaves(x)), strict=True)
            ]
        )

    @public
    def tree(self, x: Array) -> Any:
        """Return a vector as a pytree like `x0`."""
        return self.parameters.tree(x)

    def _at(self, x: Array) -> Any:
        last = self._last
        return last if last is not None and is_same_point(last[0], x) else None


def with_args(fun: Callable[..., Any], args: Args) -> Callable[[Any], Any]:
    """Return a function of the parameters alone."""
    if isinstance(args, tuple | list) and type(args) is not tuple:
        raise ArgumentsError(  # of scipy's functions some take it for one, some for several
            f"`args=` is {described(args)}, which may be one argument or several. Write `args=(that,)` for one "
            "argument, `args=(a, b)` for several arguments."
        )
    if type(args) is not tuple:
        args = (args,)  # as scipy does

    @functools.wraps(fun, updated=())
    def of_parameters(x: Array) -> Any:
        return fun(x, *args)

    return of_parameters
