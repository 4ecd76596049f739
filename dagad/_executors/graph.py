"""The graph executor: a job as a Dask graph, on any scheduler; its pullback is the graph's transpose."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dagad._executors.evaluation import Run, Scheduler, new_names, run_graph, settings_here
from dagad._executors.first import first_refused
from dagad._executors.graph_tasks import (
    Measured,
    MeasuredBatch,
    MeasuredSum,
    landing_part,
    landing_stacked,
    plain_value,
    pull_batch,
    pull_batch_again,
    reduced_part,
    residual_part,
    seeds_of_batch,
    stacked_part,
    staying_part,
    staying_stacked,
)
from dagad._graphs.linearization import value_of_task
from dagad._graphs.linearize import Step, linearize
from dagad._graphs.policies import Policy
from dagad._graphs.transpose import transpose
from dagad._kernels.batch import BatchSeeds
from dagad._kernels.chunks import Names
from dagad._kernels.inputs import Targets
from dagad._kernels.job import Job, Land, Results, Seeds, Spent, nested
from dagad._sources.base import staying
from dagad._sources.plan import Chunk
from dagad._sources.shards import Kept
from dagad._types import Value
from dagad_scheduler.private import DataNode, GraphNode, Task, TaskRef
from dagad_scheduler.roles import Role

Key = Any
# So many seeds make a task: few enough that the workers share them, enough that a task's own cost is small.
SEEDS_A_TASK = 16


def names_of(job: Job) -> Any:
    """Return new names for the keys of a job, which say whether it gives a gradient, too."""
    return replace(new_names(job.kernel.name), gives_gradient=job.kernel.role is Role.VALUE_AND_GRAD)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A job as a graph: the chunks of each task, and where the inputs belong that are being differentiated."""

    graph: dict[Key, GraphNode]
    batches: dict[Key, list[Chunk]]
    inputs: dict[Key, Targets]
    shared: Key | None


def lower(job: Job, names: Names, group: int, *, measured: bool = False) -> Lowered:
    """Return the graph of a job, `group` chunks a task, without what adds them up; `measured`: see `Measured`."""
    kernel, shared_key = names("input", "function"), names("input", "theta")
    graph: dict[Key, GraphNode] = {kernel: DataNode(kernel, MeasuredBatch(job.batch) if measured else job.batch)}
    chunks, batches, inputs = list(job.plan), dict[Key, list[Chunk]](), dict[Key, Targets]()
    if job.n_shared:
        graph[shared_key], inputs[shared_key] = DataNode(shared_key, job.shared()), job.shared_targets
    for number, start in enumerate(range(0, len(chunks), group)):
        some = chunks[start : start + group]
        key, (contexts, rows, shared, *own) = names("value", number), job.arguments(some, names)
        args = [contexts, nested(rows), TaskRef(shared_key) if job.n_shared else shared]
        if own:
            rows_key = names("input", ("rows", number))
            graph[rows_key], inputs[rows_key] = _node(rows_key, own[0]), job.targets(some)
            args.append(TaskRef(rows_key))
        graph[key], batches[key] = Task(key, value_of_task, TaskRef(kernel), *args), some
    return Lowered(graph, batches, inputs, shared_key if job.n_shared else None)


def _parts(names: Names, graph: dict[Key, GraphNode], part: Callable[[Any], Any], keys: Sequence[Key]) -> list[Key]:
    """Return the keys of one part of each result, after adding the tasks that take it."""
    found = [names("getitem", (part.__name__, number)) for number in range(len(keys))]
    graph.update((name, Task(name, part, TaskRef(key))) for name, key in zip(found, keys, strict=True))
    return found


def _node(key: Key, value: list[Any]) -> GraphNode:
    node = nested(value)
    return DataNode(key, value) if node is value else Task(key, plain_value, node)


Parts = tuple[Callable[..., Any], Callable[..., Any]]  # what takes apart what lands and what stays
COTANGENTS: Parts = landing_part, staying_part
STACKED: Parts = landing_stacked, staying_stacked


class Staying:
    """What stays where it is computed, as tasks of their own; handed over when their graph has run."""

    def __init__(self, names: Names, graph: dict[Key, GraphNode]) -> None:
        self._names, self._graph = names, graph
        self.waiting: list[tuple[Key, Callable[[Kept], None]]] = []

    def split(
        self,
        source: Key,
        name: Key,
        stays: Sequence[tuple[int, int, Callable[[Kept], None]]],
        parts: Parts = COTANGENTS,
    ) -> Key:
        """Return the key of the lists of some chunks without what stays: by chunk and index in its list."""
        lands, remains = parts
        self._graph[name] = Task(name, lands, TaskRef(source), [stay[:2] for stay in stays])
        for chunk, position, deliver in stays:
            key = self._names("shard", len(self.waiting))
            self._graph[key] = Task(key, remains, TaskRef(source), chunk, position)
            self.waiting.append((key, deliver))
        return name

    @property
    def keys(self) -> list[Key]:
        """The keys to be kept."""
        return [key for key, _ in self.waiting]

    def deliver(self, run: Run) -> None:
        """Hand over what was kept."""
        for key, deliver in self.waiting:
            deliver(Kept(key, run.kept.pop(key)))


class GraphExecutor:
    """Runs jobs as graphs on a scheduler, some chunks a task."""

    name = "graph"

    def __init__(self, scheduler: Scheduler, group: int = 1) -> None:
        self._scheduler, self.group, self.remote = scheduler, group, scheduler.remote

    def call(self, job: Job) -> Results:
        """Run a job for what it gives."""
        names, results = names_of(job), Results.of(job)
        with settings_here(self._scheduler):
            lowered = lower(job, names, self.group, measured=True)
            self._run_values(job, lowered, lowered.graph, list(lowered.batches), names, results, ())
        return results

    def linearize(self, job: Job, policy: Policy) -> tuple[Results, GraphResiduals]:
        """Run a job, and leave behind what its policy says."""
        names, results = names_of(job), Results.of(job)
        with settings_here(self._scheduler):
            lowered = lower(job, names, self.group, measured=True)
            lin = linearize(lowered.graph, lowered.batches, lowered.inputs, names, policy)
            values, left = [lin.values.get(key, key) for key in lowered.batches], lin.recorded()
            if job.kernel.pulls_itself:  # what chunks gave is not to be kept where nothing else is left of them
                # Names of their own: a group of Dask's that is larger than what it depends on is spread over workers as
                # if it depended on nothing, and tapes don't travel.
                left = _parts(names_of(job), lin.graph, residual_part, left)
            run = self._run_values(job, lowered, lin.graph, values, names, results, left)
        steps = [Step(step.key, step.inputs, key) for step, key in zip(lin.steps, left, strict=True)]
        return results, GraphResiduals(self._scheduler, lowered, steps, run.kept)

    def _run_values(
        self,
        job: Job,
        lowered: Lowered,
        graph: dict[Key, GraphNode],
        values: list[Key],
        names: Names,
        results: Results,
        keep: Sequence[Key],
    ) -> Run:
        """Run a graph for what the batches give: their sum, and what is stacked."""
        chunks, total = dict(zip(values, lowered.batches.values(), strict=True)), None
        staying = Staying(names, graph)
        if job.kernel.reduces:
            terms, chunks = values, {}
            if job.kernel.stacks:
                terms, own = (_parts(names, graph, part, values) for part in (reduced_part, stacked_part))
                chunks = dict(zip(own, lowered.batches.values(), strict=True))
            parts = [job.part_of(some) for some in lowered.batches.values()]
            summing = job._replace(monoid=MeasuredSum(job.monoid))
            ref, sums = summing.reduction([TaskRef(key) for key in terms], parts, lambda *at: names("sum", at))
            graph.update(sums)
            total = ref.key
        if job.stacked_at is not None and self._scheduler.remote:
            for key, some in list(chunks.items()):
                if stays := _stays(job.stacked_at, some, functools.partial(results.keeper, job)):
                    name = names("getitem", ("landing", key[1]))
                    chunks[staying.split(key, name, stays, STACKED)] = chunks.pop(key)

        seconds, n_compiled = 0.0, 0

        def landed(key: Key, result: Measured) -> None:
            nonlocal seconds, n_compiled
            if key == total:
                results.reduced = result.value
            else:
                results.put(job, chunks[key], result.value)
            seconds, n_compiled = seconds + result.seconds, n_compiled + result.n_compiled

        keys = [*([total] if total else []), *chunks]
        run = self._run(job, graph, keys, landed, results, [*keep, *staying.keys])
        if self.remote:
            results.spent, results.n_compiled = results.spent._replace(cpu=seconds), n_compiled
        staying.deliver(run)
        return run

    def _run(
        self,
        job: Job,
        graph: dict[Key, GraphNode],
        keys: list[Key],
        landed: Callable[[Key, Any], None],
        results: Results,
        keep: Sequence[Key],
    ) -> Run:
        began = time.perf_counter()
        with first_refused(self._scheduler, job, "call", (), self.group):
            run = run_graph(self._scheduler, graph, keys, landed, keep=keep, kept=job.kept())
        wall = time.perf_counter() - began
        results.spent = Spent(run.cpu_seconds if run.n_workers else wall, wall, run.n_workers)
        return run


class GraphResiduals:
    """Linearizations of a job's tasks, as the scheduler refers to them; `kept` is shared with the run."""

    ran_by = "graph"

    def __init__(
        self, scheduler: Scheduler, lowered: Lowered, steps: Sequence[Step], kept: dict[Key, object] | None
    ) -> None:
        self._scheduler, self._steps, self._kept = scheduler, steps, {} if kept is None else kept
        self._batches, self._shared = lowered.batches, lowered.shared
        self._rows = {step.key: [key for key in step.inputs if key != lowered.shared] for step in steps}

    def pull(self, job: Job, seeds: Sequence[Seeds], land: Land, *, keep: bool = False) -> bool:
        """Pull some seeds, and let their cotangents land; chunks whose seeds are all zero are not pulled."""
        graph, shared, sliced = dict[Key, GraphNode](), dict[Key, range](), dict[Key, tuple[list[Chunk], range]]()
        staying = Staying(new_names(job.kernel.name), graph)
        for first in range(0, len(seeds), SEEDS_A_TASK):
            some, names = seeds[first : first + SEEDS_A_TASK], new_names(job.kernel.name)
            arriving, landing = _seed_nodes(job, self._batches, some, names, graph), range(first, first + len(some))
            pull = pull_batch if len(seeds) == 1 and not keep else pull_batch_again
            parts = [job.part_of(chunks) for key, chunks in self._batches.items() if key in arriving]

            def add_up(key: Key, terms: Sequence[Any], key_of: Callable[..., Key], parts: Sequence[Any] = parts) -> Any:
                return job.reduction(terms, parts, key_of) if key == self._shared else (terms[0], {})

            cotangents, reverse = transpose(self._steps, arriving, names, pull, add_up)
            graph.update(reverse)
            if self._shared in cotangents:
                shared[cotangents[self._shared].key] = landing
            elif job.n_shared:
                land(job.shared_targets, None, landing)
            for key, chunks in self._batches.items() if job.has_sliced else ():
                if key in arriving:
                    source = cotangents[self._rows[key][0]].key
                    if self._scheduler.remote and job.has_stays:
                        stays = _stays_landing(job, chunks, land, landing)
                        source = staying.split(source, names("getitem", ("landing", key[1])), stays)
                    sliced[source] = chunks, landing
                else:
                    land(job.targets(chunks), None, landing)

        def landed(key: Key, result: Value) -> None:
            if key in shared:
                land(job.shared_targets, job.monoid.lower(result), shared[key])
            else:
                chunks, some_seeds = sliced[key]
                job.land_rows(chunks, result, land, some_seeds)

        if shared or sliced:
            sharded = (shards for one in seeds for shards in one.sharded if shards is not None)
            kept = {**job.kept(), **self._kept, **{key: value for one in sharded for key, value in one.kept.items()}}
            with settings_here(self._scheduler), first_refused(self._scheduler, job, "pull", seeds, 1):
                run = run_graph(self._scheduler, graph, [*shared, *sliced], landed, keep=staying.keys, kept=kept)
            staying.deliver(run)
        return True

    def release(self) -> None:
        """Let go of the linearizations, which the run that somebody may watch has too."""
        self._kept.clear()


def _seed_nodes(
    job: Job, batches: dict[Key, list[Chunk]], seeds: Sequence[Seeds], names: Names, graph: dict[Key, GraphNode]
) -> dict[Key, Any]:
    """Return references to the seeds of each batch that has some, after adding the nodes that hold them."""
    reduced = [list(one.reduced) for one in seeds]
    common = names("input", "seed")
    all_zero = not any(seed is not None for some in reduced for seed in some)
    if not all_zero:
        graph[common] = DataNode(common, [BatchSeeds(some) for some in reduced] if not job.kernel.stacks else reduced)
    found: dict[Key, Any] = {}
    for key, chunks in batches.items():
        if not job.kernel.stacks:
            if not all_zero:
                found[key] = TaskRef(common)
            continue
        stacked = [[one.stacked(chunk.number) for chunk in chunks] for one in seeds]
        if all_zero and not any(seed is not None for one in stacked for own in one for seed in own):
            continue
        found[key] = Task(None, seeds_of_batch, reduced if all_zero else TaskRef(common), nested(stacked))
    return found


def _stays_landing(job: Job, chunks: Sequence[Chunk], land: Land, seeds: range) -> list[Any]:
    """Return what of the cotangents of some chunks stays: by chunk and index, seed by seed, with what takes it."""
    at = [job.inputs.targets(chunk.number) for chunk in job.plan]

    def keeper(number: int, position: int) -> Callable[[Kept], None]:
        seed, own = divmod(position, len(at[number]))
        return job.keeper(number, own, land, seeds[seed])

    return _stays([targets * len(seeds) for targets in at], chunks, keeper)


def _stays(at: Sequence[Targets], chunks: Sequence[Chunk], keeper: Callable[[int, int], Any]) -> list[Any]:
    return [
        (index, position, keeper(chunk.number, position))
        for index, chunk in enumerate(chunks)
        for position in staying(at[chunk.number])
    ]
