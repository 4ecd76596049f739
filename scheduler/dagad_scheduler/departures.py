"""Lets workers give up at once what they ask of one that has just died, instead of when Dask's patience ends.

The scheduler tells workers that another one is gone, and they give up connections to it, also such as are being made.
It may say so in one message with a task whose input was on that worker. The fetch that this task asks for begins after
the message has been read, when connections have been given up already, and tries to reach an address where nobody is
for all of `distributed.comm.timeouts.connect`, half a minute. Until then the worker does not compute that input itself,
which the same message may have asked for. So connections to that address are given up once more, after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dagad_scheduler._types import Worker

GONE = "remove-worker"


class Departure:
    """What a worker does when it is told that another one is gone."""

    def __init__(self, worker: Worker, before: Callable[..., None]) -> None:
        self._worker, self._before = worker, before

    def __call__(self, worker: str, **about: Any) -> None:
        self._before(worker=worker, **about)
        asyncio.get_running_loop().call_soon(self._worker.rpc.remove, worker)  # after the fetches that begin by now


def heed(dask_worker: Worker) -> None:
    """Have a worker give up for good what it asks of others that are gone; more than once is as good as once."""
    handlers = dask_worker.stream_handlers
    if not isinstance(handlers[GONE], Departure):
        handlers[GONE] = Departure(dask_worker, handlers[GONE])
