"""Derivatives of solvers are those of the functions as they were at the value, though they run them later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad
from dagad import solvers
from dagad.testing import check_grads

Solve = Callable[[Callable[[], Any], Any], Any]

TIMES = np.array([0.0, 1.0])
SOLVED: dict[str, Solve] = {
    "quad": lambda f, a: solvers.quad(lambda x: np.sin(f() * a * x), 0.0, 1.0)[0],
    "quad_args": lambda f, a: solvers.quad(lambda x, a: np.sin(f() * a * x), 0.0, 1.0, args=(a,))[0],
    "solve_ivp": lambda f, a: solvers.solve_ivp(lambda t, y: -f() * a * y, (0.0, 1.0), [1.0], atol=1e-6).y[0, -1],
    "odeint": lambda f, a: solvers.odeint(lambda y, t: -f() * a * y, [1.0], TIMES)[-1, 0],
    "root_scalar": lambda f, a: solvers.root_scalar(lambda x: (x - 0.7) - f() * (a - 0.7), bracket=(-5.0, 5.0)).root,
    "minimize": lambda f, a: solvers.minimize(lambda x: np.sum((x - f() * a) ** 2), np.zeros(1)).x[0],
    "implicit": lambda f, a: solvers.implicit(lambda a: f() * a, lambda x, a: x**3 - (f() * a) ** 3)(a),
}


def by_variable(solve: Solve) -> Any:
    def fun(a: Any) -> Any:
        total: Any = 0.0
        for k in (1.0, 2.0, 3.0):
            total = total + solve(lambda: k, a)  # noqa: B023  # the loop goes on before the pullback runs
        return total

    return fun


def by_buffer(solve: Solve) -> Any:
    def fun(a: Any) -> Any:
        buffer, total = np.zeros(1), 0.0
        for k in (1.0, 2.0, 3.0):
            buffer[0] = k
            total = total + solve(lambda: buffer[0], a)
        return total

    return fun


@pytest.mark.parametrize("how", [by_variable, by_buffer])
@pytest.mark.parametrize("name", SOLVED)
def test_a_solver_in_a_loop_is_pulled_as_each_round_solved_it(name: str, how: Any) -> None:
    fun = how(SOLVED[name])
    check_grads(fun, 0.7, modes=("rev",), tolerance=1e-4)


def test_an_interpolant_is_of_the_data_it_was_made_of() -> None:
    x, y = np.arange(4.0), np.arange(4.0) ** 2
    spline = solvers.interp1d(x, y)
    y[:] = 0.0
    value, slope = dagad.value_and_grad(spline)(1.25)
    assert (value, slope) == (spline(1.25), 3.0)
