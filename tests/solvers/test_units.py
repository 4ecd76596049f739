"""Unknowns and equations of different units: is what is well posed differentiated, and what is singular refused?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad
from dagad.solvers import implicit, least_squares

UNITS = {"large and small": np.array([1e9, 1e-9]), "a fit": np.array([1e6, 1e-4]), "alike": np.array([3.0, 2.0])}


@pytest.mark.parametrize("units", UNITS)
def test_unknowns_may_have_units_of_their_own(units: str) -> None:
    size = UNITS[units]
    coupled = np.array([[2.0, 1.0], [0.5, -1.0]])

    def of(a: Any) -> Any:
        def solve(a: Any) -> Any:
            return size * np.linalg.solve(coupled, np.array([a, a**2]))

        return implicit(solve, lambda x, a: (coupled @ (x / size) - np.stack([a, a**2])) / size)(a)

    slope = size * np.linalg.solve(coupled, np.array([1.0, 3.0]))
    for derive in (dagad.jacfwd, dagad.jacrev):
        assert derive(of)(1.5) == pytest.approx(slope, rel=1e-9)
    bend = size * np.linalg.solve(coupled, np.array([0.0, 2.0]))
    assert dagad.jacfwd(dagad.jacrev(of))(1.5) == pytest.approx(bend, rel=1e-9)


SINGULAR: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "no equation": ([1.5, 0.7], lambda x, a: np.stack([x[0] - a, np.sin(x[1]) ** 2 + np.cos(x[1]) ** 2 - 1.0])),
    "what rounding leaves": ([1.5, 0.7], lambda x, a: np.stack([x[0] - a, x[1] * 3.3 / (x[1] * 1.1) - 3.0])),
    "twice the same": ([1e9, 1e-9], lambda x, a: np.array([1.0, 1e6]) * (x[0] / 1e9 + x[1] * 1e9 - 4.0 * a / 3.0)),
    "a multiple root": ([1.5, 1e-17], lambda x, a: np.stack([x[0] - a, x[1] ** 2])),
    "a multiple root, nearer": ([1.5, 1e-30], lambda x, a: np.stack([x[0] - a, x[1] ** 2])),
}


@pytest.mark.parametrize("case", SINGULAR)
def test_systems_that_are_singular_in_any_units_are_refused(case: str) -> None:
    at, equations = SINGULAR[case]
    for derive in (dagad.jacfwd, dagad.jacrev):
        with pytest.raises(dagad.NotDifferentiableError, match="has no derivative"):
            derive(implicit(lambda a: np.array(at), equations))(1.5)


def test_small_unknowns_that_are_no_solution_are_refused() -> None:
    def equations(x: Any, a: Any) -> Any:  # the second is a part of the first in the units of both
        return np.stack([x[0] / 1e9 + x[1] * 1e9 - 2.0 * a, x[0] / 1e9 - x[1] * 1e9])

    right, wrong = (implicit(lambda a, by=by: np.array([1e9 * a, by * 1e-9 * a]), equations) for by in (1.0, 1.1))
    assert dagad.jacfwd(right)(1.5) == pytest.approx(np.array([1e9, 1e-9]))
    with pytest.raises(dagad.NotDifferentiableError, match="no solution of the equations"):
        dagad.jacfwd(wrong)(1.5)


def test_fits_of_large_amplitudes_and_small_rates_have_derivatives() -> None:
    times = np.linspace(0.0, 1e5, 20)

    def fit(a: Any, **options: Any) -> Any:
        def misfit(x: Any) -> Any:
            data = 3e5 * np.exp(-2e-5 * times) * (1.0 + a * np.sin(times))
            return (x[0] * np.exp(-x[1] * times) - data) / 1e5

        return least_squares(misfit, [2e5, 1e-5], xtol=1e-15, ftol=1e-15, gtol=1e-15, **options).x

    for scale in ([1e5, 1e-5], "jac"):
        slope = (fit(0.01 + 1e-4, x_scale=scale) - fit(0.01 - 1e-4, x_scale=scale)) / 2e-4
        for derive in (dagad.jacfwd, dagad.jacrev):
            found = derive(lambda a, scale=scale: fit(a, x_scale=scale))(0.01)
            assert found == pytest.approx(slope, rel=1e-2)
