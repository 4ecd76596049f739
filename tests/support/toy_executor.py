"""A toy executor, `Pipes`: processes over pipes, each with a share of the chunks and of what is left for pullbacks."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from dagad._errors import PortabilityError, SchedulerLostError
from dagad._executors.evaluation import inside_task, new_names, process_settings
from dagad._graphs.policies import Policy
from dagad._graphs.sum_trees import assembled, subtrees
from dagad._kernels.batch import BatchSeeds
from dagad._kernels.job import Job, Land, Results, Seeds
from dagad._values.shipping import opened, pack


class Pipes(contextlib.AbstractContextManager["Pipes"]):
    name, remote = "pipes", True

    def __init__(self, n_processes: int) -> None:
        context, self._lock = multiprocessing.get_context("spawn"), threading.Lock()
        self.tokens, self.forgotten = itertools.count(), list[int]()
        self._ends, self._processes = list[Any](), list[Any]()
        for _ in range(n_processes):
            here, there = context.Pipe()
            self._ends.append(here)
            self._processes.append(context.Process(target=serve, args=(there,), daemon=True))
            self._processes[-1].start()
            there.close()

    def n_workers(self) -> int:  # `map_reduce` combines in each of them what its chunks gave
        return len(self._processes)

    def __exit__(self, *_: object) -> None:
        for end, process in zip(self._ends, self._processes, strict=True):
            end.close()
            process.terminate()
            process.join()

    def call(self, job: Job) -> Results:
        return self._run(job, None, None)

    def linearize(self, job: Job, policy: Policy) -> tuple[Results, Left]:
        left = Left(self)
        return self._run(job, policy, left), left

    def _run(self, job: Job, policy: Policy | None, left: Left | None) -> Results:
        batch, names, shares = job.batch.parcel(), new_names(), list(self.shares(job))
        token, args = left and left.token, [[job.arguments(run, names) for run in runs] for runs in shares]
        found = self.ask([(token, policy, batch, mine) for mine in args])
        results, sums = Results.of(job), {}
        for run, value in zip(itertools.chain(*shares), found, strict=True):
            results.put(job, run, value)
            sums[job.part_of(run)] = value.reduced if job.kernel.stacks else value
        results.reduced = assembled(list(sums), sums.values(), job.n_terms, job.monoid)
        return results

    def shares(self, job: Job) -> Iterator[list[Any]]:  # of each process the runs: whole parts of the tree of sums
        chunks, n_chunks, count = list(job.plan), len(job.plan), len(self._ends)
        for number in range(count):
            first, last = n_chunks * number // count, n_chunks * (number + 1) // count
            parts = subtrees(first, last, n_chunks) if job.runs is None else [(at, 0) for at in range(first, last)]
            yield [chunks[start : start + (1 << level)] for start, level in parts]

    def land(self, job: Job, gradients: Sequence[Any], seeds: range, land: Land) -> None:
        pairs = list(zip(itertools.chain(*self.shares(job)), gradients, strict=True))
        if job.n_shared:
            sums = {job.part_of(run): found[0] for run, found in pairs}
            total = assembled(list(sums), sums.values(), job.n_terms, job.monoid)
            land(job.shared_targets, job.monoid.lower(total), seeds)
        for run, found in pairs if job.has_sliced else ():
            for chunk, own in zip(run, found[-1], strict=True):
                land(job.inputs.targets(chunk.number), own, seeds)

    def ask(self, questions: Sequence[Any]) -> list[Any]:
        parcels = list(map(pack, questions))
        with self._lock:
            try:
                forgotten = [self.forgotten.pop() for _ in range(len(self.forgotten))]
                for end, parcel in zip(self._ends, parcels, strict=True):
                    end.send((forgotten, parcel))
                answers = [end.recv() for end in self._ends]
            except BaseException as error:  # no other question may get the answers to this one
                self.__exit__()
                if isinstance(error, EOFError | OSError):
                    raise SchedulerLostError("A process of the pool is gone. Make a new `Pipes`.") from error
                raise
        found = [answer.open() for answer in answers]
        for one in found:
            if isinstance(one, Exception):
                raise one
        return list(itertools.chain(*found))


class Left:  # for pullbacks in the processes, as long as somebody may pull
    def __init__(self, pool: Pipes) -> None:
        self._pool, self.token = pool, next(pool.tokens)

    def pull(self, job: Job, seeds: Sequence[Seeds], land: Land, *, keep: bool = False) -> bool:
        def of(run: Any, one: Seeds) -> BatchSeeds:
            return BatchSeeds(one.reduced, [one.stacked(chunk.number) for chunk in run] if job.kernel.stacks else None)

        asked = [[[of(run, one) for one in seeds] for run in runs] for runs in self._pool.shares(job)]
        answers = self._pool.ask([(self.token, some, keep) for some in asked])
        self._pool.land(job, answers, range(len(seeds)), land)
        return True

    def release(self) -> None:
        self._pool.forgotten.append(self.token)  # told with the next question: this may be the collector's thread

    __del__ = release


def serve(end: Any) -> None:
    held: dict[int, list[Any]] = {}
    with contextlib.suppress(EOFError):  # nobody asks any more
        while True:
            forgotten, parcel = end.recv()
            for token in forgotten:
                held.pop(token, None)
            try:
                with process_settings, inside_task:
                    answer: Any = list(found(held, *parcel.open()))
            except Exception as error:
                answer = error
            try:
                end.send(pack(answer))
            except PortabilityError as error:
                end.send(pack(error))


def found(held: dict[int, list[Any]], token: int, *asked: Any) -> Iterator[Any]:
    if len(asked) == 2:  # of each run the cotangents
        for made, seeds in zip(held[token], asked[0], strict=True):
            yield made.pull(seeds) if len(seeds) == 1 and not asked[1] else made.pull_again(seeds, len(seeds))
    elif asked[0] is None:
        yield from (opened(asked[1]).value(*args) for args in asked[2])
    else:
        held[token] = [asked[0].linearize(opened(asked[1]), args) for args in asked[2]]
        yield from (made.value for made in held[token])
