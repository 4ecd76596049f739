"""Arrays of classes of their own: is what would be lost of them on the way refused, on every scheduler alike?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dagad

X = np.arange(12.0).reshape(6, 2)


def with_gaps(rows: Any) -> Any:
    return np.ma.masked_greater(rows, 4.0).sum(axis=0)


def nothing_but_gaps(rows: Any) -> Any:
    return np.ma.masked_greater(rows, -1.0).sum()


class Metres(np.ndarray[Any, Any]):
    """Numbers with a unit."""


def with_units(rows: Any) -> Any:
    return {"a": np.sum(rows), "b": np.sum(rows, axis=0).view(Metres)}


STRANGE: dict[Callable[[Any], Any], str] = {
    with_gaps: "a MaskedArray of shape",
    nothing_but_gaps: r"a MaskedConstant of shape \(\)",
    with_units: "a Metres of shape",
}


def combined(f: Any, rows: Any, **options: Any) -> Any:
    return dagad.map_reduce(f, np.add, rows, **options)


@pytest.mark.parametrize("f", STRANGE)
def test_masked_arrays_and_arrays_with_units_are_no_results(f: Callable[[Any], Any], cluster: Client) -> None:
    shards = dagad.shard(X, grainsize=2, scheduler=cluster)
    sentence = f"{STRANGE[f]}.*`x.filled\\(value\\)` of a masked one"
    for _ in range(2):  # the second time it would be hot, where nothing but numbers comes back
        with pytest.raises(dagad.StructureError, match=sentence):
            dagad.reduce_sum(f, shards)
    for reduction in (dagad.reduce_sum, dagad.map, dagad.map_sum, combined):
        with pytest.raises(dagad.StructureError, match=sentence):
            reduction(f, X[:, None, :], grainsize=2, scheduler="sync")


def test_arrays_of_a_file_are_results_like_any_others(tmp_path: Any) -> None:
    weights = np.memmap(tmp_path / "weights", mode="w+", shape=2)
    weights[:] = 3.0
    total = dagad.reduce_sum(lambda rows: np.sum(rows) * weights, X, grainsize=2, scheduler="sync")
    np.testing.assert_array_equal(total, [198.0, 198.0])
