"""Where Shards are: a fixture `place` for each kind of scheduler, with the pool and the cluster that it needs."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from distributed import Client

from support.clusters import a_cluster


@pytest.fixture(scope="module", autouse=True)
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(os.getpid).result()
        yield pool


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    """A cluster that is to be empty in the end."""
    with a_cluster(2) as client:
        yield client


@pytest.fixture(params=["sync", "threads", "pool", "client"])
def place(request: pytest.FixtureRequest) -> Any:
    is_fixture = request.param in ("pool", "client")
    return request.getfixturevalue(request.param) if is_fixture else request.param
