"""The resident executor: one call per worker that holds rows, past Dask's scheduler; the graph takes what it can't."""

from __future__ import annotations

import itertools
import time
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from dagad._errors import ClosureError, StructureError
from dagad._executors.evaluation import follow, new_names
from dagad._executors.resident_program import PULL, RECORD, VALUE, Found, program_of
from dagad._executors.resident_shards import LeftRows, ResidentCall, ResidentRows, n_staying, own_messages
from dagad._executors.routes import FEWEST_WORKERS, Trip
from dagad._graphs.policies import Policy
from dagad._graphs.sum_trees import assembled, subtrees, whole_row
from dagad._kernels.job import Job, Land, Residuals, Results, Seeds, Spent
from dagad._sources.base import staying
from dagad._sources.plan import AnyPlan
from dagad._sources.rows import Rows
from dagad._values import fingerprint
from dagad._values.buffers import pack_tree, unpack_tree
from dagad._values.shipping import pack
from dagad_scheduler.residents.client import Lease
from dagad_scheduler.residents.loop import Homes, KnownProgram, Loop, UnavailableError as UnavailableError
from dagad_scheduler.roles import Role, words_of

LEAST_PATIENCE, PATIENCE = 10.0, 20.0  # seconds, and times as long as it took before
SEEDS_A_CALL = 64
LARGE = 2**15  # bytes of parameters, and so of a gradient, that are worth a second call


class ResidentExecutor:
    """Runs jobs by residents of workers; raises `UnavailableError` where they can't."""

    name, group, remote = "resident", 1, True

    def __init__(self, residents: Any, expected: float) -> None:
        self._residents, self._expected = residents, expected
        self.trip: Trip | None = None  # the last one, if many workers were called

    def call(self, job: Job) -> Results:
        """Run a job for what it gives."""
        return self._ask(job, VALUE).results

    def linearize(self, job: Job, policy: Policy) -> tuple[Results, Residuals | None]:
        """Run a job, and leave behind what its policy says."""
        lease = self._residents.lease()
        answers = self._ask(job, RECORD, policy, lease=lease, keep=True)
        return answers.results, ResidentResiduals(self, policy, lease, answers.ran)

    def pull(
        self, job: Job, policy: Policy | None, lease: Lease, ran: Ran, seeds: Sequence[Seeds], land: Land, *, keep: bool
    ) -> None:
        """Pull some seeds at what was left behind, or at what is run again, as it ran then, where that is lost."""
        landing = list[Answers]()
        for first in range(0, len(seeds), SEEDS_A_CALL):
            some = seeds[first : first + SEEDS_A_CALL]
            landing.append(self._ask(job, PULL, policy, lease=lease, ran=ran, keep=keep, seeds=some))
        for number, answers in enumerate(landing):
            first = number * SEEDS_A_CALL
            self._land(job, answers, land, range(first, min(first + SEEDS_A_CALL, len(seeds))))

    def _ask(
        self,
        job: Job,
        method: str,
        policy: Policy | None = None,
        *,
        lease: Lease | None = None,
        ran: Ran | None = None,
        keep: bool = False,
        seeds: Sequence[Seeds] = (),
    ) -> Answers:
        began, sharded, n_chunks = time.perf_counter(), ResidentRows(job, seeds), len(job.plan)
        loop, (template, rows) = self._loop(job, sharded), job.sliced.templates(job.plan)
        program = self._program(job, loop, sharded.plan, template, policy, ran)
        message = _message(job, method, keep, seeds) | sharded.message(job)
        gives_gradient = message["role"] is not Role.VALUE
        has_left = sharded.has_stays if method == PULL else n_staying(job) > 0
        left_by = ResidentCall(self._residents.lease(), program.program, message, sharded) if has_left else None
        homes, replies = loop.call(
            program,
            message,
            own_messages(job, seeds, rows, left_by),
            lease=lease,
            left=None if left_by is None else left_by.lease,
            n_values=0 if method == PULL else n_chunks,
            n_gradients=n_chunks * gives_gradient,
            limit=LEAST_PATIENCE + PATIENCE * self._expected,
            is_large=gives_gradient and is_all_sums(job) and message["shared"][1].nbytes >= LARGE,
        )
        try:
            found = [_found(job, homes, address, reply, method) for address, reply in replies.items()]
            seconds = sum([float(reply["seconds"]) for reply in replies.values()])
            n_compiled = sum([int(reply.get("n_compiled", 0)) for reply in replies.values()])
            results = Results.of(job) if method == PULL else self._results(job, homes, found, left_by)
            if len(replies) >= FEWEST_WORKERS:
                self.trip = _trip(message, program, replies, time.perf_counter() - began)
        except (StructureError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise loop.off(f"a worker sent something else than was asked for ({error})") from error
        if left_by is not None:
            left_by.left_at(homes.chunks)
        results.spent, results.n_compiled = Spent(seconds, time.perf_counter() - began, 0), n_compiled
        return Answers(results, homes, found, left_by, Ran(loop, program))

    @staticmethod
    def _results(job: Job, homes: Homes, found: list[tuple[str, Found]], left_by: ResidentCall | None) -> Results:
        results = Results.of(job)
        if job.kernel.reduces:
            results.reduced = _assembled(job, [(homes.parts[address], part.reduced) for address, part in found])
            job.kernel.check(job.monoid.lower(results.reduced), job.n_shared)
        for address, part in found if job.kernel.stacks else ():
            for number, own, note in zip(homes.chunks[address], part.stacked, part.notes, strict=True):
                results.stacked[number], results.notes[number] = own, note
        if left_by is not None:
            left = [LeftRows(left_by, index) for index in range(n_staying(job))]
            for own, targets in zip(results.stacked, job.stacked_at or (), strict=True):
                for index, rest in zip(staying(targets), left, strict=True):
                    own[index] = rest
        return results

    @staticmethod
    def _land(job: Job, answers: Answers, land: Land, seeds: range) -> None:
        homes, found, left_by = answers.homes, answers.found, answers.left_by
        if job.n_shared:
            parts = [(homes.parts[address], one.reduced) for address, one in found]
            land(job.shared_targets, job.monoid.lower(_assembled(job, parts)), seeds)
        for address, one in found if job.has_sliced else ():
            for number, own in zip(homes.chunks[address], one.stacked, strict=True):
                targets, mine = job.inputs.targets(number), own
                if left_by is not None:
                    stays, each = staying(targets), len(targets)
                    mine = [part for index, part in enumerate(own) if index % each not in stays]  # seed by seed
                    targets = [target for index, target in enumerate(targets) if index not in stays]
                land(targets, mine, seeds)
        if left_by is not None:
            sharded = itertools.product(seeds, job.sharded_leaves)
            for index, (seed, (number, leaf)) in enumerate(sharded):
                land([(number, None)], [leaf.made_by(LeftRows(left_by, index))], range(seed, seed + 1))

    def _loop(self, job: Job, sharded: ResidentRows) -> Loop:
        """Return the calls to the workers that have the rows; those of all samples are those of the whole."""

        def make() -> Loop:
            of_runs = job.runs is not None  # which are chunks, and not in one row of the tree
            parts_of, blocks_of = (_alone, _no_blocks) if of_runs else (_parts, _blocks)
            return Loop(self._residents, sharded.keys(job), parts_of, blocks_of, follow)

        holder = job.sliced.shards[0] if sharded.sample is None else sharded.holders[0]
        which = sharded.plan.key, *[one.token for one in sharded.holders]
        loop: Loop = holder.remembered(which, make)
        return loop

    @staticmethod
    def _program(
        job: Job, loop: Loop, plan: AnyPlan, template: Rows | None, policy: Policy | None, ran: Ran | None
    ) -> KnownProgram:
        if ran is not None and ran.loop is loop:  # whatever the function carries by now
            return ran.program
        marks = None if template is None else template.marks
        what: Hashable = job.signature, job.monoid, marks, type(policy)
        taken = fingerprint.fingerprint(job.kernel, policy)

        def packed() -> list[bytes]:
            return packed_program(job, policy)

        def made(payload: list[bytes]) -> list[memoryview]:
            return program_of(payload, job.monoid, plan, new_names(job.kernel.name))

        program = loop.program(what, taken, fingerprint.same, packed, made)
        if ran is not None:
            ran.refuse_another(program.payload, job.kernel.name)
        return program


def packed_program(job: Job, policy: Policy | None) -> list[bytes]:
    """Return what workers are to know, but for names."""
    template = job.sliced.templates(job.plan)[0]
    # A copy: what is pickled may point into arrays that change before the next evaluation.
    return [bytes(part) for part in pack((job.kernel, template, policy)).payload]


def _message(job: Job, method: str, keep: bool, seeds: Sequence[Seeds]) -> dict[str, Any]:
    """Return what all workers are told, but for their rows."""
    return {
        "method": method,
        "role": Role.PULLBACK if method == PULL else job.kernel.role,
        "function": words_of(job.kernel.name),
        "keep": keep,
        "shared": list(pack_tree((job.shared(), [list(one.reduced) for one in seeds]))),
    }


def _trip(message: dict[str, Any], program: KnownProgram, replies: dict[str, Any], wall: float) -> Trip:
    """Return how calls went."""
    answers = [(float(reply["seconds"]), max(int(reply["threads"]), 1)) for reply in replies.values()]
    received = sum(memoryview(reply["data"]).nbytes for reply in replies.values())
    computing, n_threads = max(seconds / threads for seconds, threads in answers), max(n for _, n in answers)
    constants = sum(map(len, program.payload))
    return Trip(len(replies), n_threads, message["shared"][1].nbytes, received, constants, computing, wall)


def is_all_sums(job: Job) -> bool:
    """Return whether all that comes and goes is parameters and sums: rows come and go by themselves anyway."""
    return job.kernel.reduces and not job.kernel.stacks and not job.has_sliced


class Answers(NamedTuple):
    """What workers have answered, and what they have left there."""

    results: Results
    homes: Homes
    found: list[tuple[str, Found]]
    left_by: ResidentCall | None
    ran: Ran


class Ran(NamedTuple):
    """What ran at the value: where it has to run again for the gradient, it is to be the same."""

    loop: Loop
    program: KnownProgram

    def refuse_another(self, payload: list[bytes], name: str) -> None:
        """Raise if a program consists of something else."""
        if payload != self.program.payload:
            raise ClosureError(
                f"A gradient has to run `{name}` once more, and something that `{name}` carries has changed since the "
                "value. Pass what changes as a shared argument, which is kept as it was."
            )


class ResidentResiduals:
    """What workers keep for pullbacks, under a lease; lost, it is run again."""

    ran_by = "resident"

    def __init__(self, executor: ResidentExecutor, policy: Policy | None, lease: Lease, ran: Ran) -> None:
        self._executor, self._policy, self._lease, self._ran = executor, policy, lease, ran

    def pull(self, job: Job, seeds: Sequence[Seeds], land: Land, *, keep: bool = False) -> bool:
        """Pull some seeds, and let their cotangents land; False where that can't be, and nothing has landed."""
        try:
            keep = keep or len(seeds) > 1
            self._executor.pull(job, self._policy, self._lease, self._ran, seeds, land, keep=keep)
        except UnavailableError:
            self._ran.refuse_another(packed_program(job, self._policy), job.kernel.name)
            return False
        return True

    def release(self) -> None:
        """Let go of nothing: a pullback has used it up."""


def _parts(chunks: Sequence[int], n_chunks: int) -> list[tuple[int, int]]:
    """Return the subtrees that are exactly these chunks."""
    found: list[tuple[int, int]] = []
    start = 0
    for at in range(1, len(chunks) + 1):
        if at == len(chunks) or chunks[at] != chunks[at - 1] + 1:
            found.extend(subtrees(chunks[start], chunks[at - 1] + 1, n_chunks))
            start = at
    return found


def _alone(chunks: Sequence[int], n_chunks: int) -> list[tuple[int, int]]:
    """Return the chunks one by one."""
    del n_chunks
    return [(chunk, 0) for chunk in chunks]


def _blocks(n_together: int, n_chunks: int) -> list[tuple[int, int]]:
    """Return the smallest subtrees, all of one size, that so many neighbours have at most one beginning of."""
    return [(start, level) for start, level in whole_row((n_together - 1).bit_length(), n_chunks)]


def _no_blocks(n_together: int, n_chunks: int) -> list[tuple[int, int]]:
    return [(chunk, 0) for chunk in range(n_chunks)]


def _assembled(job: Job, found: Sequence[tuple[Sequence[Any], Sequence[Any]]]) -> Any:
    parts: list[Any] = []
    terms: list[Any] = []
    runs = job.runs
    for some, own in found:
        parts += some
        terms += own
    if runs is not None:
        parts = [runs[chunk] for chunk, _ in parts]
    return assembled(parts, terms, job.n_terms, job.monoid)


def _found(job: Job, homes: Homes, address: str, reply: dict[str, Any], method: str) -> tuple[str, Found]:
    """Return what a worker sent, after checking that it is what was asked for."""
    found: Found = unpack_tree(reply["head"], reply["data"])
    has_sums, has_rows = job.kernel.reduces, job.kernel.stacks
    if method == PULL:
        has_sums, has_rows = job.n_shared > 0, job.has_sliced
    if (len(found.reduced), len(found.stacked)) != (
        len(homes.parts[address]) * has_sums,
        len(homes.chunks[address]) * has_rows,
    ):
        raise StructureError(f"{address} sent other parts than those that it was asked for.")
    return address, found
