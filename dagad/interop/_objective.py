"""What neighbours are given: an objective of flat leaves, with its value and its derivatives in numpy's float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dagad._api.higher_order import hvp, jvp
from dagad._api.transforms import check_number, value_and_grad
from dagad._types import Leaf
from dagad._words import name_of
from dagad.interop._parameters import number

Leaves = Sequence[Any]
Indices = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Objective:
    """A function that returns one real number, of the leaves of its arguments; equal to another of the same function.

    `treedef` is the neighbour's own description of the arguments, so that their structures need not be known here.
    """

    fun: Callable[..., Any]
    treedef: Any

    def __call__(self, *leaves: Any) -> Any:
        return self.fun(*self.treedef.unflatten(leaves))

    def value(self, leaves: Leaves) -> float:
        """Return the value; no pullback runs."""
        return number(check_number(self(*widened(leaves)), name_of(self)))

    def value_and_gradient(self, leaves: Leaves, wanted: Indices) -> tuple[float, list[Any]]:
        """Return the value, and the gradient with respect to some of the leaves."""
        value, gradient = value_and_grad(self, wanted)(*widened(leaves))
        return number(value), list(gradient)

    def hessian_product(self, leaves: Leaves, wanted: Indices, tangents: Leaves) -> list[Any]:
        """Return the Hessian with respect to some of the leaves, times a vector."""
        leaves, tangents = widened(leaves), widened(tangents)
        some = Restricted(self, tuple(leaves), wanted)
        return list(hvp(some, tuple(leaves[index] for index in wanted), tuple(tangents)))


@dataclasses.dataclass(frozen=True)
class Restricted:
    """An objective as a function of some of its leaves."""

    fun: Objective
    leaves: tuple[Any, ...]
    wanted: Indices

    def __call__(self, *some: Any) -> Any:
        leaves = list(self.leaves)
        for index, leaf in zip(self.wanted, some, strict=True):
            leaves[index] = leaf
        return self.fun(*leaves)


@dataclasses.dataclass(frozen=True)
class Directional:
    """The derivative of an objective in a direction, as a function of all its leaves and of the direction."""

    fun: Objective
    wanted: Indices

    def __call__(self, *leaves_and_direction: Any) -> Any:
        n = len(leaves_and_direction) - len(self.wanted)
        leaves, direction = leaves_and_direction[:n], leaves_and_direction[n:]
        some = Restricted(self.fun, leaves, self.wanted)
        return jvp(some, tuple(leaves[index] for index in self.wanted), direction)[1]


def widened(leaves: Leaves) -> list[Any]:
    """Return copies as numpy's numbers and arrays, floating-point ones in float64: sums over many rows need it."""
    return [array[()] if not array.ndim else array for array in map(_widened, leaves)]


def _widened(leaf: Leaf) -> Any:
    array = np.array(leaf)
    return array if array.dtype.kind in "biu" else array.astype(float)
