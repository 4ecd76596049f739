"""Cancelling: is nothing more run, does all that waits hear of it, and does what is there already stay?"""

from __future__ import annotations

import concurrent.futures
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import dask
import numpy as np
import pytest
from distributed import Client

import dagad
from support.gated_evaluations import LOCAL, PATIENCE, Steps, X, evaluation_threads, loss_on, squares, until

pytestmark = [
    pytest.mark.each_value("all combinations of parameters: each value of each is in this tier"),
    pytest.mark.sampled(2),
]


def assert_cancelled(wait: Callable[[float], Any]) -> None:
    with pytest.raises(dagad.CancelledError, match="cancelled") as caught:
        wait(PATIENCE)
    assert isinstance(caught.value, dagad.DagadError)
    assert isinstance(caught.value, concurrent.futures.CancelledError)


def test_an_evaluation_cancelled_before_its_first_chunk_runs_none() -> None:
    gate, ran = threading.Event(), []

    def chunk(rows: Any, theta: Any) -> Any:
        ran.append(rows)
        return theta * anp.sum(rows)

    def loss(theta: Any) -> Any:
        assert gate.wait(PATIENCE)
        return loss_on("threads", chunk)(theta)

    evaluation = dagad.evaluate(loss, 1.0)
    evaluation.cancel()
    assert_cancelled(evaluation.value)
    assert_cancelled(evaluation.gradient)
    gate.set()
    until(lambda: not evaluation_threads())
    assert not ran


@pytest.mark.parametrize("local", LOCAL)
def test_an_evaluation_cancelled_during_its_values_runs_no_further_chunk(local: str) -> None:
    started, gate, ran = threading.Event(), threading.Event(), []

    def chunk(rows: Any, theta: Any) -> Any:
        ran.append(rows)
        started.set()
        assert gate.wait(PATIENCE)
        return theta * anp.sum(rows)

    with dask.config.set(num_workers=2):
        evaluation = dagad.evaluate(loss_on(local, chunk), 1.0)
        assert started.wait(PATIENCE)
        evaluation.cancel()
        assert_cancelled(evaluation.value)  # although a chunk is still running
        assert_cancelled(evaluation.gradient)
        gate.set()
        until(lambda: not evaluation_threads())
    assert len(ran) <= 2
    assert evaluation.progress.gradients_done == 0


@pytest.mark.parametrize("local", LOCAL)
def test_an_evaluation_cancelled_during_its_pullbacks_keeps_its_value(local: str) -> None:
    steps = Steps()
    steps.values.set()
    with dask.config.set(num_workers=2):
        evaluation = dagad.evaluate(loss_on(local, steps.fun()), 2.0)
        assert evaluation.value(PATIENCE) == 2.0 * X.sum()
        evaluation.cancel()
        assert_cancelled(evaluation.gradient)
        steps.pullbacks.set()
        until(lambda: not evaluation_threads())
    assert evaluation.value(0.0) == 2.0 * X.sum()
    assert steps.events.count("pullback") <= 2


def test_an_evaluation_cancelled_on_a_cluster_runs_no_further_chunk(cluster: Client, tmp_path: Path) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    paths = str(log), str(gate)

    def chunk(rows: Any, theta: Any) -> Any:
        with open(paths[0], "a") as file:
            file.write(f"{rows[0]}\n")
        deadline = time.monotonic() + PATIENCE
        while not Path(paths[1]).exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        return theta * anp.sum(rows)

    theirs = cluster.submit(sum, [3, 4], pure=False)
    assert theirs.result() == 7
    evaluation = dagad.evaluate(loss_on(cluster, chunk), 1.0)
    until(log.exists)
    evaluation.cancel()
    assert_cancelled(evaluation.value)
    assert_cancelled(evaluation.gradient)
    until(lambda: not evaluation_threads())
    until(lambda: not any(cluster.processing().values()))  # the word has come through
    gate.touch()
    assert len(log.read_text().split()) <= 2
    assert dagad.grad(loss_on(cluster))(1.0) == -40.0
    assert theirs.status == "finished"  # a slip here would cost the client its connection, with all that it holds
    assert theirs.result() == 7


def test_a_lazy_evaluation_that_is_cancelled_has_no_gradient() -> None:
    evaluation = dagad.evaluate(loss_on("threads"), 1.0, lazy=True)
    assert evaluation.value(PATIENCE) == 92.0
    evaluation.cancel()
    assert_cancelled(evaluation.gradient)


def n_tapes() -> int:
    from dagad._graphs.linearization import Linearization

    gc.collect()
    return sum(type(thing) is Linearization for thing in gc.get_objects())


def tapes_on(scheduler: Any) -> int:
    return sum(scheduler.run(n_tapes).values()) if isinstance(scheduler, Client) else n_tapes()


@pytest.mark.parametrize("n_before", [0, 12])
def test_the_tapes_of_a_cancelled_evaluation_go_though_it_stays(n_before: int, scheduler: Any) -> None:
    data = dagad.shard(np.arange(1.0, 9.0), grainsize=2, scheduler=scheduler)

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(squares, data, theta)

    for _ in range(n_before):  # with some, the loop is hot
        dagad.value_and_grad(loss)(2.0)
    until(lambda: tapes_on(scheduler) == 0)  # those of earlier tests may be on their way out
    evaluation = dagad.evaluate(loss, 2.0, lazy=True)
    value = evaluation.value()
    assert tapes_on(scheduler) == 4 or n_before
    done = evaluation.progress
    evaluation.cancel()
    until(lambda: tapes_on(scheduler) == 0)
    assert evaluation.value() == value
    assert evaluation.progress == done
    assert_cancelled(evaluation.gradient)


def test_cancelling_an_evaluation_that_is_done_changes_nothing() -> None:
    evaluation = dagad.evaluate(loss_on("threads"), 1.0)
    assert evaluation.gradient(PATIENCE) == -40.0
    evaluation.cancel()
    evaluation.cancel()
    assert evaluation.value(0.0) == 92.0
    assert evaluation.gradient(0.0) == -40.0


def test_cancelling_reaches_nested_reductions() -> None:
    started, gate, ran = threading.Event(), threading.Event(), []

    def inner(rows: Any, theta: Any) -> Any:
        ran.append(rows)
        started.set()
        assert gate.wait(PATIENCE)
        return theta * anp.sum(rows)

    def outer(rows: Any, theta: Any) -> Any:
        return dagad.reduce_sum(inner, rows, theta, grainsize=1)

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(outer, X, theta, grainsize=8, scheduler="threads")

    evaluation = dagad.evaluate(loss, 1.0)
    assert started.wait(PATIENCE)
    evaluation.cancel()
    gate.set()
    assert_cancelled(evaluation.value)
    until(lambda: not evaluation_threads())
    assert len(ran) == 1
