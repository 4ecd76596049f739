"""Helpers: do threads join a run when they are needed, again after a pause, and never once it is over?"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from dask._task_spec import Task, TaskRef

from dagad_scheduler import Role, Threads
from dagad_scheduler.running.helpers import Helpers
from support.waiting import PATIENCE


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.001)


def test_threads_join_again_after_one_had_nothing_to_do() -> None:
    barrier = threading.Barrier(3)

    def long() -> None:
        until(lambda: run._idle)  # the helper that ran `short` has nothing to do

    def meet(*_: Any) -> None:
        barrier.wait(PATIENCE)

    graph: dict[Any, Any] = {"long": Task("long", long), "short": Task("short", float)}
    graph |= {i: Task(i, meet, TaskRef("long")) for i in range(3)}
    run = Threads(3).start(graph, [*graph], lambda *_: None)
    run.wait()
    assert run._idle == 0
    assert run.n_workers == 3


def test_after_control_c_in_a_thread_that_waits_no_task_is_started() -> None:
    ran, helping, released = list[str](), threading.Event(), threading.Event()
    main = threading.main_thread()

    def short() -> None:
        ran.append("short")
        assert helping.wait(PATIENCE)

    def long() -> None:
        ran.append("long")
        helping.set()
        until(lambda: run._idle)  # the main thread waits for this one
        assert main.ident is not None
        signal.pthread_kill(main.ident, signal.SIGINT)
        assert released.wait(PATIENCE)

    graph: dict[Any, Any] = {"short": Task("short", short), "long": Task("long", long)}
    graph |= {f"after {i}": Task(f"after {i}", ran.append, TaskRef("long")) for i in range(3)}
    run = Threads(2).start(graph, [*graph], lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    released.set()
    for thread in threading.enumerate():
        if thread.name == "dagad":
            thread.join(PATIENCE)
    assert sorted(ran) == ["long", "short"]


def test_a_run_that_can_start_no_further_thread_is_done_by_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def refused(thread: threading.Thread) -> None:
        asked.append(thread.name)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    ran = list[int]()
    Threads(4).share(3, ran.append, Role.VALUE).wait()
    assert ran == [0, 1, 2]
    run = Threads(4).start({i: Task(i, ran.append, i) for i in range(5)}, range(5), lambda *_: None)
    run.wait()
    assert run.n_workers == 1
    assert sorted(ran[3:]) == [0, 1, 2, 3, 4]
    assert asked == ["dagad", "dagad"]


class Slow(ThreadPoolExecutor):
    """Something happens between what asks for a thread and the answer."""

    meanwhile: Callable[[], Any]

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        self.meanwhile()
        return future


def test_helpers_asked_of_a_full_pool_are_cancelled_when_a_run_is_closed() -> None:
    over, served = threading.Event(), list[int]()
    with Slow(1) as pool:
        pool.meanwhile = int
        pool.submit(over.wait, PATIENCE)  # the pool has other things to do
        helpers = Helpers(4, pool)
        helpers.start_one(lambda: served.append(1))
        pool.meanwhile = lambda: helpers.close(wait=True)
        helpers.start_one(lambda: served.append(2))
        helpers.start_one(lambda: served.append(3))
        assert [future.cancelled() for future in helpers._futures] == [True, True]
        over.set()
    assert served == []


def test_a_run_that_is_closed_waits_for_a_helper_whose_pool_has_not_answered_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended, begun, asked = list[str](), threading.Event(), threading.Event()

    def first() -> None:
        assert begun.wait(PATIENCE)
        pool.meanwhile = lambda: until(lambda: helpers._closed)
        helpers.start_one(second)

    def second() -> None:
        closing.start()
        until(lambda: asked.is_set() or not closing.is_alive())  # until it is waited for, or has been forgotten
        ended.append("second")

    def close() -> None:
        helpers.close(wait=True)
        ended.append("run")

    def exception(future: Future[Any], timeout: float | None = None) -> Any:
        if len(helpers._futures) > 1 and future is helpers._futures[1]:
            asked.set()
        return usual(future, timeout)

    usual, closing = Future.exception, threading.Thread(target=close)
    monkeypatch.setattr(Future, "exception", exception)
    with Slow(2) as pool:
        pool.meanwhile = int
        helpers = Helpers(4, pool)
        helpers.start_one(first)
        begun.set()
        until(lambda: closing.ident is not None)
        closing.join(PATIENCE)
    assert ended == ["second", "run"]


def test_no_helper_joins_a_run_that_is_closed() -> None:
    served: list[int] = []
    helpers = Helpers(4, None)
    helpers.close(wait=True)
    helpers.start_one(lambda: served.append(1))
    assert not helpers._threads
    assert not served
