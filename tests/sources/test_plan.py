"""Plan: what does a grainsize mean, and which ones are refused?"""

from __future__ import annotations

from typing import Any

import dask.array
import numpy as np
import pytest

import dagad
from dagad import map_sum, reduce_sum
from dagad._sources.plan import Chunk, GivenPlan, Plan, plan_of


def lengths(n_rows: int, **options: Any) -> list[int]:
    """Return the lengths of the chunks that a reduction makes, first chunk first."""
    seen: list[int] = []

    def count(rows: Any) -> float:
        seen.append(len(rows))
        return float(len(rows))

    assert reduce_sum(count, np.zeros(n_rows), scheduler="sync", **options) == n_rows
    return seen


@pytest.mark.parametrize(("n_rows", "grainsize"), [(1, 1), (5, 1), (6, 2), (7, 3), (3, 3), (3, 100), (1000, 7)])
def test_a_plan_covers_every_row_once(n_rows: int, grainsize: int) -> None:
    plan = Plan(n_rows, grainsize)
    chunks = list(plan)
    assert len(chunks) == len(plan)
    assert [row for chunk in chunks for row in range(chunk.start, chunk.stop)] == list(range(n_rows))
    assert [chunk.number for chunk in chunks] == list(range(len(plan)))
    assert {chunk.stop - chunk.start for chunk in chunks[:-1]} <= {grainsize}


def test_a_plan_without_rows_has_no_chunks() -> None:
    assert list(Plan(0, 4)) == []


def test_a_plan_is_a_value() -> None:
    assert Plan(5, 2) == Plan(5, 2)
    assert Chunk(0, 1, 2) == Chunk(number=0, start=1, stop=2)
    with pytest.raises(AttributeError):
        Plan(5, 2).grainsize = 3  # type: ignore[misc]  # that it is frozen is the point


def test_the_last_chunk_is_shorter_where_it_does_not_divide() -> None:
    assert lengths(7, grainsize=3) == [3, 3, 1]


def test_a_grainsize_larger_than_the_data_makes_one_chunk() -> None:
    assert lengths(3, grainsize=10**12) == [3]


def test_the_grainsize_auto_is_the_default_and_may_be_given() -> None:
    assert sum(lengths(4, grainsize="auto")) >= 4
    assert reduce_sum(np.sum, np.ones(4)) == reduce_sum(np.sum, np.ones(4), grainsize="auto") == 4.0


@pytest.mark.parametrize("grainsize", [np.int8(3), np.int64(3), np.uint16(3), np.array(3)])
def test_a_grainsize_may_be_an_integer_of_numpys(grainsize: Any) -> None:
    assert lengths(7, grainsize=grainsize) == [3, 3, 1]


REFUSED = [
    0,
    -1,
    2.0,
    2.5,
    np.float64(2),
    True,
    False,
    np.True_,
    "3",
    "Auto",
    "",
    None,
    (2,),
    [2],
    np.array([2]),
    object(),
]


@pytest.mark.parametrize("grainsize", REFUSED, ids=lambda value: repr(value).partition(" at 0x")[0])
@pytest.mark.parametrize("rows", [np.ones(3), np.ones(0), [], [1.0, 2.0]], ids=["array", "no rows", "[]", "list"])
def test_any_other_grainsize_is_refused_with_the_remedy_before_f_is_called(grainsize: Any, rows: Any) -> None:
    def never(rows: Any) -> float:
        raise AssertionError("f was called")

    with pytest.raises(dagad.PlanError, match='Give a positive int or `"auto"`') as caught:
        reduce_sum(never, rows, grainsize=grainsize)
    assert isinstance(caught.value, ValueError)
    assert f"{len(rows)} rows" in str(caught.value)
    assert repr(grainsize) in str(caught.value)


@pytest.mark.parametrize(
    "sliced", [(np.ones(3), np.ones(3)), {"x": np.ones(3)}, range(3)], ids=["tuple", "dict", "range"]
)
def test_an_error_of_a_wrong_grainsize_says_how_many_rows_there_are(sliced: Any) -> None:
    with pytest.raises(dagad.PlanError, match="Cannot cut 3 rows by `grainsize=0`"):
        reduce_sum(len, sliced, grainsize=0)


def test_map_sum_refuses_a_wrong_grainsize() -> None:
    with pytest.raises(dagad.PlanError, match="Cannot cut 2 rows by `grainsize=-3`"):
        map_sum(float, [1.0, 2.0], grainsize=-3)


@pytest.mark.parametrize(
    "sliced", [np.ones(0), np.ones((0, 3)), [], (np.ones(0), []), {"x": np.ones((0, 2))}], ids=repr
)
@pytest.mark.parametrize("grainsize", [1, "auto"])
def test_no_rows_sum_to_zero_and_f_is_not_called(sliced: Any, grainsize: Any, scheduler: Any) -> None:
    def never(*args: Any) -> Any:
        raise AssertionError("f was called")

    total = reduce_sum(never, sliced, 2.0, grainsize=grainsize, scheduler=scheduler)
    assert type(total) is float
    assert total == 0.0


@pytest.mark.parametrize("reduction", [reduce_sum, map_sum])
def test_the_gradient_of_no_rows_is_zero(reduction: Any, scheduler: Any) -> None:
    def never(*args: Any) -> Any:
        raise AssertionError("f was called")

    def loss(x: Any, theta: Any) -> Any:
        return reduction(never, x, theta, grainsize=1, scheduler=scheduler)

    value, (x_part, theta_part) = dagad.value_and_grad(loss, (0, 1))(np.ones((0, 2)), np.ones(3))
    assert value == 0.0
    assert x_part.shape == (0, 2)
    np.testing.assert_array_equal(theta_part, np.zeros(3))


@pytest.mark.parametrize("grainsize", [1, 7, "auto"])
def test_one_row_is_one_chunk(grainsize: Any) -> None:
    assert lengths(1, grainsize=grainsize) == [1]


def test_a_plan_of_pieces_is_that_of_a_grainsize_where_it_cuts_alike() -> None:
    for n_rows, grainsize in [(10, 5), (10, 4), (3, 3), (7, 1)]:
        plan = Plan(n_rows, grainsize)
        assert plan_of([0, *(chunk.stop for chunk in plan)]) == plan
    for bounds in [(0,), (0, 0), (0, 4, 5, 9), (0, 0, 3), (0, 3, 7)]:
        assert plan_of(bounds) == GivenPlan(bounds)


@pytest.mark.parametrize("sizes", [(5, 5, 3), (4, 6, 3), (1,) * 13])
def test_a_plan_says_what_cuts_rows_alike(sizes: tuple[int, ...]) -> None:
    rows = np.arange(13.0)
    plan = dagad.shard(dask.array.from_array(rows, chunks=(sizes,))).plan
    said = plan.how_to_cut("tangent").strip("`")
    if "..." not in said:
        assert eval(said, {"dagad": dagad, "dask": dask, "tangent": rows}).plan == plan
