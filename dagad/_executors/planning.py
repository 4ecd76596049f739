"""How a reduction runs, from what calls of it took: rows in a chunk, chunks in a task, which executor. Decisions only.

=============  =========================================================  ======================================
decision       from                                                       does it show in the bits
=============  =========================================================  ======================================
grainsize      two timed calls, made once (`grainsize`)                   yes: it is part of the plan
strategy here  the shortest runs with threads and alone                   no
group there    what the last run took in other processes                  no
short, tree    that, and how calls of many workers went (`routes`)        no
=============  =========================================================  ======================================

What a decision was reckoned with stands in the profile of the evaluation.

State: `_HISTORIES` and `_COSTS`, the `History` and the `Cost` by what jobs have in common: see `Job.signature`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from dagad._executors.routes import Trip, Trips
from dagad._graphs.sum_trees import FAN_IN
from dagad._html import seconds_of
from dagad._kernels.job import Spent
from dagad._remembered import Remembered
from dagad._sources.plan import AnyPlan

# Rows in a chunk


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one call took on how many rows."""

    n_rows: int
    seconds: float


# Measured on two shared cores with models of a millisecond to seconds (tests/benchmarks): chunks of about seven
# milliseconds lose little to the interpreter lock and fit the cache; a call's cost that does not shrink with the rows
# has to stay below an eighth of the whole; beyond 64 chunks nothing is gained but by those who have more workers.
WORTH_CUTTING = 3e-3
USUAL_CHUNK = 7e-3
FIXED_SHARE = 0.125
USUAL_CHUNKS = 64
MOST_CHUNKS = 1024
LONG_CHUNK = 0.1
LONG_ROW = 5e-3


def choose_grainsize(n_rows: int, small: Timing, large: Timing | None) -> int:
    """Return the rows per chunk that two timed calls speak for.

    The cost of a call is taken as ``fixed + slope * rows``; only what shrinks with the rows can be shared out. Chunk
    counts are powers of two, so that noise in the timings seldom changes the plan. The number of workers plays no
    part, or the bits would depend on it.
    """
    if n_rows < 2 or small.seconds / small.n_rows * n_rows < WORTH_CUTTING or large is None:
        return max(n_rows, 1)
    slope = max((large.seconds - small.seconds) / (large.n_rows - small.n_rows), 0.0)
    fixed = max(small.seconds - slope * small.n_rows, 0.0)
    work = slope * n_rows
    if work < WORTH_CUTTING:
        return n_rows
    if slope >= LONG_ROW:  # a row is a task of its own right: short tapes, even loads
        return max(1, -(-n_rows // MOST_CHUNKS))
    most = min(max(USUAL_CHUNKS, work / LONG_CHUNK), MOST_CHUNKS)
    chunks = min(most, work / USUAL_CHUNK, FIXED_SHARE * work / fixed if fixed else most)
    count = 1 << max(round(math.log2(chunks)), 0) if chunks > 1 else 1
    return -(-n_rows // count)


# Here: threads or the calling one

# Starting a thread and handing it the interpreter costs about a tenth of a millisecond; below some ten times that, and
# where threads wait for each other's interpreter lock, the calling thread is faster alone.
WORTH_THREADS = 1.5e-3
WORTH_A_TRY = 5e-3  # it costs no more than that for each thread
LEAST_BUSY, MOST_BUSY = 0.7, 1.4
LONG_TASK = 0.4e-3
TASKS_FOR_THREADS = 32
TRY_AGAIN = 10  # the machine may just have been busy; then after twice as many runs, and so on
FAIR_TRIES = 2  # the first run also paid for what is only done once


class History(NamedTuple):
    """The shortest run with threads and the shortest alone, since both were last compared.

    `tries` counts the runs with threads, `age` the runs since the way that lost was tried, `patience` how many of
    these there are to be before it is tried again.
    """

    threads: Spent | None = None
    alone: Spent | None = None
    tries: int = 0
    age: int = 0
    patience: int = TRY_AGAIN

    def after(self, pace: Spent) -> History:
        """Return the history with one more run."""
        threads, alone = self.threads, self.alone
        if self.due:
            return self._since(pace)._replace(age=0, patience=2 * self.patience)
        if pace.workers > 1:
            return self._replace(threads=_shorter(threads, pace), tries=self.tries + 1, age=self.age + 1)
        return self._replace(alone=_shorter(alone, pace), age=self.age + 1)

    def _since(self, pace: Spent) -> History:
        return self._replace(threads=pace) if pace.workers > 1 else self._replace(alone=pace)

    @property
    def due(self) -> bool:
        """Whether the way that lost is to be tried again."""
        return self.threads is not None and self.alone is not None and self.age >= self.patience

    @property
    def words(self) -> str:
        """What is known, for the profile."""
        known = [
            f"{seconds_of(self.threads.wall)} on {self.threads.workers} threads" if self.threads else "",
            f"{seconds_of(self.alone.wall)} alone" if self.alone else "",
        ]
        return ", ".join(filter(None, known))


def _shorter(before: Spent | None, pace: Spent) -> Spent:
    return pace if before is None or pace.wall < before.wall else before


class Strategy(NamedTuple):
    """How to run the next one."""

    alone: bool = False  # in the calling thread only, without a graph
    group: int = 1  # chunks per task


def choose_strategy(plan: AnyPlan, history: History, workers: int) -> Strategy:
    """Return how to run a plan on so many workers, from how it went before.

    >>> from dagad._sources.plan import Plan
    >>> cheap = Spent(cpu=0.001, wall=0.001, workers=2)
    >>> choose_strategy(Plan(1000, 1), History(threads=cheap), workers=2)
    Strategy(alone=True, group=1)
    >>> dear = Spent(cpu=1.6, wall=0.9, workers=2)
    >>> choose_strategy(Plan(8, 1), History(threads=dear), workers=2)
    Strategy(alone=False, group=1)
    """
    if not len(plan):
        return Strategy()
    if workers == 1 or len(plan) == 1:
        return Strategy(alone=True)
    paces = [pace for pace in (history.threads, history.alone) if pace is not None]
    if not paces:
        return Strategy()
    last = paces[0]
    if min(max(pace.cpu, pace.wall) for pace in paces) < WORTH_THREADS or _better_alone(history) != history.due:
        return Strategy(alone=True)
    per_chunk, group = max(last.cpu, last.wall) / len(plan), 1
    while group < FAN_IN**2 and group * FAN_IN * TASKS_FOR_THREADS <= len(plan) and per_chunk * group < LONG_TASK:
        group *= FAN_IN
    return Strategy(group=group)


def _better_alone(history: History) -> bool:
    """Return whether threads gain nothing: suspected where they hardly overlap, then found out by running alone."""
    threads, alone = history.threads, history.alone
    if threads is None or history.tries < FAIR_TRIES:
        return False
    if alone is not None:
        return alone.wall < threads.wall
    return _took_turns(threads) or _is_soon_tried(threads)


def _is_soon_tried(pace: Spent) -> bool:
    """Return whether there was so little to do that threads waited at most for a busy machine, and for nothing long."""
    return pace.cpu < WORTH_THREADS and pace.wall < WORTH_A_TRY


def _took_turns(pace: Spent) -> bool:
    """Return whether about one core was busy, as when threads wait for each other's interpreter lock.

    Far less than one core is busy where chunks wait for something else; there threads do help.
    """
    return LEAST_BUSY * pace.wall < pace.cpu < MOST_BUSY * pace.wall


# There: tasks or residents of other processes


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

    def is_short(self, n_chunks: int) -> bool:
        """Return whether residents are to run so many chunks, if rows are where they are."""
        return not self.rest and self.longest <= LONGEST_HOT_CALL and self.seconds <= LONGEST_HOT_CHUNK * n_chunks

    @property
    def words(self) -> str:
        """What is known, for the profile."""
        return f"{seconds_of(self.seconds)} in all, {seconds_of(self.longest)} on the busiest worker"

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


# Longer ones are better tasks of their own: to be seen on the dashboard, moved to whoever is free, tried again.
LONGEST_HOT_CHUNK, LONGEST_HOT_CALL = 0.25, 10.0
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


# What is remembered

MOST_REMEMBERED = 1024
_HISTORIES: Remembered[History] = Remembered(MOST_REMEMBERED)
_COSTS: Remembered[Cost] = Remembered(MOST_REMEMBERED)


def history_of(signature: Hashable) -> History:
    """Return how such jobs went before."""
    return _HISTORIES.find(signature) or History()


def remember_pace(signature: Hashable, pace: Spent) -> None:
    """Note how such a job went."""
    _HISTORIES.change(signature, lambda history: (history or History()).after(pace))


def cost_of(signature: Hashable) -> Cost | None:
    """Return what such jobs cost in other processes, None if it is not known."""
    return _COSTS.find(signature)


def remember_cost(signature: Hashable, change: Callable[[Cost], Cost]) -> None:
    """Note what a run in other processes took."""
    _COSTS.change(signature, lambda cost: change(cost or Cost()))
