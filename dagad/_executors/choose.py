"""Which executor runs a job: from how such jobs went before, and from why an executor refused one.

In this process that is the calling thread, or threads that share the chunks, or a graph where somebody watches them;
on a cluster residents where the rows live on workers and chunks are short, else a graph, which can do everything. A
thread or a task may take several chunks at once. Nothing of it shows in the bits.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from dagad._executors.evaluation import Scheduler, is_inside_any_task, is_watched
from dagad._executors.graph import GraphExecutor
from dagad._executors.inline import Inline
from dagad._executors.planning import (
    Cost,
    History,
    choose_group,
    choose_group_of_tree,
    choose_strategy,
    cost_of,
    history_of,
    remember_cost,
    remember_pace,
)
from dagad._executors.resident import ResidentExecutor, UnavailableError, is_all_sums
from dagad._executors.threaded import ThreadedExecutor
from dagad._graphs.policies import Policy
from dagad._kernels.context import current_profile
from dagad._kernels.job import Executor, Job, Residuals, Results, is_executor
from dagad._types import AnyScheduler

logger = logging.getLogger("dagad")

PROCESSES = "dask.multiprocessing"  # the name of the scheduler that starts new ones for each graph

SEEN_BY_CHUNK = "its chunks are tasks, to be seen"
FROM_WORKER_TO_WORKER = "workers are many and parameters large: from worker to worker they travel faster"
INLINE = Inline()
Found = tuple[Results, Residuals | None]


def executor_on(scheduler: AnyScheduler) -> Executor:
    """Return what runs jobs on a scheduler; one that does so by itself is its own executor."""
    return scheduler if is_executor(scheduler) else Chosen(scheduler)


class Chosen:
    """Leaves each job to the executor that suits it."""

    name = "chosen"

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self.remote = scheduler, scheduler.remote

    def call(self, job: Job) -> Results:
        """Run a job for what it gives."""
        if self.remote:
            return _run_elsewhere(self._scheduler, job, None)[0]
        choice = _choice_here(self._scheduler, job, "call")
        results = choice.executor.call(job)
        choice.ran(results)
        return results

    def linearize(self, job: Job, policy: Policy) -> Found:
        """Run a job, and leave behind what its policy says."""
        if self.remote:
            return _run_elsewhere(self._scheduler, job, policy)
        choice = _choice_here(self._scheduler, job, "linearize")
        results, residuals = choice.executor.linearize(job, policy)
        choice.ran(results)
        return results, residuals


class _Choice(NamedTuple):
    """Who runs a job in this process, why, and from what is known of its kind."""

    executor: Executor
    reason: str
    signature: tuple[Any, str]
    history: History

    def ran(self, results: Results) -> None:
        """Write that into what was given, and remember how long it took."""
        results.ran_by, results.reason, results.reckoned = self.executor, self.reason, self.history
        if results.spent.workers:
            remember_pace(self.signature, results.spent)


def _choice_here(scheduler: Scheduler, job: Job, method: str) -> _Choice:
    workers, signature = scheduler.workers, (job.signature, method)
    history = history_of(signature)
    if workers is None or not getattr(scheduler, "shares", False) or is_watched() or _is_seen_by_chunk():
        return _Choice(GraphExecutor(scheduler), SEEN_BY_CHUNK, signature, history)
    strategy = choose_strategy(job.plan, history, workers)
    if strategy.alone:
        return _Choice(INLINE, "threads gain nothing here", signature, history)
    return _Choice(ThreadedExecutor(scheduler, strategy.group), "threads share the chunks", signature, history)


def _ran(executor: Executor, job: Job, policy: Policy | None) -> Found:
    """Have a job run: linearized by a policy, or without one called."""
    return (executor.call(job), None) if policy is None else executor.linearize(job, policy)


def _is_seen_by_chunk() -> bool:
    """Return whether somebody watches the chunks of the evaluation that this is part of."""
    profile = current_profile()
    return profile is not None and profile.by_chunk


def _run_elsewhere(scheduler: Scheduler, job: Job, policy: Policy | None) -> Found:
    signature = job.signature, "call" if policy is None else "linearize"
    alike, in_vain, refusals = (job.owner, job.cut), False, list[str]()
    cost = cost_of(signature) or cost_of(alike)
    residents = scheduler.residents() if cost is not None and is_short(job, cost) else None
    if cost is not None and residents is not None and not is_inside_any_task():
        if cost.trips.prefer_tree and is_all_sums(job):
            return _run_tree(scheduler, job, signature, cost, policy)
        resident = ResidentExecutor(residents, cost.seconds)
        try:
            results, residuals = _ran(resident, job, policy)
        except UnavailableError as error:
            in_vain = error.by_chunks
            refusals.append(f"residents: {error}")
        else:
            spent, results.ran_by, results.reason = results.spent, resident, "rows live on workers, chunks are short"
            results.reckoned = cost
            remember_cost(signature, lambda cost: cost.after_call(spent.cpu, spent.wall, resident.trip))
            return results, residuals
    # Runs of chunks are tasks as they are: several of them need not be a part of the tree of sums. Who watches counts
    # chunks.
    alone = job.runs is not None or _is_seen_by_chunk()
    group = 1 if alone else choose_group(len(job.plan), cost)
    graph = GraphExecutor(scheduler, group)
    results, residuals = _ran(graph, job, policy)
    spent, results.ran_by, results.refusals = results.spent, graph, refusals
    results.reason, results.reckoned = _why_graph(job, cost), cost
    if scheduler.name == PROCESSES and 2 * spent.cpu < spent.wall and cost_of(PROCESSES) is None:
        remember_cost(PROCESSES, lambda cost: cost)  # said once
        logger.warning(
            'dagad: `scheduler="processes"` starts new processes in each evaluation: this one took %.2g s, and its '
            'chunks %.2g s. Use "threads", or a `distributed.Client`, whose workers stay.',
            spent.wall,
            spent.cpu,
        )
    remember_cost(signature, lambda cost: cost.after_graph(spent.cpu, spent.wall, in_vain=in_vain))
    remember_cost(alike, lambda cost: cost.after_graph(spent.cpu, spent.wall, in_vain=False))
    return results, residuals


def _run_tree(scheduler: Scheduler, job: Job, signature: tuple[Any, str], cost: Cost, policy: Policy | None) -> Found:
    """Run what residents could by a graph with a task for each of their threads; see `routes`."""
    alone, star = job.runs is not None or _is_seen_by_chunk(), cost.trips.star
    n_threads = 1 if star is None else star.n_workers * star.n_threads
    group = 1 if alone else choose_group_of_tree(len(job.plan), n_threads)
    graph = GraphExecutor(scheduler, group)
    results, residuals = _ran(graph, job, policy)
    wall, results.ran_by, results.reason = results.spent.wall, graph, FROM_WORKER_TO_WORKER
    results.reckoned = cost
    remember_cost(signature, lambda cost: cost.after_tree(wall))
    return results, residuals


def _why_graph(job: Job, cost: Cost | None) -> str:
    if not job.is_resident:
        return "its rows are not in Shards"
    if cost is None:
        return "it is the first of its kind"
    if cost.rest:
        return "residents failed at it lately"
    return "residents could not" if is_short(job, cost) else "its chunks are long"


def is_short(job: Job, cost: Cost) -> bool:
    """Return whether residents are to run a job that costs this."""
    return cost.is_short(len(job.plan)) and job.is_resident
