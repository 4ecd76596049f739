"""What the values of the parts of a chunk make together: a sum, outputs stacked or end to end, one combined value."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._errors import StructureError, add_note_once
from dagad._graphs.monoids import counted
from dagad._graphs.sum_trees import Subtree, assembled
from dagad._kernels.chunks import RETURN, RETURN_PLAIN, ChunkContext, is_number
from dagad._kernels.items import add_values
from dagad._kernels.kernel import DIFFERENT, Note, Outputs, Seeds, check_alike, joined
from dagad._kernels.over_parts import Distribute, Part, raised_in
from dagad._tracing.tape import pull, record, tape_nbytes
from dagad._types import Cotangent, Leaf, Value
from dagad._values import pytree
from dagad._values.blocks import is_seed
from dagad._values.canonical import is_strange
from dagad._values.work_arrays import kept
from dagad._words import described


@dataclass(frozen=True, slots=True)
class Added:
    """The sum of the values, in their order."""

    reduces, stacks, copies, is_reduction = True, False, 0, True

    def outputs(self, context: ChunkContext, parts: Sequence[Part], values: Sequence[Any]) -> Outputs:
        """Return the sum."""
        del context, parts
        return Outputs(functools.reduce(add_values, values[1:], counted(values[0])), [])

    def record(
        self, context: ChunkContext, parts: Sequence[Part], values: Sequence[Any]
    ) -> tuple[Outputs, Distribute, Callable[[], int]]:
        """Return the sum, whose seed is that of each part."""
        moving = [list(map(pytree.is_differentiable_or_traced, pytree.flatten(value)[0])) for value in values]

        def distribute(seeds: Seeds) -> list[list[Any]]:
            return [[seed if moves else None for seed, moves in zip(seeds, own, strict=True)] for own in moving]

        return self.outputs(context, parts, values), distribute, int


class _Own:
    """Outputs of items, which the chunk owns."""

    reduces, stacks, copies, is_reduction = False, True, 0, False

    def read(self, output: Value) -> list[Any]:
        """Return the leaves of one item's output."""
        raise NotImplementedError(f"`{type(self).__name__}.read` has to return leaves.")

    def together(self, outputs: Sequence[Any], items: Sequence[list[Any]]) -> Outputs:
        """Return what a chunk owns, from the outputs of the items and their leaves."""
        raise NotImplementedError(f"`{type(self).__name__}.together` has to put outputs together.")

    def cut(self, seed: Cotangent, lengths: Sequence[int]) -> Sequence[Any]:
        """Return the seeds of the items from that of the chunk."""
        raise NotImplementedError(f"`{type(self).__name__}.cut` has to cut a seed.")

    def outputs(self, context: ChunkContext, parts: Sequence[Part], values: Sequence[Any]) -> Outputs:
        """Return what a chunk owns."""
        return self._together(context, parts, values)[0]

    def _together(
        self, context: ChunkContext, parts: Sequence[Part], values: Sequence[Any]
    ) -> tuple[Outputs, list[list[Any]]]:
        items = []
        try:
            for part, value in zip(parts, values, strict=True):
                with raised_in(part, "value"):
                    items.append(self.read(value))
            return self.together(values, items), items
        except Exception as error:
            add_note_once(error, context.note("value"))
            raise

    def record(
        self, context: ChunkContext, parts: Sequence[Part], values: Sequence[Any]
    ) -> tuple[Outputs, Distribute, Callable[[], int]]:
        """Return what a chunk owns, and what cuts its seeds."""
        outputs, items = self._together(context, parts, values)

        def distribute(seeds: Seeds) -> list[list[Any]]:
            columns = []
            for column, seed in zip(zip(*items, strict=True), seeds, strict=True):
                lengths = [len(pytree.plain(leaf)) if np.ndim(pytree.plain(leaf)) else 1 for leaf in column]
                pieces = [None] * len(items) if seed is None else self.cut(seed, lengths)
                columns.append([_seed(piece, leaf) for piece, leaf in zip(pieces, column, strict=True)])
            return [list(row) for row in zip(*columns, strict=True)]

        return outputs, distribute, int


def _seed(seed: Cotangent, leaf: Leaf) -> Any:
    if seed is None or pytree.is_traced(seed) or pytree.is_traced(leaf):
        return seed
    if not np.any(seed):
        return None
    # Where other items have floats this one's may be an integer; a function with a pullback of its own may want it.
    return pytree.cast_like(seed, leaf, "A cotangent") if pytree.is_differentiable(leaf) else seed


@dataclass(frozen=True, slots=True)
class Stack(_Own):
    """Outputs of one structure and shape, each leaf stacked on a new first axis."""

    def read(self, output: Value) -> list[Any]:
        """Return the leaves of one item's output."""
        return numbers_of(output, "`map` can't stack what an item gave")

    def together(self, outputs: Sequence[Any], items: Sequence[list[Any]]) -> Outputs:
        """Return the leaves that a chunk owns, and the structure of an output."""
        treedef = pytree.flatten(outputs[0])[1]
        for output, leaves in zip(outputs, items, strict=True):
            pytree.check_same_structure(treedef, pytree.flatten(output)[1], DIFFERENT)
            for first, leaf in zip(items[0], leaves, strict=True):
                check_alike(np.shape(pytree.plain(first)), np.shape(pytree.plain(leaf)))
        return Outputs(None, [_stacked(column) for column in zip(*items, strict=True)], Note(treedef))

    def cut(self, seed: Cotangent, lengths: Sequence[int]) -> Sequence[Any]:
        """Return the seeds of the items from that of the chunk."""
        return [seed[number] for number in range(len(lengths))]


@dataclass(frozen=True, slots=True)
class EndToEnd(_Own):
    """Outputs of one dimension and any length."""

    def read(self, output: Value) -> list[Any]:
        """Return the one leaf of an item's output."""
        plain = pytree.plain(output)
        if not isinstance(plain, np.ndarray) or plain.ndim != 1 or not is_number(plain):
            usual = "Return `np.atleast_1d(value)` for a number and `array.ravel()` of an array, or use `dagad.map`."
            raise StructureError(
                f"`map_rect` needs an array of one dimension from every job, and got {described(plain)}. "
                f"{RETURN_PLAIN if is_strange(plain) else usual}"
            )
        return [output]

    def together(self, outputs: Sequence[Any], items: Sequence[list[Any]]) -> Outputs:
        """Return the one leaf that a chunk owns."""
        del outputs
        return Outputs(None, [joined([leaves[0] for leaves in items])], Note(pytree.flatten(0)[1]))

    def cut(self, seed: Cotangent, lengths: Sequence[int]) -> Sequence[Any]:
        """Return the seeds of the items from that of the chunk."""
        ends = np.cumsum([0, *lengths])
        return [seed[start:stop] for start, stop in itertools.pairwise(ends)]


def numbers_of(output: Value, what: str) -> list[Any]:
    """Return the leaves of an output after making sure that they are numbers: a traced one was not looked at yet."""
    leaves: list[Any] = pytree.flatten(output)[0]
    other = [plain for leaf in leaves if not is_number(plain := pytree.plain(leaf))]
    if other or not leaves:
        remedy = RETURN_PLAIN if other and is_strange(other[0]) else RETURN
        raise StructureError(f"{what}: {described(other[0]) if other else 'None or an empty container'}. {remedy}")
    return leaves


def _stacked(leaves: Sequence[Any]) -> Any:
    return anp.stack(list(leaves)) if any(map(pytree.is_traced, leaves)) else np.stack(leaves)


class Combine:
    """What `combined` folds with: the user's function as a monoid, differentiated as it is written."""

    def __init__(self, combine: Callable[[Any, Any], Any]) -> None:
        self._combine = combine

    def lift(self, term: Value) -> Any:
        """Return the term."""
        return term

    def add(self, a: Value, b: Value, ours: bool) -> Any:
        """Combine two neighbours."""
        del ours
        both = self._combine(a, b)
        return kept(both)

    def lower(self, total: Value) -> Any:
        """Return the value."""
        return total


def combined(combine: Callable[[Any, Any], Any], values: Sequence[Any], parts: Sequence[Subtree], n_chunks: int) -> Any:
    """Combine the values of subtrees that together are all of the tree: neighbours first, and so on."""
    return assembled(parts, values, n_chunks, Combine(combine))


CANT = "`map_reduce` can't combine what a chunk gave"


@dataclass(frozen=True, slots=True)
class Combined:
    """The values of a run of chunks, combined by a user's function where they were computed: one value a run."""

    combine: Callable[[Any, Any], Any]

    reduces, stacks, copies, is_reduction = False, True, 1, False

    def outputs(self, context: ChunkContext, parts: Sequence[Part], values: Sequence[Any]) -> Outputs:
        """Return the leaves of the combined value, which the run owns."""
        del parts
        try:
            for value in values:
                numbers_of(value, CANT)
            terms = [Subtree(number, 0) for number in range(len(values))]
            total = pytree.open_containers(combined(self.combine, values, terms, len(values)))
        except Exception as error:
            add_note_once(error, context.note("value"))
            raise
        leaves, treedef = pytree.flatten(total)
        return Outputs(None, leaves, Note(treedef))

    def record(
        self, context: ChunkContext, parts: Sequence[Part], values: Sequence[Any]
    ) -> tuple[Outputs, Distribute, Callable[[], int]]:
        """Record how values are combined: `combine` is differentiated as it is written, whatever the engine is."""
        columns = [pytree.flatten(value) for value in values]
        moving = [leaf for leaves, _ in columns for leaf in leaves if pytree.is_differentiable_or_traced(leaf)]

        def combine(leaves: Sequence[Any]) -> Outputs:
            rest = iter(leaves)
            filled = [
                pytree.unflatten(treedef, [next(rest) if pytree.is_differentiable_or_traced(x) else x for x in own])
                for own, treedef in columns
            ]
            return self.outputs(context, parts, filled)

        value, ends, roots = record(combine, moving)
        outputs = Outputs(*value)

        def distribute(seeds: Seeds) -> list[list[Any]]:
            try:
                arrived = iter(pull(ends[: len(outputs.stacked)], seeds, roots, moving))
            except Exception as error:
                add_note_once(error, context.note("pullback"))
                raise
            return [
                _or_zeros([next(arrived) if pytree.is_differentiable_or_traced(leaf) else None for leaf in leaves])
                for leaves, _ in columns
            ]

        return outputs, distribute, lambda: tape_nbytes(ends)


def _or_zeros(seeds: list[Any]) -> list[Any]:
    """Return None for seeds that are all zero: they cost nothing."""
    return seeds if any(map(is_seed, seeds)) else [None] * len(seeds)
