"""Graphs on a distributed cluster: ordinary Dask tasks whose results are reported as they land.

One scheduler handles every task, which takes it about a millisecond, whatever the task computes and however many
workers there are (`tests/benchmarks/cluster.py --only graph`): a thousand workers are kept busy by chunks of a second
or more. Sums are part of the graph, on the workers that hold most of their terms, so the client receives one sum, and
not one a chunk. A loop that evaluates the same plan again does without the graph: see `residents`.

What a cancelled run has not started never runs. What is running goes on to its end: a chunk can't be left half way,
and several chunks share a task only where they take milliseconds.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dask
from dask import annotate  # type: ignore[attr-defined]  # dask's `__init__` does not say what it exports

from dagad_scheduler._types import Client, Server
from dagad_scheduler.annotations import annotated
from dagad_scheduler.private import LLGExpr
from dagad_scheduler.process import calmed
from dagad_scheduler.residents.client import ResidentClient, resident_client_of
from dagad_scheduler.roles import PULLBACK_RANK, VALUE_RANK, Key, group_of, rank_of, role_of
from dagad_scheduler.run import (
    Account,
    Graph,
    Keys,
    OnResult,
    Progress,
    ResultsLost,
    Run,
    Scheduler,
    SchedulerLost,
    WorkersLost,
)
from dagad_scheduler.running.placement import anchored, homes_of
from dagad_scheduler.running.suspects import find_deadly, suspects_of
from dagad_scheduler.watching.pages import PAGE
from dagad_scheduler.workers import workers_of

logger = logging.getLogger("dagad")

LOOK_EVERY, SAY_AFTER = 1.0, 5.0  # seconds in which nothing lands
WARN_FROM = "distributed.admin.large-graph-warning-threshold"

# A foreign key counts as a value; a pullback must never hold up a value (Dask runs the higher priority first).
_PRIORITY = {0: 20, VALUE_RANK: 10, PULLBACK_RANK: 0}


def _priority_of(key: Key) -> int:
    return _PRIORITY[rank_of(key)]


class LargeGraphs:
    """Keeps Dask from advising against large graphs: rows that are to have a lineage have to travel in one.

    State: `_depth`, how many submissions are under way, and `_config`, the setting held for them; under `_lock`.
    """

    def __init__(self) -> None:
        self._lock, self._depth, self._config = threading.Lock(), 0, contextlib.ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._config.enter_context(dask.config.set({WARN_FROM: "1 PB"}))

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if not self._depth:
                self._config.close()


LARGE_GRAPHS = LargeGraphs()


class _OutOfTime(TimeoutError):
    """Whoever waits has waited long enough; a task of the user's may raise a TimeoutError too."""


class ClusterRun(Run):
    """One graph on its way through a cluster."""

    def __init__(
        self,
        client: Client,
        graph: dict[Key, Any],
        keys: list[Key],
        on_result: OnResult,
        keep: list[Key],
        kept: Mapping[Key, Any],
    ):
        self._client, self._graph, self._on_result = client, graph, on_result
        wanted = [*keys, *keep]
        groups = {rank: [key for key in graph if rank_of(key) == rank] for rank in (VALUE_RANK, PULLBACK_RANK)}
        self._needed: Mapping[Key, Any] = kept
        self._users = annotated()
        self._site = workers_of(client)
        workers = self._site.fit(self._users.workers)
        homes = homes_of(graph, workers, kept) if workers else None
        # Without `workers=` the scheduler queues root tasks, and pullbacks overtake the values that wait there. With
        # all workers it would send every chunk to the one that has the chunk function.
        with LARGE_GRAPHS, annotate(**self._users.with_ours(_priority_of, homes)):
            futures = client.get(LLGExpr(graph, _determ_token=uuid.uuid4().hex), wanted, sync=False)
        by_key = dict(zip(wanted, futures, strict=True))
        self._futures = [by_key[key] for key in keys]
        self.kept: dict[Key, Any] = {key: by_key[key] for key in keep}
        self._own = list(self.kept.values())  # `start` adds what an earlier run kept, which is not ours to let go of
        self._landed: set[Key] = set()
        self._finished = self._over = False
        self._waits_for, self._left = "", list[int]()
        self._lock = threading.Lock()
        self._all_groups = sorted(self._names())
        self._inner = frozenset(key for node in graph.values() for key in node.dependencies)
        self._groups = {rank: Counter(str(group_of(key)) for key in keys) for rank, keys in groups.items()}

    def wait(self, timeout: float | None = None) -> None:
        """Report results as they land."""
        from distributed import as_completed, rejoin

        away = _secede()
        landing = as_completed(self._futures, loop=self._client.loop, with_results=True, raise_errors=False)
        try:
            for future, result in self._landings(landing, timeout):
                if future.status != "finished":
                    raise self._error_of(future, result)
                self._landed.add(future.key)
                self._on_result(future.key, result)
            self._finished = self._over = True
            self._graph, self._needed = {}, {}
        except _OutOfTime:
            raise
        except BaseException:
            self._release()
            raise
        finally:
            if away:
                rejoin()

    def _landings(self, landing: Any, timeout: float | None) -> Iterator[tuple[Any, Any]]:
        """Yield results as they land; while none does, see now and then whether there is anybody to work."""
        began = last = looked = time.monotonic()
        while not landing.is_empty():
            now = time.monotonic()
            if now > looked + LOOK_EVERY:
                self._look(now - last)
                looked = time.monotonic()
            if landing.has_ready():
                yield next(landing)
                last, self._waits_for = now, ""
                continue
            if timeout is not None and now > began + timeout:
                missing = len(self._futures) - len(self._landed)
                raise _OutOfTime(f"{missing} results were not there after {timeout} seconds; they go on.")
            with landing.thread_condition:
                landing.thread_condition.wait(timeout=0.1)

    def _look(self, seconds: float) -> None:
        """Look at workers that have joined, and say it once if there is nobody to work."""
        if self._client.status != "running":
            return
        workers = self._site.fit(self._users.workers, patience=0.0)
        if seconds < SAY_AFTER or self._waits_for:
            return
        if not workers:
            self._waits_for = "workers: the cluster has none"
        elif self._users.restrict and self._ask(_is_without_workers, False, groups=list(self._names())):
            self._waits_for = f"workers that {self._users} asks for: the cluster has none"
        if self._waits_for:
            logger.warning(
                "dagad: waiting for %s. It goes on when there are some; `dagad.evaluate(...).value(timeout=...)` waits "
                "no longer than that.",
                self._waits_for,
            )

    def _ask(self, function: Callable[..., Any], otherwise: object, **about: Any) -> Any:
        """Return what a function finds on the scheduler, which at some sites runs none."""
        try:
            return self._client.run_on_scheduler(function, **about)
        except ValueError:  # what distributed raises for `distributed.scheduler.blocked-handlers`
            return otherwise

    def _names(self) -> set[str]:
        return {str(group_of(key)) for key in self._graph}

    def _error_of(self, future: Any, result: Any) -> BaseException:
        """Return what to raise for a future that has no result."""
        error = result[1] if isinstance(result, tuple) and len(result) == 3 else result
        if type(error).__name__ == "KilledWorker" and not hasattr(error, "__notes__"):  # not one of a task's own
            self._site.fit(self._users.workers)
            self._site.refuse_unseen(error.last_worker.address)
            n_deaths = error.allowed_failures + 1
            suspects = suspects_of(self._client, self._graph, error.task, n_deaths)
            find = functools.partial(find_deadly, self._client, self._graph, suspects)
            return WorkersLost(suspects, error.last_worker.address, n_deaths, find)
        if getattr(error, "reason", None) == "scheduler-connection-lost" or self._client.status != "running":
            return SchedulerLost(
                f"The client {self._client.id} has lost its scheduler, and with it all that ran there."
            )
        if future.status == "cancelled" and not self._over:
            return ResultsLost(_gone(self._needed))
        return error if isinstance(error, BaseException) else RuntimeError(f"{future.key!r} ended as {error!r}.")

    def cancel(self) -> None:
        """Give up everything that has not landed."""
        with self._lock:
            over, self._over = self._over, True
        if over:
            return
        # Only keys that nothing depends on: distributed's scheduler breaks off the client, with everything it holds,
        # when a key is cancelled that others depend on which nobody holds. What is released goes all the same.
        ends = [future for future in self._futures if future.key not in self._inner and future.status == "pending"]
        self._client.cancel(ends)
        self._let_go(set(self._futures) - set(ends))

    def _release(self) -> None:
        """Let go of everything; what has not started never runs."""
        with self._lock:
            over, self._over = self._over, True
        if not over:
            self._let_go(set(self._futures))

    def _let_go(self, futures: set[Any]) -> None:
        for future in (*futures, *self._own):
            future.release()

    def account(self, *, detailed: bool = False) -> Account:
        """Return what the scheduler knows of it."""
        if not detailed or not self._finished or self._client.status != "running":
            return Account()
        ends = [future.key for future in self._futures]
        found: Account = self._ask(_account, Account(), names=self._all_groups, ends=ends)
        return found

    def progress(self) -> Progress:
        """Return how many chunks have their value, and their gradient; asks the scheduler while the run goes on.

        Of a run that was given up it is what was known last: nobody counts what has been let go of.
        """
        totals = [sum(self._groups[rank].values()) for rank in (VALUE_RANK, PULLBACK_RANK)]
        if not self._finished and not self._over:
            groups = [list(self._groups[rank]) for rank in (VALUE_RANK, PULLBACK_RANK)]
            self._left = self._ask(_tasks_left, totals, groups=groups)
        left = [0, 0] if self._finished else self._left or totals
        return Progress(totals[0] - left[0], totals[0], totals[1] - left[1], totals[1], self._waits_for)


def _account(dask_scheduler: Server, names: list[str], ends: list[Key]) -> Account:
    """Return, on the scheduler, what the tasks of some groups took, and how large the results are that left it."""
    seconds: dict[str, float] = {}
    for name in names:
        group = dask_scheduler.task_groups.get(name)
        for action, spent in (group.all_durations if group else {}).items():
            what = str(role_of((name, 0)) or "other") if action == "compute" else action
            seconds[what] = seconds.get(what, 0.0) + spent
    tasks = (dask_scheduler.tasks.get(key) for key in ends)
    return Account(seconds, 0, sum(task.nbytes or 0 for task in tasks if task is not None))


def _tasks_left(dask_scheduler: Server, groups: list[list[str]]) -> list[int]:
    """Count, on the scheduler, the tasks of some groups that have not been computed yet."""
    waiting = ("waiting", "queued", "processing", "no-worker", "erred")
    found = [[dask_scheduler.task_groups.get(name) for name in names] for names in groups]
    return [sum(group.states[state] for group in some if group for state in waiting) for some in found]


def _is_without_workers(dask_scheduler: Server, groups: list[str]) -> bool:
    """Return, on the scheduler, whether tasks of some groups find no worker that may run them."""
    found = [dask_scheduler.task_groups.get(name) for name in groups]
    return any(group.states["no-worker"] for group in found if group)


def _gone(kept: Mapping[Key, Any]) -> list[Key]:
    """Return what a restart of the cluster has taken away; what died with a worker is "lost" and comes again."""
    return [key for key, future in kept.items() if getattr(future, "status", None) == "cancelled"]


def _secede() -> bool:
    """Let go of the worker's thread where the caller is a task on a worker: what it waits for may need it."""
    from distributed import secede

    try:
        secede()
    except (KeyError, AttributeError, ValueError):
        return False
    return True


def _revive(client: Client, kept: Mapping[Key, Any]) -> None:
    """Try again what Dask has given up only because it was on its way when workers died of something else."""
    given_up = [future for future in kept.values() if getattr(future, "status", None) == "error"]
    lost = [future for future in given_up if type(future.exception()).__name__ == "KilledWorker"]
    if lost:
        client.retry(lost)


class Cluster(Scheduler):
    """Run graphs on the cluster of a `distributed.Client`."""

    name, remote, workers = "distributed", True, None

    def __init__(self, client: Client) -> None:
        self._client = client
        self._residents: ResidentClient | None = None

    @property
    def in_process(self) -> bool:
        """Whether its workers are threads of this process, which see the arrays that are here."""
        server = self._client.scheduler
        return server is not None and server.address[:6] == "inproc"

    @property
    def is_closed(self) -> bool:  # type: ignore[override]  # of others it is an attribute, which costs no call
        """Whether the client is, with which all goes that it held."""
        return str(self._client.status) == "closed"

    def n_workers(self) -> int:
        """Return how many workers there were lately."""
        return workers_of(self._client).count()[0]

    def has_workers(self) -> bool:
        """Return whether there are workers now."""
        with contextlib.suppress(SchedulerLost):
            return bool(workers_of(self._client).addresses())
        return False

    def n_threads(self) -> int:
        """Return how many threads the workers had lately; 0 where nobody may wait for an answer."""
        if self._client.asynchronous:
            return 0
        with contextlib.suppress(SchedulerLost):  # whoever runs something says so
            return workers_of(self._client).count()[1]
        return 0

    def residents(self) -> ResidentClient:
        if self._residents is None:
            self._residents = resident_client_of(self._client)
        return self._residents

    def dashboard(self) -> str | None:
        """Have the scheduler show evaluations on its dashboard; return where, None if it has none."""
        from dagad_scheduler.watching.plugin import DagadPlugin

        self._client.register_plugin(DagadPlugin())
        link = self._client.dashboard_link
        return None if link is None else link.rpartition("/")[0] + PAGE

    def start(
        self, graph: Graph, keys: Keys, on_result: OnResult, *, keep: Keys = (), kept: Graph | None = None
    ) -> ClusterRun:
        """Send the graph; what an earlier run kept is held by `kept`'s futures and referred to by key."""
        if self._client.status != "running":
            raise SchedulerLost(
                f"The client {self._client.id} is {self._client.status}, so nothing can run on its cluster."
            )
        if gone := _gone(kept or {}):
            raise ResultsLost(gone)
        _revive(self._client, kept or {})
        run = ClusterRun(self._client, anchored(calmed(dict(graph))), list(keys), on_result, list(keep), kept or {})
        run.kept.update(kept or {})
        return run

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cluster) and other._client is self._client

    def __hash__(self) -> int:
        return id(self._client)
