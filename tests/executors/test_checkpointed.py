"""The checkpointed executor: which rows and which results it can write down."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import dagad
from dagad._sources.base import Source
from dagad._sources.plan import Chunk
from dagad._sources.rows import Made, Piece


@dataclass
class Stored(Source):
    """Rows that are read where they are used, as those of a zarr array are."""

    rows: Any
    n_rows: int = 6

    def piece(self, chunk: Chunk) -> Piece:
        return Made(np.array, self.rows[chunk.start : chunk.stop])


def squares(rows: Any, theta: Any) -> Any:
    return np.sum((rows - theta) ** 2)


@pytest.mark.parametrize("by_chunk", [True, False])
def test_a_checkpoint_takes_rows_that_are_read_where_they_are_used(by_chunk: bool, tmp_path: Path) -> None:
    def known_and_slope(rows: Any) -> tuple[int, Any]:
        with dagad.checkpoint(tmp_path, chunks=by_chunk) as run:
            total = dagad.grad(lambda t: dagad.reduce_sum(squares, Stored(rows), t, grainsize=2))
            return run.n_known, total(1.0)

    rows = np.arange(6.0)
    assert [known_and_slope(rows) for _ in range(2)] == [(0, -18.0), (1, -18.0)]
    with pytest.raises(dagad.CheckpointError, match="its rows are others"):
        known_and_slope(rows + 1.0)


@pytest.mark.parametrize("by_chunk", [True, False])
def test_a_checkpoint_refuses_classes_that_another_process_does_not_find(by_chunk: bool, tmp_path: Path) -> None:
    inner: Any = NamedTuple("inner", [("total", Any)])
    with pytest.raises(dagad.CheckpointError, match="at the top of a module"):
        with dagad.checkpoint(tmp_path, chunks=by_chunk):
            dagad.reduce_sum(lambda rows: inner(np.sum(rows)), np.arange(4.0), grainsize=2)
