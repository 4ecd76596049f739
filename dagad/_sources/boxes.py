"""Shards that are being differentiated: what they have in common with others, and the derivative of a sample.

Autograd is told of them when the first Shards are made: to import dagad adds nothing to its tables.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import numpy as np
from autograd.extend import Box, VSpace, defjvp, defvjp, primitive

from dagad._errors import NotDifferentiableError
from dagad._habits import ARITHMETIC, answering
from dagad._sources.samples import drawn_numbers
from dagad._tracebacks import public
from dagad._types import Array, Leaf
from dagad._values import pytree

_NO_ARRAY = (
    "They are no array: their rows are in several places. Sum a function over them, `dagad.reduce_sum(f, shards)`, in "
    "which the rows of each chunk are arrays; or take the data back in one piece, `shards.gather()`."
)
_COUNTS = "`shards.n_rows` is the number of rows, `shards.n_chunks` that of chunks."
_GATHER = "`shards.gather()` returns the data in one piece."
_INSTEAD = {
    **dict.fromkeys(("shape", "size", "ndim", "numblocks", "npartitions", "count"), _COUNTS),
    **dict.fromkeys(("chunks", "chunksize"), "`shards.grainsize` is the number of rows in a chunk."),
    **dict.fromkeys(("compute", "result", "persist", "data", "to_numpy", "values", "collect"), _GATHER),
}


def _instead(name: str) -> str | None:
    return _INSTEAD.get(name) or (_NO_ARRAY if hasattr(np.ndarray, name) else None)


# What Shards say of what they are not; see `answering`.
ANSWERS: Any = (
    "Shards have",
    _instead,
    {
        "__len__": ("measured by `len`", _COUNTS),
        "__getitem__": ("indexed, nor gone through one by one", _NO_ARRAY),
        **dict.fromkeys(ARITHMETIC, ("added or multiplied", _NO_ARRAY)),
    },
)


@answering(*ANSWERS)
class ShardsBox(Box):  # type: ignore[misc]  # autograd has no types
    """Shards that are being differentiated. How they are cut is a constant, and a sample of them linear."""

    for_users = ("grainsize", "n_chunks", "n_rows", "sample")

    @property
    def n_rows(self) -> int:
        return int(pytree.plain(self).n_rows)

    @property
    def n_chunks(self) -> int:
        return int(pytree.plain(self).n_chunks)

    @property
    def grainsize(self) -> int:
        return int(pytree.plain(self).grainsize)

    def __bool__(self) -> bool:
        return True

    @public
    def sample(self, n_chunks: int, *, seed: int = 0, step: int) -> Any:
        """Return what `Shards.sample` does, with a derivative: zeros for the chunks that are not in it."""
        return _samples()[0](self, n_chunks, seed, step)

    def gather(self) -> NoReturn:
        raise NotDifferentiableError(
            "Shards were differentiated and taken back in one piece, `shards.gather()`, whose derivative would have to "
            "be cut and placed again. Sum a function over them, `dagad.reduce_sum(f, shards)`; or differentiate with "
            "respect to the array, `data = shards.gather()` before, and give that."
        )


class ShardsSpace(VSpace):  # type: ignore[misc]  # autograd has no types
    """What autograd asks of a type whose cotangents it adds."""

    def __init__(self, value: Leaf) -> None:
        self._value = value

    def _add(self, x: Leaf, y: Leaf) -> Any:
        return x.added(y)

    _mut_add = _add

    def zeros(self) -> Any:
        return self._value.zeros()


@functools.cache
def tell_autograd(shards: type) -> None:
    """Let autograd box Shards, and add them: told when the first of them are made."""
    ShardsBox.register(shards)
    ShardsSpace.register(shards)


def times(shards: Leaf, factor: Array) -> Any:
    """Return Shards times a number; by forward mode, both may move."""
    return _times()(shards, factor)


@functools.cache
def _times() -> Any:
    made = primitive(_scaled)
    defjvp(
        made,
        lambda tangent, ans, shards, factor: made(tangent, factor),
        lambda tangent, ans, shards, factor: made(shards, tangent),
    )
    return made


def _scaled(shards: Leaf, factor: Array) -> Any:
    return shards.scaled(float(factor))


@functools.cache
def _samples() -> tuple[Any, Any]:
    """Return a sample of Shards, and its transpose, as primitives: each is the derivative of the other."""
    sampled, spread = primitive(_sampled), primitive(_spread)
    defvjp(
        sampled, lambda ans, shards, *how: lambda cotangent: spread(cotangent, pytree.plain(shards), *how), argnums=(0,)
    )
    defvjp(spread, lambda ans, sample, whole, *how: lambda cotangent: sampled(cotangent, *how), argnums=(0,))
    defjvp(sampled, lambda tangent, ans, shards, *how: sampled(tangent, *how), argnums=(0,))
    defjvp(spread, lambda tangent, ans, sample, whole, *how: spread(tangent, whole, *how), argnums=(0,))
    return sampled, spread


def _sampled(shards: Leaf, n_chunks: int, seed: int, step: int) -> Any:
    return shards.sample(n_chunks, seed=seed, step=step)


def _spread(sample: Leaf, whole: Leaf, *how: int) -> Any:
    """Return Shards cut like the whole: the chunks of a sample in their places, zeros elsewhere."""
    numbers = drawn_numbers(whole.n_chunks, *how)
    return whole.filled(dict(zip(numbers, sample.keys, strict=True)), sample.kept)
