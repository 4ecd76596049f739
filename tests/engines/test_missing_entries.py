"""Entries out of bounds, of what jax compiles: is the result nan, or a number that another entry has made?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dagad

pytestmark = [pytest.mark.needs("jax"), pytest.mark.filterwarnings("ignore:.*gave nan")]

TABLE = np.array([3, 1, 2])
HELD, BEYOND = np.array([0, 1, 2, 1, 0]), np.array([0, 1, 2, 5, 5])  # two at -2**63 add up to 0

WAYS: dict[str, Any] = {
    "x[i]": lambda table, i: table[i],
    "x[..., i]": lambda table, i: np.stack([table, table])[..., i],
    "x[None, i, 1:]": lambda table, i: np.stack([table, table], axis=1)[None, i, 1:],
    "x[mask, i]": lambda table, i: np.stack([table] * 5)[np.array([True] * 5), i],
    "x[-1 - i]": lambda table, i: table[-1 - i],
    "take": np.take,
    "take along an axis": lambda table, i: np.take_along_axis(np.stack([table, table]), np.stack([i, i]), 1),
    "choose": lambda table, i: np.choose(i, [table[0], table[1], table[2]]),
    "bincount": lambda table, i: np.bincount(i, minlength=4) ** 2,
    "a comparison": lambda table, i: np.where(table[i] > 1, 1.5, 2.5),
}
KINDS = [int, np.int8, np.uint8, bool]


def results(way: Any, table: Any, index: Any, engine: str) -> list[Any]:
    """Return value, gradient, tangent and a product with the Hessian."""

    def chunk(rows: Any, t: Any, table: Any) -> Any:
        return np.sum(way(table, rows) * 1.0) * t**2

    def total(t: Any) -> Any:
        return dagad.reduce_sum(chunk, index, t, table, grainsize=len(index), scheduler="sync", engine=engine)

    value, gradient = dagad.value_and_grad(total)(2.0)
    return [value, gradient, dagad.jvp(total, (2.0,), (1.0,))[1], dagad.hvp(total, 2.0, 1.0), total(2.0)]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_an_entry_out_of_bounds_of_what_can_not_be_nan_makes_the_result_nan(way: str, kind: Any) -> None:
    table = TABLE.astype(kind)
    assert results(WAYS[way], table, HELD, "jax") == results(WAYS[way], table, HELD, "autograd")
    assert np.isnan(results(WAYS[way], table, BEYOND, "jax")).all()


def test_entries_below_the_first_are_counted_from_the_last_and_no_further() -> None:
    table, index = np.array([3, 1, 2]), np.array([-3, -1, 2])
    assert results(WAYS["x[i]"], table, index, "jax") == results(WAYS["x[i]"], table, index, "autograd")
    assert np.isnan(results(WAYS["x[i]"], table, index - 1, "jax")).all()


def test_an_entry_out_of_bounds_in_a_round_of_a_loop_makes_the_result_nan() -> None:
    def chunk(rows: Any, t: Any) -> Any:
        index, table = rows
        total = 0.0 * t
        for number in range(5):
            total = total * 0.5 + t * table[index[number]]
        return total

    def at(index: Any) -> Any:
        rows = (index, np.arange(5))
        return dagad.value_and_grad(lambda t: dagad.reduce_sum(chunk, rows, t, grainsize=5, engine="jax"))(2.0)

    assert np.isfinite(at(np.array([0, 1, 2, 3, 4]))).all()
    assert np.isnan(at(np.array([0, 1, 7, 3, 4]))).all()


def test_a_histogram_of_what_is_not_finite_makes_the_result_nan() -> None:
    def chunk(rows: Any, t: Any) -> Any:
        return np.sum(np.histogram(rows, bins=4)[0]) * t

    def at(rows: Any) -> Any:
        return dagad.value_and_grad(lambda t: dagad.reduce_sum(chunk, rows, t, grainsize=6, engine="jax"))(2.0)

    assert at(np.arange(6.0)) == (12.0, 6.0)
    assert np.isnan(at(np.array([0.0, 1.0, np.inf, 2.0, 3.0, 4.0]))).all()


def test_whole_numbers_that_are_returned_are_the_least_where_an_entry_is_missing() -> None:
    found = dagad.map(
        lambda row, t: np.sum((row * 2 + 1)[row]), np.stack([HELD, BEYOND]), 2.0, grainsize=1, engine="jax"
    )
    assert found.tolist() == [13, np.iinfo(int).min]


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.uint64])
def test_indices_of_narrow_types_reach_all_entries_of_a_long_axis(kind: Any) -> None:
    index = np.array([0, 5, 127], kind)

    def chunk(rows: Any, t: Any) -> Any:
        table = np.arange(200) + rows[0]
        return np.sum(table[rows] * 1.0) * t + np.sum(np.bincount(rows, minlength=200)[100:]) * t

    def at(engine: str) -> Any:
        return dagad.value_and_grad(lambda t: dagad.reduce_sum(chunk, index, t, grainsize=3, engine=engine))(2.0)

    assert at("jax") == at("autograd") == (266.0, 133.0)


def test_that_entries_are_there_is_no_operation_of_the_users() -> None:
    def chunk(rows: Any, t: Any) -> Any:
        table, total = rows * 2 + 1, 0.0
        for number in range(150):
            total = total * 0.9 + t * table[rows[number % 5]]
        return total

    def at(engine: str) -> Any:
        return dagad.value_and_grad(lambda t: dagad.reduce_sum(chunk, HELD, t, grainsize=5, engine=engine))(2.0)

    np.testing.assert_allclose(at("jax"), at("autograd"), rtol=1e-12)
