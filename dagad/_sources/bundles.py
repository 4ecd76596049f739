"""Shards that are being differentiated: the rows of a chunk as one leaf outside of its task, as arrays inside.

What stands in Shards is known where it lives. So a chunk's rows travel as a bundle, of which the task makes leaves, and
of the cotangents or tangents of these bundles of the same structure, which stay there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dagad._sources.rows import GAP, Piece, Ragged, Rows, with_gaps
from dagad._types import AnyRows, Cotangent, Cotangents, Leaf
from dagad._values import pytree
from dagad._values.shipping import Parcel, opened

Groups = Sequence[Sequence[Any]]


class Bundle:
    """Rows of one chunk, taken apart: `leaves` are those that are being differentiated.

    Tangents and cotangents are taken apart `like` the rows that they belong to.
    """

    __slots__ = ("_treedef", "leaves", "pieces")

    def __init__(self, rows: AnyRows, like: Bundle | None = None) -> None:
        self.pieces: list[Piece]
        tree = opened(rows).merge(iter(()))
        if like is None:
            columns, self._treedef = pytree.flatten(tree, is_leaf=pytree.is_list)
            self.pieces = list(map(with_gaps, columns))
            self.leaves = self._extracted(columns)
            return
        self._treedef, self.pieces = like._treedef, like.pieces
        pairs = zip(self._extracted(pytree.subtrees(self._treedef, tree)), like.leaves, strict=True)
        self.leaves = [
            pytree.zeros_like(primal) if leaf is None else pytree.cast_like(leaf, primal, FOR_SHARDS)
            for leaf, primal in pairs
        ]

    def _extracted(self, columns: Sequence[Any]) -> list[Any]:
        return [leaf for piece, part in zip(self.pieces, columns, strict=True) for leaf in piece.extract(part)]

    def tree(self, pieces: Sequence[Any]) -> Any:
        return pytree.unflatten(self._treedef, pieces)

    def bundled(self, parts: Iterator[Any]) -> Rows:
        """Return the next parts, one per leaf, as rows of this structure: None for constants, zeros for None."""
        filled = iter(pytree.filled(parts, self.leaves))
        return Rows.of(self.tree([_arranged(piece, filled) for piece in self.pieces]))


FOR_SHARDS = "A tangent or cotangent of Shards"


def _arranged(piece: Any, parts: Iterator[Any]) -> Any:
    if piece is GAP:
        return next(parts)
    return [item.partition.arrange(parts) for item in piece.parts] if type(piece) is Ragged else None


class OpenChunk:
    """The arguments of a kernel at one chunk, with leaves where there were bundles."""

    __slots__ = ("_bundles", "_outputs", "args")

    def __init__(self, kernel: Any, context: Any, rows: AnyRows, shared: Groups, sliced: Groups) -> None:
        groups = _taken_apart(sliced)
        self._bundles = [bundle for group in groups for bundle in group]
        self._outputs = kernel.stacked_like(groups)
        open_groups = [
            [part for leaf, bundle in zip(group, some, strict=True) for part in (bundle.leaves if bundle else [leaf])]
            for group, some in zip(sliced, groups, strict=True)
        ]
        primal = iter([bundle for bundle in groups[0] if bundle is not None])
        self.args = context, opened(rows).with_bundles(primal), shared, open_groups

    def outputs(self, stacked: Sequence[Any]) -> list[Any]:
        """Return what a kernel owns, bundled where that belongs to bundles."""
        return list(stacked) if self._outputs is None else _bundled(self._outputs, stacked)

    def cotangents(self, parts: Sequence[Any]) -> list[Any]:
        """Return the cotangents of the sliced leaves, bundled."""
        return _bundled(self._bundles, parts)

    def seeds(self, seeds: Sequence[Any]) -> list[Any]:
        """Return one seed per leaf of what is reduced and owned, from one per bundle."""
        if self._outputs is None:
            return list(seeds)
        n_reduced, found = len(seeds) - len(self._outputs), list[Any]()
        for bundle, seed in zip(self._outputs, seeds[n_reduced:], strict=True):
            found.extend([seed] if bundle is None else _unbundled(bundle, seed))
        return [*seeds[:n_reduced], *found]

    def pulled(self, pull: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
        """Return a pullback that takes and gives bundles."""

        def pullback(seeds: Cotangents) -> tuple[Any, ...]:
            *shared, sliced = pull(self.seeds(seeds))
            return (*shared, self.cotangents(sliced))

        return pullback


def _taken_apart(sliced: Groups) -> list[list[Bundle | None]]:
    first = [Bundle(leaf) if is_bundle(leaf) else None for leaf in sliced[0]]
    # Whatever comes besides, tangents and cotangents, comes in the order of the rows.
    likes = itertools.cycle([bundle for bundle in first if bundle is not None])
    return [first, *([Bundle(leaf, next(likes)) if is_bundle(leaf) else None for leaf in some] for some in sliced[1:])]


def zeros_of(sliced: Groups) -> list[Any]:
    """Return the cotangents of the sliced leaves of a chunk that is not pulled: None, but of bundles rows of zeros."""
    if not has_bundles(sliced):
        return [None] * sum(map(len, sliced))
    bundles = [bundle for group in _taken_apart(sliced) for bundle in group]
    return [None if one is None else one.bundled(iter([None] * len(one.leaves))) for one in bundles]


def is_bundle(leaf: Leaf) -> bool:
    """Return whether a leaf is the rows of a chunk, in a parcel perhaps."""
    return type(leaf) is Rows or type(leaf) is Parcel


def has_bundles(sliced: Groups) -> bool:
    """Return whether there are bundles among the leaves of a chunk."""
    return any(is_bundle(leaf) for group in sliced for leaf in group)


def _bundled(bundles: Sequence[Bundle | None], parts: Sequence[Any]) -> list[Any]:
    rest = iter(parts)
    return [next(rest) if bundle is None else bundle.bundled(_take(rest, len(bundle.leaves))) for bundle in bundles]


def _take(parts: Iterator[Any], count: int) -> Iterator[Any]:
    return iter([next(parts) for _ in range(count)])


def _unbundled(bundle: Bundle, seed: Cotangent) -> list[Any]:
    if seed is None:
        return [None] * len(bundle.leaves)
    return Bundle(seed, bundle).leaves
