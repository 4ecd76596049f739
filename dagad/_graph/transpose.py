"""The reverse graph: every edge turned round, every fan-out summed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dask._task_spec import GraphNode, Task, TaskRef

from dagad._graph.activity import Key
from dagad._graph.linearize import Names, Step
from dagad._graph.sums import sum_tree
from dagad._linearization import cotangent_part, pull_back, pull_back_unit

Pull = Callable[[Key, Key, Any], Task]


def pull_with_seed(key: Key, linearization: Key, cotangent: Any) -> Task:
    """Return the task that pulls an arriving cotangent back."""
    return Task(key, pull_back, TaskRef(linearization), cotangent)


def pull_unit_seed(key: Key, linearization: Key, cotangent: Any) -> Task:
    """Return the task that pulls the seed 1 back, whatever cotangent arrives."""
    del cotangent
    return Task(key, pull_back_unit, TaskRef(linearization))


def transpose(
    steps: Sequence[Step], seeds: Mapping[Key, Any], names: Names, pull: Pull = pull_with_seed
) -> tuple[dict[Key, Any], dict[Key, GraphNode]]:
    """Return where the cotangent of each key is, and the tasks that compute them.

    `steps` come in the order of the primal; `seeds` maps outputs to references to their cotangents.
    """
    arriving: dict[Key, list[Any]] = defaultdict(list, {key: [seed] for key, seed in seeds.items()})
    cotangents: dict[Key, Any] = {}
    graph: dict[Key, GraphNode] = {}

    def collect(key: Key) -> Any:
        if key not in cotangents:
            terms = arriving.pop(key)[::-1]  # back in the order of the primal
            place = len(cotangents)
            cotangents[key], sums = sum_tree(terms, lambda *at: names("sum", ("cotangent", place, *at)))
            graph.update(sums)
        return cotangents[key]

    for step in reversed(steps):
        if step.key in arriving:
            cotangent = collect(step.key)
            for source, part in zip(step.inputs, _turn(step, cotangent, names, graph, pull), strict=True):
                arriving[source].append(part)
    for key in list(arriving):
        collect(key)
    return cotangents, graph


def _turn(step: Step, cotangent: Any, names: Names, graph: dict[Key, GraphNode], pull: Pull) -> list[Any]:
    """Return references to the cotangents of one task's inputs."""
    if step.linearization is None:  # of a sum each term has the sum's own cotangent
        return [cotangent] * len(step.inputs)
    index = step.linearization[1]
    key = names("pullback", index)
    graph[key] = pull(key, step.linearization, cotangent)
    if len(step.inputs) == 1:
        return [TaskRef(key)]
    parts = [names("part", ("cotangent", index, place)) for place in range(len(step.inputs))]
    for place, part in enumerate(parts):
        graph[part] = Task(part, cotangent_part, TaskRef(key), place)
    return [TaskRef(part) for part in parts]
