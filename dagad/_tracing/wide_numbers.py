"""Constants beside traced values, as derivatives compute with them: in types that are as wide as the value's.

numpy and scipy make floats of what stands beside floats, so a value is right whatever type a constant has. A derivative
that says ``-counts / mu`` or ``log(counts)`` would compute with the constant alone first, in its own type: there
unsigned numbers wrap round, int8 has no 128, truths can't be negated, and the logarithm of a byte has three digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dagad._types import Array, DType, Value
from dagad._values import pytree

_WIDE = np.dtype(np.int64)
_LARGEST = 2**63 - 1
_DOUBLE = np.dtype(float)
_PLAIN = frozenset({np.ndarray, np.float64})
_PYTHONS = frozenset({float, int})
CHOICES = frozenset({"where", "condition"})  # parameters that take truths as truths


def is_narrow(operand: object) -> bool:
    """Return whether a plain array or number of numpy's holds truths, or whole numbers of less than 64 signed bits."""
    if type(operand) is not np.ndarray and not isinstance(operand, np.generic):
        return False
    dtype: DType = operand.dtype
    return dtype.kind in "bu" or (dtype.kind == "i" and dtype.itemsize < _WIDE.itemsize)


def wide(operand: Array, value: Value = None) -> Any:
    """Return a constant as one computes with it alone: whole numbers as int64, floats as those of the value."""
    if is_narrow(operand):
        fits = operand.dtype.kind != "u" or operand.dtype.itemsize < 8 or bool(np.all(operand <= _LARGEST))
        return operand.astype(_WIDE if fits else float)
    if type(operand) is np.ndarray or isinstance(operand, np.floating):
        asked = _float_of(value)
        if asked is not None and operand.dtype.kind == "f" and operand.dtype.itemsize < asked.itemsize:
            return operand.astype(asked)
    return operand


def wide_entries(operand: Array, value: Value) -> Any:
    """Return a constant of a function of entries: a narrow one as the value's float where that is narrow itself."""
    kind = type(operand)
    if kind in _PYTHONS or kind in pytree.TRACED:  # what is traced is no constant
        return operand
    if kind is np.ndarray and operand.dtype is _DOUBLE and _is_double(value):  # nearly always
        return operand
    asked = _float_of(value) if is_narrow(operand) else None
    if asked is not None:
        dtype = np.result_type(operand.dtype, asked)
        if dtype.itemsize < _WIDE.itemsize:
            return operand.astype(dtype)
    return wide(operand, value)


def all_wide(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any], value: Value) -> Any:
    """Return arguments with these names so that what is computed of the constants among them alone is right."""
    called = [*names[: len(args)], *[""] * (len(args) - len(names))]
    found = [arg if name in CHOICES else wide(arg, value) for name, arg in zip(called, args, strict=True)]
    return found, {name: arg if name in CHOICES else wide(arg, value) for name, arg in kwargs.items()}


def _is_double(value: Value) -> bool:
    return type(value) in _PLAIN and value.dtype is _DOUBLE


def _float_of(value: Value) -> Any:
    """Return the type of the real numbers of a value; None where it holds none."""
    dtype = getattr(pytree.plain(value), "dtype", None)
    if dtype is None or dtype.kind not in "fc":
        return None
    return dtype if dtype.kind == "f" else np.dtype(f"f{dtype.itemsize // 2}")
