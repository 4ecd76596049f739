"""Callbacks: do Dask's bars, profilers and caches see what runs in our threads, and are they given back?"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from multiprocessing.pool import Pool, ThreadPool
from typing import Any

import autograd.numpy as anp
import dask
import dask.array
import dask.local
import dask.threaded
import numpy as np
import pytest
from dask._task_spec import DataNode, Task, TaskRef
from dask.base import compute
from dask.callbacks import Callback
from dask.delayed import delayed
from dask.diagnostics.profile import CacheProfiler, Profiler, ResourceProfiler
from dask.diagnostics.progress import ProgressBar

import dagad
import dagad_scheduler
from dagad._executors import planning
from dagad._remembered import Remembered
from support.waiting import PATIENCE

GETS = [dagad.get, dask.threaded.get, dask.local.get_sync]


@pytest.fixture(autouse=True)
def _given_back() -> Any:
    yield
    assert not Callback.active


class Log(Callback):
    """Writes down what it is told, after checking that it fits together."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.keys: list[Any] = []

    def _start(self, dsk: Any) -> None:
        self.told.append("start")

    def _start_state(self, dsk: Any, state: Any) -> None:
        self.told.append(("state", len(state["waiting"]) + len(state["ready"])))

    def _pretask(self, key: Any, dsk: Any, state: Any) -> None:
        assert key in state["running"]
        assert key not in state["ready"]
        self.told.append("pre")

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker: Any) -> None:
        assert key in state["finished"]
        assert key not in state["running"]
        assert state["cache"].get(key) is result or key in state["released"]
        self.keys.append(key)
        self.told.append("post")

    def _finish(self, dsk: Any, state: Any, failed: bool) -> None:
        self.told.append(("finish", failed))


def ladder(n: int) -> dict[Any, Any]:
    graph: dict[Any, Any] = {"x": DataNode("x", 1)}
    for i in range(n):
        graph["a", i] = Task(("a", i), pow, TaskRef("x"), i)
        graph["b", i] = Task(("b", i), max, TaskRef(("a", i)), TaskRef(("a", (i + 1) % n)))
    graph["y"] = Task("y", max, *[TaskRef(("b", i)) for i in range(n)])
    return graph


@pytest.mark.parametrize("get", GETS, ids=["ours", "threaded", "sync"])
def test_all_five_callbacks_are_called_as_by_dasks_own_get(get: Any) -> None:
    log = Log()
    with log:
        assert get(ladder(10), ["y", ("a", 3)]) == (1, 1)
        assert Callback.active
    assert log.told[:2] == ["start", ("state", 21)]
    assert log.told[-1] == ("finish", False)
    assert sorted(log.told[2:-1]) == ["post"] * 21 + ["pre"] * 21
    assert set(log.keys) == ladder(10).keys() - {"x"}


@pytest.mark.parametrize("get", GETS, ids=["ours", "threaded", "sync"])
def test_callbacks_hear_of_a_failure_and_their_own_exceptions_come_out(get: Any) -> None:
    log = Log()
    with log, pytest.raises(ZeroDivisionError):
        get({"x": Task("x", divmod, 1, 0)}, "x")
    assert log.told[-1] == ("finish", True)

    def refuse(*args: Any) -> None:
        raise LookupError("a callback's own")

    for kind in ("start", "pretask", "posttask"):
        with Callback(**{kind: refuse}), pytest.raises(LookupError, match="own"):
            get(ladder(3), "y")


def test_only_the_outermost_get_calls_callbacks() -> None:
    log = Log()

    def inner(i: int) -> Any:
        return compute(delayed(pow)(i, 2), scheduler=dagad.get)[0]

    with log:
        graph = {i: Task(i, inner, i) for i in range(4)}
        assert dagad.get(graph, [0, 1, 2, 3]) == (0, 1, 4, 9)
    assert log.told.count("post") == 4


def test_callbacks_of_one_call_replace_those_that_are_active() -> None:
    log, active = Log(), Log()
    with active:
        dagad.get(ladder(2), "y", callbacks=[log._callback])
    assert "post" in log.told
    assert not active.told


def test_dasks_diagnostics_see_our_threads() -> None:
    x = dask.array.ones((40, 40), chunks=10)
    out = StringIO()
    with ProgressBar(out=out), Profiler() as profiler, CacheProfiler() as held, ResourceProfiler(dt=0.01):
        assert (x + 1).sum().compute(scheduler=dagad.get) == 3200.0
    assert "100% Completed" in out.getvalue()
    assert len(profiler.results) >= 17
    assert len({task.worker_id for task in profiler.results}) >= 1
    assert len(held.results) == len(profiler.results)


def test_a_callback_may_change_the_graph_before_it_starts() -> None:
    ran: list[int] = []

    def spare(graph: Any) -> None:  # as `dask.cache.Cache` does
        graph[3] = DataNode(3, "from a cache")

    log = Log()
    with Callback(start=spare), log:
        assert dagad.get({i: Task(i, ran.append, i) for i in range(5)}, [3, 4]) == ("from a cache", None)
    assert ran == log.keys == [4]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("local", ["sync", "threads"])
def test_a_bar_around_a_reduction_sees_its_chunks(local: str) -> None:
    x = np.arange(8.0)

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: anp.sum(rows * t), x, theta, grainsize=1, scheduler=local)

    expected = dagad.value_and_grad(loss)(2.0)
    calls: list[Any] = [
        lambda: loss(2.0),
        lambda: dagad.value_and_grad(loss)(2.0)[0],
        lambda: dagad.vjp(loss, 2.0)[0],
    ]
    for call in calls:
        for _ in range(3):  # also when it is known that threads do not pay
            log, out = Log(), StringIO()
            with log, ProgressBar(out=out):
                assert call() == expected[0]
            values = [key for key in log.keys if key[0].startswith(("dagad-value-", "dagad-valuegrad-"))]
            assert len(values) == 8
            assert "100% Completed" in out.getvalue()


def test_an_evaluation_in_a_thread_of_its_own_leaves_callbacks_alone() -> None:
    begun, over = threading.Event(), threading.Event()

    def wait(rows: Any, theta: Any) -> Any:
        begun.set()
        assert over.wait(PATIENCE)
        return rows[0] * theta

    log = Log()
    with log:
        evaluation = dagad.evaluate(
            lambda t: dagad.reduce_sum(wait, np.ones(2), t, grainsize=1, scheduler="threads"), 3.0
        )
        assert begun.wait(PATIENCE)
    assert not Callback.active
    over.set()
    assert evaluation.value(PATIENCE) == 6.0
    assert evaluation.gradient(PATIENCE) == 2.0
    assert not log.told


# pool=


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ThreadPool])
@pytest.mark.parametrize("by", ["argument", "setting"])
def test_as_many_tasks_run_at_once_as_the_pool_has_threads(kind: Any, by: str, monkeypatch: Any) -> None:
    # Chunks that took no time when they ran before would run one after the other.
    monkeypatch.setattr(planning, "_HISTORIES", Remembered(1))
    barrier, seen = threading.Barrier(20), set[int]()

    def meet(i: int) -> int:
        seen.add(threading.get_ident())
        barrier.wait(PATIENCE)
        return i

    graph = {i: Task(i, meet, i) for i in range(40)}
    with kind(20) as pool:
        if by == "argument":
            assert dagad.get(graph, list(range(40)), pool=pool) == tuple(range(40))
        else:
            with dask.config.set(pool=pool):
                assert dagad.get(graph, list(range(40))) == tuple(range(40))
                total = dagad.reduce_sum(lambda rows: float(meet(1)), np.ones(20), grainsize=1, scheduler="threads")
                assert total == 20.0
        assert pool.submit(abs, -1).result() == 1 if kind is ThreadPoolExecutor else pool.apply(abs, (-1,)) == 1
    assert len(seen) >= 20


def test_a_pool_of_processes_is_refused_with_the_remedy() -> None:
    wrong: Any = object.__new__(Pool)
    wrong.__dict__["_state"] = "CLOSE"  # nothing to warn about when it goes
    with pytest.raises(TypeError, match=r"`pool` is a Pool, .*or give the pool as `scheduler=`"):
        dagad_scheduler.get({"x": Task("x", abs, -1)}, "x", pool=wrong)
