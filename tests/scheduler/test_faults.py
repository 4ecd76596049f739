"""Faults: do value and gradient keep their bits when workers die, and is whoever waits told when the scheduler does?"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import dask
import numpy as np
import pytest
from distributed import Client

import dagad
from dagad.extend import Keep, Recompute
from support.clusters import a_cluster, a_scheduler, a_worker, assert_clear, assert_empty, kill, pids_of
from support.gated_chunks import BOTH, THETA, TROUBLING, Watch, X, bits, chunk, expected, loss_on, moments, outcome
from support.waiting import PATIENCE, SOON, in_background, until

pytestmark = [
    pytest.mark.each_value("all combinations of parameters: each value of each is in this tier"),
]


@contextlib.contextmanager
def two_lone_workers() -> Iterator[Client]:
    with a_cluster(0) as client:
        where = str(client.scheduler_info()["address"])
        with a_worker(where), a_worker(where):
            client.wait_for_workers(2, PATIENCE)
            yield client


@pytest.fixture(params=["with nannies", "without"])
def pair(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Two workers, of which one will die; a nanny starts another one in its place."""
    if request.param == "with nannies":
        with a_cluster(2) as client:
            yield client
    else:
        with two_lone_workers() as client:
            yield client
            assert_empty(client)


# One worker dies


@pytest.mark.sampled(24)
@pytest.mark.parametrize("stage", ["before", "values", "between", "pullbacks", "after"])
def test_the_death_of_a_worker_costs_only_time(stage: str, pair: Client, tmp_path: Path) -> None:
    watch, pid = Watch(tmp_path), next(iter(pids_of(pair).values()))
    if stage == "before":
        kill(pid)  # and nobody has heard of it yet
    evaluation = dagad.evaluate(loss_on(pair, watch.folder), THETA, X, argnums=BOTH, lazy=True)
    if stage == "values":
        kill(pid := watch.wait("value"))
    watch.open("value")
    value = evaluation.value(PATIENCE)
    if stage == "between":
        kill(pid := watch.visits("value")[0].pid)
    with watch.waiting(evaluation.gradient, PATIENCE) as gradient:
        if stage == "pullbacks":
            kill(pid := watch.wait("pullback", gradient))
        watch.open("pullback")
        assert bits([value, *gradient.result()]) == expected()
    if stage == "after":
        kill(pid)
        assert bits([evaluation.value(), *evaluation.gradient()]) == expected()
    else:
        assert watch.again("value" if stage == "values" else "pullback", pid)
    assert outcome(loss_on(pair)) == expected()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("reduction", [dagad.reduce_sum, dagad.map_sum])
@pytest.mark.parametrize("gate", ["value", "pullback"])
def test_value_and_grad_survive_the_death_of_a_worker(gate: str, reduction: Any, pair: Client, tmp_path: Path) -> None:
    watch = Watch(tmp_path, "pullback" if gate == "value" else "value")
    with watch.waiting(outcome, loss_on(pair, watch.folder, reduction=reduction)) as waiting:
        pid = watch.wait(gate, waiting)
        kill(pid)
        watch.open(gate)
        assert waiting.result() == expected(reduction=reduction)
    assert watch.again(gate, pid)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("policy", [None, Recompute()], ids=["default", "recompute"])
def test_a_pullback_can_be_called_again_after_its_worker_has_died(policy: Any, pair: Client, tmp_path: Path) -> None:
    watch = Watch(tmp_path, "value", "pullback")
    value, there = dagad.vjp(loss_on(pair, watch.folder, fun=moments, policy=policy), THETA, X)
    _, here = dagad.vjp(loss_on("sync", fun=moments), THETA, X)
    first, second = np.random.default_rng(1).standard_normal((2, *value.shape))
    assert bits(there(first)) == bits(here(first))
    kill(watch.visits("value")[0].pid)
    for cotangent in (second, first, second):
        assert bits(there(cotangent)) == bits(here(cotangent))


# At which gate the last step of some way to a result waits, and that step.
EXECUTORS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "value": ("value", lambda loss, theta: loss(theta, X)),
    "value_and_grad": ("value", lambda loss, theta: dagad.value_and_grad(loss, BOTH)(theta, X)),
    "early value": ("value", lambda loss, theta: dagad.evaluate(loss, theta, X).value()),
    "gradient": ("pullback", lambda loss, theta: dagad.evaluate(loss, theta, X).gradient()),
    "pullback": ("pullback", lambda loss, theta: dagad.vjp(loss, theta, X)[1](1.0)),
}


# All workers die


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
@pytest.mark.parametrize("gate", ["value", "pullback"])
@pytest.mark.parametrize("end", ["killed", "scaled down"])
def test_all_workers_may_be_replaced_in_the_middle(end: str, gate: str, tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    with a_cluster(2) as client:
        cluster: Any = client.cluster
        evaluation = dagad.evaluate(loss_on(client, watch.folder), THETA, X, argnums=BOTH)
        if gate == "pullback":
            watch.open("value")
        watch.wait(gate)
        before = pids_of(client)
        if end == "scaled down":
            cluster.scale(0)
        else:
            for pid in before.values():
                kill(pid)
        until(lambda: not before.keys() & client.nthreads().keys())
        cluster.scale(2)
        watch.open("value", "pullback")
        assert bits([evaluation.value(PATIENCE), *evaluation.gradient(PATIENCE)]) == expected()
        client.wait_for_workers(2, PATIENCE)
        assert not set(before.values()) & set(pids_of(client).values())
        del evaluation


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
@pytest.mark.parametrize("road", ["value", "value_and_grad", "early value"])
def test_a_chunk_that_kills_worker_after_worker_is_named(road: str) -> None:
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}), a_cluster(2) as client:
        with pytest.raises(dagad.WorkerLostError, match=r"chunk 2 \(rows 8:12\)"):
            EXECUTORS[road][1](loss_on(client, "", "death"), TROUBLING)
        assert outcome(loss_on(client)) == expected()


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_finding_out_which_chunk_it_was_does_not_cost_the_last_worker() -> None:
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), two_lone_workers() as client:
        error = in_background(loss_on(client, "", "death"), TROUBLING, X).exception(SOON)
        assert isinstance(error, dagad.WorkerLostError), repr(error)
        assert re.search(r"chunks? \d.* \(rows \d+:\d+\)", str(error))
        assert in_background(outcome, loss_on(client)).result(SOON) == expected()


# The scheduler dies


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
@pytest.mark.parametrize("road", EXECUTORS)
def test_a_wait_ends_with_an_error_when_the_scheduler_has_gone(road: str, tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    gate, act = EXECUTORS[road]
    with a_scheduler(tmp_path) as (client, scheduler):
        with watch.waiting(act, loss_on(client, watch.folder), THETA) as waiting:
            if gate == "pullback":
                watch.open("value")
            watch.wait(gate, waiting)
            scheduler.kill()
            assert_clear(waiting.exception(SOON))
        with watch.waiting(loss_on(client), THETA, X) as waiting:
            assert_clear(waiting.exception(SOON))
    assert outcome(loss_on("threads")) == expected()


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_a_gradient_asked_for_when_the_scheduler_has_gone_is_refused(tmp_path: Path) -> None:
    with a_scheduler(tmp_path) as (client, scheduler):
        evaluation = dagad.evaluate(loss_on(client), THETA, X, argnums=BOTH, lazy=True)
        value, pullback = dagad.vjp(loss_on(client), THETA, X)
        assert evaluation.value(PATIENCE) == value
        scheduler.kill()  # and the client has not heard of it yet
        for waiting in (in_background(pullback, 1.0), in_background(evaluation.gradient)):
            assert_clear(waiting.exception(SOON))
        assert evaluation.value() == value


# A worker comes, or has too little memory


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_pullbacks_stolen_by_a_worker_that_came_later_give_the_same_bits(tmp_path: Path) -> None:
    watch = Watch(tmp_path, "value")
    often = dask.config.set({"distributed.scheduler.work-stealing-interval": "100ms"})
    with often, a_cluster(1) as client:
        loss, cluster = loss_on(client, watch.folder, grainsize=1), client.cluster
        evaluation = dagad.evaluate(loss, THETA, X, argnums=BOTH, lazy=True)
        value = evaluation.value(PATIENCE)
        with watch.waiting(evaluation.gradient, PATIENCE) as gradient:
            watch.wait("pullback", gradient)
            cluster.scale(2)  # type: ignore[union-attr]  # it has one
            watch.wait("pullback", gradient, processes=2)
            watch.open("pullback")
            assert bits([value, *gradient.result()]) == expected(grainsize=1)
        del evaluation, gradient


@pytest.mark.whole("many rounds, workers or bytes: the same is seen of few here")
def test_more_tapes_than_memory_stop_no_worker() -> None:
    def heavy(rows: Any, theta: Any) -> Any:
        x = np.ones(2**19) * rows[0] * theta  # each step leaves 4 MB on the tape
        for _ in range(7):
            x = anp.sin(x)
        return anp.sum(x)

    def loss(theta: Any, scheduler: Any, policy: Any = None) -> Any:
        return dagad.reduce_sum(heavy, np.arange(30.0), theta, grainsize=1, policy=policy, scheduler=scheduler)

    def status(dask_worker: Any) -> str:
        return str(dask_worker.status.name)

    with a_cluster(1, memory_limit="550MB") as client:
        evaluation = dagad.evaluate(lambda theta: loss(theta, client, Keep()), 0.5)
        found = [evaluation.value(PATIENCE), evaluation.gradient(PATIENCE)]
        assert bits(found) == bits(dagad.value_and_grad(lambda theta: loss(theta, "sync"))(0.5))
        until(lambda: set(client.run(status).values()) == {"running"})
        del evaluation


def test_the_watched_chunk_of_these_tests_gives_what_the_plain_one_gives(tmp_path: Path) -> None:
    watch = Watch(tmp_path, "value", "pullback")
    assert outcome(loss_on("sync", watch.folder)) == expected()
    assert chunk({"row": np.arange(2), "x": X[:2]}, THETA) == chunk({"row": np.arange(2), "x": X[:2]}, THETA, "", "no")
    assert len(watch.visits("value")) == len(watch.visits("pullback")) == 6
