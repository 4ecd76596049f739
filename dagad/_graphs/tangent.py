"""The forward-mode graph: tangents travel with the values, along the same edges."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dagad._graphs.activity import Graph, Key, active, keep_alias, topological
from dagad._graphs.linearization import cotangent_part
from dagad._graphs.linearize import inputs_of
from dagad._graphs.sum_trees import add_up
from dagad._graphs.tasks import as_recordable
from dagad._tracebacks import public
from dagad._tracing.flat_functions import Engine
from dagad._types import AnyTask
from dagad._values.shipping import opened
from dagad_scheduler.private import Alias, GraphNode, Task, TaskRef
from dagad_scheduler.roles import Names


@dataclass(frozen=True, slots=True)
class Tangents:
    """A graph of values and tangents."""

    graph: dict[Key, GraphNode]
    values: dict[Key, Any] = field(default_factory=dict)  # key of the primal -> reference to its value here
    tangents: dict[Key, Any] = field(default_factory=dict)  # likewise to its tangent
    numbers: dict[int, Key] = field(default_factory=dict)  # number in keys of this graph -> key of the primal


def tangent(
    graph: Graph, keys: Collection[Key], moving: Mapping[Key, Any], names: Names, engine: Engine | None = None
) -> Tangents:
    """Return a graph of values and tangents.

    `moving` maps keys to references to their tangents, to which those are added that they have from one another; what
    does not depend on them keeps its key and has no tangent.
    `engine` moves the tasks that bring none; None is autograd's.
    """
    order = topological(graph, keys)
    made = Tangents({key: graph[key] for key in order}, tangents=dict(moving))
    for index, (key, inputs) in enumerate(active(order, moving).items()):
        node = made.graph.pop(key)
        if isinstance(node, Alias):
            at = made.values.get(node.target, TaskRef(node.target)).key
            made.values[key] = TaskRef(keep_alias(made.graph, node, at, names, index))
            _move(made, key, made.tangents[node.target], names, index)
            continue
        assert isinstance(node, Task)
        called = names.about(key)
        inputs = inputs_of(node, inputs)
        both, parts = called("value", index), [called("getitem", (part, index)) for part in ("value", "tangent")]
        made.graph[both] = _jvp_task(both, node, inputs, made, engine)
        for number, part in enumerate(parts):
            made.graph[part] = Task(part, cotangent_part, TaskRef(both), number)
        made.values[key], made.numbers[index] = TaskRef(parts[0]), key
        _move(made, key, TaskRef(parts[1]), names, index)
    return made


def _move(made: Tangents, key: Key, along: TaskRef, names: Names, index: int) -> None:
    """Note how a key moves with what it depends on, and in a direction of its own: as gradients, these add up."""
    own = made.tangents.get(key)
    if own is not None:
        both = names("sum", ("direction", index))
        made.graph[both] = Task(both, add_up, own, along)
        along = TaskRef(both)
    made.tangents[key] = along


def _jvp_task(name: Key, node: Task, inputs: Sequence[Key], made: Tangents, engine: Engine | None) -> Task:
    """Return the task that runs a task and moves it."""
    task, args = as_recordable(node, inputs, engine)
    moving = [made.tangents[key] for key in inputs]
    return Task(name, value_and_tangent, task, len(moving), *moving, *(_at(arg, made.values) for arg in args))


def _at(arg: object, values: Mapping[Key, Any]) -> Any:
    return values.get(arg.key, arg) if isinstance(arg, TaskRef) else arg


@public
def value_and_tangent(task: AnyTask, n_moving: int, *arguments: Any) -> tuple[Any, Any]:
    """Run a task on dependencies that move: a node of the forward-mode graph."""
    pair: tuple[Any, Any] = opened(task).push(arguments[n_moving:], arguments[:n_moving])
    return pair
