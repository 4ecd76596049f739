"""Faults with Shards, in graphs and in hot loops: do the bits stay the same, and is whoever waits told?"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client

import dagad
from dagad_scheduler import Role, role_of
from support.clusters import (
    a_cluster,
    a_forked_process,
    a_scheduler,
    a_worker,
    assert_clear,
    assert_empty,
    kill,
    pids_of,
)
from support.gated_chunks import THETA, TROUBLING, Refusal, Watch, X, bits, chunk, fresh
from support.waiting import PATIENCE, SOON, interrupted_when, until

pytestmark = [
    pytest.mark.each_value("all combinations of parameters: each value of each is in this tier"),
]

Loss = Callable[[Any], Any]


def shards_on(scheduler: Any) -> dagad.Shards:
    return dagad.shard({"row": np.arange(len(X)), "x": X}, grainsize=4, scheduler=scheduler)


def loss_of(shards: dagad.Shards, *shared: Any, fun: Any = chunk) -> Loss:
    fun = fresh(fun)  # or the first evaluation would go past Dask's scheduler already
    return lambda theta: dagad.reduce_sum(fun, shards, theta, *shared)


def both(loss: Loss, theta: Any = THETA) -> list[bytes]:
    return bits(dagad.value_and_grad(loss)(theta))


def expected(theta: Any = THETA) -> list[bytes]:
    return both(loss_of(shards_on("sync")), theta)


def heat_up(client: Client, loss: Loss) -> None:
    """Evaluate until that goes past Dask's scheduler."""

    def is_hot() -> bool:
        before = client.run_on_scheduler(_transitions)
        assert both(loss) == expected()
        return bool(before == client.run_on_scheduler(_transitions))

    until(is_hot)


def has_chunks(client: Client) -> bool:
    """Return whether chunks are tasks now; a hot loop has some that only show that work goes on."""
    return any(role_of(key) != Role.LOOP for keys in client.processing().values() for key in keys)


def _transitions(dask_scheduler: Any) -> int:
    return int(dask_scheduler.transition_counter)


@pytest.fixture
def frail() -> Iterator[Client]:
    with a_cluster(2) as client:
        yield client


@pytest.fixture(scope="module")
def _sturdy() -> Iterator[Client]:
    with a_cluster(2) as client:
        yield client


@pytest.fixture
def client(_sturdy: Client) -> Iterator[Client]:
    """A cluster that every test here leaves as it was: it works, and nothing is left on it."""
    yield _sturdy
    assert both(loss_of(shards_on(_sturdy))) == expected()
    assert_empty(_sturdy)


# Workers die


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize("stage", ["value", "pullback"])
@pytest.mark.parametrize("deaths", [1, 2])
def test_the_death_of_workers_costs_only_time(
    deaths: int, stage: str, hot: bool, frail: Client, tmp_path: Path
) -> None:
    watch = Watch(tmp_path, "value", "pullback")
    loss = loss_of(shards_on(frail), watch.folder)
    if hot:
        heat_up(frail, loss)
    pids = list(pids_of(frail).values())[:deaths]
    watch.close(stage)
    with watch.waiting(both, loss) as waiting:
        watch.wait(stage, waiting)
        assert hot != has_chunks(frail)
        for pid in pids:
            kill(pid)
        watch.open(stage)
        assert waiting.result() == expected()
    if hot:
        heat_up(frail, loss)
    assert both(loss, TROUBLING) == expected(TROUBLING)


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
@pytest.mark.parametrize("evaluations", [1, 5])
@pytest.mark.parametrize("deaths", [1, 2])
def test_a_death_that_nobody_has_heard_of_costs_only_time(deaths: int, evaluations: int, frail: Client) -> None:
    loss = loss_of(shards_on(frail))
    for _ in range(evaluations):  # the second one goes past Dask's scheduler for the first time
        both(loss)
    pids = list(pids_of(frail).values())[:deaths]
    for pid in pids:
        kill(pid)
    assert both(loss) == expected()
    heat_up(frail, loss)


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize("stage", ["between", "pullbacks", "after"])
def test_a_gradient_over_shards_survives_the_loss_of_what_its_value_left(
    stage: str, hot: bool, frail: Client, tmp_path: Path
) -> None:
    watch = Watch(tmp_path, "value", "pullback")
    loss = loss_of(shards_on(frail), watch.folder)
    if hot:
        heat_up(frail, loss)
    watch.close("value", "pullback")
    watch.open("value")
    evaluation = dagad.evaluate(loss, THETA, lazy=True)
    value, pullback = dagad.vjp(loss, THETA)
    assert evaluation.value(PATIENCE) == value
    victim = watch.visits("value")[0].pid
    if stage == "between":
        kill(victim)
    with watch.waiting(evaluation.gradient, PATIENCE) as gradient:
        watch.wait("pullback", gradient)
        if stage == "pullbacks":
            kill(victim)
        watch.open("pullback")
        assert bits([value, gradient.result()]) == expected()
    if stage == "after":
        kill(victim)
    assert bits([value, *pullback(1.0)]) == expected()
    assert bits(pullback(-2.0)) == bits([-2.0 * gradient.result()])


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
@pytest.mark.parametrize("hot", [False, True])
def test_a_chunk_that_kills_worker_after_worker_is_named(hot: bool) -> None:
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}), a_cluster(2) as client:
        loss = loss_of(shards_on(client), "", "death")
        if hot:
            heat_up(client, loss)
        with pytest.raises(dagad.WorkerLostError, match=r"chunk 2 \(rows 8:12\)"):
            both(loss, TROUBLING)
        assert both(loss) == expected()
        del loss


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
@pytest.mark.parametrize("hot", [False, True])
def test_a_wait_over_shards_ends_with_an_error_when_the_scheduler_has_gone(hot: bool, tmp_path: Path) -> None:
    watch = Watch(tmp_path, "value", "pullback")
    with a_scheduler(tmp_path) as (client, scheduler):
        loss = loss_of(shards_on(client), watch.folder)
        if hot:
            heat_up(client, loss)
        watch.close("value")
        with watch.waiting(both, loss) as waiting:
            watch.wait("value", waiting)
            scheduler.kill()
            until(lambda: client.status != "running")
            watch.open("value")
            if hot and waiting.exception(SOON) is None:  # the workers are still there to answer
                assert waiting.result() == expected()
            else:
                assert_clear(waiting.exception(SOON))

        def told() -> BaseException | None:
            with watch.waiting(both, loss) as waiting:
                return waiting.exception(SOON)

        until(told)  # workers answer until they have heard that the scheduler has gone
        assert_clear(told())


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_a_scheduler_started_anew_has_lost_the_shards_and_takes_new_ones(tmp_path: Path) -> None:
    with a_scheduler(tmp_path) as (client, scheduler):
        address = client.scheduler_info()["address"]
        loss = loss_of(shards_on(client))
        heat_up(client, loss)
        _, pullback = dagad.vjp(loss, THETA)
        (worker,) = pids_of(client).values()
        scheduler.kill()
        scheduler.join()
        kill(worker)  # it answers until it has heard of that
        where = "--host", "127.0.0.1", "--port", address.rpartition(":")[2]
        with a_forked_process("scheduler", *where), a_worker(address):
            with pytest.raises((dagad.SchedulerLostError, dagad.DataLostError)):  # whether the client is back or not
                both(loss)
            until(lambda: client.status == "running")
            client.wait_for_workers(1, PATIENCE)
            for act in (lambda: both(loss), lambda: pullback(1.0)):
                with pytest.raises(dagad.DataLostError, match=r"Shards are gone: .*again with `dagad\.shard"):
                    act()
            heat_up(client, loss_of(shards_on(client)))


# Chunks fail


@pytest.mark.sampled(3)
@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize("role", ["value", "pullback"])
def test_an_exception_keeps_its_type_and_tells_of_its_chunk(role: str, hot: bool, client: Client) -> None:
    loss = loss_of(shards_on(client), "", role)
    if hot:
        heat_up(client, loss)
    with pytest.raises(Refusal) as caught:
        both(loss, TROUBLING)
    assert type(caught.value) is Refusal
    assert caught.value.args[1] in pids_of(client).values()
    (note,) = caught.value.__notes__
    assert re.match(rf"dagad: {role} of chunk 2 \(rows 8:12\), key \('dagad-[\w-]+', ", note)
    assert both(loss) == expected()


def locked() -> Any:
    lock = threading.Lock()

    def fun(rows: Any, theta: Any) -> Any:
        with lock:
            return theta[0]

    return fun


def misshapen(rows: Any, theta: Any) -> Any:
    return theta[0] * np.ones(1 + int(rows["row"][0]) // 4)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("make", "kind"), [(locked, dagad.PortabilityError), (lambda: misshapen, dagad.StructureError)]
)
def test_a_function_that_cannot_work_is_refused_soon(make: Any, kind: type[Exception], client: Client) -> None:
    loss = loss_of(shards_on(client), fun=make())
    for act in (loss, lambda theta: dagad.vjp(loss, theta)):
        began = time.monotonic()
        with pytest.raises(kind, match=r"can't be pickled|differ in shape"):
            act(THETA)
        assert time.monotonic() - began < SOON


# Who waits gives up


@pytest.mark.sampled(2)
@pytest.mark.parametrize("hot", [False, True])
def test_a_wait_that_times_out_lets_the_evaluation_go_on(hot: bool, client: Client, tmp_path: Path) -> None:
    watch = Watch(tmp_path, "value", "pullback")
    loss = loss_of(shards_on(client), watch.folder)
    if hot:
        heat_up(client, loss)
    watch.close("value")
    evaluation = dagad.evaluate(loss, THETA)
    watch.wait("value")
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        evaluation.value(timeout=0.2)
    assert time.monotonic() - began < SOON
    watch.open("value")
    assert bits([evaluation.value(PATIENCE), evaluation.gradient(PATIENCE)]) == expected()
    assert len(watch.visits("value")) == 6


@pytest.mark.sampled(2)
@pytest.mark.parametrize("hot", [False, True])
def test_chunks_of_shards_that_have_not_started_when_cancelled_never_start(
    hot: bool, client: Client, tmp_path: Path
) -> None:
    watch, shards = Watch(tmp_path, "value", "pullback"), shards_on(client)
    loss = loss_of(shards, watch.folder)
    if hot:
        heat_up(client, loss)
    watch.close("value")
    evaluation = dagad.evaluate(loss, THETA)
    watch.wait("value", processes=2)
    evaluation.cancel()
    with pytest.raises(dagad.CancelledError):
        evaluation.value(PATIENCE)
    until(lambda: not any(client.processing().values()))
    assert pids_of(client)  # a hot call is broken off by hanging up, of which the workers have heard before this
    watch.open("value")
    for _ in range(2):  # each worker has to be done with what it had begun, and with all that it might have begun
        assert both(loss_of(shards)) == expected()
    assert len(watch.visits("value")) == 2


@pytest.mark.sampled(6)
@pytest.mark.parametrize("hot", [False, True])
def test_control_c_gives_up_waiting_and_leaves_the_client_usable(hot: bool, client: Client, tmp_path: Path) -> None:
    watch = Watch(tmp_path, "value", "pullback")
    loss = loss_of(shards_on(client), watch.folder)
    if hot:
        heat_up(client, loss)
    watch.close("value")

    with interrupted_when(lambda: watch.visits("value")), pytest.raises(KeyboardInterrupt):
        both(loss)
    until(lambda: not any(client.processing().values()))
    watch.open("value")
    assert both(loss) == expected()
