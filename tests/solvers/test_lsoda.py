"""Sensitivities by LSODA, whose steps are one call of scipy's: those of other methods? Where are there none?"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
import scipy.integrate

import dagad
from dagad._executors.member import current_member
from dagad.solvers import odeint, solve_ivp

TIGHT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-11}
RATES = np.array([0.9, 0.2, 0.1, 0.7])

in_one_call = pytest.mark.skipif(
    hasattr(scipy.integrate._ode, "LSODA_LOCK"),
    reason="before scipy 1.17 an equation within an equation waits for ever",
)


def in_arrays(t: Any, y: Any, p: Any) -> Any:
    return np.stack([p[0], -p[3]]) * y + np.stack([-p[1], p[2]]) * y[0] * y[1] + 0.1 * np.sin(t)


def in_lists(t: Any, y: Any, p: Any) -> Any:
    both = y[0] * y[1]
    push = 0.1 * np.sin(t)
    return [p[0] * y[0] - p[1] * both + push, p[2] * both - p[3] * y[1] + push]


def in_matrices(t: Any, y: Any, p: Any) -> Any:  # followed by the tracer
    return np.reshape(np.concatenate([p, p[:0]]), (2, 2)) @ np.tanh(y) - y**3 + 0.1 * np.sin(t) * np.linalg.norm(y)


def in_branches(t: Any, y: Any, p: Any) -> Any:
    fast = p[0] if y[0] > y[1] else p[3]
    return [-fast * (y[0] - y[1]) ** 3 * p[1], p[2] * y[0] - y[1]]


SPANS: dict[str, Any] = {
    "ends": [2.0],
    "first": [0.0, 0.5, 2.0],
    "twice": [0.0, 0.0, 1.0, 1.0, 2.0],
    "soon": [1e-15, 1.0],
}


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("times", SPANS.values(), ids=SPANS)
@pytest.mark.parametrize("options", [{}, {"max_step": 0.05}, {"first_step": 1e-3}, {"min_step": 1e-12}], ids=str)
@pytest.mark.parametrize("fun", [in_arrays, in_lists, in_matrices, in_branches])
def test_sensitivities_by_lsoda_are_those_of_other_methods(fun: Any, options: dict[str, Any], times: Any) -> None:
    def states(p: Any, method: str, **options: Any) -> Any:
        start = np.stack([1.0 + p[0], p[1]])
        times_in_order = np.unique(times)  # as `solve_ivp` has them
        found = solve_ivp(fun, (0.0, times[-1]), start, method, times_in_order, args=(p,), **TIGHT, **options).y
        return found[:, np.searchsorted(times_in_order, times)]

    def by_odeint(p: Any) -> Any:
        where = times if times[0] == 0.0 else [0.0, *times]
        own = {"max_step": "hmax", "min_step": "hmin", "first_step": "h0"}
        steps = {own[name]: value for name, value in options.items()}
        found = odeint(lambda y, t: fun(t, y, p), np.stack([1.0 + p[0], p[1]]), np.array(where), **steps, **TIGHT)
        return found[len(where) - len(times) :].T

    expected = dagad.jacfwd(lambda p: states(p, "DOP853"))(RATES)
    ways: list[Any] = [lambda p: states(p, "LSODA", **options), by_odeint]
    for way in ways:
        np.testing.assert_allclose(dagad.jacfwd(way)(RATES), expected, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(dagad.jacrev(way)(RATES), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("way", ["odeint", "solve_ivp"])
def test_second_derivatives_by_lsoda_are_those_of_other_methods(way: str) -> None:
    def end(p: Any, method: str = "LSODA") -> Any:
        if way == "odeint" and method == "LSODA":
            return np.sum(odeint(in_lists, [1.0, 0.5], [0.0, 2.0], (p,), tfirst=True, **TIGHT)[-1])
        return np.sum(solve_ivp(in_lists, (0.0, 2.0), [1.0, 0.5], method, args=(p,), **TIGHT).y[:, -1])

    expected = dagad.hessian(lambda p: end(p, "DOP853"))(RATES)
    np.testing.assert_allclose(dagad.hessian(end)(RATES), expected, rtol=1e-5, atol=1e-7)


def oscillator(t: Any, y: Any, mu: Any) -> Any:
    return [y[1], mu * (1.0 - y[0] ** 2) * y[1] - y[0]]


def test_stiff_sensitivities_by_lsoda_are_those_of_other_methods() -> None:
    def end(mu: Any, method: str) -> Any:
        return solve_ivp(oscillator, (0.0, 300.0), [2.0, 0.0], method, args=(mu,), rtol=1e-9, atol=1e-10).y[0, -1]

    expected = dagad.grad(lambda mu: end(mu, "Radau"))(1000.0)
    assert dagad.grad(lambda mu: end(mu, "LSODA"))(1000.0) == pytest.approx(expected, rel=1e-5)


@in_one_call
@pytest.mark.parametrize("fun", [in_lists, in_matrices])
def test_sensitivities_of_odeint_have_no_python_around_a_step(monkeypatch: pytest.MonkeyPatch, fun: Any) -> None:
    def end(p: Any) -> Any:
        return np.sum(odeint(fun, [1.0, 0.5], [0.0, 2.0], (p,), tfirst=True)[-1])

    expected = dagad.grad(end)(RATES)

    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("there are steps in Python")

    monkeypatch.setattr(scipy.integrate, "solve_ivp", never)
    np.testing.assert_array_equal(dagad.grad(end)(RATES), expected)
    dagad.hessian(end)(RATES)


def test_sensitivities_by_lsoda_ask_for_nothing_beyond_the_end() -> None:
    def until(t: Any, y: Any, k: Any) -> Any:
        assert 0.0 <= t <= 1.5
        return [-k * y[0]]

    found = dagad.grad(lambda k: solve_ivp(until, (0.0, 1.5), [3.0], "LSODA", args=(k,), **TIGHT).y[0, -1])(0.5)
    assert found == pytest.approx(-4.5 * np.exp(-0.75), rel=1e-7)


@pytest.mark.parametrize("way", ["odeint", "solve_ivp"])
def test_sensitivities_by_lsoda_go_back_in_time(way: str) -> None:
    def end(k: Any) -> Any:
        if way == "odeint":
            return odeint(lambda y, t: -k * y, 3.0, [1.0, 0.5, -1.0], **TIGHT)[-1, 0]
        return solve_ivp(lambda t, y: -k * y, (1.0, -1.0), [3.0], "LSODA", **TIGHT).y[0, -1]

    assert dagad.grad(end)(0.5) == pytest.approx(6.0 * np.exp(1.0), rel=1e-7)


@pytest.mark.filterwarnings("ignore:At least one element of `rtol` is too small:UserWarning")  # of the user's own call
@pytest.mark.parametrize("atol", [1e-14, np.array([1e-20, 1e-14])], ids=str)
@pytest.mark.parametrize("rtol", [0.0, 1e-15, np.array([1e-14, 1e-10])], ids=str)
def test_sensitivities_by_lsoda_at_tolerances_that_odeint_gives_up_at_are_those_of_solve_ivp(
    rtol: Any, atol: Any
) -> None:
    def ends(k: Any) -> Any:
        return solve_ivp(lambda t, y: -k * y, (0.0, 1.0), [3.0, 2.0], "LSODA", rtol=rtol, atol=atol).y[:, -1]

    expected = -np.array([3.0, 2.0]) * np.exp(-0.5)
    np.testing.assert_allclose(dagad.jacfwd(ends)(0.5), expected, rtol=1e-9)


class _Asked(Exception):
    """Raised by a right-hand side."""


def bumpy(t: Any, y: Any, k: Any, each: Any) -> Any:
    """Return a slope that can't be recorded, as it counts, so that each is found by this function itself."""
    each(t)
    return -k * y


def test_an_error_of_a_right_hand_side_within_lsoda_is_the_users_own() -> None:
    def right(t: Any, y: Any, k: Any) -> Any:
        if t > 0.5 and not isinstance(y, np.ndarray):  # as it is differentiated
            raise _Asked("beyond the half")
        return -k * y

    with pytest.raises(_Asked, match="beyond the half"):
        dagad.jacfwd(lambda k: odeint(right, 3.0, [0.0, 1.0], (k,), tfirst=True)[-1, 0])(0.5)


@pytest.mark.parametrize("stop", [1.0, 100.0])
def test_a_right_hand_side_within_lsoda_meets_numpys_errors_as_the_user_has_set_them(stop: float) -> None:
    seen = list[Any]()

    def note(t: float) -> None:
        seen.append(tuple(np.geterr().items()))

    def right(t: Any, y: Any, k: Any) -> Any:  # stiff, so that LSODA asks for Jacobians
        return bumpy(t, y - np.sin(t), 1000.0 * k, note)

    with np.errstate(under="raise", over="warn", divide="ignore", invalid="print"):
        asked = tuple(np.geterr().items())
        dagad.jacfwd(lambda k: odeint(right, [1.0], [0.0, stop], (k,), tfirst=True, mxstep=20_000)[-1, 0])(1.1)
    assert set(seen) == {asked}


def by_solve_ivp(fun: Any, y: Any, method: str) -> Any:
    return solve_ivp(fun, (0.0, 0.1), y, method, **TIGHT).y[:, -1]


def by_odeint(fun: Any, y: Any, method: str) -> Any:
    del method
    return odeint(fun, y, [0.0, 0.1], tfirst=True, **TIGHT)[-1]


@pytest.mark.parametrize("take", [lambda fun: fun, dagad.grad, dagad.jacfwd])
@pytest.mark.parametrize("inner", [by_solve_ivp, by_odeint])
@pytest.mark.parametrize("outer", [by_solve_ivp, by_odeint])
def test_lsoda_within_lsoda_is_refused(outer: Any, inner: Any, take: Any) -> None:
    def end(k: Any, method: str = "LSODA") -> Any:
        return outer(lambda t, y: -inner(lambda t, y: -k * y, y, method), [2.0], "LSODA")[0]

    with pytest.raises(dagad.DagadError, match=r'the inner one by `dagad.solvers.solve_ivp.*method="DOP853"'):
        take(end)(0.5)
    if inner is by_solve_ivp:  # as the sentence says
        value, slope = 2.0 * np.exp(-0.1 * np.exp(-0.05)), 0.01 * np.exp(-0.05)
        expected = value if take not in (dagad.grad, dagad.jacfwd) else value * slope
        assert take(lambda k: end(k, "DOP853"))(0.5) == pytest.approx(expected, rel=1e-6)


@in_one_call
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork\\(\\) was called:RuntimeWarning")
def test_a_process_that_is_forked_within_lsoda_may_use_it() -> None:
    def in_a_child(y: Any) -> Any:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(write, by_odeint(lambda t, y: -y, y, "LSODA").tobytes())
            finally:
                os._exit(0)
        os.close(write)
        with open(read, "rb") as pipe:
            found = np.frombuffer(pipe.read())
        os.waitpid(child, 0)
        return found

    found = odeint(lambda y, t: -in_a_child(y), [2.0], [0.0, 1.0])[-1, 0]
    assert found == pytest.approx(2.0 * np.exp(-np.exp(-0.1)), rel=1e-6)


@in_one_call
@pytest.mark.filterwarnings("ignore::scipy.integrate.ODEintWarning")
def test_scipys_own_odeint_within_odeint_goes_on_with_the_inner_one() -> None:
    def inner(y: Any) -> Any:
        return scipy.integrate.odeint(lambda y, t: -y, y, [0.0, 0.1])[-1]

    found = scipy.integrate.odeint(lambda y, t: -inner(y), [2.0], [0.0, 1.0])[-1, 0]
    assert found != pytest.approx(2.0 * np.exp(-np.exp(-0.1)), rel=1e-3), "scipy does both: they need not be refused"


@pytest.mark.skipif(not hasattr(scipy.integrate._ode, "LSODA_LOCK"), reason="since scipy 1.17 it has no lock")
def test_members_wait_for_nobody_while_they_have_the_lock_of_odeint() -> None:
    seen = list[Any]()

    def end(k: Any) -> Any:
        def right(y: Any, t: Any) -> Any:
            seen.append((t, current_member()))
            return -k * y

        seen.append((None, current_member()))
        return odeint(right, 2.0, [0.0, 1.0])[-1, 0]

    dagad.vmap(end)(np.array([0.3, 0.5]))
    assert {member is None for t, member in seen if t is None} == {False}
    assert {member is None for t, member in seen if t is not None} == {True}


@in_one_call
def test_threads_find_the_same_bits_by_lsoda() -> None:
    def end(p: Any) -> Any:
        return np.sum(odeint(in_lists, [1.0, 0.5], np.linspace(0.0, 5.0, 9), (p,), tfirst=True) ** 2)

    expected, found = dagad.grad(end)(RATES).tobytes(), list[bytes]()
    threads = [
        threading.Thread(target=lambda: found.extend(dagad.grad(end)(RATES).tobytes() for _ in range(5)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 20
