"""Which executor runs a job: from how such jobs went before, and from why an executor refused one.

A `Local` chooses between the calling thread and a graph on threads, a `Remote` between residents and a graph on a
cluster. Both are executors themselves. Nothing of it shows in the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dagad._executors.cost_model import (
    Cost,
    Pace,
    choose_group,
    choose_road,
    cost_of,
    history_of,
    remember_cost,
    remember_pace,
)
from dagad._executors.evaluation import Scheduler, is_inside_any_task, is_watched
from dagad._executors.graph import GraphExecutor
from dagad._executors.inline import Inline
from dagad._executors.resident import ResidentExecutor, UnavailableError
from dagad._graphs.linearization import is_scalar
from dagad._graphs.policies import Policy
from dagad._operations.context import current_mode, note_job
from dagad._operations.job import Executor, Job, Land, Residuals, Results

# Longer ones are better tasks of their own: to be seen on the dashboard, moved to whoever is free, tried again.
LONGEST_HOT_CHUNK, LONGEST_HOT_CALL = 0.25, 10.0

INLINE = Inline()


def executor_on(scheduler: Any) -> Executor:
    """Return what runs jobs on a scheduler; one that does so by itself is its own executor."""
    if hasattr(scheduler, "linearize"):
        return Noted(scheduler)
    return Remote(scheduler) if scheduler.remote else Local(scheduler)


class Noted:
    """Another's executor, with a note of what it ran."""

    def __init__(self, executor: Any) -> None:
        self._executor, self.name, self.remote = executor, executor.name, bool(executor.remote)

    def call(self, job: Job) -> Results:
        """Run a job for what it gives."""
        note_job(self._executor, "call", job)
        results: Results = self._executor.call(job)
        return results

    def linearize(self, job: Job, policy: Policy) -> tuple[Results, Residuals | None]:
        """Run a job, and leave behind what its policy says."""
        note_job(self._executor, "linearize", job)
        found: tuple[Results, Residuals | None] = self._executor.linearize(job, policy)
        return found

    def unit(self, job: Job, policy: Policy, land: Land) -> tuple[Results, Residuals | None]:
        """Run a job together with its gradient for the seed 1; see `Executor`."""
        note_job(self._executor, "unit", job)
        found: tuple[Results, Residuals | None] = self._executor.unit(job, policy, land)
        return found


def _is_number(results: Results) -> bool:
    """Return whether the chunks gave one real number, as far as their sum tells."""
    return results.has_gradient or is_scalar(results.reduced)


class Local:
    """Chooses between the calling thread, a graph, and a graph whose tasks are several chunks each."""

    name, remote = "local", False

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def call(self, job: Job) -> Results:
        """Run a job for what it gives."""
        signature = job.signature, "call"
        executor = self._chosen(job, signature)
        return self._noted(job, signature, executor, executor.call(job))

    def linearize(self, job: Job, policy: Policy) -> tuple[Results, Residuals | None]:
        """Run a job, and leave behind what its policy says."""
        signature = job.signature, "linearize"
        executor = self._chosen(job, signature)
        results, residuals = executor.linearize(job, policy)
        return self._noted(job, signature, executor, results), residuals

    def unit(self, job: Job, policy: Policy, land: Land) -> tuple[Results, Residuals | None]:
        """Run a job together with its gradient for the seed 1; see `Executor`."""
        signature = job.signature, "unit"
        executor = self._chosen(job, signature)
        results, residuals = executor.unit(job, policy, land)
        if executor is not INLINE:  # which need not know
            remember_cost(signature, lambda cost: cost.known_to_give(scalar=_is_number(results)))
        return self._noted(job, signature, executor, results), residuals

    def _chosen(self, job: Job, signature: tuple[Any, str]) -> Any:
        workers, group = self._scheduler.workers, 1
        if not (workers is None or is_watched() or current_mode().evaluation is not None):  # watched by chunk
            road = choose_road(job.plan, history_of(signature), workers)
            if road.alone:
                return INLINE
            group = road.group
        known = cost_of(signature)
        return GraphExecutor(self._scheduler, group, is_scalar=None if known is None else known.scalar)

    @staticmethod
    def _noted(job: Job, signature: tuple[Any, str], executor: Any, results: Results) -> Results:
        if results.spent.workers:
            remember_pace(signature, Pace(*results.spent))
        note_job(executor, signature[1], job)
        return results


class Remote:
    """Residents where the rows live on workers and chunks are short; else a graph, which can do everything."""

    name, remote = "remote", True

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def call(self, job: Job) -> Results:
        """Run a job for what it gives."""
        return self._first_of(job, "call", lambda executor: (executor.call(job), None))[0]

    def linearize(self, job: Job, policy: Policy) -> tuple[Results, Residuals | None]:
        """Run a job, and leave behind what its policy says."""
        return self._first_of(job, "linearize", lambda executor: executor.linearize(job, policy))

    def unit(self, job: Job, policy: Policy, land: Land) -> tuple[Results, Residuals | None]:
        """Run a job together with its gradient for the seed 1; see `Executor`."""
        found = self._first_of(job, "unit", lambda executor: executor.unit(job, policy, land))
        remember_cost((job.signature, "unit"), lambda cost: cost.known_to_give(scalar=_is_number(found[0])))
        return found

    def _first_of(
        self, job: Job, method: str, run: Callable[[Any], tuple[Results, Residuals | None]]
    ) -> tuple[Results, Residuals | None]:
        signature, alike, in_vain = (job.signature, method), (job.owner, job.plan), False
        cost = cost_of(signature) or cost_of(alike)
        lines = self._scheduler.lines() if cost is not None and self._is_short(job, cost) else None
        if cost is not None and lines is not None and not is_inside_any_task():
            resident = ResidentExecutor(lines, cost.seconds, is_scalar=cost.scalar)
            try:
                found = run(resident)
            except UnavailableError as error:
                in_vain = error.by_chunks
            else:
                spent = found[0].spent
                remember_cost(signature, lambda cost: cost.after_call(spent.cpu, spent.wall))
                note_job(resident, method, job)
                return found
        # Runs of chunks are tasks as they are: several of them need not be a part of the tree of sums. Who watches
        # counts chunks.
        alone = job.runs is not None or current_mode().evaluation is not None
        group = 1 if alone else choose_group(len(job.plan), cost)
        graph = GraphExecutor(self._scheduler, group, is_scalar=None if cost is None else cost.scalar)
        found = run(graph)
        spent = found[0].spent
        remember_cost(signature, lambda cost: cost.after_graph(spent.cpu, spent.wall, in_vain=in_vain))
        remember_cost(alike, lambda cost: cost.after_graph(spent.cpu, spent.wall, in_vain=False))
        note_job(graph, method, job)
        return found

    @staticmethod
    def _is_short(job: Job, cost: Cost) -> bool:
        if cost.rest or cost.longest > LONGEST_HOT_CALL or not job.sliced.is_resident:
            return False
        return cost.seconds <= LONGEST_HOT_CHUNK * len(job.plan)
