"""The inline executor: all chunks of a job in the calling thread, without a graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dagad._executors.evaluation import calm_process, inside_task, new_names
from dagad._graphs.linearization import Linearization
from dagad._graphs.policies import Policy
from dagad._operations.batch import BatchSeeds
from dagad._operations.context import written_profile
from dagad._operations.job import Job, Land, Results, Seeds, Spent


class Inline:
    """Runs jobs where it is called."""

    name, group, remote = "inline", 1, False

    def call(self, job: Job) -> Results:
        """Run a job for what it gives."""
        return self._results(job, lambda args: (job.batch.value(*args), None))[0]

    def linearize(self, job: Job, policy: Policy) -> tuple[Results, InlineResiduals | None]:
        """Run a job, and leave behind what its policy says."""

        def run(args: tuple[Any, ...]) -> tuple[Any, Linearization | None]:
            made = policy.linearize(job.batch, args)
            return made.value, made.left()

        results, left = self._results(job, run)
        return results, None if left is None else InlineResiduals(left)

    @staticmethod
    def _results(job: Job, run: Callable[[tuple[Any, ...]], tuple[Any, Any]]) -> tuple[Results, Any]:
        began, began_cpu, chunks = time.perf_counter(), time.thread_time(), list(job.plan)
        args, profile = job.arguments(chunks, new_names()), written_profile()
        if profile is not None:
            args = (profile.counting(Counted(args[0])), *args[1:])
        with calm_process, inside_task:
            value, made = run(args)
        results = Results.of(job)
        results.reduced = value.reduced if job.kernel.stacks else value
        results.put(job, chunks, value)
        results.spent = Spent(time.thread_time() - began_cpu, time.perf_counter() - began, 1)
        return results, made


class Counted(list[Any]):
    """What there is of each chunk; `n_done` are those that nobody needs any more."""

    n_done = 0

    def __iter__(self) -> Iterator[Any]:
        for self.n_done, one in enumerate(super().__iter__()):
            yield one
        self.n_done = len(self)


class CountedSeeds(BatchSeeds):
    """Seeds that note in `counted` for which chunk they are taken."""

    counted: Counted

    def of(self, number: int) -> list[Any] | None:
        self.counted.n_done = number
        return super().of(number)


class InlineResiduals:
    """The linearization of all chunks."""

    ran_by = "inline"

    def __init__(self, linearization: Linearization) -> None:
        self._linearization = linearization

    def pull(self, job: Job, seeds: Sequence[Seeds], land: Land) -> bool:
        """Pull some seeds, and let their cotangents land."""
        numbers = [chunk.number for chunk in job.plan]
        many = [
            BatchSeeds(one.reduced, [one.stacked(n) for n in numbers] if job.kernel.stacks else None) for one in seeds
        ]
        profile = written_profile()
        if profile is not None:
            many[0] = counted = CountedSeeds(*many[0])
            counted.counted = profile.counting(Counted(numbers))
        with calm_process, inside_task:
            if len(many) == 1:
                cotangents = self._linearization.pull(many)
            else:
                cotangents = self._linearization.pull_again(many, len(many))
        _land(job, cotangents, land)
        return True

    def release(self) -> None:
        """Let go of nothing: what is not referred to any more is gone."""


def _land(job: Job, cotangents: Sequence[Any], land: Land) -> None:
    if job.n_shared:
        land(job.shared_targets, job.monoid.lower(cotangents[0]), 0)
    if job.has_sliced:
        job.land_rows(list(job.plan), cotangents[-1], land)
