"""Rows: what is taken out of them comes back, row by row too, and travels as little as it may."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import dagad
from dagad._sources.packed import Unpacked
from dagad._sources.rows import ELSEWHERE, GAP, PACKED, Constant, Made, Rows
from dagad._values import pytree
from dagad._values.shipping import opened

TREES: dict[str, Any] = {
    "array": np.arange(6.0).reshape(3, 2),
    "integers": np.arange(3),
    "ragged": [np.ones(2), np.zeros(0), np.full(1, 7.0)],
    "items": [{"a": 1.0, "n": 2, "word": "x"}, {"a": 3.0, "n": 4, "word": "y"}, {"a": 5.0, "n": 6, "word": "z"}],
    "mixed": {"x": np.arange(3.0), "k": np.arange(3), "pair": (np.ones((3, 2)), [np.ones(1), 2.0, "word"])},
    "words": ["a", "b", "c"],
}


def same(one: Any, other: Any) -> bool:
    a, b = (pytree.flatten(tree) for tree in (one, other))
    return a[1] == b[1] and all(type(x) is type(y) and np.array_equal(x, y) for x, y in zip(a[0], b[0], strict=True))


def moved(rows: Rows) -> Rows:
    found: Rows = opened(pickle.loads(pickle.dumps(rows)))
    return found


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("columns", [None, [0], [0, 2]])
def test_leaves_taken_out_of_rows_come_back(tree: Any, columns: Any) -> None:
    other = np.arange(3)
    whole = tree if columns is None else (tree, other, tree)
    unpacked = [Unpacked(Rows.of(tree)) for _ in (columns or [0])]
    pieces: list[Any] = [PACKED] if columns is None else [PACKED, Constant(other), Constant(tree)]
    for column in columns or [0]:
        pieces[column] = PACKED
    rows = Rows(pytree.flatten(0 if columns is None else (0, 0, 0))[1], pieces).with_unpacked(iter(unpacked))
    leaves = [leaf for one in unpacked for leaf in one.leaves]
    assert all(map(pytree.is_differentiable, leaves))
    for one in (rows, moved(rows)):
        rest = iter(leaves)
        assert same(one.merge(rest), whole)
        assert next(rest, None) is None
        assert one.extract(None) == [None] * len(leaves)
        items = list(one.items(leaves))
        assert len(items) == 3
        for (item, gaps), expected in zip(items, pytree.items_of(whole), strict=True):
            own = iter([leaves[leaf] if row is None else leaves[leaf][row] for leaf, row in gaps])
            assert same(item.merge(own), expected)
        if leaves:
            # A cotangent of the whole comes apart in the order of the leaves.
            doubled = [2 * leaf for leaf in leaves]
            assert all(x is y for x, y in zip(one.extract(one.merge(iter(doubled))), doubled, strict=True))


def test_rows_that_are_made_are_made_once_only_when_asked() -> None:
    made = list[int]()

    def make(n: int) -> Any:
        made.append(n)
        return np.arange(n)

    rows = Rows(pytree.flatten((0, 0))[1], [Made(make, 3), Constant(np.ones(3))])
    assert not rows.stays
    assert [rows.merge(iter(()))[0].tolist() for _ in range(2)] == [[0, 1, 2]] * 2
    assert made == [3, 3]
    here = rows.made()
    assert here.stays
    here.merge(iter(()))
    assert here.merge(iter(())) is here.merge(iter(()))  # what is used again is kept
    assert made == [3, 3, 3]


def test_rows_elsewhere_have_to_be_joined() -> None:
    rows = moved(Rows(pytree.flatten((0, 0))[1], [ELSEWHERE, GAP]))
    with pytest.raises(NotImplementedError, match="have to be joined first"):
        rows.merge(iter(()))
    whole = rows.joined(iter([Rows.of("there")]))
    assert whole.merge(iter([1.0])) == ("there", 1.0)


def test_views_of_the_users_rows_are_copied_when_first_used() -> None:
    mine = np.ones(3)
    for data in (mine, [mine], {"x": mine}):
        leaves, treedef = pytree.flatten(data, is_leaf=pytree.is_list)
        rows = Rows(treedef, [Constant(leaf) for leaf in leaves], views=True)
        taken = pytree.flatten(rows.merge(iter(())))[0][0]
        assert not np.shares_memory(taken, mine)


def test_rows_of_a_table_cannot_be_differentiated_in() -> None:
    pd: Any = pytest.importorskip("pandas")
    shards = dagad.shard(pd.DataFrame({"a": [1.0]}), scheduler="sync")
    with pytest.raises(dagad.NotDifferentiableError, match="rows of a table"):
        Unpacked(next(iter(shards.kept.values())))
