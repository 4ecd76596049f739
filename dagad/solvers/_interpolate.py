"""`CubicSpline`, `PchipInterpolator` and `interp1d` of scipy.interpolate, with derivatives."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import autograd.numpy as anp
import numpy as np

from dagad._engines.elsewhere import refuse_numbers
from dagad._errors import NotDifferentiableError
from dagad._tracebacks import public
from dagad._tracing.operands import array_of
from dagad._types import Array, Tree
from dagad._values import pytree
from dagad._values.canonical import snapshot
from dagad.solvers import _recorded_splines, _splines
from dagad.solvers._given import is_anything_traced, plain, taken
from dagad.solvers._recorded_arrays import of_still, still_value
from dagad.solvers._recorded_splines import is_written_down
from dagad.solvers._recording import is_recorded

_ORDERS = {"clamped": (1, 0.0), "natural": (2, 0.0)}


class Made(NamedTuple):
    """How coefficients were made of traced data: by a function of `_splines`, which has a name, and its options."""

    name: str
    data: tuple[Any, ...]
    options: dict[str, Any]

    def again(self, data: Sequence[Any]) -> Any:
        """Return the coefficients of other data, in a right-hand side that is recorded too."""
        function = functools.partial(getattr(_splines, self.name), **self.options)
        recordings = [part.recording for part in data if is_written_down(part)]
        return of_still(recordings[0], function, tuple(data)) if recordings else function(*data)


class Piecewise:
    """Piecewise polynomials as scipy has them, which may be made of traced data and asked at traced points."""

    computes_from = "c", "x", "_modes"  # see `_arithmetic`

    def __init__(self, stock: Any, c: Array, x: Array, made: Made | None = None) -> None:
        self._stock, self.c, self.x, self.made = stock, c, x, made
        self._modes = stock.axis, stock.extrapolate

    def __call__(self, x: Array, nu: int = 0, extrapolate: object = None) -> Any:
        """Return the values at some points, or those of a derivative."""
        if is_written_down(self.c, x):
            return _recorded_splines.value_at(self.c, self.x, x, nu, self._mode(extrapolate), self._stock.axis)
        refuse_numbers("a spline of `dagad.solvers`", x)
        points = array_of(pytree.all_opened(x))
        if not is_anything_traced(self.c, self.x, points):
            return self._stock(x, nu, extrapolate)
        mode = self._mode(extrapolate)
        return _splines.value_at(self.c, self.x, _kept(points), nu=nu, extrapolate=mode, axis=self._stock.axis)

    def derivative(self, nu: int = 1) -> Piecewise:
        """Return the derivative, piecewise polynomials too."""
        if nu < 0:
            return self.antiderivative(-nu)
        found = self._stock.derivative(nu)
        if not is_anything_traced(self.c, self.x):
            return Piecewise(found, found.c, found.x)
        return Piecewise(found, _splines.derivative(self.c, nu), self.x)

    def antiderivative(self, nu: int = 1) -> Piecewise:
        """Return the integral from the first node on, piecewise polynomials too."""
        if nu < 0:
            return self.derivative(-nu)
        found = self._stock.antiderivative(nu)
        if not is_anything_traced(self.c, self.x):
            return Piecewise(found, found.c, found.x)
        return Piecewise(found, _splines.antiderivative(self.c, self.x, nu=nu), self.x)

    def integrate(self, a: Array, b: Array, extrapolate: object = None) -> Any:
        """Return the integral between two limits."""
        refuse_numbers("a spline of `dagad.solvers`", a, b)
        if not is_anything_traced(self.c, self.x, a, b):
            return self._stock.integrate(a, b, extrapolate)
        mode = self._mode(extrapolate)
        if mode == "periodic":
            raise NotDifferentiableError(
                "The integral of a periodic spline is being differentiated, which dagad can't. Integrate within the "
                "period, with `extrapolate=True`."
            )
        return _splines.integral_between(self.c, self.x, _kept(a), _kept(b), extrapolate=mode)

    @property
    def made_value(self) -> Any:
        """What `made` says how to make again."""
        return self.c

    def _mode(self, extrapolate: object) -> Any:
        return self._stock.extrapolate if extrapolate is None else extrapolate

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked by who copies it or unpickles it, before it is made
            raise AttributeError(name)
        if name in ("roots", "solve") and is_anything_traced(self.c, self.x):
            raise NotDifferentiableError(
                f"`{name}` of a spline is being differentiated, which dagad can't. Take a root of the plain spline, "
                "and make it exact by a step of Newton's: `root - spline(root) / spline(root, 1)`."
            )
        return getattr(self._stock, name)


@public
def CubicSpline(
    x: Array,
    y: Array,
    axis: int = 0,
    bc_type: object = "not-a-knot",
    extrapolate: bool | Literal["periodic"] | None = None,
) -> Piecewise:
    """Interpolate data by a cubic spline as `scipy.interpolate.CubicSpline` does, with derivatives.

    The values are scipy's own. Derivatives are those of the spline: in the data, in the nodes, in the values that
    `bc_type` prescribes, and in the points at which it is called.

    Parameters
    ----------
    x
        The nodes, in ascending order.
    y
        The data, along `axis`.
    axis
        Along which axis of `y` the nodes are.
    bc_type
        What the spline does at its ends, as scipy takes it.
    extrapolate
        What is beyond the ends, as scipy takes it.

    Returns
    -------
    Piecewise
        What is called for values, with scipy's methods; ``derivative``, ``antiderivative`` and ``integrate`` are
        differentiable too.

    Raises
    ------
    ValueError
        As scipy raises it.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.solvers import CubicSpline
    >>> nodes = np.array([0.0, 1.0, 2.0, 3.0])
    >>> def between(data):
    ...     return CubicSpline(nodes, data)(1.5)
    >>> print(dagad.grad(between)(nodes**2))
    [-0.0625  0.5625  0.5625 -0.0625]
    """
    from scipy import interpolate

    refuse_numbers("`dagad.solvers.CubicSpline`", x, y, bc_type)
    x, y, (orders, values) = _kept(_opened(x)), _opened(y), _ends(bc_type)
    is_traced = is_anything_traced(x, y, values)
    asked = bc_type
    if is_traced and not isinstance(bc_type, str):
        pairs = zip(orders, map(plain, values), strict=True)
        asked = tuple(order if isinstance(order, str) else (order, value) for order, value in pairs)
    stock = interpolate.CubicSpline(plain(x), _plain(y), axis, asked, extrapolate)
    if not is_traced:
        return Piecewise(stock, stock.c, stock.x)
    x, y = taken(x), _taken(y)
    return _made(stock, Made("cubic", (x, y, *values), {"orders": orders, "axis": axis}))


def _opened(data: Tree) -> Any:
    return data if is_recorded(data) else array_of(pytree.all_opened(data))


def _plain(data: Array) -> Any:
    return still_value(data) if is_recorded(data) else plain(data)


def _taken(data: Array) -> Any:
    return data if is_recorded(data) else taken(data)


def _ends(bc_type: Any) -> tuple[tuple[Any, ...], list[Any]]:
    """Return for both ends a word or the order of the derivative that is prescribed, and its value."""
    ends = (bc_type, bc_type) if isinstance(bc_type, str) else bc_type
    if len(ends) != 2:
        return (ends, ends), [0.0, 0.0]  # scipy says what is wrong
    pairs = [_ORDERS.get(end, (end, 0.0)) if isinstance(end, str) else tuple(end) for end in ends]
    return tuple(order for order, _ in pairs), [_kept(array_of(value)) for _, value in pairs]


@public
def PchipInterpolator(
    x: Array, y: Array, axis: int = 0, extrapolate: bool | Literal["periodic"] | None = None
) -> Piecewise:
    """Interpolate data monotonically as `scipy.interpolate.PchipInterpolator` does, with derivatives.

    The values are scipy's own. Derivatives are those of the interpolant: in the data, in the nodes, and in the points
    at which it is called. It has no second derivative at the nodes, and where data turn none in the data.

    Parameters
    ----------
    x
        The nodes, in ascending order.
    y
        The data, along `axis`.
    axis
        Along which axis of `y` the nodes are.
    extrapolate
        What is beyond the ends, as scipy takes it.

    Returns
    -------
    Piecewise
        What is called for values; see `CubicSpline`.

    Raises
    ------
    ValueError
        As scipy raises it.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.solvers import PchipInterpolator
    >>> nodes = np.array([0.0, 1.0, 2.0, 3.0])
    >>> def between(data):
    ...     return PchipInterpolator(nodes, data)(1.5)
    >>> print(dagad.grad(between)(nodes**2).round(4))
    [-0.1406  0.7227  0.4531 -0.0352]
    """
    from scipy import interpolate

    refuse_numbers("`dagad.solvers.PchipInterpolator`", x, y)
    x, y = _kept(_opened(x)), _opened(y)
    stock = interpolate.PchipInterpolator(plain(x), _plain(y), axis, extrapolate)
    if not is_anything_traced(x, y):
        return Piecewise(stock, stock.c, stock.x)
    x, y = taken(x), _taken(y)
    return _made(stock, Made("monotone", (x, y), {"axis": axis}))


def _made(stock: Any, made: Made) -> Piecewise:
    return Piecewise(stock, made.again(made.data), made.data[0], made)


# What interp1d takes between two nodes: those at the left and at the right for "linear", one of them otherwise.
_KINDS = frozenset({"linear", "slinear", "previous", "next", "nearest", "nearest-up"})


class Interpolated:
    """Data with values in between, as `scipy.interpolate.interp1d` has them; data and points may be traced."""

    computes_from = "x", "y", "_options"  # see `_arithmetic`

    def __init__(self, stock: Any, x: Array, y: Array, options: dict[str, Any]) -> None:
        self._stock, self.x, self.y, self._options = stock, x, y, options

    def __call__(self, x: Array) -> Any:
        """Return the values at some points."""
        if is_written_down(self.y, x):
            return _recorded_splines.line_at(x, self.x if self._is_line() else None, self.y, is_from_left=True)
        refuse_numbers("`dagad.solvers.interp1d`", x)
        points = array_of(pytree.all_opened(x))
        if not is_anything_traced(self.x, self.y, points):
            return self._stock(x)
        self.check()
        return _interpolated(self.x, self.y, _kept(points), **self._options)

    def _is_line(self) -> bool:
        """Return whether these are straight lines between nodes that ascend, and nothing is said of what is beyond."""
        kind, fill = self._options["kind"], self._options["fill_value"]
        is_line = kind == "linear" and not isinstance(fill, str) and type(self.x) is np.ndarray
        return is_line and bool(np.all(np.diff(self.x) > 0.0))

    def check(self) -> None:
        """Refuse to differentiate another kind."""
        kind = self._options["kind"]
        if kind not in _KINDS:
            raise NotDifferentiableError(
                f"`interp1d` with `kind={kind!r}` is being differentiated. Use `dagad.solvers.CubicSpline`, which is "
                'the kind "cubic", or one of the kinds "linear", "previous", "next" and "nearest".'
            )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked by who copies it or unpickles it, before it is made
            raise AttributeError(name)
        return getattr(self._stock, name)


def _stock_interpolated(x: Array, y: Array, points: Array, **options: Any) -> Any:
    from scipy.interpolate import interp1d

    return interp1d(x, y, **options)(points)


def _definition(
    x: Array,
    y: Array,
    points: Array,
    kind: str,
    axis: int,
    copy: bool,
    bounds_error: bool | None,
    fill_value: Array,
    assume_sorted: bool,
) -> Any:
    """Return the values at some points, written with numpy; what is beyond the nodes is constant where it is filled."""
    del copy, bounds_error
    axis = axis % np.ndim(plain(y))
    y = anp.moveaxis(y, axis, 0)
    if not assume_sorted:
        order = np.argsort(plain(x), kind="mergesort")
        x, y = x[order], y[order]
    nodes, at = plain(x), np.ravel(plain(points))
    is_nan = np.isnan(at) & (kind in ("linear", "slinear"))  # the others take one of the nodes there too
    points = _splines.known(points, nodes[0]) if np.any(is_nan) else points
    if kind in ("linear", "slinear"):
        high = np.clip(np.searchsorted(nodes, at), 1, len(nodes) - 1)
        share = (anp.reshape(points, (-1,)) - x[high - 1]) / (x[high] - x[high - 1])
        found = y[high - 1] + _splines.along(share, y) * (y[high] - y[high - 1])
    else:
        found = y[_chosen(nodes, at, kind)]
    is_filled = np.zeros(len(at), bool)
    if not (isinstance(fill_value, str) and fill_value == "extrapolate"):
        is_filled = (at < nodes[0]) | (at > nodes[-1])
    elif kind in ("previous", "next"):  # nothing is before the first one, or after the last
        is_filled = at < nodes[0] if kind == "previous" else at > nodes[-1]
    is_lost = is_nan | _are_filled_with_nan(at, nodes, is_filled, fill_value)
    found = anp.where(_splines.along(is_filled & ~is_lost, y), 0.0, found)
    if np.any(is_lost):
        found = _splines.lost(found, _splines.along(is_lost, y))
    shape = np.shape(plain(points))
    found = anp.reshape(found, (*shape, *np.shape(plain(y))[1:]))
    return anp.moveaxis(found, list(range(len(shape))), list(range(axis, axis + len(shape)))) if axis else found


def _are_filled_with_nan(at: Array, nodes: Array, is_filled: Array, fill_value: Any) -> Any:
    """Return which points are beyond the nodes where nothing is filled in."""
    if isinstance(fill_value, str):
        return is_filled
    below, above = fill_value if isinstance(fill_value, tuple) and len(fill_value) == 2 else (fill_value, fill_value)
    is_nan = [np.ndim(fill) == 0 and np.isnan(fill) for fill in (below, above)]  # an array has entries of both kinds
    return is_filled & np.where(at < nodes[0], *is_nan)


def _chosen(nodes: Array, at: Array, kind: str) -> Any:
    """Return which node each point takes its value from."""
    if kind == "previous":
        index = np.searchsorted(nodes, at, "right") - 1
    elif kind == "next":
        index = np.searchsorted(nodes, at, "left")
    else:
        middle = nodes / 2.0
        index = np.searchsorted(middle[1:] + middle[:-1], at, "left" if kind == "nearest" else "right")
    return np.clip(index, 0, len(nodes) - 1)


_interpolated = _splines.primitive_of(_stock_interpolated, _definition)


@public
def interp1d(
    x: Array,
    y: Array,
    kind: str | int = "linear",
    axis: int = -1,
    copy: bool = True,
    bounds_error: bool | None = None,
    fill_value: Array = np.nan,
    assume_sorted: bool = False,
) -> Interpolated:
    """Interpolate data as `scipy.interpolate.interp1d` does, with derivatives.

    The values are scipy's own. Derivatives are those of the interpolant: in the data, in the nodes, and in the points
    at which it is called; at a node it is the one from the left.

    Parameters
    ----------
    x
        The nodes.
    y
        The data, along `axis`.
    kind
        "linear", "previous", "next", "nearest" or "nearest-up"; others for plain values only.
    axis
        Along which axis of `y` the nodes are.
    copy, bounds_error, fill_value, assume_sorted
        As scipy takes them; what is filled in has no derivative.

    Returns
    -------
    Interpolated
        What is called for values.

    Raises
    ------
    NotDifferentiableError
        If a derivative is asked for of another kind, or in `fill_value`.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.solvers import interp1d
    >>> def between(data):
    ...     return interp1d(np.array([0.0, 1.0, 2.0]), data)(1.25)
    >>> print(dagad.grad(between)(np.array([1.0, 4.0, 9.0])))
    [0.   0.75 0.25]
    """
    from scipy import interpolate

    refuse_numbers("`dagad.solvers.interp1d`", x, y, fill_value)
    x, y = map(_opened, (x, y))
    options = {
        "kind": kind,
        "axis": axis,
        "copy": copy,
        "bounds_error": bounds_error,
        "fill_value": fill_value,
        "assume_sorted": assume_sorted,
    }
    if is_anything_traced(fill_value):
        raise NotDifferentiableError(
            "A derivative in `fill_value` of `interp1d` was asked for. Leave it a plain number, and choose what is "
            "beyond the nodes by `np.where(x > end, value, inside)`."
        )
    stock = interpolate.interp1d(plain(x), _plain(y), **options)
    found = Interpolated(stock, _kept(x), _kept(y), options)
    if is_anything_traced(x, y):
        found.check()
    return found


def _kept(data: Tree) -> Any:
    """Return data, or points, as they are now: a loop may write each round's into one array."""
    return data if pytree.is_traced(data) else snapshot(np.asarray(data))
