"""What happens in one evaluation: which operations run, who runs them and why, how far they are, and what that took.

Written by the thread that evaluates, read by whoever watches. State of a `Profile` that others change too, under its
`_lock`:

============  ========================================================================
`_runs`       what is under way for this evaluation, and ends when it is cancelled
`cancelled`   whether it was cancelled
`_given_up`   how far it was then
============  ========================================================================
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dagad._errors import CancelledError
from dagad._graphs.linearization import Counters
from dagad._html import bars, bytes_of, listing, seconds_of, table
from dagad._kernels.derivatives import ValueAndGrad
from dagad._kernels.job import Executor, Job, Residuals, Results
from dagad._kernels.kernel import Kernel, n_compiled
from dagad._values.shipping import Portable
from dagad_scheduler import Account, Progress, Run, task_depth

MOST_CALLS = 10_000  # of one evaluation that are written down; a program may call a reduction in a loop
MOST_ROWS = 50  # of a table
BOTH = ValueAndGrad.gives
CANCELLED = "This evaluation was cancelled."


@dataclass(slots=True, eq=False)
class Call:
    """One operation at values, from when an executor was asked until its results were there.

    Attributes
    ----------
    function
        The user's function.
    gives
        What it gives: "value", "gradient", "value and gradient", or "value and tangents".
    n_rows, n_chunks, grainsize
        How the rows are cut.
    executor, method, group
        What ran it, how it was asked, and how many chunks made a task.
    reason
        Why that executor.
    reckoned
        What was known when it was chosen: what such calls took before.
    refusals
        Why executors that were asked before it did not.
    began, seconds
        When it began, by `time.time`, and how long it took; `seconds` is None while it runs.
    account
        What its parts took together, by role, and what was sent and received.
    recomputed
        How many chunks were run again in this process, since what their first run had left was gone or never kept.
    n_compiled
        How often its engine compiled something meanwhile, in this process, and for its values on workers.
    reached
        How many chunks are known to have been done when it failed; None if it did not.
    """

    function: str
    gives: str
    n_rows: int
    n_chunks: int
    grainsize: int
    method: str
    executor: str = ""
    group: int = 1
    reason: str = ""
    reckoned: str = ""
    refusals: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    seconds: float | None = None
    account: Account = field(default_factory=Account)
    recomputed: int = 0
    n_compiled: int = 0
    reached: int | None = None
    _run: Run | None = field(default=None, repr=False)
    _counted: Any = field(default=None, repr=False)  # of the calling thread, which has no run

    def progress(self) -> Progress:
        """Return how many chunks have given what they are to give, also where several make a task."""
        total, waits_for = self.n_chunks, ""
        done = total if self.reached is None else self.reached
        if self.seconds is None:
            if self._counted is not None:
                done = int(self._counted.n_done)
            else:
                parts = Progress() if self._run is None else self._run.progress()
                done, waits_for = int(total * parts.share_done + 1e-9), parts.waits_for
        value, gradient = ("value" in self.gives), ("gradient" in self.gives)
        return Progress(done * value, total * value, done * gradient, total * gradient, waits_for)

    def end(self, seconds: float, *, failed: bool) -> None:
        """Write down that it is over, and how far it was if it failed."""
        if failed:
            self.reached = 0
            with contextlib.suppress(Exception):  # there is an error to tell of
                done = self.progress()
                self.reached = max(done.values_done, done.gradients_done)
        self.seconds, self._run, self._counted = seconds, None, None


class Calling:
    """One operation, while it is entered; a class, as loops of short evaluations come by here."""

    __slots__ = ("_began", "_call", "_counters", "_kernel", "_n_compiled", "_n_primal", "_open")

    def __init__(self, others: list[Call], call: Call, counters: Counters, kernel: Kernel) -> None:
        self._open, self._call, self._counters, self._kernel = others, call, counters, kernel
        self._n_primal, self._n_compiled, self._began = counters.n_primal, n_compiled(kernel), time.perf_counter()

    def __enter__(self) -> Call:
        self._open.append(self._call)
        return self._call

    def __exit__(self, kind: object, *_: object) -> None:
        call = self._call
        call.end(time.perf_counter() - self._began, failed=kind is not None)
        if call.gives == "gradient":
            call.recomputed = self._counters.n_primal - self._n_primal
        call.n_compiled += n_compiled(self._kernel) - self._n_compiled
        self._open.remove(call)


class Profile:
    """The record of one evaluation: what it gave, what ran for it, and what that took.

    Attributes
    ----------
    name
        The function that was evaluated.
    began, seconds
        When it began, by `time.time`, and how long it took until all that was asked for was there; `seconds` is None
        while it runs.
    value, gradient_norm
        The value, if it is one number, and the Euclidean norm of the gradient; None where there is none.
    error
        What it raised, as text; empty if nothing.
    number
        Its number among those that are watched together, from 1; 0 where nobody counts.
    calls
        The reductions and maps that ran in it, in their order.
    """

    def __init__(self, name: str, *, by_chunk: bool = False) -> None:
        self.name, self.by_chunk = name, by_chunk  # whether its progress is to be seen chunk by chunk
        self.began, self._clock, self._depth = time.time(), time.perf_counter(), task_depth()
        self.seconds: float | None = None
        self.value: float | None = None
        self.gradient_norm: float | None = None
        self.error, self.number = "", 0
        self.calls: list[Call] = []
        self._open: list[Call] = []
        self._lock = threading.Lock()
        self._runs: list[Run] = []
        self.cancelled, self._given_up = False, Progress()

    def is_here(self) -> bool:
        """Return whether the caller is part of the evaluation, and not of one of its chunks."""
        return self._depth == task_depth()

    def calling(self, job: Job, method: str, gives: str, counters: Counters) -> Calling:
        """Write down that an operation runs."""
        plan = job.plan
        call = Call(job.kernel.of_user.name, gives, plan.n_rows, len(plan), plan.grainsize, method)
        if len(self.calls) < MOST_CALLS:
            self.calls.append(call)
        return Calling(self._open, call, counters, job.kernel)

    def ran(self, call: Call, executor: Executor, results: Results) -> None:
        """Write down who ran an operation, and why."""
        executor = results.ran_by or executor
        call.reason, call.refusals, call.n_compiled = results.reason, list(results.refusals), results.n_compiled
        call.reckoned = "" if results.reckoned is None else results.reckoned.words
        call.executor, call.group = executor.name, getattr(executor, "group", 1)
        if not call.account.seconds:  # nothing that ran has said more
            call.account.seconds["chunks"] = results.spent.cpu
        call.gives = results.gives or call.gives

    def counting(self, chunks: object) -> Any:
        """Take note of what knows how many chunks the calling thread has done; return it."""
        if self._open:
            self._open[-1]._counted = chunks
        return chunks

    def sends(self, parts: Sequence[Portable]) -> None:
        """Write down how much is sent with a graph."""
        if self._open:
            nbytes = sum(memoryview(buffer).nbytes for part in parts for buffer in part.parcel().payload)
            self._open[-1].account += Account({}, nbytes)

    def pulled(self, call: Call, executor: Executor, residuals: Residuals, is_there: bool) -> None:
        """Write down who pulled what a run had left, if it was still there."""
        call.executor = getattr(residuals, "ran_by", executor.name)
        if not is_there:
            call.gives, call.reason = "", "what the first run had left behind was gone"

    def follow(self, run: Run) -> None:
        """Wait for a run, which is watched while it lasts, and cancelled with the evaluation.

        No context manager made of a generator: in Python 3.13 its frame and the error that leaves it hold each other.
        """
        call = self._open[-1] if self._open and self.is_here() else None
        with self._lock:
            cancelled = self.cancelled
            self._runs.append(run)
        if cancelled:
            run.cancel()
        if call is not None:
            call._run = run
        try:
            run.wait()
        except BaseException as error:
            if self.cancelled:
                raise CancelledError(CANCELLED) from error
            raise
        finally:
            with self._lock:
                self._runs.remove(run)
            if call is not None:
                call.account += run.account(detailed=self.by_chunk)

    def finish(self, error: BaseException | None = None) -> None:
        """Write down that all that was asked for is there, or never will be."""
        self.seconds = time.perf_counter() - self._clock
        if error is not None:
            self.error = f"{type(error).__name__}: {error}"

    def cancel(self) -> None:
        """End what is under way; what is asked for later ends at once."""
        given_up = replace(self.progress, waits_for="")
        with self._lock:
            if self.cancelled:
                return
            self.cancelled, self._given_up, runs = True, given_up, list(self._runs)
        for run in runs:
            run.cancel()

    @property
    def executors(self) -> list[str]:
        """What ran its operations, each once."""
        return list(dict.fromkeys(call.executor for call in list(self.calls) if call.executor))

    @property
    def fallbacks(self) -> list[str]:
        """Why executors that were asked before did not, each reason once."""
        return list(dict.fromkeys(reason for call in list(self.calls) for reason in call.refusals))

    @property
    def remark(self) -> str:
        """What a line about it ends with: the error, or what ran and what did not."""
        return self.error or " + ".join(self.executors) + f" ({'; '.join(self.fallbacks)})" * bool(self.fallbacks)

    @property
    def n_compiled(self) -> int:
        """How often something was compiled for its operations; see `Call`."""
        return sum(call.n_compiled for call in list(self.calls))

    @property
    def account(self) -> Account:
        """What all operations together took, by role, and what was sent and received."""
        return sum((call.account for call in list(self.calls)), Account())

    @property
    def progress(self) -> Progress:
        """How many chunks have their value and their gradient, of those of all operations that have started."""
        if self.cancelled:
            return self._given_up
        calls = list(self.calls)
        found = sum((call.progress() for call in calls), Progress())
        # What was run so that it can be pulled has a gradient to come.
        to_come = sum(call.n_chunks for call in calls if call.method == "linearize" or call.gives == BOTH)
        if self.seconds is not None or to_come <= found.gradients_total:
            return found
        return replace(found, gradients_total=to_come)

    def __repr__(self) -> str:
        state = "running" if self.seconds is None else f"failed: {self.error}" if self.error else "over"
        said = [f"{self.name!r} {state}", seconds_of(self.seconds), f"{len(self.calls)} calls", *self.executors]
        return f"<Profile: {', '.join(filter(None, said))}>"

    def _repr_html_(self) -> str:
        facts = [
            ("value", self.value),
            ("|gradient|", self.gradient_norm),
            ("time", seconds_of(self.seconds) or "running"),
            ("error", self.error or None),
        ]
        known = [(name, fact) for name, fact in facts if fact is not None]
        rows = [_row_of(call) for call in self.calls[:MOST_ROWS]]
        more = len(self.calls) - len(rows)
        title = f"{more:,} more calls are in .calls" if more else ""
        return f"<div>{listing(self.name, known)}{bars(self.progress)}{table(COLUMNS, rows, title)}</div>"


COLUMNS = (
    "function",
    "gives",
    "rows",
    "chunks",
    "ran by",
    "because",
    "time",
    "of all threads",
    "sent",
    "received",
    "run again",
    "compiled",
)


def _row_of(call: Call) -> tuple[Any, ...]:
    spent = ", ".join(f"{role} {seconds_of(seconds)}" for role, seconds in call.account.seconds.items())
    ran_by = f"{call.executor}, {call.group} chunks a task" if call.group > 1 else call.executor
    return (
        call.function,
        call.gives,
        call.n_rows,
        call.n_chunks,
        ran_by,
        "; ".join(filter(None, (call.reason, *call.refusals))) + (f" ({call.reckoned})" if call.reckoned else ""),
        seconds_of(call.seconds) or "running",
        spent,
        bytes_of(call.account.sent),
        bytes_of(call.account.received),
        call.recomputed or "",
        call.n_compiled or "",
    )
