"""Threads: are values run first, results reported as they land, runs kept apart, and results dropped in time?"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, ThreadPoolExecutor
from operator import add
from typing import Any

import autograd.numpy as anp
import dask
import numpy as np
import pytest
from dask._task_spec import Task, TaskRef

import dagad
import dagad_scheduler
from dagad_scheduler import Names, Progress, Role, Sync, Threads, role_of
from support.thread_graphs import LOCAL, each, increase, nothing
from support.waiting import PATIENCE


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.002)


def chain(names: Names, n: int, run: Callable[..., Any]) -> dict[Any, Any]:
    """Return a graph of n values, each with a pullback, and a sum of the values; `run(role, i)` is called by each."""
    graph: dict[Any, Any] = {}
    for i in range(n):
        value, pullback = names(Role.VALUE, i), names(Role.PULLBACK, i)
        graph[pullback] = Task(pullback, run, Role.PULLBACK, i, TaskRef(value))
        graph[value] = Task(value, run, Role.VALUE, i)
    total = names(Role.SUM, 0)
    graph[total] = Task(total, run, Role.SUM, 0, *[TaskRef(names(Role.VALUE, i)) for i in range(n)])
    return graph


# Order


@pytest.mark.parametrize("scheduler", LOCAL, ids=["sync", "2 threads", "4 threads"])
def test_values_are_started_before_pullbacks(scheduler: Threads) -> None:
    order: list[tuple[Role, int]] = []
    graph = chain(Names("t"), 12, lambda role, i, *_: order.append((role, i)))
    scheduler.start(graph, list(graph), nothing).wait()
    first_pullback = min(place for place, (role, _) in enumerate(order) if role is Role.PULLBACK)
    threads = 1 if isinstance(scheduler, Sync) else 4
    assert sum(role is Role.VALUE for role, _ in order[:first_pullback]) > 12 - threads  # the others are on their way
    assert len(order) == 25


def test_in_one_thread_the_order_is_that_of_the_graph() -> None:
    order: list[tuple[Role, int]] = []
    graph = chain(Names("t"), 3, lambda role, i, *_: order.append((role, i)))
    Sync().start(graph, list(graph), nothing).wait()
    value, pullback = Role.VALUE, Role.PULLBACK
    assert order == [(value, 0), (value, 1), (value, 2), (Role.SUM, 0), (pullback, 0), (pullback, 1), (pullback, 2)]


def test_values_come_first_through_dasks_get_too() -> None:
    order: list[Role] = []
    graph = chain(Names("t"), 6, lambda role, i, *_: order.append(role))
    Sync().get(graph, list(graph))
    assert order == [Role.VALUE] * 6 + [Role.SUM] + [Role.PULLBACK] * 6


@pytest.mark.parametrize("scheduler", LOCAL, ids=["sync", "2 threads", "4 threads"])
def test_threads_report_a_result_while_others_are_still_to_come(scheduler: Threads) -> None:
    landed = threading.Event()

    def second(_: Any) -> bool:
        return landed.wait(PATIENCE)

    graph = {"a": Task("a", increase, 1), "b": Task("b", second, TaskRef("a"))}
    results: dict[Any, Any] = {}

    def on_result(key: Any, result: Any) -> None:
        results[key] = result
        landed.set()

    scheduler.start(graph, ["a", "b"], on_result).wait()
    assert results == {"a": 2, "b": True}


def test_a_sum_is_run_as_soon_as_its_terms_are_there() -> None:
    names, summed = Names("t"), threading.Event()
    late = names(Role.VALUE, 2)
    graph: dict[Any, Any] = {names(Role.VALUE, i): Task(names(Role.VALUE, i), increase, i) for i in range(2)}
    graph[late] = Task(late, lambda: summed.wait(PATIENCE))
    total = names(Role.SUM, 0)
    graph[total] = Task(total, lambda *terms: summed.set(), *[TaskRef(names(Role.VALUE, i)) for i in range(2)])
    results: dict[Any, Any] = {}
    Sync().start(graph, [late, total], results.__setitem__).wait()
    assert results[late]


def test_chunks_that_wait_get_threads_every_time() -> None:
    lock, at_work, most = threading.Lock(), 0, 0

    def wait(rows: Any) -> float:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        time.sleep(0.01)  # for a disk, a device, another machine
        with lock:
            at_work -= 1
        return 0.0

    with dask.config.set(num_workers=2):
        for _ in range(4):  # how it went before must not speak against threads
            most = 0
            dagad.reduce_sum(wait, np.zeros(8), grainsize=1, scheduler="threads")
            assert most == 2


def test_progress_counts_by_role() -> None:
    graph = chain(Names("t"), 3, nothing)
    run = Sync().start(graph, list(graph), nothing)
    assert run.progress() == Progress(0, 3, 0, 3)
    run.wait()
    assert run.progress() == Progress(3, 3, 3, 3)
    assert Progress(1, 2, 3, 4) + Progress(1, 1, 1, 1) == Progress(2, 3, 4, 5)


def test_a_kept_result_on_threads_serves_a_later_run() -> None:
    graph = {"a": Task("a", increase, 1), "b": Task("b", increase, TaskRef("a"))}
    results: dict[Any, Any] = {}
    run = Threads(2).start(graph, ["b"], results.__setitem__, keep=["a"])
    run.wait()
    assert run.kept == {"a": 2}
    later = {"c": Task("c", add, TaskRef("a"), 10)}
    Threads(2).start(later, ["c"], results.__setitem__, kept=run.kept).wait()
    assert results == {"b": 3, "c": 12}


# Nested


def nested(depth: int, scheduler: Any) -> Callable[[Any], Any]:
    def total(rows: Any) -> Any:
        if depth == 0:
            return anp.sum(rows)
        return dagad.reduce_sum(
            nested(depth - 1, scheduler), rows, grainsize=max(1, len(rows) // 3), scheduler=scheduler
        )

    return total


@pytest.fixture(params=["own", 1, 2])
def pool(request: pytest.FixtureRequest) -> Iterator[Executor | None]:
    if request.param == "own":
        yield None
    else:
        with ThreadPoolExecutor(request.param) as made:
            yield made


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_nested_reductions_in_a_shared_pool_do_not_deadlock(depth: int, pool: Executor | None) -> None:
    x = np.arange(27.0)
    with dask.config.set(pool=pool, num_workers=4):
        for _ in range(5):
            assert nested(depth, "threads")(x) == x.sum()
            gradient = dagad.grad(lambda x: nested(depth, "threads")(x) ** 2)(x)
            np.testing.assert_allclose(gradient, np.full(27, 2 * x.sum()), rtol=1e-14)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_nested_gets_on_the_pool_they_run_in_do_not_deadlock(depth: int, pool: Executor | None) -> None:
    def total(level: int) -> int:
        if level == 0:
            return 1
        graph = each(lambda _: total(level - 1), 4)
        return sum(dagad_scheduler.get(graph, list(graph), pool=pool, num_workers=4))

    assert total(depth) == 4**depth


def test_many_callers_may_share_one_small_pool() -> None:
    x = np.arange(30.0)

    def call(scale: float) -> Any:
        def loss(theta: Any) -> Any:
            return dagad.reduce_sum(lambda rows, t: anp.sum(rows * t**2), x, theta, grainsize=3, scheduler=shared)

        return [dagad.grad(loss)(scale) for _ in range(10)]

    with ThreadPoolExecutor(2) as shared, ThreadPoolExecutor(6) as callers:
        for scale, found in enumerate(callers.map(call, map(float, range(12)))):
            np.testing.assert_allclose(found, 2 * scale * x.sum(), rtol=1e-14)


# Apart


def test_two_runs_at_once_do_not_see_each_other() -> None:
    barrier = threading.Barrier(2)
    failed = threading.Event()

    def good(i: int) -> int:
        if i == 0:
            barrier.wait(PATIENCE)
            assert failed.wait(PATIENCE)
        return i

    def bad(i: int) -> None:
        if i == 0:
            barrier.wait(PATIENCE)
            raise ValueError("bad")

    with ThreadPoolExecutor(2) as pool:
        bad_run = pool.submit(Threads(2).get, each(bad, 6), list(each(bad, 6)))
        good_run = pool.submit(Threads(2).get, each(good, 6), list(each(good, 6)))
        with pytest.raises(ValueError, match="bad"):
            bad_run.result(PATIENCE)
        failed.set()
        assert good_run.result(PATIENCE) == tuple(range(6))


def test_cancelling_one_run_leaves_the_other_alone() -> None:
    gate = threading.Event()
    graph = each(lambda _: gate.wait(PATIENCE), 4)
    runs = [Threads(2).start(graph, list(graph), nothing) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(run.wait) for run in runs]
        runs[0].cancel()
        gate.set()
        with pytest.raises(CancelledError):
            waits[0].result(PATIENCE)
        waits[1].result(PATIENCE)


def test_helpers_see_the_numpy_error_state_of_the_caller() -> None:
    barrier = threading.Barrier(2)

    def divide(rows: Any) -> Any:
        barrier.wait(PATIENCE)
        in_helper = threading.current_thread() is not threading.main_thread()
        return float(np.sum(rows / (0.0 if in_helper else 1.0)))

    with dask.config.set(num_workers=2):
        with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
            dagad.reduce_sum(divide, np.ones(2), grainsize=1, scheduler="threads")
        barrier.reset()
        with np.errstate(divide="ignore"):
            assert dagad.reduce_sum(divide, np.ones(2), grainsize=1, scheduler="threads") == np.inf


# Memory


class Result:
    """Something big, by its looks."""


@pytest.mark.parametrize("scheduler", LOCAL, ids=["sync", "2 threads", "4 threads"])
def test_a_result_is_dropped_when_nobody_needs_it_any_more(scheduler: Threads) -> None:
    alive: list[weakref.ref[Result]] = []

    def make() -> Result:
        made = Result()
        alive.append(weakref.ref(made))
        return made

    graph = {
        "a": Task("a", make),
        "b": Task("b", lambda _: None, TaskRef("a")),
        "c": Task("c", lambda _: alive[0]() is None, TaskRef("b")),
    }
    results: dict[Any, Any] = {}
    scheduler.start(graph, ["c"], results.__setitem__).wait()
    assert results == {"c": True}


def test_a_thread_that_waits_does_not_hold_on_to_its_last_result() -> None:
    alive: list[weakref.ref[Result]] = []
    made = threading.Event()
    barrier = threading.Barrier(2)

    def make() -> Result:
        barrier.wait(PATIENCE)
        result = Result()
        alive.append(weakref.ref(result))
        made.set()
        return result

    def meanwhile() -> bool:
        barrier.wait(PATIENCE)
        assert made.wait(PATIENCE)
        until(lambda: run._idle)
        return True

    graph = {
        "a": Task("a", make),
        "x": Task("x", meanwhile),
        "b": Task("b", lambda *_: None, TaskRef("a"), TaskRef("x")),
        "c": Task("c", lambda _: alive[0]() is None, TaskRef("b")),
    }
    results: dict[Any, Any] = {}
    run = Threads(2).start(graph, ["c"], results.__setitem__)
    run.wait()
    assert results == {"c": True}


def test_a_run_that_is_over_holds_nothing_but_what_it_was_to_keep() -> None:
    graph = {"a": Task("a", Result), "b": Task("b", lambda a: weakref.ref(a), TaskRef("a"))}
    results: dict[Any, Any] = {}
    run = Threads(2).start(graph, ["b"], results.__setitem__)
    run.wait()
    assert results["b"]() is None
    assert run.progress() == Progress(2, 2, 0, 0)
    assert role_of("a") is None
