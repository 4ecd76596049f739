"""What a worker's desk for calls past the scheduler holds; counted there, so workers import it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from distributed import Client


def desks_of(worker: Any) -> list[Any]:
    """Return the desk of a worker; none before the first hot loop, as where a test is the first of its cluster."""
    handler = worker.handlers.get("dagad_line")
    return [handler.__self__] if handler is not None else []


def n_held(dask_worker: Any) -> int:
    return sum(len(desk._held) for desk in desks_of(dask_worker))


def n_programs(dask_worker: Any) -> int:
    return sum(len(desk._programs) for desk in desks_of(dask_worker))


def forget_programs(dask_worker: Any) -> None:
    for desk in desks_of(dask_worker):
        desk._programs.clear()


def n_rows(dask_worker: Any) -> int:
    """Return how many chunks of cotangents stay on a worker."""
    return sum(len(desk._rows) for desk in desks_of(dask_worker))


def n_left(dask_worker: Any) -> int:
    """Return how much clients have to let go of."""
    return sum(len(guest.left) for desk in desks_of(dask_worker) for guest in desk._clients.values())


def n_now(dask_worker: Any) -> int:
    return sum(len(desk._now) for desk in desks_of(dask_worker))


def n_connections(dask_worker: Any) -> int:
    """Return by how many connections a worker is called, on Dask's word."""
    return sum(op == "dagad_line" for op in dask_worker._comms.values())


def on_workers(client: Client, count: Callable[[Any], Any]) -> list[Any]:
    gc.collect()
    return list(client.run(count).values())
