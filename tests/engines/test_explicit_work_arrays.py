"""Explicit functions whose pullbacks read work arrays, which each call fills: gradients are of their own calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import dagad
from dagad._kernels.items import PairSum
from dagad._values.reading import NEXT, TURNS
from dagad.extend import explicit

ROWS = np.arange(1.0, 7.0)
X = np.float64(0.3)
WORK = np.zeros(5)
FIXED = np.zeros(5)
FIXED.flags.writeable = False
LARGE = np.zeros(20_000)


def powers(rows: Any, size: int = 5) -> Any:
    return np.sum(rows) * np.linspace(0.1, 0.9, size)


@explicit
def by_global(rows: Any, x: Any) -> Any:
    WORK[:] = powers(rows)
    return WORK * x**2, lambda seed: (None, np.sum(seed * 2 * WORK * x))


@explicit
def by_large_global(rows: Any, x: Any) -> Any:
    LARGE[:] = np.repeat(powers(rows), LARGE.size // 5)
    return LARGE[:: LARGE.size // 5] * x**2, lambda seed: (None, np.sum(seed * 2 * LARGE[:: LARGE.size // 5] * x))


class Model:
    def __init__(self) -> None:
        self.work, self.x, self.held = np.zeros(5), 0.0, self

    def __call__(self, rows: Any, x: Any) -> Any:
        self.work[:] = powers(rows)
        return self.work * x**2, partial(self.pull, x)

    def pull(self, x: Any, seed: Any) -> Any:
        return None, np.sum(seed * 2 * self.work * x)


class Remembering(Model):
    """Forward stores, backward reads: an attribute is bound anew."""

    def __call__(self, rows: Any, x: Any) -> Any:
        self.work, self.x = powers(rows), x
        return self.work * x**2, self.backward

    def backward(self, seed: Any) -> Any:
        return None, np.sum(seed * 2 * self.work * self.x)


class InSlots:
    __slots__ = ("work",)

    def __init__(self) -> None:
        self.work = np.zeros(5)

    __call__, pull = Model.__call__, Model.pull


class OfAClass:
    work = np.zeros(5)
    __call__, pull = Model.__call__, Model.pull


def in_a_dict() -> Any:
    cache = {"work": np.ones(5)}

    def fun(rows: Any, x: Any) -> Any:
        cache["work"] = powers(rows)
        return cache["work"] * x**2, lambda seed: (None, np.sum(seed * 2 * cache["work"] * x))

    return explicit(fun)


def bound_anew() -> Any:
    work = np.ones(5)

    def fun(rows: Any, x: Any) -> Any:
        nonlocal work
        work = powers(rows)
        return work * x**2, lambda seed: (None, np.sum(seed * 2 * work * x))

    return explicit(fun)


def deep() -> Any:
    outer, inner = Model(), Model()
    outer.held = inner

    def fun(rows: Any, x: Any) -> Any:
        inner.work[:] = powers(rows)
        return inner.work * x**2, lambda seed: (None, np.sum(seed * 2 * outer.held.work * x))

    return explicit(fun)


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "a global": lambda: by_global,
    "a large global": lambda: by_large_global,
    "an object": lambda: explicit(Model()),
    "an attribute": lambda: explicit(Remembering()),
    "a slot": lambda: explicit(InSlots()),
    "an attribute of a class": lambda: explicit(OfAClass()),
    "a dict": in_a_dict,
    "a variable": bound_anew,
    "an object of an object": deep,
}
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": partial(dagad.reduce_sum, grainsize=2),
    "map": dagad.map,
    "map_sum": dagad.map_sum,
    "map_rect": dagad.map_rect,
}


def by_numpy(rows: Any, x: Any) -> Any:
    return powers(rows) * x**2


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_pullback_that_reads_a_work_array_is_that_of_its_own_call(function: str, reduction: str) -> None:
    rows = ROWS if reduction == "sum" else list(ROWS)

    def loss(fun: Any, x: Any) -> Any:
        return np.sum(np.sin(REDUCTIONS[reduction](fun, rows, x, scheduler="sync")))

    fun = FUNCTIONS[function]()
    expected = dagad.value_and_grad(partial(loss, by_numpy))(X)
    assert dagad.value_and_grad(partial(loss, fun))(X) == pytest.approx(expected, rel=1e-13)
    _, pullback = dagad.vjp(partial(loss, fun), X)
    assert pullback(1.0)[0] == pytest.approx(expected[1], rel=1e-13)
    assert dagad.jvp(partial(loss, fun), X, 1.0)[1] == pytest.approx(expected[1], rel=1e-13)


def made() -> Any:
    work = np.zeros(5)

    def by_closure(rows: Any, x: Any) -> Any:
        work[:] = powers(rows)
        return work * x**2, lambda seed: (None, np.sum(seed * 2 * work * x))

    return explicit(by_closure)


def test_a_work_array_of_a_closure_is_read_only_or_its_pullback_is_that_of_its_own_call() -> None:
    def loss(fun: Any, x: Any) -> Any:
        return np.sum(np.sin(dagad.map_sum(fun, list(ROWS), x, scheduler="sync")))

    try:
        found = dagad.value_and_grad(partial(loss, made()))(X)
    except ValueError as error:
        assert "read-only" in str(error)  # noqa: PT017  # either will do
        assert any("make the array inside" in note for note in error.__notes__)  # noqa: PT017  # either will do
    else:
        assert found == pytest.approx(dagad.value_and_grad(partial(loss, by_numpy))(X), rel=1e-13)


def test_a_function_whose_pullback_has_memory_of_its_own_runs_once_a_chunk() -> None:
    runs = []

    @explicit
    def counted(rows: Any, x: Any) -> Any:
        runs.append(1)
        own, data = powers(rows), FIXED  # what is read-only may be shared
        return own * x**2, lambda seed: (None, np.sum(seed * 2 * own * x) + 0.0 * data[0])

    def loss(x: Any) -> Any:
        return np.sum(np.sin(dagad.reduce_sum(counted, ROWS, x, grainsize=2, scheduler="sync")))

    dagad.grad(loss)(X)
    runs.clear()
    dagad.grad(loss)(X)
    assert len(runs) == 3


@explicit
def number_by_global(rows: Any, x: Any) -> Any:
    WORK[:] = powers(rows)
    return np.sum(np.sin(x * WORK)), lambda seed: (None, seed * np.sum(np.cos(x * WORK) * WORK))


@pytest.mark.parametrize("reduction", sorted(REDUCTIONS.keys() - {"map_rect"}))
def test_a_pullback_of_a_number_that_reads_a_work_array_is_that_of_its_own_call(reduction: str, scheduler: Any) -> None:
    rows = ROWS if reduction == "sum" else list(ROWS)

    def loss(fun: Any, x: Any) -> Any:
        return np.sum(REDUCTIONS[reduction](fun, rows, x, scheduler=scheduler))

    def numpys(rows: Any, x: Any) -> Any:
        return np.sum(np.sin(x * powers(rows)))

    if scheduler == "threads":  # which would fill one array together, as in any program
        return
    expected = dagad.value_and_grad(partial(loss, numpys))(X)
    try:
        found = dagad.value_and_grad(partial(loss, number_by_global))(X)
    except ValueError as error:
        assert "read-only" in str(error)  # noqa: PT017  # large ones come out of a pickle so
    else:
        assert found == pytest.approx(expected, rel=1e-13)


def test_a_function_that_gives_another_value_when_it_runs_again_is_refused() -> None:
    random, drawn = np.random.default_rng(0), np.zeros(5)

    class Drawing:
        def __init__(self) -> None:
            self.random, self.drawn = random, drawn

        def __call__(self, rows: Any, x: Any) -> Any:
            self.random.standard_normal(out=self.drawn)
            return self.drawn * x, lambda seed: (None, np.sum(seed * self.drawn))

    with pytest.raises(dagad.NotDifferentiableError, match=r"gave another value.*memory of its own"):
        dagad.grad(lambda x: np.sum(dagad.map(explicit(Drawing()), list(ROWS), x, scheduler="sync")))(X)


def test_an_object_that_counts_its_calls_runs_once_a_chunk() -> None:
    class Counting:
        def __init__(self) -> None:
            self.values = self.pulls = 0

        def __call__(self, rows: Any, x: Any) -> Any:
            self.values += 1

            def pullback(seed: Any) -> Any:
                self.pulls += 1
                return None, np.sum(seed * 2 * own * x)

            own = powers(rows)
            return own * x**2, pullback

    count = Counting()
    gradient = dagad.grad(lambda x: np.sum(dagad.map(explicit(count), list(ROWS), x, scheduler="sync")))
    gradient(X)  # which finds out how to cut
    count.values = count.pulls = 0
    gradient(X)
    assert (count.values, count.pulls) == (len(ROWS), len(ROWS))


COUNTS = {"calls": 0, "pulls": 0}
SECONDS: list[float] = []


@explicit
def number_that_counts(row: Any, x: Any) -> Any:
    COUNTS["calls"] += 1
    SECONDS.append(time.perf_counter())

    def pullback(seed: Any) -> Any:
        COUNTS["pulls"] += 1
        SECONDS[-1] -= time.perf_counter()
        return None, seed * np.sum(np.cos(x * row) * row)

    return float(np.sum(np.sin(x * row))), pullback


OF_NUMBERS: dict[str, Callable[..., Any]] = {
    "rows": partial(dagad.reduce_sum, grainsize=2),
    "rows at once": partial(dagad.reduce_sum, grainsize=6),
    "items": partial(dagad.map_sum, grainsize=3),
    "all items": partial(dagad.map_sum, grainsize=6),
}


@pytest.mark.parametrize("how", OF_NUMBERS)
def test_a_number_whose_function_counts_and_times_its_calls_is_computed_and_pulled_once(how: str) -> None:
    rows = ROWS if "rows" in how else list(ROWS)

    def loss(x: Any, fun: Any = number_that_counts) -> Any:
        return 3.0 * OF_NUMBERS[how](fun, rows, x, scheduler="sync")

    COUNTS.update(calls=0, pulls=0)
    found = dagad.value_and_grad(loss)(X)
    n_calls = {"rows": 3, "rows at once": 1}.get(how, len(ROWS))
    assert COUNTS == {"calls": n_calls, "pulls": n_calls}
    assert found == pytest.approx(dagad.value_and_grad(lambda x: 3.0 * np.sum(np.sin(x * ROWS)))(X), rel=1e-13)


@pytest.mark.parametrize("seed", [1.0, np.float64(1.0), np.float32(1.0), 2.5, -1.0])
def test_a_gradient_pulled_for_one_is_pulled_anew_for_another_cotangent(seed: Any) -> None:
    TURNS.begin(NEXT)
    value, pull = PairSum(number_that_counts)(list(ROWS), X)
    slope = np.sum(np.cos(X * ROWS) * ROWS)
    assert value == pytest.approx(np.sum(np.sin(X * ROWS)), rel=1e-13)
    for _ in range(2):
        assert pull(seed)[-1] == pytest.approx(seed * slope, rel=1e-6 if type(seed) is np.float32 else 1e-13)
        assert pull(np.float64(1.0))[-1] == pytest.approx(slope, rel=1e-13)


@pytest.mark.parametrize("made", [float, int, np.float32, lambda value: np.asarray(value)])
def test_items_whose_values_are_of_several_types_have_the_gradient_of_their_sum(made: Any, scheduler: Any) -> None:
    @explicit
    def fun(item: Any, x: Any) -> Any:
        cast = made if item % 2 else float
        return cast(item * x), lambda seed: (None, item * seed)

    def loss(x: Any) -> Any:
        return dagad.map_sum(fun, list(ROWS), x, scheduler=scheduler, grainsize=3)

    value, slope = dagad.value_and_grad(loss)(np.float64(2.0))
    assert (value, slope) == (42.0, 21.0)


def test_a_pullback_that_fails_at_once_says_so_where_it_is_pulled(scheduler: Any) -> None:
    @explicit
    def fun(item: Any, x: Any) -> Any:
        return float(item * x), lambda seed: (None, 1 // 0 if item == 5.0 else item * seed)

    with pytest.raises(ZeroDivisionError) as caught:
        dagad.grad(lambda x: dagad.map_sum(fun, list(map(float, ROWS)), x, scheduler=scheduler, grainsize=2))(2.0)
    assert "pullback of chunk 2" in str(caught.value.__notes__)


def test_a_value_alone_looks_into_no_pullback(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(pullback: Any) -> None:
        raise AssertionError(pullback)

    monkeypatch.setattr("dagad._engines.explicit_rules.Reading", looked)
    monkeypatch.setattr(Model, "__call__", lambda self, row, x: (float(np.sum(row) * x), self.pull))
    expected = X * np.sum(ROWS)
    assert dagad.map_sum(explicit(Model()), list(ROWS), X, scheduler="sync") == pytest.approx(expected, rel=1e-15)
    assert dagad.reduce_sum(explicit(Model()), ROWS, X, grainsize=1, scheduler="sync") == pytest.approx(expected)
