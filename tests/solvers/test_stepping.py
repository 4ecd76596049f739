"""Steps of our own: have those of arrays scipy's bits, and do those of floats what scipy's do?"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import integrate

import dagad
from dagad.solvers import _stepping, solve_ivp

METHODS = ["RK23", "RK45", "DOP853"]
OPTIONS: dict[str, dict[str, Any]] = {
    "own steps": {},
    "times": {"t_eval": [0.4, 1.0, 2.9]},
    "backwards": {"t_span": (3.0, 0.5)},
    "as a function": {"dense_output": True},
    "short steps": {"max_step": 0.2},
    "rejected steps": {"first_step": 2.5, "rtol": 1e-7, "atol": [1e-9, 1e-6, 1e-9]},
}


def swinging(t: Any, y: Any) -> Any:
    return [y[1] * np.cos(t), -y[0] * y[2], y[0] * y[1] * np.sin(3 * t)]


class Seen:
    """A right-hand side that notes what it is given."""

    def __init__(self, fun: Callable[[Any, Any], Any]) -> None:
        self._fun, self.calls = fun, list[tuple[Any, ...]]()

    def __call__(self, t: Any, y: Any) -> Any:
        self.calls.append((type(t), float(t), type(y), y.tobytes()))
        return self._fun(t, y)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("method", METHODS)
def test_steps_of_arrays_call_the_function_as_scipy_does_and_have_its_bits(
    method: str, options: dict[str, Any]
) -> None:
    assert _stepping.quick(method) is not getattr(integrate, method)  # else scipy has other formulas by now
    arguments: dict[str, Any] = {"t_span": (0.0, 3.0), "y0": [1.0, 2.0, 0.5], **options}
    stock, ours = Seen(swinging), Seen(swinging)
    expected = integrate.solve_ivp(stock, method=method, **arguments)
    found = integrate.solve_ivp(ours, method=_stepping.quick(method), **arguments)
    assert stock.calls == ours.calls
    assert [found.t.tobytes(), found.y.tobytes()] == [expected.t.tobytes(), expected.y.tobytes()]
    assert [found.nfev, found.message, found.status] == [expected.nfev, expected.message, expected.status]
    if expected.sol is not None:
        assert found.sol(1.7).tobytes() == expected.sol(1.7).tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_steps_of_complex_states_are_scipys(method: str) -> None:
    expected, found = (
        integrate.solve_ivp(lambda t, y: 1j * t * y, (0.0, 3.0), [1.0 + 0.5j, 2j], method=each)
        for each in (method, _stepping.quick(method))
    )
    assert found.y.tobytes() == expected.y.tobytes()


def test_other_formulas_of_scipys_are_left_to_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stepping, "_KNOWN", frozenset())
    _stepping._is_known.cache_clear()
    _stepping._of_arrays.cache_clear()
    try:
        assert _stepping.quick("RK45") is integrate.RK45
    finally:
        _stepping._is_known.cache_clear()
        _stepping._of_arrays.cache_clear()


@pytest.mark.parametrize("method", ["Radau", "LSODA", integrate.RK45])
def test_other_methods_and_classes_of_the_users_stay_as_they_are(method: Any) -> None:
    assert _stepping.quick(method) is method


class ByFloats:
    """Slopes as a program of floats, and as an array where that is not known."""

    def __init__(self, fun: Callable[[Any, Any], Any], least: float = -np.inf) -> None:
        self._fun, self._least = fun, least

    def __call__(self, t: Any, y: Any) -> Any:
        return self._fun(t, y)

    def numbers(self, t: float, y: list[float]) -> list[float]:
        if t < self._least:
            raise ValueError("ask an array")
        return [float(each) for each in self._fun(t, y)]


@pytest.mark.parametrize("least", [-np.inf, 1.5, np.inf], ids=["floats", "arrays first", "arrays"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("method", METHODS)
def test_steps_of_floats_are_scipys_but_for_rounding(method: str, options: dict[str, Any], least: float) -> None:
    arguments: dict[str, Any] = {"t_span": (0.0, 3.0), "y0": np.array([1.0, 2.0, 0.5]), **options}
    field = ByFloats(swinging, least)
    expected = integrate.solve_ivp(swinging, method=method, **arguments)
    found = integrate.solve_ivp(field, **(arguments | _stepping.stepped(method, arguments["y0"], field)))
    np.testing.assert_allclose(found.t, expected.t, rtol=1e-8)
    np.testing.assert_allclose(found.y, expected.y, rtol=1e-8, atol=1e-9)
    if expected.sol is not None:
        np.testing.assert_allclose(found.sol(1.7), expected.sol(1.7), rtol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_a_state_without_tolerance_is_met_as_scipy_meets_it(method: str) -> None:
    def solved(**options: Any) -> Any:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            found = integrate.solve_ivp(field, (0.0, 1.0), start, atol=[1e-6, 0.0], first_step=0.1, **options)
        return {str(each.message) for each in seen}, found

    start, field = np.array([1.0, 0.0]), ByFloats(lambda t, y: [-y[0], 0.0 * y[1]])
    (stock, expected), (ours, found) = solved(method=method), solved(**_stepping.stepped(method, start, field))
    assert ours == stock
    assert found.message == expected.message


@pytest.mark.parametrize("method", METHODS)
def test_sensitivities_by_floats_are_those_of_closed_form(method: str) -> None:
    def end(theta: Any) -> Any:
        flow = lambda t, y: [-theta[0] * y[0], theta[0] * y[0] - theta[1] * y[1]]  # noqa: E731  # it carries the rates
        return solve_ivp(flow, (0.0, 4.0), [10.0, 0.0], method, rtol=1e-10, atol=1e-12).y[1, -1]

    def known(theta: Any) -> Any:
        up, down = theta[0], theta[1]
        return 10.0 * up / (up - down) * (np.exp(-4.0 * down) - np.exp(-4.0 * up))

    theta = np.array([1.2, 0.3])
    np.testing.assert_allclose(dagad.grad(end)(theta), dagad.grad(known)(theta), rtol=1e-7)
    np.testing.assert_allclose(dagad.hessian(end)(theta), dagad.hessian(known)(theta), rtol=1e-6)
