"""The memory of a gradient, allocated before the first task starts and filled as cotangents land.

Glossary of the state, all of it in `Slots`:

==========  ======================================================================================================
`_arrays`   one array per leaf, of the leaf's shape and dtype; for Shards, what stays of each chunk, or Shards. Chunks
            own disjoint rows of sliced leaves; a shared leaf is written once, by the root of its tree of sums. No two
            writers ever meet, so there is no lock.
`_written`  what has been written of each leaf, see `_Written`; changes under `_lock`
`_sealed`   all written: the arrays are read-only from now on, and held by whoever asked for them
==========  ======================================================================================================
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from dagad._errors import StructureError
from dagad._sources.base import Stays, Target, Targets, owned
from dagad._types import Array, Cotangent, DType, Leaf
from dagad._values import pytree
from dagad._values.blocks import Blocks

ONE_SEED = range(1)


class _Written:
    """Who has written what of some leaves, for which seeds: everything is written once, and in the end all of it is.

    `missing` counts, per leaf, the entries of all seeds that are not written yet; of Shards, chunks. `_pieces` has, by
    leaf and the first row of what was written, how many rows that is (0: the whole leaf), and a bit for each seed. All
    rows are cut by one plan: who writes the same ones begins where the first did. Who writes others ends up with too
    many, or leaves a gap: in the end, each piece has to begin where the one before has ended. `is_cut` is whether rows
    of a leaf were written by themselves.
    """

    __slots__ = ("_leaves", "_n_seeds", "_pieces", "is_cut", "missing")

    def __init__(self, leaves: Sequence[Any], missing: list[int], n_seeds: int) -> None:
        self._leaves, self.missing, self._n_seeds, self.is_cut = leaves, missing, n_seeds, False
        self._pieces: dict[tuple[int, int], tuple[int, int]] = {}

    def write(self, index: int, first: int, n_rows: int, size: int, seeds: range) -> None:
        """Write down that some rows of a leaf are written for some seeds; refuse what was written before."""
        n_before, before = self._pieces.get((index, first), _NOTHING)
        count = seeds.stop - seeds.start
        now, missing = ((1 << count) - 1) << seeds.start, self.missing[index] - size * count
        if before & now or missing < 0:
            position = self._position(index, first, before & now)
            raise StructureError(f"The gradient of {position} was to be written a second time.")
        self._pieces[index, first], self.missing[index] = (n_rows or n_before, before | now), missing
        if n_rows:
            self.is_cut = True

    def refuse_gaps(self) -> None:
        """Raise where something is missing."""
        gaps = {index: gap for index in range(len(self._leaves)) if (gap := self._gap(index)) is not None}
        if gaps:
            raise StructureError(f"The gradients of leaves {list(gaps)} are not complete: {'; '.join(gaps.values())}.")

    def _gap(self, index: int) -> str | None:
        """Return how much of a leaf is missing, and from where on; None where nothing is."""
        first, every, leaf = 0, (1 << self._n_seeds) - 1, self._leaves[index]
        while (piece := self._pieces.get((index, first), _NOTHING))[1] == every:
            if not piece[0]:
                return None
            first += piece[0]
        if first == _n_rows_of(leaf) or not _size_of(leaf):
            return None
        position, unit = (
            self._position(index, first, every & ~piece[1]),
            "chunks" if pytree.is_sharded(leaf) else "entries",
        )
        if not self.missing[index]:
            return f"other {unit} were written a second time instead of those of {position}"
        return f"{self.missing[index]:,} of {_size_of(leaf) * self._n_seeds:,} {unit} are missing of {position}"

    def _position(self, index: int, first: int, seeds: int) -> str:
        """Return the words for some rows of a leaf, and for the first of some seeds, each of which is a bit."""
        unit = "chunk" if pytree.is_sharded(self._leaves[index]) else "row"
        of_seed = f" for seed {(seeds & -seeds).bit_length() - 1}" if self._n_seeds > 1 and seeds else ""
        return f"leaf {index} from {unit} {first}{of_seed}"


_NOTHING = 0, 0


def _size_of(leaf: Leaf) -> int:
    """Return how many entries a leaf has; how many chunks, if it is Shards."""
    return len(leaf.plan) if pytree.is_sharded(leaf) else math.prod(pytree.shape_of(leaf))


def _n_rows_of(leaf: Leaf) -> int:
    """Return how many rows a leaf has; how many chunks, if it is Shards."""
    return len(leaf.plan) if pytree.is_sharded(leaf) else next(iter(pytree.shape_of(leaf)), 1)


class Slots:
    """Preallocated gradients of `leaves`."""

    __slots__ = ("_arrays", "_leaves", "_lock", "_sealed", "_written")

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._leaves = leaves
        self._arrays: list[Any] = []
        missing: list[int] = []
        for leaf in leaves:
            if pytree.is_sharded(leaf):
                self._arrays.append({})
                missing.append(len(leaf.plan))
            else:
                array = np.empty(pytree.shape_of(leaf), pytree.dtype_of(leaf))
                self._arrays.append(array)
                missing.append(array.size)
        self._written = _Written(leaves, missing, 1)
        self._lock, self._sealed = threading.Lock(), False

    def write(self, index: int, rows: Any, cotangent: Cotangent) -> None:
        """Copy a cotangent into a leaf's slot, or into some of its rows; None means zeros.

        What comes from a worker is checked here before it is believed.
        """
        if self._sealed:
            raise StructureError(f"The gradient of leaf {index} was to be written a second time, when it was complete.")
        if pytree.is_sharded(self._leaves[index]):
            self._write_shards(index, self._leaves[index], rows, cotangent)
            return
        target = self._arrays[index] if rows is None else self._arrays[index][rows]
        if type(cotangent) is not np.ndarray or cotangent.shape != target.shape or cotangent.dtype != target.dtype:
            _check_fits(cotangent, target)
        if rows is None:
            first, n_rows = 0, 0
        elif target.size:
            first, n_rows = rows.start, rows.stop - rows.start
        else:  # no rows have no owner, and begin where others do
            return
        with self._lock:
            self._written.write(index, first, n_rows, target.size, ONE_SEED)
        target[...] = 0 if cotangent is None else cotangent

    def _write_shards(self, index: int, leaf: Leaf, rows: Any, cotangent: Cotangent) -> None:
        """Take what stays of a chunk, or the cotangent of Shards as a whole, which another operation gave."""
        if rows is None:
            _check_cut(cotangent, leaf)
        first, n_rows, size = (0, 0, len(leaf.plan)) if rows is None else (rows.number, 1, 1)
        with self._lock:
            self._written.write(index, first, n_rows, size, ONE_SEED)
        if rows is None:
            self._arrays[index] = leaf.zeros() if cotangent is None else cotangent
        else:
            self._arrays[index][rows.number] = cotangent

    def write_all(self, targets: Sequence[Target], cotangents: Sequence[Any] | None, seeds: range = ONE_SEED) -> None:
        """Copy one cotangent into each of some slots; None means zeros for all. There is one seed, the first."""
        del seeds
        parts = [None] * len(targets) if cotangents is None else cotangents
        for (leaf, rows), part in zip(targets, parts, strict=True):
            self.write(leaf, rows, part)

    def seal(self) -> list[Any]:
        """Return the gradients, read-only; numbers for leaves that are numbers."""
        with self._lock:
            if self._written.is_cut or any(self._written.missing):  # else all leaves were written whole
                self._written.refuse_gaps()
            self._sealed = True
            arrays, self._arrays = self._arrays, []  # whoever asked for them holds them now
        return [_sealed(array, leaf) for array, leaf in zip(arrays, self._leaves, strict=True)]


def _check_fits(cotangent: Cotangent, target: np.ndarray) -> None:
    """Raise unless a cotangent is of a slot's shape and dtype; None and numbers of Python's are of any dtype."""
    dtype = getattr(cotangent, "dtype", target.dtype)
    if cotangent is not None and (np.shape(cotangent) != target.shape or not _is_same(dtype, target.dtype)):
        raise StructureError(
            f"A cotangent of shape {np.shape(cotangent)} and dtype {dtype} came for a slot of shape {target.shape} "
            f"and dtype {target.dtype}."
        )


def _check_cut(cotangent: Cotangent, leaf: Leaf) -> None:
    if cotangent is not None and not (pytree.is_sharded(cotangent) and cotangent.plan == leaf.plan):
        raise StructureError(f"{cotangent!r} came as the cotangent of {leaf!r}, which is Shards of its own cut.")


def _sealed(array: Array, leaf: Leaf) -> Any:
    if pytree.is_sharded(leaf):
        return array if pytree.is_sharded(array) else leaf.of_chunks(array)
    array.flags.writeable = False
    return array if isinstance(leaf, np.ndarray) else array[()]


# For many seeds at once: cotangents that are zero but for some rows are kept by blocks


def cut_rows(seed: Cotangent, rows: slice | Stays | None) -> Any:
    """Return the part of a seed that belongs to some rows; None for zero."""
    if seed is None:
        return None
    if isinstance(seed, Blocks) and not isinstance(rows, Stays):
        return seed.full() if rows is None else seed.cut(rows)
    return owned(seed, rows)


class SparseSlots:
    """The cotangents of some leaves for many seeds: one per seed for each leaf, None for zero.

    Threads that run chunks write at the same time. What is found grows part by part, so unlike the rows of `Slots` it
    has several writers: they take turns, under `_lock`. Of Shards there is what stays of each chunk, or Shards.
    """

    def __init__(self, leaves: Sequence[Any], n_seeds: int) -> None:
        self._leaves, self._lock = leaves, threading.Lock()
        self._sizes = list(map(_size_of, leaves))
        self._row_sizes = [None if pytree.is_sharded(leaf) else math.prod(pytree.shape_of(leaf)[1:]) for leaf in leaves]
        self._written = _Written(leaves, [size * n_seeds for size in self._sizes], n_seeds)
        self._found: list[list[Any]] = [[None] * n_seeds for _ in leaves]

    def write_all(self, targets: Targets, parts: Sequence[Any] | None, seeds: range) -> None:
        """Take the cotangents of some targets for some seeds, one seed after the other; None where all are zero."""
        if parts is not None and len(parts) != len(targets) * len(seeds):
            raise StructureError(f"{len(parts)} cotangents came for {len(targets)} places and {len(seeds)} seeds.")
        with self._lock:
            for leaf, rows in targets:
                self._write(leaf, rows, seeds)
            for number, part in enumerate(parts or ()):
                position, at = divmod(number, len(targets))
                leaf, rows = targets[at]
                found, seed = self._found[leaf], seeds.start + position
                found[seed] = _sharded(found[seed], self._leaves[leaf], rows, part)

    def _write(self, index: int, rows: Any, seeds: range) -> None:
        if rows is None:
            self._written.write(index, 0, 0, self._sizes[index], seeds)
        elif (row_size := self._row_sizes[index]) is None:  # of Shards
            self._written.write(index, rows.number, 1, 1, seeds)
        elif size := (n_rows := rows.stop - rows.start) * row_size:
            self._written.write(index, rows.start, n_rows, size, seeds)

    def seal(self) -> list[list[Any]]:
        """Return what was found, when everything is there."""
        with self._lock:
            self._written.refuse_gaps()
        return [
            [_of_chunks(leaf, one) if type(one) is dict else one for one in found]
            for leaf, found in zip(self._leaves, self._found, strict=True)
        ]


def _of_chunks(leaf: Leaf, parts: dict[int, Any]) -> Any:
    return leaf.of_chunks({number: parts.get(number) for number in range(len(leaf.plan))})


def _is_same(dtype: DType, other: DType) -> bool:
    """Return whether two dtypes are the same, in whatever order their bytes are: those of files may be swapped."""
    return bool(dtype == other or np.can_cast(dtype, other, "equiv"))


def _sharded(found: Cotangent, leaf: Leaf, rows: Any, part: Cotangent) -> Any:
    """Return what was found of a leaf's cotangent together with one more part of it, after checking it."""
    if part is None:
        return found
    if pytree.is_sharded(leaf):
        if rows is None:
            _check_cut(part, leaf)
            return part
        found = {} if found is None else found
        found[rows.number] = part
        return found
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
