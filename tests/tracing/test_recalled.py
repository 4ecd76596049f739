"""Functions that remember what they computed without derivatives: they are refused where they take it with them."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.optimize

import dagad
from dagad._tracing.recalled import SUSPECTED

ROWS = np.linspace(0.1, 2.0, 7)
T = np.array([0.7, 1.3])
REFUSED = r"compared with another.*remembers of a call without derivatives.*formula for exactly this value"
KEPT = r"is a traced value (that was kept|of another derivative)"  # of a chunk that was traced before

# How a function finds out that it has had an argument before
EQUAL: dict[str, Callable[[Any, Any], Any]] = {
    "array_equal": np.array_equal,
    "allclose": np.allclose,
    "isclose": lambda a, b: np.isclose(a, b).all(),
    "all": lambda a, b: (a == b).all(),
    "not any": lambda a, b: not np.any(a != b),
    "each": lambda a, b: all(x == y for x, y in zip(a, b, strict=True)),
    "lists": lambda a, b: list(a) == list(b),
    "tuples": lambda a, b: tuple(a) == tuple(b),
    "largest distance": lambda a, b: np.max(np.abs(a - b)) < 1e-12,
    "bound first": lambda a, b: 1e-9 >= np.max(np.abs(a - b)),
    "not far": lambda a, b: not np.max(np.abs(a - b)) > 1e-8,
    "no distance": lambda a, b: np.sum((a - b) ** 2) == 0,
}
KEYS: dict[str, Callable[[Any], Any]] = {
    "rounded": lambda t: tuple(np.round(t, 6)),
    "a method": lambda t: tuple(t.round(6)),
    "Python's": lambda t: tuple(round(each, 6) for each in t),
    "a text": lambda t: f"{t[0]:.6f}, {t[1]:.6f}",
    "format": lambda t: "{:.3e}/{:.3e}".format(*t),
    "joined": lambda t: ",".join(format(each, ".6f") for each in t),
    "numpy's text": np.array2string,
}


def by_last(equal: Any) -> Any:
    last: list[Any] = []

    def exponential(t: Any) -> Any:
        if not last or not equal(t, last[0]):
            last[:] = t, np.exp(t)
        return last[1]

    return exponential


def by_key(key: Any) -> Any:
    known: dict[Any, Any] = {}

    def exponential(t: Any) -> Any:
        found = key(t)
        if found not in known:
            known[found] = np.exp(t)
        return known[found]

    return exponential


WAYS = {**{name: (by_last, how) for name, how in EQUAL.items()}, **{name: (by_key, how) for name, how in KEYS.items()}}


def direct(fun: Any, scheduler: Any) -> Any:
    del scheduler
    return lambda t: np.sum(fun(t) * t)


def in_chunks(fun: Any, scheduler: Any) -> Any:
    def chunk(rows: Any, t: Any) -> Any:
        return np.sum(rows) * np.sum(fun(t) * t)

    return lambda t: dagad.reduce_sum(chunk, ROWS, t, grainsize=3, scheduler=scheduler)


def around_chunks(fun: Any, scheduler: Any) -> Any:
    return lambda t: dagad.reduce_sum(lambda rows, e: np.sum(rows * e[0]), ROWS, fun(t), scheduler=scheduler) * t[1]


MODES: dict[str, Callable[[Any], Any]] = {
    "grad": lambda fun: dagad.grad(fun)(T),
    "jvp": lambda fun: dagad.jvp(fun, (T,), (np.ones(2),)),
    "hvp": lambda fun: dagad.hvp(fun, (T,), (np.ones(2),)),
    "jacfwd": lambda fun: dagad.jacfwd(fun)(T),
}


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize("place", [direct, in_chunks, around_chunks])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_a_function_that_takes_what_a_plain_call_left_is_refused(
    way: str, mode: str, place: Any, scheduler: str
) -> None:
    make, how = WAYS[way]
    fun = place(make(how), scheduler)
    said = f"{REFUSED}|{KEPT}" if place is in_chunks else REFUSED
    for _ in range(1 if place is in_chunks else 5):  # chunks leave what is traced, which is refused from then on
        fun(T + 1.0)
        fun(T)
        with pytest.raises(dagad.DagadError, match=said):
            MODES[mode](fun)
    assert not SUSPECTED


@pytest.mark.parametrize("way", WAYS)
def test_value_and_gradient_at_once_are_right(way: str) -> None:
    make, how = WAYS[way]
    fun = direct(make(how), None)
    for t in (T, T + 0.5, T - 0.1):
        assert dagad.value_and_grad(fun)(t)[1] == pytest.approx(np.exp(t) * (1.0 + t), rel=1e-12)


def test_an_optimizer_that_asks_for_the_value_first_gets_an_error() -> None:
    fun = direct(by_last(np.array_equal), None)
    with pytest.raises(dagad.NotDifferentiableError, match=REFUSED):
        scipy.optimize.minimize(fun, T, jac=dagad.grad(fun))


# Formulas for exactly one value


def box_cox(power: Any) -> Any:
    return np.sum(np.log(ROWS)) if power == 0.0 else np.sum((ROWS**power - 1.0) / power)


def raised(power: Any) -> Any:
    return np.sum(ROWS) if power == 1.0 else np.sum(ROWS**power)


@pytest.mark.parametrize(("fun", "at"), [(box_cox, 0.0), (raised, 1.0)])
def test_a_formula_that_is_constant_in_what_it_is_for_is_refused(fun: Any, at: float) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=REFUSED):
        dagad.grad(fun)(at)
    assert dagad.grad(fun)(at + 0.5) == pytest.approx((fun(at + 0.5 + 1e-6) - fun(at + 0.5 - 1e-6)) / 2e-6, rel=1e-6)


def newton(a: Any) -> Any:
    x = 1.0 * a
    for _ in range(50):
        new = 0.5 * (x + a / x)
        if abs(new - x) < 1e-12:
            break
        x = new
    return x


def checked(x: Any) -> Any:
    assert np.array_equal(x, np.ones(2) * 2.0) or x.shape == (2,)
    return np.sum(x**3)


RIGHT: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "a kink": (lambda x: np.sum(np.where(x == 0, 0.0, np.abs(x))), np.zeros(2), np.zeros(2)),
    "a distance": (lambda x: 0.0 * x if x == 0 else np.sqrt(x * x), 0.0, 0.0),
    "a hole": (lambda x: np.sum(np.where(x == 0, 1.0, np.sin(x) / np.where(x == 0, 1.0, x))), np.zeros(2), np.zeros(2)),
    "an infinite slope": (lambda x: 0.0 * x if x == 0 else x * np.log(x), 0.0, 0.0),
    "a label": (lambda x: x[0] ** 2 if x[1] == 1.0 else np.sin(x[0]), np.array([0.5, 1.0]), np.array([1.0, 0.0])),
    "labels": (
        lambda x: np.sum(x[:, 0] ** 2 if np.all(x[:, 1] == 1.0) else 3.0 * x[:, 0]),
        np.ones((2, 2)),
        [[2, 0], [2, 0]],
    ),
    "iterations": (newton, 2.0, 0.5 / np.sqrt(2.0)),
    "a check": (checked, np.ones(2) * 2.0, np.ones(2) * 12.0),
    "a constant": (lambda x: np.sum(x**2) * (2.0 if np.sum(ROWS) == np.sum(ROWS) else 1.0), np.ones(2), np.ones(2) * 4),
    "nobody": (lambda x: np.sum(x[x == 5.0]) + np.sum(x), np.ones(2), np.ones(2)),
}


@pytest.mark.parametrize("case", RIGHT)
def test_comparisons_where_nothing_is_remembered_do_no_harm(case: str) -> None:
    fun, at, slope = RIGHT[case]
    for _ in range(3):
        assert dagad.grad(fun)(at) == pytest.approx(np.array(slope), rel=1e-10)
        assert dagad.jacfwd(fun)(at) == pytest.approx(np.array(slope), rel=1e-10)
    assert not SUSPECTED


def test_a_function_whose_derivative_agreed_is_compared_more_and_more_seldom() -> None:
    calls = []

    def counted(x: Any) -> Any:
        calls.append(x)
        return np.sum(x**2) if np.array_equal(x, T) else np.sum(x * x)

    counts = []
    for _ in range(9):
        calls.clear()
        dagad.grad(counted)(T)
        counts.append(len(calls))
    assert counts == [3, 3, 1, 3, 1, 1, 1, 3, 1]


def test_a_function_that_prints_its_argument_prints_it_once() -> None:
    def said_aloud(x: Any) -> Any:
        print(f"at {x[0]:.3f}", np.round(x, 3))
        return np.sum(x**2)

    with contextlib.redirect_stdout(io.StringIO()) as output:
        dagad.grad(said_aloud)(T)
    assert output.getvalue().count("at 0.700") == len(output.getvalue().splitlines()) == 1


def test_a_comparison_is_no_part_of_a_run_that_is_resumed(tmp_path: Any) -> None:
    def loss(t: Any) -> Any:
        twice = dagad.reduce_sum(lambda rows, t: np.sum(rows * t), ROWS, t[:1], grainsize=3, scheduler="sync")
        if t[0] == 0.7:
            twice = twice + 0.0 * t[1]
        return twice + dagad.reduce_sum(lambda rows, t: np.sum(rows * t**2), ROWS, t[1:], grainsize=3, scheduler="sync")

    found = []
    for _ in range(5):  # which are compared two times of three
        with dagad.checkpoint(tmp_path / "run"):
            found.append(dagad.grad(loss)(T))
    assert all(np.array_equal(gradient, found[0]) for gradient in found)


def test_members_that_are_compared_are_right() -> None:
    def loss(t: Any) -> Any:
        power = t[1] if t[0] == 0.7 else t[1] * t[0] / 0.7
        return dagad.reduce_sum(lambda rows: np.sum(rows**power), ROWS, grainsize=3) + t[0]

    points = np.stack([T, T + 1.0, T])
    alone = np.stack([dagad.grad(lambda t: loss(t) * 1.0)(points[1])])
    with pytest.raises(dagad.NotDifferentiableError, match=REFUSED):
        dagad.vmap(dagad.grad(loss))(points)
    np.testing.assert_allclose(dagad.vmap(dagad.grad(loss))(points[1:2]), alone)


def test_numpy_warns_of_nothing_at_points_beside() -> None:
    def entropy(x: Any) -> Any:
        return 0.0 * x if x == 0 else x * np.log(x)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert dagad.grad(entropy)(0.0) == 0.0
    assert not said
