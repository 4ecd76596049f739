"""The matrix: every mode, of every feature, on rows of every source; a file of tests for each executor runs its cells.

A cell is right if the numbers are those of plain autograd on the function that was never cut, the bits those of one
thread on plain arrays, the executor that ran it the one that is asked for, and if no function of a chunk ran twice.
The quick tier runs cells in which each two of mode, feature, executor and source meet, the whole tier all of them.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from dagad._api.jacobian import DIRECTIONS_AT_ONCE
from dagad._executors import choose
from dagad._executors.planning import Cost, Strategy, cost_of
from support import matrix_cells as cells
from support.evaluations_seen import evaluations_seen


class Executor(NamedTuple):
    """What runs the chunks: `name` and `group` are what it has to be in each job, None for any."""

    name: str
    group: int | None
    scheduler: str
    sources: tuple[str, ...]


LOCAL = ("arrays", "in arrays", "ragged", "shards", "in shards", "table")
EXECUTORS = {
    "inline": Executor("inline", 1, "sync", LOCAL),
    "local graph": Executor("graph", 1, "threads", LOCAL),
    "threads": Executor("threads", 1, "threads", LOCAL),
    "grouped": Executor("threads", 2, "threads", LOCAL),
    "cluster graph": Executor("graph", 1, "cluster", ("arrays", "ragged", "shards", "in shards", "table")),
    "grouped on a cluster": Executor("graph", 2, "cluster", ("arrays",)),
    # Rows that nobody has placed travel with each evaluation: that is a graph. So here they are all in Shards.
    "residents": Executor("resident", None, "cluster", ("shards", "in shards", "ragged shards", "table shards")),
}


class Cell(NamedTuple):
    mode: str
    feature: str
    executor: str
    source: str

    def __str__(self) -> str:
        return ", ".join(self)

    def is_among(self, pattern: Cell) -> bool:
        """Return whether each word is one of those of a pattern, which stand between bars; a star is any."""
        return all(allowed == "*" or word in allowed.split("|") for word, allowed in zip(self, pattern, strict=True))


# Cells that cannot exist, and why. What asks for them is refused: see tests/api/test_jacobians.py.
IMPOSSIBLE = {
    Cell("jacfwd|jacrev|hessian", "*", "*", "in shards"): "a matrix with as many rows or columns as there are rows of "
    "data has no cut: `gather()` first",
}

# Cells that are to be filled, and why they are not. Their numbers are right.
HOLES = {
    Cell("evaluate", "*", "inline|threads|grouped", "*"): "an evaluation is watched chunk by chunk",
    Cell(
        "evaluate", "sum|pytree|map|map_rect|compensated|own policy", "grouped on a cluster", "*"
    ): "an evaluation is watched chunk by chunk",
}


class HoleError(AssertionError):
    """Raised where a cell gives the right numbers in another way than it should."""


EVERY = [
    Cell(mode, feature, executor, source)
    for executor, where in EXECUTORS.items()
    for source in where.sources
    for feature in cells.FEATURES
    for mode in cells.MODES
]


def reason(cell: Cell, patterns: dict[Cell, str]) -> str | None:
    return next((why for pattern, why in patterns.items() if cell.is_among(pattern)), None)


def pairs_in(cell: Cell) -> set[tuple[Any, ...]]:
    return set(itertools.combinations(enumerate(cell), 2))


@functools.cache
def in_pairs() -> frozenset[Cell]:
    """Return few cells in which each two words meet that meet in any: always one of those that have most new pairs."""
    pairs = {cell: pairs_in(cell) for cell in EVERY if reason(cell, IMPOSSIBLE) is None}
    left = set().union(*pairs.values())
    order, found = list(pairs), []
    random.Random(0).shuffle(order)
    for n_new in range(6, 0, -1):  # no cell has more of them later on than it had before
        for cell in order:
            if len(pairs[cell] & left) >= n_new:
                found.append(cell)
                left -= pairs[cell]
    return frozenset(found)


def cells_of(executor: str) -> list[Any]:
    """Return the cells of an executor as parameters of a test."""
    return [
        pytest.param(cell, id=f"{cell.mode}, {cell.feature}, {cell.source}", marks=list(marks_of(cell)))
        for cell in EVERY
        if cell.executor == executor and reason(cell, IMPOSSIBLE) is None
    ]


def marks_of(cell: Cell) -> Iterator[Any]:
    if hole := reason(cell, HOLES):
        yield pytest.mark.xfail(strict=True, reason=hole, raises=HoleError)
    if cell not in in_pairs():
        yield pytest.mark.whole("cells of the matrix: here each two of mode, feature, executor and source meet once")


@functools.cache
def on_one_thread(mode: str, feature: str, source: str) -> Any:
    if feature == "own policy":  # what becomes of linearizations does not show in the bits
        return on_one_thread(mode, "sum", source)
    return cells.bits(cells.MODES[mode](cells.given(feature, source, "sync", plain=True)))


def steer(executor: Executor, patch: pytest.MonkeyPatch) -> None:
    """Have the cost model say what it says of cheap or dear chunks, so that no test depends on how long they take."""
    group = executor.group or 1
    patch.setattr(
        choose, "choose_strategy", lambda *args, **kwargs: Strategy(alone=executor.name == "inline", group=group)
    )
    patch.setattr(choose, "is_short", lambda job, cost: executor.name != "graph")
    if executor.name == "graph":
        patch.setattr(choose, "choose_group", lambda *args, **kwargs: group)
        if executor.scheduler == "threads":
            patch.setattr(choose, "is_watched", lambda: True)
    if executor.name == "resident":  # else the first of each kind is a graph, which finds out what it costs
        patch.setattr(choose, "cost_of", lambda signature: cost_of(signature) or Cost())


def evaluated(mode: str, given: cells.Given) -> tuple[Any, list[Any]]:
    """Return what a mode gives, and which jobs it took."""
    cells.take_all_runs(given.scheduler)
    with evaluations_seen() as seen:
        result = cells.MODES[mode](given)
    return result, seen.calls


def check_cell(cell: Cell, scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = EXECUTORS[cell.executor]
    steer(executor, monkeypatch)
    is_placed = executor.name == "resident"  # they find what is on workers, and wait for nothing
    result, jobs = evaluated(cell.mode, cells.given(cell.feature, cell.source, scheduler, placed=is_placed))

    n_runs = cells.take_all_runs(scheduler)
    right = cells.expected(cell.mode, cell.feature, cell.source)
    for part, expected in zip(cells.flattened(cell.mode, cell.source, result), right, strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-9, atol=1e-11)
    if cells.bits(result) != on_one_thread(cell.mode, cell.feature, cell.source):
        raise HoleError("These are not the bits of one thread.")
    groups = {executor.group or 1}
    if cell.feature == "map_reduce" and executor.scheduler == "cluster":
        groups.add(1)  # a run of chunks that is combined where it ran is a task as it is
    if not jobs or any(job.executor != executor.name or job.group not in groups for job in jobs):
        raise HoleError(f"This took {jobs}.")
    least = times_run(cell) * cells.FEATURES[cell.feature].n_runs
    if n_runs != least:
        raise HoleError(f"The function ran {n_runs} times, where {least} are enough.")


def times_run(cell: Cell) -> int:
    """Return how often a function has to run on each chunk.

    Once, but that a forward pass takes a limited number of directions, and that what is no single number is run again
    for its second derivative: that of the pullback, at cotangents that only the rest of the program knows.
    """
    if cell.mode == "jacfwd":
        n_inputs = sum(map(np.size, cells.leaves_of(cells.SOURCES[cell.source].arguments)))
        return -(-n_inputs // DIRECTIONS_AT_ONCE)
    return 2 if cell.mode in cells.SECOND_ORDER and cell.feature in cells.MANY_NUMBERS else 1
