"""Members of one program that run together: each in a thread of its own, one at a time, from reduction to reduction.

Where a member comes to a reduction, it waits. When all do, those that stand at the same one, on the same rows, have
it run as one job; then each goes on. Where they stand at different ones, those go first whose line of the program comes
first: so those that are behind catch up, after a branch or in a loop, as the threads of a graphics processor do. Who is
alone at a reduction runs it as ever. Members take turns in the order of their numbers, so a program of members does the
same each time; only one thread of them runs at any moment, and the caller's waits for it, unless that one waits for a
lock that another may hold (`members_locks`).

Each member has its thread and its state in `member`. What members leave behind for pullbacks is in `members_residuals`.
Whether they may run together is for `members_settings`, `members_process` and `members_snapshot` to say.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from dagad._errors import CancelledError, ClosureError, SchedulerLostError, WorkerLostError, add_note_once
from dagad._executors import members_locks
from dagad._executors.member import Member, current_member, running_alone
from dagad._executors.members_locks import Stack
from dagad._executors.members_process import ProcessState, ProgramState
from dagad._executors.members_residuals import MemberPull, SharedResiduals
from dagad._executors.members_settings import CurrentStates, Settings
from dagad._executors.members_snapshot import CurrentState, Snapshot, refused_between
from dagad._executors.members_threads import MemberThreads
from dagad._frames import users_line
from dagad._graphs.policies import OURS, Policy
from dagad._kernels.job import Executor, Job, Land, Residuals, Results, Seeds
from dagad._kernels.kernel import Kernel
from dagad._kernels.members import Together, has_same_fields, has_same_rows
from dagad._types import Function
from dagad._values import fingerprint
from dagad._values.shipping import pack

CALL, LINEARIZE, PULL = "call", "linearize", "pull"
ALONE: Any = object()  # the answer to a member that is to do itself what it asked for
LOST = (SchedulerLostError, CancelledError)  # it would be again, alone


@dataclass(frozen=True, slots=True)
class _Request:
    """What a member asks for: a method of an executor, or a pullback of what an earlier one left."""

    method: str
    job: Job
    inner: Executor
    scheduler: Any
    snapshot: Snapshot
    settings: Settings
    policy: Policy | None = None
    pulled: MemberPull | None = None
    is_alone: bool = False  # as it could not be answered with others

    def is_like(self, other: _Request) -> bool:
        """Return whether both may run as one job."""
        if self.method != other.method or self.is_alone or other.is_alone:
            return False
        if not (_is_same_policy(self.policy, other.policy) and self.settings.is_like(other.settings)):
            return False
        if self.pulled is not None and other.pulled is not None:
            return self.pulled.goes_with(other.pulled)
        if self.job.kernel.signature != other.job.kernel.signature or not _is_same_scheduler(
            self.scheduler, other.scheduler
        ):
            return False
        return has_same_rows(self.job, other.job)


def _is_same_scheduler(one: object, other: object) -> bool:
    if one is other:
        return True
    # Ours are made anew for each reduction; another executor may hold what no attribute tells.
    is_ours = type(one) is type(other) and type(one).__module__.startswith("dagad_scheduler.")
    return is_ours and bool(vars(one) == vars(other))


def _is_same_policy(one: Policy | None, other: Policy | None) -> bool:
    """Return whether either may be used for both: ours count what they had done, and differ in nothing else."""
    if type(one) is type(other) and type(one) in OURS:
        return True
    return has_same_fields(one, other)


class MemberExecutor:
    """Has jobs of members run together, by an executor; jobs of others it leaves to that."""

    name = "members"

    def __init__(self, inner: Executor, scheduler: object) -> None:
        self._inner, self._scheduler, self.remote = inner, scheduler, inner.remote

    def call(self, job: Job) -> Results:
        """Run a job for what it gives."""
        found = _asked(CALL, job, self._inner, self._scheduler)
        if found is ALONE:
            with running_alone():
                return _alone(self._inner.call(job), self._inner)
        results: Results = found
        return results

    def linearize(self, job: Job, policy: Policy) -> tuple[Results, Residuals | None]:
        """Run a job, and leave behind what its policy says."""
        found = _asked(LINEARIZE, job, self._inner, self._scheduler, policy)
        if found is not ALONE:
            both: tuple[Results, Residuals | None] = found
            return both
        with running_alone():
            results, residuals = self._inner.linearize(job, policy)
            return _alone(results, self._inner), residuals


def _alone(results: Results, inner: Executor) -> Results:
    results.ran_by = results.ran_by or inner
    if current_member() is not None:
        why = f": {results.reason}" if results.reason else ""
        results.reason = f"of one member, as no other one is at the same reduction{why}"
    return results


class MemberResiduals:
    """The part of one member of what a job of several left behind; see `Residuals`."""

    ran_by = MemberExecutor.name

    def __init__(self, shared: SharedResiduals, number: int, inner: Executor, scheduler: object) -> None:
        self._shared, self._number, self._inner, self._scheduler = shared, number, inner, scheduler

    def pull(self, job: Job, seeds: Sequence[Seeds], land: Land, *, keep: bool = False) -> bool:
        """Pull some seeds, and let the cotangents land, by whoever calls; False where that can't be.

        That need not be the member itself: another one may have its pullback, or a thread, or whoever comes later.
        """
        pulled = MemberPull(self._shared, self._number, job, seeds, land, keep or len(seeds) > 1)
        found = _asked(PULL, job, self._inner, self._scheduler, None, pulled)
        if found is not ALONE:
            return found is True
        with running_alone():
            return self._shared.pull_one(pulled, self._inner)

    def release(self) -> None:
        """Let go of nothing: other members may pull."""


def as_member(executor: Executor, scheduler: object) -> Executor:
    """Return an executor that runs jobs of members together, where this is a member's program."""
    return executor if current_member() is None else MemberExecutor(executor, scheduler)


def _asked(
    method: str,
    job: Job,
    inner: Executor,
    scheduler: object,
    policy: Policy | None = None,
    pulled: MemberPull | None = None,
) -> Any:
    """Return what a member is given for a request; that it is to do itself what others do, who wait for nobody."""
    member = current_member()
    if member is None or member.is_by_itself():
        return ALONE
    snapshot = Snapshot(job, () if pulled is None else pulled.seeds, CurrentState(), policy)
    if snapshot.has_own_thread:
        return ALONE
    return member.ask(_Request(method, job, inner, scheduler, snapshot, Settings(), policy, pulled))


class Meeting:
    """The members of one program. Who stops lets the next one go on, the last one the caller: that is one switch each.

    Where one waits for a lock that another may hold, who waits for it in turn, they part: one that waits goes on, and
    from then on all run one by one, as in a loop.

    ===============  ==================================================================================================
    `_turns`         those who are to go on, with their answers, after the one who runs
    `_running`       those who run: one, or more where one of them waits for a lock
    `_pause`         released when none is
    `_of_several`    what has failed of several members together
    `_lock`          held while one of these changes
    `_process`       what is set for the process where nobody has set it for himself
    `_program`       what the programs can reach
    `_refused`       those who wait while another one has written what they may read
    `_is_changed`    whether who asked last had set it otherwise
    `is_remote`      whether something has run in other processes
    `is_one_by_one`  whether nobody waits for others any more
    `can_try_again`  whether the next call's may wait again: of what was read, nothing has changed
    ===============  ==================================================================================================
    """

    def __init__(self, fun: Function, acts: Sequence[Callable[[], Any]], threads: MemberThreads) -> None:
        self._fun, self._turns = fun, deque[tuple[Member, Any]]()
        self._running, self._has_failed, self.is_one_by_one = list[Member](), False, False
        self._pause, self._lock, self._is_over = threading.Lock(), threading.Lock(), False
        self._pause.acquire()
        self._of_several: BaseException | None = None
        self.is_remote, self._settings = False, Settings()
        self._process, self._is_changed = ProcessState(), False
        self._program, self.can_try_again = ProgramState(fun), False
        self._refused = dict[Member, ClosureError]()
        line = users_line()
        self._members = [Member(number, act, self, line, threads) for number, act in enumerate(acts)]

    def run(self) -> list[Any]:
        """Run all programs to their end, and return what they return; the first error is raised."""
        around = current_member()
        if around is not None:
            around.inside = self
        try:
            self._take_turns([(member, None) for member in self._members])
            while group := self._next():
                if refused := self._changed():
                    self._take_turns(refused)
                else:
                    self._run_group(group[:1] if self.is_one_by_one else group)
            return [member.result for member in self._members]
        finally:
            with self._lock:
                self._is_over = True
            # Those who wait first: one that runs may need a lock that they hold.
            for member in sorted(self._members, key=self._running.__contains__):
                member.give_up()
            self._members, self._refused = [], {}
            if around is not None:
                around.inside = None

    def _run_group(self, group: Sequence[Member]) -> None:
        """Run what members ask for, who ask for the same, and let them go on."""
        requests = [member.request for member in group]
        is_here = requests[0].settings.is_like(self._settings)
        self.is_remote = self.is_remote or requests[0].inner.remote
        answers = _answers(requests) if is_here else requests[0].settings.run(_answers, requests)
        self.renew(group)
        if isinstance(answers[0], BaseException):
            numbers = ", ".join(str(member.number) for member in group)
            add_note_once(answers[0], f"dagad: members {numbers} of a `dagad.vmap`, which ran together")
            self._of_several = answers[0]
        if answers[0] is ALONE and len(group) > 1:  # what one changes then, the next one is to be looked at for
            for member in group:
                member.request = replace(member.request, is_alone=True)
            return
        self._take_turns(list(zip(group, answers, strict=True)))

    def _changed(self) -> list[tuple[Member, Any]]:
        """Return the members that wait for what is not any more what they asked for, and what refuses it."""
        now = CurrentStates()
        found = [(member, self._refused.get(member) or _refusal(member, now)) for member in self._waiting()]
        return [(member, error) for member, error in found if error is not None]

    def _waiting(self) -> list[Member]:
        return [member for member in self._members if member.request is not None]

    def renew(self, ran: Sequence[Member]) -> None:
        """Have all others who wait note anew what they wait for: what chunk functions change is their own affair."""
        now = CurrentStates()
        for member in self._members:
            request = member.request  # of those who wait
            if request is not None and member not in ran:
                now.look(request.settings, request.snapshot.renew)

    def _take_turns(self, turns: Sequence[tuple[Member, Any]]) -> None:
        """Let members go on, one after the other, each until it waits or is over."""
        if self._process.is_changed():
            self._process.note()  # by one who is over, so that it stays so
        self._program.has_changed()  # by chunk functions, whose own affair it is
        self._turns.extend(turns)
        self.pass_on(None)
        before: list[Stack] | None = None
        looks = 0
        while not self._pause.acquire(timeout=members_locks.LOOK):
            now = self.blocked()
            looks = looks + 1 if now is not None and now == before else 1
            before = now
            if now is not None and looks >= members_locks.LOOKS:
                self._part({stack[0][0] for stack in now})
                before = None
        for member in self._members:
            if member.error is not None:
                if member.error is not self._of_several:
                    add_note_once(member.error, f"dagad: member {member.number} of a `dagad.vmap`")
                raise member.error

    def blocked(self) -> list[Stack] | None:
        """Return where those stand who run, if all wait for a lock."""
        found = list[Stack]()
        for member in list(self._running):
            stacks = member.blocked()
            if stacks is None:
                return None
            found += stacks
        return found or None

    def _part(self, codes: set[CodeType]) -> None:
        """Let one who waits go on, as those who run wait for a lock: rather one in the same function as they."""
        waiting = self._waiting()
        if not waiting:
            return
        self.is_one_by_one = True
        chosen = next((member for member in waiting if member.runs_through(codes)), waiting[0])
        answer = next((answer for member, answer in self._turns if member is chosen), ALONE)
        if answer is ALONE and (refused := _refusal(chosen, CurrentStates())) is not None:
            answer = refused
        with self._lock:
            if self._running:  # they still do
                self._turns = deque(one for one in self._turns if one[0] is not chosen)
                self._running.append(chosen)
                chosen.go_on(answer)

    def goes_one_by_one(self) -> bool:
        """Return whether the one who runs waits for nobody: but one that has failed ends all."""
        if self._has_failed or self.is_one_by_one:
            return not self._has_failed
        if self._program.has_changed():
            self._go_one_by_one()
            return True
        self._is_changed = self._process.is_changed()
        return self._is_changed

    def _go_one_by_one(self) -> None:
        """Have nobody wait any more, as one has written what others read; refuse those whose numbers it may be now."""
        self.is_one_by_one = True
        self.can_try_again = self._program.only_grew
        self._refused = dict(self._changed())
        if not self._program.only_grew:
            self._refused = {one: refused_between(self._fun, one.number) for one in self._waiting()} | self._refused

    def pass_on(self, member: Member | None) -> None:
        """Let the next one go on, as a member waits or is over, and no other runs."""
        if member is not None and member.is_over and self._is_changed:
            self._process.note()  # it stays so
            self._is_changed = False
        if member is not None and member.is_over:
            self._program.has_changed()  # it is over for those who come next
        with self._lock:  # or somebody might begin whom the caller, interrupted, has just given up
            if self._is_over:
                return
            if member is not None:
                self._running.remove(member)
                self._has_failed = self._has_failed or member.error is not None
            if self._running:
                return
            if self._turns and not self._has_failed:
                following, answer = self._turns.popleft()
                self._running.append(following)
                try:
                    following.go_on(answer)
                    return
                except Exception as error:  # no further thread can be started: nobody else would tell the caller
                    following.error, following.is_over = error, True
                    self._running.remove(following)
            self._pause.release()

    def _next(self) -> list[Member]:
        """Return the members that come next: those at the same reduction, at the first place in the program."""
        groups: list[list[Member]] = []
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


def _refusal(member: Member, now: CurrentStates) -> ClosureError | None:
    """Return what refuses the request of a member that waits, as it sees things."""
    request: _Request = member.request
    found: ClosureError | None = now.look(request.settings, lambda now: request.snapshot.change(member.number, now))
    return found


def _answers(requests: Sequence[_Request]) -> Sequence[Any]:
    """Return the answers to requests that are alike."""
    first, alone = requests[0], [ALONE] * len(requests)
    if len(requests) == 1:
        return alone
    try:
        return _run(requests) if first.pulled is None else _pulled(requests)
    except WorkerLostError as error:  # by one of them: the others have theirs, if somebody is left to run it
        has_workers = getattr(first.scheduler, "has_workers", lambda: True)
        return alone if has_workers() else [error] * len(requests)
    except LOST as error:
        return [error] * len(requests)
    except Exception:  # of some member's: alone each gets its own
        return alone


def _run(requests: Sequence[_Request]) -> Sequence[Any]:
    first = requests[0]
    inner = as_member(first.inner, first.scheduler)  # of members that this program is one of
    kernels = [request.job.kernel for request in requests]
    # In this process each may well run its own; what travels goes once, where it is the same.
    together = Together([request.job for request in requests], _sent(kernels) if inner.remote else kernels)
    residuals: Residuals | None = None
    if first.policy is None:
        results = inner.call(together.job)
    else:
        results, residuals = inner.linearize(together.job, first.policy)
    each = together.split(results)
    for own in each:
        own.ran_by = own.ran_by or inner
        own.reason = f"{len(each)} members together{f': {results.reason}' if results.reason else ''}"
    if first.policy is None:
        return each
    shared = None if residuals is None else SharedResiduals(together, residuals, first.policy, each)
    return [
        (own, None if shared is None else MemberResiduals(shared, number, one.inner, one.scheduler))
        for number, (own, one) in enumerate(zip(each, requests, strict=True))
    ]


def _pulled(requests: Sequence[_Request]) -> Sequence[Any]:
    """Pull seeds of some members at once, where what they left behind can be pulled for them alone."""
    pulled = [request.pulled for request in requests if request.pulled is not None]
    shared = pulled[0].shared
    return [shared.pull(pulled) if shared.is_there(len(pulled)) else ALONE] * len(requests)


def _sent(kernels: Sequence[Kernel]) -> Sequence[Kernel]:
    """Return what has to travel: the first kernel alone, where all are the same for whoever is sent one of them."""
    if all(fingerprint.has_same_parts(kernels[0], other) for other in kernels[1:]):  # nearly always
        return kernels[:1]
    first, *others = map(fingerprint.fingerprint, kernels)
    if all(fingerprint.same(first, other) for other in others):
        return kernels[:1]
    payload = _payload(kernels[0])
    return kernels[:1] if all(_payload(other) == payload for other in kernels[1:]) else kernels


def _payload(kernel: Kernel) -> list[bytes]:
    return [bytes(part) for part in pack(kernel).payload]
