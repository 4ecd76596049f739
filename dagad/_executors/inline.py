"""The inline executor: all chunks of a job in the calling thread, without a graph."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from dagad._executors.evaluation import inside_task, new_names, process_settings
from dagad._graphs.linearization import Linearization
from dagad._graphs.policies import Policy
from dagad._kernels.batch import BatchSeeds
from dagad._kernels.context import written_profile
from dagad._kernels.job import Job, Land, Results, Seeds, Spent
from dagad._types import Value


class Inline:
    """Runs jobs where it is called."""

    name, group, remote = "inline", 1, False

    def call(self, job: Job) -> Results:
        """Run a job for what it gives."""
        run = _Running(job)
        with process_settings, inside_task:
            value = job.batch.value(*run.args)
        return run.results(value)

    def linearize(self, job: Job, policy: Policy) -> tuple[Results, InlineResiduals | None]:
        """Run a job, and leave behind what its policy says."""
        run = _Running(job)
        with process_settings, inside_task:
            made = policy.linearize(job.batch, run.args)
        left = made.left()
        return run.results(made.value), None if left is None else InlineResiduals(left)


class _Running:
    """A job that runs here: its arguments, and when it began."""

    __slots__ = ("_began", "_chunks", "_job", "args")

    def __init__(self, job: Job) -> None:
        self._began, self._job = (time.thread_time(), time.perf_counter()), job
        self._chunks = list(job.plan)
        args, profile = job.arguments(self._chunks, new_names()), written_profile()
        self.args = args if profile is None else (profile.counting(Counted(args[0])), *args[1:])

    def results(self, value: Value) -> Results:
        """Return what the job has given, and what that took."""
        results, (began_cpu, began) = Results.of(self._job), self._began
        results.reduced = value.reduced if self._job.kernel.stacks else value
        results.put(self._job, self._chunks, value)
        results.spent = Spent(time.thread_time() - began_cpu, time.perf_counter() - began, 1)
        return results


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

    def pull(self, job: Job, seeds: Sequence[Seeds], land: Land, *, keep: bool = False) -> bool:
        """Pull some seeds, and let their cotangents land."""
        numbers = [chunk.number for chunk in job.plan]
        many = [
            BatchSeeds(one.reduced, [one.stacked(n) for n in numbers] if job.kernel.stacks else None) for one in seeds
        ]
        profile = written_profile()
        if profile is not None:
            many[0] = counted = CountedSeeds(*many[0])
            counted.counted = profile.counting(Counted(numbers))
        with process_settings, inside_task:
            if len(many) == 1 and not keep:
                cotangents = self._linearization.pull(many)
            else:
                cotangents = self._linearization.pull_again(many, len(many))
        _land(job, cotangents, land, range(len(many)))
        return True

    def release(self) -> None:
        """Let go of nothing: what is not referred to any more is gone."""


def _land(job: Job, cotangents: Sequence[Any], land: Land, seeds: range) -> None:
    if job.n_shared:
        land(job.shared_targets, job.monoid.lower(cotangents[0]), seeds)
    if job.has_sliced:
        job.land_rows(list(job.plan), cotangents[-1], land, seeds)
