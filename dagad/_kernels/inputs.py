"""Which leaves go into each chunk of a derived function, and where what it owns belongs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from dagad._sources.base import Target
from dagad._sources.columns import Sliced
from dagad._sources.plan import AnyPlan

Targets = list[Target]


class Inputs(NamedTuple):
    """What goes into each chunk: how many shared leaves, and which rows of which leaf, in groups.

    `rows[chunk]` holds for each group of sliced leaves the chunk's targets, numbered within the group.
    """

    shared: tuple[int, ...]
    sliced: tuple[int, ...]
    rows: list[tuple[Targets, ...]]

    @classmethod
    def of(cls, plan: AnyPlan, sliced: Sliced, n_theta: int, n_sliced: int | None = None) -> Inputs:
        """Return the inputs of a chunk function: one group of each kind."""
        if n_sliced == 0:
            return cls((n_theta,), (0,), [([],)] * len(plan))
        rows: list[tuple[Targets, ...]] = [
            ([(leaf - n_theta, own) for leaf, own in sliced.targets(chunk)],) for chunk in plan
        ]
        n_rows = 1 + max((leaf for groups in rows for leaf, _ in groups[0]), default=-1)
        return cls((n_theta,), (n_rows,), rows)

    def groups(self, leaves: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
        """Return the shared leaves in groups."""
        first, found = 0, []
        for size in sizes:
            found.append(list(leaves[first : first + size]))
            first += size
        return found

    def targets(self, number: int) -> Targets:
        """Return the targets of a chunk, numbered among all leaves."""
        first = sum(self.shared)
        found: Targets = []
        for size, targets in zip(self.sliced, self.rows[number], strict=True):
            found.extend((first + leaf, rows) for leaf, rows in targets)
            first += size
        return found

    def flat(self) -> list[Targets]:
        """Return the targets of all chunks, numbered among the sliced leaves."""
        first = sum(self.shared)
        return [[(leaf - first, rows) for leaf, rows in self.targets(number)] for number in range(len(self.rows))]

    def times(self, count: int) -> Inputs:
        """Return the same inputs as many times."""
        return Inputs(self.shared * count, self.sliced * count, [groups * count for groups in self.rows])

    def and_seeds(self, summed: int, own: int, owned_rows: list[Targets] | None) -> Inputs:
        """Return the inputs of the pullback: with one more group of each kind, for the seeds."""
        if owned_rows is None:
            return Inputs((*self.shared, summed), self.sliced, self.rows)
        rows = [(*groups, extra) for groups, extra in zip(self.rows, owned_rows, strict=True)]
        return Inputs((*self.shared, summed), (*self.sliced, own), rows)


def owned_leaves(copies: int, n_own: Sequence[int]) -> list[Targets]:
    """Return indices where each chunk has leaves of its own, each its number: copy by copy, in each chunk by chunk."""
    each = [count // copies for count in n_own]
    *starts, total = itertools.accumulate(each, initial=0)
    return [
        [(copy * total + start + leaf, None) for copy in range(copies) for leaf in range(size)]
        for start, size in zip(starts, each, strict=True)
    ]


def times(positions: list[Targets], count: int) -> list[Targets]:
    """Return targets for as many copies of the leaves, one copy after the other."""
    each = 1 + max((leaf for targets in positions for leaf, _ in targets), default=-1)
    return [[(leaf + number * each, rows) for number in range(count) for leaf, rows in own] for own in positions]
