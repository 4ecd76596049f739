"""What a worker's desk for calls past the scheduler holds; counted there, so workers import it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from distributed import Client


def desk_of(worker: Any) -> Any:
    return worker.handlers["dagad_line"].__self__


def n_held(dask_worker: Any) -> int:
    return len(desk_of(dask_worker)._held) if "dagad_line" in dask_worker.handlers else 0


def n_programs(dask_worker: Any) -> int:
    return len(desk_of(dask_worker)._programs)


def n_left(dask_worker: Any) -> int:
    """Return how much clients have to let go of."""
    return sum(len(guest.left) for guest in desk_of(dask_worker)._clients.values())


def n_now(dask_worker: Any) -> int:
    return len(desk_of(dask_worker)._now)


def n_connections(dask_worker: Any) -> int:
    """Return by how many connections a worker is called, on Dask's word."""
    return sum(op == "dagad_line" for op in dask_worker._comms.values())


def on_workers(client: Client, count: Callable[[Any], Any]) -> list[Any]:
    gc.collect()
    return list(client.run(count).values())
