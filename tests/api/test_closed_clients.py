"""Clients that were closed, and Shards of other clients: does every public function say so, and what to do?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dagad

X, THETA = np.arange(12.0).reshape(6, 2), np.ones(2)


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum((rows @ theta) ** 2)


def item(row: Any, theta: Any) -> Any:
    return row * theta


def both(a: Any, b: Any) -> Any:
    return a + b


@pytest.fixture(scope="module")
def place() -> Iterator[LocalCluster]:
    options: Any = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**options) as made:
        yield made


@pytest.fixture
def closed(place: LocalCluster) -> Client:
    with Client(place, set_as_default=False) as client:
        client.submit(int, 1).result()
        made: Client = client
    return made


DOORS: dict[str, Callable[[Any], Any]] = {
    "reduce_sum": lambda client: dagad.reduce_sum(chunk, X, THETA, scheduler=client),
    "map_sum": lambda client: dagad.map_sum(chunk, X, THETA, scheduler=client),
    "map": lambda client: dagad.map(item, X, THETA, scheduler=client),
    "map_rect": lambda client: dagad.map_rect(item, X, THETA, scheduler=client),
    "map_reduce": lambda client: dagad.map_reduce(chunk, both, X, THETA, scheduler=client),
    "shard": lambda client: dagad.shard(X, scheduler=client),
    "dashboard": lambda client: dagad.dashboard(client),
    "grad": lambda client: dagad.grad(lambda theta: dagad.reduce_sum(chunk, X, theta, scheduler=client))(THETA),
    "evaluate": lambda client: dagad.evaluate(
        lambda theta: dagad.reduce_sum(chunk, X, theta, scheduler=client), THETA
    ).value(),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_public_function_names_a_client_that_is_closed(door: str, closed: Client, place: LocalCluster) -> None:
    with pytest.raises(dagad.SchedulerLostError, match=r"Client` that was closed.*Connect a new one, `client ="):
        DOORS[door](closed)
    with Client(place, set_as_default=False) as client:
        assert DOORS[door](client) is not None


def test_shards_of_a_closed_client_are_said_to_be_gone_with_it(place: LocalCluster) -> None:
    with Client(place, set_as_default=False) as client:
        shards = dagad.shard(X, grainsize=2, scheduler=client)
        expected = dagad.reduce_sum(chunk, shards, THETA)
    with Client(place, set_as_default=False) as client:
        for options in ({}, {"scheduler": client}, {"scheduler": "sync"}):
            with pytest.raises(dagad.SchedulerLostError, match=r"gone with it.*`shards = dagad\.shard\(data\)`"):
                dagad.reduce_sum(chunk, shards, THETA, **options)
        with client.as_current():
            shards = dagad.shard(X)
            assert dagad.reduce_sum(chunk, shards, THETA) == expected


def test_shards_of_another_client_run_there_or_are_placed_again(place: LocalCluster) -> None:
    with Client(place, set_as_default=False) as one, Client(place, set_as_default=False) as other:
        shards = dagad.shard(X, grainsize=2, scheduler=one)
        with pytest.raises(
            dagad.PlanError, match=r"cluster of another client.*`scheduler=` out.*`dagad\.shard\(shards\.gather\(\)"
        ):
            dagad.reduce_sum(chunk, shards, THETA, scheduler=other)
        again = dagad.shard(shards.gather(), grainsize=2, scheduler=other)
        assert dagad.reduce_sum(chunk, shards, THETA) == dagad.reduce_sum(chunk, again, THETA, scheduler=other)
