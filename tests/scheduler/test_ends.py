"""Ends: does a run that is cancelled, late, broken or interrupted end as it should, and does the next one work?"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import pytest
from dask._task_spec import Task

from dagad_scheduler import Sync, Threads
from support.thread_graphs import LOCAL, each, increase, nothing
from support.waiting import PATIENCE


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


def test_cancelling_a_run_on_threads_that_is_done_changes_nothing() -> None:
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
def test_an_exception_of_a_task_comes_out_of_get_and_the_next_run_works(scheduler: Threads) -> None:
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


def test_an_exception_of_on_result_comes_out_of_a_run() -> None:
    def refuse(key: Any, result: Any) -> None:
        raise ValueError(f"no room for {key}")

    with pytest.raises(ValueError, match="no room for a"):
        Threads(2).start({"a": Task("a", increase, 1)}, ["a"], refuse).wait()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_exception_that_ends_a_program_comes_out_of_any_thread(error: type[BaseException]) -> None:
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


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
@pytest.mark.parametrize(
    ("where", "scheduler"), [("in_the_chunk", "sync"), ("in_the_chunk", "threads"), ("while_waiting", "threads")]
)
def test_control_c_ends_the_call_and_the_next_one_works(where: str, scheduler: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, where, scheduler]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "interrupt me\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
    assert not errors
    assert (output, process.returncode) == ("done\n", 0)
