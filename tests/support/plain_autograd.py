"""What plain autograd makes of a function that nobody cuts, for pytrees: what a cut one has to be equal to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import optree


def flatten(tree: Any, none_is_leaf: bool = False) -> tuple[list[Any], Any]:
    return optree.tree_flatten(tree, none_is_leaf=none_is_leaf, namespace="dagad")


class Uncut:
    """A function at its arguments, as a function of their floating-point leaves."""

    def __init__(self, fun: Callable[..., Any], *args: Any) -> None:
        self.fun = fun
        self.leaves, self.treedef = flatten(args)
        self.places = [place for place, leaf in enumerate(self.leaves) if np.asarray(leaf).dtype.kind == "f"]
        self.at = [self.leaves[place] for place in self.places]

    def __call__(self, taken: Any) -> Any:
        full = dict(enumerate(self.leaves)) | {place: taken[i] for i, place in enumerate(self.places)}
        return self.fun(*optree.tree_unflatten(self.treedef, full.values()))

    def arranged(self, parts: Any) -> Any:
        """Return parts in the structure of the arguments, None for what is not floating point."""
        full = dict.fromkeys(range(len(self.leaves))) | dict(zip(self.places, parts, strict=True))
        return optree.tree_unflatten(self.treedef, full.values())

    def value_and_grad(self) -> tuple[Any, Any]:
        value, parts = autograd.value_and_grad(self)(self.at)
        return value, self.arranged(parts)

    def hvp(self, direction: Any) -> Any:
        """Return the product of the Hessian with a direction, both in the structure of the arguments."""
        tangents = [flatten(direction, none_is_leaf=True)[0][place] for place in self.places]
        slope = autograd.grad(self)

        def along(taken: Any) -> Any:
            parts = slope(taken)
            return sum([anp.sum(parts[i] * tangents[i]) for i in range(len(tangents))])

        return self.arranged(autograd.grad(along)(self.at))

    def direction(self, seed: int = 3) -> Any:
        """Return a direction to move the arguments in."""
        rng = np.random.default_rng(seed)
        return self.arranged(
            [np.asarray(rng.standard_normal(np.shape(leaf)), np.asarray(leaf).dtype) for leaf in self.at]
        )


def items_of(sliced: Any) -> list[Any]:
    """Return the items that a map makes of its sliced argument."""
    if isinstance(sliced, list):
        return sliced
    columns, treedef = optree.tree_flatten(sliced, is_leaf=lambda obj: isinstance(obj, list), namespace="dagad")
    return [optree.tree_unflatten(treedef, [column[number] for column in columns]) for number in range(len(columns[0]))]


def loop(f: Callable[..., Any], sliced: Any, *shared: Any) -> Any:
    """Return what `dagad.map` returns."""
    outputs = [f(item, *shared) for item in items_of(sliced)]
    columns = zip(*(flatten(output)[0] for output in outputs), strict=True)
    stacked = [anp.stack(list(column)) for column in columns]
    return optree.tree_unflatten(flatten(outputs[0])[1], stacked)


def rect_loop(f: Callable[..., Any], sliced: Any, *shared: Any) -> Any:
    """Return what `dagad.map_rect` returns."""
    return anp.concatenate([f(item, *shared) for item in items_of(sliced)])


def number(outputs: Any) -> Any:
    """Return one number that depends on every floating-point leaf, on each entry in another way."""
    total = 0.0
    for power, leaf in enumerate(flatten(outputs)[0], start=2):
        weights = np.linspace(0.5, 1.5, int(np.prod(np.shape(leaf)))).reshape(np.shape(leaf))
        total = total + anp.sum(weights * anp.sin(leaf) ** power)
    return total


def assert_close(actual: Any, expected: Any, rtol: float = 1e-12) -> None:
    leaves, treedef = flatten(actual, none_is_leaf=True)
    others, other_treedef = flatten(expected, none_is_leaf=True)
    assert treedef == other_treedef
    for leaf, other in zip(leaves, others, strict=True):
        assert (leaf is None) == (other is None)
        if leaf is not None:
            assert np.shape(leaf) == np.shape(other)
            gap = np.max(np.abs(np.asarray(leaf) - other), initial=0.0)
            assert gap <= rtol * max(np.max(np.abs(other), initial=0.0), 1e-300), (leaf, other)


def bits(tree: Any) -> list[Any]:
    """Return what has to be equal for two results to be bitwise equal."""
    leaves, treedef = flatten(tree, none_is_leaf=True)
    found = [None if leaf is None else (np.asarray(leaf).dtype.str, np.asarray(leaf).tobytes()) for leaf in leaves]
    return [treedef, *found]
