"""Directions of a Jacobian in parallel: columns or rows in groups, each of which a thread takes, or a task elsewhere.

Threads of this process share a program and its tape. In another process each group runs the program anew, and records
it once. Every direction is computed by itself, so groups don't show in the bits; but jax compiles a function of as many
directions as there are, and groups of others may differ from it in the last bits. What computes directions jointly, as
a solver of differential equations does, which chooses its steps for all of them, raises `DividedDirectionsError` where
there are groups, and there is one then.
"""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from dagad._api.program import Program
from dagad._errors import PlanError, add_note_once
from dagad._executors.checkpointed import is_checkpointed
from dagad._executors.evaluation import (
    Scheduler,
    find_scheduler,
    is_inside_any_task,
    n_threads_of,
    new_names,
    run_graph,
)
from dagad._frames import run_for, users_line
from dagad._kernels.context import DividedDirectionsError
from dagad._kernels.job import is_executor
from dagad._tracing.patches import patches
from dagad._types import AnyScheduler
from dagad._values.closures import carries_traced
from dagad._values.shipping import Portable, opened
from dagad_scheduler.private import DataNode, Task, TaskRef

# What a group of directions gives: the program's value with what comes along, and one thing per direction.
Found = tuple[Any, Any, Any]
Group = Callable[[Program, int, int], Found]  # the number of the group, and how many there are
Begin = Callable[[Program, int], list[Callable[[], Found]]]  # begins once for so many threads; what runs the groups


class SideBySide(Protocol):
    """What runs groups of directions at the same time."""

    def run(self, what: str, program: Program, group: Group, begin: Begin, most: int | None = None) -> list[Found]:
        """Return what groups give of a program; `most` is how many there may be, if that is known.

        The error of the first that fails is raised.
        """

    def run_one(self, what: str, program: Program, group: Group) -> list[Found]:
        """Return what all directions give as one group."""


def in_groups(
    side_by_side: SideBySide | None, what: str, program: Program, group: Group, begin: Begin, most: int | None = None
) -> list[Found]:
    """Return what groups of directions give of a program; one group where nothing runs beside it, or nothing may."""
    if side_by_side is None:
        return [group(program, 0, 1)]
    try:
        return side_by_side.run(what, program, group, begin, most)
    except DividedDirectionsError:
        return side_by_side.run_one(what, program, group)


class Shared:
    """What runs directions in threads of this process, beside each other."""

    def __init__(self, n_threads: int) -> None:
        self.n_groups = n_threads

    def run(self, what: str, program: Program, group: Group, begin: Begin, most: int | None = None) -> list[Found]:
        del group, most
        acts, line = begin(program, self.n_groups), users_line()
        with ThreadPoolExecutor(min(self.n_groups, len(acts)), "dagad-directions") as pool:
            try:
                # Each in a copy of this context: reductions inside find their scheduler there, and settings.
                futures = [pool.submit(contextvars.copy_context().run, run_for, line, act) for act in acts]
                return [_noted(what, number, len(acts), future.result) for number, future in enumerate(futures)]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def run_one(self, what: str, program: Program, group: Group) -> list[Found]:
        del what
        return [group(program, 0, 1)]


class Elsewhere:
    """What runs directions as tasks of other processes, one a group."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        count = n_threads_of(scheduler)
        self.n_groups = max((os.cpu_count() or 1) if count is None else count, 1)

    def run(self, what: str, program: Program, group: Group, begin: Begin, most: int | None = None) -> list[Found]:
        del begin
        names, count = new_names(program.name), min(self.n_groups, self.n_groups if most is None else max(most, 1))
        recipe, results = names("input", "program"), dict[Any, Found]()
        keys = [names("value", number) for number in range(count)]
        graph: dict[Any, Any] = {recipe: DataNode(recipe, PortableCall(*program.recipe()))}
        graph.update((key, Task(key, grouped, what, group, TaskRef(recipe), n, count)) for n, key in enumerate(keys))
        run_graph(self._scheduler, graph, keys, results.__setitem__)
        return [results[key] for key in keys]

    def run_one(self, what: str, program: Program, group: Group) -> list[Found]:
        return self.run(what, program, group, lambda program, n_threads: [], most=1)


def check_scheduler(scheduler: AnyScheduler) -> None:
    """Raise for what can't run directions."""
    if is_executor(scheduler):
        raise PlanError(
            "`scheduler=` of a Jacobian runs its directions, and was given an executor, which runs chunks. Give what "
            'Dask takes, "threads" or a `distributed.Client`; the executor belongs to the reductions.'
        )
    if scheduler is not None:
        find_scheduler(scheduler)


def is_followed(fun: object) -> bool:
    """Return whether somebody differentiates what a function gives, so that it has to run in his thread.

    A gradient of autograd's own that has failed leaves a trace open for ever: what counts is what the function carries.
    """
    with patches:
        return patches.has_opened_here() or (patches.somebody_traces() and carries_traced(fun))


def side_by_side(scheduler: AnyScheduler, fun: object) -> SideBySide | None:
    """Return what runs directions in parallel on a scheduler; None where nothing would be gained, or may be.

    Where somebody follows what a program gives, all of it stays in his thread. A checkpoint writes down reductions in
    the order in which they come.
    """
    if scheduler is None:
        return None
    resolved = find_scheduler(scheduler)
    if is_followed(fun) or is_inside_any_task() or is_checkpointed():
        return None
    if resolved.remote:
        return Elsewhere(resolved)
    n_threads = resolved.workers or 1
    return Shared(n_threads) if n_threads > 1 else None


class PortableCall(Portable):
    """A function at its arguments, that travels."""

    __slots__ = ("recipe",)

    def __init__(self, *recipe: Any) -> None:
        self.recipe = recipe

    def state(self) -> tuple[Any, ...]:
        return self.recipe


def grouped(what: str, group: Group, sent: object, number: int, count: int) -> Found:
    """Run one group, in a task; each brings the program's value, by which they are seen to have run the same one."""
    value, aux, found = _noted(what, number, count, lambda: group(Program(*opened(sent).recipe), number, count))
    return value, None if number else aux, found


def _noted(what: str, number: int, count: int, act: Callable[[], Any]) -> Any:
    try:
        return act()
    except Exception as error:
        add_note_once(error, f"dagad: {what} of a Jacobian, group {number} of {count}")
        raise


def bounds(number: int, count: int, n_directions: int) -> tuple[int, int]:
    """Return which directions a group has: as many as others, or one more.

    >>> [bounds(number, 3, 8) for number in range(3)]
    [(0, 2), (2, 5), (5, 8)]
    """
    return number * n_directions // count, (number + 1) * n_directions // count
