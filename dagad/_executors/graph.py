"""The graph executor: a job as a Dask graph, on any scheduler; its pullback is the graph's transpose."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dagad._executors.evaluation import LocalRun, Run, Scheduler, calm_here, new_names, run_graph
from dagad._executors.first import first_refused
from dagad._executors.graph_tasks import (
    STAYED,
    Together,
    Unit,
    add_up_units,
    landing_part,
    plain_value,
    pull_batch,
    pull_batch_again,
    reduced_part,
    residual_part,
    seeds_of_batch,
    stacked_part,
    staying_part,
    summed_part,
    unit_of,
)
from dagad._graphs.linearization import Linearization, value_of_task
from dagad._graphs.linearize import Step, linearize
from dagad._graphs.policies import Keep, Policy
from dagad._graphs.sum_trees import sum_tree
from dagad._graphs.transpose import transpose
from dagad._operations.batch import BatchSeeds
from dagad._operations.inputs import Targets
from dagad._operations.job import Job, Land, Results, Seeds, Spent, nested
from dagad._sources.base import Stays
from dagad._sources.plan import Chunk
from dagad._sources.shards import Kept
from dagad_scheduler.private import DataNode, GraphNode, Task, TaskRef

Key = Any
# So many seeds make a task: few enough that the workers share them, enough that a task's own cost is small.
SEEDS_A_TASK = 16


@dataclass(frozen=True, slots=True)
class Lowered:
    """A job as a graph: the chunks of each task, and where the inputs belong that are being differentiated."""

    graph: dict[Key, GraphNode]
    batches: dict[Key, list[Chunk]]
    inputs: dict[Key, Targets]
    shared: Key | None


def lower(job: Job, names: Any, group: int) -> Lowered:
    """Return the graph of a job, `group` chunks a task, without what adds them up."""
    kernel, shared_key = names("input", "function"), names("input", "theta")
    graph: dict[Key, GraphNode] = {kernel: DataNode(kernel, job.batch)}
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


def _parts(names: Any, graph: dict[Key, GraphNode], part: Callable[[Any], Any], keys: Sequence[Key]) -> list[Key]:
    """Return the keys of one part of each result, after adding the tasks that take it."""
    found = [names("getitem", (part.__name__, number)) for number in range(len(keys))]
    graph.update((name, Task(name, part, TaskRef(key))) for name, key in zip(found, keys, strict=True))
    return found


def _node(key: Key, value: list[Any]) -> GraphNode:
    node = nested(value)
    return DataNode(key, value) if node is value else Task(key, plain_value, node)


class Staying:
    """What stays where it is computed, as tasks of their own; handed over when their graph has run."""

    def __init__(self, names: Any, graph: dict[Key, GraphNode]) -> None:
        self._names, self._graph = names, graph
        self.waiting: list[tuple[Key, Callable[[Kept], None]]] = []

    def split(self, source: Key, name: Key, stays: Sequence[tuple[int, int, Callable[[Kept], None]]]) -> Key:
        """Return the key of the lists of some chunks without what stays: by chunk and place in its list."""
        self._graph[name] = Task(name, landing_part, TaskRef(source), [stay[:2] for stay in stays])
        for chunk, place, deliver in stays:
            key = self._names("shard", len(self.waiting))
            self._graph[key] = Task(key, staying_part, TaskRef(source), chunk, place)
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

    def __init__(self, scheduler: Scheduler, group: int = 1, *, is_scalar: bool | None = None) -> None:
        self._scheduler, self.group, self.remote = scheduler, group, scheduler.remote
        self._is_scalar = is_scalar  # whether each chunk is known to give one real number

    def call(self, job: Job) -> Results:
        """Run a job for what it gives."""
        names, results = new_names(job.kernel.name), Results.of(job)
        with calm_here(self._scheduler):
            lowered = lower(job, names, self.group)
            self._run_values(job, lowered, lowered.graph, list(lowered.batches), names, results, ())
        return results

    def linearize(self, job: Job, policy: Policy) -> tuple[Results, GraphResiduals]:
        """Run a job, and leave behind what its policy says."""
        names, results = new_names(job.kernel.name), Results.of(job)
        with calm_here(self._scheduler):
            lowered = lower(job, names, self.group)
            lin = linearize(lowered.graph, lowered.batches, lowered.inputs, names, policy, apart=self._scheduler.remote)
            values = [lin.values.get(key, key) for key in lowered.batches]
            run = self._run_values(job, lowered, lin.graph, values, names, results, lin.recorded())
        return results, GraphResiduals(self._scheduler, lowered, lin.steps, run.kept)

    def _run_values(
        self,
        job: Job,
        lowered: Lowered,
        graph: dict[Key, GraphNode],
        values: list[Key],
        names: Any,
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
            ref, sums = job.reduction([TaskRef(key) for key in terms], parts, lambda *at: names("sum", at))
            graph.update(sums)
            total = ref.key
        if job.stacked_at is not None and self._scheduler.remote:
            for key, some in list(chunks.items()):
                if stays := _stays(job.stacked_at, some, results.keeper):
                    chunks[staying.split(key, names("getitem", ("landing", key[1])), stays)] = chunks.pop(key)

        def landed(key: Key, result: Any) -> None:
            plain = result.value if type(result) is Linearization else result
            if key == total:
                results.reduced = plain
            else:
                results.put(job, chunks[key], plain)

        keys = [*([total] if total else []), *chunks]
        run = self._run(job, graph, keys, landed, results, [*keep, *staying.keys])
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
        method: str = "call",
    ) -> Run:
        began = time.perf_counter()
        with first_refused(self._scheduler, job, method, (), self.group):
            run = run_graph(self._scheduler, graph, keys, landed, keep=keep, kept=job.kept())
        wall = time.perf_counter() - began
        if isinstance(run, LocalRun):
            results.spent = Spent(run.cpu_seconds, wall, run.n_workers)
        else:
            results.spent = Spent(wall, wall, 0)
        return run

    def unit(self, job: Job, policy: Policy, land: Land) -> tuple[Results, GraphResiduals | None]:
        """Run a job together with its gradient for the seed 1; see `Executor`."""
        if self._is_scalar is False:
            return self.linearize(job, Keep(counters=policy.counters))
        names, results = replace(new_names(job.kernel.name), together=True), Results.of(job)
        totals: list[Unit] = []
        with calm_here(self._scheduler):
            lowered = lower(job, names, self.group)
            lin = linearize(lowered.graph, lowered.batches, lowered.inputs, names, Together(policy), apart=False)
            graph, units = lin.graph, [lin.values[key] for key in lowered.batches]
            residuals = [] if self._is_scalar else _parts(names, graph, residual_part, units)
            stays_here = self._scheduler.remote and job.has_stays
            # Sums are made anywhere: no cotangents of rows go there, and no linearizations, whose recipes have rows.
            strip = stays_here or (self._scheduler.remote and residuals)
            total = _add_up_units(job, names, graph, _parts(names, graph, summed_part, units) if strip else units)
            sliced, staying = dict[Key, list[Chunk]](), Staying(names, graph)
            for key, some in zip(units, lowered.batches.values(), strict=True) if job.has_sliced else ():
                stays = _stays_landing(job, some, land, 0) if stays_here else []
                sliced[staying.split(key, names("getitem", ("landing", key[1])), stays)] = some

            def landed(key: Key, result: Any) -> None:
                if key == total:
                    totals.append(unit_of(result))
                elif result is not None:
                    land_sliced(job, sliced[key], result, land)

            run = self._run(job, graph, [total, *sliced], landed, results, [*residuals, *staying.keys], "unit")
        (unit,) = totals
        results.reduced = unit.value
        if not isinstance(run, LocalRun):
            results.spent, results.n_compiled = Spent(unit.seconds, results.spent.wall, 0), unit.n_compiled
        results.has_gradient = unit.is_complete
        if unit.is_complete:
            staying.deliver(run)
            if job.n_shared:
                land(job.shared_targets, job.monoid.lower(unit.shared), 0)
            return results, None
        # Numbers were expected, and nothing was kept; or some are there, real among complex ones, whose tapes are gone.
        if not residuals or unit.has_numbers:
            return results, None
        left = dict(zip(units, residuals, strict=True))
        steps = [Step(step.key, step.inputs, left[step.linearization]) for step in lin.steps]
        return results, GraphResiduals(self._scheduler, lowered, steps, run.kept)


def _add_up_units(job: Job, names: Any, graph: dict[Key, GraphNode], units: Sequence[Key]) -> Key:
    """Return the key of the sum of what batches gave, after adding the tasks that compute it."""
    ref, sums = sum_tree(list(map(TaskRef, units)), lambda *at: names("sum", at))
    for key, task in sums.items():
        graph[key] = Task(key, add_up_units, job.monoid, key == ref.key, *task.args)
    return ref.key


class GraphResiduals:
    """Linearizations of a job's tasks, as the scheduler refers to them; `kept` is shared with the run."""

    ran_by = "graph"

    def __init__(self, scheduler: Scheduler, lowered: Lowered, steps: Sequence[Step], kept: Any) -> None:
        self._scheduler, self._steps, self._kept = scheduler, steps, {} if kept is None else kept
        self._batches, self._shared = lowered.batches, lowered.shared
        self._rows = {step.key: [key for key in step.inputs if key != lowered.shared] for step in steps}

    def pull(self, job: Job, seeds: Sequence[Seeds], land: Land) -> bool:
        """Pull some seeds, and let their cotangents land; chunks whose seeds are all zero are not pulled."""
        graph, shared, sliced = dict[Key, GraphNode](), dict[Key, int](), dict[Key, tuple[list[Chunk], int]]()
        staying = Staying(new_names(job.kernel.name), graph)
        for first in range(0, len(seeds), SEEDS_A_TASK):
            some, names = seeds[first : first + SEEDS_A_TASK], new_names(job.kernel.name)
            arriving = _seed_nodes(job, self._batches, some, names, graph)
            pull = pull_batch if len(seeds) == 1 else pull_batch_again
            parts = [job.part_of(chunks) for key, chunks in self._batches.items() if key in arriving]

            def add_up(key: Key, terms: Sequence[Any], key_of: Any, parts: Any = parts) -> Any:
                return job.reduction(terms, parts, key_of) if key == self._shared else (terms[0], {})

            cotangents, reverse = transpose(self._steps, arriving, names, pull, add_up)
            graph.update(reverse)
            if self._shared in cotangents:
                shared[cotangents[self._shared].key] = first
            elif job.n_shared:
                land(job.shared_targets, None, first)
            for key, chunks in self._batches.items() if job.has_sliced else ():
                if key in arriving:
                    source = cotangents[self._rows[key][0]].key
                    if self._scheduler.remote and job.has_stays:
                        name = names("getitem", ("landing", key[1]))
                        source = staying.split(source, name, _stays_landing(job, chunks, land, first))
                    sliced[source] = chunks, first
                else:
                    land(job.targets(chunks), None, first)

        def landed(key: Key, result: Any) -> None:
            if key in shared:
                land(job.shared_targets, job.monoid.lower(result), shared[key])
            else:
                chunks, first = sliced[key]
                land_sliced(job, chunks, result, land, first)

        if shared or sliced:
            placed = (shards for one in seeds for shards in one.placed if shards is not None)
            kept = {**job.kept(), **self._kept, **{key: value for one in placed for key, value in one.kept.items()}}
            with calm_here(self._scheduler), first_refused(self._scheduler, job, "pull", seeds, 1):
                run = run_graph(self._scheduler, graph, [*shared, *sliced], landed, keep=staying.keys, kept=kept)
            staying.deliver(run)
        return True

    def release(self) -> None:
        """Let go of the linearizations, which the run that somebody may watch has too."""
        self._kept.clear()


def _seed_nodes(
    job: Job, batches: dict[Key, list[Chunk]], seeds: Sequence[Seeds], names: Any, graph: dict[Key, GraphNode]
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


def land_sliced(job: Job, chunks: Sequence[Chunk], parts: Sequence[Any], land: Land, first: int = 0) -> None:
    """Let the cotangents of the rows of some chunks land."""
    for number, chunk in enumerate(chunks):
        targets, own = job.inputs.targets(chunk.number), None if parts is None else parts[number]
        if own is not None and any(part is STAYED for part in own):
            pairs = [pair for pair in zip(targets, own, strict=True) if pair[1] is not STAYED]
            targets, own = [target for target, _ in pairs], [part for _, part in pairs]
        land(targets, own, first)


def _stays_landing(job: Job, chunks: Sequence[Chunk], land: Land, first: int) -> list[Any]:
    """Return what of the cotangents of some chunks stays: by chunk and place, with what takes it."""

    def keeper(number: int, place: int) -> Callable[[Kept], None]:
        target = job.inputs.targets(number)[place]
        return lambda kept: land([target], [kept], first)

    return _stays([job.inputs.targets(chunk.number) for chunk in job.plan], chunks, keeper)


def _stays(at: Sequence[Targets], chunks: Sequence[Chunk], keeper: Callable[[int, int], Any]) -> list[Any]:
    return [
        (index, place, keeper(chunk.number, place))
        for index, chunk in enumerate(chunks)
        for place, (_, rows) in enumerate(at[chunk.number])
        if type(rows) is Stays
    ]
