"""Whether the members of a program run together or one by one: in this process, as took less time before.

Members that wait for one another gain where they share what is dear: messages to other processes, or threads that have
enough to do only together. Where chunks are short and run here it may cost more than it gains, so both ways are tried,
each call in one of them. Nothing of it shows in the bits. On other processes members run together.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

WARM = 2  # calls of each way before they are compared: the first one of a function is slower than those that follow
LATEST = 5  # calls of each way that are remembered
TRY_AGAIN = 64  # calls after which the slower way is tried again


class Pace:
    """How long calls took, of one function and number of members.

    =============  ===========================================================================
    `_n_members`   of how many members; with others everything begins anew
    `_n_calls`     how many calls have begun
    `_seconds`     of the latest calls, by whether members ran together
    `_is_remote`   whether something ran in other processes
    `_has_parted`  whether members waited for locks of each other, and had to go one by one
    `_lock`        held while one of these is read or changed: threads may share the function
    =============  ===========================================================================

    Examples
    --------
    >>> pace, found = Pace(), []
    >>> for _ in range(6):
    ...     found.append(pace.choose(32))
    ...     pace.took(32, found[-1], 0.2 if found[-1] else 0.1)
    >>> found
    [True, True, False, False, False, False]
    """

    travels_empty = True  # times are of one process, and no state of a function that holds them

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin(0)

    def _begin(self, n_members: int) -> None:
        self._n_members, self._n_calls, self._is_remote, self._has_parted = n_members, 0, False, False
        self._seconds = {way: deque[float](maxlen=LATEST) for way in (True, False)}

    def choose(self, n_members: int) -> bool:
        """Return whether the members of a call are to run together."""
        with self._lock:
            if n_members != self._n_members:
                self._begin(n_members)
            number, self._n_calls = self._n_calls, self._n_calls + 1
            if self._has_parted:
                return False
            together, alone = self._seconds[True], self._seconds[False]
            if self._is_remote or number < WARM or not together:
                return True
            if number < 2 * WARM or not alone:
                return False
            is_better = min(together) <= min(alone)
            return is_better if number % TRY_AGAIN else not is_better

    def took(self, n_members: int, is_together: bool, seconds: float, is_remote: bool = False) -> None:
        """Remember how long a call took."""
        with self._lock:
            if n_members == self._n_members:
                self._seconds[is_together].append(seconds)
                self._is_remote = self._is_remote or is_remote

    def __reduce__(self) -> tuple[Any, ...]:
        return Pace, ()

    def parted(self, n_members: int) -> None:
        """Remember that members can't run together: each time they would wait for locks, until somebody looks."""
        with self._lock:
            self._has_parted = self._has_parted or n_members == self._n_members
