"""For scipy: its optimizers on functions of any pytree, with derivatives by dagad, and none that is not asked for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dagad._api.higher_order import hessian, hvp, jacfwd
from dagad._api.program import check_function
from dagad._api.transforms import check_number, value_and_grad, vjp
from dagad._errors import NotDifferentiableError, PlanError, StructureError
from dagad._pytrees import pytree
from dagad._tracebacks import public
from dagad._words import described, name_of
from dagad.interop._objective import number

try:
    from scipy import optimize
except ModuleNotFoundError as error:
    error.add_note('dagad: `dagad.interop.scipy` needs scipy: `pip install "dagad[scipy]"`.')
    raise

VALUES_ONLY = frozenset({"cobyla", "cobyqa", "nelder-mead", "powell"})
TOGETHER = frozenset({"l-bfgs-b", "tnc"})  # value and gradient at each point; others may do without the latter
PRODUCTS = frozenset({"newton-cg", "trust-constr", "trust-krylov", "trust-ncg"})
HESSIANS = frozenset({"dogleg", "trust-exact"})
METHODS = VALUES_ONLY | TOGETHER | PRODUCTS | HESSIANS | {"bfgs", "cg", "slsqp"}


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
        What else the function is called with; not differentiated.
    method
        Any of scipy's names. "Newton-CG", "trust-ncg", "trust-krylov" and "trust-constr" get products with the Hessian,
        "trust-exact" and "dogleg" the Hessian; "Nelder-Mead", "Powell" and the like nothing but values. None takes
        BFGS, L-BFGS-B where there are bounds, SLSQP where there are constraints.
    bounds
        A pair ``(low, high)`` for each leaf of `x0`, in a pytree like `x0`: numbers, arrays of the leaf's shape, or
        None for no bound; None instead of a pair for neither. For an array also scipy's sequence of pairs, or its
        ``Bounds``.
    constraints, tol, options
        As for ``scipy.optimize.minimize``; `constraints` are of the flat vector.
    callback
        As for ``scipy.optimize.minimize``, called with the pytree.

    Returns
    -------
    scipy.optimize.OptimizeResult
        `x` and `jac` are pytrees like `x0`, `x_flat` and `jac_flat` the vectors that scipy worked on.

    Raises
    ------
    NotDifferentiableError
        If `x0` holds integers, complex numbers, or what is no number.
    StructureError
        If bounds don't fit `x0`.

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
    """
    flat = FlatFunction(fun, x0, args)
    limits = flat.parameters.bounds(bounds)
    if method is None:
        method = "SLSQP" if constraints else "BFGS" if limits is None else "L-BFGS-B"
    keywords = _derivatives(flat, method)
    found = optimize.minimize(
        **keywords,
        x0=flat.x0,
        method=method,
        bounds=limits,
        constraints=constraints,
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
    x0, args, bounds
        See `minimize`.
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
    limits = parameters.bounds(bounds)
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


class Parameters:
    """A pytree of real numbers as one vector, and back."""

    def __init__(self, x0: Any) -> None:
        leaves, self._treedef = pytree.flatten(x0)
        self._paths = [f"`x0{path}`" for path in pytree.paths(x0)]
        if not leaves:
            raise StructureError("`x0` holds no numbers. Give a number, an array, or a pytree of these.")
        for leaf, path in zip(leaves, self._paths, strict=True):
            _check_parameter(leaf, path)
        self._shapes = [np.shape(leaf) for leaf in leaves]
        self.sizes = [np.size(leaf) for leaf in leaves]
        self.x0 = self.flat(x0)

    def flat(self, tree: Any) -> Any:
        """Return a pytree of this structure as one vector."""
        return np.concatenate([np.ravel(leaf) for leaf in pytree.flatten(tree)[0]], dtype=float)

    def leaves(self, x: Any) -> list[Any]:
        """Return the leaves that a vector has in it, copies of its parts."""
        x = np.array(x, dtype=float)
        if x.shape != self.x0.shape:
            raise StructureError(f"A vector has the shape {x.shape}, where `x0` holds {self.x0.size} numbers.")
        parts = np.split(x, np.cumsum(self.sizes[:-1]))
        return [part.reshape(shape) if shape else part[0] for part, shape in zip(parts, self._shapes, strict=True)]

    def joined(self, leaves: Sequence[Any]) -> Any:
        """Return leaves as a pytree like `x0`."""
        return pytree.unflatten(self._treedef, leaves)

    def tree(self, x: Any) -> Any:
        """Return a vector as a pytree like `x0`."""
        return self.joined(self.leaves(x))

    def bounds(self, bounds: Any) -> optimize.Bounds | None:
        """Return bounds of the vector; see `minimize`."""
        if bounds is None or isinstance(bounds, optimize.Bounds):
            return bounds
        try:
            pairs = self._treedef.flatten_up_to(bounds)
        except (ValueError, TypeError) as error:
            raise StructureError(
                f"`bounds` have another structure than `x0`. Give a pair `(low, high)` for each of "
                f"{', '.join(self._paths)}, in the same containers; None where there is no bound. {error}"
            ) from None
        low, high = zip(*map(_ends, pairs, self._shapes, self._paths), strict=True)
        return optimize.Bounds(np.concatenate(low), np.concatenate(high))


def _check_parameter(leaf: Any, path: str) -> None:
    kind = np.asarray(leaf).dtype.kind
    if kind == "f":
        return
    if kind in "biu":
        remedy = "Integers can't move by small steps: write `0.0` for `0`, or `.astype(float)`"
    elif kind == "c":
        remedy = "Give real and imaginary part as two parameters, and put them together in the function"
    else:
        remedy = "Give numbers"
    raise NotDifferentiableError(
        f"{path} is {described(leaf)}, which is no real floating-point number. {remedy}; what stays as it is goes into "
        "`args=`."
    )


def _ends(pair: Any, shape: tuple[int, ...], path: str) -> tuple[Any, Any]:
    """Return the lower and the upper bounds of a leaf, as vectors."""
    if len(shape) == 1 and not isinstance(pair, tuple | None) and np.shape(pair) == (*shape, 2):
        pair = tuple(zip(*pair, strict=True))  # scipy's own way: a pair for each number
    try:
        low, high = (None, None) if pair is None else pair
        return _end(low, shape, -np.inf), _end(high, shape, np.inf)
    except (ValueError, TypeError):
        raise StructureError(
            f"The bounds of {path} are {pair!r}. Give a pair `(low, high)` of numbers, of arrays of shape {shape}, or "
            "of None where there is no bound."
        ) from None


def _end(end: Any, shape: tuple[int, ...], nowhere: float) -> Any:
    parts = np.array(end, object)  # there may be a None among them
    parts.flat[:] = [nowhere if part is None else part for part in parts.flat]
    return np.ravel(np.broadcast_to(parts.astype(float), shape))


def _with(fun: Callable[..., Any], args: Any) -> Callable[[Any], Any]:
    """Return a function of the parameters alone."""
    if not isinstance(args, tuple | list):
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
            f"`method={method!r}` is none of scipy's that dagad knows. Choose one of {sorted(METHODS)}; for "
            "other optimizers there is `FlatFunction`."
        )
    if name in VALUES_ONLY:
        return {"fun": flat.value_only}
    if name in TOGETHER:
        return {"fun": flat.value_and_gradient, "jac": True}
    both: dict[str, Any] = {"fun": flat.value, "jac": flat.gradient}
    return both | ({"hessp": flat.hessp} if name in PRODUCTS else {"hess": flat.hessian} if name in HESSIANS else {})


def _told(callback: Callable[..., Any] | None, tree: Callable[[Any], Any]) -> Callable[..., Any] | None:
    """Return a callback that is called with pytrees; scipy asks what its argument is called."""
    if callback is None:
        return None
    if list(inspect.signature(callback).parameters) == ["intermediate_result"]:

        def told(intermediate_result: Any) -> Any:
            return callback(intermediate_result=_as_trees(intermediate_result, tree))

        return told

    def called(x: Any, *more: Any) -> Any:
        return callback(tree(x), *more)

    return called


def _as_trees(result: Any, tree: Callable[[Any], Any]) -> Any:
    """Return a result of scipy's with pytrees in it."""
    found = optimize.OptimizeResult(result)
    for name in ("x", "jac", "grad"):
        vector = found.get(name)
        if isinstance(vector, np.ndarray) and vector.ndim == 1:
            found[name], found[f"{name}_flat"] = tree(vector), vector
    return found
