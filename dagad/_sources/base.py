"""What a source of rows is: one leaf of the sliced argument, or of the data that `shard` is given.

A new kind of rows is one file with a `Source`, and one line in `columns.READERS`; or an object that has the methods of
a source, which is taken as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dagad._sources.plan import AnyPlan, Chunk
from dagad._sources.rows import Piece
from dagad._types import Array, Leaf
from dagad._values.canonical import as_given
from dagad_scheduler.private import GraphNode

Key = Any
Graph = dict[Key, GraphNode]


@dataclass(frozen=True, slots=True)
class Stays:
    """The rows of a chunk of Shards, by its number: what belongs there stays where it is."""

    number: int


# A leaf that is being differentiated, and what of it: some rows, a chunk that stays where it is, or all.
Target = tuple[int, slice | Stays | None]
Targets = list[Target]


def staying(targets: Targets) -> list[int]:
    """Return the indices of those targets whose cotangents stay where they are computed, in Shards, and don't land."""
    return [index for index, (_, rows) in enumerate(targets) if type(rows) is Stays]


class Source(Protocol):
    """Rows, whatever they are kept in. All but `n_rows` and `piece` may be left as it is here.

    Attributes
    ----------
    n_rows
        How many there are.
    plan
        How they lie in pieces already; None where they can be cut anywhere. `shard` takes it for "auto".
    placed
        The Shards that they are, if they have been cut and placed.
    placed_leaf
        Their number among the leaves, if these Shards are being differentiated.
    row_kind
        What rows look like, their shape above all, where that is seen at a glance: a function is looked at anew for
        rows of another kind.
    of_items
        Whether a row is an item of a list: few and dear more often than rows of arrays.
    """

    n_rows: int
    plan: AnyPlan | None = None
    sharded: AnyShards | None = None
    sharded_leaf: int | None = None
    of_items: bool = False

    @property
    def row_kind(self) -> Hashable:
        return None

    @property
    def read_from(self) -> tuple[Any, ...]:
        """What they are read from, which others may change; not what was found out by reading it."""
        return (self,)

    def piece(self, chunk: Chunk) -> Piece:
        """Return what a chunk's task is given of them."""

    def targets(self, chunk: Chunk) -> Iterator[Target]:
        """Return which leaves being differentiated a chunk has rows of, and which; None for a leaf as a whole."""
        del chunk
        return iter(())

    def blocks(self, plan: AnyPlan) -> tuple[Graph, list[Key]] | None:
        """Return the graph that computes the rows, and the key of each chunk's; None where they are no tasks."""
        del plan
        return None


class AnyShards(Protocol):
    """Rows that were cut and placed before; what `shard` returns."""

    @property
    def keys(self) -> Sequence[Key]:
        """What the rows of each chunk are called."""

    @property
    def row_kind(self) -> Hashable:
        """What rows look like; see `Source`."""

    @property
    def token(self) -> Hashable:
        """What tells them from all others."""

    @property
    def plan(self) -> AnyPlan:
        """How the rows were cut."""

    @property
    def drawn(self) -> Any:
        """What they are a sample of, and which chunks of it; None where they are the whole. See `samples.Drawn`."""

    @property
    def scheduler(self) -> Any:
        """Where they are."""

    @property
    def is_here(self) -> bool:
        """Whether they are in this process."""

    @property
    def kept(self) -> Mapping[Key, Any]:
        """The rows of each chunk, as the scheduler refers to them."""

    def submit(self, wait: bool = False) -> None:
        """Have tasks make the rows, if they are none yet; wait for them where a call is to find them."""

    def rows(self, number: int) -> Any:
        """Return the rows of a chunk, or a reference where they are elsewhere."""

    def made_by(self, lineage: Any) -> Any:
        """Return Shards of the same cut, whose rows are made when somebody asks for them; see `lineage.Lineage`."""

    def of_chunks(self, rows: Mapping[int, Any]) -> Any:
        """Return Shards of the same cut, of rows by chunk."""

    def remembered(self, which: Hashable, make: Callable[[], Any]) -> Any:
        """Return what was made before for these Shards together with others, made if it was not."""


class Taken:
    """The leaves of the sliced argument that are being differentiated, numbered as they are found."""

    def __init__(self, first: int) -> None:
        self.leaves: list[Any] = []
        self._first = first

    def take(self, leaf: Leaf) -> int:
        """Take a leaf; return its number."""
        self.leaves.append(leaf)
        return self._first + len(self.leaves) - 1


# From a leaf of the sliced argument to its source; None if it is of another kind.
Reader = Callable[[Any, Taken], Source | None]


def cut(array: Array, rows: slice) -> Any:
    """Return some rows, laid out as they would arrive in another process: the layout shows in the bits."""
    part = array[rows]
    if type(part) is np.ndarray:
        flags = part.flags
        if not (flags.c_contiguous or flags.f_contiguous):
            part = np.ascontiguousarray(part)
            flags = part.flags
        if flags.writeable:
            part = as_given(part)
    return part


def owned(leaf: Leaf, rows: slice | Stays | None) -> Any:
    """Return the part of a leaf that a chunk owns."""
    if isinstance(rows, Stays):
        return leaf.rows(rows.number)
    return leaf if rows is None else cut(leaf, rows)
