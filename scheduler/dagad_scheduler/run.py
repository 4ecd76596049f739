"""The protocol between those who build graphs and those who run them: ``start(graph, keys, on_result) -> Run``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from dagad_scheduler.roles import Key

OnResult = Callable[[Key, Any], None]
Graph = Mapping[Key, Any]  # tasks by key, or what earlier runs kept of them
Keys = Collection[Key]


@dataclass(frozen=True, slots=True)
class Progress:
    """How many tasks of a kind are done, of how many."""

    values_done: int = 0
    values_total: int = 0
    gradients_done: int = 0
    gradients_total: int = 0
    waits_for: str = ""  # what keeps it from going on; empty while it does

    def __add__(self, other: Progress) -> Progress:
        return Progress(
            self.values_done + other.values_done,
            self.values_total + other.values_total,
            self.gradients_done + other.gradients_done,
            self.gradients_total + other.gradients_total,
            self.waits_for or other.waits_for,
        )

    @property
    def share_done(self) -> float:
        """How much of all is done, from 0 to 1."""
        total = self.values_total + self.gradients_total
        return (self.values_done + self.gradients_done) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Account:
    """What something took: seconds of all threads together by what they did, and bytes that came and went."""

    seconds: dict[str, float] = field(default_factory=dict)
    sent: int = 0
    received: int = 0

    def __add__(self, other: Account) -> Account:
        names = [*self.seconds, *(name for name in other.seconds if name not in self.seconds)]
        seconds = {name: self.seconds.get(name, 0.0) + other.seconds.get(name, 0.0) for name in names}
        return Account(seconds, self.sent + other.sent, self.received + other.received)


def raise_first(failures: list[tuple[int, BaseException]]) -> NoReturn:
    """Raise the error with the lowest number, and forget all of them.

    Its traceback has the frames of the run that collected it: as long as the run or a frame holds the error too, that
    is a cycle, and all that the tasks held stays until the collector comes by.
    """
    _, error = min(failures, key=lambda failure: failure[0])
    failures.clear()
    try:
        raise error
    finally:
        del error


class WorkersLost(RuntimeError):
    """Workers died again and again: `suspects` are the tasks that were there each time.

    `find_deadly(timeout)` runs each of them alone, and returns the one that brings its worker down, or None.
    """

    def __init__(
        self, suspects: tuple[Key, ...], worker: str, n_deaths: int, find_deadly: Callable[[float | None], Key | None]
    ) -> None:
        super().__init__(f"{n_deaths} workers died while they had {list(suspects)!r}, the last one {worker}.")
        self.suspects, self.worker, self.n_deaths, self.find_deadly = suspects, worker, n_deaths, find_deadly


class SchedulerLost(ConnectionError):
    """The scheduler of a cluster is gone."""


class WorkersUnfit(RuntimeError):
    """Workers can't run our tasks; `reasons` says of each, by its address, why."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__("; ".join(f"{address}: {reason}" for address, reason in reasons.items()))
        self.reasons = reasons


class ResultsLost(LookupError):
    """What earlier runs kept on a cluster is there no more; `keys` are some of it, none if it was this run's own."""

    def __init__(self, keys: Collection[Key]) -> None:
        super().__init__(f"{len(keys)} results that were kept on the cluster are gone.")
        self.keys = list(keys)


_depth: ContextVar[int] = ContextVar("dagad_scheduler_depth", default=0)


class _InsideTask:
    """Marks this thread's context as running a task, so that what the task starts knows its place."""

    def __enter__(self) -> None:
        _depth.set(_depth.get() + 1)

    def __exit__(self, *_: object) -> None:
        _depth.set(_depth.get() - 1)


inside_task = _InsideTask()


def is_inside_task() -> bool:
    """Return whether the caller is part of a task."""
    return _depth.get() > 0


def task_depth() -> int:
    """Return how many tasks the caller is part of, one inside the other."""
    return _depth.get()


class Run(Protocol):
    """One graph on its way.

    `on_result(key, result)` has been called for every wanted key when `wait` returns. It is called from whatever thread
    the result lands in and has to be quick. `kept` then holds what was to stay where it was computed, for a later
    `start(..., kept=run.kept)`; only the scheduler that made it can read it. `cpu_seconds` and `n_workers` are what the
    threads of this process have spent on it together, and how many they were: none where tasks run elsewhere.
    """

    kept: dict[Key, Any]
    cpu_seconds: float = 0.0
    n_workers: int = 0

    def wait(self, timeout: float | None = None) -> None:
        """Return when all is done; raise what a task raised, or TimeoutError."""

    def cancel(self) -> None:
        """Start no more tasks. `wait` then raises CancelledError."""

    def progress(self) -> Progress:
        """Return what is done by now, as far as it is told."""
        return Progress()

    def account(self, *, detailed: bool = False) -> Account:
        """Return what it took, when it has ended; what has to be asked for elsewhere only if `detailed`."""
        del detailed
        return Account()


class Scheduler(Protocol):
    """Something that runs graphs.

    Attributes
    ----------
    name
        What it is called in messages.
    is_closed
        Whether what it ran on is gone for good.
    shares
        Whether it runs numbered parts without a graph; see `share`.
    """

    name: str
    is_closed: bool = False
    shares: bool = False

    @property
    def remote(self) -> bool:
        """Whether results live in another process, so that what is small should travel apart."""

    @property
    def workers(self) -> int | None:
        """How many tasks run here at the same time; None if that is somebody else's affair."""

    def start(
        self, graph: Graph, keys: Keys, on_result: OnResult, *, keep: Keys = (), kept: Graph | None = None
    ) -> Run:
        """Start computing `keys`; tasks may also refer to what an earlier run `kept`."""

    def share(self, n_parts: int, run_part: Callable[[int], None], role: str) -> Any:
        """Return a run of numbered parts that need no graph; asked for where it `shares`."""
        del n_parts, run_part, role

    def n_threads(self) -> int | None:
        """Return how many threads its workers had lately; None where `workers` says it."""
        return None

    def residents(self) -> Any:
        """Return how to call residents of its workers directly; None if it has none."""
        return None

    def alone(self) -> Scheduler:
        """Return a scheduler that does everything in the thread that waits, where that makes sense."""
        return self
