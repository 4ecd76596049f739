"""What the tasks do that place rows: they make them out of what came in a message, of blocks, and of loaded pieces."""

from __future__ import annotations

from typing import Any

import numpy as np

from dagad._pytrees import pytree
from dagad._pytrees.canonical import canonical
from dagad._pytrees.shipping import opened
from dagad._sources.base import cut
from dagad._sources.columns import read_sliced
from dagad._sources.plan import Chunk
from dagad._sources.rows import Constant, Rows


def anchor_task() -> None:
    """Do nothing, wherever there is a worker."""


def placed(rows: Any, shared: bool, anchor: None, *blocks: Any) -> Rows:
    """Return rows with blocks of dask arrays where they belong, and with what is made where the rows are.

    A copy where others may write into the blocks, in a process that it is shared with.
    """
    del anchor
    leaf = pytree.flatten(0)[1]
    parts = [Rows(leaf, [Constant(cut(canonical(np.asarray(block)), slice(None)))], views=shared) for block in blocks]
    whole: Rows = opened(rows).joined(iter(parts)).made()
    return whole


def length(piece: Any) -> int:
    """Return how many rows a piece has."""
    return read_sliced(piece)[0].n_rows


def cut_out(piece: Any, start: int, stop: int, shared: bool) -> Rows:
    """Return some rows of a piece; see `placed`."""
    rows: Rows = read_sliced(piece)[0].rows(Chunk(0, start, stop)).made()
    return rows.snapshot() if shared else rows
