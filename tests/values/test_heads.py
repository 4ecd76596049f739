"""Heads of messages: they say what stands in a buffer, and nothing that comes with them is run."""

from __future__ import annotations

import collections
import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import dagad
from dagad._graphs.monoids import CompensatedSum
from dagad._values import pytree
from dagad._values.buffers import pack_tree, unpack_tree


class Pair(NamedTuple):
    one: Any
    other: Any


TREES: dict[str, Any] = {
    "number": np.float64(0.1),
    "python": (1, 2.5, True, 1j),
    "ragged": [np.ones(3), np.zeros((0, 2)), np.arange(4)],
    "nested": {"a": (np.float32(1.5), None), "b": [Pair(np.ones((2, 3), order="F"), {"c": 1.0})]},
    "ordered": collections.OrderedDict(x=1.0, a=np.ones(2)),
    "sum": CompensatedSum().lift({"a": np.ones(2), "n": 1.0}),
    "nothing": (),
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_tree_that_is_packed_into_a_message_comes_out_again(tree: Any) -> None:
    found = unpack_tree(*pack_tree(tree))
    (a, one), (b, other) = pytree.flatten(tree), pytree.flatten(found)
    assert one == other
    assert [(type(x), np.asarray(x).tobytes()) for x in a] == [(type(x), np.asarray(x).tobytes()) for x in b]


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_message_that_would_run_code_is_refused(tmp_path: Path) -> None:
    for evil in (Evil(tmp_path / "made"), os.getcwd, Path):
        with pytest.raises(dagad.DagadError, match="no tree of numbers"):
            unpack_tree(pickle.dumps((evil, [])), b"")
    assert not list(tmp_path.iterdir())
