"""Rows -> chunks: how a reduction is cut. Knows neither graphs nor derivatives."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dagad._errors import PlanError
from dagad._html import element, listing


@dataclass(frozen=True, slots=True)
class Plan:
    """How rows are cut: contiguous chunks of `grainsize` rows, the last one shorter where it does not divide.

    The value and the gradient of a reduction depend, in their last bits, on the plan and on nothing else.
    """

    n_rows: int
    grainsize: int

    @property
    def key(self) -> tuple[int, ...]:
        """What tells plans apart, quickly looked up."""
        return self.n_rows, self.grainsize

    def __len__(self) -> int:
        return -(-self.n_rows // self.grainsize)

    def chunk(self, number: int) -> Chunk:
        start = number * self.grainsize
        return Chunk(number, start, min(start + self.grainsize, self.n_rows))

    def sampled(self, numbers: Sequence[int]) -> Plan:
        """Return how the rows of some chunks are cut, one chunk after the other.

        A shorter chunk is the last one of a plan, and so of what is sampled of it.

        >>> Plan(10, 4).sampled((0, 2))
        Plan(n_rows=6, grainsize=4)
        """
        return Plan(sum(chunk.stop - chunk.start for chunk in map(self.chunk, numbers)), self.grainsize)

    def how_to_cut(self, name: str) -> str:
        """Return what cuts an array of this name so."""
        return f"`dagad.shard({name}, grainsize={self.grainsize})`"

    def __iter__(self) -> Iterator[Chunk]:
        starts = range(0, self.n_rows, self.grainsize)
        bounds = zip(itertools.count(), starts, [*starts[1:], self.n_rows], strict=False)
        return map(_new_chunk, bounds)

    def _repr_html_(self) -> str:
        return html_of(self)


@dataclass(frozen=True, slots=True)
class GivenPlan:
    """Rows that came in pieces: chunk i is rows ``bounds[i]`` to ``bounds[i + 1]``.

    Some of such rows may have no chunk of the largest size that there was: `largest` is that size.
    """

    bounds: tuple[int, ...]
    largest: int = 0

    @property
    def key(self) -> tuple[tuple[int, ...]]:
        """What tells plans apart, quickly looked up."""
        return (self.bounds,)

    @property
    def n_rows(self) -> int:
        return self.bounds[-1]

    @property
    def grainsize(self) -> int:
        """Largest number of rows in a chunk."""
        return self.largest or max((chunk.stop - chunk.start for chunk in self), default=0)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def chunk(self, number: int) -> Chunk:
        return Chunk(number, self.bounds[number], self.bounds[number + 1])

    def sampled(self, numbers: Sequence[int]) -> GivenPlan:
        """Return how the rows of some chunks are cut, one chunk after the other."""
        sizes = (chunk.stop - chunk.start for chunk in map(self.chunk, numbers))
        return GivenPlan(tuple(itertools.accumulate(sizes, initial=0)), self.grainsize)

    def how_to_cut(self, name: str) -> str:
        """Return what cuts an array of this name so."""
        sizes = tuple(chunk.stop - chunk.start for chunk in self)
        said = str(sizes) if len(sizes) <= MOST_SIZES else f"({', '.join(map(str, sizes[:MOST_SIZES]))}, ...)"
        return f"`dagad.shard(dask.array.from_array({name}, chunks={{0: {said}}}))`"

    def __iter__(self) -> Iterator[Chunk]:
        return map(self.chunk, range(len(self)))

    def _repr_html_(self) -> str:
        return html_of(self)


AnyPlan = Plan | GivenPlan
MOST_SIZES = 12  # that a sentence names


def plan_of(bounds: Sequence[int]) -> AnyPlan:
    """Return the plan of rows that came in pieces: that of a grainsize where it would have cut them so.

    >>> plan_of((0, 4, 8, 10)), plan_of((0, 4, 10))
    (Plan(n_rows=10, grainsize=4), GivenPlan(bounds=(0, 4, 10), largest=0))
    """
    given = tuple(bounds)
    if len(given) > 1 and given[1] and given == (*range(0, given[-1], given[1]), given[-1]):
        return Plan(given[-1], given[1])
    return GivenPlan(given)


class Chunk(NamedTuple):
    """Rows `start` to `stop` (excluded) of a plan."""

    number: int
    start: int
    stop: int


_new_chunk: Callable[[Sequence[int]], Chunk] = functools.partial(tuple.__new__, Chunk)  # there are many, in short calls
DRAWN_CHUNKS, DRAWN_WIDTH, DRAWN_HEIGHT = 100, 400, 30


def html_of(plan: AnyPlan, *more: tuple[str, Any], title: str = "Plan") -> str:
    """Return for notebooks how rows are cut: numbers, and a drawing of the chunks where there are not too many."""
    facts = listing(title, [("rows", plan.n_rows), ("chunks", len(plan)), ("grainsize", plan.grainsize), *more])
    if not 0 < len(plan) <= DRAWN_CHUNKS or not plan.n_rows:
        return facts
    scale, boxes = DRAWN_WIDTH / plan.n_rows, list[str]()
    for chunk in plan:
        box = f'x="{chunk.start * scale + 1:.2f}" y="1" width="{(chunk.stop - chunk.start) * scale:.2f}" '
        said = element("title", f"chunk {chunk.number}: rows {chunk.start:,}:{chunk.stop:,}")
        boxes.append(f'<rect {box}height="{DRAWN_HEIGHT}" fill="#ECB172" stroke="#333">{said}</rect>')
    size = f'width="{DRAWN_WIDTH + 2}" height="{DRAWN_HEIGHT + 2}"'
    return f"<div>{facts}<svg {size}>{''.join(boxes)}</svg></div>"


def check_grainsize(grainsize: Any, n_rows: int) -> int | None:
    """Return the grainsize as an int, None for "auto"."""
    if isinstance(grainsize, str) and grainsize == "auto":
        return None
    try:
        size = 0 if isinstance(grainsize, bool | np.bool_) else operator.index(grainsize)
    except TypeError:
        size = 0
    if size > 0:
        return size
    raise PlanError(f'Cannot cut {n_rows} rows by `grainsize={grainsize!r}`. Give a positive int or `"auto"`.')
