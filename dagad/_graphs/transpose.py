"""The reverse graph: every edge turned round, every fan-out summed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

from dagad._graphs.activity import Key
from dagad._graphs.linearization import cotangent_part, pull_back
from dagad._graphs.linearize import Step
from dagad._graphs.sum_trees import span_tree, sum_tree
from dagad._types import Cotangent, Function
from dagad_scheduler.private import GraphNode, Task, TaskRef
from dagad_scheduler.roles import Names

# From a key, references to the terms of its cotangent and names for nodes, to a reference to their sum and its tasks.
AddUp = Callable[[Key, Sequence[Any], Callable[..., Key]], tuple[Any, dict[Key, Task]]]


def transpose(
    steps: Sequence[Step],
    seeds: Mapping[Key, Any],
    names: Names,
    pull: Callable[..., Any] = pull_back,
    add_up: AddUp | None = None,
) -> tuple[dict[Key, Any], dict[Key, GraphNode]]:
    """Return where the cotangent of each key is, and the tasks that compute them.

    `steps` come in the order of the primal; `seeds` maps outputs to references to their cotangents. `pull` is what a
    pullback's task calls with a linearization and a cotangent; `add_up` sums the fan-out of a key.
    """
    arriving: dict[Key, list[Any]] = defaultdict(list, {key: [seed] for key, seed in seeds.items()})
    several = {key for step in steps if step.counts for key in step.inputs}  # some of their terms count for more
    counts: dict[Key, list[int]] = defaultdict(list, {key: [1] for key in seeds if key in several})
    cotangents: dict[Key, Any] = {}
    graph: dict[Key, GraphNode] = {}

    def collect(key: Key) -> Any:
        if key not in cotangents:
            terms = arriving.pop(key)[::-1]  # back in the order of the primal
            position = len(cotangents)
            add = add_up or _summed(counts.get(key, [])[::-1])
            cotangents[key], sums = add(key, terms, lambda *at: names("sum", ("cotangent", position, *at)))
            graph.update(sums)
        return cotangents[key]

    for step in reversed(steps):
        if step.key in arriving:
            cotangent = collect(step.key)
            for source, part in zip(step.inputs, _pulled(pull, step, cotangent, names, graph), strict=True):
                arriving[source].append(part)
            for source, count in zip(step.inputs, step.counts or repeat(1), strict=False) if several else ():
                if source in several:
                    counts[source].append(count)
    for key in list(arriving):
        collect(key)
    return cotangents, graph


def _summed(counts: Sequence[int]) -> AddUp:
    """Return what sums terms that count for so many; for none, each for one."""
    return lambda key, terms, key_of: span_tree(terms, counts, key_of) if counts else sum_tree(terms, key_of)


def pullback_key(linearization: Key, names: Names) -> Key:
    """Return the key of the task that pulls a linearization."""
    return names.about(linearization)("pullback", linearization[1])


def _pulled(pull: Function, step: Step, cotangent: Cotangent, names: Names, graph: dict[Key, GraphNode]) -> list[Any]:
    """Return references to the cotangents of one task's inputs, and add the tasks that compute them to `graph`."""
    if step.linearization is None:  # of a sum each term has the sum's own cotangent
        return [cotangent] * len(step.inputs)
    key, index, names = pullback_key(step.linearization, names), step.linearization[1], names.about(step.linearization)
    graph[key] = Task(key, pull, TaskRef(step.linearization), cotangent)
    if len(step.inputs) == 1:
        return [TaskRef(key)]
    parts = [names("getitem", ("cotangent", index, position)) for position in range(len(step.inputs))]
    for position, part in enumerate(parts):
        graph[part] = Task(part, cotangent_part, TaskRef(key), position)
    return [TaskRef(part) for part in parts]


def is_part(node: GraphNode | None) -> bool:
    """Return whether a node takes one of the cotangents of a task's inputs out of all."""
    return isinstance(node, Task) and node.func is cotangent_part
