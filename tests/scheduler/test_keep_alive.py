"""Hot loops at work: does Dask see them while they last, and no longer, and go its way when somebody wants it to?"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import autograd.numpy as anp
import dask
import pytest
from dask import annotate  # type: ignore[attr-defined]  # dask's `__init__` does not say what it exports
from distributed import Client, SchedulerPlugin

import dagad
from dagad_scheduler import Role, role_of
from dagad_scheduler.residents import keep_alive as loops
from dagad_scheduler.residents.keep_alive import LINGER, KeepAlive
from support.clusters import kill
from support.hot_loops import THETA, X, a_watched_cluster, heat_up, in_all, is_hot, shards_on
from support.service_contents import n_held, n_programs
from support.waiting import PATIENCE, SOON, until

pytestmark = pytest.mark.whole("many rounds, workers or bytes: the same is seen of few here")

Loop = Callable[[], None]


class Sent(SchedulerPlugin):
    """Counts all tasks, and workers that leave."""

    name = "dagad-tests-sent"

    def __init__(self) -> None:
        self.n_tasks = self.n_gone = 0

    def transition(self, key: Any, start: Any, finish: Any, *args: Any, **kwargs: Any) -> None:
        self.n_tasks += start == "released" and finish == "waiting"

    def remove_worker(self, *args: Any, **kwargs: Any) -> None:
        self.n_gone += 1


def sent(dask_scheduler: Any) -> tuple[int, int]:
    plugin = dask_scheduler.plugins[Sent.name]
    return plugin.n_tasks, plugin.n_gone


@pytest.fixture(autouse=True)
def _soon_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagad_scheduler.residents.keep_alive.LINGER", 1.0)


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    """A cluster that is to be empty in the end.

    Dask drops no copy of rows after a while: of an evaluation that just looks for them there it would make a graph.
    """
    still = dask.config.set({"distributed.scheduler.active-memory-manager.start": False})
    with still, a_watched_cluster() as client:
        client.register_plugin(Sent())
        yield client


@pytest.fixture
def frail() -> Iterator[Client]:
    """A cluster whose workers may go."""
    with a_watched_cluster() as client:
        client.register_plugin(Sent())
        yield client


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.logaddexp(0.0, anp.dot(rows, theta)))


def loss(sliced: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda theta: dagad.reduce_sum(chunk, sliced, theta, **options)


EXPECTED = in_all(loss(X, grainsize=4, scheduler="sync"))(THETA)


def hot_on(client: Client) -> Loop:
    """Return one evaluation of a hot loop, which sees to its bits."""
    there = in_all(loss(shards_on(client)))

    def evaluate() -> None:
        assert there(THETA) == EXPECTED

    heat_up(client, evaluate)
    return evaluate


def evaluate_while(evaluate: Loop, condition: Callable[[], bool]) -> None:
    """Evaluate until something is no longer true."""
    deadline = time.monotonic() + PATIENCE
    while condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        evaluate()


def for_seconds(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def keep_alive(dask_scheduler: Any) -> dict[str, list[str]]:
    """Return which tasks stand for loops, on the scheduler's word: long-running ones, by worker."""
    return {
        address: [str(task.key) for task in worker.long_running if role_of(task.key) == Role.LOOP]
        for address, worker in dask_scheduler.workers.items()
    }


def on_all(client: Client) -> bool:
    found = client.run_on_scheduler(keep_alive)
    return bool(found) and all(len(keys) == 1 for keys in found.values())


def on_none(client: Client) -> bool:
    return not any(client.run_on_scheduler(keep_alive).values())


def test_a_few_tasks_stand_for_hundreds_of_evaluations_and_end_with_them(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, other = hot_on(client), hot_on(client)
    before, n_evaluations = client.run_on_scheduler(sent)[0], 0
    monkeypatch.setattr(loops, "LINGER", PATIENCE)  # a slow machine is not one without calls
    watch = for_seconds(2.0)
    while watch() or not on_all(client):
        evaluate()
        other()
        n_evaluations += 1
    assert client.run_on_scheduler(sent)[0] - before <= 2 < n_evaluations
    monkeypatch.setattr(loops, "LINGER", 1.0)
    until(lambda: on_none(client), SOON)
    evaluate_while(evaluate, lambda: not on_all(client))  # and begin again with them
    monkeypatch.setattr(loops, "LINGER", 10.0 * PATIENCE)  # nothing ends now for want of calls
    client.run(linger, 10.0 * PATIENCE)
    try:
        evaluate = other = cast("Any", None)  # the Shards go
        until(lambda: on_none(client))
    finally:
        client.run(linger, LINGER)


def linger(seconds: float) -> None:
    loops.LINGER = seconds


def test_keep_alive_tasks_of_a_hot_loop_keep_no_other_task_from_running(client: Client) -> None:
    evaluate = hot_on(client)
    evaluate_while(evaluate, lambda: not on_all(client))
    workers = list(client.nthreads())
    others = [client.submit(os.getpid, workers=[address], pure=False) for address in workers for _ in range(4)]
    assert len(set(client.gather(others))) == 2
    evaluate()
    assert on_all(client)
    tasks = client.run_on_scheduler(annotations_of_all)
    assert all("resources" not in some for some in tasks)


def annotations_of_all(dask_scheduler: Any) -> list[dict[str, Any]]:
    return [dict(task.annotations or {}) for task in dask_scheduler.tasks.values() if role_of(task.key) == Role.LOOP]


def test_keep_alive_tasks_of_a_hot_loop_ignore_annotations_of_the_caller(client: Client) -> None:
    evaluate = hot_on(client)
    until(lambda: on_none(client))
    with annotate(retries=7):
        evaluate_while(evaluate, lambda: not on_all(client))
    assert all("retries" not in some for some in client.run_on_scheduler(annotations_of_all))


def test_workers_at_work_are_retired_when_they_are_named_and_not_otherwise(frail: Client) -> None:
    evaluate, cluster = hot_on(frail), cast("Any", frail.cluster)
    evaluate_while(evaluate, lambda: not on_all(frail))
    assert frail.retire_workers() == {}
    cluster.scale(1)  # Dask names one
    evaluate_while(evaluate, lambda: len(frail.run_on_scheduler(keep_alive)) > 1)
    evaluate_while(evaluate, lambda: not on_all(frail) or bool(frail.run_on_scheduler(unrunnable)))
    evaluate_while(evaluate, lambda: not is_hot(frail, evaluate))


def test_a_scheduler_is_not_idle_while_a_loop_works_and_is_afterwards(client: Client) -> None:
    """Idle, it would close itself after the setting `distributed.scheduler.idle-timeout`."""
    evaluate, found = hot_on(client), list[float | None]()
    evaluate_while(evaluate, lambda: not on_all(client))
    watch = for_seconds(1.5)
    while watch():
        for _ in range(20):
            evaluate()
        found.append(client.run_on_scheduler(idle_since))
    assert found == [None] * len(found)
    until(lambda: client.run_on_scheduler(idle_since) is not None, SOON)


def idle_since(dask_scheduler: Any) -> float | None:
    since: float | None = dask_scheduler.check_idle()
    return since


def test_adaptive_scaling_leaves_a_loop_alone_and_goes_on_after_it(frail: Client) -> None:
    evaluate, cluster = hot_on(frail), cast("Any", frail.cluster)
    adaptive = cluster.adapt(minimum=0, maximum=2, interval="300ms")
    evaluate_while(evaluate, for_seconds(3.0))
    assert frail.run_on_scheduler(sent)[1] == 0, adaptive.log
    evaluate = cast("Any", None)  # the Shards go
    until(lambda: not frail.run_on_scheduler(keep_alive), SOON)


def unrunnable(dask_scheduler: Any) -> list[str]:
    return [str(key) for key in dask_scheduler.unrunnable]


KILLED = """
import sys
import dagad, numpy as np, autograd.numpy as anp
from distributed import Client

def chunk(rows, theta):
    return anp.sum(anp.logaddexp(0.0, anp.dot(rows, theta)))

client = Client(sys.argv[1])
shards = dagad.shard(np.ones((24, 3)), grainsize=4, scheduler=client)
loss = lambda theta: dagad.reduce_sum(chunk, shards, theta)
while True:
    dagad.grad(loss)(np.ones(3))
    held = dagad.vjp(loss, np.ones(3))
"""


def test_a_client_that_is_killed_leaves_nothing_behind(client: Client) -> None:
    address = client.scheduler_info()["address"]
    client.run(os.getpid)
    with subprocess.Popen([sys.executable, "-c", KILLED, address], stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: on_all(client) and 0 not in client.run(n_held).values())
        finally:
            kill(process.pid)
    until(lambda: on_none(client) and set(client.run(n_held).values()) == {0}, SOON)
    until(lambda: not any(client.run(n_coroutines).values()), SOON)
    until(lambda: not any(client.run(n_programs).values()), SOON)


def n_coroutines(dask_worker: Any) -> int:
    """Return how many tasks are still being executed on a worker, given up by the scheduler or not."""
    return sum(role_of(key) == Role.LOOP for key in dask_worker.active_keys)


def test_keep_alive_tasks_that_fail_are_not_sent_for_ever(frail: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a scheduler that can't load it, say: the loop goes on unseen. Loops after it on that cluster do so, too."""
    monkeypatch.setattr("dagad_scheduler.residents.keep_alive.stand_for_loop", failing)
    monkeypatch.setattr("dagad_scheduler.residents.keep_alive.SEND_AGAIN", 0.0)
    evaluate = hot_on(frail)
    before, found = frail.run_on_scheduler(sent)[0], list[bool]()
    look = KeepAlive._look

    def looked(self: KeepAlive) -> None:
        look(self)
        found.append(self._n_failed > 2)

    monkeypatch.setattr(KeepAlive, "_look", looked)
    evaluate_while(evaluate, lambda: not any(found))
    evaluate_while(evaluate, for_seconds(1.2))
    assert frail.run_on_scheduler(sent)[0] - before <= 6


def failing(*args: Any) -> None:
    raise RuntimeError("no module named dagad_scheduler")


def _loops_on(dask_scheduler: Any) -> list[str]:
    return [str(key) for key in dask_scheduler.tasks if role_of(key) == Role.LOOP]


def test_tasks_that_a_restart_has_overtaken_are_released(client: Client) -> None:
    addresses = list(client.scheduler_info()["workers"])
    with Client(client.scheduler_info()["address"], set_as_default=False) as other:
        keep_alive = loops.keep_alive_of(other)

        async def overtake() -> None:
            keep_alive._send(addresses, 0.0)
            other._handle_restart()  # as the scheduler has it, which knows of the tasks by now

        other.sync(overtake)
        until(lambda: len(client.run_on_scheduler(_loops_on)) == len(addresses))

        async def end() -> None:
            keep_alive.end()

        other.sync(end)
        until(lambda: not client.run_on_scheduler(_loops_on))
