"""Arrays as bits need them: canonical, contiguous, read-only; copied where others write, handed out as one's own."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from dagad._types import Array, Leaf, Tree
from dagad._values.pytree import TRACED, flatten, is_table, unflatten

_LIBRARIES = frozenset({"pandas", "polars", "pyarrow", "xarray", "cudf", "modin"})
_PROTOCOLS = ("__dataframe__", "__arrow_c_stream__", "__arrow_c_array__")
_ARRAYS = frozenset({np.ndarray, np.memmap})
_OWN_DTYPES = {char: np.dtype(char) for char in "bBhHiIlLqQefdgFDG?"}


def canonical(leaf: Leaf) -> Any:
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


def is_strange(leaf: Leaf) -> bool:
    """Return whether a leaf is an array of a class of its own: a mask, units, labels would be lost on the way."""
    return isinstance(leaf, np.ndarray) and type(leaf) not in _ARRAYS


def contiguous(leaf: Leaf) -> Any:
    """Return the leaf canonical and contiguous, as chunks have it wherever they run. Its layout shows in the bits."""
    leaf = canonical(leaf)
    if type(leaf) is np.ndarray and not (leaf.flags.c_contiguous or leaf.flags.f_contiguous):
        return np.ascontiguousarray(leaf)
    return leaf


class Given(np.ndarray):
    """What functions are given is a view of this: nobody is to write into its memory while they run.

    Any other view that can't be written to may be one of an array that can.
    """

    __slots__ = ()


def as_given(array: Array) -> Any:
    """Return a view that can't be written to, as functions are given it. It is told by what it is a view of."""
    if type(array.base) is Given:  # it is one already
        return array
    is_plain = type(array) is np.ndarray  # others hold more than numbers
    # Twice: numpy leaves one out whose own base is a plain array.
    array = array.view(Given).view(Given) if is_plain else array.view()
    array.flags.writeable = False
    return array.view(np.ndarray) if is_plain else array


def read_only(leaf: Leaf) -> Any:
    """Return a contiguous view that can't be written to: what spoils its data would be wrong when run again."""
    if type(leaf) is np.memmap:
        leaf = leaf.view(np.ndarray)
    return as_given(contiguous(leaf)) if type(leaf) is np.ndarray else leaf


def all_read_only(tree: Tree) -> Any:
    if type(tree) in TRACED:
        return tree
    leaves, treedef = flatten(tree)
    held = not _ARRAYS.isdisjoint(map(type, leaves))
    return unflatten(treedef, [read_only(leaf) for leaf in leaves]) if held else tree


def snapshot(leaf: Leaf) -> Any:
    """Return an array as it is now, laid out and read-only; anything else as it is.

    An array that is read-only, down to the memory that it is a view of, is taken as it is.
    """
    if not isinstance(leaf, np.ndarray):
        if is_table(leaf):
            return leaf.snapshot()
        if library_of(leaf) is None:  # of what else there is not even the truth may be asked
            return leaf
        copy = getattr(leaf, "copy", None) or getattr(leaf, "clone", None)
        return copy() if callable(copy) else leaf
    if isinstance(leaf, np.memmap):
        leaf = leaf.view(np.ndarray)
    if not is_frozen(leaf):
        # Laid out first: so it would be for a chunk, and an axis order of its own would show in the bits.
        leaf = np.array(contiguous(leaf), copy=True, order="K", subok=True)
        leaf.flags.writeable = False
    return contiguous(leaf)


def snapshots(tree: Tree) -> Any:
    """Return a pytree with snapshots of its arrays, in containers of its own."""
    leaves, treedef = flatten(tree)
    return unflatten(treedef, [snapshot(leaf) for leaf in leaves])


def is_frozen(array: Array) -> bool:
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


def is_written_elsewhere(array: Array) -> bool:
    """Return whether an array that can't be written to is a view of one that can: not of what a function is given."""
    base = array.base
    while type(base) is np.ndarray:
        if base.flags.writeable:
            return True
        base = base.base
    return base is not None and type(base) is not Given and not is_frozen(array)


def is_future(leaf: Leaf) -> bool:
    """Return whether a leaf is a future, of threads, processes or a cluster."""
    return hasattr(type(leaf), "result") and hasattr(type(leaf), "add_done_callback")  # a Delayed has any attribute


def library_of(leaf: Leaf) -> str | None:
    """Return whose table, column of one, or array with labels or gaps a leaf is; None if it is none."""
    return library_of_class(type(leaf))


def library_of_class(kind: type) -> str | None:
    """Return the same, by the class."""
    roots = [cls.__module__.partition(".")[0] for cls in kind.__mro__]
    if "dask" in roots or not (
        issubclass(kind, np.ma.MaskedArray)
        or not _LIBRARIES.isdisjoint(roots)
        or any(hasattr(kind, protocol) for protocol in _PROTOCOLS)
    ):
        return None
    return min(_LIBRARIES.intersection(roots), default=roots[0])


def handed_out(parts: list[Any]) -> list[Any]:
    """Return the same list with arrays that nobody else holds, and that can be written to.

    What only this list holds is made writable where it lies. Of anything else there is a copy: of what a pullback keeps
    for its next call, of the cotangent that came in, of the user's data that a rule returned, of an array that stands
    in two places. The list has to be the only one: whoever calls this keeps nothing that is in it.
    """
    alone = np.empty(0)
    holders = sys.getrefcount(alone)  # of an array that a local variable holds
    for index in range(len(parts)):
        if type(parts[index]) is not np.ndarray:
            continue
        part, parts[index] = parts[index], None
        if part.base is not None or sys.getrefcount(part) > holders:
            part = part.copy("K")
        elif not part.flags.writeable:
            part.flags.writeable = True
        parts[index] = part
    return parts


def writable(part: Leaf) -> Any:
    """Return an array that can be written to: a copy of one that can't."""
    return part if type(part) is not np.ndarray or part.flags.writeable else part.copy("K")
