"""One reduction on its way: its graph is run for the value, then, when somebody asks, turned round for the gradient.

Everything is computed for the seed 1 where the total is one real number, whatever cotangent will arrive, and scaled
afterwards: so the bits do not depend on the policy, and a cotangent that comes later costs no further pullback.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dagad._executors.apart import Apart
from dagad._executors.blocks import Sweep
from dagad._executors.context import current_mode
from dagad._executors.evaluation import (
    LocalRun,
    Run,
    Scheduler,
    calm_here,
    inside_task,
    is_watched,
    new_names,
    run_graph,
)
from dagad._executors.pace import Pace, Road, choose_road, history_of, remember_pace
from dagad._executors.shard_gradients import Wrt, value_and_gradient
from dagad._graphs.linearization import Linearization, Pullback, is_scalar, unit_part, unit_seed
from dagad._graphs.linearize import Linearized, linearize
from dagad._graphs.policies import Policy, Preaccumulate
from dagad._graphs.summation import PlainSum
from dagad._graphs.sums import UnitPart
from dagad._graphs.transpose import Turn, preaccumulated, pulled, transpose
from dagad._operations.chunk_graph import ReductionGraph, reduction_graph
from dagad._operations.chunks import ChunkFunction, Place
from dagad._operations.groups import GroupFunction
from dagad._pytrees import pytree
from dagad._sources.columns import Sliced, owned
from dagad._sources.plan import AnyPlan
from dagad._sources.slots import Landing, Slots
from dagad_scheduler.private import DataNode, GraphNode, Task, TaskRef

Key = Any


class Held(NamedTuple):
    """What it takes to turn a reduction round, at one moment: it is let go of when the gradients are there."""

    primal: ReductionGraph | None
    linearized: Linearized | None
    kept: dict[Key, Any]


@dataclass(slots=True)
class Reduction:
    """A reduction and what has been computed of it.

    ===========  =========================================================================================
    `total`      the sum of the partial sums; set once, by `value` or `linearized`
    `_kept`      linearizations that wait to be pulled, as the scheduler refers to them
    `_primal`    the graph, for as long as it may have to be turned round
    `_unit`      the gradients for the seed 1; set once
    `_away`      the ways to evaluate it in other processes; made when needed
    `_whole`     the pullback of all chunks together, where they ran without a graph and have no unit gradient
    ===========  =========================================================================================
    """

    function: ChunkFunction
    plan: AnyPlan
    sliced: Sliced
    n_theta: int
    scheduler: Scheduler
    policy: Policy
    owner: Any  # what stays the same when the function is defined again
    total: Any = None
    _kept: dict[Key, Any] | None = None
    _primal: ReductionGraph | None = None
    _linearized: Linearized | None = None
    _unit: list[Any] | None = None
    _whole: Pullback | None = None
    _away: Apart | None = None

    def value(self, theta: Sequence[Any] = ()) -> Any:
        """Return the sum of the partial sums at the shared leaves, tracing nothing."""
        if not len(self.plan):
            return 0.0
        with calm_here(self.scheduler):
            road = self._road()
            if self.scheduler.remote:
                self.total, road = self._apart.value(theta), Road(group=self._apart.group)
                if self.total is not None:
                    return self.total
            primal = reduction_graph(
                self.function, self.plan, self.sliced, theta, self.n_theta, new_names(), road.group
            )
            results: dict[Key, Any] = {}
            self._run(road, primal.graph, [primal.total], results, results.__setitem__)
        return self.total

    def linearized(self, leaves: Sequence[Any]) -> Any:
        """Return the sum of the partial sums, ready to be pulled back."""
        if not len(self.plan):
            self.total, self._unit = 0.0, [pytree.zeros_like(leaf) for leaf in leaves]
            return self.total
        if any(map(pytree.is_placed, leaves[self.n_theta :])):
            return self._linearized_in_shards(leaves)
        with calm_here(self.scheduler):
            together = isinstance(self.policy, Preaccumulate)
            road, names = self._road() if together else Road(), new_names()
            if road.alone:
                self._directly(leaves, names)
                return self.total
            if self.scheduler.remote and self._elsewhere(leaves, together):
                return self.total
            primal = reduction_graph(self.function, self.plan, self.sliced, leaves, self.n_theta, names, road.group)
            wrt = {primal.theta, *primal.rows} - {None}
            lin = linearize(primal.graph, [primal.total], wrt, names, self.policy, apart=self.scheduler.remote)
            self._primal, self._linearized = primal, lin
            keeps = self.scheduler.remote or not together
            (self._value_first if keeps else self._value_and_gradient)(leaves, road, names)
        return self.total

    def _linearized_in_shards(self, leaves: Sequence[Any]) -> Any:
        """Return the total; with it, or later, come the gradients of rows that stay where they are."""
        if isinstance(self.policy, Preaccumulate):
            self.total, self._unit = value_and_gradient(self, leaves)
            return self.total
        Wrt.of(self.sliced, self.n_theta, len(leaves))
        return self.value(leaves[: self.n_theta])

    @property
    def _apart(self) -> Apart:
        if self._away is None:
            self._away = Apart(
                self.function, self.plan, self.sliced, self.n_theta, self.scheduler, self.policy, self.owner
            )
        return self._away

    def _elsewhere(self, leaves: Sequence[Any], together: bool) -> bool:
        """Evaluate in other processes without linearizations that stay there; False if that can't be done."""
        if not together:
            self.total = self._apart.value_first(leaves)
            return self.total is not None
        if not self._apart.knows_better:
            self.total, self._unit = self._apart.value_and_gradient(leaves)
        return self._unit is not None

    def _directly(self, leaves: Sequence[Any], names: Any) -> None:
        """Run chunk after chunk right here, without a graph."""
        began, began_cpu, slots = time.perf_counter(), time.thread_time(), Slots(leaves)
        chunks = list(self.plan)
        targets = [self.sliced.targets(chunk) for chunk in chunks] if len(leaves) > self.n_theta else None
        own = targets and [[owned(leaves[leaf], rows) for leaf, rows in mine] for mine in targets]
        with inside_task:
            total, parts, pullback, _ = GroupFunction(self.function).preaccumulate(
                self.policy.counters,
                [Place(chunk, names) for chunk in chunks],
                [self.sliced.rows(chunk) for chunk in chunks],
                list(leaves[: self.n_theta]),
                own,
            )
        self.total = total
        if parts is None:
            self._whole = pullback
        else:
            self._unit = self._gathered(slots, parts)
        self._remember(time.thread_time() - began_cpu, time.perf_counter() - began, 1)

    def _gathered(self, slots: Slots, parts: Sequence[Any]) -> list[Any]:
        """Return the gradients, from the cotangents of theta and of all rows."""
        for leaf, part in enumerate(parts[0] if self.n_theta else ()):
            slots.write(leaf, None, part)
        if len(parts) > bool(self.n_theta):
            targets = [target for chunk in self.plan for target in self.sliced.targets(chunk)]
            for (leaf, rows), part in zip(targets, parts[-1], strict=True):
                slots.write(leaf, rows, part)
        return slots.seal()

    def _remember(self, cpu: float, wall: float, workers: int) -> None:
        remember_pace(self.owner, self.plan, Pace(cpu, wall, workers))

    def _value_first(self, leaves: Sequence[Any], road: Road, names: Any) -> None:
        """Run for the value, and keep the linearizations."""
        del leaves, names
        key = self._total_key()
        results: dict[Key, Any] = {}
        run = self._run(road, self._lin.graph, [key], results, results.__setitem__, keep=self._lin.recorded())
        self._kept = run.kept

    def _value_and_gradient(self, leaves: Sequence[Any], road: Road, names: Any) -> None:
        """Run for both at once; where the total turns out not to be one real number, as `_value_first`."""
        key = self._total_key()
        results: dict[Key, Any] = {}
        reverse, sinks = self._reverse(names, None, preaccumulated, self._held())
        landing = Landing(leaves, sinks, {key: results})
        graph = self._lin.graph | reverse
        run = self._run(road, graph, [key, *sinks], results, landing, keep=self._lin.recorded())
        if is_scalar(self.total):
            self._unit, self._primal, self._linearized = landing.slots.seal(), None, None
        else:
            self._kept = run.kept

    @property
    def _lin(self) -> Linearized:
        assert self._linearized is not None
        return self._linearized

    def _total_key(self) -> Key:
        assert self._primal is not None
        return self._lin.values[self._primal.total]

    def _road(self) -> Road:
        workers = self.scheduler.workers
        if workers is None or is_watched() or current_mode().evaluation is not None:  # not here, or watched by chunk
            return Road()
        return choose_road(self.plan, history_of(self.owner, self.plan), workers)

    def _run(self, road: Road, graph: Any, keys: Any, results: dict[Key, Any], on_result: Any, keep: Any = ()) -> Run:
        """Run a graph whose first key is the total, and note how it went."""
        began = time.perf_counter()
        scheduler = self.scheduler.alone() if road.alone else self.scheduler
        run = run_graph(scheduler, graph, keys, on_result, keep=keep, kept=self.sliced.kept())
        total = results[keys[0]]
        self.total = total.value if type(total) is Linearization else total
        if isinstance(run, LocalRun):
            self._remember(run.cpu_seconds, time.perf_counter() - began, run.n_workers)
        else:  # about: the next one may take the hot road, and measures itself
            wall = time.perf_counter() - began
            self._apart.ran_by_graph(wall, wall, is_scalar(self.total))
        return run

    def pulled(self, leaves: Sequence[Any], cotangent: Any) -> list[Any]:
        """Return the cotangents of `leaves`; may be called again, with another cotangent."""
        if self._whole is not None:
            self.policy.counters.used_up()
            return self._gathered(Slots(leaves), self._whole(cotangent))
        held = self._held()  # before looking whether it is needed: another thread may be about to let go of it
        if self._unit is None and any(map(pytree.is_placed, leaves[self.n_theta :])):
            self._unit = value_and_gradient(self, leaves)[1]
        if self._unit is None and not is_scalar(self.total):
            return self._pulled(leaves, cotangent, held)
        if self._unit is None and self._away is not None and self._away.is_half_way:
            self._unit = self._away.gradient_after(leaves)
        if self._unit is None:
            self._unit = self._pulled(leaves, unit_seed(self.total), held)
            kept, self._kept = self._kept, None
            if kept is not None:
                kept.clear()  # the run, which somebody may watch, has them too
            self._primal = self._linearized = None
        return [scaled(gradient, cotangent) for gradient in self._unit]

    def _held(self) -> Held:
        return Held(self._primal, self._linearized, dict(self._kept or {}))

    def _pulled(self, leaves: Sequence[Any], cotangent: Any, held: Held) -> list[Any]:
        names = new_names()
        seed = names("input", "seed")
        graph, sinks = self._reverse(names, TaskRef(seed), pulled, held)
        graph[seed] = DataNode(seed, cotangent)
        landing = Landing(leaves, sinks, {})
        run_graph(self.scheduler, graph, list(sinks), landing, kept={**self.sliced.kept(), **held.kept})
        return landing.slots.seal()

    def pulled_many(self, leaves: Sequence[Any], cotangents: Sequence[Any]) -> list[list[Any]]:
        """Return for each of `leaves` its cotangents for many seeds, None for zero; no chunk is run again."""
        if self._linearized is None or self._primal is None or is_scalar(self.total):
            nothing = [None] * len(leaves)
            rows = [nothing if seed is None else self.pulled(leaves, seed) for seed in cotangents]
            return [list(column) for column in zip(*rows, strict=True)]
        total, inputs = self._primal.total, dict(self._primal.rows)
        if self._primal.theta is not None:
            inputs[self._primal.theta] = [(leaf, None) for leaf in range(self.n_theta)]
        kept = {**self.sliced.kept(), **(self._kept or {})}
        sweep = Sweep(self._linearized.steps, inputs, self.scheduler, kept, PlainSum())
        with calm_here(self.scheduler):
            return sweep.run(leaves, len(cotangents), lambda some: {total: [cotangents[index] for index in some]})

    def _reverse(self, names: Any, seed: Any, turn: Turn, held: Held) -> tuple[dict[Key, GraphNode], dict[Key, Any]]:
        """Return the reverse graph, and for each key that is to land the slots it belongs in."""
        primal, linearized, _ = held
        assert primal is not None
        assert linearized is not None
        cotangents, graph = transpose(linearized.steps, {primal.total: seed}, names, turn)
        sinks: dict[Key, Any] = {}
        if primal.theta is not None:
            sinks[_task_of(cotangents[primal.theta], graph, names)] = [(leaf, None) for leaf in range(self.n_theta)]
        for key, targets in primal.rows.items():
            sinks[_task_of(cotangents[key], graph, names)] = targets
        return graph, sinks


def _task_of(cotangent: Any, graph: dict[Any, GraphNode], names: Any) -> Any:
    """Return the key of a cotangent; one that a linearization holds gets a task that reads it."""
    if type(cotangent) is not UnitPart:
        return cotangent.key
    linearization: Any = cotangent.key
    key = names("part", ("unit", linearization[1], cotangent.place))
    graph[key] = Task(key, unit_part, TaskRef(linearization), cotangent.place)
    return key


def scaled(gradient: Any, cotangent: Any) -> Any:
    """Return a gradient for the seed 1 times the cotangent that arrived, in the gradient's own dtype."""
    factor = np.asarray(cotangent)[()]
    if pytree.is_placed(gradient):
        return gradient.scaled(float(factor))
    if factor == 1:
        return gradient
    return gradient * gradient.dtype.type(factor)
