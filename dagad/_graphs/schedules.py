"""Schedules: which steps of a graph are stored, run again and pulled back, so that tapes fit into memory.

A schedule is a list of actions, in the words of the package checkpoint_schedules, whose schedules are taken too:

==========  ==============================================================================================
`Forward`   run steps `n0` to ``n1 - 1``; `write_ics`: keep the state before `n0`, in `storage`;
            `write_adj_deps`: record them
`Reverse`   pull back steps ``n1 - 1`` to `n0`, which have been recorded
`Copy`      take up the state before step `n`, or its tape; `Move`: for the last time
==========  ==============================================================================================

`EndForward` and `EndReverse` say when all steps have been run, and pulled back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import comb
from numbers import Integral
from typing import Any, NamedTuple, Protocol

from dagad._errors import PlanError
from dagad._graphs.policies import Counting
from dagad._types import AnyPolicy

MEMORY, DISK = "RAM", "DISK"


class Forward(NamedTuple):
    """Run steps."""

    n0: int
    n1: int
    write_ics: bool
    write_adj_deps: bool
    storage: Any = MEMORY


class Reverse(NamedTuple):
    """Pull steps back."""

    n1: int
    n0: int


class Copy(NamedTuple):
    """Take up a state."""

    n: int
    from_storage: Any = MEMORY
    to_storage: Any = MEMORY


class Schedule(Protocol):
    """Which steps of a graph are stored, run again and pulled back: a `policy` for `gradient`.

    Examples
    --------
    Actions are objects of classes that are called as in the package checkpoint_schedules:

    >>> from dagad.extend import Revolve
    >>> for action in Revolve(2).actions(3):
    ...     print(action)
    Forward(n0=0, n1=1, write_ics=True, write_adj_deps=False, storage='RAM')
    Forward(n0=1, n1=2, write_ics=True, write_adj_deps=False, storage='RAM')
    Forward(n0=2, n1=3, write_ics=False, write_adj_deps=True, storage='RAM')
    Reverse(n1=3, n0=2)
    Copy(n=1, from_storage='RAM', to_storage='RAM')
    Forward(n0=1, n1=2, write_ics=False, write_adj_deps=True, storage='RAM')
    Reverse(n1=2, n0=1)
    Copy(n=0, from_storage='RAM', to_storage='RAM')
    Forward(n0=0, n1=1, write_ics=False, write_adj_deps=True, storage='RAM')
    Reverse(n1=1, n0=0)
    """

    def actions(self, n_steps: int) -> Iterable[Any]:
        """Return what is done, in order, for a graph of so many steps."""


@dataclass(frozen=True, slots=True)
class Segment(Counting):
    """Store every k-th state, and run k steps again at a time, with tapes, from the last to the first.

    Of n steps this takes about n / k states and k tapes: both are few for k near the square root of n. All steps but
    the last k run twice.

    Parameters
    ----------
    k
        Steps in a segment. Steps are the levels of the graph, counted along the longest chain of tasks that `y` depends
        on and that depend on `wrt`; slices count with what reads them. Or mark them: ``dask.annotate(dagad_step=t)``.
    disk
        True puts the states into files, in the workers' own directories, or Dask's setting ``temporary-directory``; a
        path says where. They are deleted when they have been used.

    Examples
    --------
    >>> import dask
    >>> import dagad
    >>> from dagad.extend import Segment
    >>> start = x = dask.delayed(0.5)
    >>> for _ in range(12):
    ...     x = x - 0.1 * x**3
    >>> policy = Segment(9)
    >>> slope = dagad.gradient(x, start, policy=policy).compute(scheduler="sync")
    >>> policy.n_primal, policy.peak_linearizations  # of 36 steps, all but the last segment of 9 run twice
    (63, 9)
    """

    k: int
    disk: Any = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _check_count(self, "k", self.k, "steps")

    def actions(self, n_steps: int) -> Iterator[Any]:
        """Return what is done for a graph of so many steps."""
        last, storage = (n_steps - 1) // self.k * self.k, DISK if self.disk else MEMORY
        for start in range(0, last, self.k):
            yield Forward(start, start + self.k, True, False, storage)
        yield Forward(last, n_steps, False, True)
        yield Reverse(n_steps, last)
        for start in range(last - self.k, -1, -self.k):
            yield Copy(start, storage)
            yield Forward(start, start + self.k, False, True)
            yield Reverse(start + self.k, start)


@dataclass(frozen=True, slots=True)
class Revolve(Counting):
    """Store a given number of states, and run as few steps again as can be done with them: the least memory.

    One step has tapes at a time. Where n steps are at most ``comb(slots + r, slots)``, none of them runs more than
    ``r`` times without a tape, and once with one.

    Parameters
    ----------
    slots
        How many states are stored at the same time, the one before the first step among them.
    disk
        See `Segment`; there for what a step is, too.

    Notes
    -----
    Binomial checkpointing: Griewank and Walther, *Algorithm 799: revolve*, ACM TOMS 26 (2000).

    Examples
    --------
    >>> from math import comb
    >>> from dagad.extend import Revolve
    >>> runs = sum(each.n1 - each.n0 for each in Revolve(10).actions(500) if hasattr(each, "write_ics"))
    >>> runs, 4 * 500 - comb(14, 11) + 500
    (2136, 2136)
    """

    slots: int
    disk: Any = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _check_count(self, "slots", self.slots, "states")

    def actions(self, n_steps: int) -> Iterator[Any]:
        """Return what is done for a graph of so many steps."""
        storage, stored = DISK if self.disk else MEMORY, list[int]()
        runs = [_runs(n_steps, self.slots)]  # that steps after each stored state may take, before they are recorded
        end = n_steps
        while end:
            start = stored[-1] if stored else 0
            if stored:
                yield Copy(start, storage)
            while end - start > 1:
                is_new = not stored or stored[-1] != start
                if is_new:
                    stored.append(start)
                    runs.append(runs[-1])
                slots = self.slots - len(stored) + 1
                runs[-1] = _runs(end - start, slots, runs[-1])
                ahead = _ahead(end - start, slots, runs[-1])
                yield Forward(start, start + ahead, is_new, False, storage)
                start += ahead
            yield Forward(start, end, False, True)
            yield Reverse(end, start)
            end = start
            if stored and stored[-1] == end:
                stored.pop()
                runs.pop()


def _runs(n_steps: int, slots: int, most: int | None = None) -> int:
    """Return the least r for which `n_steps` are at most ``comb(slots + r, slots)``; at most `most` is known to do."""
    if slots == 1:
        return n_steps - 1
    if most is None:
        most = 1
        while comb(slots + most, slots) < n_steps:
            most *= 2
    while most and comb(slots + most - 1, slots) >= n_steps:
        most -= 1
    return most


def _ahead(n_steps: int, slots: int, runs: int) -> int:
    """Return how many of some steps to run before the next state is stored.

    Those that were run take up with one run less to spare, those that remain with one state less: as far as the former
    allow, and as the latter are worth.
    """
    return min(comb(slots + runs - 1, slots), n_steps - comb(slots + runs - 2, slots - 1))


def _check_count(schedule: Any, name: str, count: object, what: str) -> None:
    if not isinstance(count, Integral) or isinstance(count, bool) or count < 1:
        kind = type(schedule).__name__
        raise PlanError(f"Can't make a schedule of `{kind}({count!r})`: `{name}` counts {what}. Give a positive int.")
    if not isinstance(schedule.disk, bool | str | os.PathLike):
        raise PlanError(f"`disk={schedule.disk!r}` is no directory. Give a path, or True for that of the workers.")


@dataclass(frozen=True, slots=True)
class Iterated(Counting):
    """A schedule of the package checkpoint_schedules: an iterator of actions, for one use."""

    schedule: Any

    def actions(self, n_steps: int) -> Iterator[Any]:
        """Return what is done for a graph of so many steps; a schedule that does not know their number is told."""
        given, name = self.schedule, type(self.schedule).__name__
        if given.max_n not in (None, n_steps):
            raise PlanError(
                f"`{name}` was made for {given.max_n} steps, and the graph has {n_steps}. Make it for {n_steps}, or "
                "mark the steps: `with dask.annotate(dagad_step=t): ...`."
            )
        if getattr(given, "n", 0) or getattr(given, "r", 0):
            raise PlanError(f"`{name}` has been used, and can be used once. Make another one for each gradient.")
        for action in given:
            yield action
            if kind_of(action) == "EndReverse":
                return
            if given.max_n is None and kind_of(action) == "Forward" and action.n1 >= n_steps:
                given.finalize(n_steps)


def kind_of(action: object) -> str:
    """Return what an action is, by the name of its class, whoever has defined it."""
    return type(action).__name__


def schedule_of(policy: AnyPolicy) -> Any:
    """Return a policy as a schedule; None if it is none, but something for each task."""
    if isinstance(policy, type):
        return None
    if callable(getattr(policy, "actions", None)):
        return policy
    is_theirs = callable(getattr(policy, "finalize", None)) and hasattr(policy, "max_n")
    return Iterated(policy) if is_theirs else None
