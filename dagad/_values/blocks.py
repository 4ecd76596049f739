"""Arrays that are zero but for some rows: cotangents of which there are many."""

from __future__ import annotations

from typing import Any

import numpy as np

from dagad._types import Cotangent, DType, Leaf
from dagad._values import pytree


class Blocks:
    """A cotangent that is zero but for some runs of rows, which do not overlap."""

    __slots__ = ("dtype", "parts", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: DType, parts: list[tuple[slice, Any]]) -> None:
        self.shape, self.dtype, self.parts = shape, dtype, parts

    @classmethod
    def one_hot(cls, leaf: Leaf, index: int) -> Any:
        """Return the cotangent that is 1 at one entry of a leaf, counted in C order, and zero elsewhere."""
        shape, dtype = pytree.shape_of(leaf), pytree.dtype_of(leaf)
        if not shape:
            return dtype.type(1)
        row, position = divmod(index, max(int(np.prod(shape[1:])), 1))
        values = np.zeros((1, *shape[1:]), dtype)
        values.reshape(-1)[position] = 1
        return cls(shape, dtype, [(slice(row, row + 1), values)])

    def full(self) -> Any:
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


def full(seed: Cotangent) -> Any:
    """Return a whole array where a seed is kept by blocks; anything else as it is."""
    return seed.full() if isinstance(seed, Blocks) else seed


def runs_of(seed: Cotangent) -> list[tuple[slice, Any]]:
    """Return the rows of a seed that may differ from zero, run by run, and what stands there."""
    if isinstance(seed, Blocks):
        return seed.parts
    return [] if seed is None else [(slice(None), seed)]


def is_seed(seed: Cotangent) -> bool:
    """Return whether a cotangent is not plainly zero; a traced one has derivatives even so."""
    if type(seed) is np.float64 or type(seed) is float:  # nearly always
        return bool(seed != 0.0)
    if seed is None or pytree.is_traced(seed) or pytree.is_sharded(seed):
        return seed is not None
    return bool(np.any(full(seed)))
