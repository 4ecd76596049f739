"""A reduction's pullback as a function that is itself being differentiated, one chunk after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import autograd.numpy as anp
from dask._task_spec import GraphNode, Task, TaskRef

from dagad import _tree
from dagad._chunks import Place
from dagad._errors import NotDifferentiableError
from dagad._evaluation import new_names, run_graph
from dagad._graph.sums import add_up
from dagad._plan import Chunk
from dagad._portable import opened

Key = Any


def pulled_traced(reduction: Any, leaves: Sequence[Any], cotangent: Any) -> list[Any]:
    """Return the cotangents of `leaves` as a function that is itself being differentiated, one chunk at a time."""
    if any(map(_tree.is_placed, leaves)):
        raise NotDifferentiableError(
            "Rows in Shards can be differentiated in once, and this is a derivative of a derivative. Pass what "
            "`shards.gather()` returns instead."
        )
    totals: list[Any] = [None] * len(leaves)
    names = new_names()
    for chunk in reduction.plan:
        targets = reduction.sliced.targets(chunk)
        owned = [leaves[leaf] if rows is None else leaves[leaf][rows] for leaf, rows in targets]
        args = (Place(chunk, names), _rows_here(reduction, chunk), list(leaves[: reduction.n_theta]), owned)
        shared, rows_cotangents = _both(reduction.function.record(*args)[1](cotangent), reduction.n_theta)
        for leaf, part in enumerate(shared):
            totals[leaf] = add_up(totals[leaf], part)
        for (leaf, rows), part in zip(targets, rows_cotangents, strict=True):
            at = _tree.plain(leaves[leaf])
            filled = _tree.zeros_like(at if rows is None else at[rows]) if part is None else part
            totals[leaf] = filled if rows is None else [*(totals[leaf] or ()), filled]
    joined = [anp.concatenate(total) if isinstance(total, list) else total for total in totals]
    plain = [_tree.plain(leaf) for leaf in leaves]
    return [_tree.zeros_like(leaf) if part is None else part for part, leaf in zip(joined, plain, strict=True)]


def _rows_here(reduction: Any, chunk: Chunk) -> Any:
    """Return the rows of a chunk in this process, wherever they are."""
    rows = reduction.sliced.rows(chunk)
    if not isinstance(rows, GraphNode | TaskRef):
        return rows
    key, results = new_names()("part", chunk.number), dict[Key, Any]()
    run_graph(
        reduction.scheduler, {key: Task(key, opened, rows)}, [key], results.__setitem__, kept=reduction.sliced.kept()
    )
    return results[key]


def _both(groups: tuple[Any, ...], n_theta: int) -> tuple[Any, Any]:
    return (groups[0], groups[1]) if n_theta else ((), groups[0])
