"""Differential equations whose right-hand side has an infinite slope somewhere: is that told, in finite time?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dagad
from dagad.solvers import odeint, solve_ivp

pytestmark = [
    pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning"),
]
METHODS = ["RK45", "DOP853", "LSODA", "Radau", "BDF"]
TEXT = r"derivative of its right-hand side is not finite at t = .*write what has a finite slope there"


def tank(a: Any, **options: Any) -> Any:
    """Return what is in a tank that was empty, and runs dry by Torricelli's law."""
    return solve_ivp(lambda t, y: [-a * y[0], a * y[0] - np.sqrt(y[1])], (0.0, 1.0), [1.0, 0.0], **options).y[1, -1]


def drag(a: Any, **options: Any) -> Any:
    return solve_ivp(lambda t, y: -a * np.linalg.norm(y) * y, (0.0, 1.0), np.zeros(2), **options).y[1, -1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fun", [tank, drag])
def test_an_infinite_slope_is_refused_by_each_method(fun: Any, method: str) -> None:
    assert np.isfinite(fun(0.5, method=method))
    for take, sensitivity in ((dagad.grad, "forward"), (dagad.jacfwd, "forward"), (dagad.grad, "adjoint")):
        with pytest.raises(dagad.NotDifferentiableError, match=TEXT):
            take(lambda a, sensitivity=sensitivity: fun(a, method=method, sensitivity=sensitivity))(0.5)


@pytest.mark.parametrize("sensitivity", ["forward", "adjoint"])
def test_an_infinite_slope_is_refused_by_odeint(sensitivity: str) -> None:
    def level(a: Any) -> Any:
        right = lambda y, t: [-a * y[0], a * y[0] - np.sqrt(y[1])]  # noqa: E731  # of one line, as in its formula
        return odeint(right, [1.0, 0.0], [0.0, 1.0], sensitivity=sensitivity)[1, 1]

    with pytest.raises(dagad.NotDifferentiableError, match=TEXT):
        dagad.grad(level)(0.5)


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sensitivity", ["forward", "adjoint"])
def test_trials_of_a_step_may_meet_an_infinite_slope(method: str, sensitivity: str) -> None:
    def level(a: Any) -> Any:
        right = lambda t, y: -a * np.sqrt(np.maximum(y, 0.0))  # noqa: E731  # of one line, as in its formula
        options: Any = {"method": method, "sensitivity": sensitivity, "rtol": 1e-7, "atol": 1e-9}
        return solve_ivp(right, (0.0, 3.9), [1.0], **options).y[0, -1]  # dry at 4

    assert dagad.grad(level)(0.5) == pytest.approx(-3.9 * (1.0 - 0.975), rel=1e-3)
