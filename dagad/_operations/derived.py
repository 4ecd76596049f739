"""Chunk functions made of chunk functions: in, shared and sliced leaves; out, what is summed and what each chunk owns.

Forward mode and transposition lead from such functions to such functions: a pushforward moves both kinds of leaves and
results, a pullback makes shared leaves into summed results, sliced ones into owned ones, and the other way round. So
the derivative of a reduction, of any order, is a reduction again, and runs in parallel like the first.

All of them are called as ``function(place, rows, theta, active)``, with `theta` and `active` lists of groups of leaves:
each layer adds a group, or as many again, and takes them off when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import autograd.numpy as anp
import numpy as np

from dagad._engines.autograd.tape import pull, record, tape_nbytes
from dagad._errors import StructureError, add_note_once
from dagad._graphs.linearization import Counters, Preaccumulated, Pullback, is_scalar, unit_seed, unused_pullback
from dagad._operations.chunks import ChunkFunction, Place
from dagad._pytrees import pytree
from dagad._pytrees.canonical import canonical
from dagad._pytrees.shipping import Portable, opened

Groups = Sequence[Sequence[Any]]
# One seed (None: zero) per leaf of what is summed, None among them, then of what is owned.
Seeds = Sequence[Any]


class Parts(NamedTuple):
    """What one chunk gives: a pytree that is added up over the chunks, and leaves that stay its own."""

    summed: Any
    own: list[Any]
    note: Any = None  # what the caller has to know about the leaves of its own
    places: Any = None  # of all chunks together: for each, the leaves and rows that are its own

    def floats(self) -> list[Any]:
        """Return the leaves that have derivatives, in the order of seeds."""
        return [leaf for leaf in self.leaves() if pytree.is_differentiable_or_traced(leaf)]

    def leaves(self) -> list[Any]:
        """Return all leaves."""
        return [*pytree.flatten(self.summed)[0], *self.own]

    def all_leaves(self) -> list[Any]:
        """Return all leaves, None among them: as many for each chunk."""
        summed = pytree.flatten_with_none(self.summed)[0]
        return [*(summed if any(leaf is not None for leaf in summed) else ()), *self.own]

    def all_seeds(self, seeds: Seeds) -> list[Any]:
        """Return one seed for each of `all_leaves`, from one for each of `floats`."""
        rest = iter(seeds)
        return [next(rest) if pytree.is_differentiable_or_traced(leaf) else None for leaf in self.all_leaves()]

    def own_seeds(self, seeds: Seeds, floats: tuple[bool, ...] | None) -> list[Any]:
        """Return one seed per leaf of its own; `floats` says which have one, None for those that are floats here."""
        rest = iter(seeds)
        flags = map(pytree.is_differentiable_or_traced, self.own) if floats is None else floats
        return [next(rest) if is_float else None for is_float in flags]

    def seeds(self, seeds: Seeds) -> list[Any]:
        """Return one seed per leaf; there may be seeds for those with derivatives only.

        A sum of nothing is the integer 0: what is an integer in this chunk may be floating point in others, and so have
        a seed, which is not to be taken for that of the next leaf.
        """
        leaves, count = self.all_leaves(), len(self.floats())
        if len(seeds) not in (len(leaves), count):
            raise StructureError(
                "Some parts of what a chunk returned are integers in this chunk, and floating point in others. Return "
                "the same from every chunk: `float(...)` of a number, `.astype(float)` of an array."
            )
        rest, found = iter(seeds), []
        for leaf in leaves:
            has_derivative = pytree.is_differentiable_or_traced(leaf)
            seed = next(rest) if has_derivative or len(seeds) == len(leaves) else None
            if leaf is not None:
                found.append(_cast(seed, leaf) if has_derivative else None)
        return found


def _cast(seed: Any, leaf: Any) -> Any:
    plain = seed is not None and not pytree.is_traced(seed) and not pytree.is_traced(leaf)
    return pytree.cast_like(seed, leaf, "A cotangent came") if plain else seed


class Derived(Portable):
    """Base of these functions; `run` is what they do, on leaves that somebody may trace, with a `function`."""

    __slots__ = ()
    function: Any
    sums = owns = True  # whether anything of it is summed, or owned
    is_reduction = False  # whether it may give one real number, and so have a gradient for the seed 1
    copies = 0  # of what is owned, where each chunk has leaves of its own; 0: these are one array's rows

    def run(self, place: Place, rows: Any, theta: Groups, active: Groups) -> Parts:
        """Run one chunk."""
        raise NotImplementedError(f"`{type(self).__name__}.run` has to run one chunk.")

    def value(self, place: Place, rows: Any, theta: Groups, active: Groups = ()) -> Parts:
        """Run one chunk, tracing nothing."""
        try:
            return self.run(place, opened(rows), _canonical(theta), _canonical(active))
        except Exception as error:
            add_note_once(error, place.note("value"))
            raise

    def record(
        self, place: Place, rows: Any, theta: Groups, active: Groups = ()
    ) -> tuple[Any, Pullback, Callable[[], int]]:
        """Run one chunk traced; see `Recordable`."""
        theta, active = _canonical(theta), _canonical(active)
        leaves = [leaf for group in (*theta, *active) for leaf in group]

        def run(leaves: Sequence[Any]) -> Parts:
            rest = iter(leaves)
            return self.run(place, opened(rows), regrouped(theta, rest), regrouped(active, rest))

        try:
            value, ends, roots = record(run, leaves)
        except Exception as error:
            add_note_once(error, place.note("value"))
            raise
        parts = Parts(*value)

        def pullback(seeds: Seeds) -> tuple[Any, ...]:
            try:
                # The last end is that of the note.
                cotangents = pull(ends[: len(parts.leaves())], parts.seeds(seeds), roots, leaves)
            except Exception as error:
                add_note_once(error, place.note("pullback"))
                raise
            return in_groups(cotangents, theta, active)

        return parts, pullback, lambda: tape_nbytes(ends)

    def preaccumulate(self, counters: Counters, *args: Any) -> Preaccumulated:
        """Run one chunk traced; what it gives has no seed that could be known. See `Recordable`."""
        parts, pullback, nbytes = self.record(*args)
        counters.recorded()
        return parts, None, pullback, nbytes

    def stacked_like(self, active: Groups) -> list[Any] | None:
        """Return the sliced inputs that the stacked outputs correspond to, in their order; None where to none."""
        del active
        return None

    @property
    def engine(self) -> Any:
        """What differentiates the user's function."""
        return self.function.engine

    @property
    def signature(self) -> Hashable:
        """What tells derivatives of one function apart: they don't cost the same."""
        return type(self), getattr(self, "n_directions", 0), getattr(self.function, "signature", None)


def in_groups(cotangents: Sequence[Any], theta: Groups, active: Groups) -> tuple[Any, ...]:
    """Return cotangents as a task has its arguments: of theta, of the rows; neither where there are none."""
    n_theta = sum(map(len, theta))
    parts = (list(cotangents[:n_theta]),) if n_theta else ()
    return (*parts, list(cotangents[n_theta:])) if active else parts


def _canonical(groups: Groups) -> list[list[Any]]:
    return [[canonical(leaf) for leaf in group] for group in groups]


def regrouped(groups: Groups, leaves: Iterator[Any]) -> list[list[Any]]:
    return [[next(leaves) for _ in group] for group in groups]


class Summed(Derived):
    """A chunk function of a reduction: all of it is summed."""

    __slots__ = ("function",)
    owns = False
    is_reduction = True

    def __init__(self, function: ChunkFunction) -> None:
        self.function: ChunkFunction = opened(function)

    def state(self) -> tuple[Any, ...]:
        return (self.function,)

    def run(self, place: Place, rows: Any, theta: Groups, active: Groups) -> Parts:
        leaves = [*theta[0], *(active[0] if active else ())]
        if not any(map(pytree.is_traced, leaves)):
            return Parts(self.function.value(place, rows, theta[0], active[0] if active else None), [])
        return Parts(self.function.run(rows, leaves, len(theta[0])), [])

    def record(self, place: Place, rows: Any, theta: Groups, active: Groups = ()) -> Any:
        """Run one chunk by its own engine; see `Recordable`."""
        own = active[0] if active else None
        value, pull_leaves, nbytes = self.function.linearize(place, rows, theta[0], own)
        parts = Parts(value, [])

        def pullback(seeds: Seeds) -> tuple[Any, ...]:
            return self.function.pull(place, pull_leaves, parts.seeds(seeds), len(theta[0]), own)

        return parts, pullback, nbytes

    def preaccumulate(self, counters: Counters, *args: Any) -> Preaccumulated:
        """Run one chunk by its own engine, and pull the seed 1 of a number at once; see `Recordable`."""
        place, rows, (theta,), own = *args[:3], args[3][0] if len(args) > 3 else None
        value, pull_leaves, nbytes = self.function.linearize(place, rows, theta, own)
        counters.recorded()
        parts = Parts(value, [])
        if is_scalar(value) or not parts.floats():  # of an integer, say, the derivative is none, with any seed
            seeds = [unit_seed(value)] if is_scalar(value) else [None] * len(parts.leaves())
            gradient = self.function.pull(place, pull_leaves, seeds, len(theta), own)
            counters.used_up()
            return parts, gradient, unused_pullback, int

        def pullback(seeds: Seeds) -> tuple[Any, ...]:
            return self.function.pull(place, pull_leaves, parts.seeds(seeds), len(theta), own)

        return parts, None, pullback, nbytes


class Apart(Summed):
    """A chunk function whose values are combined by somebody else: each chunk owns all the leaves of its value."""

    __slots__ = ()
    sums, owns, copies, is_reduction = False, True, 1, False

    def run(self, place: Place, rows: Any, theta: Groups, active: Groups) -> Parts:
        return _apart(super().run(place, rows, theta, active))

    def record(self, place: Place, rows: Any, theta: Groups, active: Groups = ()) -> Any:
        """Run one chunk by its own engine; see `Recordable`."""
        parts, pullback, nbytes = super().record(place, rows, theta, active)
        return _apart(parts), pullback, nbytes

    preaccumulate = Derived.preaccumulate


def _apart(parts: Parts) -> Parts:
    leaves, treedef = pytree.flatten(parts.summed)
    return Parts(None, leaves, Note(treedef))


DIFFERENT = "The outputs of two items differ in structure; return the same for every item"


def check_alike(shape: Sequence[int], other: Sequence[int]) -> None:
    """Raise unless the outputs of two items have one shape."""
    if shape != other:
        raise StructureError(
            f"The outputs of two items differ in shape: {shape} and {other}. Return the same shape for every item, or "
            "use `dagad.map_rect` for 1-d outputs of different lengths."
        )


class Note:
    """The structure of what is owned."""

    def __init__(self, treedef: pytree.TreeDef) -> None:
        self.treedef = treedef


pytree.register(Note, lambda note: ((), note.treedef), lambda treedef, _: Note(treedef))


def joined(parts: Sequence[Any]) -> Any:
    """Return what the chunks own of one leaf as one array."""
    if any(map(pytree.is_traced, parts)):
        return anp.concatenate(list(parts))
    return np.concatenate(parts)
