"""Tangents of the commonest operations on plain numbers and arrays: what autograd's rules say, without their detours.

A rule of autograd's calls a primitive for each step of its arithmetic, and adds up by way of vector spaces. On the tiny
arrays of a differential equation that takes ten times as long as the arithmetic. Here the same is computed, in the same
order, so with the same bits. What is traced, or broadcast, or has a rule of the user's, is left to autograd's rules.

State: `_STOCK`, autograd's own rules of these operations, as they are when this is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._tracing.private import numpy_boxes, numpy_wrapper, primitive_jvps
from dagad._types import Args, Array, Function, Value

_PLAIN = frozenset({np.ndarray, np.float64, float, int})
_MOVING = frozenset({np.ndarray, np.float64})  # of Python's own numbers a quotient by zero is an error


def _multiply(value: Value, x: Array, y: Array, dx: Array, dy: Array) -> Any:
    del value
    if dy is None:
        return dx * y
    return x * dy if dx is None else dx * y + x * dy


def _add(value: Value, x: Array, y: Array, dx: Array, dy: Array) -> Any:
    del value, x, y
    if dy is None:
        return dx
    return dy if dx is None else dx + dy


def _subtract(value: Value, x: Array, y: Array, dx: Array, dy: Array) -> Any:
    del value, x, y
    if dy is None:
        return dx
    return -dy if dx is None else dx + -dy


def _divide(value: Value, x: Array, y: Array, dx: Array, dy: Array) -> Any:
    del value
    if dy is None:
        return dx / y
    of_y = -dy * x / y**2
    return of_y if dx is None else dx / y + of_y


def _product(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def push(value: Value, x: Array, y: Array, dx: Array, dy: Array) -> Any:
        del value
        if dy is None:
            return function(dx, y)
        return function(x, dy) if dx is None else function(dx, y) + function(x, dy)

    return push


BY_ENTRIES = {anp.multiply: _multiply, anp.add: _add, anp.subtract: _subtract, anp.true_divide: _divide}
_BINARY = {**BY_ENTRIES, anp.matmul: _product(np.matmul), anp.dot: _product(np.dot)}
UNARY: dict[Any, Callable[[Any, Any, Any], Any]] = {
    anp.negative: lambda value, x, dx: -dx,
    anp.exp: lambda value, x, dx: value * dx,
    anp.log: lambda value, x, dx: dx / x,
    anp.sin: lambda value, x, dx: dx * np.cos(x),
    anp.cos: lambda value, x, dx: -dx * np.sin(x),
    anp.tanh: lambda value, x, dx: dx / np.cosh(x) ** 2,
    anp.sqrt: lambda value, x, dx: dx * 0.5 * x**-0.5,
}
_GETITEM = numpy_boxes.ArrayBox.__dict__["__getitem__"]
_ARRAY, _CONCATENATE = numpy_wrapper.array_from_args, numpy_wrapper.concatenate_args
_STOCK = {fun: primitive_jvps[fun] for fun in (*_BINARY, *UNARY, _GETITEM, _ARRAY, _CONCATENATE)}


def quickly_pushed(
    fun: Function, value: Value, args: Sequence[Any], argnums: Sequence[int], parents: Sequence[Any]
) -> list[Any] | None:
    """Return the tangents of an operation in all directions; None where autograd's rule has to say them."""
    stock = _STOCK.get(fun)
    if stock is None or primitive_jvps.get(fun) is not stock:
        return None
    tangents = [parent.g for parent in parents]
    for several in tangents:
        for tangent in several:
            if type(tangent) not in _MOVING:
                return None
    if fun is _ARRAY:
        return _gathered(value, args, argnums, tangents)
    if fun is _CONCATENATE:
        return _joined(value, args, argnums, tangents)
    if fun is _GETITEM:
        if type(args[0]) is not np.ndarray:
            return None
        found = [tangent[args[1]] for tangent in tangents[0]]
    elif not _PLAIN.issuperset(map(type, args)):
        return None
    elif fun in UNARY:
        rule = UNARY[fun]
        found = [rule(value, args[0], tangent) for tangent in tangents[0]]
    else:
        both, (x, y) = _BINARY[fun], args
        nothing = [None] * len(tangents[0])
        left, right = tangents if len(tangents) == 2 else (tangents[0], nothing)
        left, right = (left, right) if argnums[0] == 0 else (right, left)
        found = [both(value, x, y, dx, dy) for dx, dy in zip(left, right, strict=True)]
    return _fitting(found, value)


def _fitting(tangents: list[Any], value: Value) -> list[Any] | None:
    """Return tangents that have the type and shape of their value; None if one has not."""
    kind = type(value)
    if kind is np.float64:
        return tangents if all(type(each) is np.float64 for each in tangents) else None
    shape = np.shape(value)
    fits = kind is np.ndarray and all(type(each) is np.ndarray and each.shape == shape for each in tangents)
    return tangents if fits else None


def _joined(value: Value, args: Args, argnums: Sequence[int], tangents: Sequence[Any]) -> list[Any] | None:
    """Return the tangents of arrays that were laid end to end."""
    if any(type(arg) is not np.ndarray or arg.dtype != np.float64 for arg in args[1:]):
        return None
    moving = dict(zip(argnums, tangents, strict=True))
    nothing = {place: np.zeros(arg.shape) for place, arg in enumerate(args[1:], 1) if place not in moving}
    parts = [
        [moving[place][number] if place in moving else nothing[place] for place in range(1, len(args))]
        for number in range(len(tangents[0]))
    ]
    found = [np.concatenate(each, args[0]) for each in parts]
    return _fitting([each + 0.0 for each in found] if len(argnums) > 1 else found, value)


def _gathered(value: Value, args: Args, argnums: Sequence[int], tangents: Sequence[Any]) -> list[Any] | None:
    """Return the tangents of an array that was made of numbers or arrays of one shape."""
    if args[0] or args[1] or type(value) is not np.ndarray or value.dtype != np.float64:
        return None
    found = [np.zeros(value.shape) for _ in tangents[0]]
    for argnum, several in zip(argnums, tangents, strict=True):
        for array, tangent in zip(found, several, strict=True):
            array[argnum - 2] += tangent
    return found
