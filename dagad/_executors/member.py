"""One member of several that run together: its program, in a thread of its own that runs only when it is its turn.

State of a `Member`, touched by whoever's turn it is, the member itself or the caller of the `Meeting`:

==============  ==============================================================================================
`request`       what it waits for; None where it runs, or is over
`answer`        what it is given for that
`is_over`       whether its program has ended, `error` if that failed; else `result`
`_claim`        held for good by whoever began the program, or gave it up before somebody did
`is_given_up`   whether nobody waits for it any more: then it gets no answer, and ends
`locks`         those that it holds while it runs, and lets go of while it waits
`inside`        the meeting of members of its own that it waits for
==============  ==============================================================================================
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from types import CodeType
from typing import Any, Protocol

from dagad._executors.members_locks import Stack, stack_of, waits_for_lock
from dagad._executors.members_threads import KEPT, MemberThread, MemberThreads
from dagad._frames import Line, run_for
from dagad._values.work_arrays import kept


class _GivenUp(BaseException):
    """Ends a member for whom nobody waits."""


class Passing(Protocol):
    """Where members meet: see `members.Meeting`."""

    def pass_on(self, member: Member) -> None:
        """Let the next one go on, as a member waits or is over."""

    def renew(self, ran: Sequence[Member]) -> None:
        """Have others note anew what they wait for, as chunks of some members have run."""

    def goes_one_by_one(self) -> bool:
        """Return whether the one who runs waits for nobody."""

    def blocked(self) -> list[Stack] | None:
        """Return where those stand who run, if all wait for a lock."""


class Member:
    """One member's program, in a thread of its own that runs only when it is its turn."""

    def __init__(
        self, number: int, act: Callable[[], Any], meeting: Passing, line: Line | None, threads: MemberThreads
    ) -> None:
        self.number, self._act, self._meeting = number, act, meeting
        self._context, self._line = contextvars.copy_context(), line
        self.request: Any = None
        self.answer: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_over = self.is_given_up = False
        self.locks: list[Any] = []
        self.inside: Passing | None = None
        self._n_alone, self._pid = 0, os.getpid()
        self._go, self._ended, self._claim = threading.Lock(), threading.Lock(), threading.Lock()
        self._go.acquire()
        self._ended.acquire()
        self._threads = threads
        self._thread: MemberThread | None = None

    def is_here(self) -> bool:
        """Return whether the caller is the member's own thread, and may wait: it may have started others, or forked."""
        is_own = threading.current_thread() is self._thread and os.getpid() == self._pid
        return is_own and not self.is_over and not self._n_alone

    @contextlib.contextmanager
    def by_itself(self) -> Iterator[None]:
        """Let the member wait for nobody."""
        self._n_alone += 1
        try:
            yield
        finally:
            self._n_alone -= 1

    def is_by_itself(self) -> bool:
        """Return whether the member is to do itself what it would ask for."""
        return not self.is_given_up and self._meeting.goes_one_by_one()

    def blocked(self) -> list[Stack] | None:
        """Return where the member stands, if it waits for a lock, or all its own members do."""
        if self.inside is not None:
            return self.inside.blocked()
        thread = self._thread
        return [stack_of(thread)] if thread is not None and waits_for_lock(thread) else None

    def runs_through(self, codes: Collection[CodeType]) -> bool:
        """Return whether the member stands somewhere in one of these functions."""
        return self._thread is not None and any(code in codes for code, _ in stack_of(self._thread))

    def go_on(self, answer: object = None) -> None:
        """Let the member run: from its beginning, or with the answer to what it asked."""
        self.answer, self.request = answer, None
        if self._thread is not None:
            self._go.release()
            return
        self._thread = thread = self._threads.take()  # before it runs, or it would not find itself
        try:
            thread.begin(f"dagad-member-{self.number}", self._run)
        except Exception:  # there can be no more; who was interrupted may have started it
            self._thread = None
            raise

    def give_up(self) -> None:
        """End the member where it waits, or where it next asks."""
        self.is_given_up = True
        if self._thread is not None:
            with contextlib.suppress(RuntimeError):  # it was just told to go on
                self._go.release()
            self._wait(self._thread)
            self._thread = None
        # Whatever it had start, a call on a cluster's loop say, may have its context for ever, and in that the member.
        self.request = self.answer = self.result = self.error = None
        self._act = int

    def _wait(self, thread: MemberThread) -> None:
        """Wait until the program has ended, in a thread that ends then, too, if it is not kept.

        Whoever was to begin may have been interrupted before the thread knew what to do: it never begins then.
        """
        while not self._ended.acquire(timeout=KEPT):
            if self._claim.acquire(blocking=False):
                return
        if not self._threads.are_kept:
            thread.join()

    def ask(self, request: object) -> Any:
        """Wait for an answer, in the member's thread."""
        if self.is_given_up:
            raise _GivenUp
        self.request = request
        for lock in self.locks:  # others may come to it before this one has its answer
            lock.release()
        self._meeting.pass_on(self)
        self._go.acquire()
        for lock in self.locks:
            lock.acquire()
        answer, self.answer = self.answer, None
        if self.is_given_up:
            raise _GivenUp
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def chunks_ran(self) -> None:
        """Tell those who wait that chunks of this member have run, in its turn."""
        if not self.is_given_up:
            self._meeting.renew([self])

    def position(self) -> list[int]:
        """Return where in its program the member waits, from the outermost function to the innermost."""
        return [] if self._thread is None else [at for _, at in reversed(stack_of(self._thread))]

    def _run(self) -> None:
        if not self._claim.acquire(blocking=False):  # nobody waits for it any more
            return
        try:
            self.result = self._context.run(self._in_context)
        except BaseException as error:  # whoever waits raises it
            self.error = error
        finally:
            self.is_over = True
            try:
                self._meeting.pass_on(self)
            finally:
                self._ended.release()

    def _in_context(self) -> Any:
        _MEMBER.set(self)
        result = run_for(self._line, self._act)
        return kept(result)


_MEMBER: ContextVar[Member | None] = ContextVar("dagad_member", default=None)


def current_member() -> Member | None:
    """Return the member whose thread this is, where it may wait for others."""
    member = _MEMBER.get()
    return member if member is not None and member.is_here() else None


def held(lock: threading.Lock) -> contextlib.AbstractContextManager[Any]:
    """Hold a lock; a member lets go of it while it waits for others, who may need it to come to where it stands."""
    member = current_member()
    return lock if member is None else _held_by(member, lock)


@contextlib.contextmanager
def _held_by(member: Member, lock: threading.Lock) -> Iterator[None]:
    with lock:
        member.locks.append(lock)
        try:
            yield
        finally:
            member.locks.remove(lock)


def by_itself(is_needed: bool = True) -> contextlib.AbstractContextManager[None]:
    """Return what lets a member wait for nobody, while it holds what others may wait for, if it does."""
    member = current_member() if is_needed else None
    return contextlib.nullcontext() if member is None else member.by_itself()


@contextlib.contextmanager
def running_alone() -> Iterator[None]:
    """Run what others need not wait for; what that changes they are not told of."""
    member = current_member()
    try:
        yield
    finally:
        if member is not None:
            member.chunks_ran()
