"""The forward-mode graph: tangents travel with the values, along the same edges."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dask._task_spec import Alias, GraphNode, Task, TaskRef

from dagad._graph.activity import Graph, Key, active, references, topological
from dagad._graph.linearize import Names, TaskFunction
from dagad._linearization import cotangent_part, value_of_task
from dagad._portable import opened


def tangent(
    graph: Graph, keys: Collection[Key], moving: Mapping[Key, Any], names: Names
) -> tuple[dict[Key, GraphNode], dict[Key, Any], dict[Key, Any]]:
    """Return a graph of values and tangents, and for each key of the old one references to its value and its tangent.

    `moving` maps keys to references to their tangents; what does not depend on them keeps its key and has no tangent.
    """
    order = topological(graph, keys)
    result: dict[Key, GraphNode] = {key: graph[key] for key in order}
    values: dict[Key, Any] = {}
    tangents: dict[Key, Any] = dict(moving)
    for place, (key, inputs) in enumerate(active(order, moving).items()):
        node = result.pop(key)
        if isinstance(node, Alias):
            values[key], tangents[key] = values.get(node.target, TaskRef(node.target)), tangents[node.target]
            continue
        assert isinstance(node, Task)
        both, parts = names("value", place), (names("part", ("value", place)), names("part", ("tangent", place)))
        result[both] = _pushed(both, node, inputs, values, tangents)
        for number, part in enumerate(parts):
            result[part] = Task(part, cotangent_part, TaskRef(both), number)
        values[key] = TaskRef(parts[0])
        # A key that moves by itself does so whatever it depends on.
        tangents.setdefault(key, TaskRef(parts[1]))
    return result, values, tangents


def _pushed(
    name: Key, node: Task, inputs: Sequence[Key], values: Mapping[Key, Any], tangents: Mapping[Key, Any]
) -> Task:
    """Return the task that runs a task and moves it."""
    if node.func is value_of_task and isinstance(node.args[0], TaskFunction):
        keys = tuple(ref.key for ref in node.args[1:])
        task = node.args[0].activated(tuple(keys.index(key) for key in inputs))
    else:
        keys = references(node)
        task = TaskFunction(node, keys, tuple(keys.index(key) for key in inputs))
    moving = [tangents[key] for key in inputs]
    return Task(name, value_and_tangent, task, len(moving), *moving, *(values.get(key, TaskRef(key)) for key in keys))


def value_and_tangent(task: Any, n_moving: int, *arguments: Any) -> tuple[Any, Any]:
    """Run a task on dependencies that move: a node of the forward-mode graph."""
    pair: tuple[Any, Any] = opened(task).push(arguments[n_moving:], arguments[:n_moving])
    return pair
