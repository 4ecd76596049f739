"""Inputs: do leaves keep their numbers when groups of tangents and seeds are added?"""

from __future__ import annotations

from dagad._kernels.inputs import Inputs, Targets, owned_leaves, times
from dagad._sources.arrays import ArraySource
from dagad._sources.columns import Sliced
from dagad._sources.lists import ListSource
from dagad._sources.plan import Plan
from dagad._values import pytree
from dagad._values.partition import Partition


def test_leaves_are_numbered_group_by_group() -> None:
    plan = Plan(5, 2)
    treedef = pytree.flatten((0, 0))[1]
    items = [Partition.of(item, pytree.is_differentiable) for item in ([1.0, 2.0], [], [3.0], ["a"], [4.0])]
    sliced = Sliced(treedef, [ArraySource(5, None, 2), ListSource(5, [], items, [3, 0, 5, 0, 6])], 5)
    inputs = Inputs.of(plan, sliced, 2)
    assert (inputs.shared, inputs.sliced) == ((2,), (5,))
    assert inputs.targets(0) == [(2, slice(0, 2)), (3, None), (4, None)]
    assert inputs.targets(1) == [(2, slice(2, 4)), (5, None)]
    assert inputs.flat()[2] == [(0, slice(4, 5)), (4, None)]
    twice = inputs.times(2)
    assert (twice.shared, twice.sliced) == ((2, 2), (5, 5))
    assert twice.targets(1) == [(4, slice(2, 4)), (7, None), (9, slice(2, 4)), (12, None)]
    seeded = twice.and_seeds(1, 1, [[(0, slice(0, 2))], [], [(0, slice(4, 5))]])
    assert (seeded.shared, seeded.sliced) == ((2, 2, 1), (5, 5, 1))
    assert seeded.targets(2)[-1] == (15, slice(4, 5))
    assert inputs.and_seeds(3, 0, None).sliced == (5,)
    assert inputs.groups("abcde", (2, 0, 3)) == [["a", "b"], [], ["c", "d", "e"]]


def test_indices_of_copies_come_one_copy_after_the_other() -> None:
    assert owned_leaves(2, [4, 4, 4])[1] == [(2, None), (3, None), (8, None), (9, None)]
    assert owned_leaves(2, [2, 6, 4])[1] == [(1, None), (2, None), (3, None), (7, None), (8, None), (9, None)]
    for counts in ([4, 4, 4], [2, 6, 4], [0, 2, 0]):
        assert sorted(leaf for own in owned_leaves(2, counts) for leaf, _ in own) == list(range(sum(counts)))
    rows: list[Targets] = [[(0, slice(0, 2)), (1, None)], [(0, slice(2, 3)), (2, None)]]
    assert times(rows, 2)[1] == [(0, slice(2, 3)), (2, None), (3, slice(2, 3)), (5, None)]
