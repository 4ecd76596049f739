"""Threads of members: kept for the next call of a loop, ended where there is none."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import threading
from typing import Any

import numpy as np
import pytest

import dagad
from dagad._executors.members import Meeting
from dagad._executors.members_threads import MemberThread, MemberThreads
from support.waiting import PATIENCE, in_background, until

ROWS = np.arange(12.0)
THETAS = np.arange(1.0, 5.0)


def loss(theta: Any) -> Any:
    return dagad.reduce_sum(lambda rows, t: np.sum(rows * t), ROWS, theta, grainsize=4, scheduler="sync")


def running() -> list[threading.Thread]:
    """Return the threads of members that there are."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("dagad-member")]


def kept(threads: MemberThreads) -> Any:
    """Return a thread that is kept after it has done something."""
    thread, over = threads.take(), threading.Event()
    thread.begin("dagad-member-0", over.set)
    assert over.wait(PATIENCE)
    return thread


def test_members_of_a_loop_run_in_the_threads_of_the_call_before_and_these_end_when_it_is_over() -> None:
    seen = list[Any]()

    def fun(theta: Any) -> Any:
        seen.append(threading.current_thread())
        return loss(theta) + loss(theta)

    threads = MemberThreads()
    threads.begin_call()
    threads.begin_call()

    for _ in range(3):
        acts = [functools.partial(fun, theta) for theta in THETAS]
        assert Meeting(loss, acts, threads).run() == [2.0 * loss(theta) for theta in THETAS]
    assert len(set(seen)) < len(seen) == 3 * len(THETAS)
    until(lambda: not running())


def test_a_thread_that_is_kept_is_taken_again_and_has_the_name_of_the_member() -> None:
    threads = MemberThreads()
    threads.begin_call()
    threads.begin_call()
    thread, over, names = kept(threads), threading.Event(), list[str]()
    until(lambda: thread in threads._idle or not thread.is_alive())

    def act() -> None:
        names.append(threading.current_thread().name)
        over.set()

    again = threads.take()
    again.begin("dagad-member-7", act)
    assert over.wait(PATIENCE)
    assert names == ["dagad-member-7"]
    again.join(PATIENCE)
    assert not again.is_alive()


def test_threads_of_a_first_call_end_with_it() -> None:
    threads = MemberThreads()
    threads.begin_call()
    thread = kept(threads)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert not threads._idle


def test_a_thread_that_has_ended_is_not_taken() -> None:
    threads = MemberThreads()
    threads.begin_call()
    thread = kept(threads)
    thread.join(PATIENCE)
    threads.keep(thread)
    threads._idle.append(thread)  # as in a process that was forked
    assert threads.take() is not thread


def test_a_function_of_many_members_travels_without_its_threads() -> None:
    threads = MemberThreads()
    threads.begin_call()
    threads.begin_call()
    kept(threads)
    there = pickle.loads(pickle.dumps(threads))
    assert not there._idle
    assert not there.are_kept


@pytest.mark.parametrize("n_calls", [1, 3])
def test_an_error_in_a_member_ends_the_threads_of_all(n_calls: int) -> None:
    calls = list[int]()

    def fun(theta: Any) -> Any:
        if len(calls) == n_calls and theta == THETAS[2]:
            raise KeyError("this one")
        return loss(theta)

    def all_calls() -> None:
        vmapped = dagad.vmap(fun)
        for number in range(n_calls):
            calls.append(number)
            vmapped(THETAS)

    with pytest.raises(KeyError, match="this one"):
        all_calls()
    until(lambda: not running())


def before_it_knows(thread: Any, name: str, act: Any) -> None:
    del thread, name, act


def before_it_is_released(thread: Any, name: str, act: Any) -> None:
    thread.name, thread._act = name, act


def when_it_is_released(thread: Any, name: str, act: Any) -> None:
    STOCK(thread, name, act)


STOCK = MemberThread.begin


@pytest.mark.parametrize("step", [before_it_knows, before_it_is_released, when_it_is_released])
@pytest.mark.parametrize("n_calls", [1, 2])
def test_an_interrupt_at_any_step_of_beginning_a_member_ends_the_call(
    n_calls: int, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagad._executors.members_threads.MOST_LOOKS", 2)
    threads, acts = MemberThreads(), [functools.partial(loss, theta) for theta in THETAS]
    for _ in range(n_calls):
        threads.begin_call()
        expected = Meeting(loss, acts, threads).run()

    def interrupted(*args: Any) -> None:
        step(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(MemberThread, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        in_background(Meeting(loss, acts, threads).run).result(PATIENCE)
    monkeypatch.setattr(MemberThread, "begin", STOCK)
    assert Meeting(loss, acts, threads).run() == expected
    until(lambda: not running())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # which this is about
def test_a_member_that_forks_leaves_a_process_in_which_it_waits_for_nobody() -> None:
    def fun(theta: Any) -> Any:
        found, child = loss(theta), os.fork()
        if not child:
            signal.alarm(int(PATIENCE))  # or it would wait for ever
            os._exit(0 if loss(theta) == found else 1)
        assert os.waitpid(child, 0)[1] == 0
        return found

    assert list(dagad.vmap(fun)(THETAS[:2])) == [loss(theta) for theta in THETAS[:2]]
