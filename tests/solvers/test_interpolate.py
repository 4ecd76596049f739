"""Splines and linear interpolation: are values scipy's, and derivatives those of the interpolant?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest
import scipy.interpolate

import dagad
from dagad.solvers import CubicSpline, PchipInterpolator, _splines, interp1d
from dagad.testing import check_grads

X = np.array([0.0, 0.7, 1.1, 2.0, 2.6, 3.1])
Y = np.array([0.3, 1.2, 0.8, 0.9, 2.0, 2.4])
POINTS = np.array([[0.2, 1.0], [2.9, 1.7]])
BETWEEN = 0.4
ENDS: dict[str, Any] = {
    "not-a-knot": "not-a-knot",
    "natural": "natural",
    "clamped": "clamped",
    "slope and curvature": ((1, 0.3), (2, -0.4)),
    "one of each": ("not-a-knot", (1, 0.5)),
}


def close(found: Any, right: Any, within: float = 1e-6) -> None:
    np.testing.assert_allclose(found, right, rtol=within, atol=within)


def differences(fun: Callable[[Any], Any], x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    units = np.eye(x.size).reshape(-1, *x.shape)
    return np.stack([(fun(x + step * unit) - fun(x - step * unit)) / (2.0 * step) for unit in units], axis=-1)


@pytest.mark.each_value("each number of nodes with one way to end")
@pytest.mark.parametrize("n", [2, 3, 4, 6])
@pytest.mark.parametrize("ends", ENDS)
def test_cubic_splines_have_derivatives_in_data_nodes_and_points(ends: str, n: int) -> None:
    def values(x: Any, y: Any, points: Any, of: Any = CubicSpline) -> Any:
        return of(x, y, bc_type=ENDS[ends])(points)

    points = np.array([0.2, 0.5, 0.65])
    value = values(X[:n], Y[:n], points, scipy.interpolate.CubicSpline)
    np.testing.assert_array_equal(values(X[:n], Y[:n], points), value)
    np.testing.assert_array_equal(dagad.vjp(values, X[:n], Y[:n], points)[0], value)
    found = dagad.jacrev(values, (0, 1, 2))(X[:n], Y[:n], points)
    close(found[0], differences(lambda x: values(x, Y[:n], points), X[:n]))
    close(found[1], differences(lambda y: values(X[:n], y, points), Y[:n]))
    close(found[2], np.diag(scipy.interpolate.CubicSpline(X[:n], Y[:n], bc_type=ENDS[ends])(points, 1)))
    for one, other in zip(dagad.jacfwd(values, (0, 1, 2))(X[:n], Y[:n], points), found, strict=True):
        close(one, other, 1e-10)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_periodic_splines_have_derivatives_and_go_on_beyond_their_ends(n: int) -> None:
    def values(x: Any, y: Any) -> Any:
        whole = np.concatenate([y, y[:1]])
        return CubicSpline(x, whole, bc_type="periodic")(np.array([0.3, 3.9, -7.1]))

    x, y = X[:n], Y[: n - 1]
    stock = scipy.interpolate.CubicSpline(x, np.append(y, y[0]), bc_type="periodic")
    np.testing.assert_array_equal(dagad.vjp(values, x, y)[0], stock([0.3, 3.9, -7.1]))
    of_x, of_y = dagad.jacrev(values, (0, 1))(x, y)
    close(of_x, differences(lambda x: values(x, y), x))
    close(of_y, differences(lambda y: values(x, y), y))
    close(dagad.jacfwd(values)(x, y), of_x, 1e-10)


def test_prescribed_values_at_the_ends_have_derivatives() -> None:
    def at(ends: Any) -> Any:
        return CubicSpline(X, Y, bc_type=((1, ends[0]), (2, ends[1])))(BETWEEN)

    ends = np.array([0.2, -0.3])
    close(dagad.grad(at)(ends), differences(at, ends))


@pytest.mark.parametrize("make", [CubicSpline, PchipInterpolator])
def test_splines_of_several_data_have_scipys_axes(make: Any) -> None:
    data = np.stack([Y, Y[::-1] ** 2, np.sin(Y)])  # along the second axis
    stock = getattr(scipy.interpolate, make.__name__)(X, data, axis=1)
    for points in (POINTS, BETWEEN):
        value = dagad.vjp(lambda data: make(X, data, axis=1)(points), data)[0]  # noqa: B023  # called at once
        np.testing.assert_array_equal(value, stock(points))
    close(dagad.jacrev(lambda p: make(X, data, axis=1)(p))(BETWEEN), stock(BETWEEN, 1))
    weights = np.linspace(0.2, 1.0, 12).reshape(3, 2, 2)
    check_grads(lambda data, points: np.sum(weights * make(X, data, axis=1)(points) ** 2), data, POINTS, order=2)


@pytest.mark.parametrize("make", [CubicSpline, PchipInterpolator])
def test_derivatives_and_integrals_of_splines_are_differentiable(make: Any) -> None:
    stock = getattr(scipy.interpolate, make.__name__)(X, Y)

    def found(x: Any, y: Any) -> Any:
        spline = make(x, y)
        parts = [spline(BETWEEN, 1), spline.derivative()(BETWEEN), spline.derivative(2)(1.7), spline(1.7, nu=2)]
        parts += [spline.antiderivative()(2.9), spline.antiderivative(2)(2.9), spline.integrate(0.2, 2.9)]
        return np.stack(parts)

    value = [stock(BETWEEN, 1), stock.derivative()(BETWEEN), stock.derivative(2)(1.7), stock(1.7, 2)]
    value += [stock.antiderivative()(2.9), stock.antiderivative(2)(2.9), stock.integrate(0.2, 2.9)]
    np.testing.assert_array_equal(found(X, Y), value)
    np.testing.assert_array_equal(dagad.vjp(found, X, Y)[0], value)
    of_x, of_y = dagad.jacrev(found, (0, 1))(X, Y)
    close(of_x, differences(lambda x: found(x, Y), X), 1e-5)
    close(of_y, differences(lambda y: found(X, y), Y), 1e-5)
    limits = dagad.grad(lambda ends: make(X, Y).integrate(ends[0], ends[1]))(np.array([0.2, 2.9]))
    close(limits, [-stock(0.2), stock(2.9)], 1e-12)


def test_second_derivatives_in_data_and_points_are_those_of_the_spline() -> None:
    def at(v: Any) -> Any:
        return CubicSpline(X, v[:6])(v[6]) ** 2

    v = np.append(Y, BETWEEN)
    for outer in (dagad.jacfwd, dagad.jacrev):
        for inner in (dagad.jacfwd, dagad.jacrev):
            close(outer(inner(at))(v), differences(dagad.grad(at), v), 1e-5)
    stock = scipy.interpolate.CubicSpline(X, Y)
    third = dagad.jacfwd(dagad.jacfwd(dagad.grad(CubicSpline(X, Y))))(BETWEEN)
    assert third == pytest.approx(stock(BETWEEN, 3))


@pytest.mark.parametrize("n", [2, 3, 6])
def test_monotone_interpolants_have_derivatives_where_data_turn_and_where_they_do_not(n: int) -> None:
    def values(x: Any, y: Any, of: Any = PchipInterpolator) -> Any:
        return of(x, y)(POINTS)

    for y in (Y, np.sort(Y), np.array([0.0, 3.0, -0.1, 0.2, 0.1, 5.0])):
        np.testing.assert_array_equal(
            dagad.vjp(values, X[:n], y[:n])[0], values(X[:n], y[:n], scipy.interpolate.PchipInterpolator)
        )
        of_x, of_y = dagad.jacrev(values, (0, 1))(X[:n], y[:n])
        close(of_x, differences(lambda x: values(x, y[:n]), X[:n]), 1e-5)  # noqa: B023  # called at once
        close(of_y, differences(lambda y: values(X[:n], y), y[:n]), 1e-5)


KINDS = ["linear", "slinear", "previous", "next", "nearest", "nearest-up"]


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("fill_value", [(-1.0, 7.0), "extrapolate"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_interp1d_has_scipys_values_and_derivatives(kind: str, fill_value: Any) -> None:
    points = np.array([-0.5, 0.2, 1.0, 2.9, 3.3])

    def values(x: Any, y: Any, points: Any, of: Any = interp1d) -> Any:
        return of(x, y, kind=kind, bounds_error=False, fill_value=fill_value)(points)

    shuffled = np.array([3, 0, 5, 1, 4, 2])
    x, y = X[shuffled], Y[shuffled]
    stock = values(x, y, points, scipy.interpolate.interp1d)
    np.testing.assert_array_equal(values(x, y, points), stock)
    np.testing.assert_array_equal(dagad.vjp(values, x, y, points)[0], stock)
    known = np.isfinite(stock)
    found = dagad.jacrev(values, (0, 1, 2))(x, y, points)
    close(found[0][known], differences(lambda x: values(x, y, points), x)[known])
    close(found[1][known], differences(lambda y: values(x, y, points), y)[known])
    close(found[2][known], differences(lambda points: values(x, y, points), points)[known])
    table = np.stack([y, y**2])
    check_grads(lambda table, points: interp1d(x, table, kind)(points), table, np.array([0.2, 2.9]), order=2)


def test_splines_made_outside_are_differentiated_in_the_points(scheduler: Any) -> None:
    spline, line = CubicSpline(X, Y), interp1d(X, Y)

    def chunk(rows: Any, shift: Any) -> Any:
        return np.sum(spline(rows + shift) + line(rows + shift) ** 2)

    rows = np.linspace(0.1, 2.0, 7)
    slope = dagad.grad(lambda shift: dagad.reduce_sum(chunk, rows, shift, grainsize=3, scheduler=scheduler))(0.35)
    at = rows + 0.35
    steps = np.diff(Y) / np.diff(X)
    right = scipy.interpolate.CubicSpline(X, Y)(at, 1) + 2.0 * np.interp(at, X, Y) * steps[np.searchsorted(X, at) - 1]
    assert slope == pytest.approx(np.sum(right))


def test_splines_of_what_is_differentiated_go_into_chunks(scheduler: Any) -> None:
    rows = np.linspace(0.1, 3.0, 7)

    def total(y: Any) -> Any:
        spline = CubicSpline(X, y)
        return dagad.reduce_sum(lambda rows: np.sum(spline(rows) ** 2), rows, grainsize=3, scheduler=scheduler)

    stock = scipy.interpolate.CubicSpline(X, np.eye(6))(rows)
    close(dagad.grad(total)(Y), 2.0 * stock.T @ (stock @ Y), 1e-10)
    close(dagad.hessian(total)(Y), 2.0 * stock.T @ stock, 1e-10)


def test_splines_travel_and_have_what_scipys_have() -> None:
    spline = cloudpickle.loads(cloudpickle.dumps(CubicSpline(X, Y)))
    assert spline(BETWEEN) == scipy.interpolate.CubicSpline(X, Y)(BETWEEN)
    np.testing.assert_array_equal(spline.roots(), scipy.interpolate.CubicSpline(X, Y).roots())
    assert cloudpickle.loads(cloudpickle.dumps(interp1d(X, Y)))(BETWEEN) == np.interp(BETWEEN, X, Y)


def test_roots_of_splines_and_other_kinds_are_refused() -> None:
    with pytest.raises(dagad.NotDifferentiableError, match="a step of Newton's"):
        dagad.grad(lambda y: CubicSpline(X, y).roots()[0])(Y)
    with pytest.raises(dagad.NotDifferentiableError, match=r"Use `dagad.solvers.CubicSpline`"):
        dagad.grad(lambda y: interp1d(X, y, kind="cubic")(BETWEEN))(Y)
    with pytest.raises(dagad.NotDifferentiableError, match="Leave it a plain number"):
        dagad.grad(lambda fill: interp1d(X, Y, bounds_error=False, fill_value=fill)(9.0))(0.0)
    with pytest.raises(dagad.NotDifferentiableError, match="within the period"):
        dagad.grad(lambda b: CubicSpline(X, np.append(Y[:-1], Y[0]), bc_type="periodic").integrate(0.0, b))(9.0)
    with pytest.raises(ValueError, match="strictly increasing"):
        CubicSpline(X[::-1], Y)


def nans_of(jacobian: Any) -> Any:
    return np.isnan(jacobian).reshape(len(jacobian), -1).any(axis=1)


@pytest.mark.parametrize("extrapolate", [True, False])
@pytest.mark.parametrize("make", [CubicSpline, PchipInterpolator])
def test_splines_are_nan_in_their_derivatives_where_they_are_in_their_values(make: Any, extrapolate: bool) -> None:
    points = np.array([np.nan, -1.0, 0.3, 1.2, 9.0])

    def values(y: Any, points: Any) -> Any:
        return make(X, y, extrapolate=extrapolate)(points)

    is_nan = np.isnan(values(Y, points))
    right = differences(lambda y: values(y, points), Y)
    for jacobian in (dagad.jacfwd, dagad.jacrev):
        of_y, of_points = jacobian(values, (0, 1))(Y, points)
        np.testing.assert_array_equal(nans_of(of_y), is_nan)
        np.testing.assert_array_equal(np.isnan(np.diag(of_points)), is_nan)
        close(of_y[~is_nan], right[~is_nan], 1e-5)
    masked = dagad.grad(lambda y: np.sum(np.where(is_nan, 0.0, values(y, points))))(Y)
    close(masked, np.sum(right[~is_nan], axis=0), 1e-5)


def test_an_integral_beyond_the_ends_has_no_derivative_where_it_has_no_value() -> None:
    for derivative in (dagad.grad, dagad.jacfwd):
        assert np.isnan(derivative(lambda b: CubicSpline(X, Y, extrapolate=False).integrate(0.0, b))(5.0))


@pytest.mark.parametrize("fill_value", [np.nan, (np.nan, 3.0), (-1.0, np.nan), "extrapolate"])
@pytest.mark.parametrize("kind", KINDS)
def test_interp1d_is_nan_in_its_derivatives_where_it_is_in_its_values(kind: str, fill_value: Any) -> None:
    points = np.array([np.nan, -1.0, 0.3, 1.2, 9.0])

    def values(y: Any, points: Any) -> Any:
        return interp1d(X, y, kind=kind, bounds_error=False, fill_value=fill_value)(points)

    is_nan = np.isnan(values(Y, points))
    for jacobian in (dagad.jacfwd, dagad.jacrev):
        of_y, _ = jacobian(values, (0, 1))(Y, points)
        np.testing.assert_array_equal(nans_of(of_y), is_nan)
        close(of_y[~is_nan], differences(lambda y: values(y, points), Y)[~is_nan])
    if kind == "linear":
        assert np.isnan(dagad.grad(interp1d(X, Y))(np.nan))


@pytest.mark.parametrize("make", [CubicSpline, PchipInterpolator])
def test_integrals_of_integrals_and_their_derivatives_have_scipys_bits(make: Any) -> None:
    stock, points = getattr(scipy.interpolate, make.__name__)(X, Y), np.linspace(-0.5, 4.0, 50)
    for up in range(5):
        for down in range(6):
            found = dagad.vjp(lambda y, n=up, m=down: make(X, y).antiderivative(n).derivative(m)(points), Y)[0]
            np.testing.assert_array_equal(found, stock.antiderivative(up).derivative(down)(points))


# What a point gives is linear in the coefficients: its derivatives are those of the polynomials as they are written

WRITTEN = _splines.primitive_of(_splines._stock_value, _splines._value)
KNOTS = np.array([0.0, 0.7, 1.1, 2.5, 3.0])
ASKED: dict[str, Any] = {
    "a number": np.float64(0.9),
    "nodes": np.array([0.0, 0.7, 3.0, 1.3]),
    "beyond": np.array([[-0.4, 0.2], [3.3, 1.1]]),
    "nan": np.array([np.nan, 0.5]),
    "none": np.zeros(0),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("points", ASKED)
@pytest.mark.parametrize("extrapolate", [True, False, "periodic"])
@pytest.mark.parametrize("nu", [0, 1, 3])
@pytest.mark.parametrize(("trail", "axis"), [((), 0), ((2,), 0), ((2,), 1), ((2, 3), 1)])
def test_values_of_polynomials_have_the_derivatives_of_their_definition(
    trail: tuple[int, ...], axis: int, nu: int, extrapolate: Any, points: str
) -> None:
    c, at = np.sin(np.arange(1.0, 1.0 + 16 * math.prod(trail))).reshape(4, 4, *trail), ASKED[points]

    def values(of: Any, c: Any, at: Any) -> Any:
        return of(c, KNOTS, at, nu=nu, extrapolate=extrapolate, axis=axis)

    is_there = np.isfinite(values(_splines.value_at, c, at))

    def loss(of: Any, c: Any, at: Any) -> Any:
        return np.sum(np.where(is_there, values(of, c, at), 0.0) ** 2)

    modes: list[Any] = [
        lambda of: dagad.vjp(lambda c, at: values(of, c, at), c, at)[1](np.cos(values(of, c, at))),
        lambda of: dagad.jvp(lambda c, at: values(of, c, at), (c, at), (np.cos(c), np.cos(np.nan_to_num(at))))[1],
        lambda of: dagad.grad(lambda c, at: loss(of, c, at), (0, 1))(c, at),
        lambda of: dagad.hvp(lambda c, at: loss(of, c, at), (c, at), (np.cos(c), np.cos(np.nan_to_num(at)))),
        lambda of: dagad.jacfwd(lambda c: values(of, c, at))(c),
        lambda of: dagad.jacfwd(lambda at: values(of, c, at))(at),
    ]
    for mode in modes:
        for found, right in zip(flat(mode(_splines.value_at)), flat(mode(WRITTEN)), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-11, atol=1e-11)


def flat(tree: Any) -> list[Any]:
    return [leaf for part in tree for leaf in flat(part)] if isinstance(tree, tuple | list) else [tree]


@pytest.mark.parametrize("extrapolate", [True, False, "periodic"])
@pytest.mark.parametrize("of_many", [False, True])
def test_a_spline_that_fits_its_data_has_the_second_derivatives_of_squares(extrapolate: Any, of_many: bool) -> None:
    points = np.array([0.2, 1.7, 2.9]) if of_many else np.float64(1.7)
    plain = scipy.interpolate.CubicSpline(X, Y)
    exact = plain(points)

    def loss(y: Any, at: Any) -> Any:
        found = CubicSpline(X, y, bc_type="not-a-knot")(at, extrapolate=extrapolate)
        return 0.5 * np.sum((found - exact) ** 2)

    slopes = np.atleast_1d(plain(points, 1))
    close(dagad.hessian(lambda at: loss(Y, at))(points), np.diag(slopes**2) if of_many else slopes[0] ** 2, 1e-12)
    in_data = np.atleast_2d(dagad.jacfwd(lambda y: CubicSpline(X, y)(points))(Y))
    close(dagad.hessian(lambda y: loss(y, points))(Y), in_data.T @ in_data, 1e-12)
