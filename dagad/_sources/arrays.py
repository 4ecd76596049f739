"""Rows that are arrays: cut along their first axis; a chunk owns its rows of the cotangent."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dagad._errors import StructureError
from dagad._sources.base import Source, Taken, Target, cut
from dagad._sources.plan import Chunk
from dagad._sources.rows import GAP, Constant, Piece
from dagad._types import Array, Leaf
from dagad._values import pytree
from dagad._values.canonical import as_given, canonical


@dataclass(slots=True)
class ArraySource(Source):
    """An array; `leaf` is its number among the leaves being differentiated, None for constant data."""

    n_rows: int
    array: Any
    leaf: int | None
    row_kind: Hashable = None

    @property
    def read_from(self) -> tuple[Any, ...]:
        return (self.array,)

    def piece(self, chunk: Chunk) -> Piece:
        return GAP if self.leaf is not None else Constant(cut(self.array, slice(chunk.start, chunk.stop)))

    def targets(self, chunk: Chunk) -> Iterator[Target]:
        if self.leaf is not None:
            yield self.leaf, slice(chunk.start, chunk.stop)


def read_numbers(leaf: Leaf, taken: Taken) -> Source | None:
    """Return an array, or one that is being differentiated; None for what has no rows."""
    if type(leaf) is np.ndarray:
        return ArraySource(len(leaf), _read_only(leaf), None, leaf.shape[1:]) if leaf.ndim else None
    if not pytree.is_traced(leaf) or pytree.is_sharded(leaf):
        return None
    shape = np.shape(pytree.plain(leaf))
    return ArraySource(shape[0], None, taken.take(leaf), shape[1:]) if shape else None


def read_array(leaf: Leaf, taken: Taken) -> Source | None:
    """Return whatever can be cut like an array."""
    del taken
    if isinstance(leaf, range):
        return ArraySource(len(leaf), leaf, None)
    shape = getattr(leaf, "shape", None)
    if not shape:
        return None
    if isinstance(leaf[:0], np.ma.MaskedArray):  # a variable in a file, say, which masks what was never written
        raise StructureError(
            f"The sliced argument, or a part of it, is a `{type(leaf).__name__}` whose rows are masked arrays, whose "
            "arithmetic skips what is masked silently. Give `array[:].filled(value)`, once you have decided what to do "
            "about missing numbers."
        )
    return ArraySource(int(shape[0]), _read_only(leaf), None, tuple(shape[1:]))


def _read_only(array: Array) -> Any:
    """Return a view that can't be written to; its rows are laid out chunk by chunk, in `cut`."""
    if isinstance(array, np.memmap):  # what is read from a file is an array like any other
        array = array.view(np.ndarray)
    return as_given(canonical(array)) if isinstance(array, np.ndarray) else array
