"""Tasks -> linearizing tasks: the primal graph, with a pullback behind each task that carries a derivative."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from dagad._graphs.activity import Graph, Key, Order, active, keep_alias, topological
from dagad._graphs.linearization import value_and_pullback, value_of_task, value_part
from dagad._graphs.sum_trees import Span, add_up
from dagad._graphs.tasks import TaskFunction as TaskFunction, as_recordable
from dagad._tracing.flat_functions import Engine
from dagad._types import AnyPolicy, AnyTask, Tree
from dagad_scheduler.private import Alias, GraphNode, Task, TaskRef
from dagad_scheduler.roles import Names


@dataclass(frozen=True, slots=True)
class Step:
    """One task of the primal that carries a derivative, as `transpose` needs to see it."""

    key: Key  # what the primal calls it
    inputs: tuple[Key, ...]  # the inputs that carry a derivative, as the primal calls them
    linearization: Key | None  # where its linearization is; None: it is a sum or an alias, its own transpose
    counts: tuple[int, ...] | None = None  # how many terms of the cotangent of each input it gives; None: one of each


@dataclass(frozen=True, slots=True)
class Linearized:
    """A graph with pullbacks."""

    graph: dict[Key, GraphNode]
    steps: list[Step]
    values: dict[Key, Key] = field(default_factory=dict)  # key of the primal -> key that has its plain value here
    numbers: dict[Any, Key] = field(default_factory=dict)  # number in keys of this graph -> key of the primal

    def recorded(self) -> list[Key]:
        """Return the keys of all linearizations."""
        return [step.linearization for step in self.steps if step.linearization is not None]


def linearize(
    graph: Graph,
    keys: Collection[Key],
    wrt: Collection[Key],
    names: Names,
    policy: AnyPolicy,
    *,
    engine: Engine | None = None,
    order: Order | None = None,
) -> Linearized:
    """Rewrite what `keys` need so that each task that depends on `wrt` also leaves a linearization.

    Every value has a key apart from its linearization, so that only values travel. `engine` differentiates the tasks
    that are not chunks, which bring their own; None is autograd's. `order` is that of what `keys` need, where it is
    known already.
    """
    order = topological(graph, keys) if order is None else order
    result = Linearized({key: graph[key] for key in order}, [])
    own = names("value", 0)[0], names("sum", 0)[0]
    for position, (key, inputs) in enumerate(active(order, wrt).items()):
        node, called = result.graph.pop(key), names.about(key)
        inputs = inputs_of(node, inputs)
        # A graph that was built under these very names keeps its numbers: they are those of the chunks.
        index = key[1] if isinstance(key, tuple) and key[0] in own else position
        if isinstance(node, Alias) or is_sum(node):
            _keep_linear(result, key, node, inputs, names, index)
        elif isinstance(node, Task):
            _record(result, key, inputs, called("value", index), as_recordable(node, inputs, engine), policy)
            result.numbers[index] = key
            part = called("getitem", index)
            result.graph[part] = Task(part, value_part, TaskRef(result.values[key]))
            result.values[key] = part
    tell_spans(result)
    return result


def is_sum(node: GraphNode) -> bool:
    """Return whether a node is a sum of ours, its own derivative."""
    return isinstance(node, Task) and node.func is add_up


def inputs_of(node: GraphNode, carrying: Sequence[Key]) -> tuple[Key, ...]:
    """Return what a node reads of what carries derivatives, in the order of its arguments; some it may read twice.

    A term may stand twice in a sum. A task that has read a key and its alias reads the same key twice, once its
    linearization is forgotten.
    """
    if not isinstance(node, Task) or node.func not in (add_up, value_of_task):
        return tuple(carrying)
    known = frozenset(carrying)
    return tuple(arg.key for arg in node.args if isinstance(arg, TaskRef) and arg.key in known)


def _keep_linear(result: Linearized, key: Key, node: GraphNode, inputs: Tree, names: Names, index: object) -> None:
    here = result.values
    if isinstance(node, Alias):
        here[key] = keep_alias(result.graph, node, here.get(node.target, node.target), names, index)
    else:
        assert isinstance(node, Task)
        name = names.about(key)("sum", index)
        refs = [TaskRef(here.get(arg.key, arg.key)) for arg in node.args]
        result.graph[name] = Task(name, add_up, *refs)
        result.values[key] = name
    result.steps.append(Step(key, inputs, None))


def _record(
    result: Linearized, key: Key, inputs: Tree, name: Key, recordable: tuple[Any, tuple[Any, ...]], policy: AnyPolicy
) -> None:
    (task, args), values = recordable, result.values
    plain = [TaskRef(values[arg.key]) if isinstance(arg, TaskRef) and arg.key in values else arg for arg in args]
    result.graph[name] = Task(name, value_and_pullback, policy, task, *plain)
    result.steps.append(Step(key, inputs, name, counts_of(task)))
    values[key] = name


def counts_of(task: AnyTask) -> tuple[int, ...] | None:
    """Return how many terms of the cotangent of each input a task gives that is several; None: one of each."""
    if isinstance(task, TaskRef):  # what all chunks share, which is a node
        return None
    found: tuple[int, ...] | None = task.counts()
    return found


def tell_spans(result: Linearized) -> None:
    """Tell tasks that are several which terms of the cotangents of their inputs are theirs."""
    totals = Counter[Key]()
    fused = []
    for step in result.steps:
        if step.counts is None:
            totals.update(step.inputs)
        else:
            starts = list[int]()
            for key, count in zip(step.inputs[::-1], step.counts[::-1], strict=True):  # as `transpose` takes them
                starts.append(totals[key])
                totals[key] += count
            fused.append((step, starts[::-1]))
    for step, starts in fused:
        assert step.counts is not None
        counted = zip(step.inputs, starts, step.counts, strict=True)
        spans = [None if count == 1 else Span(start, start + count, totals[key]) for key, start, count in counted]
        if any(spans):
            node: Any = result.graph[step.linearization]
            policy, task, *args = node.args
            result.graph[step.linearization] = Task(node.key, node.func, policy, task.spanning(spans), *args)
