"""What a policy has had done in this process: runs, pullbacks, and tapes alive at the same time."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any


class Counters:
    """What a policy has had done in this process.

    =====================  =========================================================
    `n_primal`             runs of a task, recorded or not
    `n_pullback`           pullbacks run
    `peak_linearizations`  most tapes alive at the same time
    `_live`                tapes alive, and those in `_gone`
    `_gone`                how many tapes have gone and are still counted, as they went
    =====================  =========================================================

    All but `_gone` change under `_lock`.
    """

    travels_empty = True  # counts are of one process
    __slots__ = ("_gone", "_live", "_lock", "n_primal", "n_pullback", "peak_linearizations")

    def __init__(self) -> None:
        self._lock, self._gone = threading.Lock(), deque[int]()
        self.n_primal = self.n_pullback = self.peak_linearizations = self._live = 0

    def ran(self, count: int = 1) -> None:
        """Count runs that left no tape."""
        with self._lock:
            self.n_primal += count

    def recorded(self, count: int = 1) -> None:
        """Count runs that left a tape each."""
        with self._lock:
            if self._gone:
                self._settle()
            self.n_primal += count
            self._live += count
            self.peak_linearizations = max(self.peak_linearizations, self._live)

    def pulled(self, count: int) -> None:
        """Count pullbacks of a tape that lives on."""
        with self._lock:
            self.n_pullback += count

    def used_up(self, count: int = 1, n_pulled: int | None = None) -> None:
        """Count the end of tapes, and pullbacks: as many unless it is said how many."""
        with self._lock:
            self.n_pullback += count if n_pulled is None else n_pulled
            self._live = max(self._live - count, 0)

    def dropped(self, count: int = 1) -> None:
        """Count tapes that are gone; where memory is freed, so maybe in a thread that has the lock: it takes none."""
        self._gone.append(count)

    def _settle(self) -> None:
        """Count what has gone; called under the lock."""
        while self._gone:
            self._live = max(self._live - self._gone.popleft(), 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return Counters, ()
