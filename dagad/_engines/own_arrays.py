"""What engines share whose functions compute with arrays of their own: how these are kept, and how they are pulled."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from dagad._engines.base import Composed, Engine, Flat, Leaves, outputs_of
from dagad._errors import StructureError
from dagad._pytrees import pytree
from dagad._pytrees.canonical import is_frozen


class Placed:
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
    """

    def __init__(self, put: Callable[[Any], Any], library: str) -> None:
        self._put, self._library = put, library
        self._found: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __call__(self, array: Any) -> Any:
        known, placed = self._found.get(id(array)), None
        if known is not None and known[0]() is array and is_frozen(array):  # its owner may make it writable again
            return known[1]
        with contextlib.suppress(TypeError):
            placed = self._put(array)
        if placed is None:
            raise StructureError(
                f"{self._library} has no arrays of the dtype {array.dtype}. Convert the data, with `.astype(float)` "
                "say."
            )
        if is_frozen(array):
            self._found[id(array)] = weakref.ref(array, functools.partial(self._forget, id(array))), placed
        return placed

    def _forget(self, place: int, gone: Any) -> None:
        known = self._found.get(place)
        if known is not None and known[0] is gone:  # or another array stands there by now
            del self._found[place]


class ArrayPullback:
    """The pullback of a flat function: by what is kept of its run, or anew, where only some of the outputs have a seed.

    For the others a seed of zero would do, but at an infinite slope it would be nan.

    Parameters
    ----------
    pull
        From one seed for each output that may have one, to the cotangents of the leaves.
    nbytes
        How much memory is kept for it.
    """

    __slots__ = ("_at", "_pull", "_values", "nbytes")

    def __init__(
        self,
        at: tuple[Engine, Flat, Leaves],
        values: Sequence[Any],
        pull: Callable[[list[Any]], list[Any]],
        nbytes: Callable[[], int],
    ) -> None:
        self._at, self._values, self._pull = at, values, pull
        self.nbytes = nbytes

    def __call__(self, cotangents: Sequence[Any]) -> list[Any]:
        floats = [place for place, value in enumerate(self._values) if pytree.is_differentiable(value)]
        seeded = [place for place in floats if cotangents[place] is not None]
        seeds = [pytree.cast(cotangents[place], self._values[place]) for place in seeded]
        if len(seeded) == len(floats):
            return self._pull(seeds)
        engine, fun, leaves = self._at
        some = outputs_of(fun, seeded)
        pulled = Composed(engine.pullback(some, len(leaves)), some, "pullback")
        return engine.value(pulled, [*leaves, *seeds])
