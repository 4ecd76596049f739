"""Operations on blocks that Dask has made one task for each block -> the same, each part under its own key.

Dask fuses such operations once for all blocks, and calls a part by its array and its indices among those of the result:
``sin-0e1f_.1_.0``. A later derivative by blocks of that array has to find them: here they get their keys.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from dask.highlevelgraph import HighLevelGraph

from dagad._errors import NotDifferentiableError
from dagad._graphs.activity import Key, substituted
from dagad._types import AnyNode
from dagad_scheduler.private import Blockwise, GraphNode, Task, TaskRef, fuse_roots, give_tasks, optimize_blockwise

_FUSED = re.compile(r"(.+?)_((?:\.\d+(?:_\.\d+)*)?)")


def with_blocks_fused(graph: HighLevelGraph, outputs: Collection[Key], kept: Collection[Key]) -> HighLevelGraph:
    """Return what some keys need, with runs of blockwise operations made one; tasks under `kept` keys stay apart."""
    keys = [*outputs, *kept]
    made: Any = optimize_blockwise(graph, keys=keys).cull(set(outputs))
    for layer in made.layers.values():
        if isinstance(layer, Blockwise) and isinstance(layer.task, Task) and layer.task.has_subgraph():
            found = {part: at for part in names_in(layer.task) if (at := _block_of(part, layer, graph))}
            give_tasks(layer, {key: _under_own_keys(node, found) for key, node in layer.items()})
    return fuse_roots(made, keys=keys)  # type: ignore[no-any-return]  # a graph


# The array that a part is a block of, and for each of its indices where that stands in the result's key; None: it is 0.
Block = tuple[str, tuple[int | None, ...]]


def _block_of(part: object, layer: Blockwise, graph: HighLevelGraph) -> Block | None:
    """Return which block a part of a fused layer's tasks is; `graph` is as it was before."""
    match = _FUSED.fullmatch(part) if isinstance(part, str) else None
    own: Any = None if match is None else graph.layers.get(match[1])
    if match is None or not isinstance(own, Blockwise):
        return None
    at = {index: position for position, index in enumerate(layer.output_indices, 1)}
    indices = match[2].split("_") if match[2] else []
    counts = [own.dims[index] for index in own.output_indices]
    if len(indices) != len(counts):
        return None
    found = [at.get(index) if count > 1 else None for index, count in zip(indices, counts, strict=True)]
    if any(count > 1 and position is None for position, count in zip(found, counts, strict=True)):
        return None  # it is several blocks
    return match[1], tuple(found)


def _under_own_keys(node: AnyNode, blocks: Mapping[str, Block]) -> Any:
    """Return the task of a block with its parts under their own keys."""
    if not blocks or not isinstance(node, Task) or not node.has_subgraph():
        return node
    at: Any = node.key
    keys = {
        part: (name, *(0 if position is None else at[position] for position in positions))
        for part, (name, positions) in blocks.items()
    }
    return _with_keys(node, keys, at)


def _with_keys(node: AnyNode, keys: Mapping[Any, Key], key: Key) -> Any:
    inside, last, *rest = node.args
    parts = {(own := keys.get(part, part)): _renamed(one, keys, own) for part, one in inside.items()}
    return Task(key, node.func, parts, keys.get(last, last), *rest, **node.kwargs)


def _renamed(node: AnyNode, keys: Mapping[Any, Key], key: Key) -> Any:
    """Return what `substituted` does; most parts read nothing deeper, and there are many."""
    if isinstance(node, Task) and node.has_subgraph():
        return _with_keys(substituted(node, dict(keys), key), keys, key)
    if type(node) is not Task or node.kwargs or any(isinstance(arg, GraphNode) for arg in node.args):
        return substituted(node, dict(keys), key)
    args = [TaskRef(keys[arg.key]) if type(arg) is TaskRef and arg.key in keys else arg for arg in node.args]
    return Task(key, node.func, *args)


def refuse_nameless(parts: Iterable[Key], wrt: Collection[Key]) -> None:
    """Refuse parts of tasks of which one is a block to differentiate with respect to, and it can't be told which."""
    names = {key[0] for key in wrt if isinstance(key, tuple)}
    for part in parts if names else ():
        match = _FUSED.fullmatch(part) if isinstance(part, str) else None
        if match and match[1] in names:
            raise NotDifferentiableError(
                f"Blocks of {match[1]!r} stand inside of tasks in which Dask has fused them with others: a gradient by "
                "them would miss that part. Take the derivative before `y` is optimized. Where an earlier derivative "
                "in `y` was taken of an optimized collection, take it of that as it was."
            )


def names_in(node: AnyNode) -> Iterator[str]:
    """Yield what Dask calls the parts of a fused task that have no key of their own."""
    if isinstance(node, Task) and node.has_subgraph():
        for part, one in node.args[0].items():
            if type(part) is str:
                yield part
            yield from names_in(one) if type(one) is Task else ()
