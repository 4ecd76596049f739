"""Integrals: are derivatives in limits and parameters those of the integral, of any order, with scipy's values?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.integrate
from scipy.special import gamma, polygamma, psi

import dagad
from dagad.solvers import quad
from dagad.testing import check_grads

POINT = np.array([2.0, 1.3, -0.4])


def moment(v: Any) -> Any:
    width, end, start = v
    return quad(lambda x, width: x * np.exp(-0.5 * (x / width) ** 2), start, end, args=(width,))[0]


def exact(v: Any) -> Any:
    width, end, start = v
    return width**2 * (np.exp(-0.5 * (start / width) ** 2) - np.exp(-0.5 * (end / width) ** 2))


def test_limits_and_parameters_have_derivatives_of_any_order() -> None:
    value, gradient = dagad.value_and_grad(moment)(POINT)
    width, end, start = POINT
    stock = scipy.integrate.quad(lambda x, width: x * np.exp(-0.5 * (x / width) ** 2), start, end, args=(width,))
    assert value == moment(POINT) == stock[0]
    np.testing.assert_allclose(gradient, dagad.grad(exact)(POINT), atol=1e-12)
    np.testing.assert_allclose(dagad.jacfwd(moment)(POINT), gradient, atol=1e-12)
    hessian = dagad.hessian(exact)(POINT)
    for outer in (dagad.jacfwd, dagad.jacrev):
        for inner in (dagad.jacfwd, dagad.jacrev):
            np.testing.assert_allclose(outer(inner(moment))(POINT), hessian, atol=1e-12)
    third = dagad.jacfwd(dagad.hessian(exact))(POINT)
    np.testing.assert_allclose(dagad.jacfwd(dagad.hessian(moment))(POINT), third, atol=1e-11)


def test_infinite_limits_and_singular_integrands_have_derivatives() -> None:
    def by_integral(p: Any) -> Any:
        return quad(lambda x: x ** (p - 1.0) * np.exp(-x), 0.0, np.inf)[0]

    assert dagad.grad(by_integral)(2.5) == pytest.approx(gamma(2.5) * psi(2.5), rel=1e-8)
    curvature = gamma(2.5) * (psi(2.5) ** 2 + polygamma(1, 2.5))
    assert dagad.hessian(by_integral)(2.5) == pytest.approx(curvature, rel=1e-8)
    assert dagad.grad(lambda p: quad(lambda x: x ** (p - 1.0), 0.0, 1.0)[0])(0.5) == pytest.approx(-4.0)


@pytest.mark.parametrize("take", [dagad.grad, dagad.jacfwd])
def test_an_array_of_parameters_may_have_a_singular_upper_end(take: Any) -> None:
    def of(v: Any) -> Any:
        return quad(lambda x: v[0] * np.cos(v[1] * x) / np.sqrt(1.0 - x), 0.0, 1.0)[0]

    nodes = np.linspace(0.0, 1.0, 200_001)  # x = 1 - u^2
    x = 1.0 - nodes**2
    right = [np.trapezoid(2.0 * np.cos(x), nodes), np.trapezoid(-4.0 * x * np.sin(x), nodes)]
    np.testing.assert_allclose(take(of)(np.array([2.0, 1.0])), right, rtol=1e-7)


def test_an_array_in_the_closure_is_differentiated_at_once() -> None:
    weights, calls = np.linspace(0.1, 1.0, 30), [0]

    def polynomial(weights: Any) -> Any:
        def integrand(x: Any) -> Any:
            calls[0] += 1
            return np.sum(weights * x ** np.arange(30))

        return quad(integrand, 0.0, 1.0)[0]

    np.testing.assert_allclose(dagad.grad(polynomial)(weights), 1.0 / np.arange(1, 31), rtol=1e-8)
    assert calls[0] < 500  # not one integral for each
    np.testing.assert_allclose(dagad.jacfwd(polynomial)(weights), 1.0 / np.arange(1, 31), rtol=1e-8)


def test_edges_named_by_points_are_taken_into_account() -> None:
    slope = dagad.grad(lambda c: quad(lambda x: c**2 * np.abs(x - 0.3), 0.0, 1.0, points=[0.3])[0])(2.0)
    assert slope == pytest.approx(4.0 * (0.3**2 + 0.7**2) / 2.0)


@pytest.mark.parametrize("take", [dagad.grad, dagad.jacfwd])
def test_edges_named_by_points_count_with_limits_in_either_order(take: Any) -> None:
    def peak(v: Any, a: float, b: float) -> Any:
        return quad(lambda x: v[0] * np.exp(-(((x - 37.0) / v[1]) ** 2)), a, b, points=[36.9, 37.0, 37.1])[0]

    at, root_pi = np.array([2.0, 0.02]), np.sqrt(np.pi)
    right = [0.02 * root_pi, 2.0 * root_pi]
    np.testing.assert_allclose(take(lambda v: peak(v, 0.0, 100.0))(at), right, rtol=1e-7)
    np.testing.assert_allclose(take(lambda v: peak(v, 100.0, 0.0))(at), np.negative(right), rtol=1e-7)


def test_complex_integrands_have_derivatives() -> None:
    def real_part(p: Any) -> Any:
        return np.real(quad(lambda x: np.exp(1j * p * x), 0.0, 1.0, complex_func=True)[0])

    assert dagad.grad(real_part)(2.0) == pytest.approx((2.0 * np.cos(2.0) - np.sin(2.0)) / 4.0)


MODES: dict[str, Any] = {
    "grad": lambda fun: dagad.grad(fun),
    "jvp": lambda fun: lambda x: dagad.jvp(fun, (x,), (x,)),
    "hessian": lambda fun: dagad.hessian(fun),
}


@pytest.mark.parametrize("mode", MODES)
def test_integrals_in_chunks_have_the_same_bits_wherever_they_run(mode: str, scheduler: Any) -> None:
    ends = np.linspace(0.5, 3.0, 6)

    def chunk(rows: Any, rate: Any) -> Any:
        return sum(quad(lambda x: np.exp(-rate * x), 0.0, end)[0] for end in rows)

    def total(rate: Any, scheduler: Any = scheduler) -> Any:
        return dagad.reduce_sum(chunk, ends, rate, grainsize=2, scheduler=scheduler)

    there, here = MODES[mode](total)(0.7), MODES[mode](lambda rate: total(rate, "sync"))(0.7)
    right = MODES[mode](lambda rate: np.sum((1.0 - np.exp(-rate * ends)) / rate))(0.7)
    np.testing.assert_array_equal(there, here)
    np.testing.assert_allclose(there, right, rtol=1e-8)


def test_rows_may_be_limits() -> None:
    ends = np.array([0.5, 2.0])
    gradient = dagad.grad(
        lambda ends: dagad.map_sum(lambda end: quad(lambda x: np.exp(-x), 0.0, end)[0], ends, grainsize=1)
    )(ends)
    np.testing.assert_allclose(gradient, np.exp(-ends))
    check_grads(moment, POINT, order=2)


def test_plain_values_and_all_that_scipy_returns_are_scipys() -> None:
    def both(p: Any) -> Any:
        value, error, facts = quad(lambda x: np.cos(p * x), 0.0, 1.0, full_output=1)
        assert facts["neval"] == 21
        return value + 0.0 * error

    assert dagad.grad(both)(1.0) == pytest.approx(np.cos(1.0) - np.sin(1.0))
    assert quad(np.cos, 0.0, 1.0, weight="cos", wvar=2.0) == scipy.integrate.quad(
        np.cos, 0.0, 1.0, weight="cos", wvar=2.0
    )


# What is refused


def test_weights_points_and_divergent_integrals_are_refused() -> None:
    with pytest.raises(dagad.NotDifferentiableError, match="Write the weight into the integrand"):
        dagad.grad(lambda p: quad(lambda x: p * x, 0.0, 1.0, weight="cos", wvar=2.0)[0])(1.0)
    with pytest.raises(dagad.NotDifferentiableError, match="Split the interval there"):
        dagad.grad(lambda p: quad(lambda x: x, 0.0, 1.0, points=[p])[0])(0.5)
    with pytest.raises(dagad.NotDifferentiableError, match="Name the places"):
        dagad.grad(lambda p: quad(lambda x: p / x, 0.0, 1.0)[0])(0.5)


@pytest.mark.parametrize("option", ["epsabs", "epsrel", "wvar"])
def test_traced_tolerances_and_weights_are_refused_by_name(option: str) -> None:
    weight: Any = {"weight": "cos"} if option == "wvar" else {}
    with pytest.raises(dagad.NotDifferentiableError, match=rf"derivative in `{option}` of `quad`.*Give a plain number"):
        dagad.grad(lambda p: quad(lambda x: x, 0.0, 1.0, **{option: p}, **weight)[0])(1e-3)


def test_integrands_are_asked_where_scipy_asks_them() -> None:
    for derive in (dagad.grad, dagad.jacfwd, dagad.jacrev):
        assert derive(lambda p: quad(lambda x: p * (1 / x**2), -np.inf, -1.0)[0])(2.0) == pytest.approx(1.0)
        assert derive(lambda p: quad(lambda x: p * (1 / x**2), np.inf, 1.0)[0])(2.0) == pytest.approx(-1.0)
        singular = derive(lambda p: quad(lambda x: abs(x) ** -0.5 * p, -1.0, 1.0, points=[0.0])[0])(2.0)
        assert singular == pytest.approx(4.0)


def test_integrands_of_several_parameters_may_refuse_what_is_outside_of_their_domain() -> None:
    def integrand(x: float, p: Any) -> Any:
        if not 1.0 < x < np.inf:
            raise ValueError("outside")
        return p[0] / x**2 + p[1] / x**3

    for derive in (dagad.grad, dagad.jacfwd):
        slopes = derive(lambda p: quad(integrand, 1.0, np.inf, args=(p,))[0])(np.ones(2))
        assert slopes == pytest.approx(np.array([1.0, 0.5]))


def test_integrands_that_raise_everywhere_say_so_themselves() -> None:
    def integrand(x: float, p: Any) -> Any:
        if hasattr(p[0], "_trace"):  # the value is known by then
            raise KeyError("of the user's")
        return p[0] * x

    with pytest.raises(KeyError, match="of the user's"):
        dagad.grad(lambda p: quad(integrand, 0.0, 1.0, args=(p,))[0])(np.ones(2))
