"""Threads that help the one that waits for a run: threads of the run's own, or of a pool that somebody lends."""

from __future__ import annotations

import contextlib
import contextvars
import multiprocessing.pool
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any


class Helpers:
    """Threads that join the waiting one; started one by one, only while more tasks are ready than threads at work.

    =============  ================================================================
    `_free`        how many more may join; 0 once it is closed
    `_closed`      nobody joins any more
    `_futures`     what a lent pool was asked for
    `threads`     threads of the run's own
    =============  ================================================================

    All change under `_lock`.
    """

    def __init__(self, limit: int, pool: Executor | None) -> None:
        self._free, self._pool, self._closed = limit, pool, False
        self._lock = threading.Lock()
        self._futures: list[Future[None]] = []
        self._threads: list[threading.Thread] = []

    def start_one(self, serve: Callable[[], None]) -> None:
        """Have one more thread call `serve`, unless all have been started."""
        with self._lock:
            if not self._free:
                return
            self._free -= 1
        # A copy of the caller's context for each: numpy's errstate, for one, lives there.
        run = contextvars.copy_context().run
        if self._pool is not None:
            self._lent(self._pool.submit(run, _help, serve))  # not under the lock: the pool may be anybody's
            return
        # Daemons, which those of an executor are not: a program that ends does not wait for them.
        thread = threading.Thread(target=run, args=(_help, serve), name="dagad", daemon=True)
        with self._lock:
            if self._closed:
                return
            try:
                thread.start()
            except RuntimeError:  # the system has no more of them: those that there are do it all
                self._free = 0
                return
            self._threads.append(thread)

    def _lent(self, future: Future[None]) -> None:
        with self._lock:
            self._futures.append(future)
            closed = self._closed
        if closed:  # while it was submitted: whoever closes would wait for a pool that may never come to it
            future.cancel()

    def close(self, wait: bool) -> None:
        """Let nobody join any more; with `wait`, return when all that did have left."""
        with self._lock:
            self._free, self._closed = 0, True
            threads = list(self._threads)
        if wait:
            for thread in threads:
                thread.join()
        self._end(0, wait)

    def _end(self, first: int, wait: bool) -> None:
        """Cancel what a lent pool was asked for, from some number on, or wait for it."""
        with self._lock:
            futures = self._futures[first:]
        for future in futures:
            if not future.cancel() and wait:
                future.exception()
        if futures and wait:  # one that was waited for may have asked for another, which is noted once the pool answers
            self._end(first + len(futures), wait)


def _help(serve: Callable[[], None]) -> None:
    # Whatever a task raises, even what ends a program, is raised by the thread that waits.
    with contextlib.suppress(BaseException):
        serve()


class _Lent(Executor):
    """A pool of `multiprocessing.pool` as an executor whose futures can be cancelled until they run."""

    def __init__(self, pool: multiprocessing.pool.ThreadPool) -> None:
        self._pool = pool

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have the pool call a function."""
        future: Future[Any] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        self._pool.apply_async(call)
        return future


def lent(pool: object) -> tuple[Executor | None, int | None]:
    """Return what somebody gave as `pool` as an executor, and how many threads it has, if that is known."""
    if pool is None:
        return None, None
    if isinstance(pool, multiprocessing.pool.ThreadPool):
        return _Lent(pool), getattr(pool, "_processes", None)
    if isinstance(pool, Executor) and not isinstance(pool, ProcessPoolExecutor):
        return pool, getattr(pool, "_max_workers", None)
    raise TypeError(
        f"`pool` is a {type(pool).__name__}, whose processes can't take part in a run in threads. Give a "
        "`ThreadPoolExecutor` or a `multiprocessing.pool.ThreadPool`, or give the pool as `scheduler=`."
    )
