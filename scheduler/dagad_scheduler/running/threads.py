"""The local scheduler: a Dask ``get`` that runs values first and reports each result as it lands.

Dask's own threaded scheduler can't serve here: it runs the newest task first (so values come last), knows no
priorities, hands results over only at the end, reports to callbacks only and deadlocks when a task calls
it on the pool it runs in. An executor of ``concurrent.futures`` may bring the threads; what is written here is the
queue in front of them, in `local`. The thread that waits is one of the workers, so a run needs no free thread in the
pool to end: nested calls in a shared pool cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

import dask

from dagad_scheduler.private import CPU_COUNT, convert_legacy_graph, ensure_dict
from dagad_scheduler.roles import Key, depth_first, priorities
from dagad_scheduler.run import Graph, Keys, OnResult, Scheduler
from dagad_scheduler.running.callbacks import telling
from dagad_scheduler.running.helpers import Helpers, lent
from dagad_scheduler.running.local import LocalRun
from dagad_scheduler.running.parts import PartsRun


class Threads(Scheduler):
    """Run graphs in the threads of this process, values before pullbacks.

    `num_workers` counts the thread that waits too; the others come from `pool`. Both are Dask's settings by default,
    else as many as the pool has, or one per core, in threads that end with the run.
    """

    remote = False
    shares = True

    @property
    def workers(self) -> int:
        """Number of threads, as Dask's configuration has it now."""
        return self._num_workers or dask.config.get("num_workers", None) or self._lent()[1] or CPU_COUNT

    def _lent(self) -> tuple[Executor | None, int | None]:
        return lent(self._pool or dask.config.get("pool", None))

    def __init__(self, num_workers: int | None = None, pool: Executor | None = None, name: str = "threads") -> None:
        self.name, self._num_workers, self._pool = name, num_workers, pool

    def alone(self) -> Threads:
        return Threads(1, name=self.name)

    def start(
        self, graph: Graph, keys: Keys, on_result: OnResult, *, keep: Keys = (), kept: Graph | None = None
    ) -> LocalRun:
        """Prepare the run. It begins when somebody waits for it: the thread that waits is its first worker."""
        return LocalRun(graph, keys, on_result, keep, kept or {}, priorities(graph), self._helpers())

    def share(self, n_parts: int, run_part: Callable[[int], None], role: str) -> PartsRun:
        """Prepare a run of numbered parts that need no graph, in their order; it begins when somebody waits for it."""
        return PartsRun(n_parts, run_part, self._helpers(), role)

    def get(self, dsk: Graph, keys: object, callbacks: object = None, **_: Any) -> Any:
        """Compute `keys` of a graph: Dask's ``get`` protocol, for ``dask.compute(..., scheduler=Threads().get)``."""
        graph = convert_legacy_graph(ensure_dict(dsk.__dask_graph__() if hasattr(dsk, "__dask_graph__") else dsk))
        wanted, results = dict.fromkeys(_flat(keys)), dict[Key, Any]()
        indices = depth_first(graph, wanted)
        with telling(callbacks, graph, {*wanted}, indices.get) as notified:
            priority = priorities(graph, indices)
            LocalRun(graph, wanted, results.__setitem__, (), {}, priority, self._helpers(), notified).wait()
        return _nested(keys, results)

    def _helpers(self) -> Helpers | None:
        workers = self.workers
        return Helpers(workers - 1, self._lent()[0]) if workers > 1 else None


class Sync(Threads):
    """Run graphs in the calling thread, in the same order as `Threads` would start their tasks."""

    def __init__(self) -> None:
        super().__init__(num_workers=1, name="sync")


def _flat(keys: object) -> list[Key]:
    return [key for item in keys for key in _flat(item)] if isinstance(keys, list) else [keys]


def _nested(keys: object, results: Mapping[Key, Any]) -> Any:
    return tuple(_nested(key, results) for key in keys) if isinstance(keys, list) else results[keys]


def get(dsk: Graph, keys: object, **kwargs: Any) -> Any:
    """Compute `keys` of a Dask graph in threads, values first: ``dask.compute(..., scheduler=dagad.get)``.

    For any Dask collection: arrays, bags, Delayed and others. The time grows with the number of tasks, also where that
    of Dask's own schedulers on one machine grows with its square: they first look for an order, which takes minutes
    for a gradient of some ten thousand independent parts. Values come before pullbacks, and each result is let go of as
    soon as nobody needs it.

    Parameters
    ----------
    dsk
        A Dask graph.
    keys
        A key, or nested lists of keys.
    **kwargs
        As for ``dask.threaded.get``: `num_workers`, the number of threads; `pool`, a ``ThreadPoolExecutor`` or a
        ``multiprocessing.pool.ThreadPool`` to take them from (as many as it has, if `num_workers` is not given);
        `callbacks`, which by default are those that are active, such as a ``ProgressBar``. The thread that calls is
        one of the threads. Anything else is ignored, as Dask does.

    Returns
    -------
    object
        The result of the key, or nested tuples of results.

    Raises
    ------
    KeyError
        If the graph has no task for a key.

    Examples
    --------
    >>> import dask, dagad
    >>> x = dask.delayed(3.0)
    >>> value, gradient = dagad.value_and_gradient(x * x, x)
    >>> dask.compute(value, gradient, scheduler=dagad.get)
    (np.float64(9.0), np.float64(6.0))
    """
    return Threads(kwargs.get("num_workers"), kwargs.get("pool")).get(dsk, keys, kwargs.get("callbacks"))
