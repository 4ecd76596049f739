"""Members of one program that run together: each in a thread of its own, one at a time, from reduction to reduction.

Where a member comes to a reduction, it waits. When all do, those that stand at the same one, on the same rows, have
it run as one job; then each goes on. Where they stand at different ones, those go first whose line of the program comes
first: so those that are behind catch up, after a branch or in a loop, as the threads of a graphics processor do. Who is
alone at a reduction runs it as ever. Members take turns in the order of their numbers, so a program of members does the
same each time; only one thread of them runs at any moment, and the caller's waits for it.

State of a `_Member`, touched by whoever's turn it is, the member itself or the caller of the `Meeting`:

==============  ==============================================================================================
`request`       what it waits for; None where it runs, or is over
`answer`        what it is given for that
`is_over`       whether its program has ended, `error` if that failed; else `result`
`is_given_up`   whether nobody waits for it any more: then it gets no answer, and ends
==============  ==============================================================================================
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from dagad._errors import CancelledError, SchedulerLostError, WorkerLostError, add_note_once
from dagad._graphs.policies import Policy
from dagad._kernels.job import Executor, Job, Land, Residuals, Results, Seeds
from dagad._kernels.kernel import Kernel
from dagad._kernels.members import SeedsTogether, Together, has_same_rows
from dagad._values import fingerprint
from dagad._values.shipping import pack

CALL, LINEARIZE, PULL = "call", "linearize", "pull"
ALONE: Any = object()  # the answer to a member that is to do itself what it asked for
LOST = (WorkerLostError, SchedulerLostError, CancelledError)  # it would be again, alone


class _GivenUp(BaseException):
    """Ends a member for whom nobody waits."""


@dataclass(frozen=True, slots=True)
class _Request:
    """What a member asks for: a method of an executor, or a pullback of what an earlier one left."""

    method: str
    job: Job
    inner: Executor
    place: Any
    policy: Policy | None = None
    left: _Left | None = None
    seeds: Sequence[Seeds] = ()
    land: Land | None = None

    def is_like(self, other: _Request) -> bool:
        """Return whether both may run as one job."""
        if self.method != other.method or type(self.policy) is not type(other.policy):
            return False
        if self.method == PULL:
            return self.left is other.left and len(self.seeds) == len(other.seeds)
        if self.job.kernel.signature != other.job.kernel.signature or not _is_same_place(self.place, other.place):
            return False
        return has_same_rows(self.job, other.job)


def _is_same_place(one: Any, other: Any) -> bool:
    if one is other or one == other:
        return True
    return type(one) is type(other) and getattr(one, "__dict__", one) == getattr(other, "__dict__", other)


class MemberExecutor:
    """Has jobs of members run together, by an executor; jobs of others it leaves to that."""

    name = "members"

    def __init__(self, inner: Executor, place: Any) -> None:
        self._inner, self._place, self.remote = inner, place, inner.remote

    def call(self, job: Job) -> Results:
        """Run a job for what it gives."""
        found = _asked(_Request(CALL, job, self._inner, self._place))
        if found is ALONE:
            return _alone(self._inner.call(job), self._inner)
        results: Results = found
        return results

    def linearize(self, job: Job, policy: Policy) -> tuple[Results, Residuals | None]:
        """Run a job, and leave behind what its policy says."""
        found = _asked(_Request(LINEARIZE, job, self._inner, self._place, policy))
        if found is not ALONE:
            both: tuple[Results, Residuals | None] = found
            return both
        results, residuals = self._inner.linearize(job, policy)
        return _alone(results, self._inner), residuals


def _alone(results: Results, inner: Executor) -> Results:
    member, results.ran_by = _MEMBER.get(), results.ran_by or inner
    if member is not None and member.is_here():
        why = f": {results.reason}" if results.reason else ""
        results.reason = f"of one member, as no other one is at the same reduction{why}"
    return results


class _Left:
    """What a job of several members left behind."""

    def __init__(self, together: Together, residuals: Residuals) -> None:
        self.together, self.residuals = together, residuals


class MemberResiduals:
    """The part of one member; see `Residuals`. Where members don't pull together it is not used."""

    ran_by = MemberExecutor.name

    def __init__(self, left: _Left, inner: Executor, place: Any) -> None:
        self._left, self._inner, self._place = left, inner, place

    def pull(self, job: Job, seeds: Sequence[Seeds], land: Land) -> bool:
        """Pull some seeds, and let the cotangents land; False where that can't be."""
        request = _Request(PULL, job, self._inner, self._place, None, self._left, seeds, land)
        return _asked(request) is True

    def release(self) -> None:
        """Let go of nothing: other members may pull."""


def as_member(executor: Executor, place: Any) -> Executor:
    """Return an executor that runs jobs of members together, where this is a member's program."""
    member = _MEMBER.get()
    return executor if member is None or not member.is_here() else MemberExecutor(executor, place)


def _asked(request: _Request) -> Any:
    member = _MEMBER.get()
    return ALONE if member is None or not member.is_here() else member.ask(request)


class _Member:
    """One member's program, in a thread of its own that runs only when it is its turn."""

    def __init__(self, number: int, act: Callable[[], Any], pass_on: Callable[[_Member], None]) -> None:
        self.number, self._act, self._pass_on = number, act, pass_on
        self._context = contextvars.copy_context()
        self.request: _Request | None = None
        self.answer: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_over = self.is_given_up = False
        self._go = threading.Lock()
        self._go.acquire()
        self._thread = threading.Thread(target=self._run, name=f"dagad-member-{number}", daemon=True)

    def is_here(self) -> bool:
        """Return whether the caller is the member's own thread: it may have started others."""
        return threading.current_thread() is self._thread and not self.is_over

    def go_on(self, answer: Any = None) -> None:
        """Let the member run: from its beginning, or with the answer to what it asked."""
        self.answer, self.request = answer, None
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.release()

    def give_up(self) -> None:
        """End the member where it waits, or where it next asks."""
        self.is_given_up = True
        if self._thread.ident is not None:
            with contextlib.suppress(RuntimeError):  # it was just told to go on
                self._go.release()
            self._thread.join()

    def ask(self, request: _Request) -> Any:
        """Wait for an answer, in the member's thread."""
        if self.is_given_up:
            raise _GivenUp
        self.request = request
        self._pass_on(self)
        self._go.acquire()
        answer, self.answer = self.answer, None
        if self.is_given_up:
            raise _GivenUp
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def position(self) -> list[int]:
        """Return where in its program the member waits, from the outermost function to the innermost."""
        frame, found = sys._current_frames().get(self._thread.ident or 0), list[int]()
        while frame is not None:
            found.append(frame.f_lasti)
            frame = frame.f_back
        return found[::-1]

    def _run(self) -> None:
        try:
            self.result = self._context.run(self._in_context)
        except BaseException as error:  # whoever waits raises it
            self.error = error
        finally:
            self.is_over = True
            self._pass_on(self)

    def _in_context(self) -> Any:
        _MEMBER.set(self)
        return self._act()


_MEMBER: ContextVar[_Member | None] = ContextVar("dagad_member", default=None)


class Meeting:
    """The members of one program. Who stops lets the next one go on, the last one the caller: that is one switch each.

    `_turns` are those who are to go on, with their answers, after the one who runs; `_pause` is released when none is.
    """

    def __init__(self, acts: Sequence[Callable[[], Any]]) -> None:
        self._turns: deque[tuple[_Member, Any]] = deque()
        self._pause, self._lock, self._is_over = threading.Lock(), threading.Lock(), False
        self._pause.acquire()
        self._members = [_Member(number, act, self._pass_on) for number, act in enumerate(acts)]

    def run(self) -> list[Any]:
        """Run all programs to their end, and return what they return; the first error is raised."""
        try:
            self._take_turns([(member, None) for member in self._members])
            while group := self._next():
                requests = [member.request for member in group if member.request is not None]
                self._take_turns(list(zip(group, _answers(requests), strict=True)))
            return [member.result for member in self._members]
        finally:
            with self._lock:
                self._is_over = True
            for member in self._members:
                member.give_up()
            self._members = []

    def _take_turns(self, turns: Sequence[tuple[_Member, Any]]) -> None:
        """Let members go on, one after the other, each until it waits or is over."""
        self._turns.extend(turns)
        self._pass_on(None)
        self._pause.acquire()
        for member, _ in turns:
            if member.error is not None:
                add_note_once(member.error, f"dagad: member {member.number} of a `dagad.vmap`")
                raise member.error

    def _pass_on(self, member: _Member | None) -> None:
        with self._lock:  # or somebody might begin whom the caller, interrupted, has just given up
            if self._is_over:
                return
            if self._turns and (member is None or member.error is None):
                following, answer = self._turns.popleft()
                following.go_on(answer)
            else:
                self._pause.release()

    def _next(self) -> list[_Member]:
        """Return the members that come next: those at the same reduction, at the first place in the program."""
        groups: list[list[_Member]] = []
        for member in self._members:
            if (request := member.request) is not None:
                alike = (one for one in groups if one[0].request is not None and one[0].request.is_like(request))
                found = next(alike, None)
                if found is None:
                    groups.append([member])
                else:
                    found.append(member)
        if len(groups) < 2:  # nearly always
            return groups[0] if groups else []
        return min(groups, key=lambda group: min(member.position() for member in group))


def _answers(requests: Sequence[_Request]) -> Sequence[Any]:
    """Return the answers to requests that are alike."""
    first, alone = requests[0], [ALONE] * len(requests)
    if len(requests) == 1:
        return alone
    try:
        return _pulled(first.left, requests) if first.left is not None else _run(requests)
    except LOST as error:
        return [error] * len(requests)
    except Exception:  # of some member's: alone each gets its own
        return alone


def _run(requests: Sequence[_Request]) -> Sequence[Any]:
    first = requests[0]
    inner = as_member(first.inner, first.place)  # of members that this program is one of
    kernels = [request.job.kernel for request in requests]
    # In this process each may well run its own; what travels goes once, where it is the same.
    together = Together([request.job for request in requests], _sent(kernels) if inner.remote else kernels)
    residuals: Residuals | None = None
    if first.policy is None:
        results = inner.call(together.job)
    else:
        results, residuals = inner.linearize(together.job, first.policy)
    each = together.apart(results)
    for own in each:
        own.ran_by = own.ran_by or inner
        own.reason = f"{len(each)} members together{f': {results.reason}' if results.reason else ''}"
    if first.policy is None:
        return each
    left = None if residuals is None else _Left(together, residuals)
    return [
        (own, None if left is None else MemberResiduals(left, one.inner, one.place))
        for own, one in zip(each, requests, strict=True)
    ]


def _pulled(left: _Left, requests: Sequence[_Request]) -> Sequence[Any]:
    """Pull seeds of all members at once, if all are here; nothing lands before everything is there."""
    if len(requests) < len(left.together.jobs):
        return [ALONE] * len(requests)
    many = [SeedsTogether(each) for each in zip(*[request.seeds for request in requests], strict=True)]
    landed: list[tuple[Any, ...]] = []
    if not left.residuals.pull(left.together.job, many, lambda *what: landed.append(what)):
        return [ALONE] * len(requests)
    land = left.together.land([request.land for request in requests if request.land is not None])
    for what in landed:
        land(*what)
    return [True] * len(requests)


def _sent(kernels: Sequence[Kernel]) -> Sequence[Kernel]:
    """Return what has to travel: the first kernel alone, where all are the same for whoever is sent one of them."""
    first, *others = map(fingerprint.fingerprint, kernels)
    if all(fingerprint.same(first, other) for other in others):
        return kernels[:1]
    payload = _payload(kernels[0])
    return kernels[:1] if all(_payload(other) == payload for other in kernels[1:]) else kernels


def _payload(kernel: Kernel) -> list[bytes]:
    return [bytes(part) for part in pack(kernel).payload]
