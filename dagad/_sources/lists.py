"""Rows that are items of lists, ragged ones too: an item's leaves are its own, and so are their cotangents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dagad._sources.base import Source, Taken, Target
from dagad._sources.plan import Chunk
from dagad._sources.rows import Constant, Item, Piece, Ragged
from dagad._types import Leaf
from dagad._values import pytree
from dagad._values.canonical import all_read_only
from dagad._values.partition import Partition


@dataclass(slots=True)
class ListSource(Source):
    """A list; `partitions` are its items where some of their leaves are being differentiated, else None.

    `first` holds for each item the number of the first of these leaves.
    """

    n_rows: int
    items: list[Any]
    partitions: list[Partition] | None = None
    first: Sequence[int] = ()

    of_items = True

    def piece(self, chunk: Chunk) -> Piece:
        rows = slice(chunk.start, chunk.stop)
        if self.partitions is None:
            return Constant(self.items[rows])
        return Ragged([Item(item.bare()) for item in self.partitions[rows]])

    def targets(self, chunk: Chunk) -> Iterator[Target]:
        rows = slice(chunk.start, chunk.stop)
        for item, first in zip((self.partitions or ())[rows], self.first[rows], strict=True):
            for index in range(len(item.positions)):
                yield first + index, None


def read_list(leaf: Leaf, taken: Taken) -> Source | None:
    if not isinstance(leaf, list):
        return None
    items = all_read_only(leaf)
    if not any(map(pytree.is_traced, pytree.flatten(leaf)[0])):
        return ListSource(len(items), items)
    partitions = [Partition.of(item, pytree.is_traced) for item in items]
    numbers = [[taken.take(leaf) for leaf in item.taken] for item in partitions]
    return ListSource(len(items), [], partitions, [own[0] if own else 0 for own in numbers])
