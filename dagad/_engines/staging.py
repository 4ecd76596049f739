"""Aligned memory for an engine that takes arrays as they lie only there; one array after the other is copied into it.

XLA takes an array without copying it if it begins at a multiple of 64 bytes, which numpy's own seldom do. Another it
copies into memory that is new at each evaluation, which the system hands out page by page: of large arrays that takes
six times as long as to copy them into memory that is there.

State: a `Staging` has buffers that nobody uses, by their sizes (`_free`), those that came back since (`_returned`), and
how many bytes all of its buffers have.
"""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from dagad._types import Array

ALIGNMENT = 64
LEAST = 2**16  # bytes: of less a copy takes no time


class Staging:
    """Copies arrays into aligned buffers, each of which is free again when nobody holds the copy or a part of it.

    Parameters
    ----------
    most
        Returns how many bytes all buffers may have together.
    """

    def __init__(self, most: Callable[[], int]) -> None:
        self._most, self._lock = most, threading.Lock()
        self._free: dict[int, list[np.ndarray]] = {}
        self._returned = collections.deque[tuple[int, np.ndarray]]()
        self.nbytes = 0

    def copy_of(self, array: Array) -> Any:
        """Return a copy of an array, of numbers in rows; None where none is to be had here."""
        nbytes = array.nbytes
        if nbytes < LEAST or array.dtype.kind not in "biufc" or not array.dtype.isnative:
            return None
        buffer = self._taken(nbytes)
        if buffer is None:
            return None
        # Views of views have the first array as their base which has none of numpy's: while one is there, this is.
        owner = np.frombuffer(memoryview(buffer), np.uint8)
        # This is called wherever memory is freed, maybe by a thread that has the lock: so it takes none.
        weakref.finalize(owner, self._returned.append, (nbytes, buffer)).atexit = False
        start = -owner.ctypes.data % ALIGNMENT
        found = owner[start : start + nbytes].view(array.dtype).reshape(array.shape)
        np.copyto(found, array)
        return found

    def _taken(self, nbytes: int) -> Any:
        with self._lock:
            while self._returned:
                size, buffer = self._returned.popleft()
                self._free.setdefault(size, []).append(buffer)
            free = self._free.get(nbytes)
            if free:
                return free.pop()
            if self.nbytes + nbytes > self._most():
                self.nbytes -= sum(size * len(others) for size, others in self._free.items())
                self._free = {}
            if self.nbytes + nbytes > self._most():
                return None
            self.nbytes += nbytes
        return np.empty(nbytes + ALIGNMENT, np.uint8)
