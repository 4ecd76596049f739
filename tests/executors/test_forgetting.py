"""Forgetting: is nothing left of an evaluation that is dropped, in the process and on a cluster?"""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import autograd.numpy as anp
import pytest
from autograd.extend import defvjp, primitive
from distributed import Client

import dagad
from dagad.extend import Keep
from support.clusters import a_cluster
from support.gated_evaluations import PATIENCE, Refusal, Steps, evaluation_threads, loss_on, squares, until


@pytest.mark.parametrize("asked", [False, True])
def test_a_lazy_evaluation_that_is_dropped_leaves_nothing(asked: bool) -> None:
    policy = Keep()
    evaluation = dagad.evaluate(loss_on("threads", policy=policy), 1.0, lazy=True)
    evaluation.value(PATIENCE)
    if asked:
        evaluation.gradient(PATIENCE)
    until(lambda: not evaluation_threads())
    forgotten = weakref.ref(evaluation)
    del evaluation
    gc.collect()
    assert forgotten() is None
    assert policy.n_pullback == (8 if asked else 0)


def test_an_evaluation_that_is_dropped_comes_to_its_end() -> None:
    steps = Steps()
    forgotten = weakref.ref(dagad.evaluate(loss_on("threads", steps.fun()), 2.0))
    steps.values.set()
    steps.pullbacks.set()
    until(lambda: not evaluation_threads())
    gc.collect()
    assert forgotten() is None
    assert steps.events == ["value"] * 8 + ["pullback"] * 8


class Whole:
    """Something that a user's function carries."""


@pytest.mark.parametrize("scheduler", ["sync", "threads"])  # errors of workers are in cycles of distributed's own
@pytest.mark.parametrize("end", ["value", "pullback", "cancelled", "lazy and cancelled"])
def test_a_failed_evaluation_is_part_of_no_cycle(end: str, scheduler: str) -> None:
    carried = Whole()

    def fail(rows: Any, theta: Any, carried: Any = carried) -> Any:
        if rows[0] == 3 and end == "value":
            raise Refusal("three")
        return refusing(theta, rows[0] == 3 and end == "pullback") * anp.sum(rows)

    gc.collect()
    gc.disable()
    try:
        evaluation = dagad.evaluate(loss_on(scheduler, fail), 1.0, lazy=end.startswith("lazy"))
        if end == "lazy and cancelled":
            evaluation.value(PATIENCE)
        if end.endswith("cancelled"):
            evaluation.cancel()
        until(lambda: not evaluation_threads())
        alive = weakref.ref(evaluation), weakref.ref(carried), weakref.ref(fail)
        del evaluation, carried, fail
        until(lambda: [one() for one in alive] == [None] * 3)
    finally:
        gc.enable()


@primitive  # type: ignore[untyped-decorator]  # autograd has no types
def refusing(theta: Any, refuses: bool) -> Any:
    return theta * 1.0


def _refusing_pullback(ans: Any, theta: Any, refuses: bool) -> Any:
    def pullback(cotangent: Any) -> Any:
        if refuses:
            raise Refusal("three")
        return cotangent

    return pullback


defvjp(refusing, _refusing_pullback, None)


ENDING = """
import sys, threading, time
import autograd.numpy as np, dask
import dagad

started = threading.Barrier(3)

def chunk(rows, theta):
    print(int(rows[0]), flush=True)
    if rows[0] < 2:
        started.wait(20)
        time.sleep(0.5)  # longer than it takes to end
    else:
        time.sleep(0.1)
    return theta * np.sum(rows)

dask.config.set(num_workers=2)
dagad.evaluate(lambda t: dagad.reduce_sum(chunk, np.arange(50.0), t, grainsize=1, scheduler="threads"), 1.0)
started.wait(20)
"""


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_program_that_ends_does_not_wait_for_what_nobody_waits_for() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=PATIENCE)
    assert not done.stderr
    assert done.returncode == 0
    assert len(done.stdout.split()) <= 4  # of 50 chunks


@pytest.fixture(scope="module")
def cluster() -> Iterator[Client]:
    """Start a cluster that nobody else has left anything on."""
    with a_cluster(2) as client:
        yield client


def dagad_tasks(dask_scheduler: Any) -> list[str]:
    return [str(key) for key in dask_scheduler.tasks if "dagad" in str(key)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("end", ["done", "lazy", "cancelled", "failed"])
def test_an_evaluation_that_is_gone_leaves_no_task_on_its_cluster(end: str, cluster: Client) -> None:
    def fail(rows: Any, theta: Any) -> Any:
        if rows[0] == 3:
            raise Refusal("three")
        return theta * anp.sum(rows)

    fun = fail if end == "failed" else squares
    evaluation = dagad.evaluate(loss_on(cluster, fun), 1.0, lazy=end == "lazy")
    if end == "cancelled":
        evaluation.cancel()
    elif end == "failed":
        with pytest.raises(Refusal):
            evaluation.value(PATIENCE)
    else:
        evaluation.value(PATIENCE)
    if end == "done":
        evaluation.gradient(PATIENCE)
    until(lambda: not evaluation_threads())
    del evaluation
    gc.collect()
    until(lambda: not cluster.run_on_scheduler(dagad_tasks))


def test_value_and_grad_and_vjp_leave_no_task_on_their_cluster(cluster: Client) -> None:
    dagad.value_and_grad(loss_on(cluster))(1.0)
    value, pullback = dagad.vjp(loss_on(cluster), 1.0)
    assert cluster.run_on_scheduler(dagad_tasks)
    pullback(1.0)
    del value, pullback
    gc.collect()
    until(lambda: not cluster.run_on_scheduler(dagad_tasks))
