"""Rows that are stored arrays, of zarr say: a chunk reads its own, where it runs; the numbers do not travel."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dagad._sources.base import Source, Taken
from dagad._sources.plan import AnyPlan, Chunk, Plan
from dagad._sources.rows import Made, Piece
from dagad._types import Array, Leaf

MOST_CHUNKS = 1024  # of a store whose own are smaller, several make one of ours


@dataclass(slots=True)
class StoredSource(Source):
    """An array whose store every process can open."""

    n_rows: int
    array: Any
    plan: AnyPlan | None
    row_kind: Hashable = None

    @property
    def read_from(self) -> tuple[Any, ...]:
        return (self.array,)

    def piece(self, chunk: Chunk) -> Piece:
        return Made(rows_read, self.array, chunk.start, chunk.stop)


def rows_read(array: Array, start: int, stop: int) -> np.ndarray[Any, Any]:
    """Read some rows."""
    return np.asarray(array[start:stop])


def read_stored(leaf: Leaf, taken: Taken) -> Source | None:
    """Return an array of zarr as a source that lies in the chunks of its store."""
    del taken
    shape, kind = getattr(leaf, "shape", None), type(leaf)
    if not shape or kind.__module__.partition(".")[0] != "zarr":
        return None
    n_rows, together = int(shape[0]), max(int((getattr(leaf, "shards", None) or leaf.chunks)[0]), 1)
    several = max(-(-n_rows // (together * MOST_CHUNKS)), 1)
    return StoredSource(n_rows, leaf, Plan(n_rows, together * several), tuple(shape[1:]))
