"""One reduction on its way: its graph is run for the value, then, when somebody asks, turned round for the gradient.

Everything is computed for the seed 1 where the total is one real number, whatever cotangent will arrive, and scaled
afterwards: so the bits do not depend on the policy, and a cotangent that comes later costs no further pullback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import autograd.numpy as anp
import numpy as np
from dagad_scheduler import Scheduler
from dask._task_spec import DataNode, GraphNode, Task, TaskRef

from dagad import _tree
from dagad._chunk_graph import ReductionGraph, Sliced, reduction_graph
from dagad._chunks import ChunkFunction, Place
from dagad._evaluation import new_names, run_graph
from dagad._graph.linearize import Linearized, linearize
from dagad._graph.policies import Policy, Preaccumulate
from dagad._graph.sums import UnitPart, add_up
from dagad._graph.transpose import Turn, preaccumulated, pulled, transpose
from dagad._linearization import Linearization, is_scalar, unit_part, unit_seed
from dagad._plan import Plan
from dagad._slots import Slots

Key = Any


@dataclass(slots=True)
class Reduction:
    """A reduction and what has been computed of it.

    ===========  =========================================================================================
    `total`      the sum of the partial sums; set once, by `value` or `linearized`
    `_kept`      linearizations that wait to be pulled, as the scheduler refers to them
    `_primal`    the graph, for as long as it may have to be turned round
    `_unit`      the gradients for the seed 1; set once
    ===========  =========================================================================================
    """

    function: ChunkFunction
    plan: Plan
    sliced: Sliced
    n_theta: int
    scheduler: Scheduler
    policy: Policy
    total: Any = None
    _kept: dict[Key, Any] | None = None
    _primal: ReductionGraph | None = None
    _linearized: Linearized | None = None
    _unit: list[Any] | None = None

    def value(self) -> Any:
        """Return the sum of the partial sums, tracing nothing."""
        if not len(self.plan):
            return 0.0
        primal = reduction_graph(self.function, self.plan, self.sliced, (), 0, new_names())
        results: dict[Key, Any] = {}
        run_graph(self.scheduler, primal.graph, [primal.total], results.__setitem__)
        return results[primal.total]

    def linearized(self, leaves: Sequence[Any]) -> Any:
        """Return the sum of the partial sums, ready to be pulled back."""
        if not len(self.plan):
            self.total, self._unit = 0.0, [_tree.zeros_like(leaf) for leaf in leaves]
            return self.total
        names = new_names()
        primal = reduction_graph(self.function, self.plan, self.sliced, leaves, self.n_theta, names)
        wrt = {primal.theta, *primal.rows} - {None}
        linearized = linearize(primal.graph, [primal.total], wrt, names, self.policy, apart=self.scheduler.remote)
        self._primal, self._linearized = primal, linearized
        value_key = linearized.values[primal.total]
        keep = [step.linearization for step in linearized.steps if step.linearization is not None]
        results: dict[Key, Any] = {}
        if isinstance(self.policy, Preaccumulate):
            reverse, sinks = self._reverse(names, None, preaccumulated)
            landing = _Landing(leaves, sinks, {value_key: results})
            kept = run_graph(self.scheduler, linearized.graph | reverse, [value_key, *sinks], landing, keep=keep)
        else:
            landing = None
            kept = run_graph(self.scheduler, linearized.graph, [value_key], results.__setitem__, keep=keep)
        total = results[value_key]
        self.total = total.value if type(total) is Linearization else total
        if landing is not None and is_scalar(self.total):
            self._unit, self._primal, self._linearized = landing.slots.seal(), None, None
        else:
            self._kept = kept
        return self.total

    def pulled(self, leaves: Sequence[Any], cotangent: Any) -> list[Any]:
        """Return the cotangents of `leaves`; may be called again, with another cotangent."""
        if self._unit is None and not is_scalar(self.total):
            return self._pulled(leaves, cotangent)
        if self._unit is None:
            self._unit = self._pulled(leaves, unit_seed(self.total))
            self._kept = self._primal = self._linearized = None
        return [_scaled(gradient, cotangent) for gradient in self._unit]

    def _pulled(self, leaves: Sequence[Any], cotangent: Any) -> list[Any]:
        names = new_names()
        seed = names("input", "seed")
        graph, sinks = self._reverse(names, TaskRef(seed), pulled)
        graph[seed] = DataNode(seed, cotangent)
        landing = _Landing(leaves, sinks, {})
        run_graph(self.scheduler, graph, list(sinks), landing, kept=self._kept)
        return landing.slots.seal()

    def _reverse(self, names: Any, seed: Any, turn: Turn) -> tuple[dict[Key, GraphNode], dict[Key, Any]]:
        """Return the reverse graph, and for each key that is to land the slots it belongs in."""
        primal, linearized = self._primal, self._linearized
        assert primal is not None and linearized is not None
        cotangents, graph = transpose(linearized.steps, {primal.total: seed}, names, turn)
        sinks: dict[Key, Any] = {}
        if primal.theta is not None:
            sinks[_task_of(cotangents[primal.theta], graph, names)] = [(leaf, None) for leaf in range(self.n_theta)]
        for key, chunk in primal.rows.items():
            sinks[_task_of(cotangents[key], graph, names)] = self.sliced.targets(chunk)
        return graph, sinks

    def pulled_traced(self, leaves: Sequence[Any], cotangent: Any) -> list[Any]:
        """Return the cotangents of `leaves` as a function that is itself being differentiated, one chunk at a time."""
        totals: list[Any] = [None] * len(leaves)
        names = new_names()
        for chunk in self.plan:
            targets = self.sliced.targets(chunk)
            owned = [leaves[leaf] if rows is None else leaves[leaf][rows] for leaf, rows in targets]
            args = (Place(chunk, names), self.sliced.rows(chunk), list(leaves[: self.n_theta]), owned)
            shared, rows_cotangents = _both(self.function.record(*args)[1](cotangent), self.n_theta)
            for leaf, part in enumerate(shared):
                totals[leaf] = add_up(totals[leaf], part)
            for (leaf, rows), part in zip(targets, rows_cotangents, strict=True):
                filled = _tree.zeros_like(_tree.plain(leaves[leaf])[rows or ...]) if part is None else part
                totals[leaf] = filled if rows is None else [*(totals[leaf] or ()), filled]
        joined = [anp.concatenate(total) if isinstance(total, list) else total for total in totals]
        plain = [_tree.plain(leaf) for leaf in leaves]
        return [_tree.zeros_like(leaf) if part is None else part for part, leaf in zip(joined, plain, strict=True)]


def _task_of(cotangent: Any, graph: dict[Key, GraphNode], names: Any) -> Key:
    """Return the key of a cotangent; one that a linearization holds gets a task that reads it."""
    if type(cotangent) is UnitPart:
        key = names("part", ("unit", cotangent.key[1], cotangent.place))
        graph[key] = Task(key, unit_part, TaskRef(cotangent.key), cotangent.place)
        return key
    return cotangent.key


def _both(groups: tuple[Any, ...], n_theta: int) -> tuple[Any, Any]:
    return (groups[0], groups[1]) if n_theta else ((), groups[0])


class _Landing:
    """Takes results as they land: cotangents into their slots, anything else where it is waited for."""

    def __init__(self, leaves: Sequence[Any], sinks: dict[Key, Any], others: dict[Key, dict[Key, Any]]) -> None:
        self.slots = Slots(leaves)
        self._sinks, self._others = sinks, others

    def __call__(self, key: Key, result: Any) -> None:
        targets = self._sinks.get(key)
        if targets is None:
            self._others[key][key] = result
        else:
            parts = [None] * len(targets) if result is None else result
            for (leaf, rows), part in zip(targets, parts, strict=True):
                self.slots.write(leaf, rows, part)


def _scaled(gradient: Any, cotangent: Any) -> Any:
    """Return a gradient for the seed 1 times the cotangent that arrived, in the gradient's own dtype."""
    factor = np.asarray(cotangent)[()]
    if factor == 1:
        return gradient
    return gradient * gradient.dtype.type(factor)

