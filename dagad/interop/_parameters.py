"""What scipy's optimizers move: a pytree of real numbers as one vector, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dagad._errors import NotDifferentiableError, StructureError
from dagad._types import Array, Leaf, Tree, Value
from dagad._values import pytree
from dagad._words import described

_WORD = re.compile(r"^(?:\['(\w+)'\]|\.)")  # a key of a dict, or an attribute: read without what surrounds it


class Parameters:
    """A pytree of real numbers as one vector, and back."""

    def __init__(self, x0: Tree) -> None:
        leaves, self.treedef = pytree.flatten(x0)
        self.names = [f"`x0{path}`" for path in pytree.paths(x0)]
        if not any(map(np.size, leaves)):
            raise StructureError("`x0` holds no numbers. Give a number, an array, or a pytree of these.")
        for leaf, path in zip(leaves, self.names, strict=True):
            _check_parameter(leaf, path)
        self.shapes = [np.shape(leaf) for leaf in leaves]
        self.sizes = [np.size(leaf) for leaf in leaves]
        self.x0 = self.flat(x0)

    def flat(self, tree: Tree) -> Any:
        """Return a pytree of this structure as one vector."""
        return np.concatenate([np.ravel(leaf) for leaf in pytree.flatten(tree)[0]], dtype=float)

    def leaves(self, x: Array) -> list[Any]:
        """Return the leaves that a vector has in it, copies of its parts."""
        x = np.array(x, dtype=float)
        if x.shape != self.x0.shape:
            raise StructureError(f"A vector has the shape {x.shape}, where `x0` holds {self.x0.size} numbers.")
        parts = np.split(x, np.cumsum(self.sizes[:-1]))
        return [part.reshape(shape) if shape else part[0] for part, shape in zip(parts, self.shapes, strict=True)]

    def joined(self, leaves: Sequence[Any]) -> Any:
        """Return leaves as a pytree like `x0`."""
        return pytree.unflatten(self.treedef, leaves)

    def columns(self, jacobian: Tree, n_rows: int) -> Any:
        """Return a Jacobian, in a pytree of this structure, as a matrix with a column for each number."""
        return columns_of(jacobian, n_rows, self.sizes)

    def is_vector(self) -> bool:
        """Return whether the parameters are such a vector already."""
        return bool(self.treedef.is_leaf()) and len(self.shapes[0]) == 1

    @property
    def labels(self) -> list[str]:
        """What each number of the vector is, as `slopes[0]`."""
        found: list[str] = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            label = _WORD.sub(r"\1", name.strip("`").removeprefix("x0")) or "x"
            label = f"x{label}" if label.startswith("[") else label
            found += [f"{label}[{', '.join(map(str, index))}]" if index else label for index in np.ndindex(shape)]
        return found

    def order(self) -> str:
        """Return in which order the vector has the parameters, for sentences."""
        return ", ".join(
            f"{name} of shape {shape}" if shape else name for name, shape in zip(self.names, self.shapes, strict=True)
        )

    def tree(self, x: Array) -> Any:
        """Return a vector as a pytree like `x0`."""
        return self.joined(self.leaves(x))


def columns_of(jacobian: Tree, n_rows: int, sizes: Iterable[int]) -> Any:
    """Return a Jacobian as a matrix, from a pytree whose leaves are of so many numbers."""
    parts = [np.reshape(part, (n_rows, size)) for part, size in zip(pytree.flatten(jacobian)[0], sizes, strict=True)]
    return np.concatenate(parts, axis=1, dtype=float)


def is_same_point(one: Array, other: Array) -> bool:
    """Return whether two vectors are the same for every function of them: by the signs of zeros, too."""
    return bool(np.array_equal(one, other) and np.array_equal(np.signbit(one), np.signbit(other)))


def number(value: Value) -> float:
    """Return one number, which may come as an array, as Python's own."""
    return float(np.asarray(value).item())


def _check_parameter(leaf: Leaf, path: str) -> None:
    kind = np.asarray(leaf).dtype.kind
    if kind == "f":
        return
    if kind in "biu":
        remedy = "Integers can't move by small steps: write `0.0` for `0`, or `.astype(float)`"
    elif kind == "c":
        remedy = "Give real and imaginary part as two parameters, and put them together in the function"
    else:
        remedy = "Give numbers"
    raise NotDifferentiableError(
        f"{path} is {described(leaf)}, which is no real floating-point number. {remedy}; what stays as it is goes into "
        "`args=`."
    )
