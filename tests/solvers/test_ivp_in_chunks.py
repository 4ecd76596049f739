"""Differential equations in chunk functions and around reductions: the same bits in every mode, wherever they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd
import numpy as np
import pytest

import dagad
from dagad.solvers import odeint, solve_ivp

DOSES = np.array([10.0, 12.0, 8.0, 5.0])
TIMES = [np.array([0.5, 1.0, 4.0]), np.array([2.0]), np.zeros(0), np.array([0.25, 6.0])]
THETA = np.log(np.array([1.2, 0.3]))
AFTER = np.concatenate(TIMES)
OF = np.repeat(DOSES, [len(times) for times in TIMES])


def concentrations(subject: Any, theta: Any) -> Any:
    dose, times = subject
    ka, ke = np.exp(theta[0]), np.exp(theta[1])

    def flow(t: Any, y: Any) -> Any:
        del t
        return [-ka * y[0], ka * y[0] - ke * y[1]]

    return solve_ivp(flow, (0.0, 6.0), [dose, 0.0], t_eval=times, rtol=1e-5, atol=1e-7).y[1] if len(times) else times


def exact(theta: Any) -> Any:
    ka, ke = np.exp(theta[0]), np.exp(theta[1])
    return OF * ka / (ka - ke) * (np.exp(-ke * AFTER) - np.exp(-ka * AFTER))


def predicted(theta: Any, doses: Any = DOSES, scheduler: Any = None) -> Any:
    return dagad.map_rect(concentrations, (doses, TIMES), theta, grainsize=2, scheduler=scheduler)


def squared(rows: Any, theta: Any) -> Any:
    rate, power = theta
    y = odeint(lambda y, t: -rate * y**power, rows, np.array([0.0, 0.5, 1.0]))
    return np.sum(y[-1] ** 2)


ROWS = np.linspace(0.5, 2.0, 6)
LAW = np.array([0.4, 1.5])


def summed(theta: Any, rows: Any = ROWS, scheduler: Any = None) -> Any:
    return dagad.reduce_sum(squared, rows, theta, grainsize=3, scheduler=scheduler)


def exact_sum(theta: Any) -> Any:
    rate, power = theta
    return np.sum((ROWS ** (1.0 - power) + (power - 1.0) * rate) ** (2.0 / (1.0 - power)))


Mode = Callable[[Callable[..., Any], Any], Any]
MODES: dict[str, Mode] = {
    "value": lambda fun, x: fun(x),
    "grad": lambda fun, x: dagad.value_and_grad(fun)(x),
    "jvp": lambda fun, x: dagad.jvp(fun, (x,), (np.ones_like(x),)),
    "hvp": lambda fun, x: dagad.hvp(fun, (x,), (np.ones_like(x),)),
    "jacfwd": lambda fun, x: dagad.jacfwd(fun)(x),
    "jacrev": lambda fun, x: dagad.jacrev(fun)(x),
    "hessian": lambda fun, x: dagad.hessian(fun)(x),
}


def leaves(found: Any) -> list[Any]:
    return [leaf for part in found for leaf in leaves(part)] if isinstance(found, tuple | list) else [found]


@pytest.mark.parametrize("mode", MODES)
def test_a_sum_of_solutions_has_the_same_bits_in_every_mode_wherever_it_runs(mode: str, scheduler: Any) -> None:
    here = leaves(MODES[mode](lambda theta: summed(theta, scheduler="sync"), LAW))
    there = leaves(MODES[mode](lambda theta: summed(theta, scheduler=scheduler), LAW))
    right = leaves(MODES[mode](exact_sum, LAW))
    for one, other, known in zip(here, there, right, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, known, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["value", "jvp", "jacfwd", "jacrev"])
def test_a_map_of_subjects_has_the_same_bits_in_every_mode_wherever_it_runs(mode: str, scheduler: Any) -> None:
    here = leaves(MODES[mode](lambda theta: predicted(theta, scheduler="sync"), THETA))
    there = leaves(MODES[mode](lambda theta: predicted(theta, scheduler=scheduler), THETA))
    right = leaves(MODES[mode](exact, THETA))
    for one, other, known in zip(here, there, right, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, known, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["grad", "hvp"])
def test_rows_and_parameters_of_solutions_are_differentiated_together(mode: str, scheduler: Any) -> None:
    def together(v: Any) -> Any:
        return summed(v[:2], v[2:], scheduler)

    v = np.concatenate([LAW, ROWS])
    found = leaves(MODES[mode](together, v))
    right = leaves(MODES[mode](_exact_of_both, v))
    for one, known in zip(found, right, strict=True):
        np.testing.assert_allclose(one, known, rtol=1e-5, atol=1e-6)


def _exact_of_both(v: Any) -> Any:
    rate, power, rows = v[0], v[1], v[2:]
    return np.sum((rows ** (1.0 - power) + (power - 1.0) * rate) ** (2.0 / (1.0 - power)))


def test_items_that_are_differentiated_are_initial_states() -> None:
    gradient = dagad.grad(lambda doses: np.sum(predicted(THETA, doses)))(DOSES)
    parts = np.split(exact(THETA), np.cumsum([len(times) for times in TIMES])[:-1])
    np.testing.assert_allclose(
        gradient, [part.sum() / dose for part, dose in zip(parts, DOSES, strict=True)], rtol=1e-4
    )


def test_autograds_own_transforms_go_through_a_solution() -> None:
    def cost(theta: Any) -> Any:
        return autograd.numpy.sum(concentrations((DOSES[0], TIMES[0]), theta) ** 2)

    np.testing.assert_allclose(autograd.grad(cost)(THETA), dagad.grad(cost)(THETA), rtol=1e-12)
    np.testing.assert_allclose(autograd.hessian(cost)(THETA), dagad.hessian(cost)(THETA), rtol=1e-3, atol=1e-3)


def test_a_right_hand_side_may_be_a_reduction() -> None:
    masses = np.linspace(0.1, 0.5, 6)

    def end(scale: Any) -> Any:
        def pull(t: Any, y: Any) -> Any:
            return dagad.reduce_sum(lambda rows, y: -scale * y * np.sum(rows), masses, y, grainsize=3)

        return solve_ivp(pull, (0.0, 1.0), np.array([2.0]), rtol=1e-8, atol=1e-8).y[0, -1]

    rate = masses.sum()
    assert dagad.grad(end)(0.3) == pytest.approx(-2.0 * rate * np.exp(-0.3 * rate), rel=1e-6)
    assert dagad.grad(dagad.grad(end))(0.3) == pytest.approx(2.0 * rate**2 * np.exp(-0.3 * rate), rel=1e-6)


def test_a_right_hand_side_may_be_a_gradient() -> None:
    def energy(y: Any, k: Any) -> Any:  # Hamilton's equations of a harmonic oscillator
        return 0.5 * y[1] ** 2 + 0.5 * k * y[0] ** 2

    def place(k: Any) -> Any:
        def field(t: Any, y: Any) -> Any:
            slope = dagad.grad(energy)(y, k)
            return np.stack([slope[1], -slope[0]])

        return solve_ivp(field, (0.0, 1.0), np.array([1.0, 0.0]), rtol=1e-8, atol=1e-8).y[0, -1]

    root = np.sqrt(2.0)
    assert dagad.grad(place)(2.0) == pytest.approx(-np.sin(root) / (2.0 * root), rel=1e-6)
