"""Tasks that stand for a hot loop: by them Dask sees that workers work, whose calls it knows nothing of.

A long-running task per worker is what Dask has for this: adaptive scaling and `retire_workers` leave its worker alone,
the scheduler is not idle, the dashboard shows it; and since it has seceded it takes no thread and no place in a queue.
A worker that is to go by its name or its lifetime goes: the task is then sent to another one, and ends there at once.

State of `Standing`, touched by the client's event loop only:

===========  ===========================================================================================
`_calls`     the workers of each call that is under way
`_last`      when each worker was last called
`_began`     when the first call came since all was quiet
`_tasks`     the task that stands for the loop on each worker, as a future
`_sent`      when it was sent
`_is_awake`  whether somebody looks after all this every now and then
`_is_vain`   whether such a task failed: the scheduler or the workers don't take them, so there are no more
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
from dask._expr import LLGExpr
from dask._task_spec import Task

from dagad_scheduler._roles import Names, Role

logger = logging.getLogger("dagad")

LOOK_FIRST, LOOK_EVERY = 0.1, 0.5  # seconds
LINGER = 3.0  # seconds without a call after which a loop is over; workers wait a little longer, lest they be sooner
SEND_AGAIN = 5.0  # seconds, where a task that stands for a loop ended before the loop did
FIRST = 1000  # priority: it takes a thread for less than a millisecond
IS_ON = ("executing", "long-running")


async def stand_for_loop(token: str, number: int, address: str) -> None:
    """Last for as long as somebody calls this worker, and holds on to this task; elsewhere than at home not at all."""
    from distributed import get_worker
    from distributed.worker_state_machine import SecedeEvent

    worker, key = get_worker(), Names(token)(Role.LOOP, number)
    desk = getattr(worker.plugins.get("dagad-resident"), "desk", None)
    if desk is None or worker.address != address:
        return
    # What `distributed.secede` does for a thread.
    worker.handle_stimulus(SecedeEvent(key=key, compute_duration=0.0, stimulus_id=f"dagad-loop-{time.time()}"))
    while desk.is_at_work(LINGER + 2 * LOOK_EVERY):
        await asyncio.sleep(LOOK_EVERY)
        task = worker.state.tasks.get(key)
        if task is None or task.state not in IS_ON:  # released by the client, or with it
            return


class Standing:
    """Has a task on every worker for as long as it is called again and again."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._calls: list[tuple[str, ...]] = []
        self._last: dict[str, float] = {}
        self._began = 0.0
        self._tasks: dict[str, Any] = {}
        self._sent: dict[str, float] = {}
        self._is_awake = self._is_vain = False

    @contextlib.contextmanager
    def during(self, calls: Iterable[str]) -> Iterator[None]:
        """Take note of calls to some workers."""
        addresses = tuple(calls)
        self._calls.append(addresses)
        if not self._is_awake:
            self._began, self._is_awake = time.monotonic(), True
            self._look_later(LOOK_FIRST)
        try:
            yield
        finally:
            self._calls.remove(addresses)
            self._last.update(dict.fromkeys(addresses, time.monotonic()))

    def _look_later(self, seconds: float) -> None:
        # In a context of its own: the caller's may hold annotations, meant for the caller's tasks.
        loop = self._client.loop.asyncio_loop
        loop.call_later(seconds, self._look, context=contextvars.Context())

    def _look(self) -> None:
        now = time.monotonic()
        busy = {address for address, last in self._last.items() if now < last + LINGER}
        busy.update(address for addresses in self._calls for address in addresses)
        if not self._is_awake or not busy or self._client.status != "running":
            self.end()
            return
        for address in [*self._tasks]:
            if address not in busy:
                self._tasks.pop(address).release()
        alone = sorted(address for address in busy if self._stands_alone(address, now))
        # One short call is work, but no loop yet: a task says that the scheduler is not idle.
        is_loop = bool(self._calls) or max(self._last.values()) > self._began + LOOK_FIRST / 2
        with contextlib.suppress(Exception):  # whatever keeps it from being sent, the loop itself goes on
            self._send(alone if is_loop else alone[: not self._tasks], now)
        self._look_later(LOOK_EVERY)

    def _stands_alone(self, address: str, now: float) -> bool:
        """Return whether there is no task for a worker, and it is time to send one."""
        task = self._tasks.get(address)
        if task is not None and task.status == "error":
            self._is_vain = True
            logger.info("dagad: Dask does not see this loop, since a task that stands for it failed: %r", task)
        if self._is_vain or (task is not None and not task.done()):
            return False
        return now > self._sent.get(address, -math.inf) + SEND_AGAIN

    def _send(self, addresses: list[str], now: float) -> None:
        if not addresses:
            return
        token = uuid.uuid4().hex
        homes = {Names(token)(Role.LOOP, number): [address] for number, address in enumerate(addresses)}
        graph = {key: Task(key, stand_for_loop, token, key[1], address) for key, (address,) in homes.items()}
        self._sent.update(dict.fromkeys(addresses, now))
        # Not bound to their workers: with one of these gone, its task would wait for it for ever.
        with annotate(priority=FIRST, workers=homes.get, allow_other_workers=True):
            tasks = self._client.get(LLGExpr(graph, _determ_token=token), list(homes), sync=False)
        for address, task in zip(addresses, tasks, strict=True):
            self._release(self._tasks.get(address))
            self._tasks[address] = task

    def end(self) -> None:
        """Let go of all tasks: the loop is over."""
        for task in self._tasks.values():
            self._release(task)
        for some in (self._tasks, self._sent, self._last):
            some.clear()
        self._is_awake = False

    @staticmethod
    def _release(task: Any) -> None:
        if task is not None:
            task.release()
