"""Grainsize: what does "auto" choose, what does finding out cost, and does it stay with its choice?"""

from __future__ import annotations

import functools
import gc
import logging
import re
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import dagad
from dagad._executors.grainsize import _SIZES, MOST_SIZES, _shapes
from dagad._remembered import Remembered
from dagad._sources.plan import MOST_CHUNKS, Timing, choose_grainsize
from dagad._values.fingerprint import identity_of
from dagad.extend import explicit
from support.waiting import PATIENCE

_spent = threading.local()


def spend(seconds: float) -> None:
    """Take so long, by the clock that this thread's timings are read off: a busy machine can't change a plan."""
    _spent.seconds = clock() + seconds


def clock() -> float:
    return float(getattr(_spent, "seconds", 0.0))


@pytest.fixture(autouse=True)
def _a_clock_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagad._executors.grainsize.perf_counter", clock)


# What is chosen from timings


def chosen(n_rows: int, cost: Callable[[int], float]) -> int:
    few, more = max(1, n_rows // 64), max(2, n_rows // 8)
    return choose_grainsize(n_rows, Timing(few, cost(few)), Timing(more, cost(more)))


def count(n_rows: int, grainsize: int) -> int:
    return -(-n_rows // grainsize)


def test_a_cost_that_does_not_shrink_with_the_rows_makes_one_chunk() -> None:
    assert chosen(1000, lambda rows: 0.05) == 1000
    assert chosen(1000, lambda rows: 0.05 + 1e-6 * rows) == 1000


def test_a_tiny_cost_makes_one_chunk() -> None:
    assert chosen(10_000, lambda rows: 1e-7 * rows) == 10_000


@pytest.mark.parametrize("seconds", [0.04, 1.0, 6.0])
def test_a_cost_by_the_row_makes_several_chunks(seconds: float) -> None:
    n_rows = 100_000
    assert 8 <= count(n_rows, chosen(n_rows, lambda rows: seconds * rows / n_rows)) <= 64


def test_auto_makes_fewer_chunks_the_more_of_the_cost_is_fixed() -> None:
    n_rows = 10_000
    counts = []
    for fixed in (0.0, 0.01, 0.05, 1.0):

        def cost(rows: int, fixed: float = fixed) -> float:
            return fixed + 1e-4 * rows

        counts.append(count(n_rows, chosen(n_rows, cost)))
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 1


def test_long_rows_are_a_chunk_each() -> None:
    assert chosen(100, lambda rows: 0.1 * rows) == 1


def test_very_many_long_rows_do_not_make_a_graph_that_large() -> None:
    n_rows = 10 * MOST_CHUNKS
    assert count(n_rows, chosen(n_rows, lambda rows: 0.1 * rows)) <= MOST_CHUNKS


@pytest.mark.parametrize("n_rows", [0, 1])
def test_auto_makes_one_chunk_of_one_row_or_none(n_rows: int) -> None:
    assert choose_grainsize(n_rows, Timing(1, 100.0), None) == 1


def test_a_little_noise_seldom_changes_the_plan() -> None:
    rng, n_rows = np.random.default_rng(0), 100_000
    noisy = [chosen(n_rows, lambda rows: rows * 1e-5 * rng.uniform(0.95, 1.05)) for _ in range(100)]
    assert len(set(noisy)) == 1


seconds = st.floats(0, 1e4, allow_nan=False)


@given(st.integers(0, 10**9), st.integers(1, 10**6), seconds, st.integers(1, 10**6), seconds)
def test_auto_chooses_a_sound_grainsize_whatever_the_clock_says(
    n_rows: int, few: int, short: float, extra: int, long: float
) -> None:
    size = choose_grainsize(n_rows, Timing(few, short), Timing(few + extra, long))
    assert 1 <= size <= max(n_rows, 1)
    assert count(n_rows, size) <= MOST_CHUNKS
    assert size == choose_grainsize(n_rows, Timing(few, short), Timing(few + extra, long))


# What is done with functions


class Calls:
    """A chunk function of given cost that keeps the rows of all its calls."""

    def __init__(self, fixed: float = 0.0, per_row: float = 0.0) -> None:
        self.rows: list[list[int]] = []
        self._fixed, self._per_row, self._lock = fixed, per_row, threading.Lock()

    def run(self, rows: Any, theta: Any = 1.0) -> Any:
        with self._lock:
            self.rows.append([int(row) for row in rows])
        spend(self._fixed + self._per_row * len(rows))
        return anp.sum(rows) * theta

    def chunks(self, n_rows: int) -> list[int]:
        """Return the lengths of the chunks: of what was run last, and covers all rows."""
        tail: list[list[int]] = []
        while sum(map(len, tail)) < n_rows:
            tail.append(self.rows.pop())
        assert sorted(row for rows in tail for row in rows) == list(range(n_rows))
        return sorted((len(rows) for rows in tail), reverse=True)


COSTS: dict[str, tuple[float, float, Callable[[int], bool]]] = {
    "nothing": (0.0, 0.0, lambda chunks: chunks == 1),
    "fixed": (0.01, 0.0, lambda chunks: chunks == 1),
    "by the row": (0.0, 1e-4, lambda chunks: 4 <= chunks <= 64),
    "long rows": (0.0, 0.01, lambda chunks: chunks in (20, 21)),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.parametrize("cost", COSTS)
def test_each_row_is_timed_once_at_most_by_three_calls(cost: str, differentiated: bool) -> None:
    fixed, per_row, expected = COSTS[cost]
    # What was found for a function and shapes is remembered, so each case has shapes of its own.
    n_rows = (20 if cost == "long rows" else 1000 + 10 * list(COSTS).index(cost)) + differentiated
    calls = Calls(fixed, per_row)

    def fun(rows: Any, theta: Any) -> Any:
        return calls.run(rows, theta)

    def total(theta: Any) -> Any:
        return dagad.reduce_sum(fun, np.arange(float(n_rows)), theta, scheduler="sync")

    result = dagad.grad(total)(1.0) if differentiated else total(1.0)
    assert result == n_rows * (n_rows - 1) / 2
    chunks = calls.chunks(n_rows)
    assert expected(len(chunks))
    assert len(calls.rows) <= 3
    assert max(Counter(row for rows in calls.rows for row in rows).values(), default=0) <= 1

    calls.rows.clear()  # from now on it is known
    for again in (total, dagad.grad(total)):
        again(2.0)
        assert calls.chunks(n_rows) == chunks
        assert not calls.rows


def defined_again(calls: Calls) -> Callable[..., Any]:
    def fun(rows: Any, theta: Any = 1.0) -> Any:
        return calls.run(rows, theta)

    return fun


class Model:
    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def method(self, rows: Any) -> Any:
        return self.calls.run(rows)

    def __call__(self, rows: Any) -> Any:
        return self.calls.run(rows)


def explicitly(calls: Calls) -> Any:
    @explicit
    def fun(rows: Any) -> Any:
        return calls.run(rows), lambda seed: (None,)

    return fun


REMAKE = {
    "function": defined_again,
    "partial": lambda calls: functools.partial(defined_again(calls), theta=2.0),
    "method": lambda calls: Model(calls).method,
    "object": Model,
    "explicit": explicitly,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", REMAKE)
def test_a_function_that_is_defined_again_keeps_its_grainsize_untimed(kind: str) -> None:
    n_rows = 2000 + list(REMAKE).index(kind)
    plans = []
    for per_row in (1e-4, 0.0, 1e-4):  # it does not change its mind when the function does
        calls = Calls(per_row=per_row)
        dagad.reduce_sum(REMAKE[kind](calls), np.arange(float(n_rows)), scheduler="sync")
        plans.append(calls.chunks(n_rows))
        if len(plans) > 1:
            assert not calls.rows
    assert plans[0] == plans[1] == plans[2]
    assert len(plans[0]) > 1


def test_auto_times_arguments_of_other_shapes_anew() -> None:
    calls = Calls(per_row=1e-4)
    fun = defined_again(calls)
    for n_rows, shared in ((900, 1.0), (901, 1.0), (900, np.ones(2))):
        calls.rows.clear()
        dagad.reduce_sum(fun, np.arange(float(n_rows)), shared, scheduler="sync")
        calls.chunks(n_rows)
        assert calls.rows


def test_auto_cuts_for_numbers_of_python_and_of_numpy_alike() -> None:
    calls = Calls(per_row=1e-4)
    fun = defined_again(calls)
    for number in (1.5, np.float64(1.5)):
        calls.rows.clear()
        dagad.reduce_sum(fun, np.arange(950.0), number, scheduler="sync")
        chunks = calls.chunks(950)
    assert len(chunks) > 1
    assert not calls.rows  # nothing was timed again


def decorated(fun: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fun)
    def wrapper(*args: Any) -> Any:
        return fun(*args)

    return wrapper


def test_auto_times_two_functions_with_the_same_decorator_each() -> None:
    cheap, dear = Calls(), Calls(per_row=1e-4)

    @decorated
    def first(rows: Any) -> Any:
        return cheap.run(rows)

    @decorated
    def second(rows: Any) -> Any:
        return dear.run(rows)

    for fun in (first, second):
        dagad.reduce_sum(fun, np.arange(800.0), scheduler="sync")
    assert len(cheap.chunks(800)) == 1
    assert len(dear.chunks(800)) > 1


def test_items_of_a_map_are_timed_too() -> None:
    seen: list[float] = []

    def item(x: Any) -> Any:
        seen.append(x)
        spend(0.006)
        return x

    assert dagad.map_sum(item, list(map(float, range(12))), scheduler="sync") == 66.0
    counted = Counter(seen)
    assert max(counted.values()) <= 2
    seen.clear()
    assert dagad.map_sum(item, list(map(float, range(12))), scheduler="sync") == 66.0
    assert len(seen) == 12


def recorded_size(caplog: pytest.LogCaptureFixture) -> list[int]:
    found = [re.search(r"grainsize=(\d+)", record.getMessage()) for record in caplog.records if record.name == "dagad"]
    return [int(match[1]) for match in found if match]


@pytest.mark.sampled(3)
def test_the_grainsize_that_auto_chose_is_logged_once_and_gives_the_same_bits(
    caplog: pytest.LogCaptureFixture, scheduler: Any
) -> None:
    n_rows = 20_000 + len(str(scheduler))  # what was found for a function and shapes is remembered
    x = np.random.default_rng(0).standard_normal(n_rows)

    def fun(rows: Any, theta: Any) -> Any:
        spend(2e-6 * len(rows))
        return anp.sum(anp.tanh(rows * theta))

    def both(**options: Any) -> Any:
        def loss(theta: Any) -> Any:
            return dagad.reduce_sum(fun, x, theta, scheduler=scheduler, **options)

        value, gradient = dagad.value_and_grad(loss)(0.7)
        return float(value).hex(), float(gradient).hex(), float(loss(0.7)).hex()

    with caplog.at_level(logging.INFO, logger="dagad"):
        automatic = both()
        assert both() == both(grainsize="auto") == automatic
    (size,) = recorded_size(caplog)
    assert 1 < count(len(x), size) <= 64
    assert "fun" in caplog.text
    assert both(grainsize=size) == automatic
    assert automatic[0] == automatic[2]


def test_threads_that_time_a_function_at_once_get_the_same_grainsize(caplog: pytest.LogCaptureFixture) -> None:
    barrier = threading.Barrier(4)
    x = np.random.default_rng(0).standard_normal(30_011)

    def fun(rows: Any) -> Any:
        spend(2e-6 * len(rows))
        return np.sum(np.tanh(rows))

    def ask(_: int) -> str:
        barrier.wait(PATIENCE)
        return float(dagad.reduce_sum(fun, x, scheduler="sync")).hex()

    with ThreadPoolExecutor(4) as pool, caplog.at_level(logging.INFO, logger="dagad"):
        assert len(set(pool.map(ask, range(4)))) == 1
    assert len(set(recorded_size(caplog))) == 1


@pytest.mark.parametrize("bad_row", [0, 500])
def test_an_error_while_rows_are_timed_is_the_users_and_is_not_remembered(bad_row: int) -> None:
    broken = True

    def fun(rows: Any) -> Any:
        if broken and bad_row in rows:
            raise LookupError("no such row")
        spend(1e-4 * len(rows))
        return np.sum(rows)

    with pytest.raises(LookupError, match="no such row") as caught:
        dagad.reduce_sum(fun, np.arange(1000.0), scheduler="sync")
    (note,) = caught.value.__notes__
    start, stop = map(int, re.findall(r"rows (\d+):(\d+)", note)[0])
    assert start <= bad_row < stop
    broken = False
    assert dagad.reduce_sum(fun, np.arange(1000.0), scheduler="sync") == 499_500


def test_a_remembered_grainsize_keeps_no_function_and_no_data_alive() -> None:
    class Rows:
        pass

    scope: dict[str, Any] = {"held": Rows()}
    exec("def make(held):\n    return lambda rows: rows.sum() + 0.25 + 0 * bool(held)\nfun = make(held)", scope)
    dagad.reduce_sum(scope["fun"], np.arange(50.0), scheduler="sync")
    forgotten = [weakref.ref(scope[name]) for name in ("fun", "held")]
    scope.clear()
    gc.collect()
    assert [one() for one in forgotten] == [None, None]


def test_the_number_of_remembered_grainsizes_is_bounded() -> None:
    for n_rows in range(2, 2 + 3 * 64):
        dagad.reduce_sum(np.sum, np.zeros(n_rows), scheduler="sync")
    before = len(_SIZES)
    sizes: Remembered[int] = Remembered(64)
    for number in range(1000):
        sizes.change(number, lambda found: found or 1)
    assert len(sizes) == 64
    assert before <= MOST_SIZES


def test_a_grainsize_outlives_the_function_that_it_was_found_for() -> None:
    """A cell that is run again defines an equal function; the plan must not change with the death of the first."""
    source = "def fun(rows):\n    return rows.sum() * 2.0\n"
    data = np.arange(4096.0)

    def fun() -> Any:
        scope: dict[str, Any] = {}
        exec(source, scope)
        return scope["fun"]

    found = []
    for _ in range(3):
        again = fun()
        found.append(_SIZES.find((identity_of(again), _shapes({"Summed": (data, ())}))))
        dagad.reduce_sum(again, data, scheduler="sync")
        found.append(_SIZES.find((identity_of(again), _shapes({"Summed": (data, ())}))))
        del again
        gc.collect()
    assert found[0] is None
    assert len(set(found[1:])) == 1
