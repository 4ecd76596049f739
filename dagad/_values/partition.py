"""Partition: a pytree split into leaves that are taken out, such as those that are differentiated, and the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dagad._types import Cotangent, Tree
from dagad._values.pytree import LEAF, TreeDef, filled, flatten, subtrees, unflatten


class Partition:
    """A pytree with some of its leaves taken out: those at `positions`, which are of no account in `leaves`."""

    __slots__ = ("_bare", "_whole", "leaves", "positions", "treedef")

    def __init__(self, treedef: TreeDef, leaves: list[Any], positions: tuple[int, ...]) -> None:
        self.treedef, self.leaves, self.positions = treedef, leaves, positions
        self._bare = bool(positions) and (treedef is LEAF or treedef.is_leaf())
        # Without holes the tree is made once; a bare leaf needs no making at all.
        self._whole = () if positions else (unflatten(treedef, leaves),)

    @classmethod
    def of(cls, tree: Tree, take: Callable[[Any], bool]) -> Partition:
        """Take out the leaves for which `take` says so."""
        leaves, treedef = flatten(tree)
        if treedef is LEAF:
            return cls(treedef, leaves, (0,) if take(leaves[0]) else ())
        return cls(treedef, leaves, tuple([i for i, leaf in enumerate(leaves) if take(leaf)]))

    @property
    def taken(self) -> list[Any]:
        """The leaves that were taken out."""
        return [self.leaves[0]] if self._bare else [self.leaves[i] for i in self.positions]

    def merge(self, values: Iterator[Any]) -> Any:
        """Return the tree with the next of `values` where leaves were taken out."""
        if self._whole:
            return self._whole[0]
        if self._bare:
            return next(values)
        leaves = list(self.leaves)
        for i in self.positions:
            leaves[i] = next(values)
        return unflatten(self.treedef, leaves)

    def extract(self, cotangent: Cotangent) -> list[Any]:
        """Return the cotangents of the leaves that were taken out; None for all when there is none."""
        if not self.positions:
            return []
        if cotangent is None:
            return [None] * len(self.positions)
        if self._bare:
            return [cotangent]
        parts = subtrees(self.treedef, cotangent)
        return [parts[i] for i in self.positions]

    def arrange(self, values: Iterator[Any]) -> Any:
        """Return the next of `values` in this structure, None for all other leaves."""
        if self._bare:
            return next(values)
        parts: list[Any] = [None] * len(self.leaves)
        for i in self.positions:
            parts[i] = next(values)
        return unflatten(self.treedef, parts)

    def completed(self, parts: Iterable[Any]) -> Any:
        """Return one of `parts` for each leaf that was taken out, zeros where it is None, in this structure."""
        return self.arrange(iter(filled(parts, self.taken)))

    def bare(self) -> Partition:
        """Return the partition without the leaves that were taken out, so that they do not travel with it."""
        if self._bare:
            return Partition(self.treedef, [None], self.positions)
        held = set(self.positions)
        return Partition(
            self.treedef, [None if i in held else leaf for i, leaf in enumerate(self.leaves)], self.positions
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Partition, (self.treedef, self.leaves, self.positions)
