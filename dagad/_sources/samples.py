"""Which chunks of Shards a sample has, and how its rows are cut: from a seed and a step alone.

Chunks are put in a random order, once for each epoch; the samples of an epoch are what follows each other in it. The
order is that of random words, one for each chunk, which numpy's `SeedSequence` makes of the seed and the epoch: of all
that numpy draws, these are promised to stay what they are. So a step has the same sample wherever it is asked for.
"""

from __future__ import annotations

import operator
from typing import NamedTuple

import numpy as np

from dagad._errors import PlanError
from dagad._sources.base import AnyShards
from dagad._types import Value


class Drawn(NamedTuple):
    """What a sample is of, and the numbers of its chunks there, in ascending order."""

    whole: AnyShards
    numbers: tuple[int, ...]


def drawn_numbers(n_total: int, n_chunks: object, seed: object, step: object) -> tuple[int, ...]:
    """Return the numbers of the chunks that a step samples, in ascending order.

    >>> drawn_numbers(8, 3, 0, 0), drawn_numbers(8, 3, 0, 1), drawn_numbers(8, 8, 0, 5)
    ((4, 5, 6), (0, 2, 3), (0, 1, 2, 3, 4, 5, 6, 7))
    """
    count = _whole_number("n_chunks", n_chunks)
    seed, step = _whole_number("seed", seed), _whole_number("step", step)
    if not n_total:
        raise PlanError("Cannot sample Shards without rows: there are no chunks. Skip the step where there is no data.")
    if not 1 <= count <= n_total:
        raise PlanError(
            f"Cannot sample {count} of {n_total} {'chunk' if n_total == 1 else 'chunks'}: each comes at most once in a "
            f"sample, and one at least. Give `n_chunks` from 1 to {n_total}; data cut finer, "
            "`dagad.shard(data, grainsize=...)`, have more chunks."
        )
    epoch, index = divmod(step, n_total // count)
    words = np.random.SeedSequence(seed, spawn_key=(epoch,)).generate_state(n_total, np.uint64)
    order = np.argsort(words, kind="stable")
    return tuple(sorted(order[index * count : (index + 1) * count].tolist()))


def _whole_number(name: str, value: Value) -> int:
    try:
        number = -1 if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise PlanError(
            f"`{name}={value!r}` is no whole number from 0 on. "
            + ("Give the number of the step, as the loop counts them." if name == "step" else "Give an int.")
        )
    return number
