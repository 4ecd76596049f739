"""Sliced argument -> columns that agree on their rows, and the rows of each chunk; no graph yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from dask.delayed import Delayed

from dagad._errors import PlanError, StructureError
from dagad._pytrees import pytree
from dagad._pytrees.canonical import all_read_only, canonical, library_of
from dagad._pytrees.partition import Partition
from dagad._pytrees.shipping import opened
from dagad._sources.plan import AnyPlan, Chunk
from dagad._sources.rows import ELSEWHERE, GAP, Ragged, Rows
from dagad._sources.tables import refuse_table
from dagad_scheduler.private import GraphNode, Task, TaskRef

Key = Any


@dataclass(frozen=True, slots=True)
class ArrayColumn:
    """A sliced array; `leaf` is its number among the leaves being differentiated, None for constant data."""

    array: Any
    leaf: int | None

    def piece(self, chunk: Chunk) -> Any:
        return GAP if self.leaf is not None else cut(self.array, slice(chunk.start, chunk.stop))

    def targets(self, rows: slice) -> Iterator[tuple[int, slice | None]]:
        if self.leaf is not None:
            yield self.leaf, rows


@dataclass(frozen=True, slots=True)
class ListColumn:
    """A sliced list; `items` have gaps where they are being differentiated, `first` numbers each item's first gap."""

    items: Any
    first: Sequence[int] | None

    def piece(self, chunk: Chunk) -> Any:
        items = self.items[chunk.start : chunk.stop]
        return items if self.first is None else Ragged([p.bare() for p in items])

    def targets(self, rows: slice) -> Iterator[tuple[int, slice | None]]:
        if self.first is not None:
            for partition, first in zip(self.items[rows], self.first[rows], strict=True):
                for place in range(len(partition.positions)):
                    yield first + place, None


@dataclass(frozen=True, slots=True)
class ShardColumn:
    """Rows that were cut and placed before; `leaf` is their number where they are being differentiated in."""

    shards: Placed
    leaf: int | None = None

    def piece(self, chunk: Chunk) -> Any:
        del chunk
        return ELSEWHERE

    def targets(self, rows: slice) -> Iterator[tuple[int, slice | None]]:
        del rows
        return iter(())


class Placed(Protocol):
    """Rows that were cut and placed before; what `shard` returns."""

    @property
    def plan(self) -> AnyPlan:
        """How the rows were cut."""

    @property
    def scheduler(self) -> Any:
        """Where they are."""

    @property
    def is_here(self) -> bool:
        """Whether they are in this process."""

    @property
    def kept(self) -> Mapping[Key, Any]:
        """The rows of each chunk, as the scheduler refers to them."""

    def rows(self, number: int) -> Any:
        """Return the rows of a chunk, or a reference where they are elsewhere."""

    def road(self, shards: Sequence[Placed]) -> Any:
        """Return how to call the workers that hold these Shards and others of the same plan."""


@dataclass(frozen=True, slots=True)
class Sliced:
    """The sliced argument, taken apart into columns that agree on their number of rows."""

    treedef: pytree.TreeDef
    columns: list[ArrayColumn | ListColumn | ShardColumn]
    n_rows: int
    complete: bool  # nothing in it is being differentiated
    shards: tuple[Placed, ...] = ()
    taken: dict[Chunk, Any] | None = None  # the rows of chunks, where they are to stay what they were

    def rows(self, chunk: Chunk) -> Any:
        """Return the rows of a chunk, without what is being differentiated; a node of a graph if some are elsewhere."""
        taken = self.taken
        if taken is not None and chunk in taken:
            return taken[chunk]
        pieces = [column.piece(chunk) for column in self.columns]
        rows: Any
        if self.shards:
            rows = self._with_shards(chunk, pieces)
        else:
            rows = Rows(self.treedef, pieces, self.complete, taken is not None)
        if taken is not None:
            taken[chunk] = rows
        return rows

    def _with_shards(self, chunk: Chunk, pieces: list[Any]) -> Any:
        placed = [shards.rows(chunk.number) for shards in self.shards]
        if self.treedef.is_leaf():
            return placed[0]
        rows = Rows(self.treedef, pieces, False, self.taken is not None)
        if any(isinstance(part, GraphNode | TaskRef) for part in placed):
            return Task(None, joined, rows, *placed)
        return rows.joined(iter(placed))

    def lasting(self) -> Sliced:
        """Return the same for rows that stay what they are now, whatever is written into the user's arrays."""
        return replace(self, taken={})

    @property
    def all_placed(self) -> bool:
        """Whether all rows were placed before, elsewhere."""
        return bool(self.shards) and len(self.shards) == len(self.columns) and not any(s.is_here for s in self.shards)

    @property
    def template(self) -> Rows | None:
        """The rows of any chunk without what was placed before; None where that is all."""
        if self.treedef.is_leaf():
            return None
        return Rows(self.treedef, [ELSEWHERE] * len(self.columns), complete=False)

    def kept(self) -> dict[Key, Any]:
        """Return what the rows refer to."""
        return {key: value for shards in self.shards for key, value in shards.kept.items()}

    def targets(self, chunk: Chunk) -> list[tuple[int, slice | None]]:
        """Return which leaves being differentiated a chunk owns rows of, and which rows."""
        rows = slice(chunk.start, chunk.stop)
        return [target for column in self.columns for target in column.targets(rows)]


def joined(rows: Any, *shards: Any) -> Rows:
    """Put rows together with those that were placed before."""
    whole: Rows = opened(rows).joined(iter(shards))
    return whole


def cut(array: Any, rows: slice) -> Any:
    """Return some rows, laid out as they would arrive in another process: the layout shows in the bits."""
    part = array[rows]
    if type(part) is np.ndarray:
        flags = part.flags
        if not (flags.c_contiguous or flags.f_contiguous):
            part = np.ascontiguousarray(part)
            flags = part.flags
        if flags.writeable:
            flags.writeable = False
    return part


def read_sliced(sliced: Any, number: Iterator[int]) -> tuple[Sliced, list[Any]]:
    """Take the sliced argument apart.

    Returns the columns, and the traced leaves, which get their numbers from `number`.
    """
    leaves, treedef = pytree.flatten(sliced, is_leaf=_is_list)
    lengths = [_length(leaf) for leaf in leaves]
    if None in lengths or not leaves:
        _refuse_leaf(sliced, leaves, lengths)
    if len(set(lengths)) > 1:
        found = ", ".join(
            f"{path or 'it'} has {length}" for path, length in zip(pytree.paths(sliced, _is_list), lengths, strict=True)
        )
        raise StructureError(f"The sliced argument has leaves of different lengths: {found}. Rows have to agree.")
    traced: list[Any] = []
    columns = [_column(leaf, number, traced) for leaf in leaves]
    shards = tuple(column.shards for column in columns if isinstance(column, ShardColumn))
    _check_same_plan(shards)
    return Sliced(treedef, columns, int(lengths[0] or 0), not traced, shards), traced


def _check_same_plan(shards: Sequence[Placed]) -> None:
    for other in shards[1:]:
        if other.plan != shards[0].plan:
            raise PlanError(
                f"The sliced argument holds Shards that were cut differently: {shards[0].plan} and {other.plan}. Give "
                "`shard` the same grainsize for both."
            )


def _is_list(obj: Any) -> bool:
    return isinstance(obj, list)


def _length(leaf: Any) -> int | None:
    if type(leaf) is np.ndarray:
        return len(leaf) if leaf.ndim else None
    if pytree.is_placed(leaf):
        return int(pytree.plain(leaf).plan.n_rows)
    if library_of(leaf):
        refuse_table(leaf)
    if hasattr(leaf, "__dask_graph__"):
        raise StructureError(
            f"The sliced argument holds a `{type(leaf).__name__}` of Dask, which has not been computed. Compute it, "
            f"or place it where the chunks will run: {_how_to_place(leaf)}."
        )
    if isinstance(leaf, list):
        return len(leaf)
    shape = np.shape(pytree.plain(leaf)) if pytree.is_traced(leaf) else getattr(leaf, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    return len(leaf) if isinstance(leaf, range) else None


def _how_to_place(collection: Any) -> str:
    """Return what to write so that a collection of Dask's becomes Shards."""
    if not isinstance(collection, Delayed) and hasattr(collection, "to_dask_array"):
        return (
            "`dagad.shard({name: table[name].to_dask_array(lengths=True) for name in names})`, once you have decided "
            "what is to become of what is missing"
        )
    if isinstance(collection, Delayed):
        return "`dagad.shard([loader, ...])`, a list of Delayed each of which gives the rows of one piece"
    return "`dagad.shard(array)`" if hasattr(collection, "rechunk") else "`dagad.shard(collection.to_delayed())`"


def _refuse_leaf(sliced: Any, leaves: list[Any], lengths: list[int | None]) -> None:
    if not leaves:
        raise StructureError("The sliced argument holds no arrays or lists. Give the data that is to be cut into rows.")
    path, leaf = next(
        (path, leaf)
        for path, leaf, length in zip(pytree.paths(sliced, _is_list), leaves, lengths, strict=True)
        if length is None
    )
    where = f"Leaf {path} of the sliced argument" if path else "The sliced argument"
    raise StructureError(
        f"{where} is a {type(pytree.plain(leaf)).__name__} without rows. Sliced are arrays with at least one dimension "
        "and lists; pass what all chunks need as a shared argument."
    )


def _column(leaf: Any, number: Iterator[int], traced: list[Any]) -> ArrayColumn | ListColumn | ShardColumn:
    if pytree.is_placed(leaf):
        if not pytree.is_traced(leaf):
            return ShardColumn(leaf)
        traced.append(leaf)
        return ShardColumn(pytree.plain(leaf), next(number))
    if isinstance(leaf, list):
        partitions = (
            [Partition.of(item, pytree.is_traced) for item in all_read_only(leaf)] if _holds_traced(leaf) else None
        )
        if partitions is None:
            return ListColumn(all_read_only(leaf), None)
        first = []
        for partition in partitions:
            first.append(next(number) if partition.positions else 0)
            for _ in partition.positions[1:]:
                next(number)
            traced.extend(partition.taken)
        return ListColumn(partitions, first)
    if pytree.is_traced(leaf):
        traced.append(leaf)
        return ArrayColumn(None, next(number))
    return ArrayColumn(_read_only(leaf), None)


def _holds_traced(items: list[Any]) -> bool:
    return any(pytree.is_traced(leaf) for leaf in pytree.flatten(items)[0])


def _read_only(array: Any) -> Any:
    """Return a view that can't be written to; its rows are laid out chunk by chunk, in `cut`."""
    if isinstance(array, np.memmap):  # what is read from a file is an array like any other
        array = array.view(np.ndarray)
    if isinstance(array, np.ndarray):
        array = canonical(array).view()
        array.flags.writeable = False
    return array


def owned(leaf: Any, rows: slice | None) -> Any:
    """Return the part of a leaf that a chunk owns."""
    return leaf if rows is None else cut(leaf, rows)
