"""Gradients for rows that live in Shards: they stay where the rows are, as Shards of the same cut."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dagad._errors import NotDifferentiableError
from dagad._executors.evaluation import new_names, run_graph
from dagad._executors.outcomes import Outcome, add_up_outcomes
from dagad._graphs.linearization import is_scalar
from dagad._graphs.policies import Preaccumulate
from dagad._graphs.sums import sum_tree
from dagad._operations.chunks import Place
from dagad._pytrees import pytree
from dagad._pytrees.shipping import opened
from dagad._sources.columns import Sliced
from dagad._sources.rows import Rows
from dagad._sources.slots import Slots
from dagad_scheduler.private import DataNode, GraphNode, Task, TaskRef

Key = Any


@dataclass(frozen=True, slots=True)
class Wrt:
    """Which columns of the sliced argument are Shards being differentiated in, and the leaves that these are.

    `columns` is None where one Shards is all of the sliced argument.
    """

    columns: tuple[int, ...] | None
    leaves: tuple[int, ...]

    @classmethod
    def of(cls, sliced: Sliced, n_theta: int, n_leaves: int) -> Wrt:
        """Find them; nothing else of the rows can be differentiated at the same time."""
        found = {
            number: column.placed_leaf for number, column in enumerate(sliced.columns) if column.placed_leaf is not None
        }
        if len(found) != n_leaves - n_theta:
            raise NotDifferentiableError(
                "Rows in Shards and rows in arrays can't be differentiated in at the same time. Place the arrays with "
                "`dagad.shard` too, with the same grainsize."
            )
        return cls(None if sliced.treedef.is_leaf() else tuple(found), tuple(found.values()))


def value_and_gradient(reduction: Any, leaves: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return a reduction's total, and its gradients for the seed 1: Shards for the leaves that are Shards."""
    sliced, n_theta, names = reduction.sliced, reduction.n_theta, new_names()
    wrt = Wrt.of(sliced, n_theta, len(leaves))
    policy = reduction.policy if hasattr(reduction.policy, "counters") else Preaccumulate()
    function, theta = names("input", "function"), names("input", "theta")
    graph: dict[Key, GraphNode] = {
        function: DataNode(function, reduction.function),
        theta: DataNode(theta, list(leaves[:n_theta])),
    }
    values = [names("value", chunk.number) for chunk in reduction.plan]
    for key, chunk in zip(values, reduction.plan, strict=True):
        args = Place(chunk, names), sliced.rows(chunk), TaskRef(theta), wrt.columns
        graph[key] = Task(key, value_and_unit_of_rows, policy, TaskRef(function), *args)
    total, sums = sum_tree([TaskRef(key) for key in values], lambda *at: names("sum", at))
    graph.update({key: Task(key, add_up_outcomes, *node.args) for key, node in sums.items()})
    kept = {leaf: [names("shard", (leaf, chunk.number)) for chunk in reduction.plan] for leaf in wrt.leaves}
    for place, keys in enumerate(kept.values()):
        graph.update(
            {key: Task(key, rows_of_outcome, TaskRef(value), place) for key, value in zip(keys, values, strict=True)}
        )
    totals: list[Outcome] = []
    keep = [key for keys in kept.values() for key in keys]
    run = run_graph(
        reduction.scheduler,
        graph,
        [total.key],
        lambda _, outcome: totals.append(outcome),
        keep=keep,
        kept=sliced.kept(),
    )
    outcome = totals[0]
    if not is_scalar(outcome.value):
        raise NotDifferentiableError(
            f"Rows in Shards can be differentiated in where each chunk gives one real number; this one gave a "
            f"{type(outcome.value).__name__}. Sum it up inside the chunk function, or differentiate in "
            "`shards.gather()`."
        )
    slots = Slots(leaves[:n_theta])
    slots.write_all([(leaf, None) for leaf in range(n_theta)], outcome.theta)
    placed = {leaf: sliced.shards[0].like(keys, run.kept, reduction.scheduler) for leaf, keys in kept.items()}
    return outcome.value, [*slots.seal(), *(placed[leaf] for leaf in range(n_theta, len(leaves)))]


def value_and_unit_of_rows(
    policy: Any, function: Any, place: Place, rows: Any, theta: Sequence[Any], columns: Sequence[int] | None
) -> Outcome:
    """Run a chunk, and pull the seed 1 back to theta and to the rows in some columns: a node of a graph."""
    began = time.perf_counter()
    open_rows: Rows = opened(rows)
    with_gaps, partitions = open_rows.with_gaps(columns)
    own = [leaf for p in partitions for leaf in p.taken]
    value, gradient, _, _ = opened(function).preaccumulate(policy.counters, place, with_gaps, theta, own)
    if gradient is None:
        return Outcome(value, None, None, time.perf_counter() - began)
    cotangents = iter(
        pytree.zeros_like(leaf) if part is None else part for part, leaf in zip(gradient[-1], own, strict=True)
    )
    parts = [Rows.of(p.arrange(cotangents)) for p in partitions]
    return Outcome(value, gradient[0] if len(theta) else None, parts, time.perf_counter() - began)


def rows_of_outcome(outcome: Outcome, place: int) -> Any:
    """Return the cotangents of one column's rows."""
    return None if outcome.rows is None else outcome.rows[place]
