"""Minima by scipy, differentiated by what is true of them: the gradient is zero, or a bound holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
from scipy import optimize

from dagad._api.transforms import grad
from dagad._errors import NotDifferentiableError
from dagad._tracebacks import public
from dagad._tracing.flat_functions import Leaves
from dagad._tracing.operands import vector_of
from dagad._types import Array
from dagad.solvers._bounds import Held, bounds_of_pairs, pair_of_bounds
from dagad.solvers._call import ScipyCall, called_like, positional
from dagad.solvers._implicit import System
from dagad.solvers._unfollowed import unfollowed_rest

Given = dict[str, Any]
UNBOUNDED = -np.inf, np.inf
GRADIENT = 1e-5  # what scipy's methods take for zero by themselves


@public
@called_like(optimize.minimize)
def minimize(*args: Any, **kwargs: Any) -> Any:
    """Minimize a function of several numbers, as `scipy.optimize.minimize` does, with derivatives of the minimum.

    Parameters
    ----------
    fun, x0, args, method, jac, hess, hessp, bounds, constraints, tol, callback, options
        As in scipy. Where derivatives are asked for `fun` is written with numpy, or may call reductions; or `jac` is,
        if it is a function. They are those with respect to `args`, to what these functions have in their closures, and
        to bounds that hold an unknown. That of `x0` is zero.

    Returns
    -------
    scipy.optimize.OptimizeResult
        What scipy returned, bit for bit; `x` and `fun` have derivatives, in every mode and of any order. That of
        anything else in it, `jac` or `hess_inv` say, is refused.

    Raises
    ------
    NotDifferentiableError
        When it is differentiated though scipy's method did not converge, with constraints, at a bound that does not
        hold, or where the minimum is not the only one nearby.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.solvers import minimize
    >>> data = np.array([1.0, 2.0, 6.0])
    >>> def shrunk(ridge):
    ...     loss = lambda x: np.sum((data - x) ** 2) + ridge * np.sum(x**2)
    ...     return minimize(loss, np.zeros(1), jac=dagad.grad(loss), method="BFGS").x[0]
    >>> round(float(shrunk(3.0)), 6), round(float(dagad.grad(shrunk)(3.0)), 6)
    (1.5, -0.25)
    """
    call = ScipyCall(optimize.minimize, args, kwargs)
    if not call.boxes:
        return call.result
    result, plain, jac = call.result, call.plain, call.plain.get("jac")

    def value(x: Array, given: Given) -> Any:
        found = given["fun"](x, *positional(given))
        return found[0] if jac is True else found

    def slope(x: Array, given: Given) -> Any:
        args = positional(given)
        if callable(jac):
            return vector_of(given["jac"](x, *args))
        return vector_of(given["fun"](x, *args)[1] if jac is True else grad(given["fun"])(x, *args))

    bounds, at = plain.get("bounds"), np.array(result.x)
    held = None if bounds is None else Held(at, *bounds_of_pairs(bounds), lambda x: slope(x, call.then))

    def equations(x: Array, leaves: Leaves) -> Any:
        given = call.at(leaves)
        found = slope(x, given)
        return held.equations(x, found, *bounds_of_pairs(given["bounds"])) if held is not None and held.any else found

    def refuse(residual: Callable[[], Any]) -> None:
        _refuse_constraints(plain.get("constraints", ()), call.name)
        zero = _zero_of(plain)
        if not result.success and not np.max(np.abs(residual())) <= zero:
            call.refuse(str(result.message), _REMEDY)
        if held is not None and held.any:
            held.refuse(zero, call.name)

    result["x"] = System(equations, at, call.name, refuse=refuse).unknowns(call.boxes)
    result["fun"] = call.followed(result.fun, value, result.x)
    unfollowed_rest(result, ("x", "fun"), call.boxes, call.name)
    return result


_REMEDY = (
    "Begin elsewhere, give `jac=dagad.grad(fun)`, allow more iterations, or ask for no more than rounding allows: "
    '`options={"gtol": 1e-5}` is in the units of the gradient.'
)


def _zero_of(plain: Given) -> float:
    """Return what a method was told to take for a gradient of zero."""
    tolerance = (plain.get("options") or {}).get("gtol", plain.get("tol"))
    return GRADIENT if tolerance is None else float(tolerance)


def _refuse_constraints(constraints: object, name: str) -> None:
    if constraints is not None and constraints != () and constraints != []:
        raise NotDifferentiableError(
            f"The derivative of what `{name}` found under `constraints` was asked for, and the equations that it would "
            "be differentiated by hold without them only. Write the unknowns so that the constraints hold by "
            "themselves, or solve the equations of Lagrange by `dagad.solvers.implicit`."
        )


_LOSSES: dict[str, Callable[[Any], Any]] = {
    "linear": lambda z: z,
    "soft_l1": lambda z: 2.0 * (anp.sqrt(1.0 + z) - 1.0),
    "huber": lambda z: anp.where(z <= 1.0, z, 2.0 * anp.sqrt(anp.where(z <= 1.0, 1.0, z)) - 1.0),
    "cauchy": lambda z: anp.log1p(z),
    "arctan": lambda z: anp.arctan(z),
}


@public
@called_like(optimize.least_squares)
def least_squares(*args: Any, **kwargs: Any) -> Any:
    """Fit by nonlinear least squares, as `scipy.optimize.least_squares` does, with derivatives of the estimates.

    Parameters
    ----------
    fun, x0, jac, bounds, method, ftol, xtol, gtol, x_scale, loss, f_scale, diff_step, tr_solver, tr_options
    jac_sparsity, max_nfev, verbose, args, kwargs, callback, workers
        As in scipy. `fun` is written with numpy where derivatives are asked for: they are those with respect to `args`
        and `kwargs`, to what `fun` has in its closure, and to bounds that hold an unknown; that of `x0` is zero. `loss`
        may be any of scipy's, by its name.

    Returns
    -------
    scipy.optimize.OptimizeResult
        What scipy returned, bit for bit; `x`, `cost` and `fun` have derivatives, in every mode and of any order. That
        of anything else in it, `jac` or `grad` say, is refused.

    Raises
    ------
    NotDifferentiableError
        When it is differentiated though scipy's method did not converge, at a bound that does not hold, with a `loss`
        of one's own, or where the minimum is not the only one nearby.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.solvers import least_squares
    >>> t = np.linspace(0.0, 1.0, 5)
    >>> def rate(data):
    ...     return least_squares(lambda k: np.exp(-k[0] * t) - data, np.ones(1), xtol=1e-12).x[0]
    >>> slope = dagad.grad(rate)(np.exp(-2.0 * t))
    >>> w = t * np.exp(-2.0 * t)
    >>> np.allclose(slope, -w / np.sum(w**2))
    True
    """
    call = ScipyCall(optimize.least_squares, args, kwargs)
    if not call.boxes:
        return call.result
    result, plain = call.result, call.plain
    loss, at = plain.get("loss", "linear"), np.array(result.x)

    def residuals(x: Array, given: Given) -> Any:
        return vector_of(given["fun"](x, *positional(given), **(given.get("kwargs") or {})))

    def cost(x: Array, given: Given) -> Any:
        scale = given.get("f_scale", 1.0)
        return 0.5 * anp.sum(scale**2 * _LOSSES[loss]((residuals(x, given) / scale) ** 2))

    def slope(x: Array, given: Given) -> Any:
        return grad(lambda x: cost(x, given))(x)

    held = Held(at, *pair_of_bounds(plain.get("bounds", UNBOUNDED)), lambda x: slope(x, call.then))

    def equations(x: Array, leaves: Leaves) -> Any:
        if callable(loss):
            _refuse_loss(call.name)
        given = call.at(leaves)
        if not held.any:
            return slope(x, given)
        return held.equations(x, slope(x, given), *pair_of_bounds(given["bounds"]))

    def refuse(residual: Callable[[], Any]) -> None:
        zero = plain.get("gtol", 1e-8) or GRADIENT
        if not result.success and not np.max(np.abs(residual())) <= zero:
            call.refuse(str(result.message), "Begin elsewhere, or raise `max_nfev`.")
        if held.any:
            held.refuse(GRADIENT, call.name)

    result["x"] = System(equations, at, call.name, refuse=refuse).unknowns(call.boxes)
    result["fun"] = call.followed(result.fun, residuals, result.x)
    result["cost"] = call.followed(result.cost, cost, result.x) if not callable(loss) else result.cost
    unfollowed_rest(result, ("x", "fun") if callable(loss) else ("x", "fun", "cost"), call.boxes, call.name)
    return result


def _refuse_loss(name: str) -> None:
    raise NotDifferentiableError(
        f"The derivative of what `{name}` found with a `loss` of your own was asked for, which it computes outside of "
        f"numpy. Choose one of {sorted(_LOSSES)} by its name, or minimize the sum by `dagad.solvers.minimize`."
    )
