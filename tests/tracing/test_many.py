"""Many cotangents at once: is each what it would be alone, and is the work linear in the number of leaves?"""

from __future__ import annotations

import itertools
from typing import Any

import autograd.numpy as np
import numpy as onp
import pytest

import dagad
from dagad._tracing.tape import pull, pull_many, record


class Searched(list[Any]):
    """Roots that count how often somebody looks through all of them."""

    searches = 0

    def __contains__(self, node: object) -> bool:
        self.searches += 1
        return super().__contains__(node)

    def index(self, node: Any, *where: Any) -> int:
        self.searches += 1
        return super().index(node, *where)


def products(leaves: Any) -> Any:
    return [np.sin(a) * b for a, b in itertools.pairwise(leaves)]


def test_many_cotangents_give_what_each_gives_alone_without_a_search_for_its_root() -> None:
    leaves = list(onp.linspace(0.1, 1.0, 12))
    _, ends, roots = record(products, leaves)
    seeds = [[float(row == place) if row % 3 else None for place in range(len(ends))] for row in range(5)]
    searched = Searched(roots)
    found = pull_many(ends, seeds, searched, leaves)
    alone = [pull(ends, some, roots, leaves) for some in seeds]
    for leaf, parts in enumerate(found):
        for row, part in enumerate(parts):
            assert (part or 0.0) == pytest.approx(alone[row][leaf] or 0.0)
    assert searched.searches == 0


def test_a_jacobian_in_a_leaf_that_nothing_depends_on_is_zero() -> None:
    jacobian = dagad.jacrev(lambda p: np.array([2.0, 3.0]) * p["used"])({"used": 5.0, "unused": onp.ones(2)})
    assert jacobian["used"].tolist() == [2.0, 3.0]
    assert jacobian["unused"].tolist() == [[0.0, 0.0], [0.0, 0.0]]
