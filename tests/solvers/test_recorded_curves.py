"""Curves of parameters within right-hand sides: are they part of the program, and have they the tracer's bits?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad
from dagad.solvers import CubicSpline, PchipInterpolator, interp1d, solve_ivp
from support.right_hand_sides import THETA, WIDE, Calls, followed, states


class Interpolating:
    """Curves of the parameters, made once, within the right-hand side."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def field(self, theta: Any) -> Any:
        curve = self._make(WIDE, np.stack([theta[0], 0.5 + theta[1] ** 2, theta[2], theta[0] * theta[1]]))
        known = self._make(WIDE, np.array([0.1, 0.5, 0.3, 0.2]))

        def field(t: Any, y: Any, p: Any) -> Any:
            return [-curve(t) * y[0] + known(y[1]), curve(y[0]) * known(t) - 0.1 * p[0] * y[1] * curve(2.5)]

        return field


def beyond(x: Any, y: Any) -> Any:
    return CubicSpline(x[:3], y[:3])


def kept_within(x: Any, y: Any) -> Any:
    return CubicSpline(x, y, extrapolate=False)


def of_slopes(x: Any, y: Any) -> Any:
    spline = CubicSpline(x, y, bc_type="natural")
    return lambda t: spline(t, 1) * spline(t, 2) - spline(t)


def in_columns(x: Any, y: Any) -> Any:
    spline = CubicSpline(x, np.stack([y, y**2], axis=1))
    return lambda t: spline(t)[0] - spline(t)[1]


def prescribed(x: Any, y: Any) -> Any:
    return CubicSpline(x, y[::-1], bc_type=((1, y[0]), (2, 0.3)))


def twice(x: Any, y: Any) -> Any:
    first, second = CubicSpline(x, y), PchipInterpolator(x, y)
    return lambda t: first(t) * second(t) + CubicSpline(x, y)(t)


def integrated(x: Any, y: Any) -> Any:
    return CubicSpline(x, y).antiderivative()


def at_moving_nodes(x: Any, y: Any) -> Any:
    return CubicSpline(x + 0.1 * y[0], y)


CURVES = [CubicSpline, PchipInterpolator, interp1d, beyond, kept_within, of_slopes]


CURVES_FOLLOWED = [in_columns, prescribed, twice, integrated, at_moving_nodes]


def interpolated(make: Callable[..., Any], theta: Any, method: str = "RK45", **options: Any) -> Any:
    return states(Interpolating(make).field(theta), theta, method, **options)


@pytest.mark.each_value("each kind of curve, by each method")
@pytest.mark.parametrize("method", ["RK45", "DOP853", "BDF"])
@pytest.mark.parametrize("make", [*CURVES, *CURVES_FOLLOWED])
def test_curves_of_parameters_in_a_program_have_the_bits_of_followed_ones(
    make: Callable[..., Any], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In few steps: the bits are asked for, not how accurate they are. But `interp1d` has no values beyond its nodes.
    goes_beyond = make is interp1d and method == "RK45"
    rough: dict[str, Any] = {} if goes_beyond else {"rtol": 0.1, "atol": 0.1}

    def end(theta: Any) -> Any:
        return interpolated(make, theta, method, is_short=make is twice, **rough)

    def derivatives() -> list[Any]:
        gradient = dagad.grad(lambda theta: np.sum(end(theta) ** 2))(THETA)
        jacobian = dagad.jacfwd(end)(THETA)
        hessian = dagad.hvp(lambda theta: np.sum(end(theta) ** 2), THETA, THETA)
        return [each.tobytes() for each in (gradient, jacobian, hessian)]

    found = derivatives()
    followed(monkeypatch)
    assert found == derivatives()


@pytest.mark.parametrize("make", CURVES)
def test_curves_of_parameters_are_followed_a_few_times_only(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch)
    dagad.jacfwd(lambda theta: interpolated(make, theta))(THETA)
    assert calls.followed < 8
    assert calls.by_program > 5 * calls.followed


@pytest.mark.parametrize("make", [*CURVES, *CURVES_FOLLOWED])
def test_derivatives_through_curves_of_parameters_are_right(make: Callable[..., Any]) -> None:
    def total(theta: Any) -> Any:
        tight: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12, "max_step": 0.1, "sensitivity": "forward"}
        start, field = np.stack([theta[0] * 1.9, 0.1 + 0.0 * theta[1]]), Interpolating(make).field(theta)
        # What is followed at each step takes long; it takes short steps where a node is passed.
        span = (0.51, 0.61) if make is twice else (0.0, 2.5)
        return np.sum(solve_ivp(field, span, start, "DOP853", args=(theta,), **tight).y[:, -1] ** 2)

    assert dagad.testing.taylor_rate(total, THETA) > 1.9


def test_a_curve_of_parameters_in_a_solver_within_a_right_hand_side_has_its_own_derivative() -> None:
    def end(theta: Any) -> Any:
        curve = CubicSpline(WIDE, np.stack([theta[0], 0.5 + theta[1] ** 2, theta[2], theta[0] * theta[1]]))

        def field(t: Any, y: Any) -> Any:
            inner = solve_ivp(lambda s, z: [-curve(s) * z[0] * y[0]], (0.0, 1.0), [1.0], rtol=1e-8, atol=1e-10)
            return [inner.y[0, -1] - y[0]]

        return solve_ivp(field, (0.0, 1.0), [1.0], rtol=1e-6, atol=1e-8).y[0, -1]

    slopes = [(end(THETA + step) - end(THETA - step)) / 2e-4 for step in 1e-4 * np.eye(3)]
    np.testing.assert_allclose(dagad.grad(end)(THETA), slopes, rtol=1e-4)
