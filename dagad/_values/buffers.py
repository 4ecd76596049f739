"""Pytrees of numbers <-> a head and one buffer: how arguments and results of a hot loop travel.

The head says what stands in the buffer. It is the same from call to call, so it is made and opened once. What arrives
is numbers, in structures that whoever opens it knows already: nothing that comes is run.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from dagad._errors import StructureError
from dagad._types import Leaf, Tree
from dagad._values import pytree
from dagad._values.canonical import canonical

ALIGNMENT = 16  # of every leaf in a buffer
_LEAST = -(2**63)  # of numpy's ints


class Spec(NamedTuple):
    """What a leaf looks like: `kind` is "array", "numpy" for numbers of numpy's, "python" for Python's.

    Ints of Python's that no number of numpy's holds are "long", and travel as their bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    kind: str

    @classmethod
    def of(cls, leaf: Leaf) -> Spec:
        dtype, shape, order, kind = _look(leaf)
        return cls(dtype.str, shape, order, kind)


def _look(leaf: Leaf) -> tuple[np.dtype[Any], tuple[int, ...], Literal["C", "F"], str]:
    """Return the same, with the dtype itself: quickly told from others."""
    if isinstance(leaf, np.ndarray):
        flags = leaf.flags
        order: Literal["C", "F"] = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
        return leaf.dtype, leaf.shape, order, "array"
    if isinstance(leaf, np.generic):
        return leaf.dtype, (), "C", "numpy"
    if type(leaf) is int and not _LEAST <= leaf <= -_LEAST - 1:
        return np.dtype(np.uint8), (leaf.bit_length() // 8 + 1,), "C", "long"
    return np.dtype(type(leaf)), (), "C", "python"


class BufferLayout:
    """Where leaves of some specs stand in one buffer."""

    __slots__ = ("_parts", "nbytes", "specs")

    def __init__(self, specs: Sequence[Spec]) -> None:
        self.specs = tuple(specs)
        # Where each stands, as what, and in which shape and order unless it is what stands there: rows of numbers.
        self._parts: list[tuple[slice, np.dtype[Any], tuple[int, ...] | None, Literal["C", "F"], str]] = []
        at = 0
        for spec in self.specs:
            dtype = np.dtype(spec.dtype)  # this process's own
            size = dtype.itemsize * int(np.prod(spec.shape, dtype=int))
            shape = None if len(spec.shape) == 1 else spec.shape
            self._parts.append((slice(at, at + size), dtype, shape, spec.order, spec.kind))
            at += -(-size // ALIGNMENT) * ALIGNMENT
        self.nbytes = at

    def __reduce__(self) -> tuple[Any, ...]:
        return BufferLayout, (self.specs,)

    def write(self, leaves: Sequence[Any], buffer: np.ndarray[Any, Any]) -> list[int]:
        """Copy leaves into a buffer of bytes; return which of them are None."""
        gaps: list[int] = []
        for number, (leaf, (span, dtype, shape, order, kind)) in enumerate(zip(leaves, self._parts, strict=True)):
            if leaf is None:
                gaps.append(number)
                continue
            if kind == "long" and type(leaf) is int:
                leaf = np.frombuffer(leaf.to_bytes(span.stop - span.start, "little", signed=True), np.uint8)
            array = leaf if type(leaf) is np.ndarray else np.asarray(leaf)
            view = buffer[span].view(dtype)
            if shape is not None:
                view = view.reshape(shape, order=order)
            if array.shape != view.shape or array.dtype != dtype:
                raise StructureError(
                    f"A leaf of shape {array.shape} and dtype {array.dtype} was to travel as one of shape {view.shape} "
                    f"and dtype {dtype}."
                )
            view[...] = array
        return gaps

    def read(self, buffer: np.ndarray[Any, Any], gaps: Sequence[int] = ()) -> list[Any]:
        """Return the leaves in a buffer of bytes, as views where that can be."""
        leaves: list[Any] = []
        for span, dtype, shape, order, kind in self._parts:
            leaf: Any = buffer[span].view(dtype)
            if shape is not None:
                leaf = leaf.reshape(shape, order=order)
            if kind == "long":
                leaf = int.from_bytes(leaf.tobytes(), "little", signed=True)
            elif kind != "array":
                leaf = leaf[()].item() if kind == "python" else leaf[()]
            elif not leaf.flags.aligned:
                leaf = canonical(leaf)
            leaves.append(leaf)
        for number in gaps:
            if type(number) is not int or not 0 <= number < len(leaves):
                raise StructureError(f"A message has a gap at {number!r}, where none of {len(leaves)} leaves is.")
            leaves[number] = None
        return leaves


_BYTES = (bytes, bytearray, memoryview)


def as_bytes(data: object, nbytes: int) -> np.ndarray[Any, Any]:
    """Return what came in a message as an array of so many bytes."""
    if isinstance(data, _BYTES):
        data = np.frombuffer(data, np.uint8)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (nbytes,):
        raise StructureError(f"A message of {nbytes} bytes was expected, and another came.")
    return data


def pack_tree(tree: Tree) -> tuple[bytes, np.ndarray[Any, Any]]:
    """Return a pytree of numbers as a head and a buffer of bytes."""
    leaves, treedef = pytree.flatten(tree)
    head, layout = _headed(treedef, tuple(map(_look, leaves)))
    buffer = np.empty(layout.nbytes, np.uint8)
    layout.write(leaves, buffer)
    return head, buffer


def unpack_tree(head: bytes, data: object) -> Any:
    """Return the pytree that was packed; its arrays are views of the buffer, where that can be."""
    treedef, layout = _opened(bytes(head))
    return pytree.unflatten(treedef, layout.read(as_bytes(data, layout.nbytes)))


class _Structure(pickle.Unpickler):
    """Opens heads: it makes structures of classes that this process knows as such, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that a tree may consist of."""
        found = getattr(sys.modules.get(module), name, None)
        if not pytree.is_structure(found):
            raise pickle.UnpicklingError(f"{module}.{name} is no structure of this process's")
        return found


@functools.lru_cache(1024)
def _headed(treedef: pytree.TreeDef, looks: tuple[Any, ...]) -> tuple[bytes, BufferLayout]:
    specs = [Spec(dtype.str, *rest) for dtype, *rest in looks]
    return pickle.dumps((treedef, [tuple(spec) for spec in specs])), BufferLayout(specs)


@functools.lru_cache(1024)
def _opened(head: bytes) -> tuple[pytree.TreeDef, BufferLayout]:
    try:
        treedef, specs = _Structure(io.BytesIO(head)).load()
        return treedef, BufferLayout([Spec(*spec) for spec in specs])
    except Exception as error:  # whatever nonsense makes of it
        raise StructureError(f"A message begins with what no tree of numbers begins with ({error!r}).") from error
