"""A graph with linearizations -> the same graph without: each task a plain function of its dependencies again.

A pullback reads a linearization, which is a cache that can't be differentiated. Without the cache it is a function of
the task's inputs and the cotangent, and a gradient of a gradient is one more `linearize` and `transpose`.
"""

from __future__ import annotations

from typing import Any

from dask._task_spec import Alias, GraphNode, Task

from dagad._graph.activity import Graph, Key
from dagad._graph.linearize import Names
from dagad._linearization import pull_back, value_and_pullback, value_of_task, value_part
from dagad._portable import opened


def forget(graph: Graph, names: Names) -> tuple[dict[Key, GraphNode], dict[Key, Key]]:
    """Return the graph without linearizations, and the new names of all keys of ours.

    New names, since what a key of the old graph holds is something else here.
    """
    renamed = {key: names("value", ("plain", *key)) for key in graph if _is_ours(key)}
    if not renamed:
        return dict(graph), {}
    result = {}
    for key, node in graph.items():
        plain = _plain(renamed.get(key, key), node, graph)
        result[plain.key] = plain.substitute(renamed, key=plain.key)
    return result, renamed


def _is_ours(key: Key) -> bool:
    return isinstance(key, tuple) and isinstance(key[0], str) and key[0].startswith("dagad-")


def _plain(key: Key, node: GraphNode, graph: Graph) -> GraphNode:
    if not isinstance(node, Task):
        return node.substitute({}, key=key)
    if node.func is value_and_pullback:
        return Task(key, value_of_task, *node.args[1:])
    if node.func is value_part:
        return Alias(key, node.args[0])
    if node.func is pull_back:
        linearization, cotangent = node.args
        source: Any = graph[linearization.key]
        return Task(key, pull_back_of_task, source.args[1], cotangent, *source.args[2:])
    return Task(key, node.func, *node.args, **node.kwargs)


def pull_back_of_task(task: Any, cotangent: Any, *args: Any) -> Any:
    """Record a task and pull a cotangent back: a pullback as a function of everything that it depends on."""
    cotangents = opened(task).record(*args)[1](cotangent)
    return cotangents[0] if len(cotangents) == 1 else cotangents
