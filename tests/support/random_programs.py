"""Random programs over random pytrees, and the same programs uncut; for tests/api/test_properties.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import autograd.numpy as np
import numpy as onp
import optree
from hypothesis import strategies as st

import dagad
from dagad.extend import CompensatedSum, Keep, Preaccumulate, Recompute

# --- trees ------------------------------------------------------------------------------------------------------------

SHAPES: list[tuple[int, ...]] = [(), (2,), (0,), (2, 1), (1, 3), (2, 0)]


def flatten(tree: Any, none_is_leaf: bool = False) -> tuple[list[Any], Any]:
    return optree.tree_flatten(tree, none_is_leaf=none_is_leaf, namespace="dagad")


def is_float(leaf: Any) -> bool:
    return isinstance(leaf, float | complex | onp.ndarray | onp.generic) and onp.asarray(leaf).dtype.kind in "fc"


def plain(leaf: Any) -> Any:
    """Return the plain value of a leaf that somebody may be tracing."""
    while hasattr(leaf, "_value"):
        leaf = leaf._value
    return leaf


def numbers(rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Return numbers, each its own."""
    if dtype == "i8":
        return rng.integers(1, 5, shape)
    drawn = rng.uniform(0.2, 1.0, shape)
    return (drawn + 1j * rng.uniform(-0.5, 0.5, shape) if dtype == "c16" else drawn).astype(dtype)


def scalar(rng: Any, kind: str) -> Any:
    value = numbers(rng, (1,), {"complex": "c16", "f4": "f4"}.get(kind, "f8"))[0]
    return {"float": float, "complex": complex}.get(kind, lambda number: number)(value)


def dtypes() -> st.SearchStrategy[str]:
    return st.sampled_from(["f8", "f8", "f8", "f4", "c16", "i8"])


@st.composite
def leaves(draw: Any, rng: Any) -> Any:
    kind = draw(st.sampled_from(["array", "float", "float", "f8", "f4", "complex", "constant"]))
    if kind == "constant":
        return draw(st.sampled_from([None, "name", 3, True, onp.arange(2), onp.array(["a"])]))
    return numbers(rng, draw(st.sampled_from(SHAPES)), draw(dtypes())) if kind == "array" else scalar(rng, kind)


def trees(leaf: st.SearchStrategy[Any], lists: bool = True, depth: int = 2) -> st.SearchStrategy[Any]:
    if not depth:
        return leaf
    below = trees(leaf, lists, depth - 1)
    kinds = [leaf, st.tuples(below, below), st.dictionaries(st.sampled_from("abc"), below, min_size=1, max_size=2)]
    return st.one_of(*kinds, st.lists(below, max_size=2)) if lists else st.one_of(*kinds)


@st.composite
def columns(draw: Any, rng: Any, n_rows: int) -> Any:
    """Draw one leaf of a sliced argument."""
    kind = draw(st.sampled_from(["array", "array", "array", "floats", "ragged", "items"]))
    if kind == "array":
        return numbers(rng, (n_rows, *draw(st.sampled_from(SHAPES))), draw(dtypes()))
    if kind == "floats":
        return [scalar(rng, draw(st.sampled_from(["float", "f4", "f8"]))) for _ in range(n_rows)]
    if kind == "ragged":
        return [numbers(rng, (draw(st.integers(0, 3)),), "f8") for _ in range(n_rows)]
    return [draw(trees(leaves(rng), depth=1)) for _ in range(n_rows)]


# --- functions of one item --------------------------------------------------------------------------------------------


def feature(tree: Any, phase: float) -> Any:
    """Return a real number that each entry of each leaf shows in, in a way of its own."""
    total: Any = 0.0
    for place, leaf in enumerate(flatten(tree)[0]):
        array = onp.asarray(plain(leaf))
        weights = onp.cos(phase + place + onp.arange(array.size)).reshape(array.shape)
        if array.dtype.kind == "c":
            total = total + np.sum(weights * (np.real(leaf * leaf) + 0.5 * np.imag(leaf)))
        elif array.dtype.kind not in "US":
            total = total + np.sum(weights * np.sin(leaf))
    return total


def entry(item: Any, *shared: Any) -> Any:
    """Return a number of one item and the shared arguments, with all mixed derivatives."""
    own, others = feature(item, 0.3), feature(shared, 1.1)
    return np.sin(own) * np.cos(others) + 0.3 * own * others


def vector(item: Any, *shared: Any) -> Any:
    return entry(item, *shared) * onp.array([1.0, -0.5]) + onp.array([0.2, 0.1])


def spread(item: Any, *shared: Any) -> Any:
    value = entry(item, *shared)
    return {"a": value, "b": (np.exp(0.1 * value) * onp.ones((2, 1)), 3), "c": [value * (1.0 + 0.5j)]}


def ragged(item: Any, *shared: Any) -> Any:
    length = sum(onp.size(plain(leaf)) for leaf in flatten(item)[0]) % 3
    return entry(item, *shared) * onp.arange(1.0, 1.0 + length)


# --- programs ---------------------------------------------------------------------------------------------------------


def items_of(rows: Any) -> list[Any]:
    found, treedef = optree.tree_flatten(rows, is_leaf=lambda node: isinstance(node, list), namespace="dagad")
    return [optree.tree_unflatten(treedef, [leaf[row] for leaf in found]) for row in range(len(found[0]))]


def added(a: Any, b: Any) -> Any:
    return optree.tree_map(lambda x, y: x + y, a, b, namespace="dagad")


def stacked(*parts: Any) -> Any:
    """Return `np.stack` of these, which autograd can't differentiate twice where they are numbers."""
    return np.concatenate([np.reshape(part, (1, *onp.shape(part))) for part in parts])


def total(h: Any, rows: Any, *shared: Any) -> Any:
    first, *rest = [h(item, *shared) for item in items_of(rows)]
    for value in rest:
        first = added(first, value)
    return first


@dataclass
class Program:
    """One operation on one set of arguments."""

    kind: str
    h: Callable[..., Any]
    sliced: Any
    shared: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def args(self) -> tuple[Any, ...]:
        return (self.sliced, *self.shared)

    def chunked(self, sliced: Any, *shared: Any) -> Any:
        """Return what dagad makes of it."""
        if self.kind == "reduce_sum":
            return dagad.reduce_sum(partial(total, self.h), sliced, *shared, **self.options)
        if self.kind == "map_reduce":
            return dagad.map_reduce(partial(total, self.h), added, sliced, *shared, **self.options)
        return getattr(dagad, self.kind)(self.h, sliced, *shared, **self.options)

    def whole(self, sliced: Any, *shared: Any) -> Any:
        """Return the same, uncut."""
        outputs = [self.h(item, *shared) for item in items_of(sliced)]
        if self.kind == "map":
            return optree.tree_map(stacked, *outputs, namespace="dagad")
        return np.concatenate(outputs) if self.kind == "map_rect" else total(self.h, sliced, *shared)


@st.composite
def programs(draw: Any) -> tuple[Program, Any]:
    """Draw a program, and a source of numbers for its cotangents and tangents."""
    rng = onp.random.default_rng(draw(st.integers(0, 10_000)))
    n_rows = draw(st.integers(1, 6))
    sliced = draw(trees(columns(rng, n_rows), lists=False))
    shared = tuple(draw(trees(leaves(rng))) for _ in range(draw(st.integers(0, 2))))
    kind = draw(st.sampled_from(["reduce_sum", "map_sum", "map", "map_rect", "map_reduce"]))
    options: dict[str, Any] = {
        "grainsize": draw(st.integers(1, n_rows + 3)),
        "scheduler": draw(st.sampled_from(["sync", "sync", "threads"])),
        "policy": draw(st.sampled_from([None, None, Keep(), Recompute(), Preaccumulate()])),
    }
    if kind.endswith("sum"):
        options["sum"] = draw(st.sampled_from([None, None, CompensatedSum()]))
    h = ragged if kind == "map_rect" else draw(st.sampled_from([entry, vector, spread]))
    return Program(kind, h, sliced, shared, options), rng
