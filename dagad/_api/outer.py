"""The one node that an outer program sees of a reduction: traces are taken off here, only values cross into chunks.

Traces are peeled one by one, the innermost first. Forward mode makes a reduction of values and tangents together;
reverse mode over nothing runs the reduction, over a further trace it makes a reduction of the pullback.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from dagad._api.non_finite import name_chunk
from dagad._executors.member import held
from dagad._kernels.context import is_in_a_transform, note_operation
from dagad._kernels.finite import is_finite
from dagad._kernels.kernel import Outputs
from dagad._kernels.operation import Operation, State
from dagad._sources.boxes import times
from dagad._tracing.embedded import Trace, innermost, parts_of
from dagad._tracing.tape import reverse_depth, traceable
from dagad._types import Cotangent
from dagad._values import pytree
from dagad._values.blocks import full
from dagad._values.canonical import contiguous, writable
from dagad._values.partition import Partition
from dagad._watching.watching import watched


def differentiable(operation: Operation, leaves: Sequence[Any]) -> Outputs:
    """Return what an operation gives, as a function of its leaves, some of which somebody traces."""
    note_operation(operation, leaves)
    began = perf_counter()
    if is_in_a_transform():
        found = _applied(operation, leaves)
    else:
        with watched(operation.kernel.name) as watch:
            found = _applied(operation, leaves)
            watch.gave(found.reduced)
    if operation.kernel.is_reduction and not is_finite(found.reduced):
        name_chunk(operation, leaves, found.reduced, perf_counter() - began)
    return found


def _applied(operation: Operation, leaves: Sequence[Any]) -> Outputs:
    if not len(operation.plan):  # nothing depends on anything
        return Outputs(0.0, [])
    trace = innermost(leaves)
    if trace is None:
        return operation.call([traceable(contiguous(leaf)) for leaf in leaves])
    return (_forward if trace.moves else _reverse)(operation, trace)


# Forward


def _forward(operation: Operation, trace: Trace) -> Outputs:
    """Move the leaves: one operation gives the value and the tangents in all directions."""
    below, (tangents, count), n_theta = trace.below, trace.tangents(), sum(operation.inputs.shared)
    moving = [
        [
            pytree.dense(tangents[index][number] if index in tangents else None, leaf, "A tangent")
            for index, leaf in enumerate(below)
        ]
        for number in range(count)
    ]
    copies = [below, *moving]
    leaves = [leaf for copy in copies for leaf in copy[:n_theta]] + [leaf for copy in copies for leaf in copy[n_theta:]]
    both = _applied(operation.pushforward(count), leaves)
    value, directions = operation.split_jvp(both, count)
    pairs = zip(value.floats(), zip(*directions, strict=True), strict=True)
    return _filled(value, (trace.with_tangents(leaf, list(parts)) for leaf, parts in pairs))


def _filled(value: Outputs, leaves: Iterator[Any]) -> Outputs:
    """Return a result with other leaves where it has floating-point ones."""
    if not value.stacked and type(value.reduced) in (float, np.float64):  # nearly always
        return Outputs(next(leaves), [], value.note, value.positions)
    summed = Partition.of(value.reduced, pytree.is_differentiable_or_traced).merge(leaves)
    own = [next(leaves) if pytree.is_differentiable_or_traced(leaf) else leaf for leaf in value.stacked]
    return Outputs(summed, own, value.note, value.positions)


# Reverse


def _reverse(operation: Operation, trace: Trace) -> Outputs:
    """Run the operation; its pullback becomes one node of the outer tape."""
    below, indices = trace.below, tuple(trace.nodes)
    if not any(map(pytree.is_traced, below)):
        below = [traceable(contiguous(leaf)) for leaf in below]
        value, state = operation.forward(below)
        pull: Any = Pull(operation, below, value, state, indices)
    else:
        value, pull = _traced(operation, below, indices)
    outputs = trace.pulled(value.floats(), pull)
    return _filled(value, iter(outputs)) if outputs else value


def _traced(operation: Operation, below: list[Any], indices: tuple[int, ...]) -> tuple[Outputs, Any]:
    """Return the value and the pullback where somebody else traces too: both are operations that he differentiates."""
    # Whatever the policy: there is no tape to keep, and it is not to show in the bits.
    if not operation.kernel.is_reduction:
        return (value := _applied(operation, below)), TracedPull(operation, below, value, None, indices)
    both = _applied(operation.value_and_grad(), below)
    reduced, shared, n_without = both.reduced
    gradient = None if n_without else [*shared, *both.stacked]
    return (value := Outputs(reduced, [])), TracedPull(operation, below, value, gradient, indices)


class TracedPull:
    """The pullback of an operation at leaves that somebody traces; `gradient` is that for the seed 1, if any."""

    def __init__(
        self,
        operation: Operation,
        leaves: list[Any],
        value: Outputs,
        gradient: list[Any] | None,
        indices: tuple[int, ...],
    ) -> None:
        self._operation, self._leaves, self._value, self._gradient = operation, leaves, value, gradient
        self._indices = indices  # of the leaves that this trace asks for

    def __call__(self, cotangent: Cotangent) -> tuple[Any, ...]:
        cotangents = self._pulled(parts_of(cotangent))
        found = (cotangents[index] for index in self._indices)
        # Autograd's own transforms hand out what they get.
        return tuple(found if is_in_a_transform() else map(writable, found))

    def many(self, cotangents: Sequence[Any]) -> list[list[Any]]:
        """Return for each parent of the node its cotangents for many seeds, None for zero."""
        nothing = [None] * len(self._leaves)
        rows = [nothing if one is None else self._pulled(list(map(full, parts_of(one)))) for one in cotangents]
        found = [list(column) for column in zip(*rows, strict=True)]
        return [found[index] for index in self._indices]

    def _pulled(self, seeds: list[Any]) -> list[Any]:
        if self._gradient is None:
            return self._pulled_traced(seeds)
        asked = [part if index in self._indices else None for index, part in enumerate(self._gradient)]
        # The cotangent of a factor of Shards would be a sum over their rows: for tapes, that is the operation's affair.
        if any(reverse_depth(seeds[0]) or reverse_depth(part) for part in asked if pytree.is_sharded(part)):
            return self._pulled_traced(seeds)
        return [None if part is None else _scaled(part, seeds[0]) for part in asked]

    def _pulled_traced(self, seeds: list[Any]) -> list[Any]:
        """Pull by an operation of its own, since somebody differentiates the pullback."""
        back = _applied(*self._operation.pullback(self._leaves, self._value, seeds))
        pairs = zip([*(back.reduced or ()), *back.stacked], self._leaves, strict=True)
        return [pytree.zeros_like(leaf) if part is None else part for part, leaf in pairs]  # no seed reached a chunk


def _scaled(part: Cotangent, seed: Cotangent) -> Any:
    return times(part, seed) if pytree.is_sharded(part) else part * seed


class Pull(TracedPull):
    """The pullback of an operation at plain leaves: there is a state, which every pull may change."""

    def __init__(
        self, operation: Operation, leaves: list[Any], value: Outputs, state: State, indices: tuple[int, ...]
    ) -> None:
        super().__init__(operation, leaves, value, None, indices)
        self._state, self._lock = state, threading.Lock()

    def many(self, cotangents: Sequence[Any]) -> list[list[Any]]:
        seeds = [None if cotangent is None else parts_of(cotangent) for cotangent in cotangents]
        if any(pytree.is_traced(seed) for some in seeds for seed in some or ()):
            return super().many(cotangents)
        seeds = [some if some is None else list(map(contiguous, some)) for some in seeds]
        with held(self._lock):
            found, self._state = self._operation.backward_many(self._leaves, self._value, self._state, seeds)
        return [found[index] for index in self._indices]

    def _pulled(self, seeds: list[Any]) -> list[Any]:
        if any(map(pytree.is_traced, seeds)):
            return self._pulled_traced(seeds)
        seeds = [contiguous(seed) if type(seed) is np.ndarray else seed for seed in seeds]
        with held(self._lock):  # several threads may pull: what the first one finds may be all that the others need
            found, self._state = self._operation.backward(self._leaves, self._value, self._state, seeds)
        return found
