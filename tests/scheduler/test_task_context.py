"""Chunks that ask where they are: do they find their worker in a hot loop, as they do in a task?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import autograd.numpy as anp
import pytest
from distributed import Client, get_client, get_worker, worker_client

import dagad
from support.hot_loops import THETA, X, a_watched_cluster, heat_up, in_all, is_hot, shards_on
from support.waiting import PATIENCE


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    """A cluster that is to be empty in the end."""
    with a_watched_cluster() as client:
        yield client


def by_worker(rows: Any, theta: Any) -> Any:
    """Keep a model on the worker, as one does with what is dear to load."""
    worker: Any = get_worker()
    worker.dagad_tests_model = getattr(worker, "dagad_tests_model", 2.0)
    assert isinstance(worker.get_current_task(), tuple)
    return anp.sum(anp.tanh(rows @ theta)) * worker.dagad_tests_model


def by_client(rows: Any, theta: Any) -> Any:
    assert get_client().status == "running"
    return anp.sum(anp.tanh(rows @ theta)) * 2.0


def by_tasks(rows: Any, theta: Any) -> Any:
    with worker_client() as client:
        return anp.sum(anp.tanh(rows @ theta)) * client.submit(float, 2).result(timeout=PATIENCE)


def plain(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows @ theta)) * 2.0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fun", [by_worker, by_client, by_tasks])
def test_a_chunk_finds_its_worker(fun: Callable[..., Any], client: Client) -> None:
    shards = shards_on(client)
    there = in_all(lambda theta: dagad.reduce_sum(fun, shards, theta))
    expected = in_all(lambda theta: dagad.reduce_sum(plain, X, theta, grainsize=4, scheduler="sync"))
    heat_up(client, lambda: there(THETA))
    for factor in (1.0, -0.5):
        found: list[bytes] = []
        assert is_hot(client, lambda factor=factor, found=found: found.extend(there(factor * THETA)))  # type: ignore[misc]  # defaults
        assert found == expected(factor * THETA)


def test_a_chunk_of_a_hot_loop_leaves_no_active_key_in_its_thread(client: Client) -> None:
    shards = shards_on(client)
    there = in_all(lambda theta: dagad.reduce_sum(by_worker, shards, theta))
    heat_up(client, lambda: there(THETA))
    assert not any(client.run(n_active).values())


def n_active(dask_worker: Any) -> int:
    return len(dask_worker.active_threads)
