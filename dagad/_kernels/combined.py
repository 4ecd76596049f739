"""A chunk function and how its values are combined, on a run of chunks: one value a run, which the run owns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dagad._errors import add_note_once
from dagad._graphs.linearization import PullbackFunction
from dagad._graphs.sum_trees import RunningTree, Subtree, assembled
from dagad._kernels.chunks import ChunkContext, ChunkFunction
from dagad._kernels.finite import is_finite
from dagad._kernels.item_outputs import numbers_of
from dagad._kernels.kernel import Groups, Kernel, Note, Outputs, Seeds, in_groups
from dagad._sources.plan import AnyPlan
from dagad._sources.runs import n_gaps
from dagad._tracing.tape import pull, record, tape_nbytes
from dagad._values import pytree
from dagad._values.shipping import opened


class Combine:
    """What `combined` folds with: the user's function as a monoid, differentiated as it is written."""

    def __init__(self, combine: Callable[[Any, Any], Any]) -> None:
        self._combine = combine

    def lift(self, term: Any) -> Any:
        """Return the term."""
        return term

    def add(self, a: Any, b: Any, ours: bool) -> Any:
        """Combine two neighbours."""
        del ours
        return self._combine(a, b)

    def lower(self, total: Any) -> Any:
        """Return the value."""
        return total


def combined(combine: Callable[[Any, Any], Any], values: Sequence[Any], parts: Sequence[Subtree], n_chunks: int) -> Any:
    """Combine the values of subtrees that together are all of the tree: neighbours first, and so on."""
    return assembled(parts, values, n_chunks, Combine(combine))


def in_order(combine: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    """Combine the values of all chunks of a subtree."""
    return combined(combine, values, [Subtree(number, 0) for number in range(len(values))], len(values))


class Combined(Kernel):
    """A chunk function on each chunk of a run, its values combined where they were computed."""

    __slots__ = ("_combine", "_parts", "_plan", "function")
    reduces, stacks, copies = False, True, 1

    def __init__(
        self, function: ChunkFunction, combine: Callable[[Any, Any], Any], plan: AnyPlan, parts: tuple[Subtree, ...]
    ) -> None:
        self.function: ChunkFunction = opened(function)
        self._combine, self._plan, self._parts = combine, plan, parts

    def state(self) -> tuple[Any, ...]:
        return self.function, self._combine, self._plan, self._parts

    def _places(self, context: ChunkContext) -> list[ChunkContext]:
        """Return the contexts of the chunks of a run: what is raised there tells of them."""
        numbers = self._parts[context.chunk.number].terms(len(self._plan))
        return [ChunkContext(self._plan.chunk(number), context.names) for number in numbers]

    def run(self, context: ChunkContext, rows: Any, shared: Groups, sliced: Groups) -> Outputs:
        common, traced = list(shared[0]), any(map(pytree.is_traced, (*shared[0], *(sliced[0] if sliced else ()))))
        values = []
        for (part, own), here in zip(_split(rows, sliced[0] if sliced else ()), self._places(context), strict=True):
            if traced:
                with noted(here):
                    values.append(self.function.run(part, [*common, *own], len(common)))
            else:
                values.append(self.function.value(here, part, common, own))
        return self._folded(context, values)

    def narrowed(self, *args: Any) -> tuple[Any, ...]:
        """Return the arguments of the chunk among those of a run whose value is not finite."""
        context, rows, shared, sliced = args
        for (part, own), here in zip(_split(rows, sliced[0] if sliced else ()), self._places(context), strict=True):
            if not is_finite(self.function.value(here, part, shared[0], own)):
                return here, part, shared, [own]
        return args

    def _folded(self, context: ChunkContext, values: Sequence[Any]) -> Outputs:
        try:
            for value in values:
                numbers_of(value, CANT)
            leaves, treedef = pytree.flatten(pytree.open_containers(in_order(self._combine, values)))
        except Exception as error:
            add_note_once(error, context.note("value"))
            raise
        return Outputs(None, leaves, Note(treedef))

    def record(
        self, context: ChunkContext, rows: Any, shared: Groups, sliced: Groups = (), *, with_grad: bool = False
    ) -> tuple[Any, PullbackFunction, Any]:
        """Record each chunk by its own engine, and how its values are combined by autograd; see `Kernel`."""
        del with_grad
        common, pieces = list(shared[0]), list(_split(rows, sliced[0] if sliced else ()))
        places = self._places(context)
        found = [self.function.linearize(at, part, common, own) for at, (part, own) in zip(places, pieces, strict=True)]
        columns = [pytree.flatten(value) for value, _, _ in found]
        moving = [leaf for leaves, _ in columns for leaf in leaves if pytree.is_differentiable_or_traced(leaf)]

        def combine(leaves: Sequence[Any]) -> Outputs:
            rest = iter(leaves)
            filled = [
                pytree.unflatten(treedef, [next(rest) if pytree.is_differentiable_or_traced(x) else x for x in own])
                for own, treedef in columns
            ]
            return self._folded(context, filled)

        value, ends, roots = record(combine, moving)
        parts = Outputs(*value)

        def pullback(seeds: Seeds) -> tuple[Any, ...]:
            try:
                arrived = iter(pull(ends[: len(parts.stacked)], parts.seeds(seeds), roots, moving))
            except Exception as error:
                add_note_once(error, context.note("pullback"))
                raise
            total, pieces_of = RunningTree(), list[Any]()
            for here, (_, pull_leaves, _), (leaves, _), (_, own) in zip(places, found, columns, pieces, strict=True):
                mine = [next(arrived) if pytree.is_differentiable_or_traced(leaf) else None for leaf in leaves]
                if not any(map(_is_something, mine)):  # exact zeros, that cost nothing
                    total.push(None)
                    pieces_of.extend([None] * len(own))
                    continue
                groups = self.function.pull(here, pull_leaves, mine, len(common), own)
                flat = [leaf for group in groups for leaf in group]
                total.push(flat[: len(common)])
                pieces_of.extend(flat[len(common) :])
            return in_groups([*(total.total() or [None] * len(common)), *pieces_of], shared, sliced)

        return parts, pullback, lambda: tape_nbytes(ends) + sum(nbytes() for _, _, nbytes in found)


CANT = "`map_reduce` can't combine what a chunk gave"


def _is_something(seed: Any) -> bool:
    return seed is not None and (pytree.is_traced(seed) or bool(np.any(seed)))


@contextlib.contextmanager
def noted(context: ChunkContext) -> Iterator[None]:
    """Add to an exception which chunk it is about."""
    try:
        yield
    except Exception as error:
        add_note_once(error, context.note("value"))
        raise


def _split(rows: Sequence[Any], leaves: Sequence[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the rows of each chunk of a run, with those of the leaves that belong in its gaps."""
    rest = iter(leaves)
    for part in rows:
        opened_part = opened(part)
        yield opened_part, [next(rest) for _ in range(n_gaps(opened_part))]
