"""Tasks that stand for a hot loop: by them Dask sees that workers work, whose calls it knows nothing of.

A long-running task per worker is what Dask has for this: adaptive scaling and `retire_workers` leave its worker alone,
the scheduler is not idle, the dashboard shows it; and since it has seceded it takes no thread and no place in a queue.
A worker that is to go by its name or its lifetime goes: the task is then sent to another one, and ends there at once.

State of `KeepAlive`, touched by the client's event loop only:

===========  ===========================================================================================
`_calls`     the workers of each call that is under way
`_last`      when each worker was last called
`_began`     when the first call came since all was quiet
`_function`  what was called last
`_tasks`     the task that stands for the loop on each worker, as a future
`_sent`      when it was sent
`_n_users`   how many lines of the client there are, of one kind of Shards each, that all call the same workers
`_is_awake`  whether somebody looks after all this every now and then
`_n_failed`  how many such tasks failed in a row: a scheduler or workers that don't take them get no more
===========  ===========================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from dask import annotate  # type: ignore[attr-defined]  # dask's `__init__` does not say what it exports

from dagad_scheduler._types import Client
from dagad_scheduler.private import LLGExpr, Task
from dagad_scheduler.roles import Key, Names, Role

logger = logging.getLogger("dagad")

LOOK_EVERY = 0.5  # seconds
LINGER = 3.0  # seconds without a call after which a loop is over; workers wait a little longer, lest they be sooner
SEND_AGAIN = 5.0  # seconds, where a task that stands for a loop ended before the loop did
MOST_FAILURES = 3
FIRST = 1000  # priority: it takes a thread for less than a millisecond
IS_ON = ("executing", "long-running")


async def stand_for_loop(key: Key, address: str) -> None:
    """Last for as long as somebody calls this worker, and holds on to this task; elsewhere than at home not at all."""
    from distributed import get_worker

    from dagad_scheduler.private_distributed import SecedeEvent

    worker = get_worker()
    plugin: Any = worker.plugins.get("dagad-resident")
    if plugin is None or plugin.service is None or worker.address != address:
        return
    # What `distributed.secede` does for a thread.
    worker.handle_stimulus(SecedeEvent(key=key, compute_duration=0.0, stimulus_id=f"dagad-loop-{time.time()}"))
    while plugin.service.is_at_work(LINGER + 2 * LOOK_EVERY):
        await asyncio.sleep(LOOK_EVERY)
        task = worker.state.tasks.get(key)
        if task is None or task.state not in IS_ON:  # released by the client, or with it
            return


def keep_alive_of(client: Client) -> KeepAlive:
    """Return what stands for the loops of a client; it stays with the client."""
    found: KeepAlive = client.extensions.setdefault("dagad-keep-alive", KeepAlive(client))
    return found


class KeepAlive:
    """Has a task on every worker for as long as it is called again and again."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._calls: list[tuple[str, ...]] = []
        self._last: dict[str, float] = {}
        self._began, self._function = 0.0, ""
        self._tasks: dict[str, Any] = {}
        self._sent: dict[str, float] = {}
        self._n_users = self._n_failed = 0
        self._is_awake = False

    def join(self) -> None:
        """Note that there are lines more by which calls may come."""
        self._n_users += 1

    def leave(self) -> None:
        """Note that some of them are gone; with the last of them all loops are over."""
        self._n_users -= 1
        if not self._n_users:
            self.end()

    @contextlib.contextmanager
    def during(self, calls: Iterable[str], function: str) -> Iterator[None]:
        """Take note of calls of a function to some workers."""
        addresses, self._function = tuple(calls), function
        self._calls.append(addresses)
        if not self._is_awake:
            self._began, self._is_awake = time.monotonic(), True
            self._look_later()
        try:
            yield
        finally:
            self._calls.remove(addresses)
            self._last.update(dict.fromkeys(addresses, time.monotonic()))

    def _look_later(self) -> None:
        # In a context of its own: the caller's may hold annotations, meant for the caller's tasks.
        loop = self._client.loop.asyncio_loop
        loop.call_later(LOOK_EVERY, self._look, context=contextvars.Context())

    def _look(self) -> None:
        now = time.monotonic()
        busy = {address for address, last in self._last.items() if now < last + LINGER}
        busy.update(address for addresses in self._calls for address in addresses)
        if not self._is_awake or not busy or self._client.status != "running":
            self.end()
            return
        for address in [*self._tasks]:
            self._look_after(address, address in busy)
        alone = sorted(
            address
            for address in busy - self._tasks.keys()
            if self._n_failed < MOST_FAILURES and now > self._sent.get(address, -math.inf) + SEND_AGAIN
        )
        # One short call is work, but no loop yet: a task says that the scheduler is not idle.
        is_loop = bool(self._calls) or max(self._last.values()) > self._began + LOOK_EVERY / 2
        with contextlib.suppress(Exception):  # whatever keeps it from being sent, the loop itself goes on
            self._send(alone if is_loop else alone[: not self._tasks], now)
        self._look_later()

    def _look_after(self, address: str, is_busy: bool) -> None:
        """Let go of a task that has ended, or whose worker is not called any more."""
        task = self._tasks[address]
        if task.status == "finished":  # one that has not ended may still fail, on a machine that is slow
            self._n_failed = 0
        elif task.status == "error":
            self._n_failed += 1
            logger.info("dagad: Dask may not see this loop, since a task that stands for it failed: %r", task)
        if task.done() or not is_busy:  # one that has ended would be moved and made again like a result
            self._let_go(self._tasks.pop(address))

    def _let_go(self, task: Any) -> None:
        """Release a task; again, where a restart of the cluster came to the scheduler before it, and here after it.

        The client has forgotten it by then, and the scheduler would keep it for as long as there is this client.
        """
        from distributed import Future

        task.release()
        if task.status == "cancelled" and self._client.status == "running":
            Future(task.key, self._client).release()

    def _send(self, addresses: list[str], now: float) -> None:
        if not addresses:
            return
        names = Names(uuid.uuid4().hex, self._function)
        homes = {names(Role.LOOP, number): [address] for number, address in enumerate(addresses)}
        graph = {key: Task(key, stand_for_loop, key, address) for key, (address,) in homes.items()}
        self._sent.update(dict.fromkeys(addresses, now))
        # Not bound to their workers: with one of these gone, its task would wait for it for ever.
        with annotate(priority=FIRST, workers=homes.get, allow_other_workers=True):
            tasks = self._client.get(LLGExpr(graph, _determ_token=names.token), list(homes), sync=False)
        self._tasks.update(zip(addresses, tasks, strict=True))

    def end(self) -> None:
        """Let go of all tasks: the loop is over."""
        for task in self._tasks.values():
            self._let_go(task)
        for some in (self._tasks, self._sent, self._last):
            some.clear()
        self._is_awake = False
