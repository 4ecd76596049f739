"""What a worker's thread finds in a hot loop, as in a task: `get_worker`, `get_client`, and a place in profiles."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from dagad_scheduler._types import Worker
from dagad_scheduler.roles import Key


class as_task:
    """Run what is inside as Dask runs a task of a worker; `key` is what the task is called.

    When it began and ended, and its thread, are added to `spans`, if there are any.

    A class: this is entered at every evaluation, and costs a quarter of what it would as a generator.
    """

    __slots__ = ("_before", "_began", "_key", "_spans", "_token", "_worker")

    def __init__(self, worker: Worker, key: Key, spans: list[tuple[float, float, int]] | None = None) -> None:
        self._worker, self._key, self._spans = worker, key, spans

    def __enter__(self) -> None:
        module: Any = sys.modules["distributed.worker"]
        worker, state, ident = self._worker, module.thread_state.__dict__, threading.get_ident()
        # Older versions of Dask look at the thread's state alone.
        current = getattr(module, "_worker_cvar", None)
        self._token = None if current is None else (current, current.set(worker))
        self._before = {name: state[name] for name in _NAMES if name in state}
        self._began = time.time()
        state.update(start_time=self._began, execution_state=worker.execution_state, key=self._key)
        with worker.active_threads_lock:
            worker.active_threads[ident] = self._key

    def __exit__(self, *_: object) -> None:
        state, worker = sys.modules["distributed.worker"].thread_state.__dict__, self._worker
        if self._spans is not None:
            self._spans.append((self._began, time.time(), threading.get_ident()))
        with worker.active_threads_lock:
            worker.active_threads.pop(threading.get_ident(), None)
        for name in _NAMES:
            state.pop(name, None)
        state.update(self._before)
        if self._token is not None:
            current, token = self._token
            current.reset(token)


_NAMES = "start_time", "execution_state", "key"
