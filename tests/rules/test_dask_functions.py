"""Dask's own functions of blocks, beside what is traced: is what is constant computed as Dask computes it?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import dask.array as da
import numpy as np
import pytest
from dask.base import compute as dask_compute
from dask.delayed import delayed

import dagad

compute: Any = dask_compute  # Dask has few types
array: Any = da
DATA = np.arange(12.0).reshape(6, 2) - 3.0
GAPS = np.ma.masked_greater(DATA, 4.0)
LETTERS = np.array(list("abcabc"))


def gaps() -> Any:
    return array.from_array(GAPS, chunks=(2, 1))


def letters() -> Any:
    found = array.from_array(LETTERS, chunks=2)
    found[1] = "c"
    return found


def weights_of_a_delayed(x: Any) -> Any:
    """Return a total that asks for a masked array as a whole."""
    made = delayed(lambda x, gaps: anp.sum(x * gaps.filled(7.0)))(x, gaps())
    return array.from_delayed(made, (), float)


# What is constant stands beside `x` in one task, where traced arrays go through functions of dagad's.
BESIDE: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "finalize": (weights_of_a_delayed, GAPS.filled(7.0)),
    "vindex": (
        lambda x: (x[:3, 0] * gaps().vindex[[0, 4, 5], [0, 1, 1]].map_blocks(np.ma.filled, 7.0)).sum(),
        np.array([[-3.0, 0], [7, 0], [7, 0], [0, 0], [0, 0], [0, 0]]),
    ),
    "setitem": (
        lambda x: (x[:, 0] * (letters() == "c")).sum(),
        np.array([[0.0, 0], [1, 0], [1, 0], [0, 0], [0, 0], [1, 0]]),
    ),
}


@pytest.mark.parametrize("name", BESIDE)
def test_constants_beside_what_is_differentiated_keep_masks_and_types(name: str) -> None:
    program, slope = BESIDE[name]
    x = array.from_array(DATA, chunks=(2, 1))
    total = program(x)
    value, gradient = compute(*dagad.value_and_gradient(total, x), scheduler="sync")
    np.testing.assert_array_equal(gradient, slope)
    assert value == pytest.approx(total.compute(scheduler="sync"))


def test_blocks_with_masks_are_not_joined_with_what_is_differentiated() -> None:
    x = array.from_array(DATA, chunks=(6, 2))
    blocks = array.concatenate([x, array.from_array(GAPS, chunks=(6, 2))], axis=0)
    total = array.from_delayed(delayed(lambda whole: anp.sum(whole))(blocks), (), float)
    with pytest.raises(dagad.NotDifferentiableError, match="of masked arrays"):
        compute(dagad.gradient(total, x), scheduler="sync")
