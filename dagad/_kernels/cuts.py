"""How the rows of a chunk become parts: items, pieces of lengths that an engine wants, the chunks of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._graphs.sum_trees import Subtree
from dagad._kernels.chunks import ChunkContext
from dagad._kernels.over_parts import Part
from dagad._sources.plan import AnyPlan
from dagad._sources.rows import Rows, row_by_row
from dagad._sources.runs import n_gaps
from dagad._types import Leaf
from dagad._values import pytree
from dagad._values.shipping import opened

# Cuts are frozen, so that a kernel is known again without being pickled.


@dataclass(frozen=True, slots=True)
class ByItem:
    """Each item is a part. Those without gaps may stay with their rows, and what is on a device with them."""

    keeps: bool = False

    def parts(self, context: ChunkContext, rows: Rows, leaves: Sequence[Any]) -> list[Part]:
        """Return the items of a chunk."""
        found = list(rows.items(leaves)) if not self.keeps else _kept(rows, leaves, "items", lambda: rows.items(leaves))
        columns, first, parts = _Columns(leaves), context.chunk.start, []
        for number, (item, gaps) in enumerate(found):
            parts.append(Part(context, item, [columns.at(*gap) for gap in gaps], gaps, first + number))
        return parts

    def joined(self, parts: Sequence[Part], leaves: Sequence[Any], found: Sequence[Any]) -> list[Any]:
        """Return the cotangents of the leaves from those of the items; None where no item has one."""
        columns: list[Any] = [None] * len(leaves)
        for one, cotangents in zip(parts, found, strict=True):
            for (number, at), cotangent in zip(one.gaps, cotangents or (), strict=bool(cotangents)):
                if cotangent is None:
                    continue
                if at is None:
                    columns[number] = cotangent
                else:
                    columns[number] = columns[number] or {}
                    columns[number][at] = cotangent
        return [
            _column(column, leaf) if isinstance(column, dict) else column
            for column, leaf in zip(columns, leaves, strict=True)
        ]


class _Columns:
    """Leaves, whole or an entry of them: arrays are taken apart once."""

    __slots__ = ("_by_row", "_leaves")

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._leaves, self._by_row = leaves, dict[int, Any]()

    def at(self, number: int, at: int | None) -> Any:
        """Return what belongs in a gap."""
        if at is None:
            return self._leaves[number]
        if number not in self._by_row:
            self._by_row[number] = row_by_row(self._leaves[number])
        return self._by_row[number][at]


def _column(parts: dict[int, Any], leaf: Leaf) -> Any:
    plain = pytree.plain(leaf)
    if any(map(pytree.is_traced, parts.values())):
        zero = pytree.zeros_like(plain[0])
        return anp.stack([parts.get(at, zero) for at in range(len(plain))])
    column = np.zeros(plain.shape, plain.dtype)
    for at, part in parts.items():
        column[at] = part
    return column


@dataclass(frozen=True, slots=True)
class ByLength:
    """Chunks of `grainsize` rows are whole; others are cut into pieces of few lengths, which the engine says."""

    engine: Any
    grainsize: int

    def parts(self, context: ChunkContext, rows: Rows, leaves: Sequence[Any]) -> list[Part]:
        """Return the pieces of a chunk."""
        n_rows = context.chunk.stop - context.chunk.start
        lengths = [n_rows] if n_rows == self.grainsize else self.engine.pieces(n_rows, self.grainsize)
        if len(lengths) == 1:
            return [Part(context, rows, leaves, [(number, None) for number in range(len(leaves))])]
        found = _kept(rows, leaves, "pieces", lambda: _pieces(rows, lengths))
        return [
            Part(context, piece, [leaves[number] if at is None else leaves[number][at] for number, at in gaps], gaps)
            for piece, gaps in found
        ]

    def joined(self, parts: Sequence[Part], leaves: Sequence[Any], found: Sequence[Any]) -> list[Any]:
        """Return the cotangents of the leaves from those of the pieces."""
        columns: list[list[Any]] = [[] for _ in leaves]
        for one, cotangents in zip(parts, found, strict=True):
            own = cotangents or [None] * len(one.leaves)
            for (number, at), leaf, cotangent in zip(one.gaps, one.leaves, own, strict=True):
                is_zero = cotangent is None and at is not None
                columns[number].append(pytree.zeros_like(leaf) if is_zero else cotangent)
        return [column[0] if len(column) == 1 else _end_to_end(column) for column in columns]


def _pieces(rows: Rows, lengths: Sequence[int]) -> Iterator[tuple[Rows, Any]]:
    start = 0
    for length in lengths:
        yield rows.cut(slice(start, start + length))
        start += length


def _end_to_end(parts: Sequence[Any]) -> Any:
    return anp.concatenate(parts) if any(map(pytree.is_traced, parts)) else np.concatenate(parts)


def _kept(rows: Rows, leaves: Sequence[Any], name: str, make: Callable[[], Iterator[Any]]) -> list[Any]:
    """Return parts of rows that stay with them, as does what an engine makes of their constants."""
    if leaves or rows.is_made:
        return list(make())
    key = f"{name} of a chunk"
    found: list[Any] | None = rows.kept.get(key)
    if found is None:
        found = rows.kept[key] = list(make())
    return found


@dataclass(frozen=True, slots=True)
class ByChunk:
    """Each chunk of a run is a part: the run is a subtree of the tree over all chunks of a plan."""

    plan: AnyPlan
    runs: tuple[Subtree, ...]

    def parts(self, context: ChunkContext, rows: Sequence[Any], leaves: Sequence[Any]) -> list[Part]:
        """Return the chunks of a run."""
        numbers = self.runs[context.chunk.number].terms(len(self.plan))
        rest, found = iter(leaves), []
        for number, own in zip(numbers, rows, strict=True):
            here = opened(own)
            at = ChunkContext(self.plan.chunk(number), context.names)
            found.append(Part(at, here, [next(rest) for _ in range(n_gaps(here))]))
        return found

    def joined(self, parts: Sequence[Part], leaves: Sequence[Any], found: Sequence[Any]) -> list[Any]:
        """Return the cotangents of the leaves: each chunk has its own."""
        del leaves
        pairs = zip(parts, found, strict=True)
        return [leaf for part, own in pairs for leaf in (own or [None] * len(part.leaves))]
