"""One graph on its way through the threads of this process: by priority, each result reported as it lands.

State of a run, all changed under `_changed`'s lock:

===========  ========================================================================================
`_ready`     heap of (priority, key): tasks whose dependencies are all there
`_waiting`   key -> number of dependencies still missing
`_uses`      key -> number of tasks that still need this result; at 0 it is dropped
`_data`      key -> result, while somebody needs it
`_left`      number of tasks not yet done; 0 ends the run
`_done`      number of tasks done, by rank of their role
`_failures`  (priority, exception) of tasks that raised; the first in order of priority is the one raised,
             so that the same exception wins whatever the timing
`_stopped`   no task is started any more
`_seconds`   what tasks have taken, by rank of their role
`cpu_seconds`, `n_workers`  what all threads together have spent, and how many they were; complete after `wait`
===========  ========================================================================================
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import CancelledError
from typing import Any

from dagad_scheduler.private import DataNode, GraphNode, Task, TaskRef
from dagad_scheduler.process import process_settings
from dagad_scheduler.roles import PULLBACK_RANK, RANK_SHIFT, RANKS, VALUE_RANK, Key
from dagad_scheduler.run import Account, Graph, OnResult, Progress, Run, inside_task, is_inside_task, raise_first
from dagad_scheduler.running.callbacks import Notified, is_watched, telling
from dagad_scheduler.running.helpers import Helpers


class LocalRun(Run):
    """One graph on its way through the threads of this process."""

    def __init__(
        self,
        graph: Graph,
        keys: Collection[Key],
        on_result: OnResult,
        keep: Collection[Key],
        kept: Mapping[Key, Any],
        priority: Mapping[Key, int],
        helpers: Helpers | None,
        notified: Notified | None = None,
    ) -> None:
        self._graph, self._on_result, self._priority = graph, on_result, priority
        self._wanted, self._keep = frozenset(keys), frozenset(keep)
        self.kept: dict[Key, Any] = {}
        self._changed = threading.Condition(threading.Lock())
        self._ready: list[tuple[int, Key]] = []
        self._waiting: dict[Key, int] = {}
        self._dependents: dict[Key, list[Key]] = {}
        self._data: dict[Key, Any] = dict(kept)
        self._done, self._total, self._seconds = [0, 0, 0], [0, 0, 0], [0.0, 0.0, 0.0]
        self._failures: list[tuple[int, BaseException]] = []
        self._stopped = self._cancelled = False
        self._idle = 0
        self._helpers, self._notified = helpers, notified
        self._prepare()

    def _prepare(self) -> None:
        """Walk back from what is wanted: only that is run."""
        graph, waiting, dependents, data = self._graph, self._waiting, self._dependents, self._data
        stack = [*self._wanted, *self._keep]
        while stack:
            key = stack.pop()
            if key in waiting or key in data:
                continue
            node = graph.get(key)
            if node is None:
                raise KeyError(f"The graph has no task for {key!r}, which another task or the caller asks for.")
            if type(node) is DataNode:
                data[key] = node.value
                continue
            missing = 0
            for dependency in node.dependencies:
                dependents.setdefault(dependency, []).append(key)
                source = graph.get(dependency)
                if dependency in data:
                    continue
                if type(source) is DataNode:
                    data[dependency] = source.value
                    continue
                missing += 1
                stack.append(dependency)
            waiting[key] = missing
        self._uses = {key: len(users) for key, users in dependents.items()}
        priority = self._priority
        for key, missing in waiting.items():
            self._total[priority[key] >> RANK_SHIFT] += 1
            if not missing:
                self._ready.append((priority[key], key))
        heapq.heapify(self._ready)
        self._left = len(waiting)
        for key in (self._wanted | self._keep) - waiting.keys():
            self._report(key, data[key])

    def _report(self, key: Key, result: object) -> None:
        if key in self._wanted:
            self._on_result(key, result)
        if key in self._keep:
            self.kept[key] = result

    def serve(self, deadline: float | None = None) -> None:
        """Run tasks until none is left; called by every thread that serves this run."""
        began = time.thread_time()
        with process_settings, inside_task:
            self._work(deadline)
        with self._changed:
            self.cpu_seconds += time.thread_time() - began
            self.n_workers += 1

    def _work(self, deadline: float | None) -> None:
        finished: tuple[Key, Any, float] | None = None
        while True:
            with self._changed:
                if finished is not None:
                    self._land(*finished)
                    finished = None  # or this thread would keep the result alive while it waits
                key = self._next(deadline)
                crowded = bool(self._ready) and not self._idle
            if key is None:
                return
            if crowded and self._helpers is not None:  # not under the lock: the pool may be anybody's
                self._helpers.start_one(self.serve)
            finished = self._execute(key)

    def _execute(self, key: Key) -> tuple[Key, Any, float] | None:
        node, data, began = self._graph[key], self._data, time.perf_counter()
        try:
            if self._notified is not None:
                self._notified.before(key)
            result = _run_task(node, data)
            if self._notified is not None:
                self._notified.after(key, result)
            if key in self._wanted or key in self._keep:
                self._report(key, result)
            return key, result, time.perf_counter() - began
        except BaseException as error:  # KeyboardInterrupt too: it has to stop the other threads
            with self._changed:
                self._failures.append((self._priority[key], error))
                self._stopped = True
                self._changed.notify_all()
            if not isinstance(error, Exception):
                raise
            return None

    def _land(self, key: Key, result: object, seconds: float) -> None:
        data, uses, waiting = self._data, self._uses, self._waiting
        dependents = self._dependents.get(key)
        if dependents:
            data[key] = result
            woken = 0
            for child in dependents:
                missing = waiting[child] = waiting[child] - 1
                if not missing:
                    heapq.heappush(self._ready, (self._priority[child], child))
                    woken += 1
            # This thread takes one of them itself.
            if woken > 1 and self._idle:
                self._changed.notify(woken - 1)
        for dependency in self._graph[key].dependencies:
            left = uses[dependency] = uses[dependency] - 1
            if not left:
                data.pop(dependency, None)
        rank = self._priority[key] >> RANK_SHIFT
        self._done[rank] += 1
        self._seconds[rank] += seconds
        self._left -= 1
        if not self._left:
            self._changed.notify_all()

    def _next(self, deadline: float | None) -> Key | None:
        """Return the next task, None when there is nothing more to do; called under the lock."""
        while True:
            if self._stopped or not self._left:
                return None
            if deadline is not None and time.monotonic() >= deadline:
                return None
            if self._ready:
                return heapq.heappop(self._ready)[1]
            self._idle += 1
            try:
                self._changed.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            finally:
                self._idle -= 1

    def wait(self, timeout: float | None = None) -> None:
        """Work on the graph in the calling thread until it is done; Dask's active callbacks are told of its tasks."""
        if self._notified is not None or any(self._done) or is_inside_task() or not is_watched():
            self._wait(timeout)
            return
        nodes = {**self._graph, **{key: DataNode(key, value) for key, value in self._data.items()}}
        with telling(None, nodes, {*self._wanted, *self._keep}, self._priority.get) as self._notified:
            self._wait(timeout)

    def _wait(self, timeout: float | None) -> None:
        finished = False
        try:
            self.serve(None if timeout is None else time.monotonic() + timeout)
            finished = True
        finally:
            if not finished:  # KeyboardInterrupt, here or in a task: the others stop after the task they are in
                self.cancel()
            if self._helpers is not None and (self._stopped or not self._left):
                self._helpers.close(wait=finished)
        if self._failures:
            self._cancelled = True
            raise_first(self._failures)
        if self._cancelled:
            raise CancelledError("This run was cancelled.")
        if self._left:
            raise TimeoutError(f"{self._left} tasks were not done after {timeout} seconds; they go on.")

    def cancel(self) -> None:
        """Start no more tasks; those that are running come to their end."""
        with self._changed:
            if self._left:
                self._stopped = self._cancelled = True
            self._changed.notify_all()

    def account(self, *, detailed: bool = False) -> Account:
        del detailed  # all is known here
        return Account({name: seconds for name, seconds in zip(RANKS, self._seconds, strict=True) if seconds})

    def progress(self) -> Progress:
        done, total = self._done, self._total
        return Progress(done[VALUE_RANK], total[VALUE_RANK], done[PULLBACK_RANK], total[PULLBACK_RANK])


def _run_task(node: Any, data: Mapping[Key, Any]) -> Any:
    """Run one node, as calling it would, without copying and checking what all tasks together have computed."""
    if type(node).__call__ is Task.__call__ and not node.kwargs:  # subclasses too that only Dask's fusion sees
        args = [
            data[arg.key] if isinstance(arg, TaskRef) else _run_task(arg, data) if isinstance(arg, GraphNode) else arg
            for arg in node.args
        ]
        return node.func(*args)
    return node({name: data[name] for name in node.dependencies})
