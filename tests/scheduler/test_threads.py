"""Threads: are values run first, results reported as they land, and is nothing left behind, whatever goes wrong?"""

from __future__ import annotations

import operator
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, ThreadPoolExecutor
from operator import add
from typing import Any

import autograd.numpy as anp
import dask
import dask.array
import dask.bag
import dask.local
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, Dict, List, Task, TaskRef
from dask.base import compute
from dask.delayed import delayed

import dagad
import dagad_scheduler
from dagad_scheduler import Names, Progress, Role, Sync, Threads, role_of

LOCAL = [Sync(), Threads(2), Threads(4)]
PATIENCE = 20.0  # seconds until something that should have happened is called a failure


def increase(x: float) -> float:
    return x + 1


def nothing(*args: Any) -> None:
    pass


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.002)


def each(function: Callable[[int], Any], n: int) -> dict[Any, Any]:
    """Return a graph of n tasks that call a function with their number."""
    return {f"x{i}": Task(f"x{i}", function, i) for i in range(n)}


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


# Dask's protocol


@pytest.mark.parametrize("get", [dagad_scheduler.get, Threads(3).get, Sync().get], ids=["get", "threads", "sync"])
def test_dask_computes_with_our_get(get: Any) -> None:
    a, b = delayed(increase)(1), delayed(increase)(2)
    assert compute(a, [b, {"sum": a + b}], 5, scheduler=get) == (2, [3, {"sum": 5}], 5)


def test_dasks_collections_compute_with_our_get() -> None:
    numbers = dask.bag.from_sequence(range(20), npartitions=5)
    assert numbers.map(increase).sum().compute(scheduler=dagad_scheduler.get) == 210
    array = dask.array.arange(100, chunks=7)
    assert (array**2).sum().compute(scheduler=dagad_scheduler.get) == sum(i**2 for i in range(100))


KEYS = ["c", ["a", "c"], [["a"], ["b", ["c"]]], [], [[]], ["c", "c"]]


@pytest.mark.parametrize("keys", KEYS, ids=str)
@pytest.mark.parametrize("get", [dagad_scheduler.get, Sync().get], ids=["threads", "sync"])
def test_nested_keys_come_back_nested_as_from_dask(get: Any, keys: Any) -> None:
    graph = {"a": 1, "b": (increase, "a"), "c": (sum, ["a", "b"])}
    assert get(graph, keys) == dask.local.get_sync(graph, keys)


LEGACY: dict[Any, Any] = {
    "literal": 1,
    ("x", 0): (add, "literal", 2),
    "nested": (add, (add, "literal", ("x", 0)), 10),
    "list": (sum, [("x", 0), "nested", 4]),
    "alias": ("x", 0),
    "none": None,
    "text": "not a key",
    7: (str, ("x", 0)),
}


@pytest.mark.parametrize("get", [dagad_scheduler.get, Sync().get], ids=["threads", "sync"])
def test_legacy_graphs_are_understood(get: Any) -> None:
    keys: list[Any] = list(LEGACY)
    assert get(LEGACY, keys) == dask.local.get_sync(LEGACY, keys)


@pytest.mark.parametrize("scheduler", LOCAL, ids=lambda value: repr(value).partition(" at 0x")[0])
def test_every_kind_of_node_is_run(scheduler: Threads) -> None:
    graph = {
        "a": DataNode("a", 3),
        "b": Alias("b", "a"),
        "c": Task("c", dict, x=TaskRef("b"), y=List(TaskRef("a"), 1)),
        "d": Task("d", operator.itemgetter("z"), Dict({"z": TaskRef("c"), "w": 0})),
        "e": Task("e", add, Task(None, increase, TaskRef("a")), 1),
    }
    assert scheduler.get(graph, ["b", "d", "e"]) == (3, {"x": 3, "y": [3, 1]}, 5)


def test_num_workers_is_the_number_of_threads() -> None:
    seen: set[int] = set()

    def meet(i: int) -> None:
        seen.add(threading.get_ident())
        barrier.wait(PATIENCE)

    for n in (1, 2, 4):
        graph = each(meet, 3 * n)
        barrier = threading.Barrier(n)
        seen.clear()
        dagad_scheduler.get(graph, list(graph), num_workers=n)
        assert len(seen) == n
        assert threading.get_ident() in seen


def test_a_given_pool_lends_its_threads_and_stays_open() -> None:
    barrier, names = threading.Barrier(3), set()

    def meet(i: int) -> None:
        names.add(threading.current_thread().name.partition("_")[0])
        barrier.wait(PATIENCE)

    with ThreadPoolExecutor(2, thread_name_prefix="lent") as pool:
        graph = each(meet, 3)
        dagad_scheduler.get(graph, list(graph), num_workers=3, pool=pool)
        assert pool.submit(increase, 1).result() == 2
    assert names == {"MainThread", "lent"}


@pytest.mark.parametrize("lent", [False, True])
def test_no_more_threads_take_part_than_asked_for(lent: bool) -> None:
    graph, interval = each(lambda _: threading.get_ident(), 64), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # the interpreter changes threads wherever it can
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(500):
                seen = dagad_scheduler.get(graph, list(graph), num_workers=3, pool=pool if lent else None)
                assert len(set(seen)) <= 3
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("get", [dagad_scheduler.get, Sync().get], ids=["threads", "sync"])
def test_a_key_that_is_not_there_is_named(get: Any) -> None:
    with pytest.raises(KeyError, match="no task for 'nowhere'"):
        get({"a": 1}, "nowhere")
    with pytest.raises(KeyError, match="no task for 'nowhere', which another task or the caller asks for"):
        get({"a": Task("a", increase, TaskRef("nowhere"))}, "a")


@pytest.mark.parametrize("get", [dagad_scheduler.get, Sync().get], ids=["threads", "sync"])
def test_a_graph_that_goes_in_circles_is_refused(get: Any) -> None:
    graph = {"a": Task("a", increase, TaskRef("b")), "b": Task("b", increase, TaskRef("a"))}
    with pytest.raises(Exception, match=r"(?i)cycle"):
        get(graph, "a")


def test_only_what_is_wanted_is_run() -> None:
    graph = {"a": (increase, 1), "b": (operator.truediv, 1, 0), "c": (increase, "a")}
    assert dagad_scheduler.get(graph, ["c"]) == (3,)


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
def test_a_result_is_reported_while_others_are_still_to_come(scheduler: Threads) -> None:
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


def test_what_is_kept_serves_a_later_run() -> None:
    graph = {"a": Task("a", increase, 1), "b": Task("b", increase, TaskRef("a"))}
    results: dict[Any, Any] = {}
    run = Threads(2).start(graph, ["b"], results.__setitem__, keep=["a"])
    run.wait()
    assert run.kept == {"a": 2}
    later = {"c": Task("c", add, TaskRef("a"), 10)}
    Threads(2).start(later, ["c"], results.__setitem__, kept=run.kept).wait()
    assert results == {"b": 3, "c": 12}


# Ends


@pytest.fixture(params=["before", "after"])
def when(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("scheduler", LOCAL, ids=["sync", "2 threads", "4 threads"])
def test_after_cancel_no_task_is_started(scheduler: Threads) -> None:
    started, cancelled, ran = threading.Event(), threading.Event(), []

    def work(i: int) -> None:
        ran.append(i)
        started.set()
        assert cancelled.wait(PATIENCE)

    graph = each(work, 20)
    run = scheduler.start(graph, list(graph), nothing)

    def cancel() -> None:
        assert started.wait(PATIENCE)
        run.cancel()
        cancelled.set()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(cancel)
        with pytest.raises(CancelledError, match="cancelled"):
            run.wait()
    assert len(ran) <= 4


def test_a_run_cancelled_before_it_began_runs_nothing() -> None:
    ran: list[int] = []
    run = Threads(2).start({"a": Task("a", ran.append, 1)}, ["a"], nothing)
    run.cancel()
    with pytest.raises(CancelledError):
        run.wait()
    assert not ran


def test_cancelling_what_is_done_changes_nothing() -> None:
    run = Threads(2).start({"a": Task("a", increase, 1)}, ["a"], nothing)
    run.wait()
    run.cancel()
    run.wait()


def test_a_wait_that_times_out_lets_the_tasks_go_on() -> None:
    barrier, gate = threading.Barrier(2), threading.Event()
    results: dict[Any, Any] = {}

    def work(i: int) -> bool:
        barrier.wait(PATIENCE)  # a helper is there
        return i == 0 or gate.wait(PATIENCE)

    graph: dict[Any, Any] = each(work, 2)
    run = Threads(2).start(graph, list(graph), results.__setitem__)
    with pytest.raises(TimeoutError, match=r"not done after 0\.05 seconds; they go on"):
        run.wait(0.05)  # this thread began, so it has the short task
    gate.set()
    run.wait()
    assert results == {"x0": True, "x1": True}


@pytest.mark.parametrize("scheduler", LOCAL, ids=["sync", "2 threads", "4 threads"])
def test_what_a_task_raises_comes_out_and_the_next_run_works(scheduler: Threads) -> None:
    graph = each(lambda i: 1 / i, 8)
    with pytest.raises(ZeroDivisionError):
        scheduler.get(graph, list(graph))
    assert scheduler.get({"a": (increase, 1)}, "a") == 2


def test_of_several_errors_the_first_by_priority_wins() -> None:
    barrier, second_raised = threading.Barrier(2), threading.Event()

    def fail(i: int) -> None:
        barrier.wait(PATIENCE)
        if i == 0:
            assert second_raised.wait(PATIENCE)
        else:
            second_raised.set()
        raise ValueError(i)

    graph = each(fail, 2)
    for _ in range(20):
        second_raised.clear()
        with pytest.raises(ValueError, match=r"^0$"):
            Threads(2).start(graph, list(graph), nothing).wait()


def test_no_task_is_started_after_an_error() -> None:
    ran: list[int] = []

    def work(i: int) -> None:
        ran.append(i)
        if i == 2:
            raise ValueError(i)

    graph = each(work, 10)
    with pytest.raises(ValueError, match="2"):
        Sync().start(graph, list(graph), nothing).wait()
    assert ran == [0, 1, 2]


def test_what_on_result_raises_comes_out() -> None:
    def refuse(key: Any, result: Any) -> None:
        raise ValueError(f"no room for {key}")

    with pytest.raises(ValueError, match="no room for a"):
        Threads(2).start({"a": Task("a", increase, 1)}, ["a"], refuse).wait()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_ends_a_program_comes_out_of_any_thread(error: type[BaseException]) -> None:
    barrier = threading.Barrier(2)

    def quit_from_a_helper(i: int) -> None:
        barrier.wait(PATIENCE)
        if threading.current_thread() is not threading.main_thread():
            raise error

    graph = each(quit_from_a_helper, 2)
    with pytest.raises(error):
        Threads(2).get(graph, list(graph))
    assert Threads(2).get({"a": (increase, 1)}, "a") == 2


INTERRUPTED = """
import gc, sys, threading, time
import dask, numpy as np, threadpoolctl
import dagad

def libraries():
    return [library["num_threads"] for library in threadpoolctl.threadpool_info()]

main, released, barrier = threading.main_thread(), threading.Event(), threading.Barrier(2)

def in_the_chunk(rows):
    if threading.current_thread() is main and not released.is_set():
        print("interrupt me", flush=True)
        time.sleep(20)
    return float(np.sum(rows))

def while_waiting(rows):
    if not released.is_set():
        barrier.wait(20)
        if threading.current_thread() is not main:
            while sys._current_frames()[main.ident].f_code.co_name not in ("join", "_wait_for_tstate_lock"):
                time.sleep(0.001)
            print("interrupt me", flush=True)
            released.wait(20)
    return float(np.sum(rows))

def call():
    return dagad.reduce_sum(globals()[sys.argv[1]], np.arange(6.0), grainsize=3, scheduler=sys.argv[2])

before = gc.get_threshold(), libraries()
with dask.config.set(num_workers=2):
    try:
        call()
    except KeyboardInterrupt:
        released.set()
    deadline = time.monotonic() + 20
    while threading.active_count() > 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert released.is_set() and threading.active_count() == 1, threading.enumerate()
    assert (gc.get_threshold(), libraries()) == before
    for _ in range(3):
        assert call() == 15.0
print("done", flush=True)
"""


@pytest.mark.parametrize(
    ("where", "scheduler"), [("in_the_chunk", "sync"), ("in_the_chunk", "threads"), ("while_waiting", "threads")]
)
def test_control_c_ends_the_call_and_the_next_one_works(where: str, scheduler: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, where, scheduler]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "interrupt me\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert not errors
    assert (output, process.returncode) == ("done\n", 0)


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


@pytest.mark.timeout(60)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_nested_reductions_in_a_shared_pool_do_not_deadlock(depth: int, pool: Executor | None) -> None:
    x = np.arange(27.0)
    with dask.config.set(pool=pool, num_workers=4):
        for _ in range(5):
            assert nested(depth, "threads")(x) == x.sum()
            gradient = dagad.grad(lambda x: nested(depth, "threads")(x) ** 2)(x)
            np.testing.assert_allclose(gradient, np.full(27, 2 * x.sum()), rtol=1e-14)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_nested_gets_on_the_pool_they_run_in_do_not_deadlock(depth: int, pool: Executor | None) -> None:
    def total(level: int) -> int:
        if level == 0:
            return 1
        graph = each(lambda _: total(level - 1), 4)
        return sum(dagad_scheduler.get(graph, list(graph), pool=pool, num_workers=4))

    assert total(depth) == 4**depth


@pytest.mark.timeout(60)
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
