"""What the function of a solver reads by name counts as it was when it was solved; what it changes itself is its own.

The names are those of this module, as a notebook has them.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad
from dagad import solvers
from support.clusters import a_cluster

Solve = Callable[[Callable[[], Any], Any], Any]
MODES: dict[str, Any] = {"grad": dagad.grad, "jacfwd": dagad.jacfwd, "hessian": dagad.hessian}
EXACT: Any = {"rtol": 1e-8, "atol": 1e-10}
TIMES = np.array([0.0, 1.0])


class Model:
    """What a program keeps in one object."""

    def __init__(self) -> None:
        self.k, self.inner, self.row = 1.0, {"k": [1.0]}, np.ones(2)
        self.large, self.history = np.ones(3000), [0.0]


class Shared:
    k: Any = 1.0


class Reader:
    def read(self) -> Any:
        return rate


rate: Any = 1.0
late: Any = None
row, large, model, reader = np.ones(1), np.ones(5000), Model(), Reader()
options: dict[str, Any] = {"k": 1.0}
settings: Any = types.ModuleType("settings")
settings.k = 1.0


def helper() -> Any:
    return rate


table: dict[str, Any] = {"helper": helper}
lists: Any = ([1.0],)


@functools.lru_cache
def remembered() -> Any:
    return rate


def set_to(k: float) -> None:
    global rate, late, row, large, options
    rate = Shared.k = model.k = settings.k = options["k"] = lists[0][0] = model.inner["k"][0] = k
    late = types.SimpleNamespace(k=k)
    row[:] = model.row[:] = model.large[:] = large[:] = k
    model.history.append(k)


# What is as it was then
KEPT: dict[str, Callable[[], Any]] = {
    "a number": lambda: rate,
    "what a helper reads": lambda: helper(),
    "what a helper in a dict reads": lambda: table["helper"](),
    "a word": lambda: globals()["rate"],
    "a small array": lambda: row[0],
    "an attribute": lambda: model.k,
    "an array of an object": lambda: model.row[1],
    "a list in a dict of an object": lambda: model.inner["k"][0],
    "an entry": lambda: options["k"],
    "a list in a tuple": lambda: lists[0][0],
    "another object each time": lambda: late.k,
}
# What is refused, and what it is called
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "an attribute of a class": (lambda: Shared.k, "`Shared.k`"),
    "a name in a module": (lambda: settings.k, "`settings.k`"),
    "what a method reads": (lambda: reader.read(), "the global `rate`"),
    "a large array": (lambda: large[7], "the global `large`"),
    "a large array of an object": (lambda: model.large[7], "`large` of the global `model`"),
}
SOLVED: dict[str, Solve] = {
    "quad": lambda f, a: solvers.quad(lambda x, a: np.sin(f() * a * x), 0.0, 1.0, args=(a,))[0],
    "solve_ivp": lambda f, a: solvers.solve_ivp(lambda t, y: -f() * a * y, (0.0, 1.0), [1.0], **EXACT).y[0, -1],
    "adjoint": lambda f, a: solvers.solve_ivp(
        lambda t, y: -f() * a * y, (0.0, 1.0), [1.0], sensitivity="adjoint", **EXACT
    ).y[0, -1],
    "sol": lambda f, a: solvers.solve_ivp(lambda t, y: -f() * a * y, (0.0, 1.0), [1.0], dense_output=True, **EXACT).sol(
        0.5
    )[0],
    "odeint": lambda f, a: solvers.odeint(lambda y, t: -f() * a * y, [1.0], TIMES)[-1, 0],
    "root": lambda f, a: solvers.root(lambda x: (x - 0.7) - f() * (a - 0.7), np.zeros(1)).x[0],
    "root_scalar": lambda f, a: solvers.root_scalar(lambda x: (x - 0.7) - f() * (a - 0.7), bracket=(-5.0, 5.0)).root,
    "fixed_point": lambda f, a: solvers.fixed_point(lambda x: 0.5 * x + 0.5 * (0.7 + f() * (a - 0.7)), 1.0),
    "minimize": lambda f, a: solvers.minimize(lambda x: np.sum((x - f() * a) ** 2), np.zeros(1)).x[0],
    "fun of minimize": lambda f, a: solvers.minimize(lambda x: np.sum((x - 0.3) ** 2) + f() * a**2, np.zeros(1)).fun,
    "least_squares": lambda f, a: solvers.least_squares(lambda x: x - f() * a, np.zeros(1)).x[0],
    "implicit": lambda f, a: solvers.implicit(lambda a: f() * a, lambda x, a: x**3 - (f() * a) ** 3)(a),
}


def in_rounds(solve: Solve, read: Callable[[], Any] | None) -> Callable[[Any], Any]:
    """Return a function that solves one equation in rounds, each with another number where the equation reads it."""

    def fun(a: Any) -> Any:
        total: Any = 0.0
        for k in (1.0, 2.0, 3.0):
            set_to(k)
            total = total + k * solve(read or functools.partial(float, k), a)
        return total

    return fun


@functools.cache
def passed(solve: str, mode: str) -> Any:
    """Return the derivative of an equation in rounds that reads no name: it gets its number another way."""
    return MODES[mode](in_rounds(SOLVED[solve], None))(0.7)


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("solve", SOLVED)
@pytest.mark.parametrize("what", KEPT)
def test_names_mean_what_they_meant_when_a_solver_ran(what: str, solve: str, mode: str) -> None:
    right = passed(solve, mode)
    found = MODES[mode](in_rounds(SOLVED[solve], KEPT[what]))(0.7)
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-8)
    assert rate == model.k == row[0] == options["k"] == 3.0  # the user's own are left alone


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("solve", SOLVED)
@pytest.mark.parametrize("what", REFUSED)
def test_changes_that_cannot_be_put_back_are_refused_by_name(what: str, solve: str) -> None:
    read, label = REFUSED[what]
    fun = in_rounds(SOLVED[solve], read)
    for mode in (dagad.grad, dagad.hessian):
        with pytest.raises(dagad.ClosureError, match=f"not what it was then: {label}. Pass what changes"):
            mode(fun)(0.7)
    right = passed(solve, "jacfwd")
    found = dagad.jacfwd(fun)(0.7)  # forward mode runs the function at once
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-8)


def test_a_number_in_a_helper_that_remembers_is_as_it_was() -> None:
    def fun(a: Any) -> Any:
        total: Any = 0.0
        for k in (1.0, 2.0):
            set_to(k)
            remembered.cache_clear()
            total = total + solvers.quad(lambda x: np.exp(-remembered() * a * x), 0.0, 1.0)[0]
        return total

    def exact(a: Any) -> Any:
        return sum((1.0 - np.exp(-k * a)) / (k * a) for k in (1.0, 2.0))

    assert dagad.grad(fun)(0.7) == pytest.approx(dagad.grad(exact)(0.7), rel=1e-6)


def test_attributes_that_no_function_of_the_solver_names_may_change() -> None:
    def fun(a: Any) -> Any:
        found = solvers.quad(lambda x: np.exp(-a * x) * model.k, 0.0, 1.0)[0]
        model.history.append(1.0)
        model.large[:] += 1.0
        Shared.k += 1.0
        return found

    set_to(1.0)
    assert dagad.grad(fun)(0.7) == pytest.approx(dagad.grad(lambda a: (1.0 - np.exp(-a)) / a)(0.7), rel=1e-6)


def test_long_lists_are_read_or_refused() -> None:
    def fun(a: Any) -> Any:
        model.history = [1.0] * 2000
        found = solvers.quad(lambda x: np.exp(-a * x) * model.k, 0.0, 1.0)[0]
        model.history.append(1.0)
        return found

    def reads(a: Any) -> Any:
        model.history = [1.0] * 2000
        found = solvers.quad(lambda x: np.exp(-a * x) * len(model.history), 0.0, 1.0)[0]
        model.history.append(1.0)
        return found

    set_to(1.0)
    assert dagad.grad(fun)(0.7) == pytest.approx(dagad.grad(lambda a: (1.0 - np.exp(-a)) / a)(0.7), rel=1e-6)
    with pytest.raises(dagad.ClosureError, match="`history` of the global `model`"):
        dagad.grad(reads)(0.7)


def test_a_name_bound_again_to_something_like_it_has_not_changed() -> None:
    def fun(a: Any) -> Any:
        Shared.k = [1.0, {"k": np.ones(3)}, None]
        found: Any = solvers.quad(lambda x: np.exp(-a * x * Shared.k[1]["k"][0]), 0.0, 1.0)[0]
        Shared.k = [1.0, {"k": np.ones(3)}, None]
        return found

    assert dagad.grad(fun)(0.7) == pytest.approx(dagad.grad(lambda a: (1.0 - np.exp(-a)) / a)(0.7), rel=1e-6)


def test_a_solution_as_a_function_of_time_is_refused_where_it_would_be_that_of_another_class_attribute() -> None:
    def fun(a: Any) -> Any:
        Shared.k = 1.0
        found = solvers.solve_ivp(lambda t, y: -Shared.k * a * y, (0.0, 1.0), [1.0], dense_output=True)
        Shared.k = 3.0
        return found.sol(0.5)[0]

    with pytest.raises(dagad.ClosureError, match=r"`Shared\.k`"):
        dagad.jacfwd(fun)(0.7)


# What a function changes itself

A = np.array([[0.0, 1.0], [-1.0, -0.1]])
START, RIGHT = np.array([1.0, 0.5]), np.array([1.0, 2.0])
work, wide, product = np.zeros(2), np.zeros(5000), np.zeros((2, 2))
calls, best = 0, -1.0
log: list[Any] = []
cache: dict[Any, Any] = {}
state: dict[str, Any] = {"calls": 0}
generator = np.random.default_rng(0)


class Place:
    work, calls = np.zeros(2), 0

    def __init__(self) -> None:
        self.wide, self.best, self.calls = np.zeros(2000), -1.0, 0

    def __call__(self, t: Any) -> Any:
        self.wide[:] = t
        self.calls += 1
        return 0.0 * self.wide[0]


place = Place()


def into_work(t: Any) -> Any:
    work[:] = t
    return 0.0 * work[0]


def into_wide(t: Any) -> Any:
    wide[:] = t
    return 0.0 * wide[0]


def into_out(t: Any) -> Any:
    np.multiply(A, t, out=product)
    return 0.0 * product[0, 0]


def into_class(t: Any) -> Any:
    Place.work[:] = t
    Place.calls += 1
    return 0.0 * Place.work[0]


def counted(t: Any) -> Any:
    global calls
    calls += 1
    return 0.0


def logged(t: Any) -> Any:
    log.append(t)
    return 0.0


def looked_up(t: Any) -> Any:
    if t not in cache:
        cache[t] = 0.0 * t
    return cache[t]


def noted(t: Any) -> Any:
    state["calls"] += 1
    state["last"] = t
    return 0.0


def seldom(t: Any) -> Any:
    global best
    if t > best:
        best = t
    if t > place.best:
        place.best = t
    return 0.0


def random(t: Any) -> Any:
    return 0.0 * generator.normal()


def in_closure() -> Callable[[Any], Any]:
    own, n = np.zeros(2000), 0

    def fill(t: Any) -> Any:
        nonlocal n
        n += 1
        own[:] = t
        return 0.0 * own[0]

    return fill


OWN: dict[str, Callable[[Any], Any]] = {
    **{each.__name__: each for each in (into_work, into_wide, into_out, into_class, counted, logged, looked_up)},
    **{each.__name__: each for each in (noted, seldom, random)},
    "an object's array": lambda t: place(t),
    "a closure's array": in_closure(),
    "what is remembered": functools.lru_cache(lambda t: 0.0 * t),
}
AT = np.array([0.0, 1.0])
RUNS: dict[str, Callable[[Any, Any], Any]] = {
    "forward": lambda f, p: solvers.solve_ivp(f, (0.0, 1.0), START, args=(p,), sensitivity="forward", **EXACT).y[0, -1],
    "adjoint": lambda f, p: solvers.solve_ivp(f, (0.0, 1.0), START, args=(p,), sensitivity="adjoint", **EXACT).y[0, -1],
    "odeint": lambda f, p: solvers.odeint(f, START, AT, args=(p,), tfirst=True, **EXACT)[-1, 0],
    "quad": lambda f, p: solvers.quad(lambda x: f(x, START, p)[0], 0.0, 1.0)[0],
    "root": lambda f, p: solvers.root(lambda x: f(0.5, x, p) - RIGHT, np.ones(2)).x[0],
    "least_squares": lambda f, p: solvers.least_squares(lambda x: f(0.5, x, p) - RIGHT, np.ones(2)).x[0],
    "implicit": lambda f, p: solvers.implicit(
        lambda p: np.linalg.solve(A * p, RIGHT), lambda x, p: f(0.5, x, p) - RIGHT
    )(p)[0],
}


def twice_over(f: Any, run: str, mode: str) -> Any:
    def total(p: Any) -> Any:
        return RUNS[run](f, p) ** 2 + RUNS[run](f, p) + RUNS[run](f, 2.0 * p)

    return MODES[mode](total)(0.7)


@functools.cache
def unchanged(run: str, mode: str) -> Any:
    return twice_over(lambda t, y, p: A @ y * p, run, mode)


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("what", OWN)
def test_a_function_may_change_what_it_reads(what: str, run: str, mode: str) -> None:
    touch = OWN[what]

    def moved(t: Any, y: Any, p: Any) -> Any:
        return A @ y * p + touch(t)

    np.testing.assert_allclose(twice_over(moved, run, mode), unchanged(run, mode), rtol=1e-4)


def test_a_number_is_put_back_beside_a_counter_and_a_work_array() -> None:
    def moved(t: Any, y: Any) -> Any:
        state["calls"] += 1
        work[:] = t
        counted(t)
        return -rate * options["k"] * y + 0.0 * work[0]

    def fun(a: Any) -> Any:
        total: Any = 0.0
        for k in (1.0, 2.0):
            set_to(k)
            total = total + solvers.solve_ivp(moved, (0.0, 1.0), np.stack([a]), **EXACT).y[0, -1] ** 2
        return total

    before = state["calls"]
    assert dagad.grad(fun)(0.7) == pytest.approx(1.4 * (np.exp(-2.0) + np.exp(-8.0)), rel=1e-5)
    assert state["calls"] > before


# In chunks


def chunk(rows: Any, a: Any) -> Any:
    global rate
    total: Any = 0.0
    for k in rows:
        rate = float(k)
        total = total + solvers.quad(lambda x, a: np.exp(-helper() * a * x), 0.0, 1.0, args=(a,))[0]
    return total


def refused_chunk(rows: Any, a: Any) -> Any:
    total: Any = 0.0
    for k in rows:
        Shared.k = float(k)
        total = total + solvers.quad(lambda x, a: np.exp(-Shared.k * a * x), 0.0, 1.0, args=(a,))[0]
    return total


ROWS = np.array([1.0, 2.0, 3.0, 4.0])


def check_chunks(**options: Any) -> None:
    exact = dagad.grad(lambda a: sum((1.0 - np.exp(-k * a)) / (k * a) for k in ROWS))(0.7)
    assert dagad.grad(lambda a: dagad.reduce_sum(chunk, ROWS, a, **options))(0.7) == pytest.approx(exact, rel=1e-6)
    with pytest.raises(dagad.ClosureError, match=r"Shared\.k"):
        dagad.grad(lambda a: dagad.reduce_sum(refused_chunk, ROWS, a, **options))(0.7)


@pytest.mark.parametrize("options", [{"scheduler": "sync", "grainsize": 2}, {"scheduler": "threads", "grainsize": 4}])
def test_items_of_a_chunk_are_pulled_as_each_was_solved(options: dict[str, Any]) -> None:
    check_chunks(**options)


def test_items_of_a_chunk_are_pulled_as_each_was_solved_on_workers() -> None:
    with a_cluster(2) as client:
        check_chunks(scheduler=client, grainsize=2)
