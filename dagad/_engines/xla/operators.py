"""Operators of what jax traces: numpy's ufuncs, by their names in Python."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from dagad._engines.xla.memory import as_now
from dagad._engines.xla.protocols import WRITTEN, call_ufunc, function_of_ufunc, kind_of
from dagad._tracing.operands import SEQUENCES
from dagad._types import Array

_USUAL = frozenset({np.ndarray, np.float64, float, int})


def operate(ufunc: np.ufunc, own: Array, left: Array, right: Array) -> Any:
    """Return what an operator gives of which one side is traced; to a sparse matrix numpy leaves it, and so do we."""
    other = right if left is own else left
    kind = type(other)
    if kind not in _USUAL and not isinstance(other, jax.Array | np.generic | int | float | complex):
        if kind.__module__.startswith("scipy.sparse."):
            return NotImplemented
        if not (kind in SEQUENCES or hasattr(kind, "__array__")):
            return NotImplemented
    with own._trace.inside():
        if not own.ndim and _PYTHONS.issuperset(map(kind_of, (own, other))):  # Python's numbers stay what they are
            return (WRITTEN.get(ufunc) or function_of_ufunc(ufunc))(left, right)
        return call_ufunc(ufunc, "__call__", (as_now(left), as_now(right)), {})


_PYTHONS = frozenset({int, float, complex})
UNARY = {"__neg__": np.negative, "__pos__": np.positive, "__abs__": np.absolute, "__invert__": np.invert}
BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.true_divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "matmul": np.matmul,
    "pow": np.power,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
    "divmod": np.divmod,
}
COMPARING = {
    "__lt__": np.less,
    "__le__": np.less_equal,
    "__gt__": np.greater,
    "__ge__": np.greater_equal,
    "__eq__": np.equal,
    "__ne__": np.not_equal,
}
