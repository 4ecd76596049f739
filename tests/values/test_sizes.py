"""Sizes: are they exact where they decide how rows are cut, and is nobody's random sequence moved on?"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad
from dagad._graphs.linearization import Linearization
from dagad._sources.rows import Rows
from dagad._values.pytree import nbytes_of

ZEROS = np.zeros(2_000_000)
ZEROS.flags.writeable = False  # many bytes to count, in little memory
RAGGED = [ZEROS[:size] for size in np.random.default_rng(0).integers(1, len(ZEROS), 256)]

DATA: dict[str, Callable[[], Any]] = {
    "ragged": lambda: RAGGED,
    "records": lambda: [{"a": one, "words": ["x"] * 12} for one in RAGGED],
    "beside an array": lambda: {"x": ZEROS[:512].reshape(256, 2), "items": RAGGED},
    "lists of lists": lambda: [[one] * 15 for one in RAGGED],
}


def states() -> str:
    return f"{random.getstate()} {np.random.get_state()}"  # the sequence that users share


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", DATA.values(), ids=DATA)
def test_lists_are_cut_the_same_in_every_run(make: Any) -> None:
    data, plans = make(), set()
    for seed in range(12):
        random.seed(seed)
        np.random.seed(seed)  # the sequence that users share
        before = states()
        plans.add(dagad.shard(data, scheduler="sync").plan)
        assert states() == before
    assert len(plans) == 1


def test_sizes_for_dask_move_no_random_sequence() -> None:
    random.seed(0)
    before = random.getstate()
    for held in (Rows.of(RAGGED), Linearization({"a": RAGGED}, None), Rows.of({"a": [RAGGED] * 20})):
        sys.getsizeof(held)
    assert random.getstate() == before


def test_arrays_are_cut_automatically_into_the_same_chunks_in_every_release() -> None:
    """The sizes are part of the plan, and so of the bits."""
    data = [ZEROS.view("u1")[:15_000_000].reshape(-1, 3), ZEROS.view("f4"), ZEROS[:100]]
    assert [dagad.shard(one, scheduler="sync").grainsize for one in data] == [625000, 500000, 13]


@pytest.mark.parametrize(
    ("tree", "nbytes"),
    [
        (np.zeros(3), 24),
        ({"a": np.zeros(3), "b": [np.zeros(2), (np.zeros(1), None)]}, 48),
        ([np.zeros(1)] * 640, 5120),
        ([], 0),
        (None, 0),
        (np.float32(1.0), 4),
    ],
    ids=str,
)
def test_the_bytes_of_arrays_are_counted_exactly(tree: Any, nbytes: int) -> None:
    assert nbytes_of(tree) == nbytes
