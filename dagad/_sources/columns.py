"""Sliced argument -> sources that agree on their rows, and the rows of each chunk; no graph yet."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dagad._errors import PlanError, StructureError
from dagad._graphs.sum_trees import Subtree
from dagad._sources.arrays import read_array, read_numbers
from dagad._sources.base import AnyShards, Key, Reader, Source, Taken, Targets
from dagad._sources.collections import refuse_collection
from dagad._sources.lists import read_list
from dagad._sources.plan import Chunk
from dagad._sources.rows import Rows
from dagad._sources.shards import read_shards
from dagad._sources.stored import read_stored
from dagad._sources.tables import read_table
from dagad._types import AnyRows, Leaf
from dagad._values import pytree
from dagad._values.canonical import is_future
from dagad._values.shipping import opened
from dagad._words import described
from dagad_scheduler.private import GraphNode, Task, TaskRef


def read_source(leaf: Leaf, taken: Taken) -> Source | None:
    """Return what is a source already."""
    del taken
    return leaf if callable(getattr(type(leaf), "piece", None)) and hasattr(leaf, "n_rows") else None


# A new kind of rows is a line here; the first that knows a leaf takes it.
READERS: tuple[Reader, ...] = (
    read_numbers,
    read_shards,
    read_source,
    read_table,
    refuse_collection,
    read_list,
    read_stored,
    read_array,
)


@dataclass(frozen=True, slots=True)
class Sliced:
    """The sliced argument, taken apart into sources that agree on their number of rows."""

    treedef: pytree.TreeDef
    columns: list[Source]
    n_rows: int
    shards: tuple[AnyShards, ...] = ()
    is_copied: bool = False  # whether tasks copy their rows before they use them
    taken: dict[Chunk, Any] | None = None  # such rows that were cut, for chunks that run again in this process
    sent: dict[Chunk, Rows] | None = None  # copies that were made, for chunks that run on workers

    # Which parts of the tree of sums its chunks are, where they are runs of chunks of another plan, of how many chunks.
    parts: ClassVar[list[Subtree] | None] = None
    n_chunks: ClassVar[int | None] = None

    def rows(self, chunk: Chunk) -> Any:
        """Return the rows of a chunk, without what is being differentiated; a node of a graph if some are elsewhere."""
        taken = self.taken
        if taken is not None and chunk in taken:
            return taken[chunk]
        rows: Any = self._bare(chunk)
        if self.shards:
            rows = self._with_shards(chunk, rows)
        if taken is not None:
            taken[chunk] = rows
        return rows

    def given(self, chunk: Chunk, leaves: Sequence[Any]) -> Any:
        """Return the rows of a chunk with those that are being differentiated, of tables as dicts of their columns."""
        own = [leaves[leaf] if rows is None else leaves[leaf][rows] for leaf, rows in self.targets(chunk)]
        return pytree.by_column(opened(self.rows(chunk)).merge(iter(own)))

    def _with_shards(self, chunk: Chunk, rows: Rows) -> Any:
        sharded = [shards.rows(chunk.number) for shards in self.constant_shards]
        if sharded and self.treedef.is_leaf():
            return sharded[0]
        if any(isinstance(part, GraphNode | TaskRef) for part in sharded):
            return Task(None, joined, rows, *sharded)
        return rows.joined(iter(sharded))

    def lasting(self) -> Sliced:
        """Return the same for rows that stay what they are now, whatever is written into the user's arrays."""
        return replace(self, taken={})

    def lasting_elsewhere(self) -> Sliced:
        """Return the same where chunks run on workers, which may get their rows more than once."""
        return replace(self, sent={})

    def copied(self) -> Sliced:
        """Return the same where the rows that a chunk was given stay what they were, as long as it needs them."""
        return replace(self, is_copied=True)

    @property
    def constant_shards(self) -> list[AnyShards]:
        """Those that are not being differentiated."""
        return [one.sharded for one in self.columns if one.sharded is not None and one.sharded_leaf is None]

    def row_kinds(self) -> tuple[Hashable, ...]:
        """Return what the rows of each source look like."""
        return tuple([column.row_kind for column in self.columns])

    def keys(self) -> list[tuple[Key, ...]]:
        """Return for each chunk the keys of its rows that live elsewhere and are not being differentiated."""
        columns = [shards.keys for shards in self.constant_shards]
        return list(zip(*columns, strict=True)) if columns else [()] * len(self.shards[0].plan)

    def templates(self, chunks: Iterable[Chunk]) -> tuple[Any, dict[int, Any] | None]:
        """Return the rows of any chunk without what lives on workers; or, where they differ, those of each chunk."""
        if self.treedef.is_leaf() and self.constant_shards:
            return None, None
        first, *others = chunks
        rows = self._bare(first)
        if rows.is_template:
            return rows, None
        return None, {first.number: rows} | {chunk.number: self._bare(chunk) for chunk in others}

    def _bare(self, chunk: Chunk) -> Rows:
        if self.sent is not None and chunk in self.sent:
            return self.sent[chunk]
        views = self.is_copied or self.taken is not None
        rows = Rows(self.treedef, [column.piece(chunk) for column in self.columns], views)
        if self.sent is not None:
            rows = self.sent[chunk] = rows.snapshot()
        return rows

    def kept(self) -> dict[Key, Any]:
        """Return what the rows refer to."""
        return {key: value for shards in self.shards for key, value in shards.kept.items()}

    def targets(self, chunk: Chunk) -> Targets:
        """Return which leaves being differentiated a chunk owns rows of, and which rows."""
        return [target for column in self.columns for target in column.targets(chunk)]


def joined(rows: AnyRows, *shards: Any) -> Rows:
    """Put rows together with those that were placed before."""
    whole: Rows = opened(rows).joined(iter(shards))
    return whole


def read_sliced(sliced: AnyRows, first: int = 0, readers: Sequence[Reader] = READERS) -> tuple[Sliced, list[Any]]:
    """Take the sliced argument apart.

    Returns the sources, and the traced leaves, which are numbered from `first`.
    """
    leaves, treedef = pytree.flatten(sliced, is_leaf=pytree.is_list)
    taken = Taken(first)
    found: list[Source | None] = []
    for leaf in leaves:
        source = None
        for read in readers:
            source = read(leaf, taken)
            if source is not None:
                break
        found.append(source)
    columns = [source for source in found if source is not None]
    if len(columns) < len(leaves) or not leaves:
        _refuse_leaf(sliced, leaves, found)
    lengths = [column.n_rows for column in columns]
    if len(set(lengths)) > 1:
        paths = pytree.paths(sliced, pytree.is_list)
        pairs = ", ".join(f"{path or 'it'} has {length}" for path, length in zip(paths, lengths, strict=True))
        raise StructureError(
            f"The parts of the sliced argument have different numbers of rows: {pairs}. Each chunk gets the same rows "
            "of all parts: give them the same number, or pass as a shared argument what every chunk is to get whole."
        )
    shards = tuple([column.sharded for column in columns if column.sharded is not None])
    _check_same_plan(shards)
    return Sliced(treedef, columns, lengths[0], shards), taken.leaves


def _check_same_plan(shards: Sequence[AnyShards]) -> None:
    for other in shards[1:]:
        if other.plan != shards[0].plan:
            raise PlanError(
                f"The sliced argument holds Shards that were cut differently: {shards[0].plan} and {other.plan}. Pass "
                "them to `dagad.shard` together, `dagad.shard((x, y))`, or with the same grainsize."
            )


def _refuse_leaf(sliced: AnyRows, leaves: list[Any], found: list[Source | None]) -> None:
    if not leaves:
        raise StructureError(
            "The sliced argument has no arrays or lists in it, so there is nothing to cut. Give the data there."
        )
    index = found.index(None)
    path, leaf = pytree.paths(sliced, pytree.is_list)[index], leaves[index]
    where = f"Leaf {path} of the sliced argument" if path else "The sliced argument"
    raise StructureError(
        f"{where} is {described(pytree.plain(leaf))}, which has no rows to cut. {_remedy(pytree.plain(leaf))}"
    )


def _remedy(leaf: Leaf) -> str:
    if hasattr(leaf, "__next__"):
        return "Make a list of it, `list(...)`."
    if isinstance(leaf, set | frozenset):
        return "Its items have no order: make a list of it, `sorted(...)`."
    if isinstance(leaf, str | bytes):
        return "Read the data first, `np.loadtxt(path)` for instance, or give a list of words, `[word, ...]`."
    if is_future(leaf):
        return "Its value may not be there yet: give `future.result()`, or loaders, `[dask.delayed(load)(path)]`."
    if callable(leaf):
        return "The function comes first, then the data."
    return (
        "Arrays with at least one dimension, lists and tables have rows; what every chunk is to get whole follows the "
        "data, as a shared argument."
    )
