"""The scheduler's plugin: it keeps a `Board` of evaluations, and shows that on Dask's own dashboard.

Installed by ``dagad.dashboard()``, by ``client.register_plugin(DagadPlugin())``, or with the scheduler, by
``dask scheduler --preload dagad_scheduler.preload``.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from typing import Any

from distributed import SchedulerPlugin
from tornado.ioloop import PeriodicCallback

from dagad_scheduler._types import Server
from dagad_scheduler.private_distributed import TaskStreamPlugin, show
from dagad_scheduler.residents.reports import SERVICES, TOPIC, WANTED
from dagad_scheduler.roles import Key
from dagad_scheduler.watching.board import Board
from dagad_scheduler.watching.evaluations import NAME
from dagad_scheduler.watching.pages import Pages

TICK_EVERY = 1000  # milliseconds
LOST = "handle-worker-cleanup", "check-worker-ttl"  # why a scheduler removes a worker that has not said good-bye
MOST_SORTED = 5_000  # tasks in a worker's queue
MOST_HELD = 20_000  # tasks that are looked at for what they hold


class DagadPlugin(SchedulerPlugin):
    """Shows evaluations on Dask's dashboard: the page ``/dagad``, ``/dagad.json`` and metrics for Prometheus.

    Examples
    --------
    >>> client.register_plugin(DagadPlugin())  # doctest: +SKIP
    """

    name, idempotent = NAME, True

    def __init__(self) -> None:
        self.board = Board()
        self._scheduler: Any = None
        self._pages: Pages | None = None
        self._clock: Any = None
        self._services = set[str]()  # workers that know what they are told

    def __reduce__(self) -> tuple[Any, ...]:
        return DagadPlugin, ()  # it travels before it has begun

    async def start(self, scheduler: Server) -> None:
        """Begin to follow evaluations; called again if the scheduler itself begins."""
        if self._scheduler is not None:
            return
        self._scheduler, self.board = scheduler, Board(self._needs)
        # One call less at every transition of a task.
        vars(self)["transition"] = self.board.transition
        self._clock = PeriodicCallback(self.board.tick, TICK_EVERY)
        self._clock.start()
        self._pages = Pages(scheduler, self)
        for _, event in scheduler.get_events(SERVICES):  # workers that were there before
            self._want(event)

    async def close(self) -> None:
        """End; workers tell no more."""
        if self._scheduler is not None:
            self._clock.stop()
            if self._pages is not None:
                await self._pages.close()
            for address in self._services:
                self._tell(address, False)

    def transition(self, key: Key, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Take note of a task; see `Board`."""
        self.board.transition(key, start, finish, *args, **kwargs)

    def remove_worker(self, scheduler: Server, worker: str, *, stimulus_id: str = "", **kwargs: Any) -> None:
        """Take note of a worker that is gone."""
        self._services.discard(worker)
        self.board.forget_worker(worker, is_lost=stimulus_id.startswith(LOST))

    def restart(self, scheduler: Server) -> None:
        """Take note that the cluster begins anew."""
        self.board.restart()

    def log_event(self, topic: str, msg: dict[str, Any]) -> None:
        """Take what a worker or a client tells."""
        if topic == TOPIC:
            self.board.take(msg)
            self._show(msg)
        elif topic == SERVICES:
            self._want(msg)

    def _want(self, event: dict[str, Any]) -> None:
        """Ask a worker to tell what it does."""
        self._services.add(event["worker"])
        self._tell(event["worker"], True)

    def _tell(self, address: str, is_wanted: bool) -> None:
        if address in self._scheduler.workers:
            self._scheduler.worker_send(address, {"op": WANTED, "is_wanted": is_wanted})

    def _show(self, event: dict[str, Any]) -> None:
        """Show some calls of a hot loop in Dask's task stream, as if they were tasks."""
        stream = self._scheduler.plugins.get(TaskStreamPlugin.name)
        if stream is None or not event.get("samples"):
            return
        for key, began, ended, thread in event["samples"]:
            span = {"action": "compute", "start": began, "stop": ended}
            of = {"key": tuple(key), "worker": event["worker"], "thread": thread}
            show(stream, {**of, "startstops": [span], "status": "OK", "nbytes": 0})

    def _needs(self, key: Key) -> Iterable[Key]:
        task = self._scheduler.tasks.get(key)
        return [] if task is None else [needed.key for needed in task.dependencies]

    def snapshot(self) -> dict[str, Any]:
        """Return what is shown, as plain numbers and words."""
        held: dict[str, tuple[int, int]] = {}
        holding = set[str]()
        for key in itertools.islice(self.board.held_keys(), MOST_HELD):
            task = self._scheduler.tasks.get(key)
            if task is None or not str(task.type).endswith("Linearization"):
                continue
            holding.add(key[0])
            for worker in task.who_has:
                n, nbytes = held.get(worker.address, (0, 0))
                held[worker.address] = n + 1, nbytes + max(task.nbytes, 0)
        return self.board.snapshot(held, self._executing(), holding)

    def _executing(self) -> set[Key]:
        """Return what workers execute: what they said last, half a second ago, and the first in their queues."""
        found: set[Key] = set()
        for worker in self._scheduler.workers.values():
            found.update(task.key for task in worker.executing)
            waiting = worker.processing - worker.long_running
            if len(waiting) <= MOST_SORTED:
                first = heapq.nsmallest(worker.nthreads, waiting, key=_priority)
                found.update(task.key for task in first)
        return found


def _priority(task: Any) -> Any:
    return task.priority
