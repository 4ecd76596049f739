"""What the tasks behind Shards do: they put rows where they stay, and give them back."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from dagad._errors import PlanError
from dagad._pytrees import pytree
from dagad._pytrees.canonical import canonical
from dagad._pytrees.shipping import opened
from dagad._sources.columns import cut, read_sliced
from dagad._sources.plan import Chunk
from dagad._sources.rows import Rows


def anchor_task() -> None:
    """Do nothing, wherever there is a worker."""


def placed(rows: Any, anchor: None) -> Rows:
    """Take the rows out of the message that they came in."""
    del anchor
    arrived: Rows = opened(rows)
    return arrived


def length(piece: Any) -> int:
    """Return how many rows a piece has."""
    return read_sliced(piece, itertools.count())[0].n_rows


def cut_out(piece: Any, start: int, stop: int, shared: bool) -> Rows:
    """Return some rows of a piece; a copy where others may write into it, in a process that it is shared with."""
    rows: Rows = read_sliced(piece, itertools.count())[0].rows(Chunk(0, start, stop))
    return rows.snapshot() if shared else rows


def from_blocks(rows: Any, shared: bool, *blocks: Any) -> Rows:
    """Return rows with blocks of dask arrays where they belong; see `cut_out`."""
    leaf = pytree.flatten(0)[1]
    parts = [Rows(leaf, [cut(canonical(np.asarray(block)), slice(None))], True, views=shared) for block in blocks]
    whole: Rows = opened(rows).joined(iter(parts))
    return whole


def contents(rows: Any) -> Any:
    """Return rows as the user gave them."""
    return opened(rows).merge(iter(()))


def joined_data(parts: list[Any]) -> Any:
    """Return pieces as one: arrays joined along their first axis, lists one after the other."""
    if not parts:
        raise PlanError("There are no rows to gather.")
    columns = [pytree.flatten(part, is_leaf=lambda tree: isinstance(tree, list)) for part in parts]
    leaves = zip(*(leaves for leaves, _ in columns), strict=True)
    joined = [
        list(itertools.chain(*pieces)) if isinstance(pieces[0], list) else np.concatenate(pieces) for pieces in leaves
    ]
    return pytree.unflatten(columns[0][1], joined)


def scaled_rows(rows: Any, factor: float) -> Rows:
    """Return the floating-point leaves of rows times a number."""
    leaves, treedef = pytree.flatten(contents(rows))
    scaled = [_scaled(leaf, factor) if pytree.is_differentiable(leaf) else None for leaf in leaves]
    return Rows.of(pytree.unflatten(treedef, scaled))


def _scaled(leaf: Any, factor: float) -> Any:
    if not factor:
        return pytree.zeros_like(leaf)
    return leaf * (leaf.dtype.type(factor) if isinstance(leaf, np.ndarray | np.generic) else factor)
