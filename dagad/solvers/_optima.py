"""Minima by scipy, differentiated by what is true of them: the gradient is zero, or a bound holds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np
from scipy import optimize

from dagad._api.transforms import grad
from dagad._errors import NotDifferentiableError
from dagad._tracebacks import public
from dagad._tracing.flat_functions import Leaves
from dagad._tracing.operands import joined, vector_of
from dagad._types import Array
from dagad._values import pytree
from dagad.solvers._call import Call, called_like, positional
from dagad.solvers._implicit import System

Given = dict[str, Any]
NEAR = 1e-6  # how near to a bound, relative to it, an unknown is held by it
GRADIENT = 1e-5  # what scipy's methods take for zero by themselves
HELD = 10.0  # times what is zero: with how much of a gradient a bound has to hold an unknown


class Held:
    """Which unknowns lie at bounds, and at which.

    Parameters
    ----------
    x
        The minimum, plain.
    low, high
        The bounds, plain: one for each unknown.
    """

    def __init__(self, x: Array, low: Any, high: Any) -> None:
        shape = np.shape(x)
        self.low, self.high = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
        self.at_low = _is_near(x, self.low)
        self.at_high = _is_near(x, self.high) & ~self.at_low

    @property
    def any(self) -> bool:
        return bool(np.any(self.at_low) or np.any(self.at_high))

    def equations(self, x: Array, slope: Any, low: Any, high: Any) -> Any:
        """Return what is zero: the slope of the free unknowns, and the distance of the others to their bounds."""
        of_bounds = anp.where(self.at_low, x - anp.where(self.at_low, low, 0.0), x - anp.where(self.at_high, high, 0.0))
        return anp.where(self.at_low | self.at_high, of_bounds, slope)

    def refuse(self, slope: Any, zero: float, name: str) -> None:
        """Refuse where a bound does not hold an unknown, which is about to leave it: there is a kink."""
        fixed = self.low == self.high
        pushing = np.where(self.at_low, slope, np.where(self.at_high, -slope, np.inf))
        loose = np.flatnonzero(np.where(fixed, np.inf, pushing) <= HELD * zero)
        if loose.size:
            raise NotDifferentiableError(
                f"What `{name}` found lies at a bound that does not hold it: the slope of unknown {loose[0]} is "
                f"{np.ravel(slope)[loose[0]]:.1e} there, so that the minimum has a kink in the parameters. Move the "
                "bound, or write the unknown as a function of one without bounds, `np.exp(z)` say."
            )


def _is_near(x: Array, bound: Any) -> Any:
    finite = np.isfinite(bound)
    return finite & (np.abs(x - np.where(finite, bound, 0.0)) <= NEAR * (1.0 + np.abs(np.where(finite, bound, 0.0))))


def _both(bounds: Any) -> tuple[Any, Any]:
    """Return lower and upper bounds from what `minimize` takes: `Bounds`, or a pair for each unknown."""
    if isinstance(bounds, optimize.Bounds):
        return bounds.lb, bounds.ub
    pairs = [tuple(pair) for pair in pytree.open_containers(bounds)]
    return _vector([low for low, _ in pairs], -np.inf), _vector([high for _, high in pairs], np.inf)


def _vector(parts: Sequence[Any], none: float) -> Any:
    return joined([np.float64(none) if part is None else part for part in parts])


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
        What scipy returned, bit for bit; `x` and `fun` have derivatives, in every mode and of any order.

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
    call = Call(optimize.minimize, args, kwargs)
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
    held = None if bounds is None else Held(at, *_both(bounds))

    def equations(x: Array, leaves: Leaves) -> Any:
        given = call.at(leaves)
        found = slope(x, given)
        return held.equations(x, found, *_both(given["bounds"])) if held is not None and held.any else found

    def refuse(residual: Callable[[], Any]) -> None:
        _refuse_constraints(plain.get("constraints", ()), call.name)
        zero = _zero_of(plain)
        if not result.success and not np.max(np.abs(residual())) <= zero:
            call.refuse(str(result.message), _REMEDY)
        if held is not None and held.any:
            held.refuse(np.asarray(slope(at, plain)), zero, call.name)

    result["x"] = System(equations, at, call.name, refuse=refuse).unknowns(call.boxes)
    result["fun"] = call.followed(result.fun, value, result.x)
    return result


_REMEDY = (
    "Begin elsewhere, give `jac=dagad.grad(fun)`, allow more iterations, or ask for no more than rounding allows: "
    '`options={"gtol": 1e-5}` is in the units of the gradient.'
)


def _zero_of(plain: Given) -> float:
    """Return what a method was told to take for a gradient of zero."""
    tolerance = (plain.get("options") or {}).get("gtol", plain.get("tol"))
    return GRADIENT if tolerance is None else float(tolerance)


def _refuse_constraints(constraints: Any, name: str) -> None:
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
        What scipy returned, bit for bit; `x`, `cost` and `fun` have derivatives, in every mode and of any order.

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
    call = Call(optimize.least_squares, args, kwargs)
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

    held = Held(at, *_limits(plain))

    def equations(x: Array, leaves: Leaves) -> Any:
        if callable(loss):
            _refuse_loss(call.name)
        given = call.at(leaves)
        return held.equations(x, slope(x, given), *_limits(given)) if held.any else slope(x, given)

    def refuse(residual: Callable[[], Any]) -> None:
        zero = plain.get("gtol", 1e-8) or GRADIENT
        if not result.success and not np.max(np.abs(residual())) <= zero:
            call.refuse(str(result.message), "Begin elsewhere, or raise `max_nfev`.")
        if held.any:
            held.refuse(np.asarray(slope(at, plain)), GRADIENT, call.name)

    result["x"] = System(equations, at, call.name, refuse=refuse).unknowns(call.boxes)
    result["fun"] = call.followed(result.fun, residuals, result.x)
    result["cost"] = call.followed(result.cost, cost, result.x) if not callable(loss) else result.cost
    return result


def _limits(given: Given) -> tuple[Any, Any]:
    bounds = given.get("bounds", (-np.inf, np.inf))
    if isinstance(bounds, optimize.Bounds):
        return bounds.lb, bounds.ub
    low, high = (joined(part) if isinstance(part, list | tuple) else part for part in pytree.open_containers(bounds))
    return low, high


def _refuse_loss(name: str) -> None:
    raise NotDifferentiableError(
        f"The derivative of what `{name}` found with a `loss` of your own was asked for, which it computes outside of "
        f"numpy. Choose one of {sorted(_LOSSES)} by its name, or minimize the sum by `dagad.solvers.minimize`."
    )
