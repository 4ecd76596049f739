"""Functions that remember their last argument: is their derivative right, or refused?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad
from dagad import solvers

Exponential = Callable[[Any], Any]
EXACT: Any = {"rtol": 1e-9, "atol": 1e-11}


class Model:
    a: Any = None
    calls = 0

    def exp(self, a: Any) -> Any:
        self.calls += 1
        if self.a is None or not np.array_equal(a, self.a):
            self.a, self.e = a, np.exp(a)
        return self.e


class InPlace:
    """Writes its last argument into an array of its own; what is traced it has as it is."""

    def __init__(self) -> None:
        self.a: Any = np.full(1, np.nan)

    def __call__(self, a: Any) -> Any:
        if not np.array_equal(np.reshape(a, (1,)), self.a):
            if isinstance(a, float):
                self.a[0] = a
            else:
                self.a = np.reshape(a, (1,))
            self.e = np.exp(a)
        return self.e


class WrittenOver(InPlace):
    """Writes its last argument into an array, whatever it is."""

    def __call__(self, a: Any) -> Any:
        if not np.array_equal(np.reshape(a, (1,)), self.a):
            self.a[0] = a
            self.e = np.exp(a)
        return self.e


class Slots:
    __slots__ = ("a", "e")

    def __init__(self) -> None:
        self.a: Any = None

    def __call__(self, a: Any) -> Any:
        if self.a is None or not np.allclose(a, self.a):
            self.a, self.e = a, np.exp(a)
        return self.e


def by_dict() -> Exponential:
    kept: dict[str, Any] = {}

    def exp(a: Any) -> Any:
        if "a" not in kept or kept["a"] != a:
            kept.update(a=a, e=np.exp(a))
        return kept["e"]

    return exp


def by_list() -> Exponential:
    kept: list[Any] = []

    def exp(a: Any) -> Any:
        if not kept or not np.all(a == kept[-1][0]):
            kept.append((a, np.exp(a)))
        return kept[-1][1]

    return exp


def by_variable() -> Exponential:
    last = e = None

    def exp(a: Any) -> Any:
        nonlocal last, e
        if last is None or last != a:
            last, e = a, np.exp(a)
        return e

    return exp


def by_attribute() -> Exponential:
    def exp(a: Any) -> Any:
        if not hasattr(exp, "a") or exp.a != a:
            exp.a, exp.e = a, np.exp(a)  # type: ignore[attr-defined]  # what it remembers
        return exp.e  # type: ignore[attr-defined]  # what it remembers

    return exp


MAKERS: dict[str, Callable[[], Exponential]] = {
    "object": lambda: Model().exp,
    "slots": Slots,
    "array": InPlace,
    "dict": by_dict,
    "list": by_list,
    "variable": by_variable,
    "attribute": by_attribute,
}
SOLVES: dict[str, Callable[[Exponential, Any], Any]] = {
    "root_scalar": lambda exp, a: solvers.root_scalar(lambda x, a: x**3 - exp(a), bracket=(0, 5), args=(a,)).root,
    "root": lambda exp, a: solvers.root(lambda x: x**3 - exp(a), np.ones(1), tol=1e-13).x[0],
    "fixed_point": lambda exp, a: solvers.fixed_point(lambda x: 0.5 * (x + exp(a) / x), 1.0, xtol=1e-13),
    "solve_ivp": lambda exp, a: solvers.solve_ivp(lambda t, y: -exp(a) * y, (0.0, 1.0), [1.0], **EXACT).y[0, -1],
    "odeint": lambda exp, a: solvers.odeint(lambda y, t: -exp(a) * y, [1.0], [0.0, 1.0])[-1, 0],
    "quad": lambda exp, a: solvers.quad(lambda t: exp(a) * t**2, 0.0, 1.0)[0],
    "minimize": lambda exp, a: solvers.minimize(lambda x: np.sum((x - exp(a)) ** 2), np.ones(1)).x[0],
    "least_squares": lambda exp, a: solvers.least_squares(lambda x: x - exp(a), np.ones(1), xtol=1e-14).x[0],
    "implicit": lambda exp, a: solvers.implicit(lambda a: np.exp(a / 3.0), lambda x, a: x**3 - exp(a))(a),
}
MODES: dict[str, Any] = {"grad": dagad.grad, "jacfwd": dagad.jacfwd, "hessian": dagad.hessian}
MODES["forward over reverse"] = lambda fun: dagad.jacfwd(dagad.grad(fun))


@functools.cache
def forgetful(solve: str, mode: str) -> Any:
    """Return a derivative of a solution whose function remembers nothing."""
    return MODES[mode](lambda a: SOLVES[solve](np.exp, a))(0.3)


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("solve", SOLVES)
@pytest.mark.parametrize("how", MAKERS)
def test_a_derivative_takes_nothing_that_a_function_remembers_of_the_solver(how: str, solve: str, mode: str) -> None:
    found = MODES[mode](lambda a: SOLVES[solve](MAKERS[how](), a))(0.3)
    assert found == pytest.approx(forgetful(solve, mode), rel=1e-5)


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("solve", SOLVES)
@pytest.mark.parametrize("how", MAKERS)
def test_a_function_that_remembers_a_value_at_the_same_point_is_refused(how: str, solve: str, mode: str) -> None:
    exp = MAKERS[how]()
    exp(0.3)
    with pytest.raises(dagad.NotDifferentiableError, match="that remembers anew for each call of the solver"):
        MODES[mode](lambda a: SOLVES[solve](exp, a))(0.3)


@pytest.mark.parametrize("solve", SOLVES)
def test_a_function_that_writes_into_what_it_remembers_is_refused_there(solve: str) -> None:
    exp = WrittenOver()
    exp(0.3)
    with pytest.raises(dagad.NotDifferentiableError, match="that remembers anew for each call of the solver"):
        dagad.grad(lambda a: SOLVES[solve](exp, a))(0.3)


@pytest.mark.parametrize("solve", SOLVES)
def test_a_function_that_remembers_another_point_is_differentiated(solve: str) -> None:
    model = Model()
    for a in (0.3, 0.4, 0.3):  # an optimizer's steps
        right = dagad.grad(lambda a: SOLVES[solve](np.exp, a))(a)
        assert dagad.grad(lambda a: SOLVES[solve](model.exp, a))(a) == pytest.approx(right, rel=1e-5)


class Last:
    a: Any = None
    e: Any = None


def exp_by_class(a: Any) -> Any:
    if Last.a is None or not np.array_equal(a, Last.a):
        Last.a, Last.e = a, np.exp(a)
    return Last.e


@pytest.mark.parametrize("solve", sorted(SOLVES.keys() - {"implicit"}))
def test_a_class_that_remembers_is_refused(solve: str) -> None:
    Last.a = None
    with pytest.raises(dagad.NotDifferentiableError, match="it remembers what it has computed"):
        dagad.grad(lambda a: SOLVES[solve](exp_by_class, a))(0.3)


def test_calls_that_the_user_counts_are_those_of_scipy() -> None:
    model = Model()
    dagad.grad(lambda a: SOLVES["root_scalar"](model.exp, a))(0.3)
    assert model.calls > 3
    assert (model.a, model.e) == (0.3, np.exp(0.3))


def test_comparisons_that_find_values_equal_do_no_harm_where_nothing_is_remembered() -> None:
    def powered(t: Any, y: Any, power: Any) -> Any:
        assert power == 2.0
        return np.where(y == 0.0, 1.0, 1.0 - y**power)

    def end(power: Any) -> Any:
        return solvers.solve_ivp(powered, (0.0, 1.0), [0.0], args=(power,), **EXACT).y[0, -1]

    def loose(t: Any, y: Any, power: Any) -> Any:
        return 1.0 - y**power

    right = dagad.grad(lambda power: solvers.solve_ivp(loose, (0.0, 1.0), [1e-12], args=(power,), **EXACT).y[0, -1])
    assert dagad.grad(end)(2.0) == pytest.approx(right(2.0), rel=1e-5)


def test_objects_that_lead_to_themselves_are_made_again_as_they_were() -> None:
    class Shared:
        def __init__(self) -> None:
            self.me, self.known = self, {"last": None}

    shared = Shared()

    def fun(x: Any, a: Any) -> Any:
        assert shared.me is shared
        shared.known["last"] = a
        return x**3 - shared.known["last"]

    slope = dagad.grad(lambda a: solvers.root_scalar(fun, bracket=(0.0, 5.0), args=(a,)).root)
    assert slope(8.0) == pytest.approx(1.0 / 12.0)


def test_a_function_that_takes_another_branch_for_a_value_is_no_function_that_remembers() -> None:
    def decay(t: Any, y: Any, p: Any) -> Any:
        return -p["rate"] * y if p["kind"] == 1.0 else y

    def end(p: Any) -> Any:
        return dagad.solvers.solve_ivp(decay, (0.0, 1.0), [1.0], args=(p,), rtol=1e-8, atol=1e-10).y[0, -1]

    found = dagad.grad(end)({"rate": 0.5, "kind": 1.0})
    assert found["rate"] == pytest.approx(-np.exp(-0.5), rel=1e-6)
    assert found["kind"] == 0.0
