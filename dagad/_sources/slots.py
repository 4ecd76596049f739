"""The memory of a gradient, allocated before the first task starts and filled as cotangents land.

Glossary of the state, all of it in `Slots`:

==========  ======================================================================================================
`_arrays`   one array per leaf, of the leaf's shape and dtype; for Shards, what stays of each chunk, or Shards. Chunks
            own disjoint rows of sliced leaves; a shared leaf is written once, by the root of its tree of sums. No two
            writers ever meet, so there is no lock.
`_missing`  entries not yet written, per leaf; goes down under `_lock`
`_owned`    per leaf, the first rows of what has been written: a second writer of the same rows is refused
`_sealed`   all written: the arrays are read-only from now on, and held by whoever asked for them
==========  ======================================================================================================
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from dagad._errors import StructureError
from dagad._sources.base import Stays, Target, Targets, owned
from dagad._types import Array, Cotangent, DType, Leaf
from dagad._values import pytree
from dagad._values.blocks import Blocks


class Slots:
    """Preallocated gradients of `leaves`."""

    __slots__ = ("_arrays", "_leaves", "_lock", "_missing", "_owned", "_sealed")

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._leaves = leaves
        self._arrays: list[Any] = []
        self._missing: list[int] = []
        self._owned: list[set[int]] = []
        for leaf in leaves:
            if pytree.is_placed(leaf):
                self._arrays.append({})
                self._missing.append(len(leaf.plan))
            else:
                array = np.empty(pytree.shape_of(leaf), pytree.dtype_of(leaf))
                self._arrays.append(array)
                self._missing.append(array.size)
            self._owned.append(set())
        self._lock, self._sealed = threading.Lock(), False

    def write(self, index: int, rows: slice | Stays | None, cotangent: Cotangent) -> None:
        """Copy a cotangent into a leaf's slot, or into some of its rows; None means zeros.

        What comes from a worker is checked here before it is believed.
        """
        if self._sealed:
            raise StructureError(f"The gradient of leaf {index} was to be written a second time, when it was complete.")
        if isinstance(rows, Stays):
            self._own(index, rows.number, 1)
            self._arrays[index][rows.number] = cotangent
            return
        if pytree.is_placed(self._leaves[index]):
            self._write_shards(index, self._leaves[index], cotangent)
            return
        target = self._arrays[index] if rows is None else self._arrays[index][rows]
        if type(cotangent) is not np.ndarray or cotangent.shape != target.shape or cotangent.dtype != target.dtype:
            _check_fits(cotangent, target)
        if rows is not None and not target.size:  # no rows have no owner, and begin where others do
            return
        self._own(index, 0 if rows is None else rows.start, target.size)
        target[...] = 0 if cotangent is None else cotangent

    def _write_shards(self, index: int, leaf: Leaf, cotangent: Cotangent) -> None:
        """Take the cotangent of Shards as a whole, which another operation gave."""
        _check_cut(cotangent, leaf)
        self._own(index, 0, len(leaf.plan))
        self._arrays[index] = leaf.zeros() if cotangent is None else cotangent

    def write_all(self, targets: Sequence[Target], cotangents: Sequence[Any] | None, first: int = 0) -> None:
        """Copy one cotangent into each of some slots; None means zeros for all. There is one seed, the first."""
        del first
        parts = [None] * len(targets) if cotangents is None else cotangents
        for (leaf, rows), part in zip(targets, parts, strict=True):
            self.write(leaf, rows, part)

    def _own(self, index: int, first: int, size: int) -> None:
        with self._lock:
            if self._sealed or first in self._owned[index] or self._missing[index] < size:
                raise StructureError(f"The gradient of leaf {index} from row {first} was to be written a second time.")
            self._owned[index].add(first)
            self._missing[index] -= size

    def seal(self) -> list[Any]:
        """Return the gradients, read-only; numbers for leaves that are numbers."""
        with self._lock:
            if any(self._missing):
                lacking = [index for index, missing in enumerate(self._missing) if missing]
                raise StructureError(f"The gradients of leaves {lacking} are not complete.")
            self._sealed = True
            arrays, self._arrays = self._arrays, []  # whoever asked for them holds them now
        return [_sealed(array, leaf) for array, leaf in zip(arrays, self._leaves, strict=True)]


def _check_fits(cotangent: Cotangent, target: Any) -> None:
    """Raise unless a cotangent is of a slot's shape and dtype; None and numbers of Python's are of any dtype."""
    dtype = getattr(cotangent, "dtype", target.dtype)
    if cotangent is not None and (np.shape(cotangent) != target.shape or not _is_same(dtype, target.dtype)):
        raise StructureError(
            f"A cotangent of shape {np.shape(cotangent)} and dtype {dtype} came for a slot of shape {target.shape} "
            f"and dtype {target.dtype}."
        )


def _check_cut(cotangent: Cotangent, leaf: Leaf) -> None:
    if cotangent is not None and not (pytree.is_placed(cotangent) and cotangent.plan == leaf.plan):
        raise StructureError(f"{cotangent!r} came as the cotangent of {leaf!r}, which is Shards of its own cut.")


def _sealed(array: Array, leaf: Leaf) -> Any:
    if pytree.is_placed(leaf):
        return array if pytree.is_placed(array) else leaf.of_chunks(array)
    array.flags.writeable = False
    return array if isinstance(leaf, np.ndarray) else array[()]


# For many seeds at once: cotangents that are zero but for some rows are kept by blocks


def cut_rows(seed: Cotangent, rows: slice | None) -> Any:
    """Return the part of a seed that belongs to some rows; None for zero."""
    if seed is None:
        return None
    if isinstance(seed, Blocks):
        return seed.full() if rows is None else seed.cut(rows)
    return owned(seed, rows)


class SparseSlots:
    """The cotangents of some leaves for many seeds: one per seed for each leaf, None for zero.

    Threads that run chunks write at the same time. What is found grows part by part, so unlike the rows of `Slots` it
    has several writers: they take turns, under `_lock`. Of Shards there is what stays of each chunk, or Shards.
    """

    def __init__(self, leaves: Sequence[Any], n_seeds: int) -> None:
        self._leaves, self._lock = leaves, threading.Lock()
        self._found: list[list[Any]] = [[None] * n_seeds for _ in leaves]

    def write_all(self, targets: Targets, parts: Sequence[Any] | None, first: int = 0) -> None:
        """Take the cotangents of some targets, seed by seed from the first one on; None where all are zero."""
        with self._lock:
            for number, part in enumerate(parts or ()):
                seed, at = divmod(number, len(targets))
                leaf, rows = targets[at]
                found = self._found[leaf]
                found[first + seed] = _placed(found[first + seed], self._leaves[leaf], rows, part)

    def seal(self) -> list[list[Any]]:
        """Return what was found, when everything is there."""
        return [
            [_of_chunks(leaf, one) if type(one) is dict else one for one in found]
            for leaf, found in zip(self._leaves, self._found, strict=True)
        ]


def _of_chunks(leaf: Leaf, parts: dict[int, Any]) -> Any:
    return leaf.of_chunks({number: parts.get(number) for number in range(len(leaf.plan))})


def _is_same(dtype: DType, other: Any) -> bool:
    """Return whether two dtypes are the same, in whatever order their bytes are: those of files may be swapped."""
    return bool(dtype == other or np.can_cast(dtype, other, "equiv"))


def _placed(found: Any, leaf: Leaf, rows: slice | Stays | None, part: Any) -> Any:
    """Return what was found of a leaf's cotangent together with one more part of it, after checking it."""
    if part is None:
        return found
    if isinstance(rows, Stays):
        found = {} if found is None else found
        if rows.number in found:
            raise StructureError(f"The cotangent of chunk {rows.number} of {leaf!r} was to be written a second time.")
        found[rows.number] = part
        return found
    if pytree.is_placed(leaf):
        _check_cut(part, leaf)
        return part
    shape, dtype = pytree.shape_of(leaf), pytree.dtype_of(leaf)
    expected = shape if rows is None else (rows.stop - rows.start, *shape[1:])
    if np.shape(part) != expected or not _is_same(pytree.dtype_of(part), dtype):
        raise StructureError(
            f"A cotangent of shape {np.shape(part)} and dtype {pytree.dtype_of(part)} came where one of shape "
            f"{expected} and dtype {dtype} belongs."
        )
    if rows is None:
        return part
    found = found or Blocks(shape, dtype, [])
    found.parts.append((rows, part))
    return found
