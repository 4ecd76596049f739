"""A reduction whose chunks run in other processes: on the hot road where it can be, else as a graph."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from dagad._executors.evaluation import is_inside_any_task, new_names, run_graph
from dagad._executors.hot_chunks import GRADIENT, VALUE
from dagad._executors.hot_road import HotRoad, OffRoadError
from dagad._executors.outcomes import Outcome, outcome_graph
from dagad._executors.pace import Cost, choose_group, cost_of, remember_cost
from dagad._graphs.linearization import is_scalar
from dagad._graphs.policies import Keep, Policy, Preaccumulate, Recompute
from dagad._operations.chunk_graph import reduction_graph
from dagad._operations.chunks import ChunkFunction
from dagad._sources.columns import Sliced
from dagad._sources.plan import AnyPlan
from dagad._sources.slots import Slots

# Longer ones are better tasks of their own: to be seen on the dashboard, moved to whoever is free, tried again.
LONGEST_HOT_CHUNK, LONGEST_HOT_CALL = 0.25, 10.0

Gradient = list[Any] | None


class Apart:
    """Ways to evaluate one reduction elsewhere."""

    __slots__ = (
        "_function",
        "_in_vain",
        "_lease",
        "_n_theta",
        "_owner",
        "_plan",
        "_policy",
        "_scheduler",
        "_sliced",
    )

    def __init__(
        self,
        function: ChunkFunction,
        plan: AnyPlan,
        sliced: Sliced,
        n_theta: int,
        scheduler: Any,
        policy: Policy,
        owner: Any,
    ) -> None:
        self._function, self._plan, self._sliced, self._n_theta = function, plan, sliced, n_theta
        self._scheduler, self._policy, self._owner = scheduler, policy, owner
        self._lease: Any = None  # on what the value left behind on the hot road, for a gradient that may be asked for
        self._in_vain = False  # whether something quicker than the graph was tried

    @property
    def group(self) -> int:
        """How many chunks make one task."""
        return choose_group(len(self._plan), cost_of(self._owner, self._plan))

    def value(self, theta: Sequence[Any]) -> Any:
        """Return the value by the hot road; None if it has to be the graph."""
        called = self._call(VALUE, theta)
        return None if called is None else called[0]

    def value_first(self, leaves: Sequence[Any]) -> Any:
        """Return the value by the hot road, so that `gradient_after` can follow; None if it has to be the graph."""
        if type(self._policy) not in (Keep, Recompute):
            return None
        road = self._road(leaves)
        if road is None:
            return None
        lease = road.lease()
        called = self._call(VALUE, leaves, lease=lease, keep=type(self._policy) is Keep)
        if called is None:
            return None
        self._lease = lease
        return called[0]

    @property
    def is_half_way(self) -> bool:
        """Whether the value came by the hot road."""
        return self._lease is not None

    def gradient_after(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the gradients for the seed 1 after `value_first`, made again where they were lost."""
        called = self._call(GRADIENT, leaves, lease=self._lease)
        if called is not None:
            return self._written(leaves, called[1:])
        _, unit = self._by_graph(leaves)
        assert unit is not None
        return unit

    def value_and_gradient(self, leaves: Sequence[Any]) -> tuple[Any, Gradient]:
        """Return the total, and the gradients for the seed 1; None for these where the total is not a real number."""
        if isinstance(self._policy, Preaccumulate):
            called = self._call(GRADIENT, leaves)
            if called is not None:
                return called[0], self._written(leaves, called[1:])
        return self._by_graph(leaves)

    @property
    def knows_better(self) -> bool:
        """Whether the chunks are known not to give one real number each: their gradients need a seed."""
        cost = cost_of(self._owner, self._plan)
        return cost is not None and not cost.scalar

    def _by_graph(self, leaves: Sequence[Any]) -> tuple[Any, Gradient]:
        names = new_names()
        primal = reduction_graph(self._function, self._plan, self._sliced, leaves, self._n_theta, names, self.group)
        turned = outcome_graph(primal, self._policy if hasattr(self._policy, "counters") else Preaccumulate(), names)
        slots, totals = Slots(leaves), list[Outcome]()

        def landed(key: Any, result: Any) -> None:
            if key == turned.total:
                totals.append(result)
            else:
                slots.write_all(turned.sinks[key], result)

        began = time.perf_counter()
        run_graph(self._scheduler, turned.graph, [turned.total, *turned.sinks], landed, kept=self._sliced.kept())
        total = totals[0]
        scalar = is_scalar(total.value)
        self._in_vain = self._in_vain or not scalar
        self.ran_by_graph(total.seconds, time.perf_counter() - began, scalar)
        if not scalar:
            return total.value, None
        slots.write_all([(leaf, None) for leaf in range(self._n_theta)], total.theta)
        return total.value, slots.seal()

    def ran_by_graph(self, seconds: float, wall: float, scalar: bool) -> None:
        """Note what the graph took: every time, since a first run may have waited for workers to come."""
        in_vain, self._in_vain = self._in_vain, False
        remember_cost(
            self._owner, self._plan, lambda cost: cost.after_graph(seconds, wall, scalar=scalar, in_vain=in_vain)
        )

    @staticmethod
    def _written(leaves: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        slots = Slots(leaves)
        slots.write_all([(leaf, None) for leaf in range(len(leaves))], cotangents)
        return slots.seal()

    def _call(self, role: str, leaves: Sequence[Any], **options: Any) -> list[Any] | None:
        """Take the hot road; None if it can't be taken this time."""
        cost, road = cost_of(self._owner, self._plan), self._road(leaves)
        if cost is None or road is None or not cost.scalar or cost.rest:
            return None
        if cost.longest > LONGEST_HOT_CALL or cost.seconds > LONGEST_HOT_CHUNK * len(self._plan):
            return None
        began = time.perf_counter()
        try:
            total, seconds = road.call(
                self._function,
                self._sliced.template,
                leaves,
                role,
                owner=self._owner,
                expected=cost.seconds,
                **options,
            )
        except OffRoadError as error:
            self._in_vain = error.by_chunks
            return None
        if role == VALUE or not options:  # else the values were there already
            found = Cost(seconds, min(seconds, time.perf_counter() - began))
            remember_cost(self._owner, self._plan, lambda cost: found)
        return total

    def _road(self, leaves: Sequence[Any]) -> HotRoad | None:
        if len(leaves) > self._n_theta or not self._sliced.all_placed or is_inside_any_task():
            return None
        road: HotRoad | None = self._sliced.shards[0].road(self._sliced.shards)
        return road
