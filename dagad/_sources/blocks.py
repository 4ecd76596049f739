"""Cotangents that are zero but for some rows: kept by blocks, and gathered for many seeds at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dagad._errors import StructureError
from dagad._pytrees import pytree
from dagad._sources.base import Stays, Target, owned

Targets = list[Target]


class Blocks:
    """A cotangent that is zero but for some runs of rows, which do not overlap."""

    __slots__ = ("dtype", "parts", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: Any, parts: list[tuple[slice, Any]]) -> None:
        self.shape, self.dtype, self.parts = shape, dtype, parts

    @classmethod
    def one_hot(cls, leaf: Any, index: int) -> Any:
        """Return the cotangent that is 1 at one entry of a leaf, counted in C order, and zero elsewhere."""
        shape, dtype = pytree.shape_of(leaf), pytree.dtype_of(leaf)
        if not shape:
            return dtype.type(1)
        row, place = divmod(index, max(int(np.prod(shape[1:])), 1))
        values = np.zeros((1, *shape[1:]), dtype)
        values.reshape(-1)[place] = 1
        return cls(shape, dtype, [(slice(row, row + 1), values)])

    def full(self) -> Any:
        """Return the whole array."""
        array = np.zeros(self.shape, self.dtype)
        for rows, values in self.parts:
            array[rows] = values
        return array

    def cut(self, rows: slice) -> Any:
        """Return some rows; None where they are zero."""
        found = None
        for own, values in self.parts:
            first, last = max(own.start, rows.start), min(own.stop, rows.stop)
            if first < last:
                found = np.zeros((rows.stop - rows.start, *self.shape[1:]), self.dtype) if found is None else found
                found[first - rows.start : last - rows.start] = values[first - own.start : last - own.start]
        return found


def cut_rows(seed: Any, rows: slice | None) -> Any:
    """Return the part of a seed that belongs to some rows; None for zero."""
    if seed is None:
        return None
    if isinstance(seed, Blocks):
        return seed.full() if rows is None else seed.cut(rows)
    return owned(seed, rows)


def full(seed: Any) -> Any:
    """Return a whole array where a seed is kept by blocks; anything else as it is."""
    return seed.full() if isinstance(seed, Blocks) else seed


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
