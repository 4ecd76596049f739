"""What a worker's desk for calls past the scheduler holds; counted there, so workers import it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from distributed import Client


def services_of(worker: Any) -> list[Any]:
    """Return the desk of a worker; none before the first hot loop, as where a test is the first of its cluster."""
    handler = worker.handlers.get("dagad_connection")
    return [handler.__self__] if handler is not None else []


def n_held(dask_worker: Any) -> int:
    return sum(len(service._held) for service in services_of(dask_worker))


def n_programs(dask_worker: Any) -> int:
    return sum(len(service._programs) for service in services_of(dask_worker))


def forget_programs(dask_worker: Any) -> None:
    for service in services_of(dask_worker):
        service._programs.clear()


def n_rows(dask_worker: Any) -> int:
    """Return how many chunks of cotangents stay on a worker."""
    return sum(len(service._rows) for service in services_of(dask_worker))


def n_left(dask_worker: Any) -> int:
    """Return how much clients have to let go of."""
    return sum(len(guest.left) for service in services_of(dask_worker) for guest in service._clients.values())


def n_now(dask_worker: Any) -> int:
    return sum(len(service._now) for service in services_of(dask_worker))


def n_connections(dask_worker: Any) -> int:
    """Return by how many connections a worker is called, on Dask's word."""
    return sum(op == "dagad_connection" for op in dask_worker._comms.values())


def on_workers(client: Client, count: Callable[[Any], Any]) -> list[Any]:
    gc.collect()
    return list(client.run(count).values())
