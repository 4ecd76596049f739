"""Plan + flat chunk function -> the primal graph of a reduction: one task a chunk, and a tree of sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask._task_spec import DataNode, GraphNode, Task, TaskRef

from dagad import _tree
from dagad._chunks import GAP, ChunkFunction, Place, Ragged, Rows
from dagad._errors import StructureError
from dagad._graph.sums import sum_tree
from dagad._groups import GroupFunction
from dagad._linearization import value_of_task
from dagad._plan import Chunk, Plan

Key = Any
Names = Callable[[str, Any], Key]


@dataclass(frozen=True, slots=True)
class ArrayColumn:
    """A sliced array; `leaf` is its number among the leaves being differentiated, None for constant data."""

    array: Any
    leaf: int | None

    def piece(self, rows: slice) -> Any:
        return GAP if self.leaf is not None else cut(self.array, rows)

    def targets(self, rows: slice) -> Iterator[tuple[int, slice | None]]:
        if self.leaf is not None:
            yield self.leaf, rows


@dataclass(frozen=True, slots=True)
class ListColumn:
    """A sliced list; `items` have gaps where they are being differentiated, `first` numbers each item's first gap."""

    items: Any
    first: Sequence[int] | None

    def piece(self, rows: slice) -> Any:
        return self.items[rows] if self.first is None else Ragged([form.bare() for form in self.items[rows]])

    def targets(self, rows: slice) -> Iterator[tuple[int, slice | None]]:
        if self.first is not None:
            for form, first in zip(self.items[rows], self.first[rows], strict=True):
                for place in range(len(form.positions)):
                    yield first + place, None


@dataclass(frozen=True, slots=True)
class Sliced:
    """The sliced argument, taken apart into columns that agree on their number of rows."""

    treedef: _tree.TreeDef
    columns: list[ArrayColumn | ListColumn]
    n_rows: int
    complete: bool  # nothing in it is being differentiated

    def rows(self, chunk: Chunk) -> Rows:
        """Return the rows of a chunk, without what is being differentiated."""
        rows = slice(chunk.start, chunk.stop)
        return Rows(self.treedef, [column.piece(rows) for column in self.columns], self.complete)

    def targets(self, chunk: Chunk) -> list[tuple[int, slice | None]]:
        """Return which leaves being differentiated a chunk owns rows of, and which rows."""
        rows = slice(chunk.start, chunk.stop)
        return [target for column in self.columns for target in column.targets(rows)]


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
    leaves, treedef = _tree.flatten(sliced, is_leaf=_is_list)
    lengths = [_length(leaf) for leaf in leaves]
    if None in lengths or not leaves:
        _refuse_leaf(sliced, leaves, lengths)
    if len(set(lengths)) > 1:
        found = ", ".join(
            f"{path or 'it'} has {length}" for path, length in zip(_tree.paths(sliced, _is_list), lengths, strict=True)
        )
        raise StructureError(f"The sliced argument has leaves of different lengths: {found}. Rows have to agree.")
    traced: list[Any] = []
    columns = [_column(leaf, number, traced) for leaf in leaves]
    return Sliced(treedef, columns, int(lengths[0] or 0), not traced), traced


def _is_list(obj: Any) -> bool:
    return isinstance(obj, list)


def _length(leaf: Any) -> int | None:
    if hasattr(leaf, "__dask_graph__"):
        raise StructureError(
            f"The sliced argument holds a {type(leaf).__name__} of Dask, which has not been computed. Compute it first."
        )
    if isinstance(leaf, list):
        return len(leaf)
    shape = np.shape(_tree.plain(leaf)) if _tree.is_traced(leaf) else getattr(leaf, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    return len(leaf) if isinstance(leaf, range) else None


def _refuse_leaf(sliced: Any, leaves: list[Any], lengths: list[int | None]) -> None:
    if not leaves:
        raise StructureError("The sliced argument holds no arrays or lists. Give the data that is to be cut into rows.")
    path, leaf = next(
        (path, leaf)
        for path, leaf, length in zip(_tree.paths(sliced, _is_list), leaves, lengths, strict=True)
        if length is None
    )
    where = f"Leaf {path} of the sliced argument" if path else "The sliced argument"
    raise StructureError(
        f"{where} is a {type(_tree.plain(leaf)).__name__} without rows. Sliced are arrays with at least one dimension "
        "and lists; pass what all chunks need as a shared argument."
    )


def _column(leaf: Any, number: Iterator[int], traced: list[Any]) -> ArrayColumn | ListColumn:
    if isinstance(leaf, list):
        forms = (
            [_tree.Form.of(item, _tree.is_traced) for item in _tree.all_protected(leaf)]
            if _holds_traced(leaf)
            else None
        )
        if forms is None:
            return ListColumn(_tree.all_protected(leaf), None)
        first = []
        for form in forms:
            first.append(next(number) if form.positions else 0)
            for _ in form.positions[1:]:
                next(number)
            traced.extend(form.taken)
        return ListColumn(forms, first)
    if _tree.is_traced(leaf):
        traced.append(leaf)
        return ArrayColumn(None, next(number))
    return ArrayColumn(_read_only(leaf), None)


def _holds_traced(items: list[Any]) -> bool:
    return any(_tree.is_traced(leaf) for leaf in _tree.flatten(items)[0])


def _read_only(array: Any) -> Any:
    """Return a view that can't be written to; its rows are laid out chunk by chunk, in `cut`."""
    if type(array) is np.ndarray:
        array = _tree.settled(array).view()
        array.flags.writeable = False
    return array


@dataclass(frozen=True, slots=True)
class ReductionGraph:
    """The primal graph of a reduction, and the keys that matter in it."""

    graph: dict[Key, GraphNode]
    total: Key
    theta: Key | None
    rows: dict[Key, list[tuple[int, slice | None]]]  # differentiated rows -> which leaves they are rows of


def reduction_graph(
    function: ChunkFunction,
    plan: Plan,
    sliced: Sliced,
    leaves: Sequence[Any],
    n_theta: int,
    names: Names,
    group: int = 1,
) -> ReductionGraph:
    """Build the graph of ``sum(function(chunk) for chunk in plan)`` at `leaves`, of which `n_theta` are shared.

    With `group`, a power of the sums' fan-in, that many chunks make one task.
    """
    function_key, theta_key = names("input", "function"), names("input", "theta")
    task = function if group == 1 else GroupFunction(function)
    graph: dict[Key, GraphNode] = {function_key: DataNode(function_key, task)}
    theta: Any = []
    if n_theta:
        graph[theta_key], theta = DataNode(theta_key, list(leaves[:n_theta])), TaskRef(theta_key)
    has_rows = len(leaves) > n_theta
    function_ref, terms, active_rows = TaskRef(function_key), [], {}
    chunks = list(plan)
    for index, start in enumerate(range(0, len(chunks), group)):
        some = chunks[start : start + group]
        key = names("value", index)
        args = [[Place(chunk, names) for chunk in some], [sliced.rows(chunk) for chunk in some], theta]
        if has_rows:
            rows_key = names("input", ("rows", index))
            targets = [sliced.targets(chunk) for chunk in some]
            own = [[owned(leaves[leaf], rows) for leaf, rows in part] for part in targets]
            graph[rows_key] = DataNode(rows_key, own if group > 1 else own[0])
            active_rows[rows_key] = [target for part in targets for target in part]
            args.append(TaskRef(rows_key))
        if group == 1:
            args[:2] = args[0][0], args[1][0]
        graph[key] = Task(key, value_of_task, function_ref, *args)
        terms.append(TaskRef(key))
    total, sums = sum_tree(terms, lambda *at: names("sum", at))
    graph.update(sums)
    return ReductionGraph(graph, total.key, theta_key if n_theta else None, active_rows)


def owned(leaf: Any, rows: slice | None) -> Any:
    """Return the part of a leaf that a chunk owns."""
    return leaf if rows is None else cut(leaf, rows)
