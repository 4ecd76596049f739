"""Numbered parts: does each run once, in order, on all threads, and what happens when one fails or nobody waits?"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import pytest

from dagad_scheduler import Account, Progress, Role, Sync, Threads
from dagad_scheduler.running.parts import PartsRun
from support.waiting import PATIENCE, until


def share(n_parts: int, run_part: Callable[[int], None], n_threads: int = 2, role: Role = Role.VALUE) -> PartsRun:
    return Threads(n_threads).share(n_parts, run_part, role)


@pytest.mark.parametrize("scheduler", [Sync(), Threads(1), Threads(2), Threads(5)], ids=lambda one: str(one.workers))
@pytest.mark.parametrize("n_parts", [0, 1, 2, 7])
def test_each_part_runs_once_and_they_begin_in_order(scheduler: Threads, n_parts: int) -> None:
    ran = list[int]()
    run = scheduler.share(n_parts, ran.append, Role.VALUE)
    run.wait()
    assert sorted(ran) == list(range(n_parts))
    if scheduler.workers == 1:
        assert ran == sorted(ran)
    assert run.progress() == Progress(n_parts, n_parts)
    assert 1 <= run.n_workers <= scheduler.workers
    assert not [thread for thread in threading.enumerate() if thread.name == "dagad"]


def test_numbered_parts_are_run_by_all_threads_and_the_one_that_waits() -> None:
    barrier, seen = threading.Barrier(3), set[int]()

    def meet(number: int) -> None:
        del number
        seen.add(threading.get_ident())
        barrier.wait(PATIENCE)

    run = share(9, meet, 3)
    run.wait()
    assert len(seen) == run.n_workers == 3
    assert threading.get_ident() in seen


def test_a_pool_lends_its_threads_and_stays_open() -> None:
    barrier, names = threading.Barrier(3), set[str]()

    def meet(number: int) -> None:
        del number
        names.add(threading.current_thread().name.partition("_")[0])
        barrier.wait(PATIENCE)

    with ThreadPoolExecutor(2, thread_name_prefix="lent") as pool:
        Threads(3, pool).share(3, meet, Role.VALUE).wait()
        assert pool.submit(int).result() == 0
    assert names == {"lent", threading.current_thread().name.partition("_")[0]}


def test_a_pool_that_has_no_time_is_not_waited_for() -> None:
    over, ran = threading.Event(), list[int]()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(over.wait, PATIENCE)
        Threads(2, pool).share(4, ran.append, Role.VALUE).wait()
        over.set()
    assert ran == [0, 1, 2, 3]


def test_a_pool_that_is_shut_down_meanwhile_is_named() -> None:
    def shut(number: int) -> None:
        if number == 0:  # of the thread that waits; the pool's own takes the next two
            until(lambda: run._helpers._futures[0].done())
        elif number == 1:
            pool.shutdown(wait=False)

    pool = ThreadPoolExecutor(1)
    run: Any = Threads(6, pool).share(4, shut, Role.VALUE)
    with pytest.raises(RuntimeError, match="after shutdown"):
        run.wait()


def test_of_several_failures_that_of_the_first_part_is_raised() -> None:
    barrier = threading.Barrier(3)

    def fail(number: int) -> None:
        barrier.wait(PATIENCE)
        raise ValueError(number)

    for _ in range(20):
        with pytest.raises(ValueError, match="0"):
            share(9, fail, 3).wait()


def test_after_a_failure_no_part_is_started() -> None:
    ran = list[int]()

    def fail(number: int) -> None:
        ran.append(number)
        raise KeyError(number)

    run = share(9, fail, 1)
    with pytest.raises(KeyError, match="0"):
        run.wait()
    assert ran == [0]
    assert run.progress() == Progress(0, 9)


def test_a_cancelled_run_of_parts_starts_none_and_says_so() -> None:
    ran = list[int]()

    def once(number: int) -> None:
        ran.append(number)
        run.cancel()

    run = share(9, once, 1, Role.PULLBACK)
    with pytest.raises(CancelledError):
        run.wait()
    assert ran == [0]
    assert run.progress() == Progress(0, 0, 1, 9)
    never = share(3, ran.append)
    never.cancel()
    with pytest.raises(CancelledError):
        never.wait()
    assert ran == [0]


def test_a_run_of_parts_cancelled_in_its_last_part_has_ended() -> None:
    def last(number: int) -> None:
        if number == 2:
            run.cancel()

    run = share(3, last, 1)
    run.wait()
    assert run.progress() == Progress(3, 3)


def test_a_run_of_parts_accounts_for_its_seconds_by_role() -> None:
    def work(number: int) -> None:
        sum(range(1000 + number))

    for role, name in ((Role.VALUE, "value"), (Role.VALUE_AND_GRAD, "value"), (Role.PULLBACK, "pullback")):
        run = share(5, work, role=role)
        run.wait()
        account = run.account(detailed=True)
        assert set(account.seconds) == {name}
        assert account.seconds[name] > 0
        assert run.cpu_seconds > 0
    assert share(0, work).account() == Account({})


def test_threads_of_a_run_of_parts_start_nothing_after_control_c() -> None:
    ran, helping, released = list[int](), threading.Event(), threading.Event()
    main: Any = threading.main_thread().ident

    def part(number: int) -> None:
        ran.append(number)
        if threading.get_ident() == main:
            assert helping.wait(PATIENCE)
            signal.raise_signal(signal.SIGINT)
        helping.set()
        assert released.wait(PATIENCE)

    run = share(9, part)
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    released.set()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "dagad"])
    assert sorted(ran) == [0, 1]
