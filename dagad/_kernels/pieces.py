"""A reduction whose chunks are cut further, for an engine that compiles: it is to see few shapes, and no long loops.

The pieces depend on the plan alone, and are added up in their order, so the bits are the same wherever a chunk runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import autograd.numpy as anp
import numpy as np

from dagad._graphs.linearization import PullbackFunction
from dagad._graphs.sum_trees import RunningTree
from dagad._kernels.chunks import ChunkContext, ChunkFunction
from dagad._kernels.item_outputs import gathered, items_of
from dagad._kernels.items import add_values, item_sum
from dagad._kernels.kernel import Groups, Kernel, Outputs, Seeds, Summed, in_groups
from dagad._sources.plan import AnyPlan, Chunk
from dagad._sources.rows import Gaps, Rows
from dagad._tracing.flat_functions import Engine
from dagad._values import pytree
from dagad._values.shipping import opened


class Piece(NamedTuple):
    """Some rows of a chunk, with the leaves that belong in their gaps, and where these are from."""

    rows: Rows
    leaves: Sequence[Any]
    gaps: Sequence[tuple[int, Any]]


class Cut(Protocol):
    """How the rows of a chunk are cut."""

    def is_whole(self, chunk: Chunk) -> bool:
        """Return whether a chunk is left as it is."""

    def pieces(self, chunk: Chunk, rows: Rows, leaves: Sequence[Any]) -> list[Piece]:
        """Return the pieces of a chunk."""

    def joined(self, pieces: Sequence[Piece], leaves: Sequence[Any], found: Sequence[Any]) -> list[Any]:
        """Return the cotangents of the leaves of a chunk from those of its pieces."""


@dataclass(frozen=True, slots=True)  # so that a kernel is known again without being pickled
class ByItem:
    """Each item is a piece."""

    def is_whole(self, chunk: Chunk) -> bool:
        """Return that no chunk is."""
        del chunk
        return False

    def pieces(self, chunk: Chunk, rows: Rows, leaves: Sequence[Any]) -> list[Piece]:
        """Return the items of a chunk."""
        del chunk
        gaps: list[Gaps] = [own for _, own in rows.items(leaves)]
        return [Piece(item, own, at) for (item, own), at in zip(items_of(rows, leaves), gaps, strict=True)]

    def joined(self, pieces: Sequence[Piece], leaves: Sequence[Any], found: Sequence[Any]) -> list[Any]:
        """Return the cotangents of a chunk's leaves."""
        return gathered(leaves, [piece.gaps for piece in pieces], found)


@dataclass(frozen=True, slots=True)
class ByLength:
    """Chunks of `grainsize` rows are whole; others are cut into pieces of few lengths, which the engine says."""

    engine: Any
    grainsize: int

    def is_whole(self, chunk: Chunk) -> bool:
        """Return whether a chunk is one of those that a plan has most."""
        return chunk.stop - chunk.start == self.grainsize

    def pieces(self, chunk: Chunk, rows: Rows, leaves: Sequence[Any]) -> list[Piece]:
        """Return the pieces of a chunk."""
        lengths = self.engine.pieces(chunk.stop - chunk.start, self.grainsize)
        if len(lengths) == 1:
            return [Piece(rows, leaves, [(number, None) for number in range(len(leaves))])]
        found, start = [], 0
        for length in lengths:
            part, gaps = rows.cut(slice(start, start + length))
            own = [leaves[number] if at is None else leaves[number][at] for number, at in gaps]
            found.append(Piece(part, own, gaps))
            start += length
        return found

    def joined(self, pieces: Sequence[Piece], leaves: Sequence[Any], found: Sequence[Any]) -> list[Any]:
        """Return the cotangents of a chunk's leaves."""
        columns: list[list[Any]] = [[] for _ in leaves]
        for piece, parts in zip(pieces, found, strict=True):
            for (number, at), own, part in zip(piece.gaps, piece.leaves, parts, strict=True):
                columns[number].append(pytree.zeros_like(own) if part is None and at is not None else part)
        return [column[0] if len(column) == 1 else _end_to_end(column) for column in columns]


def _end_to_end(parts: Sequence[Any]) -> Any:
    return anp.concatenate(parts) if any(map(pytree.is_traced, parts)) else np.concatenate(parts)


class SumOfPieces(Summed):
    """A chunk function of a reduction, called for each piece of a chunk."""

    __slots__ = ("_cut",)

    def __init__(self, function: ChunkFunction, cut: Cut) -> None:
        super().__init__(function)
        self._cut = cut

    def state(self) -> tuple[Any, ...]:
        return self.function, self._cut

    def _pieces(self, context: ChunkContext, rows: Rows, leaves: Sequence[Any]) -> list[Piece]:
        """Return the pieces of a chunk; without gaps they stay with the rows, and what is on a device with them."""
        if leaves or rows.is_made:
            return self._cut.pieces(context.chunk, rows, leaves)
        key = f"pieces of {type(self._cut).__name__} {context.chunk}"
        found: list[Piece] | None = rows.kept.get(key)
        if found is None:
            found = self._cut.pieces(context.chunk, rows, leaves)
            if found[0].rows is not rows:  # or they would hold themselves
                rows.kept[key] = found
        return found

    def run(self, context: ChunkContext, rows: Any, shared: Groups, sliced: Groups) -> Outputs:
        each = super().run
        if self._cut.is_whole(context.chunk):
            return each(context, rows, shared, sliced)
        pieces = self._pieces(context, opened(rows), sliced[0] if sliced else ())
        values = [each(context, piece.rows, shared, [piece.leaves]).reduced for piece in pieces]
        return Outputs(functools.reduce(add_values, values), [])

    def record(
        self, context: ChunkContext, rows: Any, shared: Groups, sliced: Groups = (), *, with_grad: bool = False
    ) -> Any:
        """Run a chunk piece by piece, each by its own engine; see `Kernel`."""
        if self._cut.is_whole(context.chunk):
            return super().record(context, rows, shared, sliced, with_grad=with_grad)
        return self._recorded(context, rows, shared, sliced, with_grad=with_grad)

    def _recorded(
        self, context: ChunkContext, rows: Any, shared: Groups, sliced: Groups, *, with_grad: bool
    ) -> tuple[Outputs, PullbackFunction, Callable[[], int]]:
        common, leaves = list(shared[0]), sliced[0] if sliced else ()
        pieces = self._pieces(context, opened(rows), leaves)
        made = [
            self.function.linearize(context, piece.rows, common, piece.leaves, with_grad=with_grad) for piece in pieces
        ]
        parts = Outputs(functools.reduce(add_values, [value for value, _, _ in made]), [])

        def pullback(seeds: Seeds) -> tuple[Any, ...]:
            total, found, own_seeds = RunningTree(), list[Any](), parts.seeds(seeds)
            for piece, (value, pull, _) in zip(pieces, made, strict=True):
                moving = map(pytree.is_differentiable_or_traced, pytree.flatten(value)[0])
                mine = [seed if moves else None for seed, moves in zip(own_seeds, moving, strict=True)]
                groups = self.function.pull(context, pull, mine, len(common), piece.leaves)
                flat = [leaf for group in groups for leaf in group]
                total.push(flat[: len(common)])
                found.append(flat[len(common) :])
            return in_groups([*total.total(), *self._cut.joined(pieces, leaves, found)], shared, sliced)

        return parts, pullback, lambda: sum(nbytes() for _, _, nbytes in made)


def sum_by_length(function: ChunkFunction, plan: AnyPlan) -> Kernel:
    """Return the chunk function of a sum over rows, as its engine wants to see them."""
    engine = function.engine
    return SumOfPieces(function, ByLength(engine, plan.grainsize)) if hasattr(engine, "pieces") else Summed(function)


def sum_by_item(fun: Any, engine: Engine) -> tuple[Any, Callable[[ChunkFunction], Kernel]]:
    """Return what is called, and as which chunk function, to sum a function of one item, as its engine wants it."""
    if not hasattr(engine, "pieces"):
        return item_sum(fun, engine), Summed
    return fun, lambda function: SumOfPieces(function, ByItem())
