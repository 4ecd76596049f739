"""The rows of one chunk, with gaps for what is being differentiated: what a chunk task is given of the data."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from autograd.extend import defjvp, defvjp, primitive

from dagad._pytrees import pytree
from dagad._pytrees.canonical import snapshot, snapshots
from dagad._pytrees.partition import Partition
from dagad._pytrees.pytree import nbytes_of
from dagad._pytrees.shipping import Portable, opened


class Rows(Portable):
    """The rows of one chunk: pieces to be put together, with gaps for the leaves that are being differentiated.

    A piece is a constant, `GAP` for one whole array, `ELSEWHERE` for what `joined` brings, or a `Partition` for each
    item of a list.

    With `views`, pieces are views of arrays that somebody may write into, and the rows are to stay what they are: they
    are copied by whoever uses them first, a chunk's task.
    """

    __slots__ = ("_pieces", "_treedef", "_views", "_whole")

    def __init__(self, treedef: pytree.TreeDef, pieces: list[Any], complete: bool, views: bool = False) -> None:
        self._treedef, self._pieces, self._views = treedef, pieces, views
        self._whole = (pieces[0] if treedef.is_leaf() else pytree.unflatten(treedef, pieces),) if complete else ()

    def state(self) -> tuple[Any, ...]:
        return self._treedef, self._pieces, bool(self._whole)

    def joined(self, shards: Iterator[Any]) -> Rows:
        """Return the rows with what was elsewhere."""
        pieces = [opened(next(shards)).merge(iter(())) if piece is ELSEWHERE else piece for piece in self._pieces]
        complete = not any(piece is GAP or type(piece) is Ragged for piece in pieces)
        return Rows(self._treedef, pieces, complete, self._views)

    def snapshot(self) -> Rows:
        """Return rows that stay what they are, whatever is written into the arrays that they are views of."""
        taken = Rows(self._treedef, self._pieces, bool(self._whole), views=True)
        taken._take_snapshot()
        return taken

    def _take_snapshot(self) -> None:
        self._pieces = [_snapshot_of(piece) for piece in self._pieces]
        if self._whole:
            self._whole = (pytree.unflatten(self._treedef, self._pieces),)
        self._views = False

    def __sizeof__(self) -> int:
        return 200 + sum(map(_nbytes_of, self._pieces))

    @classmethod
    def of(cls, tree: Any) -> Rows:
        """Return rows with nothing taken out."""
        return cls(pytree.flatten(0)[1], [tree], True)

    def with_gaps(self, columns: Sequence[int] | None) -> tuple[Rows, list[Partition]]:
        """Take the floating-point leaves out of some columns, or of all the rows."""
        whole = columns is None
        pieces = [self.merge(iter(()))] if whole else list(self._pieces)
        numbers = (0,) if columns is None else columns
        partitions = [Partition.of(pieces[number], pytree.is_differentiable) for number in numbers]
        for number, partition in zip(numbers, partitions, strict=True):
            pieces[number] = Whole(partition.bare())
        return Rows(pytree.flatten(0)[1] if whole else self._treedef, pieces, False), partitions

    def items(self, leaves: Sequence[Any]) -> Iterator[tuple[Rows, list[tuple[int, int | None]]]]:
        """Yield each row as rows of its own, and its gaps: numbers of `leaves`, with its place in arrays of rows."""
        if self._views:
            self._take_snapshot()
        columns, number, n_rows = list[tuple[Any, int | None]](), 0, 0
        for piece in self._pieces:
            if piece is GAP:
                columns.append((GAP, number))
                n_rows, number = len(leaves[number]), number + 1
            elif type(piece) is Ragged:
                columns.append((piece.items, number))
                n_rows, number = len(piece.items), number + sum(len(p.positions) for p in piece.items)
            else:
                columns.append((list(pytree.items_of(_row_by_row(piece))), None))
                n_rows = len(columns[-1][0])
        firsts = [first for _, first in columns]
        for place in range(n_rows):
            here: Any
            pieces, gaps = [], list[tuple[int, int | None]]()
            for column, (items, first) in enumerate(columns):
                if first is None:
                    pieces.append(items[place])
                elif items is GAP:
                    pieces.append(GAP)
                    gaps.append((first, place))
                elif not items[place].positions:
                    pieces.append(items[place].merge(iter(())))
                else:
                    partition, here = items[place], firsts[column]
                    pieces.append(Whole(partition))
                    gaps.extend((here + count, None) for count in range(len(partition.positions)))
                    firsts[column] = here + len(partition.positions)
            yield Rows(self._treedef, pieces, not gaps), gaps

    def merge(self, leaves: Iterator[Any]) -> Any:
        """Return the rows, with the next of `leaves` in the gaps."""
        if self._views:
            self._take_snapshot()
        if self._whole:
            return self._whole[0]
        return pytree.unflatten(self._treedef, [_filled(piece, leaves) for piece in self._pieces])

    def extract(self, cotangent: Any) -> list[Any]:
        """Return the cotangents that belong in the gaps, from one for all rows."""
        if self._whole:
            return []
        if cotangent is None:
            cotangents: Sequence[Any] = [None] * len(self._pieces)
        else:
            cotangents = pytree.subtrees(self._treedef, cotangent)
        extracted: list[Any] = []
        for piece, part in zip(self._pieces, cotangents, strict=True):
            if piece is GAP:
                extracted.append(part)
            elif type(piece) is Whole:
                extracted.extend(piece.partition.extract(part))
            elif type(piece) is Ragged:
                items = [None] * len(piece.items) if part is None else part
                extracted.extend(leaf for p, item in zip(piece.items, items, strict=True) for leaf in p.extract(item))
        return extracted


def row_by_row(leaf: Any) -> Any:
    """Return an array laid out row by row: a row with gaps has other bits than one in a chunk of its own."""
    plain = pytree.plain(leaf)
    if type(plain) is not np.ndarray or plain.flags.c_contiguous:
        return leaf
    if pytree.is_traced(leaf):
        return _contiguous()(leaf)
    leaf = np.ascontiguousarray(leaf)
    leaf.flags.writeable = False
    return leaf


@functools.cache  # made when first needed: to import dagad adds nothing to autograd's tables
def _contiguous() -> Any:
    made = primitive(_made_contiguous)
    defvjp(made, lambda ans, array: lambda cotangent: cotangent)
    defjvp(made, lambda tangent, ans, array: tangent)
    return made


def _made_contiguous(array: Any) -> Any:
    return np.ascontiguousarray(array)


def _row_by_row(piece: Any) -> Any:
    if isinstance(piece, list):
        return piece
    leaves, treedef = pytree.flatten(piece, is_leaf=pytree.is_list)
    return pytree.unflatten(treedef, list(map(row_by_row, leaves)))


class _Mark:
    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> str:
        return self._name


GAP, ELSEWHERE = _Mark("GAP"), _Mark("ELSEWHERE")


@dataclass(frozen=True, slots=True)
class Ragged:
    """Items of a list some of whose leaves are being differentiated."""

    items: list[Partition]


@dataclass(frozen=True, slots=True)
class Whole:
    """Anything some leaves of which are being differentiated."""

    partition: Partition


def _filled(piece: Any, leaves: Iterator[Any]) -> Any:
    if piece is GAP:
        return next(leaves)
    if type(piece) is Whole:
        return piece.partition.merge(leaves)
    return [p.merge(leaves) for p in piece.items] if type(piece) is Ragged else piece


def _nbytes_of(piece: Any) -> int:
    if type(piece) is Ragged:
        return nbytes_of([p.leaves for p in piece.items])
    return nbytes_of(piece.partition.leaves if type(piece) is Whole else piece)


def _snapshot_of(piece: Any) -> Any:
    if type(piece) is Ragged:
        return Ragged(
            [
                Partition(partition.treedef, [snapshot(leaf) for leaf in partition.leaves], partition.positions)
                for partition in piece.items
            ]
        )
    return piece if type(piece) in (_Mark, Whole) else snapshots(piece)
