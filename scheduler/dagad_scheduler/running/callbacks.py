"""Dask's callbacks (`ProgressBar`, `Profiler`, `Cache`, ...) around a run in threads: they are told of each task.

State of a `Notified`, all of it changed under its lock, which is held while callbacks run: they expect to be called one
after the other. They are the user's, and may compute: the lock is nobody else's.

===========  =========================================================================================
`_state`     what dask.local calls the state of a run: which tasks wait, are ready, run, have finished
`_failed`    whether the run has failed, as far as is known
===========  =========================================================================================
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from dask.callbacks import Callback

from dagad_scheduler.private import finish_task, local_callbacks, start_state_from_dask, unpack_callbacks
from dagad_scheduler.roles import Key


class Notified:
    """Callbacks that are told of the tasks of one run."""

    def __init__(
        self, callbacks: Iterable[Any], graph: Mapping[Key, Any], keys: set[Key], order: Callable[[Key], int | None]
    ) -> None:
        self._callbacks, self._graph, self._keys, self._order = callbacks, graph, keys, order
        _, _, self._pretask, self._posttask, _ = unpack_callbacks(callbacks)
        self._state: dict[str, Any] = {}
        self._lock = threading.RLock()

    def prepare(self) -> None:
        """Say which tasks there are."""
        self._state = start_state_from_dask(self._graph, cache={}, sortkey=self._order, keys=set(self._keys))
        for _, start_state, *_ in self._callbacks:
            if start_state:
                start_state(self._graph, self._state)

    def before(self, key: Key) -> None:
        with self._lock:
            ready = self._state["ready"]
            if ready and ready[-1] == key:
                ready.pop()
            else:
                ready.remove(key)
            self._state["running"].add(key)
            for callback in self._pretask:
                callback(key, self._graph, self._state)

    def after(self, key: Key, result: object) -> None:
        with self._lock:
            self._state["cache"][key] = result
            finish_task(self._graph, key, self._state, self._keys, self._order)
            for callback in self._posttask:
                callback(key, result, self._graph, self._state, threading.get_ident())

    def finish(self, started: list[Any], *, failed: bool) -> None:
        """Say that the run is over to those who were told that it started."""
        with self._lock:
            for *_, finish in started:
                if finish:
                    finish(self._graph, self._state, failed)


@contextlib.contextmanager
def telling(
    callbacks: object, graph: dict[Key, Any], keys: set[Key], order: Callable[[Key], int | None]
) -> Iterator[Notified | None]:
    """Enter Dask's callbacks around one run: those given, or those that are active; None where there are none.

    They may change the graph first, as `dask.cache.Cache` does, and are out of the way of what tasks compute.
    """
    if callbacks is None and not Callback.active:
        yield None
        return
    with local_callbacks(callbacks) as found:
        notified, started, failed = Notified(found, graph, keys, order), list[Any](), True
        try:
            for callback in found:
                if callback[0]:
                    callback[0](graph)
                started.append(callback)
            notified.prepare()
            yield notified
            failed = False
        finally:
            notified.finish(started, failed=failed)


def is_watched() -> bool:
    """Return whether callbacks are active that are to hear of the tasks that this thread starts.

    Dask has one set of callbacks for the whole process, which a run takes away and puts back. In a thread of its own an
    evaluation would do so while the user leaves the ``with`` block, and the callbacks would stay for ever.
    """
    return bool(Callback.active) and threading.current_thread() is threading.main_thread()
