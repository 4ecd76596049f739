"""Threads of members. From the second call of a function on they are kept for a moment: the next one needs as many.

To start a thread takes a tenth of a millisecond, and whoever starts it waits for it; to go on in one takes a tenth of
that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

KEPT = 0.25  # seconds that a thread waits for something to do
MOST_LOOKS = 240  # so often by somebody who has taken it: who was interrupted then never says what


class MemberThreads:
    """Threads of the members of one function, at most as many as it has had at once.

    ==========  ============================================
    `_n_calls`  how many calls there have been
    `_idle`     threads that wait for something to do
    `_lock`     held while one of these changes
    ==========  ============================================

    Examples
    --------
    >>> threads, over = MemberThreads(), threading.Event()
    >>> threads.begin_call()
    >>> thread = threads.take()
    >>> thread.begin("dagad-member-0", over.set)
    >>> over.wait(60.0), threads.are_kept
    (True, False)
    >>> thread.join()
    """

    travels_empty = True  # threads are of one process, and no state of a function that holds them

    def __init__(self) -> None:
        self._n_calls, self._idle, self._lock = 0, list[MemberThread](), threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return MemberThreads, ()

    def begin_call(self) -> None:
        """Note that the function is called once more."""
        with self._lock:
            self._n_calls += 1

    @property
    def are_kept(self) -> bool:
        """Return whether threads wait for something more to do."""
        return self._n_calls > 1

    def take(self) -> MemberThread:
        """Return a thread that has nothing to do: one that is kept, or a new one."""
        with self._lock:
            while self._idle:
                thread = self._idle.pop()
                if thread.is_alive():  # in a process that was forked none is
                    return thread
        return MemberThread(self)

    def keep(self, thread: MemberThread) -> bool:
        """Return whether a thread that has done what it was to do is to wait."""
        with self._lock:
            if self.are_kept:
                self._idle.append(thread)
            return self.are_kept

    def dismiss(self, thread: MemberThread) -> bool:
        """Return whether a thread that has waited for long may end: nobody has taken it."""
        with self._lock:
            is_idle = thread in self._idle
            if is_idle:
                self._idle.remove(thread)
            return is_idle


class MemberThread(threading.Thread):
    """A thread that does one thing after the other, and ends where nobody has one for a while."""

    def __init__(self, threads: MemberThreads) -> None:
        super().__init__(daemon=True)
        self._threads = threads
        self._act: Callable[[], Any] = int
        self._go = threading.Lock()
        self._go.acquire()

    def begin(self, name: str, act: Callable[[], Any]) -> None:
        """Have it do something, under a name."""
        self.name, self._act = name, act
        if self.ident is None:
            self.start()
        else:
            self._go.release()

    def run(self) -> None:
        """Do what is to be done, until nobody has something to do for a while."""
        while True:
            act, self._act = self._act, int  # who is over is not to be held by a thread that waits
            act()
            del act
            if not self._threads.keep(self):
                return
            for _ in range(MOST_LOOKS):
                if self._go.acquire(timeout=KEPT):
                    break
                if self._threads.dismiss(self):
                    return
            else:
                return
