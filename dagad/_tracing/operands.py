"""Lists beside traced arrays: they become arrays at the door, as inside numpy, since rules compute with operands.

Operators, ufuncs and functions of arrays come in by `traced_array`, `numpy_protocols` and `scipy_functions`, and each
of these asks here. A ufunc has operands only. Of another function it is the name of a parameter that tells an array
from an axis, a shape or an index. What users' functions return, in any pytree, becomes one vector here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._types import Array, Value
from dagad._values import pytree

SEQUENCES = frozenset({list, tuple, range})
_USUAL = frozenset({np.ndarray, np.float64, float, int})

# Parameters of functions of numpy's and scipy's that take an array. A tuple in another one says an axis or a shape.
ARRAYS = frozenset(
    """
    A B E a a_band ab b bins c d e f h m p q r v x y z x1 x2 xp fp arr array ary val base start stop condition dx
    weights fweights aweights a_min a_max min max prepend append to_begin to_end fill_value where initial spacing
    X XA XB u v w VI in1 in2 zi sos data input coordinates sigma
    """.split()
)


def array_of(operand: Array) -> Any:
    """Return what numpy makes of an operand: of a list an array, traced if the list holds traced values."""
    if type(operand) not in SEQUENCES:
        return operand
    return gathered(operand) if type(operand) is not range and _holds_traced(operand) else np.asarray(operand)


def arrays_among(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the arguments of a function with these parameters; where those take an array, none is a list any more."""
    if not SEQUENCES.isdisjoint(map(type, args)):
        named = zip(args, [*names, *[""] * (len(args) - len(names))], strict=False)
        args = tuple(array_of(arg) if name in ARRAYS else arg for arg, name in named)
    if kwargs and not SEQUENCES.isdisjoint(map(type, kwargs.values())):
        kwargs = {name: array_of(arg) if name in ARRAYS else arg for name, arg in kwargs.items()}
    return args, kwargs


def gathered(arg: Array) -> Any:
    """Return a list that holds traced values as a traced array."""
    return anp.array(arg) if isinstance(arg, list | tuple) and _holds_traced(arg) else arg


def joined(parts: Sequence[Any]) -> Any:
    """Return leaves as one vector, traced if one of them is."""
    return anp.concatenate([anp.ravel(part) for part in parts])


def vector_of(found: Value) -> Any:
    """Return what a user's function returned, an array, a list of numbers or any pytree, as one vector."""
    return joined(pytree.flatten(pytree.all_opened(found))[0])


def _holds_traced(sequence: object) -> bool:
    return any(map(pytree.is_traced, pytree.flatten(sequence)[0]))


def operators(function: Callable[[Any, Any], Any]) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """Return a binary operator of traced arrays, and the one for a traced array at the right, from its function.

    To a sparse matrix or a linear operator at the right numpy leaves the product, and so does a traced array.
    """

    def forward(self: Any, other: Array) -> Any:
        kind = type(other)
        if kind in SEQUENCES:
            other = array_of(other)
        elif kind not in _USUAL and not pytree.is_traced(other) and kind.__module__.startswith("scipy.sparse."):
            return NotImplemented
        return function(self, other)

    def reflected(self: Any, other: Array) -> Any:
        return function(array_of(other) if type(other) in SEQUENCES else other, self)

    return forward, reflected
