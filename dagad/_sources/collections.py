"""Rows that Dask computes: arrays by blocks, dataframes and lists of loaders by pieces; and what xarray labels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from dask.base import is_dask_collection
from dask.delayed import Delayed

from dagad._errors import StructureError
from dagad._graphs.labelled import is_dataset, is_labelled
from dagad._sources.base import Graph, Key, Source, Taken
from dagad._sources.plan import AnyPlan, Chunk, plan_of
from dagad._sources.rows import ELSEWHERE, Piece
from dagad._types import AnyCollection, Leaf, Tree
from dagad._values import pytree
from dagad._values.canonical import is_future, snapshot
from dagad_scheduler.private import DataNode, convert_legacy_graph, ensure_dict


@dataclass(slots=True)
class BlockSource(Source):
    """A dask array, whose blocks are tasks: only `shard` takes it."""

    n_rows: int
    array: Any
    plan: AnyPlan | None
    row_kind: Hashable = None

    def piece(self, chunk: Chunk) -> Piece:
        del chunk
        return ELSEWHERE

    def blocks(self, plan: AnyPlan) -> tuple[Graph, list[Key]]:
        by_rows = tuple(chunk.stop - chunk.start for chunk in plan)
        whole = self.array.rechunk((by_rows, *((length,) for length in self.array.shape[1:])))
        return graph_of(whole.__dask_graph__()), [_first_of(keys) for keys in whole.__dask_keys__()]


def read_blocks(leaf: Leaf, taken: Taken) -> Source | None:
    del taken
    if not is_dask_collection(leaf) or not hasattr(leaf, "rechunk"):
        return None
    if not leaf.ndim or math.isnan(leaf.shape[0]):
        raise StructureError(
            "A dask array without rows, or with an unknown number of them, can't be cut. Call its "
            "`compute_chunk_sizes()` first."
        )
    bounds = tuple(dict.fromkeys((0, *itertools.accumulate(leaf.chunks[0]))))  # without empty blocks
    return BlockSource(int(leaf.shape[0]), leaf, plan_of(bounds), leaf.shape[1:])


def loaders_of(data: Tree) -> Sequence[Delayed] | None:
    """Return tasks each of which gives the rows of one piece, if that is what the data are."""
    if isinstance(data, list) and data and all(isinstance(one, Delayed) for one in data):
        return data
    if is_dask_collection(data) and _is_dataframe(data):
        return list(data.to_delayed())
    if any(map(_holds_delayed, pytree.flatten(data)[0])):
        raise StructureError(
            "There is a Delayed among the data, whose rows are not known. Give nothing but a list of Delayed, "
            "`dagad.shard([load(path) for path in paths])`, each of which returns some of the rows."
        )
    return None


def _holds_delayed(leaf: Leaf) -> bool:
    """Return whether a leaf is a Delayed, or an array of them, as `to_delayed` of dask arrays gives."""
    if isinstance(leaf, np.ndarray) and leaf.dtype == object and leaf.size:
        leaf = leaf.flat[0]
    return isinstance(leaf, Delayed)


def refuse_collection(leaf: Leaf, taken: Taken) -> None:
    """Refuse what has not been computed, where it can't be; in a list, too."""
    del taken
    leaf = leaf[0] if isinstance(leaf, list) and leaf else leaf
    if is_future(leaf):
        raise StructureError(
            "The sliced argument holds a Future, whose value may not be there yet. Give `future.result()`, or place "
            "what it makes: `dagad.shard([dask.delayed(load)(path), ...])`, of futures `dask.delayed(future)`."
        )
    if hasattr(leaf, "__dask_graph__") and is_dask_collection(leaf):
        _refuse(leaf)


def _refuse(leaf: Leaf) -> NoReturn:
    raise StructureError(
        f"The sliced argument holds a `{type(leaf).__name__}` of Dask, which has not been computed. Compute it, or "
        f"place it where the chunks will run: {_how_to_persist(leaf)}."
    )


def _how_to_persist(collection: AnyCollection) -> str:
    """Return what to write so that a collection of Dask's becomes Shards."""
    if isinstance(collection, Delayed):
        return "`dagad.shard([load(path), ...])`, a list of Delayed, each of which returns some of the rows"
    if _is_dataframe(collection):
        return "`dagad.shard(table)`, all that is sliced in one table"
    if hasattr(collection, "to_dask_array"):
        return "`dagad.shard(column.to_dask_array(lengths=True))`"
    return "`dagad.shard(array)`" if hasattr(collection, "rechunk") else "`dagad.shard(collection.to_delayed())`"


def _is_dataframe(collection: AnyCollection) -> bool:
    return hasattr(type(collection), "columns") and getattr(collection, "ndim", 0) == 2


def graph_of(graph: Mapping[Key, Any]) -> Graph:
    """Return the graph of a collection in Dask's own nodes, with the arrays that it holds as they are now."""
    nodes: Graph = convert_legacy_graph(ensure_dict(graph))
    held = {key: node.value for key, node in nodes.items() if type(node) is DataNode}
    return nodes | {key: DataNode(key, snapshot(value)) for key, value in held.items()}


def _first_of(keys: object) -> Key:
    while isinstance(keys, list):
        keys = keys[0]
    return keys


def without_labels(data: Tree) -> Any:
    """Return data with what xarray holds as the arrays that it labels: a dataset as a dict of them."""
    leaves, treedef = pytree.flatten(data, is_leaf=pytree.is_list)
    return pytree.unflatten(treedef, [_without_labels(leaf) for leaf in leaves])


def _without_labels(leaf: Leaf) -> Any:
    if not is_labelled(leaf):
        return leaf
    if not is_dataset(leaf):
        return leaf.data
    rows = {variable.dims[:1] for variable in leaf.data_vars.values()}
    if len(rows) > 1 or () in rows:
        found = ", ".join(f"{name!r} along {variable.dims}" for name, variable in leaf.data_vars.items())
        raise StructureError(
            f"The variables of a dataset have to have their rows along the same first dimension; there are {found}. "
            "Use `dataset[names].transpose(rows, ...)`, and pass the others as shared arguments."
        )
    return {name: variable.data for name, variable in leaf.data_vars.items()}
