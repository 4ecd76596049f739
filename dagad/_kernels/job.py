"""An operation at values, and the protocol of what runs it: executors know nothing of modes, nor jobs of executors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from dagad._graphs.linearization import Counters
from dagad._graphs.monoids import Monoid
from dagad._graphs.policies import Policy
from dagad._graphs.sum_trees import Subtree, add_up_subtrees, sum_tree, whole_row
from dagad._kernels.batch import Batch
from dagad._kernels.chunks import ChunkContext, Names
from dagad._kernels.derivatives import GradOrPullback
from dagad._kernels.inputs import Inputs, Targets
from dagad._kernels.kernel import Groups, Kernel
from dagad._sources.columns import Sliced
from dagad._sources.plan import AnyPlan, Chunk
from dagad._sources.slots import ONE_SEED, cut_rows
from dagad._types import AnyScheduler, Value
from dagad._values import pytree
from dagad_scheduler.private import GraphNode, List, Task, TaskRef

# Takes the cotangents of some targets for some seeds, one seed after the other: None where all of them are zero.
Land = Callable[[Targets, Sequence[Any] | None, range], None]


class Job(NamedTuple):
    """A kernel on all chunks of some rows, at leaves: everything that an executor has to know."""

    kernel: Kernel
    plan: AnyPlan
    sliced: Sliced
    inputs: Inputs
    leaves: Sequence[Any]
    monoid: Monoid
    owner: Hashable  # what stays the same when the user's function is defined again
    stacked_at: list[Targets] | None = None  # where the stacked leaves of each chunk belong, if that is known
    land: Land | None = None  # takes those that are cotangents of rows as they come; None: they are listed

    def value_and_grad(self, counters: Counters | None = None, land: Land | None = None) -> Job:
        """Return the job that gives the gradient for the seed 1 as well: the value, that of theta, and see there."""
        kernel = GradOrPullback(self.kernel, self.has_sliced, counters)
        return self._replace(kernel=kernel, stacked_at=self.inputs.flat() if self.has_sliced else None, land=land)

    @property
    def batch(self) -> Batch:
        """The kernel on runs of chunks."""
        return Batch(self.kernel, self.monoid)

    @property
    def n_shared(self) -> int:
        """How many leaves are shared; they come first."""
        return sum(self.inputs.shared)

    @property
    def has_sliced(self) -> bool:
        """Whether something in the rows is being differentiated."""
        return any(self.inputs.sliced)

    @property
    def has_stays(self) -> bool:
        """Whether some sliced leaves are Shards, whose cotangents stay where they are."""
        return bool(self.sharded)

    @property
    def sharded(self) -> list[Any]:
        """The sliced leaves that are Shards."""
        return [leaf for leaf in self.leaves if pytree.is_sharded(leaf)]

    @property
    def sharded_leaves(self) -> list[tuple[int, Any]]:
        """The same, with their numbers among all leaves."""
        return [(number, leaf) for number, leaf in enumerate(self.leaves) if pytree.is_sharded(leaf)]

    @property
    def is_resident(self) -> bool:
        """Whether there are rows that live on workers."""
        for one in self.sliced.shards:
            if one.is_here:
                return False
        return bool(self.sliced.shards) and not any(one.is_here for one in self.sharded)

    @property
    def shared_targets(self) -> Targets:
        """Where the cotangents of the shared leaves belong."""
        return [(leaf, None) for leaf in range(self.n_shared)]

    @property
    def signature(self) -> Hashable:
        """What two jobs have in common that cost the same: the function, what is asked of it, and how rows are cut."""
        shards = self.sliced.shards
        is_sample = shards and shards[0].drawn is not None
        return self.owner, self.kernel.signature, self.cut if is_sample else self.plan.key

    @property
    def cut(self) -> Hashable:
        """What jobs have in common whose rows cost the same: samples of one size are alike."""
        shards = self.sliced.shards
        if not shards or shards[0].drawn is None:  # nearly always
            return self.plan.key
        return len(self.plan), len(shards[0].plan), shards[0].drawn.whole.plan.key

    def shared(self) -> Groups:
        """Return the shared leaves in groups."""
        return self.inputs.groups(self.leaves, self.inputs.shared)

    def sliced_leaves(self, number: int) -> Groups:
        """Return the sliced leaves of a chunk, in groups."""
        parts = [cut_rows(self.leaves[leaf], rows) for leaf, rows in self.inputs.targets(number)]
        return self.inputs.groups(parts, [len(group) for group in self.inputs.rows[number]])

    @property
    def runs(self) -> list[Subtree] | None:
        """Which parts of the tree the chunks are, where each is a run of chunks itself; None where they are not."""
        return self.sliced.parts

    @property
    def n_terms(self) -> int:
        """How many terms the tree of sums has."""
        n_chunks = self.sliced.n_chunks
        return len(self.plan) if n_chunks is None else n_chunks

    def part_of(self, chunks: Sequence[Chunk]) -> Subtree:
        """Return which part of the tree of sums some chunks are: a run that makes a task."""
        first = chunks[0].number
        return Subtree(first, (len(chunks) - 1).bit_length()) if self.runs is None else self.runs[first]

    def reduction(
        self, terms: Sequence[Any], parts: Sequence[Subtree], key_of: Callable[..., Any]
    ) -> tuple[Any, dict[Any, Task]]:
        """Return a reference to the sum of what some parts of the tree gave, and the tasks that compute it."""
        n_terms = self.n_terms
        if parts == whole_row(parts[0].level, n_terms):
            return sum_tree(terms, key_of, self.monoid)
        key = key_of(0, 0)
        return TaskRef(key), {key: Task(key, add_up_subtrees, self.monoid, list(map(tuple, parts)), n_terms, *terms)}

    def kept(self) -> dict[Any, Any]:
        """Return what rows refer to that live elsewhere."""
        found = self.sliced.kept()
        for leaf in self.sharded:
            found |= leaf.kept
        return found

    def land_rows(self, chunks: Sequence[Chunk], parts: Sequence[Any], land: Land, seeds: range = ONE_SEED) -> None:
        """Let the cotangents of the rows of some chunks land, but for what stays where it is."""
        for number, chunk in enumerate(chunks):
            targets, own = self.inputs.targets(chunk.number), parts[number]
            if any(part is STAYED for part in own):
                targets = [target for target, part in zip(targets, own, strict=False) if part is not STAYED]
                own = [part for part in own if part is not STAYED]  # for each seed the same
            land(targets, own, seeds)

    def targets(self, chunks: Sequence[Chunk]) -> Targets:
        """Return where the cotangents of the sliced leaves of some chunks belong."""
        return [target for chunk in chunks for target in self.inputs.targets(chunk.number)]

    def keeper(self, number: int, index: int, land: Land, seed: int = 0) -> Callable[[Any], None]:
        """Return what takes the cotangents of one leaf of a chunk's rows, when it is known where they stay."""
        target = self.inputs.targets(number)[index]
        return lambda kept: land([target], [kept], range(seed, seed + 1))

    def arguments(self, chunks: Sequence[Chunk], names: Names) -> tuple[Any, ...]:
        """Return the arguments of the batch for some chunks."""
        contexts = list(map(_new_context, zip(chunks, itertools.repeat(names), strict=False)))
        args = contexts, [self.sliced.rows(chunk) for chunk in chunks], self.shared()
        return (*args, [self.sliced_leaves(chunk.number) for chunk in chunks]) if self.has_sliced else args


_new_context: Callable[[tuple[Any, ...]], ChunkContext] = partial(tuple.__new__, ChunkContext)  # as there are many


class _Stayed:
    """Stands in a list for what stays where it is."""

    def __reduce__(self) -> str:
        return "STAYED"


STAYED = _Stayed()


class Residuals(Protocol):
    """What was left behind for pullbacks."""

    def pull(self, job: Job, seeds: Sequence[Seeds], land: Land, *, keep: bool = False) -> bool:
        """Pull some seeds, and let the cotangents of all leaves land, each once; None for zeros.

        What is pulled with a single seed is used up, unless somebody is to pull again (`keep`). Returns False, before
        anything has landed, where what was left behind is lost.
        """

    def release(self) -> None:
        """Let go of what is held elsewhere: nobody will pull again."""


class Seeds(Protocol):
    """Cotangents of all that an operation gives."""

    @property
    def floats(self) -> Sequence[Any]:
        """Those of all leaves that have derivatives, before each chunk takes its own."""

    @property
    def reduced(self) -> Sequence[Any]:
        """Those of the reduced leaves."""

    def stacked(self, number: int) -> list[Any]:
        """Return those of the stacked leaves of one chunk."""

    @property
    def sharded(self) -> list[Any]:
        """Those of stacked leaves that are Shards; None for zeros."""


class Spent(NamedTuple):
    """What a run took: `cpu` seconds of all chunks, `wall` seconds, and by how many threads of this process."""

    cpu: float
    wall: float
    workers: int


NOTHING_SPENT = Spent(0.0, 0.0, 0)


class Reckoned(Protocol):
    """What such jobs took before."""

    @property
    def words(self) -> str:
        """The same, for the profile."""


@dataclass(slots=True)
class Results:
    """What a job has given so far: `stacked` and `notes` by chunk."""

    reduced: Any
    stacked: list[Any]
    notes: list[Any]
    gives: str = ""  # what was given, where it is less than was asked for
    spent: Spent = NOTHING_SPENT
    ran_by: Executor | None = None  # the executor that did, where the one that was asked chose among several
    reason: str = ""  # why it was chosen
    reckoned: Reckoned | None = None  # what was known when it was chosen
    refusals: Sequence[str] = ()  # why others, asked before, did not
    n_compiled: int = 0  # how often something was compiled in other processes, as far as they say

    @classmethod
    def of(cls, job: Job) -> Results:
        """Return the results of a job of which nothing has landed."""
        if not job.kernel.stacks:
            return cls(None, [], [])
        return cls(None, [[] for _ in job.plan], [None for _ in job.plan])

    def keeper(self, job: Job, number: int, index: int) -> Callable[[Any], None]:
        """Return what takes one leaf of a chunk, when it is known where it stays."""
        if job.land is not None:
            return job.keeper(number, index, job.land)

        def take(kept: object) -> None:
            self.stacked[number][index] = kept

        return take

    def put(self, job: Job, chunks: Sequence[Chunk], result: Value) -> None:
        """Take what a batch gave of its own."""
        if job.kernel.stacks and job.land is not None:
            job.land_rows(chunks, result.stacked, job.land)
        elif job.kernel.stacks:
            for chunk, own, note in zip(chunks, result.stacked, result.notes, strict=True):
                self.stacked[chunk.number], self.notes[chunk.number] = own, note


class Executor(Protocol):
    """How and where jobs run.

    A new one is one file with these two methods, and is given as ``scheduler=``. What it runs is `Job.batch`, on
    `Job.arguments` of runs of chunks: a batch's `value` for `call`; `policy.linearize(batch, args)` for `linearize`,
    which may be left undone (None: what is pulled then comes as jobs of their own).

    Attributes
    ----------
    name
        What it is called.
    remote
        Whether chunks run in other processes, which get copies of what they work on.
    """

    name: str
    remote: bool

    def call(self, job: Job) -> Results:
        """Run a job for what it gives."""

    def linearize(self, job: Job, policy: Policy) -> tuple[Results, Residuals | None]:
        """Run a job, and leave behind what its policy says, None for nothing."""


def is_executor(scheduler: AnyScheduler) -> bool:
    """Return whether what a user gave as ``scheduler=`` runs jobs by itself."""
    return hasattr(scheduler, "linearize")


def nested(part: object) -> Any:
    """Return lists as nodes where they hold references."""
    if not isinstance(part, list):
        return part
    found = list(map(nested, part))
    return List(*found) if any(isinstance(item, GraphNode | TaskRef) for item in found) else part
