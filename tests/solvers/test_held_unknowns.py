"""Bounds of minima: is a minimum near to a bound differentiated as what it is, held or free?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import optimize

import dagad
from dagad.solvers import least_squares, minimize

TAKES = [dagad.grad, dagad.jacfwd]
TIMES = np.linspace(0.0, 1e6, 9)


def rate(r: Any) -> Any:
    """Return a rate of some 1e-6, whose bound is zero."""
    decay = lambda k: 1e3 * (np.exp(-k[0] * TIMES) - np.exp(-r * TIMES))  # noqa: E731  # of one line, as in its formula
    return least_squares(decay, np.array([2e-6]), x_scale=1e-6, bounds=(0, np.inf)).x[0]


@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize("r", [5e-7, 6e-7, 8e-7, 9e-7])
def test_a_small_rate_above_a_bound_of_zero_is_free(take: Any, r: float) -> None:
    assert take(rate)(r) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("take", TAKES)
def test_a_minimum_just_above_a_large_bound_is_free(take: Any) -> None:
    def found(a: Any) -> Any:
        steep = lambda x: 1e6 * np.sum((x - a) ** 2)  # noqa: E731  # of one line, as in its formula
        return minimize(steep, np.array([1010.0]), method="TNC", bounds=[(1000.0, 2000.0)]).x[0]

    assert take(found)(1000.0005) == pytest.approx(1.0)
    assert take(found)(999.0) == 0.0


def pair(a: Any) -> Any:
    return lambda x: (x[0] - a) ** 2 + (x[1] - 1.0 - x[0] - a) ** 2


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("side", [1.0, -1.0])
@pytest.mark.parametrize("method", ["L-BFGS-B", "TNC", "COBYQA"])
def test_unknowns_that_hang_together_are_free_or_held(method: str, side: float) -> None:
    """The first unknown wants to go to a, and the other one to 1 + 2 a; or each to minus that."""

    def found(a: Any) -> Any:
        bounds = [(0.0, None) if side > 0.0 else (None, 0.0), (None, None)]
        loss = lambda x: pair(a)(side * x)  # noqa: E731  # of one line, as in its formula
        gradient = {} if method == "COBYQA" else {"jac": dagad.grad(loss)}
        return side * minimize(loss, 0.5 * side * np.ones(2), method=method, bounds=bounds, tol=1e-9, **gradient).x

    np.testing.assert_allclose(dagad.jacfwd(found)(3e-4), [1.0, 2.0], rtol=1e-6)
    np.testing.assert_allclose(dagad.jacrev(found)(3e-7), [1.0, 2.0], rtol=1e-6)
    np.testing.assert_allclose(dagad.jacfwd(found)(-5e-4), [0.0, 1.0], atol=1e-6)


def test_a_minimum_that_ends_some_way_from_the_bound_that_holds_it_is_held_or_refused() -> None:
    def found(a: Any) -> Any:
        return minimize(pair(a), 0.5 * np.ones(2), method="trust-constr", bounds=[(0.0, None), (None, None)]).x

    np.testing.assert_allclose(dagad.jacfwd(found)(-1.0), [0.0, 1.0], atol=1e-6)
    assert found(-5e-4)[0] > 1e-3
    with pytest.raises(dagad.NotDifferentiableError, match=r"nobody can tell whether they hold it.*smaller tolerances"):
        dagad.jacfwd(found)(-5e-4)


def test_a_concave_function_is_held_by_its_bound() -> None:
    def found(b: Any) -> Any:
        loss = lambda x: -((x[0] + 1.0) ** 2) + (x[1] - x[0]) ** 2  # noqa: E731  # of one line, as in its formula
        return minimize(loss, np.array([0.5, 0.5]), method="Powell", bounds=[(0.0, b), (-5.0, 5.0)], tol=1e-9).x

    np.testing.assert_allclose(dagad.jacfwd(found)(2.0), [1.0, 1.0], atol=1e-6)


def test_one_of_many_unknowns_is_free_near_its_bound() -> None:
    n = 700
    target = np.linspace(-1.0, 1.0, n)
    target[n // 2] = 4e-4

    def total(s: Any) -> Any:
        loss = lambda x: np.sum((x - s * target) ** 2)  # noqa: E731  # of one line, as in its formula
        return np.sum(minimize(loss, np.full(n, 0.5), jac=dagad.grad(loss), bounds=[(0.0, 9.0)] * n).x)

    assert dagad.grad(total)(1.0) == pytest.approx(np.sum(np.maximum(target, 0.0)))


def test_bounds_made_of_traced_values_are_given_as_pairs() -> None:
    def found(home: Any, high: Any) -> Any:
        return home(lambda x: (x - 9.0) ** 2, np.zeros(1), bounds=optimize.Bounds(np.array([-5.0]), high))

    with pytest.raises(dagad.NotDifferentiableError, match=r"Give the bounds themselves: `bounds=\[\(low, high\)"):
        dagad.grad(lambda b: found(minimize, np.stack([b])).x[0])(1.0)
