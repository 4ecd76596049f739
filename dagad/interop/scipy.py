"""For scipy: its optimizers on functions of any pytree, with derivatives by dagad, and none that is not asked for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from dagad._api.higher_order import hessian, hvp, jacfwd
from dagad._api.program import check_function
from dagad._api.transforms import check_number, value_and_grad, vjp
from dagad._errors import ArgumentsError, PlanError, StructureError
from dagad._tracebacks import public
from dagad._values import pytree
from dagad._words import described, name_of
from dagad.interop._bounds import ends_of_bounds, ends_of_pairs, ends_of_tree, ends_of_two
from dagad.interop._constraints import listed, prepared
from dagad.interop._objective import number
from dagad.interop._parameters import Parameters

try:
    from scipy import optimize
except ModuleNotFoundError as error:
    error.add_note('dagad: `dagad.interop.scipy` needs scipy: `pip install "dagad[scipy]"`.')
    raise

VALUES_ONLY = frozenset({"cobyla", "cobyqa", "nelder-mead", "powell"})
VALUE_AND_GRAD = frozenset({"l-bfgs-b", "tnc"})  # value and gradient at each point; others may do without the latter
PRODUCTS = frozenset({"newton-cg", "trust-constr", "trust-krylov", "trust-ncg"})
HESSIANS = frozenset({"dogleg", "trust-exact"})
METHODS = VALUES_ONLY | VALUE_AND_GRAD | PRODUCTS | HESSIANS | {"bfgs", "cg", "slsqp"}


@public
def minimize(
    fun: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...] = (),
    method: str | None = None,
    *,
    bounds: Any = None,
    constraints: Any = (),
    tol: float | None = None,
    callback: Callable[..., Any] | None = None,
    options: dict[str, Any] | None = None,
) -> optimize.OptimizeResult:
    """Minimize a function of a pytree by one of scipy's methods, which gets the derivatives that it asks for.

    Parameters
    ----------
    fun
        ``fun(x, *args)``, a function that returns one real number, as for `dagad.value_and_grad`.
    x0
        Where to start: real floating-point numbers and arrays in any pytree. They are computed with in float64.
    args
        What else the function is called with, a tuple of arguments or one as it is; not differentiated. A list is
        refused, as it might be either.
    method
        Any of scipy's names. "Newton-CG", "trust-ncg", "trust-krylov" and "trust-constr" get products with the Hessian,
        "trust-exact" and "dogleg" the Hessian; "Nelder-Mead", "Powell" and the like nothing but values. None takes
        BFGS, L-BFGS-B where there are bounds, SLSQP where there are constraints.
    bounds
        For an array what scipy takes: a sequence of pairs ``(low, high)``, one for each number, or its ``Bounds``; one
        pair of numbers is for all. For other parameters a pytree like `x0` with a pair at each leaf, of numbers or of
        arrays of the leaf's shape, or ``Bounds(low, high)`` of two pytrees like `x0`. None is no bound: for an end, or
        in place of a leaf's pair.
    constraints
        As for ``scipy.optimize.minimize``, one or several: dicts ``{"type": ..., "fun": ..., "args": ...}`` and
        ``NonlinearConstraint``, whose functions get the pytree as `fun` does and return a number, an array with one
        axis, or a list of these. Jacobians are computed by dagad, and so are products with second derivatives for
        "trust-constr"; whoever gives `jac` (a pytree, or a matrix), `hess` other than ``BFGS()``, or "3-point" for
        finite differences has these taken. ``LinearConstraint`` has a column for each number, in the order of
        `FlatFunction`.
    tol, options
        As for ``scipy.optimize.minimize``.
    callback
        As for ``scipy.optimize.minimize``, in both forms, with pytrees: ``callback(x)`` and
        ``callback(intermediate_result)``; of "trust-constr" also ``callback(x, state)``.

    Returns
    -------
    scipy.optimize.OptimizeResult
        `x` and `jac` are pytrees like `x0`, `x_flat` and `jac_flat` the vectors that scipy worked on.

    Raises
    ------
    NotDifferentiableError
        If `x0` holds integers, complex numbers, or what is no number.
    StructureError
        If bounds or what constraints return don't fit `x0`.
    PlanError
        If a method is not one of scipy's or takes no constraints, or if a constraint is none.

    See Also
    --------
    FlatFunction : for other optimizers.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad.interop.scipy
    >>> x = np.linspace(0.0, 1.0, 100)
    >>> y = 2.0 * x + 1.0
    >>> def squares(rows, p):
    ...     x, y = rows
    ...     return np.sum((y - p["slope"] * x - p["start"]) ** 2)
    >>> def loss(p):
    ...     return dagad.reduce_sum(squares, (x, y), p, grainsize=50)
    >>> start = {"slope": 0.0, "start": 0.0}
    >>> found = dagad.interop.scipy.minimize(loss, start, bounds={"slope": (0, None), "start": None})
    >>> round(float(found.x["slope"]), 3), round(float(found.x["start"]), 3)
    (2.0, 1.0)

    A constraint gets the same pytree:

    >>> total = {"type": "eq", "fun": lambda p: p["slope"] + p["start"] - 2.0}
    >>> found = dagad.interop.scipy.minimize(loss, start, constraints=total)
    >>> round(float(found.x["slope"]), 3), round(float(found.x["start"]), 3)
    (0.508, 1.492)
    """
    flat = FlatFunction(fun, x0, args)
    limits = _limits(flat.parameters, bounds, ends_of_pairs)
    each = listed(constraints)
    if method is None:
        method = "SLSQP" if each else "BFGS" if limits is None else "L-BFGS-B"
    keywords = _derivatives(flat, method)
    found = optimize.minimize(
        **keywords,
        x0=flat.x0,
        method=method,
        bounds=limits,
        constraints=prepared(each, flat.parameters, method),
        tol=tol,
        callback=_told(callback, flat.parameters.tree),
        options=options,
    )
    return _as_trees(found, flat.parameters.tree)


@public
def least_squares(
    fun: Callable[..., Any], x0: Any, args: tuple[Any, ...] = (), *, bounds: Any = None, **options: Any
) -> optimize.OptimizeResult:
    """Minimize the sum of squares of a function of a pytree by scipy, which gets its Jacobian in forward mode.

    Parameters
    ----------
    fun
        ``fun(x, *args)``, a function that returns the residuals, an array with one axis: of `dagad.map`, say.
    x0, args
        See `minimize`.
    bounds
        For an array what scipy takes here: ``(low, high)``, each a number or an array like `x0`, or ``Bounds``. For
        other parameters as for `minimize`.
    **options
        As for ``scipy.optimize.least_squares``.

    Returns
    -------
    scipy.optimize.OptimizeResult
        `x` and `grad` are pytrees like `x0`, `x_flat` and `grad_flat` vectors; `jac` is a matrix.

    Raises
    ------
    NotDifferentiableError, StructureError
        See `minimize`; also if `fun` does not return an array with one axis.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad.interop.scipy
    >>> x = np.linspace(0.0, 1.0, 20)
    >>> y = np.exp(-2.0 * x)
    >>> def residuals(p):
    ...     return dagad.map(lambda pair, p: pair[1] - p["a"] * np.exp(-p["b"] * pair[0]), (x, y), p, grainsize=10)
    >>> found = dagad.interop.scipy.least_squares(residuals, {"a": 0.5, "b": 1.0})
    >>> round(float(found.x["a"]), 6), round(float(found.x["b"]), 6)
    (1.0, 2.0)
    """
    check_function(fun, "interop.scipy.least_squares")
    parameters = Parameters(x0)
    limits = _limits(parameters, bounds, ends_of_two)
    of_tree = _with(fun, args)

    def residuals(x: Any) -> Any:
        found = of_tree(parameters.tree(x))
        if np.ndim(found) != 1:
            raise StructureError(
                f"`{name_of(fun)}` returned {described(found)}; the residuals are an array with one axis. Return "
                "`np.ravel(...)` of it; a sum of squares goes to `minimize`."
            )
        return found

    def jacobian(x: Any) -> Any:
        parts = pytree.flatten(jacfwd(of_tree)(parameters.tree(x)))[0]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)

    ends = {} if limits is None else {"bounds": limits}
    found = optimize.least_squares(residuals, parameters.x0, jac=jacobian, **ends, **options)
    return _as_trees(found, parameters.tree)


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
    def __init__(self, fun: Callable[..., Any], x0: Any, args: tuple[Any, ...] = ()) -> None:
        check_function(fun, "interop.scipy")
        self._fun = _with(fun, args)
        self.parameters = Parameters(x0)
        self.x0 = self.parameters.x0
        # The last point, its value, its gradient if that is known, and else what gives it.
        self._last: tuple[Any, float, Any, Callable[[], Any] | None] | None = None

    @public
    def value_only(self, x: Any) -> float:
        """Return the value at a vector, and keep nothing for a gradient there."""
        known = self._at(x)
        return float(known[1]) if known else number(check_number(self._fun(self.tree(x)), name_of(self._fun)))

    @public
    def value(self, x: Any) -> float:
        """Return the value at a vector. No pullback runs, and `gradient` at the same vector runs nothing else."""
        known = self._at(x)
        if known is None:
            value, pullback = vjp(self._fun, self.tree(x))
            check_number(value, name_of(self._fun))
            known = self._last = np.array(x), number(value), None, lambda: pullback(np.ones_like(value))[0]
        return float(known[1])

    @public
    def gradient(self, x: Any) -> Any:
        """Return the gradient at a vector."""
        return self.value_and_gradient(x)[1]

    @public
    def value_and_gradient(self, x: Any) -> tuple[float, Any]:
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
    def hessp(self, x: Any, v: Any) -> Any:
        """Return the Hessian at a vector, times another vector."""
        return self.parameters.flat(hvp(self._fun, (self.tree(x),), (self.tree(v),))[0])

    @public
    def hessian(self, x: Any) -> Any:
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
    def tree(self, x: Any) -> Any:
        """Return a vector as a pytree like `x0`."""
        return self.parameters.tree(x)

    def _at(self, x: Any) -> Any:
        last = self._last
        return last if last is not None and np.array_equal(last[0], x) else None


def _limits(
    parameters: Parameters, bounds: Any, of_array: Callable[[Any, tuple[int, ...], str], Any]
) -> optimize.Bounds | None:
    """Return bounds of the vector; of an array, where they are no `Bounds`, `of_array` knows what scipy's form is."""
    if bounds is None:
        return None
    if isinstance(bounds, optimize.Bounds):
        return optimize.Bounds(*ends_of_bounds(parameters, bounds.lb, bounds.ub, bounds.keep_feasible))
    if parameters.treedef.is_leaf():
        return optimize.Bounds(*of_array(bounds, parameters.shapes[0], parameters.names[0]))
    return optimize.Bounds(*ends_of_tree(parameters, bounds))


def _with(fun: Callable[..., Any], args: Any) -> Callable[[Any], Any]:
    """Return a function of the parameters alone."""
    if isinstance(args, tuple | list) and type(args) is not tuple:
        raise ArgumentsError(  # of scipy's functions some take it for one, some for several
            f"`args=` is {described(args)}, which may be one argument or several. Write `args=(that,)` for one "
            "argument, `args=(a, b)` for several arguments."
        )
    if type(args) is not tuple:
        args = (args,)  # as scipy does

    @functools.wraps(fun, updated=())
    def of_parameters(x: Any) -> Any:
        return fun(x, *args)

    return of_parameters


def _derivatives(flat: FlatFunction, method: Any) -> dict[str, Any]:
    """Return what a method of scipy's asks for."""
    name = method.lower() if isinstance(method, str) else ""
    if name not in METHODS:
        raise PlanError(
            f"`method={method!r}` is not a method of scipy's that dagad knows. Choose one of {sorted(METHODS)}; for "
            "other optimizers there is `FlatFunction`."
        )
    if name in VALUES_ONLY:
        return {"fun": flat.value_only}
    if name in VALUE_AND_GRAD:
        return {"fun": flat.value_and_gradient, "jac": True}
    both: dict[str, Any] = {"fun": flat.value, "jac": flat.gradient}
    return both | ({"hessp": flat.hessp} if name in PRODUCTS else {"hess": flat.hessian} if name in HESSIANS else {})


def _told(callback: Callable[..., Any] | None, tree: Callable[[Any], Any]) -> Callable[..., Any] | None:
    """Return a callback that is called with pytrees; scipy asks what its argument is called."""
    if callback is None:
        return None
    if _names_of_arguments(callback) == ["intermediate_result"]:

        def told(intermediate_result: Any) -> Any:
            return callback(intermediate_result=_as_trees(intermediate_result, tree))

        return told

    def called(x: Any, *state: Any) -> Any:
        return callback(tree(x), *(_as_trees(one, tree) for one in state))

    return called


def _names_of_arguments(callback: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(callback).parameters)
    except ValueError:  # some of those written in C have none
        return []


def _as_trees(result: Any, tree: Callable[[Any], Any]) -> Any:
    """Return a result of scipy's with pytrees in it."""
    found = optimize.OptimizeResult(result)
    for name in ("x", "jac", "grad"):
        vector = found.get(name)
        if isinstance(vector, np.ndarray) and vector.ndim == 1:
            found[name], found[f"{name}_flat"] = tree(vector), vector
    return found
