"""For scipy: its optimizers on functions of any pytree, with derivatives by dagad, and none that is not asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dagad._api.higher_order import jacrev
from dagad._api.program import check_function
from dagad._errors import ArgumentsError, PlanError
from dagad._executors.member import by_itself
from dagad._tracebacks import public
from dagad._tracing.operands import vector_of
from dagad._types import AnyRows, AnyScheduler, Array, Tree
from dagad._values import pytree
from dagad._words import name_of
from dagad.interop._bounds import ends_of_bounds, ends_of_pairs, ends_of_tree, ends_of_two
from dagad.interop._callbacks import as_trees, with_pytrees
from dagad.interop._constraints import listed, prepared
from dagad.interop._flat_function import FlatFunction as FlatFunction, with_args
from dagad.interop._from_scipy import optimize
from dagad.interop._parameters import Parameters
from dagad.interop._residuals import options_of, residuals_of
from dagad.interop._standard_errors import (
    between,
    check_asked,
    check_curvature,
    check_optimum,
    check_real,
    check_scale,
    correction,
    inverse,
)

VALUES_ONLY = frozenset({"cobyla", "cobyqa", "nelder-mead", "powell"})
VALUE_AND_GRAD = frozenset({"l-bfgs-b", "tnc"})  # value and gradient at each point; others may do without the latter
PRODUCTS = frozenset({"newton-cg", "trust-constr", "trust-krylov", "trust-ncg"})
HESSIANS = frozenset({"dogleg", "trust-exact"})
LOCKED = frozenset({"cobyqa"})  # these hold a lock of scipy's while they call the function
METHODS = VALUES_ONLY | VALUE_AND_GRAD | PRODUCTS | HESSIANS | {"bfgs", "cg", "slsqp"}


@public
def minimize(
    fun: Callable[..., Any],
    x0: Tree,
    args: tuple[Any, ...] = (),
    method: str | None = None,
    *,
    bounds: Tree = None,
    constraints: object = (),
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
        "trust-constr"; whoever gives `jac` (a pytree, or a matrix), `hess`, or "3-point" for finite differences has
        these taken. ``BFGS()`` without settings is what scipy puts where no `hess` was given, and gets dagad's
        products; ``BFGS(exception_strategy="damp_update")``, or any setting that is not scipy's own, and ``SR1()`` are
        kept. ``LinearConstraint`` has a column for each number, in the order of `FlatFunction`.
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
    with by_itself(method.lower() in LOCKED):
        found = optimize.minimize(
            **keywords,
            x0=flat.x0,
            method=method,
            bounds=limits,
            constraints=prepared(each, flat.parameters, method),
            tol=tol,
            callback=with_pytrees(callback, flat.parameters.tree),
            options=options,
        )
    return as_trees(found, flat.parameters.tree)


@public
def least_squares(
    fun: Callable[..., Any], x0: Tree, args: tuple[Any, ...] = (), *, bounds: Tree = None, **options: Any
) -> optimize.OptimizeResult:
    """Minimize the sum of squares of a function of a pytree by scipy, which gets its Jacobian in forward mode.

    Parameters
    ----------
    fun
        ``fun(x, *args)``, a function that returns the residuals, an array with one axis, of `dagad.map`, say, or a list
        of numbers.
    x0, args
        See `minimize`.
    bounds
        For an array what scipy takes here: ``(low, high)``, each a number or an array like `x0`, or ``Bounds``. For
        other parameters as for `minimize`.
    **options
        As for ``scipy.optimize.least_squares``; `callback` gets pytrees, and `x_scale` may be one like `x0`.

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
    residuals, jacobian = residuals_of(with_args(fun, args), name_of(fun), parameters)
    own = options_of(options, parameters)
    ends = {} if limits is None else {"bounds": limits}
    found = optimize.least_squares(residuals, parameters.x0, jac=jacobian, **ends, **own)
    return as_trees(found, parameters.tree)


@public
def standard_errors(
    fun: Callable[..., Any],
    x: Array,
    *,
    cov_type: str = "nonrobust",
    losses: Callable[..., Any] | None = None,
    rows: AnyRows = None,
    groups: Array = None,
    mean_over: int | None = None,
    use_correction: bool = True,
    grainsize: int | str = "auto",
    scheduler: AnyScheduler = None,
) -> StandardErrors:
    """Return the standard errors of estimates, in a pytree like them, by the Hessian, the sandwich, or that of groups.

    Parameters
    ----------
    fun
        What was minimized: minus a log-likelihood, with or without minus the logarithm of a prior.
    x
        Where its minimum is, the `x` of what `minimize` returns, in any pytree.
    cov_type
        By statsmodels' names. "nonrobust": the inverse Hessian, right where the model is. "HC0": the sandwich, which
        holds where the model has the spread of independent rows wrong. "HC1": that times n / (n - k), of n rows and k
        parameters, which statsmodels does for linear regressions only. "cluster": the sandwich of groups, inside which
        rows may depend on each other.
    losses
        For the sandwich: ``losses(rows, x)``, a function of some rows that returns an array with the loss of each, of
        which `fun` sums up all. Its derivatives are taken in forward mode, in the chunks; no scores of rows travel.
    rows
        All rows, as `dagad.reduce_sum` takes them: arrays, tables, lists, Shards.
    groups
        For "cluster", the name or number of the group of each row: an array, a list, a column of a table.
    mean_over
        Where `fun` is a mean, over how many rows.
    use_correction
        For "cluster", whether the sandwich is multiplied by G / (G - 1) * (n - 1) / (n - k), of G groups.
    grainsize, scheduler
        See `dagad.reduce_sum`; for `losses`.

    Returns
    -------
    StandardErrors
        `tree`, the standard errors in a pytree like `x`; `covariance`, a matrix, and `names`, of its rows and columns.

    Raises
    ------
    ArgumentsError
        If `x` is no minimum of `fun`, or what `cov_type` needs is not there.
    NonFiniteError
        If the Hessian is not finite.
    StructureError
        If `losses` returns something else than one number for each row, or `groups` don't fit the rows.

    Warns
    -----
    DagadWarning
        If the minimum seems to be more than a tenth of a standard error away, or if `losses` seems not to be what `fun`
        sums up: a product with the Hessian of its sum is compared.

    Notes
    -----
    Sums of squares are no log-likelihoods: their sandwich is right as it is, the inverse Hessian has to be multiplied
    by twice the variance of the residuals.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad.interop.scipy
    >>> y = np.array([2.0, 3.0, 1.0, 4.0, 0.0, 7.0])
    >>> def losses(y, p):  # of counts
    ...     return np.exp(p["log_rate"]) - y * p["log_rate"]
    >>> def loss(p):
    ...     return dagad.reduce_sum(lambda y, p: np.sum(losses(y, p)), y, p)
    >>> fit = dagad.interop.scipy.minimize(loss, {"log_rate": 0.0})
    >>> found = dagad.interop.scipy.standard_errors(loss, fit.x)
    >>> round(float(found.tree["log_rate"]), 3)  # of a mean of 17 / 6 the square root of 1 / 17
    0.243
    >>> found = dagad.interop.scipy.standard_errors(loss, fit.x, cov_type="HC0", losses=losses, rows=y)
    >>> round(float(found.tree["log_rate"]), 3), found.names
    (0.327, ['log_rate'])
    """
    check_asked(cov_type, losses, rows, groups, mean_over, use_correction)
    if isinstance(x, optimize.OptimizeResult):
        raise ArgumentsError("`x` is all that an optimizer returned. Give the place of the minimum: `x.x`.")
    flat = FlatFunction(fun, x)
    at, times, called = flat.x0, 1 if mean_over is None else mean_over, name_of(fun)
    value, gradient = flat.value_and_gradient(at)
    hessian = times * flat.hessian(at)
    bread = inverse(hessian, flat.parameters, called)
    check_optimum(times * gradient, bread, flat.parameters, called)
    if losses is None:
        return StandardErrors(bread, cov_type, flat.parameters, at)
    how = {"grainsize": grainsize, "scheduler": scheduler}
    found, n_groups = between(losses, rows, groups, flat.parameters, at, **how)
    n_rows = int(found["n_rows"])
    check_scale(value, float(found["loss"]), n_rows, mean_over, called)
    check_curvature(losses, rows, hessian, bread, flat.parameters, at, called, **how)
    scale = correction(cov_type, n_rows, n_groups, len(at)) if use_correction else 1.0
    return StandardErrors(scale * (bread @ found["outer"] @ bread), cov_type, flat.parameters, at)


class StandardErrors:
    """The standard errors of estimates, as `standard_errors` returns them.

    Attributes
    ----------
    tree
        The standard errors, in a pytree like the estimates.
    covariance
        The covariance of the estimates, a matrix.
    names
        What its rows and columns belong to, in the order of `FlatFunction`: ``"slopes[0]"``.
    cov_type
        Of which kind they are.
    flat
        The standard errors as a vector, in the same order.

    Examples
    --------
    >>> import numpy as np
    >>> from dagad.interop.scipy import standard_errors
    >>> def loss(p):
    ...     return 8.0 * np.sum((p["a"] - 1.0) ** 2) + 0.5 * p["b"] ** 2
    >>> found = standard_errors(loss, {"b": 0.0, "a": np.ones(2)})
    >>> found.names, found.flat
    (['a[0]', 'a[1]', 'b'], array([0.25, 0.25, 1.  ]))
    >>> found.tree["a"]
    array([0.25, 0.25])
    """

    def __init__(self, covariance: Array, cov_type: str, parameters: Parameters, x: Array) -> None:
        self.covariance, self.cov_type = covariance, cov_type
        self.names = parameters.labels
        self.flat = np.sqrt(np.diag(covariance))
        self.tree = parameters.tree(self.flat)
        self._parameters, self._x = parameters, x

    def __repr__(self) -> str:
        """Return the first few of them."""
        each = ", ".join(f"{name} {error:.4g}" for name, error in zip(self.names[:6], self.flat, strict=False))
        return f"<StandardErrors, {self.cov_type}: {each}{', ...' if len(self.names) > 6 else ''}>"

    @public
    def of(self, fun: Callable[[Any], Any]) -> Any:
        """Return the standard error of what a function of the estimates gives, by the delta method.

        Parameters
        ----------
        fun
            A function of a pytree like the estimates that returns real numbers and arrays, in any pytree.

        Returns
        -------
        Any
            The standard errors, in a pytree like what `fun` returns.

        Raises
        ------
        NotDifferentiableError
            If it returns integers, complex numbers, or what is no number.

        Examples
        --------
        >>> from dagad.interop.scipy import standard_errors
        >>> found = standard_errors(lambda p: 2.0 * (p["a"] - 3.0) ** 2, {"a": 3.0})
        >>> found.of(lambda p: p["a"] ** 2)  # 2 * 3 times 0.5
        3.0
        """
        tree = self._parameters.tree(self._x)
        returned = fun(tree)
        check_real(returned, name_of(fun))
        leaves, treedef = pytree.flatten(returned)
        shapes = [np.shape(leaf) for leaf in leaves]

        def as_vector(p: Tree) -> Any:
            return vector_of(fun(p))

        columns = self._parameters.columns(jacrev(as_vector)(tree), sum(map(np.size, leaves)))
        errors = np.sqrt(np.sum((columns @ self.covariance) * columns, axis=1))
        parts = np.split(errors, np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
        found = [
            np.reshape(part, shape) if shape else part[0].item() for part, shape in zip(parts, shapes, strict=True)
        ]
        return pytree.unflatten(treedef, found)


def _limits(
    parameters: Parameters, bounds: Tree, of_array: Callable[[Any, tuple[int, ...], str], Any]
) -> optimize.Bounds | None:
    """Return bounds of the vector; of an array, where they are no `Bounds`, `of_array` knows what scipy's form is."""
    if bounds is None:
        return None
    if isinstance(bounds, optimize.Bounds):
        return optimize.Bounds(*ends_of_bounds(parameters, bounds.lb, bounds.ub, bounds.keep_feasible))
    if parameters.treedef.is_leaf():
        return optimize.Bounds(*of_array(bounds, parameters.shapes[0], parameters.names[0]))
    return optimize.Bounds(*ends_of_tree(parameters, bounds))


def _derivatives(flat: FlatFunction, method: str) -> dict[str, Any]:
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
