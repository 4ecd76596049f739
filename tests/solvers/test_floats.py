"""Sensitivities at some times by steps of floats: are they scipy's but for rounding, whatever is asked?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import integrate

import dagad
from dagad.solvers import _floats, solve_ivp

METHODS = ["RK23", "RK45", "DOP853"]
TIMES = [0.0, 0.4, 1.0, 1.1, 2.9, 3.0]
OPTIONS: dict[str, dict[str, Any]] = {
    "own steps": {},
    "short steps": {"max_step": 0.2},
    "rejected steps": {"first_step": 2.5, "rtol": 1e-7, "atol": np.array([1e-9, 1e-6, 1e-9])},
    "rough": {"rtol": np.array([1e-2, 1e-3, 1e-4])},
}


def swinging(t: Any, y: Any) -> Any:
    return np.array([y[1] * np.cos(t), -y[0] * y[2], y[0] * y[1] * np.sin(3 * t)])


class ByFloats:
    """Slopes as a program of floats, and as an array."""

    def __init__(self, fun: Callable[[Any, Any], Any]) -> None:
        self._fun, self.n_calls = fun, 0

    def __call__(self, t: Any, y: Any) -> Any:
        self.n_calls += 1
        return self._fun(t, y)

    def numbers(self, t: float, y: list[float]) -> list[float]:
        found: list[float] = self._fun(t, y).tolist()
        return found


def found_at(fun: Any, start: list[float], span: tuple[float, float], times: Any, **options: Any) -> Any:
    return _floats.at_times(fun, np.array(start), span, np.array(times), {"rtol": 1e-3, "atol": 1e-6, **options})


@pytest.mark.parametrize("is_backwards", [False, True], ids=["forth", "back"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("method", METHODS)
def test_numbers_at_times_are_scipys_but_for_rounding(method: str, options: dict[str, Any], is_backwards: bool) -> None:
    span, times = ((3.0, 0.0), TIMES[::-1]) if is_backwards else ((0.0, 3.0), TIMES)
    start = [1.0, 2.0, 0.5]
    expected = integrate.solve_ivp(swinging, span, start, method, times, **options)
    field = ByFloats(swinging)
    found = found_at(field, start, span, times, method=method, **options)
    np.testing.assert_allclose(found, expected.y, rtol=1e-8, atol=1e-9)
    assert field.n_calls <= 2 or method == "DOP853"  # which asks for more slopes between the ends of a step


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("start", [[0.0, 0.0, 0.0], [1e-9, 0.0, 0.0]], ids=["zero", "nearly"])
def test_the_first_step_from_where_nothing_moves_is_scipys(method: str, start: list[float]) -> None:
    expected = integrate.solve_ivp(swinging, (0.0, 3.0), start, method, [3.0])
    field = ByFloats(swinging)
    np.testing.assert_allclose(found_at(field, start, (0.0, 3.0), [3.0], method=method), expected.y, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [{"method": "Radau"}, {"method": "RK45", "rtol": 1e-15}, {"method": "RK45", "atol": 0.0}],
    ids=["implicit", "tolerance of which scipy warns", "no tolerance"],
)
def test_scipy_does_whatever_it_has_more_to_say_of(options: dict[str, Any]) -> None:
    assert found_at(ByFloats(swinging), [1.0, 2.0, 0.5], (0.0, 3.0), TIMES, **options) is None


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("method", METHODS)
def test_slopes_whose_squares_are_no_floats_are_left_to_scipy(method: str) -> None:
    def end(p: Any) -> Any:
        found = solve_ivp(lambda t, y: [1e200 * p * np.sin(t), y[0] * 1e-200], (1.0, 2.0), [1.0, 0.5], method, [2.0])
        return found.y[0, 0]

    assert dagad.jacfwd(end)(0.7) == pytest.approx(1e200 * (np.cos(1.0) - np.cos(2.0)), rel=1e-3)


def test_steps_that_become_too_small_are_refused_in_scipys_words() -> None:
    def end(rate: Any) -> Any:
        return solve_ivp(lambda t, y: [rate * y[0] ** 2], (0.0, 0.999), [1.0], rtol=1e-3).y[0, -1]

    def beyond(rate: Any) -> Any:
        found = solve_ivp(lambda t, y: [rate * y[0] * y[0]], (0.0, 1.5), [1.0])
        return found.y[0, -1]

    assert np.isfinite(dagad.grad(end)(0.5))
    with pytest.raises(dagad.NotDifferentiableError, match="could not integrate"):
        dagad.grad(beyond)(1.0)


@pytest.mark.parametrize("method", METHODS)
def test_derivatives_at_times_between_steps_are_those_of_closed_form(method: str) -> None:
    times = np.array([0.0, 0.3, 1.7, 1.8, 4.0])

    def curve(rate: Any) -> Any:
        return solve_ivp(lambda t, y: -rate * y, (0.0, 4.0), [3.0], method, times, rtol=1e-9, atol=1e-11).y[0]

    np.testing.assert_allclose(dagad.jacfwd(curve)(0.7), -3.0 * times * np.exp(-0.7 * times), rtol=1e-5, atol=1e-7)
    second = dagad.jacfwd(dagad.jacfwd(curve))(0.7)
    np.testing.assert_allclose(second, 3.0 * times**2 * np.exp(-0.7 * times), rtol=1e-4, atol=1e-6)
