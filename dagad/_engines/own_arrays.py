"""What engines share whose functions compute with arrays of their own: how these are kept, and how they are pulled."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dagad._errors import StructureError
from dagad._tracing.flat_functions import Composed, Engine, Flat, Leaves, outputs_of
from dagad._types import Array, DType, Value
from dagad._values import pytree
from dagad._values.canonical import is_frozen

BLOCK = 8  # cotangents that are pulled at once; what executors ask for at once are multiples of it


def of_dtype(library: str, dtype: DType) -> str:
    """Tell that a library has no arrays of a dtype."""
    return f"{library} has no arrays of the dtype {dtype}. Convert the data, with `.astype(float)` say."


class OnDevice:
    """Makes numpy's arrays an engine's own, on its device.

    Those that nobody can write into, such as those of Shards, are placed once: `_found` has them by their ids, for as
    long as numpy's own live.

    Parameters
    ----------
    put
        From an array to a copy in the same dtype, or to None if there is none. It has memory of its own: it must not
        hold what its own life hangs on, and the bits must not depend on where numpy's happens to lie.
    library
        Whose arrays they become, for sentences about it.
    ready
        Returns an array, or a copy from which `put` makes one sooner: of what is placed for one evaluation.
    """

    def __init__(
        self, put: Callable[[Any], Any], library: str, ready: Callable[[Any], Any] = lambda array: array
    ) -> None:
        self._put, self._library, self._ready = put, library, ready
        self._found: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __call__(self, array: Array) -> Any:
        known, placed = self._found.get(id(array)), None
        if known is not None and known[0]() is array and is_frozen(array):  # its owner may make it writable again
            return known[1]
        with contextlib.suppress(TypeError):
            placed = self._put(array if is_frozen(array) else self._ready(array))
        if placed is None:
            raise StructureError(of_dtype(self._library, array.dtype))
        if is_frozen(array):
            self._found[id(array)] = weakref.ref(array, functools.partial(self._forget, id(array))), placed
        return placed

    def _forget(self, index: int, gone: weakref.ref[Any]) -> None:
        known = self._found.get(index)
        if known is not None and known[0] is gone:  # or another array stands there by now
            del self._found[index]


PullBlock = Callable[[list[Any]], list[Any] | None]


def pulled_in_blocks(
    pull: Callable[[Sequence[Any]], list[Any]],
    pull_block: PullBlock | None,
    values: Sequence[Any],
    many: Sequence[Sequence[Any] | None],
) -> list[list[Any] | None]:
    """Pull many cotangents of `values`, None among them, in blocks; where a block has but one, that is pulled alone.

    Where one stands in its block depends on its number alone, so that executors may ask for several blocks at once.
    """
    found: list[list[Any] | None] = []
    floats = [index for index, value in enumerate(values) if pytree.is_differentiable(value)]
    for start in range(0, len(many), BLOCK):
        block, parts = many[start : start + BLOCK], None
        present = [seeds for seeds in block if seeds is not None]
        is_full = all(seeds[index] is not None for seeds in present for index in floats)
        if pull_block is not None and floats and len(present) > 1 and is_full:
            parts = pull_block([_column(block, index, values[index]) for index in floats])
        for number, seeds in enumerate(block):
            if seeds is None:
                found.append(None)
            else:
                found.append(pull(seeds) if parts is None else [part[number] for part in parts])
    return found


def _column(block: Sequence[Sequence[Any] | None], index: int, value: Value) -> Any:
    """Return the cotangents of one value along a first axis; zeros fill it, so that it always has one length."""
    column = np.zeros((BLOCK, *np.shape(value)), pytree.dtype_of(value))
    for number, seeds in enumerate(block):
        if seeds is not None:
            column[number] = pytree.cast(seeds[index], value)
    return column


class ArrayPullback:
    """The pullback of a flat function: by what is kept of its run, or anew, where only some of the outputs have a seed.

    For the others a seed of zero would do, but at an infinite slope it would be nan.

    Parameters
    ----------
    pull
        From one seed for each output that may have one, to the cotangents of the leaves.
    nbytes
        How much memory is kept for it.
    pull_block
        From a block of seeds, along a first axis, to cotangents alike, or to None where that can't be.
    """

    __slots__ = ("_at", "_pull", "_pull_block", "_values", "nbytes")

    def __init__(
        self,
        at: tuple[Engine, Flat, Leaves],
        values: Sequence[Any],
        pull: Callable[[list[Any]], list[Any]],
        nbytes: Callable[[], int],
        pull_block: PullBlock,
    ) -> None:
        self._at, self._values, self._pull = at, values, pull
        self.nbytes, self._pull_block = nbytes, pull_block

    def __call__(self, cotangents: Sequence[Any]) -> list[Any]:
        floats = [index for index, value in enumerate(self._values) if pytree.is_differentiable(value)]
        seeded = [index for index in floats if cotangents[index] is not None]
        seeds = [pytree.cast(cotangents[index], self._values[index]) for index in seeded]
        if len(seeded) == len(floats):
            return self._pull(seeds)
        engine, fun, leaves = self._at
        some = outputs_of(fun, seeded)
        pulled = Composed(engine.pullback(some, len(leaves)), some, "pullback")
        return engine.value(pulled, [*leaves, *seeds])

    def many(self, many: Sequence[Sequence[Any] | None]) -> list[list[Any] | None]:
        """Pull many, None among them; see `pulled_in_blocks`."""
        return pulled_in_blocks(self, self._pull_block, self._values, many)
