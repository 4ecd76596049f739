"""The reverse graph: every edge turned round, every fan-out summed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dagad._graphs.activity import Key
from dagad._graphs.linearization import cotangent_part, pull_back, pull_back_many
from dagad._graphs.linearize import Names, Step
from dagad._graphs.summation import PlainSum, Summation
from dagad._graphs.sums import UnitPart
from dagad_scheduler.private import GraphNode, Task, TaskRef

Turn = Callable[[Step, Any, Names, dict[Key, GraphNode]], list[Any]]


def transpose(
    steps: Sequence[Step],
    seeds: Mapping[Key, Any],
    names: Names,
    turn: Turn | None = None,
    summation: Summation | None = None,
) -> tuple[dict[Key, Any], dict[Key, GraphNode]]:
    """Return where the cotangent of each key is, and the tasks that compute them.

    `steps` come in the order of the primal; `seeds` maps outputs to references to their cotangents. `turn` says how a
    cotangent passes one task; by default its linearization is pulled. `summation` says how fan-outs are summed.
    """
    arriving: dict[Key, list[Any]] = defaultdict(list, {key: [seed] for key, seed in seeds.items()})
    cotangents: dict[Key, Any] = {}
    graph: dict[Key, GraphNode] = {}
    through, add_up = turn or pulled, (summation or PlainSum()).tree

    def collect(key: Key) -> Any:
        if key not in cotangents:
            terms = arriving.pop(key)[::-1]  # back in the order of the primal
            place = len(cotangents)
            cotangents[key], sums = add_up(terms, lambda *at: names("sum", ("cotangent", place, *at)))
            graph.update(sums)
        return cotangents[key]

    for step in reversed(steps):
        if step.key in arriving:
            cotangent = collect(step.key)
            for source, part in zip(step.inputs, through(step, cotangent, names, graph), strict=True):
                arriving[source].append(part)
    for key in list(arriving):
        collect(key)
    return cotangents, graph


def pulled(step: Step, cotangent: Any, names: Names, graph: dict[Key, GraphNode]) -> list[Any]:
    """Return references to the cotangents of one task's inputs, and add the tasks that compute them to `graph`."""
    return _pulled_by(pull_back, step, cotangent, names, graph)


def pulled_together(step: Step, cotangents: Any, names: Names, graph: dict[Key, GraphNode]) -> list[Any]:
    """Return the same as `pulled` for a list of cotangents: those of each input one after the other."""
    return _pulled_by(pull_back_many, step, cotangents, names, graph)


def _pulled_by(pull: Any, step: Step, cotangent: Any, names: Names, graph: dict[Key, GraphNode]) -> list[Any]:
    if step.linearization is None:  # of a sum each term has the sum's own cotangent
        return [cotangent] * len(step.inputs)
    index = step.linearization[1]
    key = names("pullback", index)
    graph[key] = Task(key, pull, TaskRef(step.linearization), cotangent)
    if len(step.inputs) == 1:
        return [TaskRef(key)]
    parts = [names("part", ("cotangent", index, place)) for place in range(len(step.inputs))]
    for place, part in enumerate(parts):
        graph[part] = Task(part, cotangent_part, TaskRef(key), place)
    return [TaskRef(part) for part in parts]


def preaccumulated(step: Step, cotangent: Any, names: Names, graph: dict[Key, GraphNode]) -> list[Any]:
    """Return the cotangents for the seed 1 that linearizations hold already, to be read by sums; no task is needed."""
    del names, graph
    if step.linearization is None:
        return [cotangent] * len(step.inputs)
    return [UnitPart(step.linearization, place) for place in range(len(step.inputs))]
