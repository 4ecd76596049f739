"""One operation on rows: kernel, plan, source, monoid and executor. Its derivatives are operations again.

What becomes of it between value and gradient is a state, one of three:

=================  ===================================================================================
`Recorded`         residuals were left behind, to be pulled with any cotangents
`WithGrad`         the gradients for the seed 1 are there, to be scaled by the one cotangent of a number
`ValueOnly`        nothing was left: a pullback is a job of its own
=================  ===================================================================================

Where the value is one real number, everything is computed for the seed 1, whatever cotangent will arrive, and scaled
afterwards: so the bits do not depend on the policy, and a later cotangent costs no further pullback.

Where value and gradient are wanted together, a reduction is asked for both: that is another kernel. Whether it gives
one number shows the first time, when it is linearized, so that nothing has to run again if it does not. Module state:
`_GIVES_NUMBERS`, by what jobs have in common, whether they did.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dagad._config import setting
from dagad._graphs.linearization import is_scalar, scaled, seed_of_one
from dagad._graphs.monoids import PLAIN, Monoid
from dagad._graphs.policies import Keep, KeepRest, Policy, may_run_again, pulls_at_once
from dagad._kernels.context import written_profile
from dagad._kernels.derivatives import Pullback, Pushforward, ValueAndGrad
from dagad._kernels.finite import Finite
from dagad._kernels.inputs import Inputs, Targets, owned_leaves, times
from dagad._kernels.job import Executor, Job, Land, Residuals, Results
from dagad._kernels.kernel import DIFFERENT, Kernel, Outputs, Seeds, check_alike, joined
from dagad._kernels.pullbacks import Pullbacks, n_at_once
from dagad._kernels.replay import bring_along, of_job
from dagad._remembered import Remembered
from dagad._sources.base import staying
from dagad._sources.columns import Sliced
from dagad._sources.plan import AnyPlan
from dagad._sources.slots import Slots, SparseSlots, cut_rows
from dagad._tracing.patches import patches
from dagad._values import pytree
from dagad._values.blocks import full, is_seed
from dagad._values.carried import Carried
from dagad._values.partition import Partition


class State:
    """What becomes of an operation between value and gradient; what is not said otherwise is that of `ValueOnly`."""

    __slots__ = ()
    gradient: list[Any] | None = None  # for the seed 1

    def pull(self, operation: Operation, leaves: Sequence[Any], seeds: Sequence[_Seeds], land: Land) -> bool:
        """Pull what was left behind; return whether it is there."""
        del operation, leaves, seeds, land
        return False

    def release(self) -> None:
        """Let go of what was left behind: nobody will pull again."""


@dataclass(frozen=True, slots=True)
class Recorded(State):
    """Residuals were left behind, and what the user's function carried, if it has to run again."""

    residuals: Residuals
    carried: Carried | None = None
    of_both: bool = False  # whether value and gradient were asked for, and these are what gave no number

    def pull(self, operation: Operation, leaves: Sequence[Any], seeds: Sequence[_Seeds], land: Land) -> bool:
        if self.carried is not None:
            self.carried.refuse_changes()
        job, profile = operation.job(leaves), written_profile()
        job = job.value_and_grad(operation.policy.counters) if self.of_both else job
        try:
            if profile is None:
                return self.residuals.pull(job, seeds, land)
            with profile.calling(job, "pull", "gradient", operation.policy.counters) as call:
                is_there = self.residuals.pull(job, seeds, land)
                profile.pulled(call, operation.executor, self.residuals, is_there)
            return is_there
        except Exception as error:
            bring_along(error, partial(of_job, job, "pull", seeds))
            raise

    def release(self) -> None:
        self.residuals.release()


@dataclass(frozen=True, slots=True)
class WithGrad(State):
    """The gradients for the seed 1 are there."""

    gradient: list[Any]


@dataclass(frozen=True, slots=True)
class ValueOnly(State):
    """Nothing was left behind."""


MOST_REMEMBERED = 4096
_GIVES_NUMBERS: Remembered[bool] = Remembered(MOST_REMEMBERED)


@dataclass(frozen=True, slots=True)
class Operation:
    """A kernel on all chunks. `stacked_at` says where the stacked leaves of each chunk belong; None: end to end."""

    kernel: Kernel
    plan: AnyPlan
    sliced: Sliced
    inputs: Inputs
    executor: Executor
    policy: Policy
    owner: Hashable
    monoid: Monoid = PLAIN
    stacked_at: list[Targets] | None = None

    # Derivatives

    def pushforward(self, count: int) -> Operation:
        """Return the operation that gives value and tangents together, in so many directions."""
        at = None if self.stacked_at is None else times(self.stacked_at, 1 + count)
        return replace(self, kernel=Pushforward(self.kernel, count), inputs=self.inputs.times(1 + count), stacked_at=at)

    def split_jvp(self, both: Outputs, count: int) -> tuple[Outputs, list[list[Any]]]:
        """Take what `pushforward` gave apart: the value, and for each direction the tangents of its float leaves."""
        value, trees = both.reduced if self.kernel.reduces else (None, [None] * count)
        form = Partition.of(value, pytree.is_differentiable_or_traced)
        moving = [form.extract(tree) for tree in trees]
        each = len(both.stacked) // (1 + count)
        own_positions = [[at for at in targets if at[0] < each] for targets in both.positions]
        parts = Outputs(value, both.stacked[:each], both.note, own_positions)
        floats = [index for index, leaf in enumerate(parts.stacked) if pytree.is_differentiable_or_traced(leaf)]
        own = [[both.stacked[each * (1 + number) + index] for index in floats] for number in range(count)]
        return parts, [[*shared, *mine] for shared, mine in zip(moving, own, strict=True)]

    def value_and_grad(self) -> Operation:
        """Return the operation that gives a reduction's value and its gradient for the seed 1."""
        kernel = ValueAndGrad(self.kernel, stacks=bool(sum(self.inputs.sliced)))
        return replace(self, kernel=kernel, stacked_at=self.inputs.flat())

    def pullback(self, leaves: Sequence[Any], value: Outputs, seeds: Seeds) -> tuple[Operation, list[Any]]:
        """Return the operation on leaves and seeds for `value` that gives the cotangents, and what to call it with.

        Outputs that nobody used have no seed there: one that is zero and is traced would be nan at an infinite slope.
        """
        floats, n_theta = value.floats(), sum(self.inputs.shared)
        given = [is_seed(seed) for seed in seeds]
        summed, flags = Outputs(value.reduced, []).all_leaves(), iter(given)
        reduced = tuple([pytree.is_differentiable_or_traced(leaf) and next(flags) for leaf in summed])
        n_summed = len(given) - len(own := list(flags))
        own_floats = [index for index, leaf in enumerate(value.stacked) if pytree.is_differentiable_or_traced(leaf)]
        seeded = [index for index, is_given in zip(own_floats, own, strict=True) if is_given]
        # Where each chunk has leaves of its own, it knows best which are floats.
        if self.stacked_at is None and not self.kernel.copies:
            stacked, unseeded = tuple([index in seeded for index in range(len(value.stacked))]), frozenset[int]()
        else:
            stacked, unseeded = None, _unused(value.positions or [], {*seeded})
            of_others = {leaf for targets in value.positions or [] for leaf, _ in _without(targets, unseeded)}
            seeded = [index for index in own_floats if index in of_others]
        rows = None
        if self.kernel.stacks:
            at = {index: number for number, index in enumerate(seeded)}
            rows = [
                [(at[leaf], own) for leaf, own in _without(targets, unseeded) if leaf in at]
                for targets in value.positions or []
            ]
        gives = bool(n_theta), bool(sum(self.inputs.sliced))
        kernel = Pullback(self.kernel, reduced, (stacked, unseeded), *gives)
        filled = [pytree.dense(full(seed), leaf, "A cotangent") for seed, leaf in zip(seeds, floats, strict=True)]
        of_sum = [seed for seed, is_given in zip(filled[:n_summed], given, strict=False) if is_given]
        of_rows = [seed for seed, index in zip(filled[n_summed:], own_floats, strict=True) if index in seeded]
        inputs = self.inputs.and_seeds(len(of_sum), len(of_rows), rows)
        operation = replace(self, kernel=kernel, inputs=inputs, stacked_at=self.inputs.flat())
        return operation, [*leaves[:n_theta], *of_sum, *leaves[n_theta:], *of_rows]

    # Values

    def job(self, leaves: Sequence[Any]) -> Job:
        """Return the operation at leaves."""
        kernel = self._looked_at
        return Job(kernel, self.plan, self.sliced, self.inputs, leaves, self.monoid, self.owner, self.stacked_at)

    @property
    def _looked_at(self) -> Kernel:
        """The kernel; what a chunk runs is looked at as a part of it, on workers as here."""
        return Finite(self.kernel) if setting("check-finite") and patches.task.leaves is None else self.kernel

    def call(self, leaves: Sequence[Any]) -> Outputs:
        """Run for the value, tracing nothing."""
        job = self.job(leaves)
        with _Running(self, job, "call", self.kernel.gives) as running:
            running.results = results = self.executor.call(job)
        return self._parts(results)

    def forward(self, leaves: Sequence[Any]) -> tuple[Outputs, State]:
        """Run for the value, ready to be pulled back."""
        job, policy = self.job(leaves), self.policy
        if pulls_at_once(policy) and self.kernel.is_reduction:
            if (known := _GIVES_NUMBERS.find(signature := job.signature)) is not False:
                return self._with_gradient(job, signature, is_known=bool(known))
            policy = Keep(counters=policy.counters)
        return self._linearized(job, policy)

    def _linearized(self, job: Job, policy: Policy) -> tuple[Outputs, State]:
        carried = Carried(self.kernel.of_user.fun) if may_run_again(policy) else None
        with _Running(self, job, "linearize", self.kernel.gives) as running:
            results, residuals = self.executor.linearize(job, policy)
            running.results = results
        return self._parts(results), _left(residuals, carried)

    def _with_gradient(self, job: Job, signature: Hashable, *, is_known: bool) -> tuple[Outputs, State]:
        """Run for value and gradient at once: by a call where it is known that each chunk gives a number.

        Else what gives none leaves its pullback, so that it need not run again.
        """
        slots, counters, bare = Slots(job.leaves), self.policy.counters, job
        job = job.value_and_grad(counters, slots.write_all)
        with _Running(self, job, "call" if is_known else "linearize", job.kernel.gives) as running:
            if is_known:
                results, residuals = self.executor.call(job), None
            else:
                results, residuals = self.executor.linearize(job, KeepRest(counters=counters))
            value, shared, n_without = job.monoid.lower(results.reduced)
            if n_without:
                results.gives = "value"
            running.results = results
        if is_known is not (gives_numbers := not n_without):
            # What once gave something else is not taken at its word again: functions that nothing tells apart may
            # take turns.
            _GIVES_NUMBERS.change(signature, lambda before: gives_numbers and before is not False)
        if gives_numbers:
            if job.n_shared:
                slots.write_all(job.shared_targets, shared)
            for number, own in enumerate(results.stacked):
                if own:  # as not all executors let it land
                    job.land_rows([job.plan.chunk(number)], [own], slots.write_all)
            return Outputs(value, []), WithGrad(slots.seal())
        are_mixed = n_without < len(job.plan) and pytree.is_differentiable(value) and np.iscomplexobj(value)
        if is_known or are_mixed:  # no tapes are left; of real numbers among complex ones they are gone
            # Now, while its arguments are what they were: later the user may have written into them.
            return self._linearized(bare, Keep(counters=counters))
        return Outputs(value, [], positions=job.stacked_at), _left(residuals, of_both=True)

    def _parts(self, results: Results) -> Outputs:
        """Put what the chunks own together."""
        stacked, at = results.stacked, self.stacked_at
        reduced = self.monoid.lower(results.reduced)
        if not self.kernel.stacks or not any(stacked):
            return Outputs(reduced, [], results.notes, [[] for _ in stacked])
        if at is None and self.kernel.copies:
            at = owned_leaves(self.kernel.copies, [len(own) for own in stacked])
        if at is None:
            _check_alike(stacked, results.notes)
            columns = list(zip(*stacked, strict=True))
            ends = [np.cumsum([0, *(len(leaf) for leaf in column)]) for column in columns]
            at = [
                [(leaf, slice(int(end[n]), int(end[n + 1]))) for leaf, end in enumerate(ends)]
                for n in range(len(stacked))
            ]
            return Outputs(reduced, [joined(column) for column in columns], results.notes, at)
        found: dict[int, list[Any]] = {}
        for own, targets in zip(stacked, at, strict=True):
            for (leaf, rows), part in zip(targets, own, strict=True):
                found.setdefault(leaf, []).append((rows, part))
        sharded = {at[0][index][0] for index in staying(at[0])}
        whole = [self._put_together(found[leaf], leaf in sharded) for leaf in sorted(found)]
        return Outputs(reduced, whole, results.notes, at)

    def _put_together(self, parts: list[tuple[Any, Any]], stays: bool) -> Any:
        """Return one leaf from what the chunks own of it."""
        rows, first = parts[0]
        if stays:
            return self.sliced.shards[0].of_chunks({at.number: part for at, part in parts})
        return first if rows is None else joined([part for _, part in parts])

    # Pullbacks

    def gives_number(self, value: Outputs) -> bool:
        """Return whether all is computed for the seed 1, and scaled."""
        return self.kernel.is_reduction and is_scalar(value.reduced)

    def backward(self, leaves: Sequence[Any], value: Outputs, state: State, seeds: Seeds) -> tuple[list[Any], State]:
        """Return the cotangents of `leaves`, and the state that is left; may be called again, with other seeds."""
        if not self.gives_number(value):
            return self._pulled(leaves, value, state, seeds), state
        if (gradient := state.gradient) is None:
            gradient = self._pulled(leaves, value, state, [seed_of_one(value.reduced)])
            state.release()
            state = WithGrad(gradient)
        return [scaled(part, seeds[0]) for part in gradient], state

    def _pulled(self, leaves: Sequence[Any], value: Outputs, state: State, seeds: Seeds) -> list[Any]:
        slots = Slots(leaves)
        self._pull(leaves, value, state, [_Seeds(value, seeds)], slots.write_all)
        return slots.seal()

    def _pull(self, leaves: Sequence[Any], value: Outputs, state: State, seeds: Sequence[_Seeds], land: Land) -> None:
        if state.pull(self, leaves, seeds, land):
            return
        n_theta = sum(self.inputs.shared)
        at_once = n_at_once(leaves[:n_theta], leaves[n_theta:], len(self.plan))
        for first in range(0, len(seeds), at_once):
            some = seeds[first : first + at_once]
            if len(some) == 1:
                self._pull_anew(leaves, value, some[0], first, land)
            else:
                self._pull_many_anew(leaves, value, some, first, land)

    def _pull_many_anew(
        self, leaves: Sequence[Any], value: Outputs, seeds: Sequence[_Seeds], first: int, land: Land
    ) -> None:
        """Run each chunk once and pull many seeds there: a job of its own."""
        n_theta, count, n_stacked = sum(self.inputs.shared), len(seeds), len(value.stacked)
        of_sum = [seed for one in seeds for seed in one.reduced]
        of_rows = [seed for one in seeds for seed in one.whole]
        rows = None
        if self.kernel.stacks:
            rows = [[(n * n_stacked + leaf, own) for n in range(count) for leaf, own in at] for at in value.positions]
        kernel = Pullbacks(self._looked_at, count, bool(n_theta), bool(sum(self.inputs.sliced)))
        job = self.job([*leaves[:n_theta], *of_sum, *leaves[n_theta:], *of_rows])._replace(
            kernel=kernel,
            inputs=self.inputs.and_seeds(len(of_sum), len(of_rows), rows),
            stacked_at=times(self.inputs.flat(), count),
        )
        with _Running(self, job, "call", kernel.gives) as running:
            running.results = results = self.executor.call(job)
        landing = range(first, first + count)
        if n_theta:
            land([(leaf, None) for leaf in range(n_theta)], job.monoid.lower(results.reduced), landing)
        for number, own in enumerate(results.stacked):
            land(self.inputs.targets(number), own, landing)

    def _pull_anew(self, leaves: Sequence[Any], value: Outputs, seeds: _Seeds, number: int, land: Land) -> None:
        """Run and pull at once: a job of the pullback."""
        operation, given = self.pullback(leaves, value, seeds.floats)
        back = operation.call(given)
        land(
            [(leaf, None) for leaf in range(len(leaves))],
            [*(back.reduced or ()), *back.stacked],
            range(number, number + 1),
        )

    def backward_many(
        self, leaves: Sequence[Any], value: Outputs, state: State, many: Sequence[Seeds | None]
    ) -> tuple[list[list[Any]], State]:
        """Return for each of `leaves` its cotangents for many seeds, None for zero; no chunk is recorded again."""
        if self.gives_number(value):
            rows = []
            for some in many:
                if some is None or some[0] is None:
                    rows.append([None] * len(leaves))
                    continue
                found, state = self.backward(leaves, value, state, [full(seed) for seed in some])
                rows.append(found)
            return [list(column) for column in zip(*rows, strict=True)], state
        nothing = [None] * len(value.floats())
        slots = SparseSlots(leaves, len(many))
        self._pull(leaves, value, state, [_Seeds(value, some or nothing) for some in many], slots.write_all)
        return slots.seal(), state


def _left(residuals: Residuals | None, carried: Carried | None = None, *, of_both: bool = False) -> State:
    if residuals is None:
        return ValueOnly()
    return Recorded(residuals, None if carried is None else carried.settle(), of_both)


class _Running:
    """A job while it runs: written down in the profile of the evaluation that it is part of, and known to its error.

    `results` is what it gave, of which the profile notes who ran it, and why.
    """

    __slots__ = ("_call", "_calling", "_job", "_method", "_operation", "_profile", "results")
    results: Results

    def __init__(self, operation: Operation, job: Job, method: str, gives: str) -> None:
        self._operation, self._job, self._method, self._profile = operation, job, method, written_profile()
        if self._profile is not None:
            self._calling = self._profile.calling(job, method, gives, operation.policy.counters)

    def __enter__(self) -> _Running:
        if self._profile is not None:
            self._call = self._calling.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._profile is not None:
            if error is None:
                self._profile.ran(self._call, self._operation.executor, self.results)
            self._calling.__exit__(kind, error, traceback)
        if isinstance(error, Exception):
            bring_along(error, partial(of_job, self._job, self._method, ()))


class _Seeds:
    """Cotangents of what an operation gave: what all chunks have in common, and what belongs to each."""

    __slots__ = ("_at", "floats", "reduced", "whole")

    def __init__(self, value: Outputs, seeds: Seeds) -> None:
        self.floats = seeds
        every = value.all_seeds(seeds)
        n_reduced = len(every) - len(value.stacked)
        reduced = [full(seed) for seed in every[:n_reduced]]
        self.reduced = reduced if any(map(is_seed, reduced)) else [None] * n_reduced
        self.whole, self._at = every[n_reduced:], value.positions or []

    def stacked(self, number: int) -> list[Any]:
        """Return those of one chunk's stacked leaves; None for zeros."""
        if not self.whole:  # these are a gradient, that somebody else has seen to
            return [None] * len(self._at[number])
        mine = [cut_rows(self.whole[leaf], rows) for leaf, rows in self._at[number]]
        if all(seed is None for seed in self.reduced) and not any(map(is_seed, mine)):
            return [None] * len(mine)  # the chunk is not pulled at all
        return mine

    @property
    def sharded(self) -> list[Any]:
        """Those of stacked leaves that are Shards; None for zeros."""
        at = self._at[0] if self.whole else []
        return [self.whole[at[index][0]] for index in staying(at)]


def _unused(positions: Sequence[Targets], seeded: Container[int]) -> frozenset[int]:
    """Return which of the leaves that each chunk has of its own have no seed in any of them."""
    used = {number for targets in positions for number, (leaf, _) in enumerate(targets) if leaf in seeded}
    return frozenset(range(max(map(len, positions), default=0))) - used


def _without(targets: Targets, numbers: Container[int]) -> Targets:
    return [target for number, target in enumerate(targets) if number not in numbers]


def _check_alike(stacked: Sequence[Any], notes: Sequence[Any]) -> None:
    """Refuse outputs of items that differ between chunks."""
    for own, note in zip(stacked[1:], notes[1:], strict=True):
        pytree.check_same_structure(notes[0].treedef, note.treedef, DIFFERENT)
        for first, leaf in zip(stacked[0], own, strict=True):
            check_alike(np.shape(first)[1:], np.shape(leaf)[1:])
