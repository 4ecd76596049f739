"""Numbered parts of one piece of work, run by threads of this process without a graph: whoever is free takes the next.

State of a run, all changed under `_lock`:

===========  ========================================================================================
`_started`   number of parts that somebody has taken
`_done`      number of parts that are done
`_failures`  (number, exception) of parts that raised; that of the first part is the one raised. Those before a
             part have all been taken when it is, so the same exception wins whatever the timing
`_stopped`   no part is started any more
`_seconds`   what parts have taken
`cpu_seconds`, `n_workers`  what all threads together have spent, and how many they were; complete after `wait`
===========  ========================================================================================
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

from dagad_scheduler.process import process_settings
from dagad_scheduler.roles import PULLBACK_RANK, RANKS, rank
from dagad_scheduler.run import Account, Progress, Run, inside_task, raise_first
from dagad_scheduler.running.helpers import Helpers


class PartsRun(Run):
    """The parts of one piece of work on their way; `run_part` runs one and puts away what it gives."""

    def __init__(self, n_parts: int, run_part: Callable[[int], None], helpers: Helpers | None, role: str) -> None:
        self._n_parts, self._run_part, self._helpers, self._rank = n_parts, run_part, helpers, rank(f"dagad-{role}-")
        self.kept: dict[Any, Any] = {}
        self._lock = threading.Lock()
        self._started = self._done = 0
        self._failures: list[tuple[int, BaseException]] = []
        self._stopped = False
        self._seconds = 0.0

    def wait(self, timeout: float | None = None) -> None:
        """Run parts in the calling thread too, until all are done; `timeout` has no effect."""
        del timeout
        finished = False
        try:
            self._serve()
            finished = True
        finally:
            if not finished:  # KeyboardInterrupt, here or in a part: the others stop after the part they are in
                self.cancel()
            if self._helpers is not None:
                self._helpers.close(wait=finished)
        if self._failures:
            raise_first(self._failures)
        if self._done < self._n_parts:
            raise CancelledError("This run was cancelled.")

    def _serve(self) -> None:
        began = time.thread_time()
        with process_settings, inside_task:
            while (number := self._next()) is not None:
                self._run(number)
        with self._lock:
            self.cpu_seconds += time.thread_time() - began
            self.n_workers += 1

    def _next(self) -> int | None:
        with self._lock:
            if self._stopped or self._started == self._n_parts:
                return None
            self._started += 1
            return self._started - 1

    def _run(self, number: int) -> None:
        began = time.perf_counter()
        try:
            # Each starts the next one, so that nobody has to start them all before it begins.
            if self._helpers is not None and number + 1 < self._n_parts:
                self._helpers.start_one(self._serve)
            self._run_part(number)
        except BaseException as error:  # KeyboardInterrupt too: it has to stop the other threads
            with self._lock:
                self._failures.append((number, error))
                self._stopped = True
            if not isinstance(error, Exception):
                raise
            return
        with self._lock:
            self._done += 1
            self._seconds += time.perf_counter() - began

    def cancel(self) -> None:
        """Start no more parts; those that are running come to their end."""
        with self._lock:
            self._stopped = True

    def account(self, *, detailed: bool = False) -> Account:
        """Return what it took."""
        del detailed  # all is known here
        return Account({RANKS[self._rank]: self._seconds} if self._seconds else {})

    def progress(self) -> Progress:
        """Return how many parts are done."""
        done, total = self._done, self._n_parts
        return Progress(0, 0, done, total) if self._rank == PULLBACK_RANK else Progress(done, total)
