"""A kernel on a run of chunks, one after the other: what a task of a graph, a resident and the calling thread all run.

The run is a whole subtree of the tree of sums, so what is reduced has the same bits however chunks share tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dagad._errors import ClosureError, add_note_once
from dagad._graphs.linearization import Counters, PullbackFunction, Recordable, pulled_many
from dagad._graphs.monoids import PLAIN, Monoid
from dagad._graphs.sum_trees import Fold
from dagad._kernels.chunks import ChunkContext
from dagad._kernels.kernel import Groups, Kernel, Outputs, canonical_groups
from dagad._kernels.unpacking import Unpacking, zeros_of
from dagad._sources.packed import has_packed
from dagad._tracing.patches import patches
from dagad._types import Array, Value
from dagad._values import pytree
from dagad._values.shipping import Portable, opened


class Batched(NamedTuple):
    """What a run of chunks gives: the sum of what is reduced, not lowered, and of each chunk what is stacked."""

    reduced: Any
    stacked: list[list[Any]]
    notes: list[Any]


class Batch(Recordable, Portable):
    """A kernel on a run of chunks. Without stacked results it returns what is reduced, bare.

    All methods take ``(contexts, rows, shared, sliced)``: one context and one entry of rows a chunk; groups of shared
    leaves; and groups of sliced leaves for each chunk, None where nothing in the rows is differentiated.
    """

    __slots__ = ("kernel", "monoid")
    pulls_by_run = True

    def __init__(self, kernel: Kernel, monoid: Monoid = PLAIN) -> None:
        self.kernel: Kernel = opened(kernel)
        self.monoid = monoid

    def state(self) -> tuple[Any, ...]:
        return self.kernel, self.monoid

    def n_runs(self, contexts: Sequence[ChunkContext], *_: Any) -> int:
        """Return how many runs of the kernel one run of the batch is."""
        return len(contexts)

    def n_pulls(self, count: int, many: Sequence[BatchSeeds], contexts: Sequence[ChunkContext], *_: Any) -> int:
        """Return how many pullbacks of the kernel one pullback of the batch is."""
        del count
        return sum(seeds.of(number) is not None for seeds in many for number in range(len(contexts)))

    def value(
        self,
        contexts: Sequence[ChunkContext],
        rows: Sequence[Any],
        shared: Groups,
        sliced: Sequence[Groups] | None = None,
    ) -> Any:
        """Run the chunks for what they give."""
        gathered = Gathered(self.kernel, self.monoid)
        with patches:  # once for all chunks
            for kernel, args in self._chunks(contexts, rows, shared, sliced):
                gathered.push(kernel.value(*args))
        return gathered.result()

    def rehearse(
        self,
        contexts: Sequence[ChunkContext],
        rows: Sequence[Any],
        shared: Groups,
        sliced: Sequence[Groups] | None = None,
    ) -> Any:
        """Run chunk after chunk traced, each tape dying before the next is recorded, for what they give."""
        gathered = Gathered(self.kernel, self.monoid)
        with patches:
            for kernel, args in self._chunks(contexts, rows, shared, sliced):
                gathered.push(kernel.record(*args)[0])
        return gathered.result()

    def record(
        self,
        contexts: Sequence[ChunkContext],
        rows: Sequence[Any],
        shared: Groups,
        sliced: Sequence[Groups] | None = None,
    ) -> tuple[Any, PullbackFunction | None, Callable[[], int]]:
        """Record every chunk; see `Recordable`."""
        gathered, pulls = Gathered(self.kernel, self.monoid), []
        with patches:
            for kernel, args in self._chunks(contexts, rows, shared, sliced):
                parts, pull, nbytes = kernel.record(*args)
                gathered.push(parts)
                pulls.append((pull, nbytes))
        if all(pull is None for pull, _ in pulls):
            return gathered.result(), None, int
        return gathered.result(), *self._together(pulls, shared, sliced)

    def pull_anew(
        self,
        counters: Counters,
        value: Value,
        many: Sequence[BatchSeeds],
        contexts: Sequence[ChunkContext],
        rows: Sequence[Any],
        shared: Groups,
        sliced: Sequence[Groups] | None = None,
    ) -> tuple[Any, ...]:
        """Record and pull chunk after chunk: the cotangents for some seeds, at what gives the same value as before."""
        gathered, is_all = Gathered(self.kernel, self.monoid), True
        gradient = Gradient(self.kernel, shared, sliced, self.monoid)
        with patches:
            for number, (kernel, args) in enumerate(self._chunks(contexts, rows, shared, sliced)):
                mine = [seeds.of(number) for seeds in many]
                if all(seeds is None for seeds in mine):
                    gradient.push(*mine)
                    is_all = False
                    continue
                parts, pull, _ = kernel.record(*args)
                gathered.push(parts)
                if pull is None:  # it gave nothing but integers
                    gradient.push(*[None] * len(mine))
                    continue
                if not self.kernel.pulls_itself:  # which counts what it runs
                    counters.recorded()
                gradient.push(*pulled_many(pull, mine))
                counters.used_up()
        if is_all:
            refuse_another(value, gathered.result(), self.kernel.name, contexts[0].note("pullback"))
        return tuple(gradient.parts())

    def without_derivative(self, n_seeds: int, shared: Groups, sliced: Sequence[Groups] | None) -> tuple[Any, ...]:
        """Return the cotangents of chunks that gave nothing but integers: none, for any seeds."""
        gradient = Gradient(self.kernel, shared, sliced, self.monoid)
        for _ in range(1 if sliced is None else len(sliced)):
            gradient.push(*[None] * n_seeds)
        return tuple(gradient.parts())

    def _chunks(
        self, contexts: Sequence[ChunkContext], rows: Sequence[Any], shared: Groups, sliced: Sequence[Groups] | None
    ) -> Iterator[tuple[Kernel | Unpacking, tuple[Any, ...]]]:
        """Yield, chunk by chunk, what runs it, and the arguments."""
        shared = canonical_groups(shared)
        if sliced is None:
            for context, part in zip(contexts, rows, strict=True):
                yield self.kernel, (context, part, shared)
            return
        for context, part, own in zip(contexts, rows, sliced, strict=True):
            unpacking = has_packed(own) and not self.kernel.unpacks_itself
            yield Unpacking(self.kernel) if unpacking else self.kernel, (context, part, shared, own)

    def _together(
        self,
        pulls: Sequence[tuple[PullbackFunction | None, Callable[[], int]]],  # None: there is no derivative
        shared: Groups,
        sliced: Sequence[Groups] | None,
    ) -> Any:
        def pullback(many: Sequence[BatchSeeds]) -> tuple[Any, ...]:
            gradient = Gradient(self.kernel, shared, sliced, self.monoid)
            with patches:
                for number, (pull, _) in enumerate(pulls):
                    mine = [seeds.of(number) for seeds in many]
                    gradient.push(*([None] * len(mine) if pull is None else pulled_many(pull, mine)))
            return tuple(gradient.parts())

        return pullback, lambda: sum(nbytes() for _, nbytes in pulls)


class BatchSeeds(NamedTuple):
    """Cotangents of what a batch gives: those of the reduced leaves, and for each chunk those of the stacked ones."""

    reduced: Sequence[Any]
    stacked: Sequence[Sequence[Any]] | None = None

    def of(self, number: int) -> list[Any] | None:
        """Return the seeds of one chunk; None where all are zero."""
        mine = [*self.reduced, *(self.stacked[number] if self.stacked else ())]
        return mine if any(seed is not None for seed in mine) else None


def refuse_another(before: object, now: object, name: str, where: str | None = None) -> None:
    """Raise if chunks give another value when they run again: their gradient would not be that of the first one."""
    for one, other in zip(_numbers(before), _numbers(now), strict=False):
        # An engine that compiles may round another way where a gradient is asked for.
        close = 1e-4 if one.dtype.itemsize < np.dtype(float).itemsize else 1e-9
        if one.shape == other.shape and not np.allclose(one, other, close, close * _size(one), equal_nan=True):
            error = ClosureError(
                f"`{name}` gives another value when it runs again for its gradient: something that it uses beside its "
                "arguments is not what it was, a global, a file, a generator of random numbers. Pass what changes as a "
                "shared argument, and draw random numbers outside, or with a seed that is an argument."
            )
            if where is not None:
                add_note_once(error, where)
            raise error


def _numbers(result: Value) -> list[Any]:
    return [np.asarray(leaf) for leaf in pytree.flatten(result)[0] if pytree.is_differentiable(leaf)]


def _size(array: Array) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max(initial=0.0))


class Gathered:
    """Results of chunks, as they come."""

    __slots__ = ("_notes", "_reduced", "_stacked")

    def __init__(self, kernel: Kernel, monoid: Monoid) -> None:
        self._reduced = Fold(monoid) if kernel.reduces else None
        self._stacked: list[list[Any]] | None = [] if kernel.stacks else None
        self._notes: list[Any] = []

    def push(self, parts: Outputs) -> None:
        """Take what the next chunk gives."""
        if self._reduced is not None:
            self._reduced.push(parts.reduced)
        if self._stacked is not None:
            self._stacked.append(parts.stacked)
            self._notes.append(parts.note)

    def result(self) -> Any:
        """Return what all chunks give together."""
        reduced = None if self._reduced is None else self._reduced.total()
        return reduced if self._stacked is None else Batched(reduced, self._stacked, self._notes)


class Gradient:
    """The cotangents of several chunks: those of shared leaves are added up, those of sliced leaves are listed."""

    __slots__ = ("_groups", "_kernel", "_shared", "_sliced")

    def __init__(self, kernel: Kernel, shared: Groups, sliced: Sequence[Groups] | None, monoid: Monoid) -> None:
        self._kernel = kernel
        self._shared = Fold(monoid) if any(shared) else None
        self._sliced: list[list[Any]] | None = None if sliced is None else []
        self._groups = shared, sliced or ()

    def push(self, *many: Sequence[Any] | None) -> None:
        """Take what the next chunk's pullback returned for each seed; None where all is zero."""
        if len(many) == 1 and many[0] is not None:  # nearly always
            if self._shared is not None:
                self._shared.push(many[0][0])
            if self._sliced is not None:
                self._sliced.append(many[0][-1])
            return
        if self._shared is not None:
            n_shared = sum(map(len, self._groups[0]))
            self._shared.push(_listed([found and found[0] for found in many], n_shared))
        if self._sliced is not None:
            own, kernel = self._groups[1][len(self._sliced)], self._kernel
            parts = [zeros_of(kernel, own) if found is None else found[-1] for found in many]
            self._sliced.append([part for some in parts for part in some])

    def parts(self) -> list[Any]:
        """Return the cotangents in groups, as a chunk's pullback does; the shared ones not lowered."""
        shared = [] if self._shared is None else [self._shared.total()]
        return shared if self._sliced is None else [*shared, self._sliced]


def _listed(many: list[Any], count: int) -> Any:
    """Return what there is for each of several seeds in one list; None where there is nothing."""
    if len(many) == 1:
        return many[0]
    if all(some is None for some in many):
        return None
    return [part for some in many for part in ([None] * count if some is None else some)]
