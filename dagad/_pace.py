"""How a reduction went last time: cheap chunks are grouped into tasks, and what threads don't speed up gets none.

Only where and in how many tasks the chunks run depends on it, never what is added to what: the bits stay.

State: `_MEMORY`, the last `Pace` by the code of the chunk function (weakly) and the plan; changed under its lock.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from dagad._graph.sums import FAN_IN
from dagad._plan import Plan

# Starting a thread and handing it the interpreter costs about a tenth of a millisecond; below some ten times that, and
# where threads wait for each other's interpreter lock, the calling thread is faster alone.
WORTH_THREADS = 1.5e-3
LEAST_GAIN = 1.15
LONG_TASK = 0.4e-3
TASKS_FOR_THREADS = 32
TRY_AGAIN = 50  # the machine may just have been busy


@dataclass(frozen=True, slots=True)
class Pace:
    """What a run took: `cpu` seconds of all its threads, `wall` seconds, and by how many threads it was done.

    `age` counts the runs since threads were tried.
    """

    cpu: float
    wall: float
    workers: int
    age: int = 0


@dataclass(frozen=True, slots=True)
class Road:
    """How to run the next one."""

    alone: bool = False  # in the calling thread only, without a graph
    group: int = 1  # chunks per task


def choose_road(plan: Plan, pace: Pace | None, workers: int) -> Road:
    """Return how to run a plan on so many workers, from how it went last time.

    >>> choose_road(Plan(1000, 1), Pace(cpu=0.001, wall=0.001, workers=2), workers=2)
    Road(alone=True, group=1)
    >>> choose_road(Plan(8, 1), Pace(cpu=1.6, wall=0.9, workers=2), workers=2)
    Road(alone=False, group=1)
    """
    if not len(plan):
        return Road()
    if workers == 1 or len(plan) == 1:
        return Road(alone=True)
    if pace is None:
        return Road()
    # One core was busy all the time: the threads waited for each other's interpreter lock. Had they waited for
    # something else, a sleep or another machine, it would have been less than one.
    took_turns = pace.workers > 1 and pace.wall / LEAST_GAIN < pace.cpu < pace.wall * LEAST_GAIN
    if max(pace.cpu, pace.wall) < WORTH_THREADS:
        return Road(alone=True)
    if took_turns and pace.age < TRY_AGAIN:
        return Road(alone=True)
    per_chunk, group = max(pace.cpu, pace.wall) / len(plan), 1
    while group < FAN_IN**2 and group * FAN_IN * TASKS_FOR_THREADS <= len(plan) and per_chunk * group < LONG_TASK:
        group *= FAN_IN
    return Road(group=group)


class _Memory:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paces: WeakKeyDictionary[Any, dict[Plan, Pace]] = WeakKeyDictionary()

    def find(self, owner: Any, plan: Plan) -> Pace | None:
        return self._paces.get(owner, {}).get(plan)

    def store(self, owner: Any, plan: Plan, pace: Pace) -> None:
        with self._lock:
            paces = self._paces.setdefault(owner, {})
            before = paces.get(plan)
            # Threads once found useless stay so for a while: a run without them can't tell.
            if before is not None and pace.workers == 1 and before.workers > 1:
                pace = replace(pace, workers=before.workers, age=before.age + 1)
            paces[plan] = pace


_MEMORY = _Memory()


def last_pace(owner: Any, plan: Plan) -> Pace | None:
    """Return how a plan went last time."""
    return _MEMORY.find(owner, plan)


def remember_pace(owner: Any, plan: Plan, pace: Pace) -> None:
    """Note how a plan went."""
    _MEMORY.store(owner, plan, pace)
