"""What a worker's thread finds in a hot loop, as in a task: `get_worker`, `get_client`, and a place in profiles."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from dagad_scheduler._roles import Key


@contextlib.contextmanager
def as_task(worker: Any, key: Key) -> Iterator[None]:
    """Run what is inside as Dask runs a task of a worker; `key` is what the task is called."""
    from distributed import worker as of_workers
    from distributed.utils import set_thread_state

    # Older versions of Dask look at the thread's state alone.
    current: Any = getattr(of_workers, "_worker_cvar", None)
    token = current and current.set(worker)
    ident = threading.get_ident()
    with worker.active_threads_lock:
        worker.active_threads[ident] = key
    try:
        with set_thread_state(start_time=time.time(), execution_state=worker.execution_state, key=key):
            yield
    finally:
        with worker.active_threads_lock:
            worker.active_threads.pop(ident, None)
        if current is not None:
            current.reset(token)
