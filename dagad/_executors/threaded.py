"""The threads executor: runs of chunks shared among threads of this process, without a graph.

What threads gain on short chunks a graph would take: to build one costs more than to run it. Sums are those of the
fixed tree, whoever brings the terms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from dagad._executors.evaluation import new_names, run_parts
from dagad._executors.first import first_refused
from dagad._executors.graph import SEEDS_A_TASK
from dagad._graphs.linearization import Linearization
from dagad._graphs.policies import Policy
from dagad._graphs.sum_trees import OpenTree
from dagad._kernels.batch import BatchSeeds
from dagad._kernels.job import Job, Land, Results, Seeds, Spent
from dagad._sources.plan import Chunk
from dagad._types import AnyScheduler
from dagad_scheduler.roles import Role


class ThreadedExecutor:
    """Runs jobs in threads of this process, some chunks at a time, a power of two."""

    name, remote = "threads", False

    def __init__(self, scheduler: AnyScheduler, group: int = 1) -> None:
        self._scheduler, self.group = scheduler, group

    def call(self, job: Job) -> Results:
        """Run a job for what it gives."""
        batch = job.batch
        return self._values(job, lambda number, args: batch.value(*args))

    def linearize(self, job: Job, policy: Policy) -> tuple[Results, ThreadedResiduals]:
        """Run a job, and leave behind what its policy says."""
        batch, left = job.batch, dict[int, Linearization | None]()

        def run(number: int, args: tuple[Any, ...]) -> Any:
            made = policy.linearize(batch, args)
            left[number] = made.left()
            return made.value

        return self._values(job, run), ThreadedResiduals(self._scheduler, self.group, left)

    def _values(self, job: Job, run: Callable[[int, tuple[Any, ...]], Any]) -> Results:
        """Run the chunks for what they give: their sum, and what is stacked."""
        parts, names, results = _parts(job, self.group), new_names(job.kernel.name), Results.of(job)
        total = OpenTree(len(parts), job.monoid)

        def run_part(number: int) -> None:
            chunks = parts[number]
            value = run(number, job.arguments(chunks, names))
            results.put(job, chunks, value)
            if job.kernel.reduces:
                total.push(number, value.reduced if job.kernel.stacks else value)

        results.spent = _spent(self._scheduler, job, len(parts), run_part, job.kernel.role, ("call", (), self.group))
        results.reduced = total.total()
        return results


class ThreadedResiduals:
    """The linearizations of the runs of chunks, by number; None where nothing was left."""

    ran_by = ThreadedExecutor.name

    def __init__(self, scheduler: AnyScheduler, group: int, left: dict[int, Linearization | None]) -> None:
        self._scheduler, self._group, self._left = scheduler, group, left

    def pull(self, job: Job, seeds: Sequence[Seeds], land: Land, *, keep: bool = False) -> bool:
        """Pull some seeds, and let their cotangents land; chunks whose seeds are all zero are not pulled."""
        for first in range(0, len(seeds), SEEDS_A_TASK):
            self._pull(job, seeds[first : first + SEEDS_A_TASK], land, first, keep=keep or len(seeds) > 1)
        return True

    def _pull(self, job: Job, seeds: Sequence[Seeds], land: Land, first: int, *, keep: bool) -> None:
        parts = _parts(job, self._group)
        shared, landing = OpenTree(len(parts), job.monoid), range(first, first + len(seeds))

        def run_part(number: int) -> None:
            chunks, made = parts[number], self._left[number]
            many = [
                BatchSeeds(one.reduced, [one.stacked(chunk.number) for chunk in chunks] if job.kernel.stacks else None)
                for one in seeds
            ]
            found: Sequence[Any] | None = None
            if made is not None and any(one.of(index) is not None for one in many for index in range(len(chunks))):
                found = made.pull_again(many, len(many)) if keep else made.pull(many)
            if job.n_shared:
                shared.push(number, None if found is None else found[0])
            if job.has_sliced and found is not None:
                job.land_rows(chunks, found[-1], land, landing)
            elif job.has_sliced:
                land(job.targets(chunks), None, landing)

        _spent(self._scheduler, job, len(parts), run_part, Role.PULLBACK, ("pull", seeds, 1))
        if job.n_shared:
            found = shared.total()
            land(job.shared_targets, None if found is None else job.monoid.lower(found), landing)

    def release(self) -> None:
        """Let go of the linearizations."""
        self._left.clear()


def _parts(job: Job, group: int) -> list[list[Chunk]]:
    """Return runs of chunks that are subtrees, all of one size but for the last."""
    chunks = list(job.plan)
    return [chunks[start : start + group] for start in range(0, len(chunks), group)]


def _spent(
    scheduler: AnyScheduler,
    job: Job,
    n_parts: int,
    run_part: Callable[[int], None],
    role: Role,
    refused: tuple[str, Sequence[Seeds], int],
) -> Spent:
    """Run all parts, and return what that took; `refused` says how to look which chunk is not finite."""
    began = time.perf_counter()
    with first_refused(scheduler, job, *refused):
        run = run_parts(scheduler, n_parts, run_part, role)
    return Spent(run.cpu_seconds, time.perf_counter() - began, run.n_workers)
