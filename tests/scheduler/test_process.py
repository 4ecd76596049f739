"""Process: what do chunks find in the process they run in, and is it given back as it was?"""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import autograd.numpy as anp
import dask
import numpy as np
import pytest
import threadpoolctl
from dask._task_spec import DataNode, Task, TaskRef
from distributed import Client

import dagad
from dagad.extend import Keep, Preaccumulate, explicit
from dagad_scheduler import Names, Role, process
from dagad_scheduler.process import (
    COLLECT_AFTER,
    Library,
    _ProcessSettings,
    calmed,
    patient_collector,
    process_settings,
    run_calmly,
)
from dagad_scheduler.run import is_inside_task
from support.waiting import PATIENCE


def blas_threads() -> int:
    found = [library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"]
    return max(found, default=1)


def state() -> tuple[Any, ...]:
    return blas_threads(), gc.get_threshold(), gc.isenabled()


@pytest.fixture(autouse=True)
def before() -> Iterator[tuple[Any, ...]]:
    """Two BLAS threads and a collector as Python has it; whatever happens, both are found again afterwards.

    Tapes that live on from tests before, in the traceback of one that failed, say, would have the collector held still.
    """
    stock = gc.get_threshold()
    process.process_settings.spared = set()
    with threadpoolctl.threadpool_limits(limits=2, user_api="blas"):
        if blas_threads() < 2:
            pytest.skip("this BLAS has one thread only")
        gc.set_threshold(700, 10, 10)
        found = state()
        yield found
        until(lambda: state() == found)
    gc.set_threshold(*stock)


def until(condition: Callable[[], Any]) -> None:
    """Wait, for threads that are on their way out, say."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, state()
        time.sleep(0.002)


def most_blas_threads(rows: Any, theta: Any = 0.0) -> Any:
    return float(blas_threads()) + 0.0 * theta


def collector(rows: Any, theta: Any = 0.0) -> Any:
    return np.array([float(gc.get_threshold()[0]), float(gc.isenabled())]) + 0.0 * theta


# BLAS and the collector


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_chunk_has_one_blas_thread(scheduler: Any) -> None:
    def total(theta: Any) -> Any:
        return dagad.reduce_sum(most_blas_threads, np.zeros(4), theta, grainsize=1, scheduler=scheduler)

    assert dagad.reduce_sum(most_blas_threads, np.zeros(4), grainsize=1, scheduler=scheduler) == 4.0
    assert dagad.value_and_grad(total)(1.0)[0] == 4.0
    assert dagad.vjp(total, 1.0)[0] == 4.0


def test_a_chunk_has_a_patient_collector(scheduler: Any) -> None:
    found = dagad.reduce_sum(collector, np.zeros(4), grainsize=1, scheduler=scheduler)
    assert found.tolist() == [4.0 * COLLECT_AFTER, 4.0]


def test_a_pullback_has_one_blas_thread_and_a_patient_garbage_collector(scheduler: Any) -> None:
    @explicit
    def fun(rows: Any, theta: Any) -> Any:
        return 0.0, lambda seed: (None, np.array([float(blas_threads()), float(gc.get_threshold()[0])]))

    def total(theta: Any) -> Any:
        return dagad.reduce_sum(fun, np.zeros(3), theta, grainsize=1, policy=Keep(), scheduler=scheduler)

    assert dagad.grad(total)(np.zeros(2)).tolist() == [3.0, 3.0 * COLLECT_AFTER]


def test_an_evaluation_has_one_blas_thread_though_another_thread_used_blas_before() -> None:
    def total(theta: Any) -> Any:
        return dagad.reduce_sum(most_blas_threads, np.zeros(3), theta, grainsize=1, scheduler="threads")

    assert dagad.value_and_grad(total)(0.0)[0] == 3.0
    evaluation = dagad.evaluate(total, 0.0)
    assert evaluation.value(PATIENCE) == 3.0
    evaluation.gradient(PATIENCE)


def test_a_reduction_in_a_thread_of_the_users_own_has_one_blas_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        total = pool.submit(dagad.reduce_sum, most_blas_threads, np.zeros(3), grainsize=1, scheduler="sync")
        assert total.result(PATIENCE) == 3.0
        assert pool.submit(blas_threads).result(PATIENCE) == 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("local", ["sync", "threads"])
def test_blas_threads_and_collector_are_given_back_after_an_error(error: type[BaseException], local: str) -> None:
    def fail(rows: Any, theta: Any) -> Any:
        if rows[0] == 2:
            raise error
        return anp.sum(rows * theta)

    with pytest.raises(error):
        dagad.grad(lambda theta: dagad.reduce_sum(fail, np.arange(4.0), theta, grainsize=1, scheduler=local))(1.0)


def test_blas_threads_and_collector_are_given_back_when_a_helper_leaves_last(before: Any) -> None:
    barrier, released = threading.Barrier(2), threading.Event()

    def work(rows: Any) -> float:
        barrier.wait(PATIENCE)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt  # the one error that does not wait for the helpers
        assert released.wait(PATIENCE)
        return 0.0

    threads = threading.active_count()
    with dask.config.set(num_workers=2), pytest.raises(KeyboardInterrupt):
        dagad.reduce_sum(work, np.zeros(2), grainsize=1, scheduler="threads")
    assert state()[0] == 1  # there is still a chunk
    released.set()
    for thread in threading.enumerate():
        if thread.name.startswith("dagad"):
            thread.join(PATIENCE)
    assert threading.active_count() == threads
    assert state() == before


def test_holds_of_the_process_may_be_nested(before: Any) -> None:
    with process_settings:
        held = state()
        assert held == (1, (COLLECT_AFTER, 10, 10), True)
        with process_settings:
            assert state() == held
        assert state() == held
    assert state() == before


def test_holds_of_the_process_by_several_threads_may_overlap_in_any_order(before: Any) -> None:
    with ThreadPoolExecutor(1) as a, ThreadPoolExecutor(1) as b:
        for first, last in [(a, b), (b, a), (a, a), (b, b)]:
            a.submit(process_settings.__enter__).result()
            assert state()[0] == 1
            b.submit(process_settings.__enter__).result()
            first.submit(process_settings.__exit__).result()
            assert state()[0] == 1
            last.submit(process_settings.__exit__).result()
            assert state() == before


@pytest.mark.whole("many rounds, workers or bytes: the same is seen of few here")
def test_many_threads_may_hold_and_release_the_process_at_once(before: Any) -> None:
    def enter_and_leave(_: int) -> int:
        with process_settings:
            return blas_threads()

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(enter_and_leave, range(200))) == {1}
    assert state() == before


def test_an_interrupt_on_the_way_in_does_not_leave_the_process_held(before: Any) -> None:
    calm = _ProcessSettings()

    def interrupt(frame: Any, event: str, arg: Any) -> None:
        if frame.f_code is _ProcessSettings._hold.__code__:
            raise KeyboardInterrupt

    tracer = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            calm.__enter__()
    finally:
        sys.settrace(tracer)
    assert state() == before
    with calm:
        assert state()[0] == 1
    assert state() == before


@pytest.mark.parametrize("threshold", [(0, 10, 10), (COLLECT_AFTER * 2, 5, 5)], ids=["off", "more patient"])
def test_a_collector_that_is_more_patient_already_is_left_alone(threshold: tuple[int, int, int]) -> None:
    gc.set_threshold(*threshold)
    with process_settings:
        assert gc.get_threshold() == threshold
    assert gc.get_threshold() == threshold
    gc.set_threshold(700, 10, 10)


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with process_settings:
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


class Knot:
    """Garbage that only the collector can free."""

    def __init__(self) -> None:
        self.me = self


def test_cyclic_garbage_of_a_chunk_is_still_collected() -> None:
    def tie(rows: Any) -> float:
        first = weakref.ref(Knot())
        knots = 0
        while first() is not None and knots < 2 * COLLECT_AFTER:
            Knot()
            knots += 1
        return float(first() is None)

    assert dagad.reduce_sum(tie, np.zeros(1), grainsize=1, scheduler="sync") == 1.0


# The wrapper of tasks that leave


def test_a_wrapped_task_has_one_blas_thread_and_knows_that_it_is_one() -> None:
    assert run_calmly(lambda *args, **kwargs: (blas_threads(), is_inside_task(), args, kwargs), 1, a=2) == (
        1,
        True,
        (1,),
        {"a": 2},
    )
    assert not is_inside_task()


def test_only_values_and_pullbacks_of_a_graph_are_wrapped_to_hold_the_process() -> None:
    names = Names("t")
    graph: dict[Any, Any] = {names(role, 0): Task(names(role, 0), float, 1.0) for role in Role}
    graph["data"] = DataNode("data", 1.0)
    wrapped = {key for key, node in calmed(graph).items() if getattr(node, "func", None) is run_calmly}
    assert wrapped == {names(role, 0) for role in (Role.VALUE, Role.VALUE_AND_GRAD, Role.PULLBACK)}


def test_a_wrapped_task_keeps_its_key_and_its_dependencies() -> None:
    key = Names("t")(Role.VALUE, 0)
    graph: dict[Any, Any] = {"x": DataNode("x", 2.0), key: Task(key, pow, TaskRef("x"), 3.0)}
    node = calmed(graph)[key]
    assert (node.key, node.dependencies) == (key, {"x"})
    assert node({"x": 2.0}) == 8.0


# Tapes that live on


def long_tape(rows: Any, theta: Any) -> Any:
    """Make some 150,000 containers."""
    total = 0.0
    for _ in range(7_500):
        total = total + 1e-3 * theta
    return total * rows[0]


def pullback_of(length: Callable[..., Any], scheduler: str) -> Any:
    return dagad.vjp(
        lambda theta: dagad.reduce_sum(length, np.ones(1), theta, grainsize=1, policy=Keep(), scheduler=scheduler), 1.0
    )[1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("local", ["sync", "threads"])
def test_the_collector_is_held_back_for_as_long_as_large_tapes_live(local: str, before: Any) -> None:
    pullbacks = [pullback_of(long_tape, local) for _ in range(2)]
    assert state() == (2, (COLLECT_AFTER, 10, 10), True)
    assert pullbacks.pop()(1.0) == (pytest.approx(7.5),)
    assert state()[1] == (COLLECT_AFTER, 10, 10)
    assert pullbacks.pop()(1.0) == (pytest.approx(7.5),)
    assert state() == before


def test_a_small_tape_that_lives_on_holds_nothing_back(before: Any) -> None:
    gc.collect()
    pullback = pullback_of(lambda rows, theta: rows[0] * theta, "sync")
    assert state() == before
    assert pullback(1.0) == (1.0,)


def test_tapes_that_live_on_are_walked_once_each_and_never_all_of_them_again(before: Any) -> None:
    walks: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            walks.append(info["generation"])

    gc.collect()
    gc.callbacks.append(note)
    try:
        pullbacks = [pullback_of(long_tape, "sync") for _ in range(4)]  # fewer than `COLLECT_AFTER` containers in all
        n_large = sum(gc.get_threshold()[0] == COLLECT_AFTER for _ in pullbacks)
        during = len(walks)
    finally:
        gc.callbacks.remove(note)
    assert n_large == 4
    assert not [generation for generation in walks if generation]
    assert during <= 30  # by the stock collector before the first tape, and between the runs: only what is young
    del pullbacks
    assert state() == before


def test_objects_are_neither_frozen_nor_thawed_for_the_collector_by_tapes(before: Any) -> None:
    gc.collect()
    knot = Knot()
    forgotten = weakref.ref(knot)
    del knot
    gc.freeze()  # a user's own
    try:
        frozen = gc.get_freeze_count()
        later = Knot()
        seen = weakref.ref(later)
        pullbacks = [pullback_of(long_tape, "sync") for _ in range(2)]
        del later
        assert gc.get_freeze_count() <= frozen
        assert gc.get_freeze_count() > 0.9 * frozen
        gc.collect()
        assert seen() is None  # with large tapes alive a user's garbage goes when the user asks for it
        assert forgotten() is not None
        del pullbacks
    finally:
        gc.unfreeze()
    assert state() == before


# Others


def test_blas_threads_and_thresholds_that_a_chunk_sets_stay() -> None:
    def meddle(rows: Any) -> float:
        gc.set_threshold(5_000, 5, 5)
        for library in threadpoolctl.ThreadpoolController().lib_controllers:
            if library.user_api == "blas":
                Library.of(library).set_n_threads(3)
        return 0.0

    found = blas_threads()
    dagad.reduce_sum(meddle, np.zeros(1), grainsize=1, scheduler="sync")
    assert state() == (3, (5_000, 5, 5), True)
    with process_settings:
        assert state() == (1, (COLLECT_AFTER, 5, 5), True)
    assert state() == (3, (5_000, 5, 5), True)
    for library in threadpoolctl.ThreadpoolController().lib_controllers:
        if library.user_api == "blas":
            Library.of(library).set_n_threads(found)
    gc.set_threshold(700, 10, 10)


def test_the_client_is_left_alone_while_it_waits_for_others(cluster: Client, before: Any) -> None:
    met: set[Any] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.001):
            met.add(state())

    def work(rows: Any, theta: Any) -> Any:
        time.sleep(0.02)
        return anp.sum(rows * theta)

    def squared(item: Any, theta: Any) -> Any:
        time.sleep(0.02)
        return item * theta**2

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for policy in (Preaccumulate(), Keep()):
            options: Any = {"grainsize": 2, "policy": policy, "scheduler": cluster}
            total = functools.partial(dagad.reduce_sum, work, np.ones(4), **options)
            assert dagad.value_and_grad(total)(1.5) == (6.0, 4.0)
            assert total(1.5) == 6.0

        def mapped(theta: Any) -> Any:
            return anp.sum(dagad.map(squared, np.ones(4), theta, grainsize=2, scheduler=cluster))

        assert dagad.value_and_grad(mapped)(1.5) == (9.0, 12.0)
        assert dagad.hessian(mapped)(1.5) == 8.0
    finally:
        over.set()
        watcher.join()
    assert met == {before}


EXIT = """
import sys, threading, time
import autograd.numpy as anp, numpy as np
import dagad

x = np.arange(1.0, 9.0)

def loss(t):
    return dagad.reduce_sum(lambda rows, t: anp.sum(rows * t**2), x, t, grainsize=2, scheduler=sys.argv[1])

started = [threading.Event() for _ in range(3)]

def work(event):
    while True:
        assert dagad.hessian(loss)(1.5) == 72.0
        event.set()

for event in started:
    threading.Thread(target=work, args=(event,), daemon=True).start()
for event in started:
    event.wait()
"""


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
@pytest.mark.parametrize("local", ["sync", "threads"])
def test_a_program_that_ends_while_a_daemon_differentiates_ends_well(local: str) -> None:
    done = subprocess.run([sys.executable, "-c", EXIT, local], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_while_graphs_are_built_the_collector_is_patient_and_nothing_else_is_held() -> None:
    found = gc.get_threshold()
    with patient_collector:
        assert gc.get_threshold()[0] == process.COLLECT_AFTER
        assert not process.process_settings.depth
        with process.process_settings, patient_collector:
            assert gc.get_threshold()[0] == process.COLLECT_AFTER
        assert gc.get_threshold()[0] == process.COLLECT_AFTER
    assert gc.get_threshold() == found
    with process.process_settings:
        with patient_collector:
            pass
        assert gc.get_threshold()[0] == process.COLLECT_AFTER
    assert gc.get_threshold() == found
    with patient_collector:
        gc.set_threshold(9)  # somebody's own
    assert gc.get_threshold()[0] == 9
    gc.set_threshold(*found)
