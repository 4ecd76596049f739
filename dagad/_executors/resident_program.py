"""What runs on a worker in a hot loop: a kernel on chunks whose rows live there, combined by subtrees."""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from dagad._errors import CancelledError
from dagad._executors.evaluation import inside_task, process_settings
from dagad._graphs.linearization import Linearization
from dagad._graphs.monoids import Monoid
from dagad._graphs.policies import Keep, KeepRest, Policy
from dagad._graphs.sum_trees import Subtree, assembled_into, halves
from dagad._kernels.batch import Batch, Batched, BatchSeeds
from dagad._kernels.chunks import ChunkContext, Names
from dagad._kernels.kernel import BY_THREAD, Kernel, n_compiled
from dagad._sources.lineage import Expression, evaluated, scaled_rows
from dagad._sources.packed import is_packed
from dagad._sources.plan import AnyPlan, Chunk
from dagad._sources.rows import Rows
from dagad._types import Args, Value
from dagad._values import pytree
from dagad._values.buffers import pack_tree, unpack_tree
from dagad._values.shipping import PYTHON, Parcel, pack_call
from dagad._values.singletons import Singletons
from dagad_scheduler.residents.service import rows_left_here

# What a call asks for: a value; with what its policy leaves behind; cotangents for seeds.
VALUE, RECORD, PULL = "value", "record", "pull"
KEEP, KEEP_REST = Keep(), KeepRest()  # what is run here is not counted
PIECES_A_THREAD = 4
THERE = ()  # stands among leaves for one in Shards, that a worker has; None is a seed of zeros


class Found(NamedTuple):
    """What the chunks of one worker gave, or the cotangents of shared and of sliced leaves.

    By subtree what is added up, by chunk the rest.
    """

    reduced: list[Any]
    stacked: list[Any]
    notes: list[Any]


class ResidentProgram:
    """A kernel with everything that stays the same between calls.

    Parameters
    ----------
    kernel, monoid
        The kernel, and how what it reduces is added up.
    policy
        What becomes of linearizations.
    plan
        How the rows are cut.
    template
        The rows with gaps for what lives on the worker; None where one Shards is all of them.
    names
        Names for the keys in notes on exceptions.
    """

    def __init__(
        self,
        kernel: Kernel,
        monoid: Monoid,
        policy: Policy,
        plan: AnyPlan,
        template: Rows | None,
        names: Names,
        singletons: Sequence[Any] = (),
    ) -> None:
        self.batch, self.monoid, self.policy = Batch(kernel, monoid), monoid, policy
        self.template = template
        self._plan, self._names, self._singletons = plan, names, Singletons(singletons)
        self._whole = self._contexts(plan)

    def _contexts(self, plan: AnyPlan) -> list[ChunkContext]:
        return [ChunkContext(chunk, self._names) for chunk in plan]

    def contexts(self, sample: Sequence[int] | None) -> list[ChunkContext]:
        """Return what is said of chunks, of all or of some, by their numbers, that are all that there is."""
        return self._whole if sample is None else self._contexts(self._plan.sampled(sample))

    def is_current(self) -> bool:
        """Return whether it still is what was sent: what others share with it may have changed with them."""
        return self._singletons.are_as_found()

    def job(self, message: dict[str, Any], held: ResidentJob | None) -> ResidentJob:
        """Return one call."""
        return ResidentJob(self, message, held)


def program_of(payload: Sequence[bytes], monoid: Monoid, plan: AnyPlan, names: Names) -> list[memoryview]:
    """Return what a worker opens as a program, from a kernel and a template that are pickled already.

    The payload's buffers are not copied: they may hold constants of many megabytes.
    """
    parcel = pack_call(_opened_program, Parcel(tuple(payload), PYTHON), monoid, plan, names)
    return [memoryview(part) for part in parcel.payload]


def _opened_program(parcel: Parcel, monoid: Monoid, plan: AnyPlan, names: Names) -> ResidentProgram:
    kernel, template, policy = parcel.open()
    return ResidentProgram(kernel, monoid, policy, plan, template, names, parcel.singletons)


class ResidentJob:
    """One call of a program.

    =========  ===========================================================================================
    `_left`    linearizations, by subtree, where values were computed and seeds may come; None where nothing is
               left to be pulled
    `left`     rows of Shards that stay here, by chunk and index
    `sums`     what all subtrees gave, where it is asked for later: by other workers, who add it to theirs
    =========  ===========================================================================================
    """

    def __init__(self, program: ResidentProgram, message: dict[str, Any], held: ResidentJob | None) -> None:
        self._program, self._method = program, message["method"]
        self._shared, self._reduced_seeds = unpack_tree(*message["shared"])
        self._left: dict[Subtree, Linearization | None] = {} if held is None else held._left
        self._stays = bool(message["keep"])
        own = unpack_tree(*message["own"]) if "own" in message else (None, None)
        self._sliced, self._stacked_seeds = [{} if part is None else part for part in own]
        self._sharded, self._sharded_seeds = message.get("sharded", ()), message.get("seeds", ())
        self._n_taken = len(message.get("taken", ()))
        groups = message.get("groups")
        self._alike = None if groups is None else [[THERE] * size for size in groups]  # all of them are Shards
        self._has_sliced = own[0] is not None or groups is not None
        self.left = LeftHere()
        self._compiled: list[int] = []  # by part: how often something was
        self.sums: SumsHere | None = None
        self._is_later = "later" in message
        self._contexts = program.contexts(message.get("sample"))
        self._rows = {number: _opened_rows(payload) for number, payload in message.get("rows", ())}

    @property
    def n_chunks(self) -> int:
        """How many chunks it is about, on all workers."""
        return len(self._contexts)

    @property
    def holds(self) -> bool:
        """Whether something is left for a later call; what is left of chunks that have moved away is for none."""
        return self._stays and any([left is not None for left in self._left.values()])

    def split(self, parts: Sequence[Subtree], n_threads: int) -> list[list[Subtree]]:
        """Return what each thread is to compute: runs of subtrees, of about as many chunks each."""
        parts = [Subtree(*part) for part in parts]
        if n_threads == 1:
            return [parts]
        n_chunks = self.n_chunks
        while len(parts) < PIECES_A_THREAD * n_threads:
            finer = [half for part in parts for half in halves(part, n_chunks)]
            if len(finer) == len(parts):
                break
            parts = finer
        share = -(-len(parts) // n_threads)
        return [parts[start : start + share] for start in range(0, len(parts), share)]

    def part(self, part: Subtree, rows: Callable[[int], Sequence[Any]], stopped: Callable[[], bool]) -> Batched:
        """Return what a subtree's chunks give, or the cotangents of shared and of sliced leaves."""
        kernel = self._program.batch.kernel
        before = n_compiled(kernel, BY_THREAD)
        found = self._part(part, rows, stopped)
        self._compiled.append(n_compiled(kernel, BY_THREAD) - before)
        return found

    def _part(self, part: Subtree, rows: Callable[[int], Sequence[Any]], stopped: Callable[[], bool]) -> Batched:
        numbers = part.terms(self.n_chunks)
        contexts = [self._contexts[number] for number in numbers]
        active = _Active(self, numbers, rows) if self._has_sliced else None
        templates = [self._rows.get(number, self._program.template) for number in numbers]
        whole = _Rows(numbers, templates, rows, stopped)
        args = contexts, whole, self._shared, *([active] if self._has_sliced else [])
        batch, policy = self._program.batch, self._program.policy
        if self._method == VALUE:
            return self._own(batch.value(*args), numbers)
        if self._method == PULL:
            return self._own_cotangents(self._pulled(part, args, numbers, rows), numbers, active)
        made = policy.linearize(batch, args)
        if self._stays:
            self._left[part] = made.left()
        return self._own(made.value, numbers)

    def active(self, number: int, rows: Callable[[int], Sequence[Any]]) -> Any:
        """Return the sliced leaves of a chunk in groups, with those that are Shards."""
        groups = self._sliced[number] if self._alike is None else self._alike
        if not self._sharded:
            return groups
        sharded, here = iter(self._sharded), rows(number)
        return [
            [self._made(next(sharded), here) if type(leaf) is tuple else leaf for leaf in group] for group in groups
        ]

    def _made(self, expression: Expression, rows: Sequence[Any]) -> Any:
        """Return rows by the expression that the call gives of them."""
        if expression[0] == "taken":
            return rows[len(rows) - self._n_taken + expression[1]]
        return evaluated(expression, rows, lambda one: self._made(one, rows))

    def _own(self, value: Value, numbers: Sequence[int]) -> Batched:
        """Return what chunks gave without the rows that stay here."""
        if not self._program.batch.kernel.stacks:
            return Batched(value, [], [])
        stacked = [self._leave(number, own) for number, own in zip(numbers, value.stacked, strict=True)]
        return Batched(value.reduced, stacked, value.notes)

    def _own_cotangents(self, cotangents: Sequence[Any], numbers: Sequence[int], active: Any) -> Batched:
        """Return the cotangents of chunks without the rows that stay here."""
        shared = cotangents[0] if any(self._shared) else None
        sliced, parts = cotangents[-1] if self._has_sliced else [], list[Any]()
        if not self._sharded:
            return Batched(shared, sliced, [])
        for number, own, groups in zip(numbers, sliced, active, strict=True):
            leaves = itertools.cycle([leaf for group in groups for leaf in group])  # for each seed again
            filled = [
                scaled_rows(leaf, 0.0) if part is None and is_packed(leaf) else part
                for part, leaf in zip(own, leaves, strict=False)
            ]
            parts.append(self._leave(number, filled))
        return Batched(shared, parts, [])

    def _leave(self, number: int, own: Sequence[Any]) -> list[Any]:
        """Keep the rows in a chunk's list; return the rest, with None in their places."""
        if left := [part for part in own if is_packed(part)]:
            self.left.by_chunk[number] = left
        return [None if is_packed(part) else part for part in own]

    def _seeds(self, number: int, seed: int, rows: Callable[[int], Sequence[Any]]) -> Any:
        """Return the seeds of a chunk's stacked leaves."""
        own, sharded_seeds = self._stacked_seeds[number][seed], self._sharded_seeds[seed] if self._sharded_seeds else ()
        if not any(sharded_seeds):
            return own
        stay = iter(sharded_seeds)
        like, here = self._program.batch.kernel.stacked_like(self.active(number, rows)) or (), rows(number)
        sharded = [next(stay) if is_packed(leaf) else None for leaf in like]
        return [part if one is None else self._made(one, here) for part, one in zip(own, sharded, strict=True)]

    def _pulled(self, part: Subtree, args: Args, numbers: Sequence[int], rows: Callable[[int], Sequence[Any]]) -> Any:
        is_lost = part not in self._left  # or it was never left here
        made = self._left.get(part) if self._stays else self._left.pop(part, None)
        if is_lost:
            again = KEEP_REST if self._program.batch.kernel.pulls_itself else KEEP
            made = again.linearize(self._program.batch, args).left()
            if self._stays:
                self._left[part] = made
        if made is None:
            active = args[3] if self._has_sliced else None
            return self._program.batch.without_derivative(len(self._reduced_seeds), self._shared, active)
        owns = self._program.batch.kernel.stacks
        many = [
            BatchSeeds(reduced, [self._seeds(number, seed, rows) for number in numbers] if owns else None)
            for seed, reduced in enumerate(self._reduced_seeds)
        ]
        return made.pull_again(many, len(many)) if self._stays else made.pull(many)

    def nbytes(self) -> int:
        """Return how much memory is held."""
        return sum(map(sys.getsizeof, list(self._left.values())))  # they may be pulled meanwhile

    def reply(self, parts: Sequence[Subtree], found: dict[Any, Any]) -> tuple[dict[str, Any], Any]:
        """Return what was found in one buffer, with a head that says what stands in it."""
        if self._is_later:
            self.sums = SumsHere(self, {Subtree(*part): given for part, given in found.items()})
            found, parts = {}, []
        head, buffer = self.summed(parts, found)
        return head | {"n_compiled": sum(self._compiled)}, buffer

    def summed(self, parts: Sequence[Subtree], found: dict[Any, Any]) -> tuple[dict[str, Any], Any]:
        """Return the sums of some subtrees, from those that they consist of."""
        results: dict[Subtree, Batched] = {Subtree(*part): found[part] for part in sorted(found)}
        n_chunks, reduced = self.n_chunks, list[Any]()
        has_sums = any(self._shared) if self._method == PULL else self._program.batch.kernel.reduces
        if has_sums and results:
            sums = [given.reduced for given in results.values()]
            reduced = assembled_into(parts, list(results), sums, n_chunks, self._program.monoid)
        stacked, notes = [[part for given in results.values() for part in given[index]] for index in (1, 2)]
        head, buffer = pack_tree(Found(reduced, stacked, notes))
        return {"head": head, "kept": self.holds}, buffer


class SumsHere:
    """What a call's subtrees gave, to be handed to other workers, or added to what these have."""

    def __init__(self, job: ResidentJob, sums: dict[Subtree, Any]) -> None:
        self._job, self._sums = job, sums

    def __len__(self) -> int:
        return len(self._sums)

    def _taken(self, roots: Sequence[Subtree]) -> dict[Subtree, Any]:
        """Return what belongs to some subtrees, and let go of it."""
        n_chunks = self._job.n_chunks
        inside = {part for part in list(self._sums) for root in roots if part.start in root.terms(n_chunks)}
        return {part: self._sums.pop(part) for part in sorted(inside)}

    def give(self, parts: Sequence[tuple[int, int]]) -> tuple[dict[str, Any], Any]:
        """Return the sums of some of the subtrees."""
        roots = [Subtree(*part) for part in parts]
        return self._job.summed(roots, self._taken(roots))

    def total(
        self, blocks: Sequence[tuple[int, int]], given: Sequence[tuple[Sequence[tuple[int, int]], bytes, Any]]
    ) -> tuple[dict[str, Any], Any]:
        """Return the sums of larger subtrees, of which others have given parts."""
        roots = [Subtree(*block) for block in blocks]
        sums = self._taken(roots)
        for parts, head, data in given:
            found: Found = unpack_tree(head, data)
            some = found.reduced or [None] * len(parts)
            sums.update((Subtree(*part), Batched(own, [], [])) for part, own in zip(parts, some, strict=True))
        return self._job.summed(roots, sums)

    def nbytes(self) -> int:
        """Return how much memory they take."""
        return sum(map(sys.getsizeof, pytree.flatten(list(self._sums.values()))[0]))


class LeftHere:
    """The rows that a call leaves, by chunk and index."""

    def __init__(self) -> None:
        self.by_chunk: dict[int, list[Rows]] = {}

    def rows(self, chunk: int, index: int) -> Rows | None:
        """Return some of those of a chunk; None if there are none."""
        found = self.by_chunk.get(chunk, ())
        return found[index] if index < len(found) else None

    def nbytes(self) -> int:
        """Return how much memory they take."""
        return sum(sys.getsizeof(rows) for some in list(self.by_chunk.values()) for rows in some)


class SentCall:
    """All that a call was sent: it finds the rows that it has left, or computes them again; `lineage.Recomputation`."""

    def __init__(
        self, number: str, program: Sequence[bytes], message: dict[str, Any], inputs: Sequence[Expression]
    ) -> None:
        self._number, self._program, self._message, self._inputs = number, program, message, inputs

    def rows(self, chunk: Chunk, index: int, own: dict[str, Any], made: Callable[[Expression], Any]) -> Any:
        """Return those of a chunk that have an index; `made` returns rows by their expressions."""
        found = rows_left_here(self._number, chunk.number, index)
        if found is not None:
            return found
        rows, (head, *buffers) = [made(one) for one in self._inputs], self._program
        job = pickle.loads(head, buffers=buffers).job(self._message | own | {"keep": False}, None)
        with process_settings, inside_task:
            job.part(Subtree(chunk.number, 0), lambda _: rows, lambda: False)
        return job.left.rows(chunk.number, index)


class _Active:
    """The sliced leaves of some chunks, each put together when it is its turn."""

    def __init__(self, job: ResidentJob, numbers: Sequence[int], rows: Callable[[int], Sequence[Any]]) -> None:
        self._job, self._numbers, self._rows = job, numbers, rows

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Any:
        return self._job.active(self._numbers[index], self._rows)

    def __iter__(self) -> Iterator[Any]:
        for number in self._numbers:
            yield self._job.active(number, self._rows)


class _Rows:
    """The rows of some chunks, each put together when it is its turn."""

    def __init__(
        self,
        numbers: Sequence[int],
        templates: Sequence[Any],
        rows: Callable[[int], Sequence[Any]],
        stopped: Callable[[], bool],
    ) -> None:
        self._numbers, self._templates, self._rows, self._stopped = numbers, templates, rows, stopped

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Any]:
        for number, template in zip(self._numbers, self._templates, strict=True):
            if self._stopped():
                raise CancelledError("Nobody waits for this evaluation any more.")
            here = self._rows(number)
            yield here[0] if template is None else template.joined(iter(here))


def _opened_rows(payload: Sequence[Any]) -> Rows:
    rows: Rows = Parcel(tuple(payload), PYTHON).open()
    return rows
