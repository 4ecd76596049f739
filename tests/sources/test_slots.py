"""Slots: is the memory of a gradient written once, completely, and then left alone?"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest

import dagad
from dagad._kernels.job import Job
from dagad._sources.base import Stays
from dagad._sources.slots import Slots, SparseSlots


def test_rows_of_a_sliced_leaf_are_filled_in_any_order() -> None:
    slots = Slots([np.zeros(5)])
    for start in (4, 0, 2):
        rows = slice(start, min(start + 2, 5))
        slots.write(0, rows, np.arange(5.0)[rows])
    np.testing.assert_array_equal(slots.seal()[0], np.arange(5.0))


def test_a_slot_has_the_shape_and_dtype_of_its_leaf() -> None:
    slots = Slots([np.zeros((3, 2), np.float32), 1.0])
    slots.write(0, None, np.ones((3, 2), np.float32))
    slots.write(1, None, 2.0)
    array, number = slots.seal()
    assert array.shape == (3, 2)
    assert array.dtype == np.float32
    assert isinstance(number, np.float64)


def test_a_cotangent_that_is_none_is_written_into_a_slot_as_zeros() -> None:
    slots = Slots([np.ones(2), np.ones((2, 2))])
    slots.write(0, None, None)
    slots.write(1, slice(0, 1), None)
    slots.write(1, slice(1, 2), np.ones((1, 2)))
    vector, matrix = slots.seal()
    np.testing.assert_array_equal(vector, [0, 0])
    np.testing.assert_array_equal(matrix, [[0, 0], [1, 1]])


def test_shards_are_written_by_chunk_or_as_a_whole_and_once() -> None:
    cut = functools.partial(dagad.shard, scheduler="sync")
    shards, cotangent = cut(np.arange(6.0), 2), cut(np.ones(6), 2)
    slots = Slots([shards, shards])
    slots.write(0, None, cotangent)
    slots.write(1, None, None)
    for other in (cotangent, None):
        with pytest.raises(dagad.StructureError, match="a second time"):
            slots.write(0, None, other)
    whole, nothing = slots.seal()
    assert whole is cotangent
    np.testing.assert_array_equal(nothing.gather(), np.zeros(6))
    by_chunk = Slots([shards])
    by_chunk.write(0, Stays(1), cotangent.kept[cotangent.keys[1]])
    for wrong, why in ((cotangent, "a second time"), (cut(np.ones(6), 3), "its own cut"), (np.ones(6), "its own cut")):
        with pytest.raises(dagad.StructureError, match=why):
            by_chunk.write(0, None, wrong)


def test_a_cotangent_that_is_written_into_a_slot_is_copied() -> None:
    slots, cotangent = Slots([np.ones(2)]), np.array([1.0, 2.0])
    slots.write(0, None, cotangent)
    cotangent[:] = -1
    np.testing.assert_array_equal(slots.seal()[0], [1, 2])


def test_after_the_seal_a_slot_is_read_only() -> None:
    slots = Slots([np.ones(2)])
    slots.write(0, None, np.ones(2))
    (array,) = slots.seal()
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 5.0
    assert not array.flags.writeable


def test_a_second_write_of_a_whole_leaf_is_refused() -> None:
    slots = Slots([np.ones(2)])
    slots.write(0, None, np.ones(2))
    with pytest.raises(dagad.StructureError, match="a second time"):
        slots.write(0, None, np.zeros(2))


def test_a_second_write_of_the_same_rows_is_refused_while_others_are_missing() -> None:
    slots = Slots([np.ones(4)])
    slots.write(0, slice(0, 2), np.ones(2))
    with pytest.raises(dagad.StructureError, match="leaf 0 from row 0 was to be written a second time"):
        slots.write(0, slice(0, 2), np.ones(2))


def test_a_write_after_the_seal_is_refused() -> None:
    slots = Slots([np.ones(2)])
    slots.write(0, None, np.ones(2))
    (array,) = slots.seal()
    with pytest.raises(dagad.StructureError, match="a second time"):
        slots.write(0, slice(0, 1), np.zeros(1))
    np.testing.assert_array_equal(array, [1, 1])


@pytest.mark.parametrize(
    "cotangent",
    [np.ones(3), np.ones((2, 1)), 1.0, np.ones(2, np.float32), np.ones(2, complex)],
    ids=["long", "deep", "number", "float32", "complex"],
)
def test_a_cotangent_of_another_shape_or_dtype_is_refused_and_writes_nothing(cotangent: Any) -> None:
    slots = Slots([np.ones(2)])
    with pytest.raises(dagad.StructureError, match=r"came for a slot of shape \(2,\) and dtype float64"):
        slots.write(0, None, cotangent)
    with pytest.raises(dagad.StructureError, match="not complete"):
        slots.seal()


def test_an_incomplete_gradient_is_not_handed_out() -> None:
    slots = Slots([np.ones(2), np.ones((3, 2))])
    slots.write(0, None, np.ones(2))
    slots.write(1, slice(0, 2), np.ones((2, 2)))
    with pytest.raises(dagad.StructureError, match=r"leaves \[1\] are not complete: 2 of 6 .* leaf 1 from row 2\."):
        slots.seal()


def test_leaves_without_entries_are_complete_from_the_start() -> None:
    assert Slots([np.ones((0, 3))]).seal()[0].shape == (0, 3)


def test_many_threads_fill_disjoint_rows() -> None:
    n = 64
    slots = Slots([np.zeros((n, 3))])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: slots.write(0, slice(i, i + 1), np.full((1, 3), float(i))), range(n)))
    np.testing.assert_array_equal(slots.seal()[0][:, 0], np.arange(n))


def test_gradients_of_rows_are_the_callers_own(scheduler: Any) -> None:
    def loss(x: Any) -> Any:
        return dagad.reduce_sum(lambda rows: anp.sum(rows**2), x, grainsize=2, scheduler=scheduler)

    gradient = dagad.grad(loss)(np.arange(5.0))
    np.testing.assert_array_equal(gradient, 2 * np.arange(5.0))
    gradient += 1.0
    np.testing.assert_array_equal(dagad.grad(loss)(np.arange(5.0)), 2 * np.arange(5.0))


def test_parameters_whose_bytes_are_swapped_have_gradients_like_themselves(scheduler: Any) -> None:
    """Files of astronomers and oceanographers are full of them."""
    theta, rows = np.array([0.5, 2.0]), np.linspace(0.1, 2.0, 12)

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(
            lambda rows, t: anp.sum(anp.sin(rows * t[0]) * t[1]), rows, theta, grainsize=6, scheduler=scheduler
        )

    swapped = theta.astype(">f8")
    found = dagad.grad(loss)(swapped)
    assert found.dtype == swapped.dtype
    np.testing.assert_array_equal(found, dagad.grad(loss)(theta))
    np.testing.assert_array_equal(dagad.hessian(loss)(swapped), dagad.hessian(loss)(theta))


# --- many seeds -------------------------------------------------------------------------------------------------------

SHARDS = dagad.shard(np.arange(6.0), grainsize=2, scheduler="sync")
ROWS, WHOLE = slice(2, 4), None
PLACES: dict[str, tuple[Any, Any, list[Any], str]] = {
    "rows": (np.ones((6, 2)), ROWS, [slice(0, 2), slice(4, 6)], "leaf 1 from row 2"),
    "an array": (np.ones((6, 2)), WHOLE, [], "leaf 1 from row 0"),
    "a number": (1.0, WHOLE, [], "leaf 1 from row 0"),
    "a chunk of Shards": (SHARDS, Stays(2), [Stays(0), Stays(1)], "leaf 1 from chunk 2"),
    "Shards": (SHARDS, WHOLE, [], "leaf 1 from chunk 0"),
}


def cotangent_of(leaf: Any, rows: Any) -> Any:
    if isinstance(rows, Stays):
        return SHARDS.kept[SHARDS.keys[rows.number]]
    return leaf if rows is None else leaf[rows]


@pytest.mark.parametrize("where", PLACES)
def test_a_second_write_for_a_seed_of_many_is_refused_by_leaf_row_and_seed(where: str) -> None:
    leaf, rows, _, named = PLACES[where]
    part = cotangent_of(leaf, rows)
    for first, second in (([part] * 2, [part] * 2), (None, [part] * 2), ([part] * 2, None), ([None] * 2, [None] * 2)):
        slots = SparseSlots([1.0, leaf], 5)
        slots.write_all([(1, rows)], first, range(2, 4))
        slots.write_all([(1, rows)], first, range(2))
        with pytest.raises(dagad.StructureError, match=f"{named} for seed 3 was to be written a second time"):
            slots.write_all([(1, rows)], second, range(3, 5))


@pytest.mark.parametrize("where", PLACES)
def test_an_incomplete_gradient_of_many_seeds_is_refused_by_leaf_row_and_seed(where: str) -> None:
    leaf, rows, others, named = PLACES[where]
    slots, part = SparseSlots([1.0, leaf], 3), cotangent_of(leaf, rows)
    slots.write_all([(0, None), *[(1, other) for other in others]], None, range(3))
    slots.write_all([(1, rows)], [part], range(1))
    slots.write_all([(1, rows)], None, range(2, 3))
    with pytest.raises(dagad.StructureError, match=rf"leaves \[1\] are not complete: .* {named} for seed 1"):
        slots.seal()


def test_rows_that_are_missing_for_all_seeds_are_counted_and_named() -> None:
    slots = SparseSlots([np.ones((6, 2)), SHARDS, 1.0], 2)
    for first in (0, 4):
        slots.write_all([(0, slice(first, first + 2))], None, range(2))
        slots.write_all([(1, Stays(first // 2))], None, range(2))
    why = (
        r"leaves \[0, 1, 2\] are not complete: 8 of 24 entries are missing of leaf 0 from row 2 for seed 0; "
        r"2 of 6 chunks are missing of leaf 1 from chunk 1 for seed 0; 2 of 2 entries are missing of leaf 2 from row 0"
    )
    with pytest.raises(dagad.StructureError, match=why):
        slots.seal()


def test_cotangents_of_many_seeds_are_as_many_as_places_and_seeds() -> None:
    slots = SparseSlots([np.ones(2)], 3)
    with pytest.raises(dagad.StructureError, match="2 cotangents came for 1 places and 3 seeds"):
        slots.write_all([(0, None)], [np.ones(2)] * 2, range(3))


def test_more_rows_than_there_are_have_been_written_a_second_time() -> None:
    for slots in (Slots([np.ones(4)]), SparseSlots([np.ones(4)], 1)):
        slots.write_all([(0, slice(1, 4))], None, range(1))
        with pytest.raises(dagad.StructureError, match="leaf 0 from row 0 was to be written a second time"):
            slots.write_all([(0, slice(0, 2))], None, range(1))


def test_rows_that_were_written_instead_of_others_are_refused_though_they_are_as_many() -> None:
    for slots in (Slots([1.0, np.ones((6, 2))]), SparseSlots([1.0, np.ones((6, 2))], 3)):
        seeds = range(1) if isinstance(slots, Slots) else range(3)
        for rows in (slice(0, 2), slice(1, 3), slice(3, 5)):
            slots.write_all([(1, rows)], None, seeds)
        slots.write_all([(0, None)], None, seeds)
        why = r"leaves \[1\] are not complete: other entries were written a second time instead of .* leaf 1 from row 2"
        with pytest.raises(dagad.StructureError, match=why):
            slots.seal()


@pytest.mark.parametrize("is_whole_first", [False, True])
def test_rows_of_one_seed_are_missed_where_another_has_the_whole_leaf(is_whole_first: bool) -> None:
    slots = SparseSlots([np.ones(4)], 2)
    for rows, seeds in ((slice(0, 2), range(1)), (None, range(1, 2)))[:: -1 if is_whole_first else 1]:
        slots.write_all([(0, rows)], None, seeds)
    with pytest.raises(dagad.StructureError, match="2 of 8 entries are missing of leaf 0 from row 2 for seed 0"):
        slots.seal()


def test_leaves_without_entries_and_no_seeds_at_all_lack_nothing() -> None:
    assert [len(found) for found in SparseSlots([np.ones((0, 3)), np.ones((3, 0))], 2).seal()] == [2, 2]
    assert SparseSlots([np.ones(3), SHARDS], 0).seal() == [[], []]
    assert Slots([np.ones((3, 0))]).seal()[0].shape == (3, 0)


@pytest.mark.parametrize("mode", [dagad.grad, dagad.jacrev])
@pytest.mark.parametrize("n_times", [0, 2])
def test_cotangents_of_a_chunk_that_land_twice_or_never_are_refused(
    mode: Any, n_times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_rows = Job.land_rows

    def landed(job: Job, chunks: Any, parts: Any, *args: Any) -> None:
        land_rows(job, chunks[:-1], parts[:-1], *args)
        for _ in range(n_times):
            land_rows(job, chunks[-1:], parts[-1:], *args)

    def squares(rows: Any) -> Any:
        found = dagad.map(lambda row: row**2, rows, grainsize=2, scheduler="sync")
        return anp.sum(found) if mode is dagad.grad else found

    monkeypatch.setattr(Job, "land_rows", landed)
    why = "entries are missing of leaf 0 from row 4" if n_times == 0 else "leaf 0 from row 4.* a second time"
    with pytest.raises(dagad.StructureError, match=why):
        mode(squares)(np.arange(6.0))


@pytest.fixture
def restless_threads() -> Iterator[None]:
    """Have threads take turns every few instructions: what two of them do to one thing at a time shows."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.usefixtures("restless_threads")
def test_no_cotangent_is_lost_where_threads_write_those_of_many_seeds() -> None:
    n_chunks, n_seeds = 8, 20
    for _ in range(50):
        slots = SparseSlots([np.zeros(n_chunks)], n_seeds)
        with ThreadPoolExecutor(n_chunks) as pool:
            for chunk in range(n_chunks):
                parts = [np.full(1, 1.0 + chunk)] * n_seeds
                pool.submit(slots.write_all, [(0, slice(chunk, chunk + 1))], parts, range(n_seeds))
        for found in slots.seal()[0]:
            np.testing.assert_array_equal(found.full(), 1.0 + np.arange(n_chunks))


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("restless_threads")
@pytest.mark.parametrize("mode", [dagad.jacrev, dagad.jacfwd, dagad.hessian])
def test_a_jacobian_has_the_same_bits_when_threads_share_its_chunks(mode: Any) -> None:
    rows, theta = np.random.default_rng(0).standard_normal((16, 2)), np.array([0.3, -0.7])

    def matrix(scheduler: str) -> Any:
        def program(theta: Any, rows: Any) -> Any:
            found = dagad.map(lambda row, t: anp.tanh(row * t), rows, theta, grainsize=1, scheduler=scheduler)
            return anp.sum(anp.sin(found)) if mode is dagad.hessian else found

        return [block.tobytes() for block in np.hstack([np.ravel(part) for part in flat(mode(program, (0, 1)))])]

    def flat(made: Any) -> Any:
        found = made(theta, rows)
        return [block for row in found for block in row] if mode is dagad.hessian else found

    expected = matrix("sync")
    for _ in range(10):
        assert matrix("threads") == expected
