"""Tangents of the commonest operations on plain numbers and arrays: what autograd's rules say, without their detours.

A rule of autograd's calls a primitive for each step of its arithmetic, and adds up by way of vector spaces. On the tiny
arrays of a differential equation that takes ten times as long as the arithmetic. Here the same is computed, in the same
order, so with the same bits. What is traced, or broadcast, or has a rule of the user's, is left to autograd's rules.
`quick_jvp` has the tangents of what autograd's tracer has computed; the functions after it compute the value too,
past the tracer.

State: `_STOCK` and `_STOCK_OF_POWER`, autograd's own rules of these operations, as they are when this is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._tracing.private import numpy_boxes, numpy_wrapper, primitive_jvps
from dagad._tracing.rules import stock_rules
from dagad._tracing.slopes import share
from dagad._types import Args, Array, Axis, Function, Index, Tangents, Value

_PLAIN = frozenset({np.ndarray, np.float64, float, int})
_BOTH, _FIRST, _SECOND, _STILL = (0, 1), (0,), (1,), (None,)
_ABSENT = object()
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


def _logaddexp(value: Value, x: Array, y: Array, dx: Array, dy: Array) -> Any:
    del value
    of_y = None if dy is None else dy * share(y - x)
    if dx is None:
        return of_y
    of_x = dx * share(x - y)
    return of_x if of_y is None else of_x + of_y


def _product(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def push(value: Value, x: Array, y: Array, dx: Array, dy: Array) -> Any:
        del value
        if dy is None:
            return function(dx, y)
        return function(x, dy) if dx is None else function(dx, y) + function(x, dy)

    return push


BY_ENTRIES = {
    anp.multiply: _multiply,
    anp.add: _add,
    anp.subtract: _subtract,
    anp.true_divide: _divide,
    anp.logaddexp: _logaddexp,
}
_ADDED = frozenset({anp.add, anp.subtract})
_LAID_OUT = _ADDED | {anp.matmul}
_BINARY = {**BY_ENTRIES, anp.matmul: _product(np.matmul), anp.dot: _product(np.dot)}
UNARY: dict[Any, Callable[[Any, Any, Any], Any]] = {
    anp.negative: lambda value, x, dx: -dx,
    anp.exp: lambda value, x, dx: value * dx,
    anp.log: lambda value, x, dx: dx / x,
    anp.sin: lambda value, x, dx: dx * np.cos(x),
    anp.cos: lambda value, x, dx: -dx * np.sin(x),
    anp.tanh: lambda value, x, dx: dx / np.cosh(x) ** 2,
    anp.sqrt: lambda value, x, dx: dx * 0.5 * x**-0.5,
    anp.sinh: lambda value, x, dx: dx * np.cosh(x),
    anp.cosh: lambda value, x, dx: dx * np.sinh(x),
    anp.log1p: lambda value, x, dx: dx / (x + 1),
    anp.square: lambda value, x, dx: dx * 2 * x,
}
# What gives the entries of an array another shape, and so those of its tangents.
_SHAPES = frozenset({anp.reshape, anp.expand_dims, anp.squeeze, anp.swapaxes})
_GETITEM = numpy_boxes.ArrayBox.__dict__["__getitem__"]
_ARRAY, _CONCATENATE = numpy_wrapper.array_from_args, numpy_wrapper.concatenate_args
_POWER = numpy_wrapper.power
_STOCK = stock_rules(primitive_jvps, *_BINARY, *UNARY, *_SHAPES, _GETITEM, _ARRAY, _CONCATENATE, anp.sum)
_STOCK_OF_POWER = stock_rules(primitive_jvps, _POWER)[_POWER]
_new = object.__new__  # past initialisers that do more, and a call
Found = tuple[Any, list[Any]]  # the value and its tangents


def quick_jvp(
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
    if fun is _GETITEM or fun in _SHAPES:
        if type(args[0]) is not np.ndarray or (fun is anp.reshape and len(args) > 2):  # in another order
            return None
        shaped: Any = fun.fun  # type: ignore[attr-defined]  # a primitive of autograd's
        found = [shaped(tangent, *args[1:]) for tangent in tangents[0]]
    elif fun is anp.sum:
        if len(args) > 1 or type(args[0]) is not np.ndarray:
            return None
        found = [np.add.reduce(tangent, None) for tangent in tangents[0]]
    elif not _PLAIN.issuperset(map(type, args)):
        return None
    elif fun in UNARY:
        rule = UNARY[fun]
        found = [rule(value, args[0], tangent) for tangent in tangents[0]]
    elif not _is_laid_out(fun, args[0], args[1], argnums):
        return None
    else:
        both, (x, y) = _BINARY[fun], args
        nothing = [None] * len(tangents[0])
        left, right = tangents if len(tangents) == 2 else (tangents[0], nothing)
        left, right = (left, right) if argnums[0] == 0 else (right, left)
        found = [both(value, x, y, dx, dy) for dx, dy in zip(left, right, strict=True)]
    return _fitting(found, value)


def _is_laid_out(fun: Function, x: Array, y: Array, argnums: Sequence[int]) -> bool:
    """Return whether tangents are added as autograd adds them: those that are broadcast it lays out anew before."""
    if fun not in _ADDED:
        return fun is not anp.matmul or type(x) is type(y) is np.ndarray
    left, right = getattr(x, "shape", ()), getattr(y, "shape", ())
    return left == right or (not left and 0 not in argnums) or (not right and 1 not in argnums)


# The same past autograd's tracer: of a traced array, and what it meets


def of_two(fun: Function, operate: Function, box: Array, other: Array, is_reflected: bool = False) -> Found | None:
    """Operate on a traced array and something else, with Python's operators; None where autograd's way has to."""
    x, y, dx, kind = box._value, other, box._node.g, type(other)
    if kind in _PLAIN:
        dy = _STILL if len(dx) == 1 else [None] * len(dx)
        argnums: Sequence[int] = _SECOND if is_reflected else _FIRST
    elif kind is type(box) and other._trace == box._trace:
        y, dy, argnums = other._value, other._node.g, _BOTH
        if type(dy) is not list or type(y) not in _MOVING:
            return None
        for each in dy:
            if type(each) not in _MOVING:
                return None
    else:
        return None
    if type(x) not in _MOVING or primitive_jvps.get(fun) is not _STOCK.get(fun, _ABSENT):
        return None
    for each in dx:
        if type(each) not in _MOVING:
            return None
    if is_reflected:
        x, y, dx, dy = y, x, dy, dx
    if fun in _LAID_OUT and not _is_laid_out(fun, x, y, argnums):
        return None
    value, rule = operate(x, y), _BINARY[fun]
    if len(dx) != 1:
        return _found(value, [rule(value, x, y, *each) for each in zip(dx, dy, strict=True)])
    tangent, kind = rule(value, x, y, dx[0], dy[0]), type(value)
    return (value, [tangent]) if type(tangent) is kind and kind in _MOVING and tangent.shape == value.shape else None


def of_one(fun: Function, operate: Function, box: Array) -> Found | None:
    """Call a function of one array."""
    x, stock = box._value, _STOCK.get(fun)
    if type(x) not in _MOVING or not _moves(box) or stock is None or primitive_jvps.get(fun) is not stock:
        return None
    value, rule = operate(x), UNARY[fun]
    return _found(value, [rule(value, x, each) for each in box._node.g])


def of_slope(box: Array, function: Function, slope: Function) -> Found | None:
    """Call a function of the entries of an array that has a primitive and rules of dagad's own."""
    x = box._value
    if type(x) not in _MOVING or not _moves(box):
        return None
    value = function(x)
    factor = slope(value, x)
    return _found(value, [each * factor for each in box._node.g])


def of_linear(box: Array, function: Function, *primitives: Function) -> Found | None:
    """Call a linear function of one array that is made of some primitives."""
    x = box._value
    if type(x) is not np.ndarray or not _moves(box):
        return None
    for primitive in primitives:
        if primitive_jvps.get(primitive) is not _STOCK[primitive]:
            return None
    return _found(function(x), [function(each) for each in box._node.g])


def entry_of(box: Array, where: Index) -> Found | None:
    """Return what stands at whole numbers and slices."""
    x = box._value
    if type(x) is not np.ndarray or not _moves(box) or primitive_jvps.get(_GETITEM) is not _STOCK[_GETITEM]:
        return None
    return _found(x[where], [each[where] for each in box._node.g])


def sum_of(box: Array, axis: Axis) -> Found | None:
    """Return the sum of an array, or the sums along one axis."""
    x = box._value
    if type(x) is not np.ndarray or not _moves(box) or primitive_jvps.get(anp.sum) is not _STOCK[anp.sum]:
        return None
    return _found(np.add.reduce(x, axis), [np.add.reduce(each, axis) for each in box._node.g])


def power_of(box: Array, exponent: float) -> Found | None:
    """Return the power of an array or a number by a Python number."""
    x = box._value
    if type(x) not in _MOVING or not _moves(box) or primitive_jvps.get(_POWER) is not _STOCK_OF_POWER:
        return None
    value, slope = x**exponent, x ** (float(exponent - 1) if exponent else 1.0)
    return _found(value, [each * exponent * slope for each in box._node.g])


def with_tangents(box: Array, value: Value, tangents: Tangents) -> Any:
    """Return a value that moves as a traced array does, by tangents of its own: a list of them, or a stack."""
    node, found = _new(box._node.__class__), _new(box.__class__)
    node.g = tangents
    found._value, found._trace, found._node = value, box._trace, node
    return found


def _moves(box: Array) -> bool:
    """Return whether there is a list of tangents, all of them plain arrays and numbers."""
    tangents = box._node.g
    if type(tangents) is not list:
        return False
    for each in tangents:
        if type(each) not in _MOVING:
            return False
    return True


def _found(value: Value, tangents: list[Any]) -> Found | None:
    """Return a value and its tangents, if these have its type and shape."""
    kind, shape = type(value), getattr(value, "shape", None)
    if kind not in _MOVING:
        return None
    for each in tangents:
        if type(each) is not kind or each.shape != shape:
            return None
    return value, tangents


def _fitting(tangents: list[Any], value: Value) -> list[Any] | None:
    """Return the tangents alone."""
    found = _found(value, tangents)
    return None if found is None else found[1]


def _joined(value: Value, args: Args, argnums: Sequence[int], tangents: Sequence[Any]) -> list[Any] | None:
    """Return the tangents of arrays that were laid end to end."""
    if any(type(arg) is not np.ndarray or arg.dtype != np.float64 for arg in args[1:]):
        return None
    moving = dict(zip(argnums, tangents, strict=True))
    nothing = {index: np.zeros(arg.shape) for index, arg in enumerate(args[1:], 1) if index not in moving}
    parts = [
        [moving[index][number] if index in moving else nothing[index] for index in range(1, len(args))]
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
