"""A graph with linearizations -> the same graph without: each task a plain function of its dependencies again.

A pullback reads a linearization, which is a cache that can't be differentiated. Without the cache it is a function of
the task's inputs and the cotangent, and a gradient of a gradient is one more `linearize` and `transpose`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dagad._errors import NotDifferentiableError
from dagad._graphs.activity import PLAIN, Graph, Key, is_ours, substituted
from dagad._graphs.linearization import pull_back, value_and_pullback, value_of_task, value_part
from dagad._graphs.scheduled import value_alone
from dagad._graphs.states import read_state, write_state
from dagad._types import AnyTask, Cotangent, Function
from dagad._values.shipping import opened
from dagad_scheduler.private import Alias, GraphNode, Task
from dagad_scheduler.roles import Names


def delinearize(
    graph: Graph, names: Names, keys: Collection[Key] | None = None
) -> tuple[dict[Key, GraphNode], dict[Key, Key]]:
    """Return the graph without linearizations, and the new names of all keys of ours.

    New names, since what a key of the old graph holds is something else here. `keys` says which ones are rewritten, by
    default all: they have to be closed under "depends on them", so that no key of the user's changes its meaning.
    """
    chosen = graph.keys() if keys is None else keys
    renamed = {key: names.about(key)("input", (PLAIN, *key)) for key in chosen if is_ours(key)}
    if not renamed:
        return dict(graph), {}
    result = dict(graph) if keys is not None else {}
    for key in chosen:
        result.pop(key, None)
        new = renamed.get(key, key)
        result[new] = substituted(_plain(new, graph[key], graph), renamed, new)
    return result, renamed


def _plain(key: Key, node: GraphNode, graph: Graph) -> GraphNode:
    if not isinstance(node, Task):
        return node
    if node.func in (value_and_pullback, value_alone):
        return Task(key, value_of_task, *node.args[1:])
    if node.func is read_state:
        return Alias(key, _found(node.args[0].key, graph, write_state).args[1].key)
    if node.func is value_part:
        return Alias(key, node.args[0])
    if node.func is pull_back:
        linearization, cotangent = node.args
        source = _found(linearization.key, graph, value_and_pullback)
        return Task(key, pull_back_of_task, source.args[1], cotangent, *source.args[2:])
    return node


def _found(key: Key, graph: Graph, func: Function) -> Task:
    """Return the task that makes what stands under a key, by this function; Dask may have put aliases before it."""
    node = graph.get(key)
    while isinstance(node, Alias):
        node = graph.get(node.target)
    if not isinstance(node, Task) or node.func is not func:
        raise NotDifferentiableError(
            f"A gradient can't be differentiated again, since the graph has lost what was recorded under {key!r}. Take "
            "the derivative before the graph is persisted or optimized."
        )
    return node


def pull_back_of_task(task: AnyTask, cotangent: Cotangent, *args: Any) -> Any:
    """Record a task and pull a cotangent back: a pullback as a function of everything that it depends on."""
    cotangents = opened(task).record(*args)[1](cotangent)
    return cotangents[0] if len(cotangents) == 1 else cotangents
