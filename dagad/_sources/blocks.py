"""Cotangents that are zero but for some rows: kept by blocks, and gathered for many seeds at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dagad._errors import StructureError
from dagad._pytrees import pytree
from dagad._pytrees.blocks import Blocks
from dagad._sources.base import Stays, Target, owned

Targets = list[Target]


def cut_rows(seed: Any, rows: slice | None) -> Any:
    """Return the part of a seed that belongs to some rows; None for zero."""
    if seed is None:
        return None
    if isinstance(seed, Blocks):
        return seed.full() if rows is None else seed.cut(rows)
    return owned(seed, rows)


class SparseSlots:
    """The cotangents of some leaves for many seeds: `found` has one per seed for each leaf, None for zero."""

    def __init__(self, leaves: Sequence[Any], n_seeds: int) -> None:
        self._leaves = leaves
        self.found: list[list[Any]] = [[None] * n_seeds for _ in leaves]

    def write_all(self, targets: Targets, parts: Sequence[Any] | None, first: int = 0) -> None:
        """Take the cotangents of some targets, seed by seed from the first one on; None where all are zero."""
        for number, part in enumerate(parts or ()):
            seed, at = divmod(number, len(targets))
            leaf, rows = targets[at]
            found = self.found[leaf]
            found[first + seed] = _placed(found[first + seed], self._leaves[leaf], rows, part)


def _placed(found: Any, leaf: Any, rows: slice | Stays | None, part: Any) -> Any:
    """Return what was found of a leaf's cotangent together with one more part of it, after checking it."""
    if part is None:
        return found
    assert not isinstance(rows, Stays)  # Jacobians in Shards are refused before anything runs
    shape, dtype = pytree.shape_of(leaf), pytree.dtype_of(leaf)
    expected = shape if rows is None else (rows.stop - rows.start, *shape[1:])
    if np.shape(part) != expected or pytree.dtype_of(part) != dtype:
        raise StructureError(
            f"A cotangent of shape {np.shape(part)} and dtype {pytree.dtype_of(part)} came where one of shape "
            f"{expected} and dtype {dtype} belongs."
        )
    if rows is None:
        return part
    found = found or Blocks(shape, dtype, [])
    found.parts.append((rows, part))
    return found
