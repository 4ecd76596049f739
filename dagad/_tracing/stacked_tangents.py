"""Tangents of all directions in one array, a stack: directions are its first axis.

A stack is what a node of forward mode has in place of a list of tangents where all of them are doubles. An operation
takes one step of numpy's for all directions then, and a product with a matrix is one of matrices. Operators and
functions of numpy's come here before autograd's tracer, which takes ten times as long as the arithmetic of small
arrays. What is not here (other operations, other numbers, rules of a user's) is done direction by direction.

Stacks, and values, may be traced in turn, by those who began before: so it is for derivatives of second order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._tracing import quick_tangents
from dagad._tracing.private import numpy_boxes, numpy_wrapper, primitive_jvps, trace_primitives_map
from dagad._tracing.quick_tangents import BY_ENTRIES, UNARY
from dagad._tracing.rules import stock_rules
from dagad._types import Array, Axis, Function, Index, Tangents, Value
from dagad._values import pytree

FLOAT = np.dtype(float)
NUMBERS = frozenset({np.float64, float, int})
INDICES = frozenset({int, slice})


def is_stack(tangents: Tangents) -> bool:
    """Return whether tangents are a stack, or else a list."""
    kind = type(tangents)
    return kind is np.ndarray or kind in pytree.TRACED


def stacked(tangents: Tangents, value: Value) -> Any:
    """Return tangents of a value as a stack; as they are where one is no double of the value's shape."""
    if is_stack(tangents) or not tangents or not is_double(value):
        return tangents
    shape, is_any_traced = np.shape(pytree.plain(value)), False
    for each in tangents:
        if not is_double(each) or np.shape(pytree.plain(each)) != shape:
            return tangents
        is_any_traced = is_any_traced or type(each) in pytree.TRACED
    return anp.stack(tangents) if is_any_traced else np.array(tangents)


def is_double(value: Value) -> bool:
    """Return whether a value is a number or an array of numpy's in double precision, traced or not."""
    kind = type(value)
    if kind is np.float64:  # nearly always
        return True
    while kind in pytree.TRACED:
        value = value._value
        kind = type(value)
    return kind is np.float64 or (kind is np.ndarray and value.dtype == FLOAT)


# Rules: the value, two operands, and their stacks, of which one may be None


def _difference(value: Value, x: Array, y: Array, dx: Array, dy: Array) -> Any:
    del value, x, y
    if dy is None:
        return dx
    return -dy if dx is None else dx - dy


def _quotient(value: Value, x: Array, y: Array, dx: Array, dy: Array) -> Any:
    del x
    if dy is None:
        return dx / y
    return dy * (-value / y) if dx is None else (dx - value * dy) / y


def _as_array(operand: Array) -> Any:
    return np.asarray(operand) if isinstance(operand, list | tuple) else operand


def _product(value: Value, x: Array, y: Array, dx: Array, dy: Array) -> Any:
    del value
    x, y = _as_array(x), _as_array(y)
    if not 0 < np.ndim(pytree.plain(x)) < 3 or not 0 < np.ndim(pytree.plain(y)) < 3:
        return None
    of_x = None if dx is None else dx @ y
    if dy is None:
        return of_x
    of_y = x @ dy if y.ndim == 2 else dy @ (x.T if x.ndim == 2 else x)
    return of_y if of_x is None else of_x + of_y


def _power(value: Value, x: Array, y: Array, dx: Array, dy: Array) -> Any:
    del value
    if dy is not None or type(y) not in NUMBERS:
        return None
    return dx * (y * x ** (y - 1 if y else 1.0))


def _by_entries(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule for stacks from that for tangents: missing axes of the smaller operand come after the first."""

    def push(value: Value, x: Array, y: Array, dx: Array, dy: Array) -> Any:
        ndim = value.ndim
        if not ndim:
            return rule(value, x, y, dx, dy)
        return whole(rule(value, x, y, aligned(dx, ndim), aligned(dy, ndim)), value)

    return push


def aligned(stack: Array, ndim: int) -> Any:
    """Return the stack of an operand with as many axes as that of a value of `ndim` has; None as it is."""
    if stack is None or stack.ndim > ndim:
        return stack
    return stack.reshape((stack.shape[0], *[1] * (1 + ndim - stack.ndim), *stack.shape[1:]))


def whole(stack: Array, value: Value) -> Any:
    """Return the stack of a value with all of its entries, where it is to be broadcast."""
    shape = stack.shape[:1] + value.shape
    return stack if stack.shape == shape else stack + np.zeros(shape)


def _chosen(value: Value, mask: Array, dx: Array, dy: Array) -> Any:
    """As `np.where` chooses."""
    dx, dy = (0.0 if each is None else aligned(each, value.ndim) for each in (dx, dy))
    return whole(anp.where(mask, dx, dy), value)


_BINARY: dict[Any, Callable[..., Any]] = {
    anp.multiply: _by_entries(BY_ENTRIES[anp.multiply]),
    anp.add: _by_entries(BY_ENTRIES[anp.add]),
    anp.subtract: _by_entries(_difference),
    anp.true_divide: _by_entries(_quotient),
    anp.logaddexp: _by_entries(BY_ENTRIES[anp.logaddexp]),
    anp.matmul: _product,
    anp.dot: _product,
    numpy_wrapper.power: _power,
}
_GETITEM = numpy_boxes.ArrayBox.__dict__["__getitem__"]
_ARRAY, _CONCATENATE = numpy_wrapper.array_from_args, numpy_wrapper.concatenate_args
_WHERE = trace_primitives_map[np.where]
_OTHERS = _GETITEM, _ARRAY, _CONCATENATE, anp.reshape, anp.transpose, anp.sum, _WHERE
_STOCK = stock_rules(primitive_jvps, *_BINARY, *UNARY, *_OTHERS)
OPERATIONS: dict[np.ufunc, tuple[Any, Callable[[Any, Any], Any]]] = {
    np.multiply: (anp.multiply, operator.mul),
    np.add: (anp.add, operator.add),
    np.subtract: (anp.subtract, operator.sub),
    np.true_divide: (anp.true_divide, operator.truediv),
    np.logaddexp: (anp.logaddexp, np.logaddexp),
    np.matmul: (anp.matmul, operator.matmul),
}
FUNCTIONS = {fun.fun: fun for fun in UNARY}


def _is_others(fun: Function) -> bool:
    """Return whether somebody has given a rule of his own."""
    return primitive_jvps.get(fun) is not _STOCK[fun]


def has_stock_rule(fun: Function) -> bool:
    """Return whether an operation has the rule that is here: nobody has given another."""
    return fun in _STOCK and not _is_others(fun)


# Operations: the value and its stack, None where the usual way has to find them. A box has a value and a node


def of_two(
    fun: Function, operate: Function, box: Array, other: Array, is_reflected: bool = False
) -> tuple[Any, Any] | None:
    """Operate on a traced array and something else, with Python's operators: they are quicker than numpy's."""
    x, dx, y, dy = box._value, box._node.g, other, None
    if type(dx) is list:
        return quick_tangents.of_two(fun, operate, box, other, is_reflected)
    kind = type(other)
    if kind is type(box):
        if other._trace == box._trace:
            y, dy = other._value, other._node.g
            if type(dy) is not np.ndarray and not is_stack(dy):
                return None
        if other._trace > box._trace or not is_double(y):
            return None
    elif kind not in NUMBERS and not (kind is np.ndarray and y.dtype == FLOAT):
        return None
    if (type(dx) is not np.ndarray and not is_stack(dx)) or not is_double(x):
        return None
    if primitive_jvps.get(fun) is not _STOCK[fun]:
        return None
    if is_reflected:
        x, y, dx, dy = y, x, dy, dx
    value = operate(x, y)
    if not is_double(value):
        return None
    stack = _BINARY[fun](value, x, y, dx, dy)
    return None if stack is None else (value, stack)


def of_ufunc(ufunc: np.ufunc, inputs: Sequence[Any], kind: type[Any]) -> tuple[Any, Any, Any] | None:
    """Call a ufunc with traced arrays, which are of some kind; return one of these too."""
    if len(inputs) == 2:
        found = OPERATIONS.get(ufunc)
        if found is None:
            return None
        first, second = inputs
        box, other, is_reflected = (first, second, False) if type(first) is kind else (second, first, True)
        pair = of_two(*found, box, other, is_reflected) if getattr(box._node, "moves", False) else None
        return None if pair is None else (box, *pair)
    fun, box = FUNCTIONS.get(ufunc), inputs[0]
    if fun is None or not getattr(box._node, "moves", False):
        return None
    x, dx = box._value, box._node.g
    if type(dx) is list:
        quick = quick_tangents.of_one(fun, ufunc, box)
        return None if quick is None else (box, *quick)
    if not is_stack(dx) or not is_double(x) or _is_others(fun):
        return None
    value = ufunc(x)
    return box, value, UNARY[fun](value, x, dx)


def sum_of(box: Array, axis: Axis) -> tuple[Any, Any] | None:
    """Return the sum of a traced array; along one axis where tangents are a list."""
    x, dx = box._value, box._node.g
    if type(dx) is list:
        return quick_tangents.sum_of(box, axis) if axis is None or type(axis) is int else None
    if axis is not None or not is_stack(dx) or not is_double(x) or _is_others(anp.sum):
        return None
    return anp.sum(x), _sums(dx)


def _sums(stack: Array) -> Any:
    return anp.sum(stack.reshape((len(stack), -1)), 1)


def power_of(box: Array, exponent: float) -> tuple[Any, Any] | None:
    """Return the power of a traced array by a Python number."""
    x, dx = box._value, box._node.g
    if type(dx) is list:
        return quick_tangents.power_of(box, exponent)
    if not is_stack(dx) or not is_double(x) or _is_others(numpy_wrapper.power):
        return None
    value = x**exponent
    return (value, _power(value, x, exponent, dx, None)) if is_double(value) else None


def sides_of(inputs: Sequence[Any], kind: type[Any]) -> tuple[Any, Any, bool]:
    """Return the traced one of two operands, which is of some kind, the other one, and whether that comes first."""
    first, second = inputs
    return (first, second, False) if type(first) is kind else (second, first, True)


def entry_of(box: Array, where: Index) -> tuple[Any, Any] | None:
    """Return what stands at whole numbers and slices."""
    dx = box._node.g
    if type(dx) is list:
        is_simple = type(where) in INDICES or (type(where) is tuple and INDICES.issuperset(map(type, where)))
        return quick_tangents.entry_of(box, where) if is_simple else None
    if (type(dx) is not np.ndarray and not is_stack(dx)) or not is_double(box._value) or _is_others(_GETITEM):
        return None
    if type(where) in INDICES:
        return box._value[where], dx[:, where]
    if type(where) is tuple and INDICES.issuperset(map(type, where)):
        return box._value[where], dx[(slice(None), *where)]
    return None


def list_of_numbers(parts: Sequence[Any], kind: type[Any]) -> tuple[Any, Any, Any] | None:
    """Return a traced array among numbers that make an array, this array, and its stack."""
    boxes = [part for part in parts if type(part) is kind]
    if not boxes or _is_others(_ARRAY):
        return None
    trace, stacks, values, is_any_traced = boxes[0]._trace, {}, list(parts), False
    for index, part in enumerate(parts):
        if type(part) is kind:
            stack: Any = part._node.g if getattr(part._node, "moves", False) else None
            if part._trace != trace or not is_stack(stack) or not is_double(part) or stack.ndim != 1:
                return None
            stacks[index], values[index] = stack, part._value
            is_any_traced = is_any_traced or type(stack) in pytree.TRACED or type(part._value) in pytree.TRACED
        elif type(part) not in NUMBERS:
            return None
    if is_any_traced:
        array = _ARRAY((), {}, *values)
        return boxes[0], array, _gathered(array, stacks)
    return boxes[0], np.array(values, float), _gathered_plain(len(values), stacks)


def _gathered_plain(n: int, stacks: dict[int, Any]) -> np.ndarray:
    found = np.zeros((len(next(iter(stacks.values()))), n))
    for index, stack in stacks.items():
        found[:, index] = stack
    return found


def _gathered(value: Value, stacks: dict[int, Any]) -> Any:
    """Return the stack of an array that was made of numbers or of arrays, by the indices of those that move."""
    first = next(iter(stacks.values()))
    nothing = np.zeros(first.shape)
    rows = [stacks.get(index, nothing) for index in range(value.shape[0])]
    if first.ndim == 1:
        return _ARRAY((), {}, *rows).T
    return anp.stack(rows, 1)


# Primitives, as autograd's tracer meets them


def quickly_stacked(
    fun: Function, value: Value, args: Sequence[Any], argnums: Sequence[int], parents: Sequence[Any]
) -> Any:
    """Return the stack of an operation; None where its tangents have to be found one by one."""
    stock = _STOCK.get(fun)
    if stock is None or primitive_jvps.get(fun) is not stock or not is_double(value):
        return None
    stacks = {}
    for argnum, parent in zip(argnums, parents, strict=True):
        if not is_stack(parent.g):
            return None
        stacks[argnum] = parent.g
    first = stacks[argnums[0]]
    if fun in _BINARY:
        x, y = args
        return _BINARY[fun](value, x, y, stacks.get(0), stacks.get(1))
    if fun in UNARY:
        return UNARY[fun](value, args[0], first)
    if fun is anp.reshape:
        return first.reshape(first.shape[:1] + value.shape) if len(args) == 2 else None
    if fun is anp.transpose:
        return anp.transpose(first, (0, *range(first.ndim - 1, 0, -1))) if len(args) == 1 else None
    if fun is anp.sum:
        return _sums(first) if len(args) == 1 else None
    if fun is _ARRAY:
        return None if args[0] or args[1] else _gathered(value, {at - 2: stack for at, stack in stacks.items()})
    if fun is _CONCATENATE:
        return _joined(args, stacks)
    if fun is _WHERE:
        return _chosen(value, args[0], stacks.get(1), stacks.get(2)) if len(args) == 3 else None
    return _entries(first, args[1])


def _entries(stack: Array, where: Index) -> Any:
    """Return what stands at whole numbers and slices, or at those that one array says."""
    if type(where) is np.ndarray:
        return stack[:, where]
    parts = where if type(where) is tuple else (where,)
    parts = tuple([int(part) if isinstance(part, np.integer) else part for part in parts])
    return stack[(slice(None), *parts)] if INDICES.issuperset(map(type, parts)) else None


def _joined(args: Sequence[Any], stacks: dict[int, Any]) -> Any:
    axis = args[0]
    if type(axis) is not int or not all(map(is_double, args[1:])):
        return None
    n = len(next(iter(stacks.values())))
    parts = [stacks[at] if at in stacks else np.zeros((n, *arg.shape)) for at, arg in enumerate(args[1:], 1)]
    return _CONCATENATE(axis + 1 if axis >= 0 else axis, *parts)
