"""Value and gradient of a chunk as one result: for chunks in other processes, where each task and message costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dagad._graphs.linearization import value_of_task
from dagad._graphs.sums import add_up
from dagad._operations.chunk_graph import ReductionGraph
from dagad._pytrees.shipping import opened
from dagad_scheduler.private import GraphNode, Task, TaskRef

Key = Any


class Outcome(NamedTuple):
    """What one or several chunks gave: the sum of their values, and for the seed 1 that of theta's cotangents.

    `theta` and `rows` are None where the value is not one real number; `rows` is None in sums.
    """

    value: Any
    theta: Any
    rows: Any
    seconds: float


def value_and_unit(policy: Any, task: Any, *args: Any) -> Outcome:
    """Run a chunk, and pull the seed 1: a node of a graph."""
    began = time.perf_counter()
    value, gradient, _, _ = opened(task).preaccumulate(policy.counters, *args)
    theta, has_rows = args[2], len(args) > 3
    groups = list(gradient) if gradient is not None else [None] * (bool(theta) + has_rows)
    rows = groups[-1] if has_rows else None
    return Outcome(value, groups[0] if theta else None, rows, time.perf_counter() - began)


def add_up_outcomes(*outcomes: Outcome) -> Outcome:
    """Add values and cotangents in their fixed order."""
    values, thetas, _, seconds = zip(*outcomes, strict=True)
    return Outcome(add_up(*values), add_up(*thetas), None, sum(seconds))


def rows_part(outcome: Outcome) -> Any:
    """Return the cotangents of a chunk's own rows alone."""
    return outcome.rows


@dataclass(frozen=True, slots=True)
class OutcomeGraph:
    """The graph of value and gradient together; what lands is the total and each chunk's own cotangents."""

    graph: dict[Key, GraphNode]
    total: Key
    sinks: dict[Key, list[tuple[int, slice | None]]]


def outcome_graph(primal: ReductionGraph, policy: Any, names: Any) -> OutcomeGraph:
    """Turn the graph of a value into that of value and gradient."""
    graph: dict[Key, GraphNode] = {}
    sinks: dict[Key, Any] = {}
    for key, node in primal.graph.items():
        if not isinstance(node, Task):
            graph[key] = node
        elif node.func is value_of_task:
            graph[key] = Task(key, value_and_unit, policy, *node.args)
            own = [ref.key for ref in _references(node.args[4:])]
            for rows in own:
                part = names("part", ("rows", key[1]))
                graph[part] = Task(part, rows_part, TaskRef(key))
                sinks[part] = primal.rows[rows]
        elif node.func is add_up:
            graph[key] = Task(key, add_up_outcomes, *node.args)
        else:
            graph[key] = node
    return OutcomeGraph(graph, primal.total, sinks)


def _references(args: Sequence[Any]) -> list[TaskRef]:
    return [arg for arg in args if isinstance(arg, TaskRef)]
