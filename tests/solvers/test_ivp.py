"""Differential equations: are derivatives those of the solution, of any order, in every mode, with scipy's values?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.integrate
from scipy.linalg import expm, expm_frechet

import dagad
from dagad.solvers import solve_ivp

SENSITIVITIES = ["forward", "adjoint"]
METHODS = ["RK45", "RK23", "DOP853", "Radau", "BDF", "LSODA"]
TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-10}


def end_of_growth(v: Any, **options: Any) -> Any:
    """Return y at t1 of y' = -r t y, which is y0 at t0; the second state is twice as much."""
    rate, t0, t1, y0 = v
    found = solve_ivp(lambda t, y: -rate * t * y, (t0, t1), np.stack([y0, 2.0 * y0]), **TIGHT | options)
    return found.y[0, -1]


def exact_growth(v: Any) -> Any:
    rate, t0, t1, y0 = v
    return y0 * np.exp(-rate * (t1**2 - t0**2) / 2.0)


FORTH, BACK = np.array([0.5, 0.3, 1.2, 2.0]), np.array([0.5, 1.3, 0.2, 2.0])
# As exact as the methods are at these tolerances: those of several steps gather more.
WITHIN = {"BDF": 3e-6, "LSODA": 3e-6}


@pytest.mark.each_value("each method forth and back, by either kind of sensitivities")
@pytest.mark.parametrize("point", [FORTH, BACK], ids=["forth", "back"])
@pytest.mark.parametrize("sensitivity", SENSITIVITIES)
@pytest.mark.parametrize("method", METHODS)
def test_each_method_gives_derivatives_in_parameters_ends_and_states(
    method: str, sensitivity: str, point: np.ndarray
) -> None:
    def end(v: Any) -> Any:
        return end_of_growth(v, method=method, sensitivity=sensitivity, rtol=1e-9 if method != "RK23" else 1e-8)

    within: Any = {"rtol": WITHIN.get(method, 1e-7), "atol": WITHIN.get(method, 1e-7)}
    value, gradient = dagad.value_and_grad(end)(point)
    assert value == end(point)
    np.testing.assert_allclose(gradient, dagad.grad(exact_growth)(point), **within)
    np.testing.assert_allclose(dagad.jacfwd(end)(point), gradient, **within)
    hessian = dagad.hessian(exact_growth)(point)
    np.testing.assert_allclose(dagad.hessian(end)(point), hessian, rtol=1e-5, atol=1e-5)


@pytest.mark.each_value("a method of each kind is enough for each way of asking")
@pytest.mark.parametrize("asked", [{}, {"t_eval": [0.0, 0.7, 2.0]}, {"dense_output": True}, {"max_step": 0.1}])
@pytest.mark.parametrize("method", METHODS)
def test_values_have_scipys_bits_differentiated_or_not(method: str, asked: dict[str, Any]) -> None:
    def states(p: Any) -> Any:
        return solve_ivp(oscillator, (0.0, 2.0), [1.0, 0.0], method, args=(p[0], p[1]), **asked).y

    p = np.array([2.0, 0.3])
    stock = scipy.integrate.solve_ivp(oscillator, (0.0, 2.0), [1.0, 0.0], method, args=(2.0, 0.3), **asked)
    np.testing.assert_array_equal(states(p), stock.y)
    np.testing.assert_array_equal(dagad.vjp(states, p)[0], stock.y)
    np.testing.assert_array_equal(dagad.jvp(states, (p,), (p,))[0], stock.y)
    # also where the inner one of two derivatives is taken
    value, _ = dagad.jvp(lambda p: dagad.value_and_grad(lambda p: states(p)[0, -1])(p)[0], (p,), (p,))
    assert value == stock.y[0, -1]


def oscillator(t: Any, y: Any, stiffness: Any, friction: Any) -> Any:
    del t
    return [y[1], -stiffness * y[0] - friction * y[1]]


ORDERS: dict[str, list[Any]] = {
    "all reverse": [dagad.grad, dagad.grad, dagad.grad],
    "all forward": [dagad.jacfwd, dagad.jacfwd, dagad.jacfwd],
    "reverse inside forward": [dagad.jacfwd, dagad.grad, dagad.jacfwd],
    "forward inside reverse": [dagad.grad, dagad.jacfwd, dagad.grad],
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sensitivity", SENSITIVITIES)
def test_third_derivatives_in_each_order_of_modes_agree(sensitivity: str, order: str) -> None:
    def left(rate: Any) -> Any:
        return solve_ivp(lambda t, y: -rate * y, (0.0, 2.0), [3.0], sensitivity=sensitivity, **TIGHT).y[0, -1]

    outer, middle, inner = ORDERS[order]
    assert outer(middle(inner(left)))(0.5) == pytest.approx(-24.0 * np.exp(-1.0), rel=1e-7)


# Robertson's kinetics, and what CVODES prints of its sensitivities (examples cvsRoberts_FSA_dns, with rtol 1e-4, and
# cvsRoberts_ASAi_dns): time, states, and the derivative of each state in each of the three rates.
RATES = np.array([0.04, 1e4, 3e7])
PRINTED = {
    0.4: ([9.8517e-01, 3.3864e-05, 1.4794e-02], [-3.5595e-01, 9.5431e-08, -1.5833e-11], [3.9025e-04, -2.1309e-10]),
    40.0: ([7.1583e-01, 9.1856e-06, 2.8416e-01], [-4.2475e00, 1.3731e-05, -2.2883e-09], [4.5913e-05, -2.3573e-10]),
    4e5: ([4.9394e-03, 1.9854e-08, 9.9506e-01], [-2.3640e-01, 9.4530e-07, -1.5753e-10], [-4.5856e-07, 1.8331e-12]),
}


def robertson(t: Any, y: Any, rates: Any) -> Any:
    del t
    slow, reverse, fast = rates[0] * y[0], rates[1] * y[1] * y[2], rates[2] * y[1] ** 2
    return np.stack([reverse - slow, slow - reverse - fast, fast])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", ["BDF", "Radau", "LSODA"])
def test_robertsons_sensitivities_are_those_that_cvodes_prints(method: str) -> None:
    options: Any = {"method": method, "t_eval": list(PRINTED), "rtol": 1e-6, "atol": [1e-10, 1e-14, 1e-8]}

    def states(rates: Any) -> Any:
        return solve_ivp(robertson, (0.0, max(PRINTED)), [1.0, 0.0, 0.0], args=(rates,), **options).y

    value, jacobian = states(RATES), dagad.jacfwd(states)(RATES)
    for column, (printed, of_first, of_second) in enumerate(PRINTED.values()):
        np.testing.assert_allclose(value[:, column], printed, rtol=1e-3)
        np.testing.assert_allclose(jacobian[0, column], of_first, rtol=2e-3)
        np.testing.assert_allclose(jacobian[1, column, :2], of_second, rtol=2e-3)
        np.testing.assert_allclose(jacobian[:, column].sum(axis=0) * RATES, 0.0, atol=1e-5)  # no mass is lost


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", ["BDF", "Radau", "LSODA"])
def test_robertsons_adjoint_gives_what_cvodes_prints(method: str) -> None:
    def accumulated(v: Any) -> Any:  # the integral of y3 up to 50
        rates, start = v[:3], np.concatenate([v[3:], np.zeros(1)])
        options: Any = {"method": method, "rtol": 1e-7, "atol": 1e-11, "sensitivity": "adjoint"}
        field = lambda t, y: np.concatenate([robertson(t, y[:3], rates), y[2:3]])  # noqa: E731  # it carries rates
        return solve_ivp(field, (0.0, 50.0), start, t_eval=[50.0], **options).y[3, 0]

    gradient = dagad.grad(accumulated)(np.concatenate([RATES, [1.0, 0.0, 0.0]]))
    np.testing.assert_allclose(gradient[:3], [1.7341e02, -5.0591e-04, 8.4323e-08], rtol=2e-3)
    np.testing.assert_allclose(gradient[3:], [8.4191e00, 1.6097e01, 1.6097e01], rtol=2e-3)


def dosed(p: Any, **options: Any) -> Any:
    """Return what a short dose leaves, beside an oscillation for which the solution takes small steps."""

    def field(t: Any, y: Any) -> Any:
        rate = np.where((t > 5.0) & (t < 5.3), 1.0, 0.0)
        return np.stack([np.sum(p) * rate, 20.0 * y[2], -20.0 * y[1]])

    options = {"rtol": 1e-5, "atol": 1e-5} | options
    return solve_ivp(field, (0.0, 6.0), [0.0, 1.0, 0.0], **options).y[0, -1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", METHODS)
def test_an_adjoint_does_not_step_across_what_the_solution_has_looked_at(method: str) -> None:
    gradient = dagad.grad(lambda p: dosed(p, method=method, sensitivity="adjoint"))(np.array([2.0]))
    np.testing.assert_allclose(gradient, [0.3], rtol=1e-2)


def test_many_parameters_of_a_short_dose_have_their_derivatives() -> None:
    tight = {"rtol": 1e-7, "atol": 1e-7}
    gradient = dagad.grad(lambda p: dosed(p, **tight))(np.full(1500, 1e-3))  # by the adjoint, as there are so many
    np.testing.assert_allclose(gradient, np.full(1500, 0.3), rtol=1e-3)


@pytest.mark.parametrize("sensitivity", ["auto", *SENSITIVITIES])
def test_parameters_may_be_none(sensitivity: str) -> None:
    def end(z: Any) -> Any:
        field = lambda t, y, effects: -z[0] * y + np.sum(effects)  # noqa: E731  # it carries z
        return solve_ivp(field, (0.0, 2.0), [1.0], args=(z[1:],), sensitivity=sensitivity, **TIGHT).y[0, -1]

    for take in (dagad.grad, dagad.jacfwd):
        np.testing.assert_allclose(take(end)(np.array([0.7])), [-2.0 * np.exp(-1.4)], rtol=1e-6)


@pytest.mark.parametrize("sensitivity", SENSITIVITIES)
def test_a_hessian_is_the_one_that_cvodes_prints(sensitivity: str) -> None:
    def field(t: Any, y: Any, p: Any) -> Any:  # its example cvsHessian_ASA_FSA, the integral as a fourth state
        del t
        return [
            -p[0] * y[0] ** 2 - y[2],
            -y[1],
            -(p[1] ** 2) * y[1] * y[2],
            0.5 * (y[0] ** 2 + y[1] ** 2 + y[2] ** 2),
        ]

    def cost(p: Any) -> Any:
        start = np.array([1.0, 1.0, 1.0, 0.0])
        return solve_ivp(field, (0.0, 2.0), start, args=(p,), sensitivity=sensitivity, rtol=1e-7, atol=1e-8).y[3, -1]

    p = np.array([1.0, 2.0])
    (value, gradient), hessian = dagad.value_and_grad(cost)(p), dagad.hessian(cost)(p)
    assert value == pytest.approx(5.3088e-01, rel=1e-4)
    np.testing.assert_allclose(gradient, [-1.2838e-01, 1.8036e-02], rtol=1e-3)
    # its last entry, 0.11093, is not what its own differences of the cost say, and not what those of this gradient say
    np.testing.assert_allclose(hessian[0], [1.5628e-01, -7.8678e-02], rtol=2e-3)
    np.testing.assert_allclose(hessian[1, 0], -7.8678e-02, rtol=2e-3)
    before, after = (dagad.grad(cost)(p + np.array([0.0, step]))[1] for step in (-1e-3, 1e-3))
    assert hessian[1, 1] == pytest.approx((after - before) / 2e-3, rel=1e-4)


def compartments(p: Any) -> Any:
    return np.stack([np.stack([-p[0] - p[1], p[2]]), np.stack([p[1], -p[2]])])


@pytest.mark.parametrize("sensitivity", SENSITIVITIES)
@pytest.mark.parametrize("method", ["RK45", "LSODA"])
def test_two_compartments_move_as_their_matrix_exponential(method: str, sensitivity: str) -> None:
    p, times, start = np.array([0.3, 0.8, 0.5]), np.array([0.5, 1.0, 4.0]), np.array([10.0, 1.0])

    def amounts(p: Any, times: Any, start: Any) -> Any:
        matrix = compartments(p)
        options: Any = {"method": method, "t_eval": times, "sensitivity": sensitivity}
        return solve_ivp(lambda t, y: matrix @ y, (0.0, 5.0), start, **TIGHT | options).y.T

    value, (of_p, of_times, of_start) = amounts(p, times, start), dagad.jacrev(amounts, (0, 1, 2))(p, times, start)
    within: Any = {"rtol": 1e-6, "atol": 1e-6}
    for row, time in enumerate(times):
        np.testing.assert_allclose(value[row], expm(compartments(p) * time) @ start, **within)
        np.testing.assert_allclose(of_start[row], expm(compartments(p) * time), **within)
        np.testing.assert_allclose(of_times[row, :, row], compartments(p) @ value[row], **within)
        for number, unit in enumerate(np.eye(3)):
            slope = expm_frechet(compartments(p) * time, compartments(unit) * time, compute_expm=False) @ start
            np.testing.assert_allclose(of_p[row, :, number], slope, **within)
    assert np.all(of_times[0, :, 1:] == 0.0)


def test_an_orbit_of_kepler_closes_at_a_time_that_depends_on_its_energy() -> None:
    def kepler(t: Any, y: Any) -> Any:
        del t
        return np.concatenate([y[2:], -y[:2] / (y[0] ** 2 + y[1] ** 2) ** 1.5])

    def period(speed: Any) -> Any:  # by the vis-viva equation, the orbit begins at its apex, at the distance 1
        return 2.0 * np.pi * (2.0 - speed**2) ** -1.5

    def after_a_turn(speed: Any) -> Any:
        start = np.array([1.0, 0.0, 0.0, 1.0]) * np.stack([1.0, 1.0, 1.0, speed])
        return solve_ivp(kepler, (0.0, period(speed)), start, "DOP853", rtol=1e-12, atol=1e-12).y[:, -1]

    for order in range(3):  # it comes back to where it began, whatever its speed was
        derivative: Any = after_a_turn
        for _ in range(order):
            derivative = dagad.jacfwd(derivative)
        right: Any = [[1, 0, 0, 0.8], [0, 0, 0, 1], [0] * 4][order]
        np.testing.assert_allclose(derivative(0.8), right, atol=1e-7)
    np.testing.assert_allclose(dagad.jacrev(after_a_turn)(0.8), [0, 0, 0, 1], atol=1e-8)
