"""Locks that members hold over a reduction: does the one go on that others wait for, with the bits it has alone?"""

from __future__ import annotations

import functools
import os
import queue
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad
import dagad.solvers
from dagad._executors import members, members_locks
from dagad._executors.members_locks import waits_for_lock
from support.gated_chunks import bits
from support.waiting import PATIENCE, in_background, until

X = np.random.default_rng(0).standard_normal((22, 3))
THETAS = np.random.default_rng(1).standard_normal((5, 3))


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members_locks, "LOOK", 0.02)


def loss(theta: Any) -> Any:
    return dagad.reduce_sum(lambda rows, t: np.sum(np.tanh(rows * t) ** 2), X, theta, grainsize=4, scheduler="sync")


def finished(act: Callable[[], Any]) -> Any:
    """Return what a function returns, which may hang."""
    return in_background(act).result(PATIENCE)


Program = Callable[[Any], Any]


def with_a_lock(lock: Any) -> Program:
    def fun(theta: Any) -> Any:
        with lock:
            first = loss(theta)
            second = loss(theta + first)
        return first + loss(theta + second)

    return fun


def with_acquire(lock: Any) -> Program:
    def fun(theta: Any) -> Any:
        first = loss(theta)
        lock.acquire()
        try:
            return loss(theta + first)
        finally:
            lock.release()

    return fun


def with_two_locks(one: Any) -> Program:
    other = threading.Lock()

    def fun(theta: Any) -> Any:
        with one:
            first = loss(theta)
            with other:
                second = loss(theta + first)
        with other:
            return first + loss(theta + second)

    return fun


def with_a_list(lock: Any) -> Program:
    """What members share is theirs while they hold the lock."""
    shared = [0.0]

    def fun(theta: Any) -> Any:
        with lock:
            shared[0] = float(theta[0])
            return dagad.reduce_sum(lambda rows: np.sum(rows) * shared[0], X, grainsize=4, scheduler="sync")

    return fun


LOCKS: dict[str, Callable[[], Any]] = {
    "Lock": threading.Lock,
    "RLock": threading.RLock,
    "Condition": threading.Condition,
}
PROGRAMS = [with_a_lock, with_acquire, with_two_locks, with_a_list]


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_members_that_hold_a_lock_over_a_reduction_have_the_bits_that_each_has_alone(make: Any, lock: str) -> None:
    fun = make(LOCKS[lock]())
    expected = [fun(theta) for theta in THETAS]
    before = set(threading.enumerate())
    vmapped = dagad.vmap(fun)
    for _ in range(2):
        assert bits(list(finished(lambda: vmapped(THETAS)))) == bits(expected)
    until(lambda: before.issuperset(threading.enumerate()))


class Model:
    def __init__(self, theta: Any) -> None:
        self.theta = theta

    @functools.cached_property  # in Python 3.11 all instances have one lock
    def loss(self) -> Any:
        return loss(self.theta)


def test_members_may_reduce_in_a_cached_property() -> None:
    expected = [Model(theta).loss for theta in THETAS]
    assert bits(list(finished(lambda: dagad.vmap(lambda theta: Model(theta).loss)(THETAS)))) == bits(expected)


def test_members_of_members_may_wait_for_a_lock_that_an_outer_one_holds() -> None:
    lock = threading.Lock()

    def outer(theta: Any) -> Any:
        if theta[0] == THETAS[0, 0]:
            with lock:
                return loss(theta) + np.zeros(3)
        return dagad.vmap(with_a_lock(lock))(THETAS[:3] * theta)

    expected = [outer(theta) for theta in THETAS]
    assert bits(list(finished(lambda: dagad.vmap(outer)(THETAS)))) == bits(expected)


def test_an_error_of_one_that_holds_a_lock_is_raised_and_ends_the_others() -> None:
    lock, before = threading.Lock(), set(threading.enumerate())

    def fun(theta: Any) -> Any:
        with lock:
            if loss(theta) == loss(THETAS[0]):
                raise KeyError("this one")
        return loss(theta)

    with pytest.raises(KeyError, match="this one") as caught:
        finished(lambda: dagad.vmap(fun)(THETAS))
    assert "dagad: member 0 of a `dagad.vmap`" in caught.value.__notes__
    until(lambda: before.issuperset(threading.enumerate()))
    assert not lock.locked()


def test_a_change_of_what_a_member_with_a_lock_waits_to_use_is_refused() -> None:
    lock, shared = threading.Lock(), [0.0]

    def fun(theta: Any) -> Any:
        if not np.array_equal(theta, THETAS[0]):
            shared[0] += 1.0
        with lock:
            return dagad.reduce_sum(lambda rows: np.sum(rows) * shared[0], X, grainsize=4, scheduler="sync")

    with pytest.raises(dagad.ClosureError, match=r"`shared`.*run one by one"):
        finished(lambda: dagad.vmap(fun)(THETAS))


def test_an_interrupt_ends_members_that_wait_for_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, before = threading.Lock(), set(threading.enumerate())

    def interrupt(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("dagad._executors.members.Meeting._part", interrupt)
    with pytest.raises(KeyboardInterrupt):
        dagad.vmap(with_a_lock(lock))(THETAS)
    assert before.issuperset(threading.enumerate())
    assert not lock.locked()


def test_members_that_have_waited_for_locks_of_each_other_go_one_by_one_from_then_on(monkeypatch: Any) -> None:
    vmapped, began = dagad.vmap(with_a_lock(threading.Lock())), list[int]()
    meet = members.Meeting.run

    def noted(meeting: Any) -> Any:
        began.append(1)
        return meet(meeting)

    monkeypatch.setattr(members.Meeting, "run", noted)
    for _ in range(3):
        finished(lambda: vmapped(THETAS))
    assert began == [1]


def test_cobyqa_of_scipy_runs_one_member_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock is held while it calls the function: they neither hang nor wait until somebody looks."""
    monkeypatch.setattr(members_locks, "LOOKS", 10**9)
    scipy = pytest.importorskip("dagad.interop.scipy")

    def fun(theta: Any) -> Any:
        return scipy.minimize(lambda x: loss(x) + np.sum((x - theta) ** 2), theta, method="COBYQA").x

    def by_scipy(theta: Any) -> Any:
        return dagad.solvers.minimize(lambda x: loss(x) + np.sum((x - theta) ** 2), theta, method="COBYQA").x

    thetas = THETAS[:3]
    for solve in (fun, by_scipy):
        expected, vmapped = [solve(theta) for theta in thetas], dagad.vmap(solve)
        assert bits(list(finished(functools.partial(vmapped, thetas)))) == bits(expected)


# Where a thread stands


def takes_by_with(lock: Any) -> None:
    with lock:
        pass


def takes_by_call(lock: Any) -> None:
    lock.acquire(True, -1)
    lock.release()


def takes_in_a_dict(lock: Any) -> None:
    locks = {"a": [lock]}
    with locks["a"][0]:
        pass


@pytest.mark.parametrize("take", [takes_by_with, takes_by_call, takes_in_a_dict], ids=lambda take: take.__name__)
@pytest.mark.parametrize("lock", LOCKS)
def test_a_thread_that_takes_a_lock_which_another_holds_is_seen_to_wait(take: Any, lock: str) -> None:
    held = LOCKS[lock]()
    with held:
        thread = threading.Thread(target=take, args=(held,))
        thread.start()
        until(lambda: waits_for_lock(thread))
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert not waits_for_lock(thread)


def waits_for_an_event(event: threading.Event, lock: Any) -> None:
    event.wait()


def waits_for_a_queue(event: threading.Event, lock: Any) -> None:
    with lock:
        own = queue.Queue[int]()
        threading.Thread(target=lambda: own.put(int(event.wait())), daemon=True).start()
        own.get()


def waits_in_a_call_after_a_lock(event: threading.Event, lock: Any) -> None:
    lock.acquire()
    waits = event.wait
    list(map(lambda wait: wait(), [waits]))
    lock.release()


WAITING = [waits_for_an_event, waits_for_a_queue, waits_in_a_call_after_a_lock]


@pytest.mark.parametrize("wait", WAITING, ids=lambda wait: wait.__name__)
def test_a_thread_that_waits_for_others_at_work_is_not_seen_to_wait_for_a_lock(wait: Any) -> None:
    event, begun, seen = threading.Event(), threading.Event(), list[bool]()

    def run() -> None:
        begun.set()
        wait(event, threading.Lock())

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait(PATIENCE)
    until(lambda: members_locks.stack_of(thread)[0][0].co_name == "wait")
    seen.extend(waits_for_lock(thread) for _ in range(100))
    event.set()
    thread.join(PATIENCE)
    assert not any(seen)
