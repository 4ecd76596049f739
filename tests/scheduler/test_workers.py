"""Workers that can't run what is sent to them, or that are not there: is it said at once, with the remedy?"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dagad
from dagad_scheduler import workers
from dagad_scheduler.running import cluster as clusters
from dagad_scheduler.running.cluster import Cluster
from dagad_scheduler.workers import Workers, workers_of
from support.clusters import a_process, without_dagad
from support.gated_chunks import bits
from support.waiting import PATIENCE, in_background, until

X = np.arange(8.0)


def loss_on(client: Client, data: Any = X) -> Callable[[Any], Any]:
    def chunk(rows: Any, theta: Any) -> Any:
        return anp.sum(anp.tanh(rows * theta))

    options: dict[str, Any] = {} if isinstance(data, dagad.Shards) else {"grainsize": 2, "scheduler": client}
    return lambda theta: dagad.reduce_sum(chunk, data, theta, **options)


EXPECTED = float(np.sum(np.tanh(0.3 * X)))


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "ANSWER_WITHIN", PATIENCE)  # a busy machine is slow to answer


@pytest.fixture
def empty() -> Iterator[Client]:
    """A cluster without workers."""
    options: Any = {"n_workers": 0, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(protocol="tcp://", **options) as made, Client(made, set_as_default=False) as client:
        yield client


def a_worker_without_dagad(client: Client, folder: Path) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    where: Any = client.cluster
    return a_process("worker", where.scheduler_address, "--no-nanny", path=without_dagad(folder))


# Workers that are unfit


def test_a_worker_without_dagad_is_named_before_anything_is_sent_to_it(empty: Client, tmp_path: Path) -> None:
    with a_worker_without_dagad(empty, tmp_path) as process:
        empty.wait_for_workers(1, PATIENCE)
        (address,) = empty.nthreads()
        remedy = rf"worker {address}: it can't import dagad \(ModuleNotFoundError.*retire_workers\(\['{address}'\]\)"
        for act in (lambda: loss_on(empty)(0.3), lambda: dagad.shard(X, scheduler=empty)):
            with pytest.raises(dagad.PortabilityError, match=remedy):
                act()
        assert process.poll() is None  # nothing that it could die of
        empty.retire_workers([address])
        until(lambda: not empty.nthreads())
    made: Any = empty.cluster
    made.scale(1)
    assert loss_on(empty)(0.3) == EXPECTED


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_worker_without_dagad_that_joins_later_is_named(empty: Client, tmp_path: Path) -> None:
    """It has died of the first task by then; Dask gives up the task, or it waits: either way somebody says why."""
    made: Any = empty.cluster
    made.scale(1)
    empty.wait_for_workers(1, PATIENCE)
    assert loss_on(empty)(0.3) == EXPECTED
    with a_worker_without_dagad(empty, tmp_path):
        empty.wait_for_workers(2, PATIENCE)
        with pytest.raises(dagad.PortabilityError, match="it can't import dagad"):
            loss_on(empty)(0.3)
    until(lambda: len(empty.nthreads()) == 1)
    assert loss_on(empty)(0.3) == EXPECTED


def test_a_worker_that_died_before_it_could_be_examined_is_named(empty: Client) -> None:
    site = Workers(empty)
    with pytest.raises(Exception, match=r"tcp://1\.2\.3\.4:5: it joined and died at once.*dagad can't be imported"):
        site.refuse_unseen("tcp://1.2.3.4:5")


def test_the_answer_of_a_worker_that_has_gone_is_not_waited_for(empty: Client) -> None:
    site, never = Workers(empty), Future[Any]()
    site._asked[frozenset({"tcp://1.2.3.4:5"})] = never
    assert site.fit() == []
    assert never.cancelled()


def test_a_worker_of_another_python_is_named(empty: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = empty.cluster
    made.scale(1)
    empty.wait_for_workers(1, PATIENCE)
    with monkeypatch.context() as patch:
        patch.setattr(workers, "sys", types.SimpleNamespace(version_info=(2, 7, 18), modules=sys.modules))
        with pytest.raises(
            dagad.PortabilityError, match=r"it runs Python 3\.\d+ and the client 2\.7.*same version of Py"
        ):
            loss_on(empty)(0.3)
    assert loss_on(empty)(0.3) == EXPECTED


@pytest.mark.parametrize("package", ["numpy", "dagad"])
def test_another_version_of_a_package_on_workers_is_warned_of_once(
    package: str, empty: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Any = empty.cluster
    made.scale(2)
    empty.wait_for_workers(2, PATIENCE)
    here = workers._version_here
    monkeypatch.setattr(workers, "_version_here", lambda name: "0.0.1" if name == package else here(name))
    with pytest.warns(UserWarning, match=rf"has {package} .*, and the client 0\.0\.1.*same version") as caught:
        assert loss_on(empty)(0.3) == EXPECTED
    assert len(caught) == 1
    assert loss_on(empty)(0.3) == EXPECTED


def test_workers_are_looked_at_once(empty: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = empty.cluster
    made.scale(1)
    empty.wait_for_workers(1, PATIENCE)
    asked: list[list[str]] = []
    ask = Workers._ask

    async def watched(self: Any, new: frozenset[str]) -> Any:
        asked.append(list(new))
        return await ask(self, new)

    monkeypatch.setattr(Workers, "_ask", watched)
    for _ in range(3):
        assert loss_on(empty)(0.3) == EXPECTED
    assert [len(new) for new in asked] == [1]
    assert workers_of(empty) is workers_of(empty)


def test_workers_are_counted_now_and_then(empty: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every evaluation that has to know how many there are used to ask the scheduler."""
    made: Any = empty.cluster
    made.scale(1)
    empty.wait_for_workers(1, PATIENCE)
    asked: list[None] = []

    def addresses(self: Any) -> list[str]:
        asked.append(None)
        return ["somewhere"]

    monkeypatch.setattr(Workers, "addresses", addresses)
    assert [Cluster(empty).n_workers() for _ in range(5)] == [1] * 5
    assert len(asked) <= 1


# Workers that are not there


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_waiting_for_workers_is_said_once(
    empty: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clusters, "SAY_AFTER", 0.1)
    monkeypatch.setattr(clusters, "LOOK_EVERY", 0.05)
    made: Any = empty.cluster
    with caplog.at_level(logging.WARNING, "dagad"):
        evaluation = dagad.evaluate(loss_on(empty), 0.3)
        until(lambda: "waiting for workers: the cluster has none" in repr(evaluation))
        with pytest.raises(TimeoutError):
            evaluation.value(timeout=0.3)
        made.scale(1)
        assert evaluation.value(PATIENCE) == EXPECTED
        assert evaluation.gradient(PATIENCE) == dagad.grad(loss_on(empty))(0.3)
    (record,) = caplog.records
    assert "waiting for workers: the cluster has none" in record.getMessage()
    assert "value(timeout=...)" in record.getMessage()
    assert "waiting" not in repr(evaluation)


def test_a_timeout_of_the_users_own_is_an_error_like_others(empty: Client) -> None:
    made: Any = empty.cluster
    made.scale(1)

    def chunk(rows: Any, theta: Any) -> Any:
        raise TimeoutError("the user's own")

    with pytest.raises(TimeoutError, match="the user's own"):
        dagad.reduce_sum(chunk, X, 1.0, grainsize=2, scheduler=empty)
    until(lambda: not empty.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))


# Clusters that are restarted


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_results_and_shards_that_a_restart_has_taken_away_are_named(tmp_path: Path) -> None:
    def waiting(rows: Any, theta: Any) -> Any:
        Path(tmp_path, "come").touch()
        until(Path(tmp_path, "gate").exists)
        return anp.sum(rows) * theta

    options: Any = {"n_workers": 1, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with LocalCluster(**options) as made, Client(made, set_as_default=False) as client:
        shards = dagad.shard(X, grainsize=2, scheduler=client)
        loss = loss_on(client, shards)
        for _ in range(3):
            expected = dagad.value_and_grad(loss)(0.3)
        _, pullback = dagad.vjp(loss_on(client), 0.3)
        interrupted = in_background(
            lambda: dagad.reduce_sum(waiting, X, 1.0, grainsize=2, scheduler=client)  # holds the only thread
        )
        until(Path(tmp_path, "come").exists)
        client.restart()
        for act in (lambda: interrupted.result(PATIENCE), lambda: pullback(1.0)):
            with pytest.raises(dagad.DataLostError, match=r"`client\.restart\(\)`.*Evaluate it again"):
                act()
        for act in (lambda: loss(0.3), lambda: dagad.value_and_grad(loss)(0.3), shards.gather):
            with pytest.raises(
                dagad.DataLostError, match=r"Shards are gone: `client\.restart.*again with `dagad\.shard"
            ):
                act()
        assert "gone" in repr(shards)
        again = loss_on(client, dagad.shard(X, grainsize=2, scheduler=client))
        assert bits(dagad.value_and_grad(again)(0.3)) == bits(expected)
