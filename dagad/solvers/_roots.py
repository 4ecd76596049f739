"""Roots and fixed points by scipy, differentiated by their equations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import optimize

from dagad._tracebacks import public
from dagad._tracing.flat_functions import Leaves
from dagad._tracing.operands import vector_of
from dagad._types import Array
from dagad.solvers._call import ScipyCall, called_like, positional
from dagad.solvers._implicit import System
from dagad.solvers._unfollowed import unfollowed_rest


def _first(found: tuple[Any, ...], has_more: bool) -> Any:
    return found[0] if has_more else found


@public
@called_like(optimize.root)
def root(*args: Any, **kwargs: Any) -> Any:
    """Find a root of a vector function, as `scipy.optimize.root` does, with derivatives.

    Parameters
    ----------
    fun, x0, args, method, jac, tol, callback, options
        As in scipy. `fun` is written with numpy where derivatives are asked for: they are those with respect to `args`,
        and to what `fun` has in its closure. That of `x0` is zero.

    Returns
    -------
    scipy.optimize.OptimizeResult
        What scipy returned, bit for bit; `x` and `fun` have derivatives, in every mode and of any order. That of
        anything else in it, `fjac` say, is refused.

    Raises
    ------
    NotDifferentiableError
        When it is differentiated though scipy's method did not converge, or where the root is a multiple one.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.solvers import root
    >>> def corner(a):
    ...     return root(lambda x, a: np.stack([x[0] ** 2 - a, x[0] * x[1] - 1.0]), np.ones(2), args=(a,)).x
    >>> np.round(dagad.jacfwd(corner)(4.0), 6)
    array([ 0.25  , -0.0625])
    """
    call = ScipyCall(optimize.root, args, kwargs)
    if not call.boxes:
        return call.result
    result, has_jacobian = call.result, call.plain.get("jac") is True

    def equations(x: Array, given: dict[str, Any]) -> Any:
        return _first(given["fun"](x, *positional(given)), has_jacobian)

    def refuse(residual: Callable[[], Any]) -> None:
        tolerance = call.plain.get("tol")
        if not result.success and not (tolerance is not None and np.max(np.abs(residual())) <= tolerance):
            call.refuse(
                str(result.message), "Begin elsewhere, or by another `method`, with more iterations in `options`."
            )

    system = System(lambda x, leaves: equations(x, call.at(leaves)), result.x, call.name, refuse=refuse)
    result["x"] = system.unknowns(call.boxes)
    result["fun"] = call.followed(result.fun, equations, result.x)
    unfollowed_rest(result, ("x", "fun"), call.boxes, call.name)
    return result


@public
@called_like(optimize.root_scalar)
def root_scalar(*args: Any, **kwargs: Any) -> Any:
    """Find a root of a function of one number, as `scipy.optimize.root_scalar` does, with derivatives.

    Parameters
    ----------
    f, args, method, bracket, fprime, fprime2, x0, x1, xtol, rtol, maxiter, options
        As in scipy. `f` is written with numpy where derivatives are asked for: they are those with respect to `args`,
        and to what `f` has in its closure. Those of the bracket and of starts are zero.

    Returns
    -------
    scipy.optimize.RootResults
        What scipy returned, bit for bit; `root` has derivatives, in every mode and of any order.

    Raises
    ------
    NotDifferentiableError
        When it is differentiated though scipy's method did not converge, or where the root is a multiple one.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.solvers import root_scalar
    >>> def angle(a):
    ...     return root_scalar(lambda x, a: np.cos(x) - a * x, args=(a,), bracket=(0.0, 1.5)).root
    >>> x = angle(1.0)
    >>> bool(np.isclose(dagad.grad(angle)(1.0), -x / (np.sin(x) + 1.0)))
    True
    """
    call = ScipyCall(optimize.root_scalar, args, kwargs)
    if not call.boxes:
        return call.result
    result = call.result
    has_more = call.plain.get("fprime") is True or call.plain.get("fprime2") is True

    def equation(x: Array, leaves: Leaves) -> Any:
        given = call.at(leaves)
        return _first(given["f"](x, *positional(given)), has_more)

    def refuse(residual: Callable[[], Any]) -> None:
        del residual
        if not result.converged:
            call.refuse(str(result.flag), "Give a `bracket`, begin elsewhere, or raise `maxiter`.")

    result["root"] = System(equation, result.root, call.name, refuse=refuse).unknowns(call.boxes)
    return result


@public
@called_like(optimize.fixed_point)
def fixed_point(*args: Any, **kwargs: Any) -> Any:
    """Find a fixed point, as `scipy.optimize.fixed_point` does, with derivatives.

    Parameters
    ----------
    func, x0, args, xtol, maxiter, method
        As in scipy. `func` is written with numpy where derivatives are asked for: they are those with respect to
        `args`, and to what `func` has in its closure. That of `x0` is zero.

    Returns
    -------
    numpy.ndarray
        What scipy returned, bit for bit, with derivatives in every mode and of any order.

    Raises
    ------
    RuntimeError
        By scipy, if it does not converge.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.solvers import fixed_point
    >>> def square_root(a):
    ...     return fixed_point(lambda x, a: 0.5 * (x + a / x), 1.0, args=(a,))
    >>> round(float(dagad.grad(square_root)(4.0)), 6)
    0.25
    """
    call = ScipyCall(optimize.fixed_point, args, kwargs)
    if not call.boxes:
        return call.result

    def equations(x: Array, leaves: Leaves) -> Any:
        given = call.at(leaves)
        return vector_of(x) - vector_of(given["func"](x, *positional(given)))

    return System(equations, call.result, call.name).unknowns(call.boxes)
