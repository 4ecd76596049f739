"""A chunk function and how its values are combined, on a run of chunks: one value a run, which the run owns."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dagad._engines.autograd.tape import pull, record, tape_nbytes
from dagad._errors import add_note_once
from dagad._graphs.linearization import Pullback
from dagad._graphs.monoids import RunningTree, Subtree, assembled
from dagad._operations.chunks import ChunkFunction, Place
from dagad._operations.derived import Derived, Groups, Note, Parts, Seeds, in_groups
from dagad._operations.item_outputs import numbers_of
from dagad._pytrees import pytree
from dagad._pytrees.shipping import opened
from dagad._sources.plan import AnyPlan
from dagad._sources.runs import n_gaps


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
    return assembled(dict(zip(parts, values, strict=True)), n_chunks, None, Combine(combine))


def in_order(combine: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    """Combine the values of all chunks of a subtree."""
    return combined(combine, values, [Subtree(number, 0) for number in range(len(values))], len(values))


class Combined(Derived):
    """A chunk function on each chunk of a run, its values combined where they were computed."""

    __slots__ = ("_combine", "_parts", "_plan", "function")
    sums, owns, copies = False, True, 1

    def __init__(
        self, function: ChunkFunction, combine: Callable[[Any, Any], Any], plan: AnyPlan, parts: tuple[Subtree, ...]
    ) -> None:
        self.function: ChunkFunction = opened(function)
        self._combine, self._plan, self._parts = combine, plan, parts

    def state(self) -> tuple[Any, ...]:
        return self.function, self._combine, self._plan, self._parts

    def _places(self, place: Place) -> Iterator[Place]:
        """Yield the contexts of the chunks of a run: what is raised there tells of them."""
        for number in itertools.count(self._parts[place.chunk.number].start):
            yield Place(self._plan.chunk(number), place.names)

    def run(self, place: Place, rows: Any, theta: Groups, active: Groups) -> Parts:
        shared, traced = list(theta[0]), any(map(pytree.is_traced, (*theta[0], *(active[0] if active else ()))))
        values = []
        for (part, own), here in zip(_split(rows, active[0] if active else ()), self._places(place), strict=False):
            if traced:
                with noted(here):
                    values.append(self.function.run(part, [*shared, *own], len(shared)))
            else:
                values.append(self.function.value(here, part, shared, own))
        return self._folded(place, values)

    def _folded(self, place: Place, values: Sequence[Any]) -> Parts:
        try:
            for value in values:
                numbers_of(value, CANT)
            leaves, treedef = pytree.flatten(pytree.open_containers(in_order(self._combine, values)))
        except Exception as error:
            add_note_once(error, place.note("value"))
            raise
        return Parts(None, leaves, Note(treedef))

    def record(self, place: Place, rows: Any, theta: Groups, active: Groups = ()) -> tuple[Any, Pullback, Any]:
        """Record each chunk by its own engine, and how its values are combined by autograd; see `Recordable`."""
        shared, pieces = list(theta[0]), list(_split(rows, active[0] if active else ()))
        places = list(itertools.islice(self._places(place), len(pieces)))
        found = [self.function.linearize(at, part, shared, own) for at, (part, own) in zip(places, pieces, strict=True)]
        columns = [pytree.flatten(value) for value, _, _ in found]
        moving = [leaf for leaves, _ in columns for leaf in leaves if pytree.is_differentiable_or_traced(leaf)]

        def combine(leaves: Sequence[Any]) -> Parts:
            rest = iter(leaves)
            filled = [
                pytree.unflatten(treedef, [next(rest) if pytree.is_differentiable_or_traced(x) else x for x in own])
                for own, treedef in columns
            ]
            return self._folded(place, filled)

        value, ends, roots = record(combine, moving)
        parts = Parts(*value)

        def pullback(seeds: Seeds) -> tuple[Any, ...]:
            try:
                arrived = iter(pull(ends[: len(parts.own)], parts.seeds(seeds), roots, moving))
            except Exception as error:
                add_note_once(error, place.note("pullback"))
                raise
            total, sliced = RunningTree(), list[Any]()
            for here, (_, pull_leaves, _), (leaves, _), (_, own) in zip(places, found, columns, pieces, strict=True):
                mine = [next(arrived) if pytree.is_differentiable_or_traced(leaf) else None for leaf in leaves]
                if not any(map(_is_something, mine)):  # exact zeros, that cost nothing
                    total.push(None)
                    sliced.extend([None] * len(own))
                    continue
                groups = self.function.pull(here, pull_leaves, mine, len(shared), own)
                flat = [leaf for group in groups for leaf in group]
                total.push(flat[: len(shared)])
                sliced.extend(flat[len(shared) :])
            return in_groups([*(total.total() or [None] * len(shared)), *sliced], theta, active)

        return parts, pullback, lambda: tape_nbytes(ends) + sum(nbytes() for _, _, nbytes in found)


CANT = "`map_reduce` can't combine what a chunk gave"


def _is_something(seed: Any) -> bool:
    return seed is not None and (pytree.is_traced(seed) or bool(np.any(seed)))


@contextlib.contextmanager
def noted(place: Place) -> Iterator[None]:
    """Add to an exception which chunk it is about."""
    try:
        yield
    except Exception as error:
        add_note_once(error, place.note("value"))
        raise


def _split(rows: Sequence[Any], leaves: Sequence[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the rows of each chunk of a run, with those of the leaves that belong in its gaps."""
    rest = iter(leaves)
    for part in rows:
        opened_part = opened(part)
        yield opened_part, [next(rest) for _ in range(n_gaps(opened_part))]
