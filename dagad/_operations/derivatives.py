"""Derivatives of chunk functions, which are chunk functions again: pushforward, pullback, value with gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dagad._engines.autograd.forward import push
from dagad._graphs.linearization import is_scalar, unit_seed
from dagad._operations.chunks import Place
from dagad._operations.derived import Derived, Groups, Parts, regrouped
from dagad._pytrees import pytree
from dagad._pytrees.shipping import opened


class Pushed(Derived):
    """A function and its tangents, for some directions.

    Groups of leaves: those of the function, then as many again for each direction, one tangent per leaf.
    """

    __slots__ = ("copies", "function", "n_directions", "owns", "sums")

    def __init__(self, function: Derived, n_directions: int) -> None:
        self.function: Derived = opened(function)
        self.n_directions, self.sums, self.owns = n_directions, self.function.sums, self.function.owns
        self.copies = (1 + n_directions) * self.function.copies

    def state(self) -> tuple[Any, ...]:
        return self.function, self.n_directions

    def run(self, place: Place, rows: Any, theta: Groups, active: Groups) -> Parts:
        count = 1 + self.n_directions
        thetas, actives = _split(theta, count), _split(active, count)
        leaves = [leaf for group in (*thetas[0], *actives[0]) for leaf in group]
        directions = [
            [_or_none(leaf) for group in (*thetas[number], *actives[number]) for leaf in group]
            for number in range(1, count)
        ]
        notes = []

        def run(leaves: Sequence[Any]) -> Any:
            rest = iter(leaves)
            parts = self.function.run(place, rows, regrouped(thetas[0], rest), regrouped(actives[0], rest))
            notes.append(parts.note)
            return parts.summed, parts.own

        (summed, own), tangents = push(run, leaves, directions)
        return self._parts(Parts(summed, own, notes[0]), tangents)

    def stacked_like(self, active: Groups) -> list[Any] | None:
        """Return the inputs of the value's outputs, and for each direction these again."""
        inputs = self.function.stacked_like(_split(active, 1 + self.n_directions)[0])
        return inputs and inputs * (1 + self.n_directions)

    def _parts(self, value: Parts, directions: Sequence[Sequence[Any]]) -> Parts:
        """Return the value with its tangents: in what is summed, integers have None, as they may move elsewhere."""
        summed, treedef = pytree.flatten(value.summed)
        own, moving = list(value.own), []
        for tangents in directions:
            filled = [_or_zeros(part, leaf) for part, leaf in zip(tangents, value.leaves(), strict=True)]
            pairs = zip(filled, summed, strict=False)
            mine = [part if pytree.is_differentiable_or_traced(leaf) else None for part, leaf in pairs]
            moving.append(pytree.unflatten(treedef, mine))
            own.extend(filled[len(summed) :])
        return Parts((value.summed, moving) if self.sums else None, own, value.note)


def _split(groups: Groups, count: int) -> list[Groups]:
    each = len(groups) // count
    return [groups[number * each : (number + 1) * each] for number in range(count)]


def _or_none(tangent: Any) -> Any:
    """Return None for a tangent that is zero: it moves nothing, and costs nothing."""
    return tangent if pytree.is_traced(tangent) or np.any(tangent) else None


def _or_zeros(tangent: Any, leaf: Any) -> Any:
    return pytree.zeros_like(pytree.plain(leaf)) if tangent is None else tangent


class Pulled(Derived):
    """The pullback of a function, as a function of its leaves and of the seeds.

    Groups of leaves: those of the function, then one of seeds: of what it sums in `theta`, of what it owns in `active`.
    `summed` and `stacked` say which leaves have a seed: in a chunk, some of these may be integers.
    """

    __slots__ = ("function", "owns", "stacked", "summed", "sums")

    def __init__(
        self, function: Derived, summed: tuple[bool, ...], stacked: tuple[bool, ...] | None, sums: bool, owns: bool
    ) -> None:
        self.function: Derived = opened(function)
        self.summed, self.stacked, self.sums, self.owns = summed, stacked, sums, owns

    def state(self) -> tuple[Any, ...]:
        return self.function, self.summed, self.stacked, self.sums, self.owns

    def run(self, place: Place, rows: Any, theta: Groups, active: Groups) -> Parts:
        own_seeds = active[-1] if self.function.owns else []
        actives = active[:-1] if self.function.owns else active
        rest = iter(theta[-1])
        seeds = [next(rest) if is_float else None for is_float in self.summed]
        cotangents: Parts = pulled_at(
            self.function, (place, rows, theta[:-1], actives), (seeds, own_seeds, self.stacked)
        )[1]
        return cotangents

    def stacked_like(self, active: Groups) -> list[Any] | None:
        """Return the inputs of the function: its outputs are their cotangents."""
        return [leaf for group in (active[:-1] if self.function.owns else active) for leaf in group]


class WithUnit(Derived):
    """A function of a reduction with its gradient for the seed 1; without, where its value is not one real number."""

    __slots__ = ("function", "owns", "sums")

    def __init__(self, function: Derived, owns: bool) -> None:
        self.function: Derived = opened(function)
        self.sums, self.owns = True, owns

    def state(self) -> tuple[Any, ...]:
        return self.function, self.owns

    def run(self, place: Place, rows: Any, theta: Groups, active: Groups) -> Parts:
        value, gradient = pulled_at(self.function, (place, rows, theta, active), None)
        if gradient is None:
            return Parts((value.summed, None), [])
        return Parts((value.summed, gradient.summed), gradient.own)

    def stacked_like(self, active: Groups) -> list[Any] | None:
        """Return all inputs: the outputs are their cotangents."""
        return [leaf for group in active for leaf in group]


def pulled_at(function: Derived, args: Any, given: tuple[Any, ...] | None) -> tuple[Parts, Any]:
    """Run a chunk and pull seeds, or the seed 1: its value, and the cotangents, those of theta to be summed.

    Given are a seed for each leaf that is summed, those of what is stacked, and which leaves these belong to.
    """
    place, rows, theta, active = args
    value, pullback, _ = function.record(place, rows, theta, active)
    if given is None:
        total = pytree.plain(value.summed)
        if not is_scalar(total) and not isinstance(total, int | np.integer):
            return value, None
        seeds = [unit_seed(total) if is_scalar(total) else None]  # a sum of nothing is the integer 0
    else:
        seeds = [*given[0], *value.own_seeds(*given[1:])]
    cotangents = list(pullback(seeds))
    shared = cotangents.pop(0) if sum(map(len, theta)) else []
    flat = [leaf for group in theta for leaf in group]
    own = [leaf for group in active for leaf in group]
    return value, Parts(
        [_or_zeros(part, leaf) for part, leaf in zip(shared, flat, strict=True)],
        [_or_zeros(part, leaf) for part, leaf in zip(cotangents.pop() if cotangents else [], own, strict=True)],
    )
