"""The user's arrays -> arrays that nobody writes into: copies, but for those that nobody can write into already."""

from __future__ import annotations

from typing import Any

import numpy as np

from dagad._pytrees import pytree
from dagad._pytrees.canonical import contiguous

_LIBRARIES = frozenset({"pandas", "polars", "pyarrow", "xarray", "cudf", "modin"})
_PROTOCOLS = ("__dataframe__", "__arrow_c_stream__", "__arrow_c_array__")


def snapshot(leaf: Any) -> Any:
    """Return an array as it is now, laid out and read-only; anything else as it is.

    An array that is read-only, down to the memory that it is a view of, is taken as it is.
    """
    if not isinstance(leaf, np.ndarray):
        return leaf.copy() if library_of(leaf) and callable(getattr(leaf, "copy", None)) else leaf
    if isinstance(leaf, np.memmap):
        leaf = leaf.view(np.ndarray)
    if not is_frozen(leaf):
        # Laid out first: so it would be for a chunk, and an axis order of its own would show in the bits.
        leaf = np.array(contiguous(leaf), copy=True, order="K", subok=True)
        leaf.flags.writeable = False
    return contiguous(leaf)


def snapshots(tree: Any, is_leaf: Any = None) -> Any:
    """Return a pytree with snapshots of its arrays, in containers of its own."""
    leaves, treedef = pytree.flatten(tree, is_leaf)
    return pytree.unflatten(treedef, [snapshot(leaf) for leaf in leaves])


def is_frozen(array: Any) -> bool:
    """Return whether nobody can write into an array: it is read-only, and so is all that it is a view of."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    if array is None or isinstance(array, bytes):
        return True
    try:
        with memoryview(array) as memory:
            return memory.readonly
    except TypeError:
        return False


def library_of(leaf: Any) -> str | None:
    """Return whose table, column of one, or array with labels or gaps a leaf is; None if it is none."""
    kind = type(leaf)
    roots = [cls.__module__.partition(".")[0] for cls in kind.__mro__]
    if "dask" in roots or not (
        issubclass(kind, np.ma.MaskedArray)
        or not _LIBRARIES.isdisjoint(roots)
        or any(hasattr(kind, protocol) for protocol in _PROTOCOLS)
    ):
        return None
    return min(_LIBRARIES.intersection(roots), default=roots[0])
