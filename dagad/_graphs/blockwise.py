"""Operations on blocks that Dask has made one task for each block -> the same, each part under its own key.

Dask fuses such operations once for all blocks, and calls a part by its array and its indices among those of the result:
``sin-0e1f_.1_.0``. A later derivative by blocks of that array has to find them: here they get their keys.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dask.highlevelgraph import HighLevelGraph

from dagad._errors import NotDifferentiableError
from dagad._graphs.activity import Key, substituted
from dagad_scheduler.private import Blockwise, Task, fuse_roots, give_tasks, optimize_blockwise

_FUSED = re.compile(r"(.+?)_((?:\.\d+(?:_\.\d+)*)?)")


def with_blocks_fused(graph: HighLevelGraph, outputs: Collection[Key], kept: Collection[Key]) -> HighLevelGraph:
    """Return what some keys need, with runs of blockwise operations made one; tasks under `kept` keys stay apart."""
    keys = [*outputs, *kept]
    made: Any = optimize_blockwise(graph, keys=keys).cull(set(outputs))
    for layer in made.layers.values():
        if isinstance(layer, Blockwise) and layer.task.has_subgraph():
            give_tasks(layer, {key: _under_own_keys(node, layer, graph) for key, node in layer.items()})
    return fuse_roots(made, keys=keys).cull(set(outputs))  # type: ignore[no-any-return]  # a graph


def _under_own_keys(node: Any, layer: Any, graph: HighLevelGraph) -> Any:
    """Return the task of a block with its parts under their own keys; `graph` is as it was before."""
    if not isinstance(node, Task) or not node.has_subgraph():
        return node
    key: Any = node.key
    return _with_keys(node, dict(zip(layer.output_indices, key[1:], strict=True)), graph)


def _with_keys(node: Task, at: Mapping[str, int], graph: HighLevelGraph) -> Task:
    inside, *rest = node.args
    keys = {part: key for part in inside if (key := _key_of(part, at, graph)) is not None}
    parts = {keys.get(part, part): substituted(one, keys, keys.get(part, part)) for part, one in inside.items()}
    return Task(node.key, node.func, parts, *rest, **node.kwargs)


def _key_of(part: Any, at: Mapping[str, int], graph: HighLevelGraph) -> Key | None:
    """Return the key of a part of a fused task, from what Dask calls it and where the result's indices stand."""
    found = _FUSED.fullmatch(part) if isinstance(part, str) else None
    layer = None if found is None else graph.layers.get(found[1])
    if found is None or not isinstance(layer, Blockwise):
        return None
    indices = found[2].split("_") if found[2] else []
    counts = [layer.dims[index] for index in layer.output_indices]
    if len(indices) != len(counts) or any(
        count > 1 and index not in at for index, count in zip(indices, counts, strict=True)
    ):
        return None
    return (found[1], *(at[index] if count > 1 else 0 for index, count in zip(indices, counts, strict=True)))


def refuse_nameless(found: Iterable[Key], wrt: Collection[Key]) -> None:
    """Refuse tasks of which one is known to be a block to differentiate with respect to, but not which."""
    names = {key[0] for key in wrt if isinstance(key, tuple)}
    for part in found:
        match = _FUSED.fullmatch(part) if isinstance(part, str) else None
        if match and match[1] in names:
            raise NotDifferentiableError(
                f"Blocks of {match[1]!r} stand inside of tasks in which Dask has fused them with others: a gradient "
                "by them would miss that part. Take the derivative before `y` is optimized. Where an earlier "
                "derivative in `y` was taken of an optimized collection, take it of that collection as it was before."
            )
