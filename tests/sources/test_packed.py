"""Packed rows: is what belongs to them, in any number of directions, packed and unpacked like them?"""

from __future__ import annotations

from typing import Any

import numpy as np

from dagad._kernels.kernel import Kernel
from dagad._kernels.unpacking import zeros_of
from dagad._sources.packed import has_packed, packed, unpacked, unpacked_seeds
from dagad._sources.rows import Rows
from dagad._values import pytree

ROWS = {"x": np.arange(6.0).reshape(3, 2), "n": np.arange(3), "items": [np.ones(2), np.ones(3), np.ones(1)]}


def like_rows(number: float) -> Any:
    """Return a tangent of the rows; of whole numbers there is none."""
    return {"x": np.full((3, 2), number), "n": None, "items": [np.full(n, number) for n in (2, 3, 1)]}


def leaves_of(rows: Any) -> list[Any]:
    return [leaf.tolist() for leaf in pytree.flatten(rows.merge(iter(())))[0] if leaf is not None]


def test_tangents_of_several_directions_are_unpacked_like_the_rows() -> None:
    other = np.zeros(3)
    groups = [[Rows.of(ROWS), other], [Rows.of(like_rows(1.0)), other], [Rows.of(like_rows(2.0)), other]]
    first: Any = unpacked(groups[0])
    tangents: Any = [unpacked(group, first) for group in groups[1:]]
    assert [one is None for one in first] == [False, True]
    assert [leaf.shape for leaf in first[0].leaves] == [(2,), (3,), (1,), (3, 2)]
    for number, (one, nothing) in enumerate(tangents, 1):
        assert nothing is None
        assert [leaf.shape for leaf in one.leaves] == [leaf.shape for leaf in first[0].leaves]
        assert all((leaf == number).all() for leaf in one.leaves)


def test_parts_are_packed_like_what_they_belong_to() -> None:
    like: Any = unpacked([np.zeros(3), Rows.of(ROWS)])
    parts = [7.0, *(np.full(leaf.shape, 3.0) for leaf in like[1].leaves)]
    number, rows = packed(like, parts)
    assert number == 7.0
    assert leaves_of(rows) == leaves_of(Rows.of(like_rows(3.0)))
    of_nothing = packed(like, [None] * len(parts))
    assert of_nothing[0] is None
    assert leaves_of(of_nothing[1]) == leaves_of(Rows.of(like_rows(0.0)))


def test_a_seed_of_rows_is_one_for_each_leaf_and_zeros_where_the_rows_have_none() -> None:
    like: Any = unpacked([np.zeros(3), Rows.of(ROWS)])
    seeds = unpacked_seeds(like, [5.0, Rows.of(like_rows(2.0))])
    assert seeds[0] == 5.0
    assert [seed.tolist() for seed in seeds[1:]] == [np.full(leaf.shape, 2.0).tolist() for leaf in like[1].leaves]
    assert unpacked_seeds(like, [None, None]) == [None] * 5
    some = Rows.of({"x": None, "n": None, "items": [np.ones(2), np.ones(3), np.ones(1)]})
    assert [float(np.sum(seed)) for seed in unpacked_seeds(like, [None, some])[1:]] == [2.0, 3.0, 1.0, 0.0]


def test_a_chunk_that_is_not_pulled_has_packed_zeros_of_packed_rows() -> None:
    array, rows = zeros_of(Kernel(), [[np.zeros(3), Rows.of(ROWS)]])
    assert array is None
    assert leaves_of(rows) == leaves_of(Rows.of(like_rows(0.0)))
    assert zeros_of(Kernel(), [[np.zeros(3), 1.0]]) == [None, None]
    assert not has_packed([[np.zeros(3)]])
