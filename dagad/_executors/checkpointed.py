"""The executor of a run that resumes: every chunk's result goes to disk as it lands, and is not computed again.

It runs a job as a graph of one task a chunk, each of which hands out what the chunk gave: for a reduction its value and
its gradient for the seed 1 together. What was on disk already is left out of the graph; sums are added up here, along
the tree of the plan, so the bits are those of a run without interruption. Once all chunks are there their sums take
their place on the disk. Where chunks are not asked for, a reduction is run as without a checkpoint, by residents for
instance, and its sums alone are written down. Jobs follow each other as the program has them run: the n-th job of a
program that runs again has to be the one that was the n-th before, or is refused.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from dagad._errors import CheckpointError, StructureError
from dagad._executors.evaluation import Scheduler, is_inside_any_task, new_names, run_graph, settings_here
from dagad._executors.graph import lower
from dagad._executors.journal import Journal
from dagad._executors.records import Record
from dagad._graphs.policies import Policy
from dagad._graphs.sum_trees import Subtree, assembled
from dagad._kernels.job import Executor, Job, Land, Residuals, Results, Seeds, nested
from dagad._kernels.kernel import Kernel
from dagad._sources.samples import Drawn
from dagad._sources.slots import ONE_SEED
from dagad._tracing.recalled import is_beside
from dagad._types import AnyRows, AnyScheduler, Value
from dagad._values import pytree
from dagad._values.digest import digest
from dagad._values.shipping import opened
from dagad_scheduler.private import GraphNode, Task, TaskRef


class Strand:
    """Operations of a checkpointed program that follow each other; `lock` is held while any of the program runs.

    What `evaluate` starts goes on by itself, at its own pace: it is a strand of its own. A program that goes on from a
    state does not start it again, so it ends with the next state that is saved. `by_chunk` is whether chunks of
    reductions are written down too, as they land.
    """

    def __init__(
        self,
        journal: Journal,
        by_chunk: bool,
        lock: threading.RLock,
        name: str = "0",
        generation: int | None = None,
    ) -> None:
        self.journal, self.by_chunk, self.lock, self.name = journal, by_chunk, lock, name
        self._generation = generation

    def parted(self) -> Strand:
        """Return a strand that begins here."""
        number = self.journal.n_parted[self.name]
        self.journal.n_parted[self.name] += 1
        return Strand(self.journal, self.by_chunk, self.lock, f"{self.name}.{number}", self.generation)

    @property
    def generation(self) -> int:
        """How often the state had been saved when this began; the program itself begins anew each time."""
        return self.journal.generation if self._generation is None else self._generation

    def is_over(self) -> bool:
        """Return whether what runs here now need not be written down."""
        return self.journal.is_closed or self.generation != self.journal.generation


_CURRENT: ContextVar[Strand | None] = ContextVar("dagad_checkpoint", default=None)

REASONS = {
    "function": "its function, or something that this uses, is another one",
    "plan": "its rows are others, or cut otherwise",
    "rows": "its rows are others",
    "arguments": "its arguments are others",
    "asked": "something else is asked of it",
}
_CUT_ANEW = ', and with a number for the `grainsize` of Shards, which "auto" cuts anew in each process'


class CheckpointedExecutor:
    """Runs jobs as graphs whose chunks go to disk.

    Parameters
    ----------
    inner
        What runs jobs that can't be resumed: those whose results stay on workers.
    scheduler
        What runs the graphs.
    strand
        Which part of the program it is, and the checkpoint.
    """

    name = "checkpointed"

    def __init__(self, inner: Executor, scheduler: Scheduler, strand: Strand) -> None:
        self._inner, self._scheduler, self._strand = inner, scheduler, strand
        self._journal, self._lock, self.remote = strand.journal, strand.lock, inner.remote

    def _bypasses(self, job: Job) -> bool:
        """Return whether a job is run without the checkpoint."""
        return job.has_stays or self._strand.is_over() or _current() is None

    def call(self, job: Job) -> Results:
        """Run a job for what it gives."""
        if self._bypasses(job):
            return self._inner.call(job)
        with self._lock:
            return self._results(job, self._outcome(job))

    def linearize(self, job: Job, policy: Policy) -> tuple[Results, Residuals | None]:
        """Run a job; a reduction with its gradient, others for what they give: pullbacks are further jobs."""
        if self._bypasses(job):
            return self._inner.linearize(job, policy)
        if not job.kernel.is_reduction:
            return self.call(job), None
        both, results = self.call(job.value_and_grad(policy.counters)), Results.of(job)
        value, shared, n_without = job.monoid.lower(both.reduced)
        results.reduced = job.monoid.lift(value)
        return results, None if n_without else GradientAtHand(shared, both.stacked)

    def _results(self, job: Job, outcome: Outcome) -> Results:
        results = Results.of(job)
        if job.kernel.reduces:
            results.reduced = job.monoid.lift(outcome.total)
        for chunk, (stacked, note) in zip(job.plan, outcome.own, strict=True) if job.kernel.stacks else ():
            results.stacked[chunk.number], results.notes[chunk.number] = stacked, note
        return results

    def _outcome(self, job: Job) -> Outcome:
        """Return what a job gives, from disk where it is there."""
        strand = self._strand.name
        # A state may have been saved while it waited for its turn: it is of what led there, and goes to no disk.
        position = {"strand": strand, "number": self._journal.numbers[strand], "generation": self._strand.generation}
        about = self._about(job) | position
        past = self._journal.next(strand)
        if past is not None:
            self._refuse_other(past, about)
            return (
                Outcome(*past["data"])
                if past["is_sum"]
                else Outcome.of(job, [ChunkResult(*one) for one in past["data"]])
            )
        found = self._landed(about)
        if not (found or self._strand.by_chunk or job.kernel.stacks):
            outcome = Outcome(job.monoid.lower(self._inner.call(job).reduced), [])
            if self._is_recorded(about, outcome):
                return outcome
        if found is None:
            self._journal.begun(about)
        return self._by_chunks(job, about, position, found or {})

    def _is_recorded(self, about: Record, outcome: Outcome) -> bool:
        """Write down that an operation has ended; a sum may be what no record holds, as an int of more than 64 bits."""
        try:
            self._journal.ended(about | {"is_sum": True, "data": tuple(outcome)})
        except StructureError:
            return False
        return True

    def _by_chunks(self, job: Job, about: Record, position: Record, found: dict[int, ChunkResult]) -> Outcome:
        """Run the chunks that are not found, and record each as it lands."""
        missing = {chunk.number for chunk in job.plan} - found.keys()
        if missing:
            self._run(job, missing, found, position)
        parts = [found[chunk.number] for chunk in job.plan]
        outcome = Outcome.of(job, parts)
        if not self._is_recorded(about, outcome):
            self._journal.ended(about | {"is_sum": False, "data": list(map(tuple, parts))})
        return outcome

    def _run(self, job: Job, missing: Collection[int], found: dict[int, ChunkResult], position: Record) -> None:
        """Run some chunks, and write each down as it lands."""
        lowered = lower(job, new_names(job.kernel.name), 1)
        left_out = {key for key, (chunk,) in lowered.batches.items() if chunk.number not in missing}
        graph = {key: node for key, node in lowered.graph.items() if key not in left_out}

        def landed(key: object, result: Value) -> None:
            (chunk,) = lowered.batches[key]
            own = (result.reduced, result.stacked[0], result.notes[0]) if job.kernel.stacks else (result, [], None)
            self._journal.landed({"chunk": chunk.number, **position, "data": own})
            found[chunk.number] = ChunkResult(*own)

        wanted = [key for key in lowered.batches if key in graph]
        with settings_here(self._scheduler):
            run_graph(self._scheduler, graph, wanted, landed, kept=job.kept())

    # Is it the same as before?

    def _about(self, job: Job) -> Record:
        """Return what tells an operation from others, in digests."""
        return {
            "name": job.kernel.of_user.name,
            "function": digest(job.kernel, job.monoid),
            "plan": digest(job.plan.key),
            "rows": self._of_rows(job),
            "arguments": digest([pytree.plain(leaf) for leaf in job.leaves], job.inputs.shared, job.inputs.sliced),
            "asked": job.kernel.gives,
        }

    def _of_rows(self, job: Job) -> str:
        """Return a digest of the rows; those that live elsewhere, or are made there, are digested there, once."""
        rows = {chunk.number: job.sliced.rows(chunk) for chunk in job.plan}
        away = {number: nested(one) for number, one in rows.items() if _is_away(one)}
        if not away:
            return digest(rows)
        shards = job.sliced.shards
        if len(shards) != 1 or not job.sliced.treedef.is_leaf():  # rows of a store, say, are in no Shards
            found = self._digests(job, away)
        elif shards[0].drawn is None:
            found = shards[0].remembered("digests", lambda: self._digests(job, away))
        else:  # chunks of a sample are those of others, too
            found = self._of_sample(job, shards[0].drawn, away)
        return digest([found[number] if number in found else digest(one) for number, one in rows.items()])

    def _of_sample(self, job: Job, drawn: Drawn, away: dict[int, Any]) -> dict[int, str]:
        """Return digests of the chunks of a sample; what they are a sample of knows them from then on."""
        known: dict[int, str] = drawn.whole.remembered("digests of chunks", dict)
        numbers = {position: drawn.numbers[position] for position in away}
        new = self._digests(
            job, {position: away[position] for position, number in numbers.items() if number not in known}
        )
        known.update({numbers[position]: found for position, found in new.items()})
        return {position: known[number] for position, number in numbers.items()}

    def _digests(self, job: Job, away: dict[int, Any]) -> dict[int, str]:
        """Have rows digested where they are."""
        names, found = new_names("digest"), dict[int, str]()
        keys = {number: names("input", number) for number in away}
        graph = {keys[number]: Task(keys[number], digest_of_rows, one) for number, one in away.items()}
        if graph:
            run_graph(
                self._scheduler, graph, list(graph), lambda key, result: found.update({key[1]: result}), kept=job.kept()
            )
        return found

    def _landed(self, about: Record) -> dict[int, ChunkResult] | None:
        """Return what is on disk of the chunks of the operation that begins; None if it had not begun."""
        head, *landed = self._journal.chunks or [{}]
        if not _is_at(head, about):
            return None
        self._refuse_other(head, about)
        # What the disk kept of chunks before a crash of the machine may be of an operation that was before.
        return {record["chunk"]: ChunkResult(*record["data"]) for record in landed if _is_at(record, about)}

    def _refuse_other(self, past: Record, about: Record) -> None:
        """Raise unless an operation is the one that was written down."""
        parts = [part for part in REASONS if past[part] != about[part]]
        if parts:
            if "plan" in parts and "rows" in parts:  # which are compared chunk by chunk
                parts.remove("rows")
            other = [REASONS[part] for part in parts]
            number, name = about["number"], about["name"]
            raise CheckpointError(
                f"The checkpoint {self._journal.path} does not belong to this run: operation {number} was of "
                f"`{past['name']}`{'' if past['name'] == name else f', now it is of `{name}`'}, and "
                f"{', and '.join(other)}. Run the program that wrote it, with the same data, start and seeds of random "
                f"numbers{_CUT_ANEW if 'plan' in parts else ''}; or give another directory to begin anew."
            )


@contextlib.contextmanager
def checkpointing(journal: Journal, by_chunk: bool) -> Iterator[None]:
    """Have what runs in this thread, and in evaluations that it starts, written down."""
    if _CURRENT.get() is not None:
        raise CheckpointError("There is a checkpoint around this one already. Use one at a time.")
    token = _CURRENT.set(Strand(journal, by_chunk, threading.RLock()))
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextlib.contextmanager
def strand_of_its_own() -> Iterator[None]:
    """Let what is started here be a strand of its own, where there is a checkpoint."""
    current = _CURRENT.get()
    token = _CURRENT.set(None if current is None else current.parted())
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextlib.contextmanager
def unwritten() -> Iterator[None]:
    """Let what runs here be no part of the program: when that goes on, it may not be run again."""
    token = _CURRENT.set(None)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def _current() -> Strand | None:
    """Return the strand that is written here; none where a program is run for comparison, which is no part of it."""
    return None if is_beside() else _CURRENT.get()


def is_checkpointed() -> bool:
    """Return whether what runs here is written down, in its order."""
    current = _current()
    return current is not None and not current.is_over() and not is_inside_any_task()


def checkpointed(inner: Executor, scheduler: AnyScheduler) -> Executor:
    """Return an executor whose chunks go to disk, where there is a checkpoint; chunks of what a chunk runs do not."""
    current = _current()
    if current is None or current.is_over() or is_inside_any_task():
        return inner
    if inner is scheduler:
        raise CheckpointError(
            "A checkpoint was asked for around work that `scheduler=` runs by an executor of its own, which hands out "
            "no single chunks. Choose a scheduler of Dask's, or do without the checkpoint."
        )
    return CheckpointedExecutor(inner, scheduler, current)


def remembered_grainsize(kernel: Kernel, n_rows: int, find: Callable[[], int]) -> int:
    """Return a grainsize that was found out before the program was interrupted, else what `find` does."""
    current = _current()
    if current is None or not is_checkpointed():
        return find()
    return current.journal.grainsize(digest(kernel, n_rows), find)


class ChunkResult(NamedTuple):
    """What a chunk gave: what is added up, and what is its own."""

    reduced: Any
    stacked: list[Any]
    note: Any


class Outcome(NamedTuple):
    """What a job gave: the value of its sum, and what chunks have of their own, each with its note."""

    total: Any
    own: list[tuple[list[Any], Any]]

    @classmethod
    def of(cls, job: Job, parts: Sequence[ChunkResult]) -> Outcome:
        """Add up what chunks gave."""
        total = job.monoid.lower(_summed(job, parts)) if job.kernel.reduces else None
        return cls(total, [(part.stacked, part.note) for part in parts] if job.kernel.stacks else [])


class GradientAtHand:
    """The gradient for the seed 1 of a reduction, that came with its value; see `Residuals`."""

    ran_by = CheckpointedExecutor.name

    def __init__(self, shared: list[Any], of_rows: list[list[Any]]) -> None:
        self._shared, self._of_rows = shared, of_rows

    def pull(self, job: Job, seeds: Sequence[Seeds], land: Land, *, keep: bool = False) -> bool:
        """Let the gradient land where the seed is 1; others are jobs of their own."""
        del keep  # nothing is used up
        if len(seeds) != 1 or list(map(float, seeds[0].reduced)) != [1.0]:
            return False
        if job.n_shared:
            land(job.shared_targets, self._shared, ONE_SEED)
        if job.has_sliced:
            job.land_rows(list(job.plan), self._of_rows, land)
        return True

    def release(self) -> None:
        """Let go of nothing: it is on disk."""


def digest_of_rows(rows: AnyRows) -> str:
    """Return, in a task, a digest of the rows of a chunk."""
    return digest(opened(rows).made())


def _is_away(rows: AnyRows) -> bool:
    """Return whether rows are elsewhere, or are made where they are used."""
    return isinstance(rows, GraphNode | TaskRef) or bool(getattr(opened(rows), "is_made", False))


def _is_at(record: Record, about: Record) -> bool:
    """Return whether a record is of the same operation of the program."""
    return all(record.get(name) == about[name] for name in ("strand", "number", "generation"))


def _summed(job: Job, parts: Sequence[ChunkResult]) -> Any:
    subtrees = job.runs or [Subtree(number, 0) for number in range(len(parts))]
    return assembled(subtrees, [part.reduced for part in parts], job.n_terms, job.monoid)
