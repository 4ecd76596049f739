"""Canonical arrays: with this process's own dtype, aligned, contiguous and read-only: what bits depend on."""

from __future__ import annotations

from typing import Any

import numpy as np

from dagad._pytrees.pytree import flatten, unflatten

_ARRAYS = frozenset({np.ndarray, np.memmap})
_OWN_DTYPES = {char: np.dtype(char) for char in "bBhHiIlLqQefdgFDG?"}


def canonical(leaf: Any) -> Any:
    """Return the leaf as this process would have made it: with its own dtype object, and aligned.

    A dtype that came out of a pickle equals ours but is another object, and numpy then misses its fast paths:
    ``np.add.at``, which is autograd's rule for ``x[index]``, becomes fifty times slower. An array that points into a
    message may begin at any byte; numpy then takes other roads, without BLAS, which are slower and round differently.
    """
    if type(leaf) is np.ndarray:
        own = _OWN_DTYPES.get(leaf.dtype.char)
        if own is not None and own is not leaf.dtype and own == leaf.dtype:
            leaf = leaf.view(own)
        if not leaf.flags.aligned:
            leaf = leaf.copy("K")
    return leaf


def contiguous(leaf: Any) -> Any:
    """Return the leaf as it would arrive in another process: canonical and contiguous. Its layout shows in the bits."""
    leaf = canonical(leaf)
    if type(leaf) is np.ndarray and not (leaf.flags.c_contiguous or leaf.flags.f_contiguous):
        return np.ascontiguousarray(leaf)
    return leaf


def read_only(leaf: Any) -> Any:
    """Return a contiguous view that can't be written to: what spoils its data would be wrong when run again."""
    if type(leaf) is np.memmap:
        leaf = leaf.view(np.ndarray)
    if type(leaf) is np.ndarray:
        leaf = contiguous(leaf).view()
        leaf.flags.writeable = False
    return leaf


def all_read_only(tree: Any) -> Any:
    """Return a tree with all its arrays read-only."""
    leaves, treedef = flatten(tree)
    held = not _ARRAYS.isdisjoint(map(type, leaves))
    return unflatten(treedef, [read_only(leaf) for leaf in leaves]) if held else tree
