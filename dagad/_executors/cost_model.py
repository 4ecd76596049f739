"""How a reduction went last time: cheap chunks are grouped into tasks, and what threads don't speed up gets none.

Only where and in how many tasks the chunks run depends on it, never what is added to what: the bits stay.

State: `_HISTORIES` and `_COSTS`, the `History` and the `Cost` by what jobs have in common: see `Job.signature`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from dagad._executors.routes import Trip, Trips
from dagad._graphs.sum_trees import FAN_IN
from dagad._remembered import Remembered
from dagad._sources.plan import AnyPlan

# Starting a thread and handing it the interpreter costs about a tenth of a millisecond; below some ten times that, and
# where threads wait for each other's interpreter lock, the calling thread is faster alone.
WORTH_THREADS = 1.5e-3
LEAST_BUSY, MOST_BUSY = 0.7, 1.4
LONG_TASK = 0.4e-3
TASKS_FOR_THREADS = 32
TRY_AGAIN = 10  # the machine may just have been busy; then after twice as many runs, and so on
FAIR_TRIES = 2  # the first run also paid for what is only done once


class Pace(NamedTuple):
    """What a run took: `cpu` seconds of all its threads, `wall` seconds, and by how many threads it was done."""

    cpu: float
    wall: float
    workers: int


class History(NamedTuple):
    """The shortest run with threads and the shortest alone, since both were last compared.

    `tries` counts the runs with threads, `age` the runs since the way that lost was tried, `patience` how many of
    these there are to be before it is tried again.
    """

    threads: Pace | None = None
    alone: Pace | None = None
    tries: int = 0
    age: int = 0
    patience: int = TRY_AGAIN

    def after(self, pace: Pace) -> History:
        """Return the history with one more run."""
        threads, alone = self.threads, self.alone
        if self.due:
            return self._since(pace)._replace(age=0, patience=2 * self.patience)
        if pace.workers > 1:
            return self._replace(threads=_shorter(threads, pace), tries=self.tries + 1, age=self.age + 1)
        return self._replace(alone=_shorter(alone, pace), age=self.age + 1)

    def _since(self, pace: Pace) -> History:
        return self._replace(threads=pace) if pace.workers > 1 else self._replace(alone=pace)

    @property
    def due(self) -> bool:
        """Whether the way that lost is to be tried again."""
        return self.threads is not None and self.alone is not None and self.age >= self.patience


def _shorter(before: Pace | None, pace: Pace) -> Pace:
    return pace if before is None or pace.wall < before.wall else before


class Road(NamedTuple):
    """How to run the next one."""

    alone: bool = False  # in the calling thread only, without a graph
    group: int = 1  # chunks per task


def choose_road(plan: AnyPlan, history: History, workers: int) -> Road:
    """Return how to run a plan on so many workers, from how it went before.

    >>> from dagad._sources.plan import Plan
    >>> cheap = Pace(cpu=0.001, wall=0.001, workers=2)
    >>> choose_road(Plan(1000, 1), History(threads=cheap), workers=2)
    Road(alone=True, group=1)
    >>> dear = Pace(cpu=1.6, wall=0.9, workers=2)
    >>> choose_road(Plan(8, 1), History(threads=dear), workers=2)
    Road(alone=False, group=1)
    """
    if not len(plan):
        return Road()
    if workers == 1 or len(plan) == 1:
        return Road(alone=True)
    paces = [pace for pace in (history.threads, history.alone) if pace is not None]
    if not paces:
        return Road()
    last = paces[0]
    if min(max(pace.cpu, pace.wall) for pace in paces) < WORTH_THREADS or _better_alone(history) != history.due:
        return Road(alone=True)
    per_chunk, group = max(last.cpu, last.wall) / len(plan), 1
    while group < FAN_IN**2 and group * FAN_IN * TASKS_FOR_THREADS <= len(plan) and per_chunk * group < LONG_TASK:
        group *= FAN_IN
    return Road(group=group)


def _better_alone(history: History) -> bool:
    """Return whether threads gain nothing: suspected where they hardly overlap, then found out by running alone."""
    threads, alone = history.threads, history.alone
    if threads is None or history.tries < FAIR_TRIES:
        return False
    return _took_turns(threads) if alone is None else alone.wall < threads.wall


def _took_turns(pace: Pace) -> bool:
    """Return whether about one core was busy, as when threads wait for each other's interpreter lock.

    Far less than one core is busy where chunks wait for something else; there threads do help.
    """
    return LEAST_BUSY * pace.wall < pace.cpu < MOST_BUSY * pace.wall


class Cost(NamedTuple):
    """What a run in other processes took last time.

    ==========  ===============================================================================================
    `seconds`   of all chunks together, as they were measured; else what the caller waited
    `longest`   of the worker that took longest: at most what the caller waited, and what all chunks took
    `refusals`  how often something was tried in vain, one time after the other, that the graph then could do
    `rest`      how many runs there are to be before it is tried again
    `trips`     how calls of many workers went, beside trees of tasks
    ==========  ===============================================================================================
    """

    seconds: float = 0.0
    longest: float = 0.0
    refusals: int = 0
    rest: int = 0
    trips: Trips = Trips()

    def after_graph(self, seconds: float, wall: float, *, in_vain: bool) -> Cost:
        """Return the cost after a run of the graph; `in_vain`: something quicker was tried before, and failed."""
        longest = min(seconds, wall)
        if in_vain:
            rest = TRY_AGAIN * 2 ** min(self.refusals, 10)
            return Cost(seconds, longest, self.refusals + 1, rest, self.trips)
        return Cost(seconds, longest, self.refusals, max(self.rest - 1, 0), self.trips)

    def after_call(self, seconds: float, wall: float, trip: Trip | None = None) -> Cost:
        """Return the cost after a run by residents; `trip`: how it went, if they are many."""
        trips = self.trips if trip is None else self.trips.after_star(trip)
        return Cost(seconds, min(seconds, wall), trips=trips)

    def after_tree(self, wall: float) -> Cost:
        """Return the cost after a run by a tree of tasks in place of residents."""
        return self._replace(trips=self.trips.after_tree(wall))


# A task costs Dask about a millisecond, and is worth having for a tenth of a second: to be seen, moved and tried again.
LONG_REMOTE_TASK = 0.02
TASKS_FOR_WORKERS = 64
MOST_TOGETHER = 256


def choose_group(n_chunks: int, cost: Cost | None) -> int:
    """Return how many chunks make one task in another process: a power of two, so that it is one subtree.

    >>> choose_group(1000, None), choose_group(1000, Cost(seconds=0.1)), choose_group(1000, Cost(seconds=100.0))
    (1, 8, 1)
    """
    if cost is None:
        return 1
    group = 1
    while (
        group < MOST_TOGETHER
        and 2 * group * TASKS_FOR_WORKERS <= n_chunks
        and 2 * group * cost.seconds / n_chunks < LONG_REMOTE_TASK
    ):
        group *= 2
    return group


def choose_group_of_tree(n_chunks: int, n_threads: int) -> int:
    """Return how many chunks make one task if every thread is to have one.

    >>> choose_group_of_tree(1000, 100), choose_group_of_tree(10, 100)
    (8, 1)
    """
    return 1 << max(n_chunks // n_threads, 1).bit_length() - 1


MOST_REMEMBERED = 1024
_HISTORIES: Remembered[History] = Remembered(MOST_REMEMBERED)
_COSTS: Remembered[Cost] = Remembered(MOST_REMEMBERED)


def history_of(signature: Hashable) -> History:
    """Return how such jobs went before."""
    return _HISTORIES.find(signature) or History()


def remember_pace(signature: Hashable, pace: Pace) -> None:
    """Note how such a job went."""
    _HISTORIES.change(signature, lambda history: (history or History()).after(pace))


def cost_of(signature: Hashable) -> Cost | None:
    """Return what such jobs cost in other processes, None if it is not known."""
    return _COSTS.find(signature)


def remember_cost(signature: Hashable, change: Callable[[Cost], Cost]) -> None:
    """Note what a run in other processes took."""
    _COSTS.change(signature, lambda cost: change(cost or Cost()))
