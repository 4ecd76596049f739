"""Plan + flat chunk function -> the primal graph of a reduction: one task a chunk, and a tree of sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dagad._graphs.linearization import value_of_task
from dagad._graphs.sums import sum_tree
from dagad._operations.chunks import ChunkFunction, Place
from dagad._operations.groups import GroupFunction
from dagad._sources.columns import Sliced, owned
from dagad._sources.plan import AnyPlan
from dagad_scheduler.private import DataNode, GraphNode, List, Task, TaskRef

Key = Any
Names = Callable[[str, Any], Key]


@dataclass(frozen=True, slots=True)
class ReductionGraph:
    """The primal graph of a reduction, and the keys that matter in it."""

    graph: dict[Key, GraphNode]
    total: Key
    theta: Key | None
    rows: dict[Key, list[tuple[int, slice | None]]]  # differentiated rows -> which leaves they are rows of


def reduction_graph(
    function: ChunkFunction,
    plan: AnyPlan,
    sliced: Sliced,
    leaves: Sequence[Any],
    n_theta: int,
    names: Names,
    group: int = 1,
) -> ReductionGraph:
    """Build the graph of ``sum(function(chunk) for chunk in plan)`` at `leaves`, of which `n_theta` are shared.

    With `group`, a power of the sums' fan-in, that many chunks make one task.
    """
    function_key, theta_key = names("input", "function"), names("input", "theta")
    task = function if group == 1 else GroupFunction(function)
    graph: dict[Key, GraphNode] = {function_key: DataNode(function_key, task)}
    theta: Any = []
    if n_theta:
        graph[theta_key], theta = DataNode(theta_key, list(leaves[:n_theta])), TaskRef(theta_key)
    has_rows = len(leaves) > n_theta
    function_ref, terms, active_rows = TaskRef(function_key), [], {}
    chunks = list(plan)
    for index, start in enumerate(range(0, len(chunks), group)):
        some = chunks[start : start + group]
        key = names("value", index)
        args = [[Place(chunk, names) for chunk in some], [sliced.rows(chunk) for chunk in some], theta]
        if has_rows:
            rows_key = names("input", ("rows", index))
            targets = [sliced.targets(chunk) for chunk in some]
            own = [[owned(leaves[leaf], rows) for leaf, rows in part] for part in targets]
            graph[rows_key] = DataNode(rows_key, own if group > 1 else own[0])
            active_rows[rows_key] = [target for part in targets for target in part]
            args.append(TaskRef(rows_key))
        if group == 1:
            args[:2] = args[0][0], args[1][0]
        elif sliced.shards:
            args[1] = List(*args[1])
        graph[key] = Task(key, value_of_task, function_ref, *args)
        terms.append(TaskRef(key))
    total, sums = sum_tree(terms, lambda *at: names("sum", at))
    graph.update(sums)
    return ReductionGraph(graph, total.key, theta_key if n_theta else None, active_rows)
