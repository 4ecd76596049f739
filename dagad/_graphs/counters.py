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
    `_gone`                an entry for each tape that has gone and is still counted
    =====================  =========================================================

    All but `_gone` change under `_lock`.
    """

    __slots__ = ("_gone", "_live", "_lock", "n_primal", "n_pullback", "peak_linearizations")

    def __init__(self) -> None:
        self._lock, self._gone = threading.Lock(), deque[None]()
        self.n_primal = self.n_pullback = self.peak_linearizations = self._live = 0

    def ran(self) -> None:
        """Count a run that left no tape."""
        with self._lock:
            self.n_primal += 1

    def recorded(self) -> None:
        """Count a run that left a tape."""
        with self._lock:
            if self._gone:
                self._settle()
            self.n_primal += 1
            self._live += 1
            self.peak_linearizations = max(self.peak_linearizations, self._live)

    def pulled(self, count: int) -> None:
        """Count pullbacks of a tape that lives on."""
        with self._lock:
            self.n_pullback += count

    def used_up(self) -> None:
        """Count a pullback and the end of its tape."""
        with self._lock:
            self.n_pullback += 1
            self._live = max(self._live - 1, 0)

    def dropped(self) -> None:
        """Count a tape that is gone; where memory is freed, so maybe in a thread that has the lock: it takes none."""
        self._gone.append(None)

    def _settle(self) -> None:
        """Count what has gone; called under the lock."""
        while self._gone:
            self._gone.popleft()
            self._live = max(self._live - 1, 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return Counters, ()  # counts are of one process
