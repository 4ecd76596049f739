"""Derivatives of solvers are those of the functions as they were at the value, though they run them later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import Bounds

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


# What else a solver is given: a loop writes each round's into one array


def with_buffers(body: Callable[..., Any], *buffers: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return a function of p that gives these arrays to `body`, and one that writes into them afterwards."""

    def clean(p: Any) -> Any:
        return body(p, *map(np.array, buffers))

    def dirty(p: Any) -> Any:
        own = [np.array(buffer) for buffer in buffers]
        found = body(p, *own)
        for buffer in own:
            buffer[...] = 0.5 * buffer + 0.3
        return found

    return clean, dirty


EXACT: Any = {"rtol": 1e-9, "atol": 1e-11}
NODES, DATA, INSIDE = np.arange(5.0), np.array([0.0, 1.0, 0.5, 2.0, 1.0]), np.array([0.4, 1.7])


def decay(p: Any, y0: Any, **options: Any) -> Any:
    return solvers.solve_ivp(lambda t, y: -p * y, (0.0, 1.0), y0, **(EXACT | options))


def halved(p: Any, step: float, **options: Any) -> Any:
    """Return the last state of a solution, after somebody has written into its times."""
    found = decay(p, [1.0], **options)
    found.t *= step
    return found.y[0, -1] + (found.sol(0.5)[0] if found.sol is not None else 0.0)


def fitted(p: Any, bounds: Any) -> Any:
    fun: Any = lambda x: np.stack([x[0] - p, x[1] - 3.0 * p, x[0] * x[1] - 1.0])  # noqa: E731  # an argument
    return np.sum(solvers.least_squares(fun, [0.5, 0.5], bounds=bounds, method="dogbox", xtol=1e-14).x ** 2)


def least(p: Any, bounds: Any) -> Any:
    fun: Any = lambda x: np.sum((x - np.array([1.0, 3.0]) * p) ** 2) + p * x[0] * x[1]  # noqa: E731  # an argument
    found = solvers.minimize(fun, np.full(2, 0.5), jac=dagad.grad(fun), bounds=bounds, tol=1e-12)
    return np.sum(found.x * np.array([1.0, 2.0]))


GIVEN: dict[str, Any] = {
    "state": (lambda p, y0: decay(p, y0).y[0, -1], [1.0]),
    "state, with all times": (lambda p, y0: decay(p, y0, sensitivity="adjoint", dense_output=True).sol(0.5)[0], [1.0]),
    "tolerances": (lambda p, atol: decay(p, [1.0], atol=atol, sensitivity="forward").y[0, -1], [1e-11]),
    "relative tolerances": (lambda p, rtol: decay(p, [1.0], rtol=rtol).y[0, -1], [1e-9]),
    "times of `sol`": (lambda p, t: np.sum(decay(p, [1.0], dense_output=True).sol(t)), [0.2, 0.5]),
    "state of odeint": (lambda p, y0: solvers.odeint(lambda y, t: -p * y, y0, TIMES)[-1, 0], [1.0]),
    "times of odeint": (lambda p, t: solvers.odeint(lambda y, t: -p * y, [1.0], t)[-1, 0], [0.0, 0.4, 1.0]),
    "bounds of least_squares": (lambda p, low, high: fitted(p, (low, high)), [0.0, 0.0], [5.0, 1.0]),
    "`Bounds` of least_squares": (lambda p, low, high: fitted(p, Bounds(low, high)), [0.0, 0.0], [5.0, 1.0]),
    "`Bounds` of minimize": (lambda p, low, high: least(p, Bounds(low, high)), [0.0, 0.0], [5.0, 1.0]),
}
for _make in (solvers.CubicSpline, solvers.PchipInterpolator, solvers.interp1d):
    _name = _make.__name__
    GIVEN[f"points of {_name}"] = lambda p, q, make=_make: np.sum(make(NODES, p * DATA)(q) ** 2), INSIDE
    GIVEN[f"nodes of {_name}"] = lambda p, x, make=_make: np.sum(make(x, p * DATA)(INSIDE) ** 2), NODES
    GIVEN[f"nodes of plain {_name}"] = lambda p, x, make=_make: np.sum(make(x, DATA)(p * INSIDE) ** 2), NODES
    GIVEN[f"data of {_name}"] = lambda p, y, make=_make: np.sum(make(p * NODES, y)(INSIDE) ** 2), DATA
for _make in (solvers.CubicSpline, solvers.PchipInterpolator):
    _name = _make.__name__
    GIVEN[f"nodes of an integral of {_name}"] = (
        lambda p, x, make=_make: np.sum(make(x, p * DATA).antiderivative()(INSIDE) ** 2),
        NODES,
    )
    GIVEN[f"limits of {_name}"] = lambda p, a, b, make=_make: make(NODES, p * DATA).integrate(a, b), 0.3, 1.6


@pytest.mark.parametrize("name", GIVEN)
def test_arrays_count_as_they_were_when_a_solver_was_given_them(name: str) -> None:
    clean, dirty = with_buffers(*GIVEN[name])
    for derivative in (dagad.grad, dagad.jacfwd, dagad.hessian):
        np.testing.assert_allclose(derivative(dirty)(0.7), derivative(clean)(0.7), rtol=1e-9)


@pytest.mark.parametrize("options", [{}, {"t_eval": [0.5, 1.0]}, {"dense_output": True}], ids=str)
@pytest.mark.parametrize("sensitivity", ["forward", "adjoint"])
def test_times_of_a_solution_are_the_users_own(sensitivity: str, options: dict[str, Any]) -> None:
    slope = dagad.grad(lambda p, step: halved(p, step, sensitivity=sensitivity, **options))
    assert slope(0.7, 1.0) == slope(0.7, 0.5)


def test_a_chunk_may_write_the_state_of_each_subject_into_one_array(scheduler: Any) -> None:
    def chunk(rows: Any, p: Any) -> Any:
        state, total = np.zeros(2), 0.0
        for dose in rows:
            state[0] = dose
            found = solvers.solve_ivp(
                lambda t, y: [-p * y[0], p * y[0] - 0.3 * y[1]], (0.0, 1.0), state, t_eval=[0.5, 1.0], **EXACT
            )
            total = total + np.sum(found.y[1] ** 2)
        return total

    rows = np.array([1.0, 2.0, 4.0])
    slope = dagad.grad(lambda p: dagad.reduce_sum(chunk, rows, p, grainsize=2, scheduler=scheduler))(0.7)
    assert slope == pytest.approx(11.0957, abs=1e-4)


def test_bounds_of_minimize_may_be_an_iterator() -> None:
    found = dagad.value_and_grad(lambda p: least(p, zip([0.0, 0.0], [5.0, 1.0], strict=True)))(0.7)
    assert found == dagad.value_and_grad(lambda p: least(p, [(0.0, 5.0), (0.0, 1.0)]))(0.7)


def test_attributes_lists_and_dicts_are_as_they_were_when_a_solver_ran() -> None:
    class Model:
        k = 1.0

    model, rates, options = Model(), [1.0], {"k": 1.0}

    def total(a: Any) -> Any:
        found: Any = 0.0
        for k in (1.0, 2.0):
            model.k, rates[0], options["k"] = k, k, k
            of: Any = lambda y: -a * model.k * rates[0] * options["k"] * y  # noqa: E731  # a right-hand side
            found = found + solvers.solve_ivp(lambda t, y, of=of: of(y), (0.0, 1.0), [1.0], **EXACT).y[0, -1]
        return found

    assert dagad.grad(total)(0.3) == pytest.approx(-np.exp(-0.3) - 8.0 * np.exp(-2.4), rel=1e-6)
