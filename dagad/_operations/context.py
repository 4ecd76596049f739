"""How reductions are to behave that run for somebody: which policy they take, and who watches.

State, in the context of the running thread: `_STACK`, the modes entered and not yet left; `_SEEN` and `_JOBS`, where
operations, and what ran them, are written down while somebody looks.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

from dagad._graphs.policies import Keep, Policy, Preaccumulate

DefaultPolicy = type[Keep] | type[Preaccumulate]
# Value and gradient are wanted together: each gradient is computed while its chunk is in cache.
TOGETHER: DefaultPolicy = Preaccumulate
# No pullback is to run before it is asked for.
VALUES_FIRST: DefaultPolicy = Keep


class Mode:
    """What reductions do by default, while it is entered; `lasting`: their pullbacks may outlive the call."""

    __slots__ = ("_evaluation", "lasting", "policy")

    def __init__(self, policy: DefaultPolicy, evaluation: Any = None, *, lasting: bool = False) -> None:
        self.policy, self.lasting = policy, lasting
        # Weakly: contexts are copied by everything that schedules callbacks, and live as long as these.
        self._evaluation = None if evaluation is None else weakref.ref(evaluation)

    @property
    def evaluation(self) -> Any:
        """Who watches, if anybody."""
        return None if self._evaluation is None else self._evaluation()

    def __enter__(self) -> None:
        _STACK.set((*_STACK.get(), self))

    def __exit__(self, *_: object) -> None:
        _STACK.set(_STACK.get()[:-1])


_JOBS: ContextVar[list[JobSeen] | None] = ContextVar("dagad_jobs", default=None)
_SEEN: ContextVar[list[Any] | None] = ContextVar("dagad_seen", default=None)
_STACK: ContextVar[tuple[Mode, ...]] = ContextVar("dagad_mode", default=())
_DEFAULT = Mode(TOGETHER)


def current_mode() -> Mode:
    """Return how reductions are to behave here."""
    stack = _STACK.get()
    return stack[-1] if stack else _DEFAULT


def is_in_a_transform() -> bool:
    """Return whether a transform of ours runs here, which sees to what is handed out in the end."""
    return bool(_STACK.get())


def default_policy() -> Policy:
    """Return a new policy of the kind that fits here."""
    return current_mode().policy()


def like_here(policy: DefaultPolicy, *, lasting: bool = False) -> Mode:
    """Return a mode with this default policy, watched by whoever watches here, and lasting if that around it is."""
    here = current_mode()
    return Mode(policy, here.evaluation, lasting=lasting or here.lasting)


@contextlib.contextmanager
def operations_seen() -> Iterator[list[Any]]:
    """Write down the reductions and maps that are differentiated in this thread, with their leaves."""
    seen: list[Any] = []
    token = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(token)


class JobSeen(NamedTuple):
    """What ran a job: which executor, by which method, and how many chunks a task."""

    executor: str
    method: str
    n_chunks: int
    group: int


@contextlib.contextmanager
def jobs_seen() -> Iterator[list[JobSeen]]:
    """Write down what runs the jobs of this thread, and of evaluations that it starts."""
    seen: list[JobSeen] = []
    token = _JOBS.set(seen)
    try:
        yield seen
    finally:
        _JOBS.reset(token)


def note_job(executor: Any, method: str, job: Any) -> None:
    """Write down what ran a job, if somebody looks."""
    seen = _JOBS.get()
    if seen is not None:
        seen.append(JobSeen(executor.name, method, len(job.plan), getattr(executor, "group", 1)))


def note_operation(operation: Any, leaves: Any) -> None:
    """Write an operation down, if somebody looks."""
    seen = _SEEN.get()
    if seen is not None:
        seen.append((operation, leaves))
