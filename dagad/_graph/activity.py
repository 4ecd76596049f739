"""Which keys carry derivatives: those that depend on `wrt` and that `y` depends on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from dask._task_spec import Alias, GraphNode, Task, TaskRef

Key = Any
Graph = Mapping[Key, GraphNode]


def references(node: GraphNode) -> tuple[Key, ...]:
    """Return the keys a node depends on, each once, in the order of its arguments.

    Dask keeps them as a set, and an order that depends on hashes would make the order of sums depend on them.
    """
    if isinstance(node, Alias):
        return (node.target,)
    return tuple(dict.fromkeys(_references(node)))


def _references(part: Any) -> Iterator[Key]:
    if isinstance(part, TaskRef):
        yield part.key
    elif isinstance(part, Alias):
        yield part.target
    elif isinstance(part, Task):
        for item in (*part.args, *part.kwargs.values()):
            yield from _references(item)


def topological(graph: Graph, keys: Iterable[Key]) -> list[Key]:
    """Return what `keys` need, each key after its dependencies; the order depends on the graph alone."""
    done: dict[Key, None] = {}
    stack = [(key, False) for key in reversed(list(keys))]
    while stack:
        key, ready = stack.pop()
        if ready:
            done[key] = None
        elif key not in done and key in graph:
            stack.append((key, True))
            stack.extend((reference, False) for reference in reversed(references(graph[key])) if reference not in done)
    return list(done)


def active(graph: Graph, order: Iterable[Key], wrt: Collection[Key]) -> list[Key]:
    """Return the keys of `order` that depend on `wrt`, in the same order; `order` is what is needed."""
    carrying: set[Key] = set(wrt)
    result = []
    for key in order:
        if any(reference in carrying for reference in references(graph[key])):
            carrying.add(key)
            result.append(key)
    return result
