"""From what a user writes after ``scheduler=`` to something that runs graphs."""

from __future__ import annotations

import multiprocessing.pool
import sys
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import dask.base
import dask.local
import dask.threaded

from dagad_scheduler.run import Scheduler, is_inside_task
from dagad_scheduler.running.cluster import Cluster
from dagad_scheduler.running.dask_get import Foreign
from dagad_scheduler.running.threads import Sync, Threads, get as own_get


def resolve(scheduler: Any = None) -> Scheduler:
    """Return the scheduler that Dask's own word `scheduler` names.

    That is a `distributed.Client`, "threads", "sync", "processes", an executor, a Dask ``get``, or a `Scheduler`; None
    is what Dask would choose, and inside a task the thread that the task has.
    """
    if hasattr(scheduler, "start") and hasattr(scheduler, "remote"):
        return scheduler  # type: ignore[no-any-return]  # a Scheduler by its shape
    if scheduler is None and is_inside_any_task():
        return Sync()
    if isinstance(scheduler, ThreadPoolExecutor):
        return Threads(scheduler._max_workers, scheduler)
    if isinstance(scheduler, multiprocessing.pool.Pool | Executor):
        return Foreign(dask.base.get_scheduler(scheduler=scheduler))
    get = _named(scheduler) or dask.base.get_scheduler(scheduler=scheduler)
    if get is None or get is dask.threaded.get or get is own_get:
        return Threads()
    if get is dask.local.get_sync:
        return Sync()
    client = getattr(get, "__self__", None)
    if client is not None and hasattr(client, "scheduler_info"):
        return Cluster(client)
    if isinstance(client, Threads):
        return client
    return Foreign(get)


def _named(scheduler: object) -> Any:
    """Return what Dask calls by a name; asked itself, it looks for a client first, which takes longer than a chunk."""
    return dask.base.named_schedulers.get(scheduler.lower()) if isinstance(scheduler, str) else None


def is_inside_any_task() -> bool:
    """Return whether the caller is a task, of ours or of the user's own on a worker."""
    worker = sys.modules.get("distributed.worker")  # nothing is imported to find out
    return is_inside_task() or (worker is not None and hasattr(worker.thread_state, "execution_state"))
