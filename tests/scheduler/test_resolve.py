"""Resolve: does `scheduler=` mean what it means to Dask?"""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import autograd.numpy as anp
import dask
import dask.local
import dask.threaded
import numpy as np
import pytest
from distributed import Client

import dagad
import dagad_scheduler
from dagad_scheduler import Sync, Threads, resolve
from dagad_scheduler.running.cluster import Cluster
from support.waiting import PATIENCE


def sum_of_squares(rows: Any, theta: Any) -> Any:
    return anp.sum((rows - theta) ** 2)


def where(rows: Any) -> Any:
    """Return the identity of the thread a chunk runs in."""
    return float(threading.get_ident())


def value_and_gradient(scheduler: Any) -> Any:
    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(sum_of_squares, np.arange(6.0), theta, grainsize=2, scheduler=scheduler)

    return dagad.value_and_grad(loss)(1.0)


@pytest.mark.parametrize("name", ["threads", "threading", "Threads"])
def test_threads_have_dasks_names(name: str) -> None:
    assert type(resolve(name)) is Threads


@pytest.mark.parametrize("name", ["sync", "synchronous", "single-threaded"])
def test_sync_has_dasks_names(name: str) -> None:
    assert type(resolve(name)) is Sync


def test_the_default_scheduler_is_threads() -> None:
    assert type(resolve()) is Threads


def test_the_default_scheduler_is_that_of_dasks_configuration() -> None:
    with dask.config.set(scheduler="sync"):
        assert type(resolve()) is Sync
        assert type(resolve("threads")) is Threads


def test_the_default_scheduler_is_an_active_client(cluster: Client) -> None:
    with cluster.as_current():
        assert type(resolve()) is Cluster
        assert type(resolve("sync")) is Sync
        assert value_and_gradient(None) == (31.0, -18.0)


def test_a_client_need_not_be_the_default_one(cluster: Client) -> None:
    assert type(resolve(cluster)) is Cluster
    assert value_and_gradient(cluster) == (31.0, -18.0)


def test_resolve_gives_a_scheduler_object_back_as_it_is() -> None:
    ours = Threads(2)
    assert resolve(ours) is ours


@pytest.mark.parametrize(
    ("get", "kind"),
    [
        (dask.threaded.get, Threads),
        (dask.local.get_sync, Sync),
        (Threads(2).get, Threads),
        (dagad_scheduler.get, Threads),
    ],
    ids=["dask.threaded", "dask.local", "Threads.get", "dagad_scheduler"],
)
def test_a_known_get_function_as_scheduler_is_taken_for_its_scheduler(get: Any, kind: Any) -> None:
    assert type(resolve(get)) is kind


def test_an_unknown_get_function_as_scheduler_is_handed_the_graph() -> None:
    calls = []

    def get(dsk: Any, keys: Any, **kwargs: Any) -> Any:
        calls.append(len(dsk))
        return dask.local.get_sync(dsk, keys, **kwargs)

    assert value_and_gradient(get) == (31.0, -18.0)
    assert calls


def test_a_pool_of_threads_is_used_and_left_open() -> None:
    with ThreadPoolExecutor(2, thread_name_prefix="theirs") as pool:
        assert value_and_gradient(pool) == (31.0, -18.0)
        assert pool.submit(int).result() == 0


@pytest.mark.parametrize("n", [1, 3])
def test_configured_num_workers_bound_the_threads(n: int) -> None:
    seen: set[int] = set()
    barrier = threading.Barrier(n)

    def meet(rows: Any) -> float:
        barrier.wait(PATIENCE)  # as many chunks at once as there are threads, or the barrier breaks
        seen.add(threading.get_ident())
        return 0.0

    with dask.config.set(num_workers=n):
        dagad.reduce_sum(meet, np.zeros(n * 4), grainsize=1, scheduler="threads")
    assert len(seen) == n


def test_a_configured_pool_is_used() -> None:
    names: set[str] = set()
    barrier = threading.Barrier(2)

    def meet(rows: Any) -> float:
        barrier.wait(PATIENCE)
        names.add(threading.current_thread().name.partition("_")[0])
        return 0.0

    with ThreadPoolExecutor(1, thread_name_prefix="theirs") as pool, dask.config.set(pool=pool, num_workers=2):
        dagad.reduce_sum(meet, np.zeros(4), grainsize=1, scheduler="threads")
    assert names == {"MainThread", "theirs"}


def test_a_configured_pool_of_another_kind_does_no_harm() -> None:
    with ThreadPool(2) as pool, dask.config.set(pool=pool):
        assert value_and_gradient("threads") == (31.0, -18.0)


@pytest.mark.parametrize("outer", ["sync", "threads"])
@pytest.mark.parametrize("differentiated", [False, True])
def test_a_reduction_inside_a_chunk_runs_in_the_thread_of_that_chunk(outer: str, differentiated: bool) -> None:
    def outer_sum(rows: Any, theta: Any) -> Any:
        def inner_sum(rows: Any, theta: Any) -> Any:
            assert threading.get_ident() == here
            return anp.sum(rows) * theta

        here = threading.get_ident()
        assert type(resolve()) is Sync
        assert type(resolve("threads")) is Threads
        return dagad.reduce_sum(inner_sum, rows, theta, grainsize=1)

    def total(theta: Any) -> Any:
        return dagad.reduce_sum(outer_sum, np.arange(6.0), theta, grainsize=2, scheduler=outer)

    for _ in range(3):
        assert (dagad.grad(total) if differentiated else total)(1.0) == 15.0
    assert type(resolve()) is Threads


@pytest.mark.parametrize("word", ["nonsense", 3, 2.5])
def test_an_unknown_scheduler_is_refused_with_the_choice(word: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"(?i)expected|scheduler"):
        value_and_gradient(word)


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_the_scheduler_processes_gives_values_and_gradients() -> None:
    def total(theta: Any) -> Any:
        return dagad.reduce_sum(sum_of_squares, np.arange(6.0), theta, grainsize=2, scheduler="processes")

    assert dagad.value_and_grad(total)(1.0) == (31.0, -18.0)
    value, pullback = dagad.vjp(total, 1.0)
    assert (value, *pullback(-1.0)) == (31.0, 18.0)


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_pool_of_processes_is_used() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert value_and_gradient(pool) == (31.0, -18.0)
