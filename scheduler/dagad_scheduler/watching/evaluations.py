"""How far evaluations on a cluster are: by tasks, chunk by chunk, or past them, in hot loops."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from dagad_scheduler.roles import Key, Role

NAME = "dagad"  # of the scheduler's plugin
GRAPH, RESIDENT = "graph", "residents"
EXECUTORS = (GRAPH, RESIDENT)
MOST_CELLS = 10_000  # that are shown
STOPPED = 2.0  # seconds without a report after which a loop is over
# Letters for what a chunk's slot is.
CELLS = {"w": "waiting", "r": "running", "v": "value", "g": "gradient", "f": "failed", "c": "recomputed"}


class TasksRecord:
    """Tasks of one role in one evaluation."""

    __slots__ = ("evaluation", "failed", "landed", "n_forgotten", "n_left", "role", "states")

    def __init__(self, evaluation: EvaluationRecord, role: Role) -> None:
        self.evaluation, self.role = evaluation, role
        self.states: dict[Any, str] = {}  # by index
        self.landed: dict[Any, int] = {}  # how often each of them has
        self.failed: set[Any] = set()  # those that raised something, or needed one that did, and were not tried again
        self.n_left = self.n_forgotten = 0

    def letter(self, index: object) -> str:
        """Return what the slot of a chunk is by its task."""
        state, n_landed = self.states[index], self.landed.get(index, 0)
        if index in self.failed or not n_landed:
            return "f" if index in self.failed else "w"
        if n_landed > 1 or state not in ("memory", "released", "forgotten"):
            return "c"
        return "v" if self.role is Role.VALUE else "g"


@dataclass(slots=True, eq=False)
class EvaluationRecord:
    """One graph of values, and the graphs of pullbacks that belong to it."""

    function: str
    began: float
    last: float  # when the last result landed
    groups: dict[str, TasksRecord] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    has_landed: bool = False
    over: dict[str, Any] | None = None  # what is shown of one that is over

    def of(self, *roles: Role) -> list[TasksRecord]:
        """Return its tasks of some roles."""
        return [tasks for tasks in self.groups.values() if tasks.role in roles]

    def n_done(self) -> tuple[int, int]:
        """Return how many values and how many gradients have landed."""
        values = sum(len(one.landed) for one in self.of(Role.VALUE, Role.VALUE_AND_GRAD))
        return values, sum(len(one.landed) for one in self.of(Role.VALUE_AND_GRAD, Role.PULLBACK))

    def shown(self, now: float, executing: Collection[Key] = (), holding: Collection[str] = ()) -> dict[str, Any]:
        """Return what is shown of it.

        `executing` are the tasks on which somebody works, `holding` the groups of tasks that hold linearizations.
        """
        if self.over is not None:
            return self.over
        values, pulls = self.of(Role.VALUE, Role.VALUE_AND_GRAD), self.of(Role.PULLBACK)
        letters: dict[Any, str] = {}
        for head, tasks in self.groups.items():  # values come before their pullbacks
            for index in tasks.states if tasks.role is not Role.SUM else ():
                found = tasks.letter(index)
                if tasks.states[index] == "processing" and (head, index) in executing:
                    found = "r"
                letters[index] = found if found != "w" else letters.get(index, found)
        cells = "".join(letters[index] for index in sorted(letters, key=_index))
        pulled = {index for one in self.of(Role.VALUE_AND_GRAD, Role.PULLBACK) for index in one.landed}
        is_running = any(one.n_left for one in (*values, *pulls))
        # Between values and gradient it is not over, nor does it take time.
        awaits = not is_running and len(pulled) < len(cells) and any(head in holding for head in self.groups)
        has_gradients = bool(self.of(Role.VALUE_AND_GRAD, Role.PULLBACK))
        return {
            "function": self.function,
            "executor": GRAPH,
            "began": self.began,
            "last": now if is_running else self.last,
            "seconds": (now if is_running else self.last) - self.began,
            "count": 1,
            "values": [sum(len(one.landed) for one in values), sum(len(one.states) for one in values)],
            "gradients": [len(pulled), len(cells) * has_gradients],
            "failed": cells.count("f"),
            "recomputed": cells.count("c"),
            "is_running": is_running or awaits,
            "awaits_gradient": awaits,
            "cells": cells[:MOST_CELLS],
        }

    def close(self) -> None:
        """Keep what is shown of it, and let go of the rest."""
        over = {"last": self.last, "is_running": False, "awaits_gradient": False}
        self.over = self.shown(self.last) | over
        self.groups, self.tokens = {}, []


def _index(index: object) -> tuple[bool, Any]:
    return (False, index) if isinstance(index, int) else (True, str(index))


@dataclass(slots=True)
class LoopRecord:
    """A hot loop: one function that one client evaluates again and again past the scheduler's tasks."""

    function: str
    role: str
    began: float
    last: float
    n: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    n_values: int = 0  # chunks of one evaluation
    n_gradients: int = 0

    def shown(self, now: float) -> dict[str, Any]:
        """Return the same as of an evaluation."""
        return {
            "function": self.function,
            "executor": RESIDENT,
            "began": self.began,
            "last": self.last,
            "seconds": self.seconds / max(self.n, 1),
            "count": self.n,
            "values": [self.n_values, self.n_values],
            "gradients": [self.n_gradients, self.n_gradients],
            "failed": 0,
            "recomputed": 0,
            "is_running": now < self.last + STOPPED,
            "awaits_gradient": False,
            "cells": (("g" if self.n_gradients else "v") * max(self.n_values, self.n_gradients))[:MOST_CELLS],
        }


@dataclass(slots=True)
class Worker:
    """What a worker says of itself."""

    n_calls: int = 0
    n_chunks: int = 0
    seconds: float = 0.0
    n_held: int = 0
    nbytes: int = 0
