"""Rows of several chunks at once: a run that is a subtree of the fixed tree, as one chunk of a coarser plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from dagad._graphs.sum_trees import Subtree, subtrees
from dagad._sources.base import AnyShards, Target
from dagad._sources.columns import Sliced
from dagad._sources.plan import AnyPlan, Chunk, GivenPlan
from dagad._types import AnyRows
from dagad._values.shipping import opened


def runs_for(n_chunks: int, n_workers: int) -> list[Subtree]:
    """Return the runs of chunks that each of so many workers is to have, as subtrees."""
    bounds = sorted({-(-n_chunks * worker // n_workers) for worker in range(n_workers + 1)})
    return [part for start, stop in itertools.pairwise(bounds) for part in subtrees(start, stop, n_chunks)]


class Runs:
    """A sliced argument by runs of chunks; a stand-in for `Sliced` on the coarser plan."""

    def __init__(self, sliced: Sliced, plan: AnyPlan, parts: Sequence[Subtree]) -> None:
        self._sliced, chunks = sliced, list(plan)
        self.parts, self.n_chunks = list(parts), len(chunks)  # of the fixed tree
        self.chunks = [chunks[part.start : part.start + (1 << part.level)] for part in parts]
        bounds = (*(some[0].start for some in self.chunks), self.chunks[-1][-1].stop)
        self.plan = GivenPlan(bounds)
        self.treedef, self.columns = sliced.treedef, sliced.columns

    @property
    def shards(self) -> tuple[AnyShards, ...]:
        return self._sliced.shards

    @property
    def constant_shards(self) -> list[AnyShards]:
        return self._sliced.constant_shards

    def rows(self, chunk: Chunk) -> list[Any]:
        return [self._sliced.rows(one) for one in self.chunks[chunk.number]]

    def targets(self, chunk: Chunk) -> list[Target]:
        return [target for one in self.chunks[chunk.number] for target in self._sliced.targets(one)]

    def kept(self) -> dict[Any, Any]:
        return self._sliced.kept()

    def keys(self) -> list[tuple[Any, ...]]:
        by_chunk = self._sliced.keys()
        return [tuple(key for one in some for key in by_chunk[one.number]) for some in self.chunks]

    def templates(self, plan: AnyPlan) -> tuple[Any, dict[int, Any] | None]:
        del plan
        fine = [one for some in self.chunks for one in some]
        template, by_chunk = self._sliced.templates(fine)
        if by_chunk is None:
            return RunTemplate(template, len(self.constant_shards)), None
        return None, {number: [by_chunk[one.number] for one in some] for number, some in enumerate(self.chunks)}


class RunTemplate:
    """The rows of any run of chunks, without what lives on workers."""

    def __init__(self, template: object, n_shards: int) -> None:
        self._template, self._n_shards = template, n_shards

    @property
    def marks(self) -> tuple[Any, ...]:
        """What stands for the pieces that are not there."""
        return self._n_shards, *(() if self._template is None else opened(self._template).marks)

    def joined(self, shards: Iterator[Any]) -> list[Any]:
        """Return the rows of each chunk with what lives here."""
        parts, count = list(shards), self._n_shards
        some = [parts[start : start + count] for start in range(0, len(parts), count)]
        if self._template is None:
            return [opened(part) for (part,) in some]
        return [opened(self._template).joined(iter(part)) for part in some]


def n_gaps(rows: AnyRows) -> int:
    """Return how many leaves being differentiated belong in the gaps of rows."""
    return len(opened(rows).extract(None))
