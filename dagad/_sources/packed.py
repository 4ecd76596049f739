"""Shards that are being differentiated: the rows of a chunk packed as one leaf outside of its task, arrays inside.

What stands in Shards is known where it lives. So a chunk's rows travel packed, as `Rows`; the task unpacks them, and
packs their cotangents or tangents like them, which stay there. What does so around a kernel is `_kernels/unpacking`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from dagad._sources.rows import Piece, Rows, with_gaps
from dagad._types import AnyRows, Leaf
from dagad._values import pytree
from dagad._values.shipping import Parcel, opened

Groups = Sequence[Sequence[Any]]


class Unpacked:
    """Packed rows of one chunk, unpacked: `leaves` are those that are being differentiated.

    Tangents and cotangents are unpacked `like` the rows that they belong to.
    """

    __slots__ = ("_treedef", "leaves", "pieces")

    def __init__(self, rows: AnyRows, like: Unpacked | None = None) -> None:
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

    def packed(self, parts: Iterator[Any]) -> Rows:
        """Return the next parts, one per leaf, as rows of this structure: None for constants, zeros for None."""
        filled = iter(pytree.filled(parts, self.leaves))
        return Rows.of(self.tree([piece.arrange(filled) for piece in self.pieces]))


FOR_SHARDS = "A tangent or cotangent of Shards"


def unpacked(group: Sequence[Any], likes: Sequence[Unpacked | None] | None = None) -> list[Unpacked | None]:
    """Unpack what is packed in a group of leaves, None for other leaves: one after the other like these, if given."""
    if likes is None:
        return [Unpacked(leaf) if is_packed(leaf) else None for leaf in group]
    rest = (like for like in likes if like is not None)
    return [Unpacked(leaf, next(rest)) if is_packed(leaf) else None for leaf in group]


def packed(like: Sequence[Unpacked | None], parts: Sequence[Any]) -> list[Any]:
    """Return parts, one for each leaf, packed like what they belong to."""
    rest = iter(parts)
    return [next(rest) if one is None else one.packed(itertools.islice(rest, len(one.leaves))) for one in like]


def unpacked_seeds(like: Sequence[Unpacked | None], seeds: Sequence[Any]) -> list[Any]:
    """Return one seed for each leaf, from one for all of those that are packed together."""
    found = list[Any]()
    for one, seed in zip(like, seeds, strict=True):
        if one is None:
            found.append(seed)
        else:
            found.extend([None] * len(one.leaves) if seed is None else Unpacked(seed, one).leaves)
    return found


def is_packed(leaf: Leaf) -> bool:
    """Return whether a leaf is packed rows, in a parcel perhaps."""
    return isinstance(leaf, Rows | Parcel)


def has_packed(sliced: Groups) -> bool:
    """Return whether there are packed rows among the leaves of a chunk."""
    return any(is_packed(leaf) for group in sliced for leaf in group)
