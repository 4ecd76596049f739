"""Deadly chunks: does dagad say what Dask knows, try nothing by itself, and find the chunk when it is asked to?"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import dask
import numpy as np
import pytest
from distributed import Client

import dagad
from dagad._executors import losses, members
from dagad_scheduler.running.threads import Threads
from support.clusters import a_cluster, kill
from support.waiting import PATIENCE

X = np.arange(12.0)


def loss_on(client: Any, log: Path) -> Any:
    """Return a sum in which the rows from 6 on kill their worker where theta is negative; runs are written down."""

    def chunk(rows: Any, theta: Any) -> Any:
        import os

        with open(log, "a") as file:
            file.write(f"{rows[0]:.0f}\n")
        if theta < 0 and rows[0] == 6:
            kill(os.getpid())
        return anp.sum(rows) * theta

    return lambda theta: dagad.reduce_sum(chunk, X, theta, grainsize=3, scheduler=client)


def n_deaths(client: Client) -> int:
    return sum(event["action"] == "remove-worker" for _, event in client.get_events("all"))


def runs(log: Path) -> int:
    return log.read_text().count("\n6") + log.read_text().startswith("6")


def test_an_error_of_dead_workers_names_the_suspects_and_finds_the_chunk_on_request(tmp_path: Path) -> None:
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), a_cluster(2) as client:
        loss = loss_on(client, tmp_path / "log")
        with pytest.raises(dagad.WorkerLostError) as raised:
            dagad.grad(loss)(-1.0)
        error = raised.value
        client.wait_for_workers(2, PATIENCE)
        assert "chunk 2 (rows 6:9)" in error.suspects
        assert all(suspect in str(error) for suspect in error.suspects)
        assert n_deaths(client) == runs(tmp_path / "log") == 1  # as many as Dask lets it
        before = n_deaths(client)
        assert dagad.find_deadly_chunk(error, timeout=PATIENCE) == "chunk 2 (rows 6:9)"
        assert n_deaths(client) == before + 1
        assert dagad.grad(loss)(1.0) == X.sum()

        moved = pickle.loads(pickle.dumps(error))
        assert (str(moved), moved.suspects) == (str(error), error.suspects)
        with pytest.raises(dagad.PortabilityError, match="in the process in which it was raised"):
            dagad.find_deadly_chunk(moved)


def test_of_members_that_ran_together_the_one_that_kills_workers_fails_by_itself(tmp_path: Path) -> None:
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), a_cluster(2) as client:
        loss = loss_on(client, tmp_path / "log")
        thetas = np.array([1.0, 2.0, -1.0, 3.0])

        def fun(theta: Any) -> Any:
            try:
                return dagad.grad(loss)(theta) * theta
            except dagad.WorkerLostError:
                return -1.0

        assert dagad.vmap(fun)(thetas).tolist() == [X.sum(), 2.0 * X.sum(), -1.0, 3.0 * X.sum()]
        client.wait_for_workers(2, PATIENCE)
        with pytest.raises(dagad.WorkerLostError) as raised:
            dagad.vmap(dagad.grad(loss))(thetas)
        assert [note for note in raised.value.__notes__ if "vmap" in note] == ["dagad: member 2 of a `dagad.vmap`"]
        client.wait_for_workers(2, PATIENCE)


def test_an_error_of_members_together_names_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(requests: Any) -> Any:
        raise dagad.WorkerLostError("Workers died.")

    monkeypatch.setattr(members, "_run", lost)
    monkeypatch.setattr(Threads, "has_workers", lambda place: False, raising=False)
    with pytest.raises(dagad.WorkerLostError) as raised:
        dagad.vmap(lambda theta: dagad.reduce_sum(lambda rows, t: np.sum(rows) * t, X, theta, grainsize=3))(X[:3])
    assert raised.value.__notes__ == ["dagad: members 0, 1, 2 of a `dagad.vmap`, which ran together"]


class Tired:
    """What the scheduler says when several tasks were there at each death."""

    def __init__(self, suspects: Any, found: Any = None) -> None:
        self.suspects, self.worker, self.n_deaths = suspects, "tcp://here:1", 4
        self.find_deadly = lambda timeout: found


def test_find_deadly_chunk_counts_many_suspects_and_may_find_none() -> None:
    keys = tuple(f"k{number}" for number in range(11))
    error = losses.worker_lost(Tired(keys), {})
    assert str(error).count("the task") == 8
    assert "and 3 others" in str(error)
    assert "dagad.find_deadly_chunk(error)" in str(error)
    assert len(error.suspects) == 11
    assert dagad.find_deadly_chunk(error) is None
    assert dagad.find_deadly_chunk(losses.worker_lost(Tired(keys, "k5"), {})) == "the task 'k5'"


def test_an_error_of_dead_workers_with_one_suspect_advises_no_search() -> None:
    error = losses.worker_lost(Tired(("k0",)), {})
    assert "find_deadly_chunk" not in str(error)
    assert 'scheduler="sync"' in str(error)


def test_find_deadly_chunk_refuses_an_error_of_another_kind() -> None:
    wrong: Any = ValueError("no")
    with pytest.raises(dagad.PlanError, match=r"a ValueError, .*Give it the `dagad\.WorkerLostError`"):
        dagad.find_deadly_chunk(wrong)
