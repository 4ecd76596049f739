"""Arithmetic on a tape past autograd's tracer: the commonest operations are recorded at once, with autograd's rules.

autograd's way of recording an operation asks which arguments are traced, by whom, and of what shape, in ten calls of
Python: of small arrays that takes several times as long as the arithmetic. Here are the operators and a few functions
of real numbers and arrays: of one shape, or beside constants; products of vectors and matrices, sums, and powers by
numbers. What is computed, forth and back, is what autograd's rules say, in the same order, so the bits are the same.
So it is where their values are traced too, by somebody who began before: that is how a Hessian product is computed. All
else (traced arrays of other shapes, other numbers, what somebody traces who began later, rules of a user's) goes
autograd's way. Forward mode has the like in `stacked_tangents` and `quick_tangents`; `quick_ways` says which it is.

State: `_STOCK`, autograd's own rules of these operations, as they are when this is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._tracing.private import isbox, numpy_boxes, numpy_vjps, numpy_wrapper, primitive_vjps
from dagad._tracing.residuals import SHAPES_ONLY, held
from dagad._tracing.rules import stock_rules, vjp_rule
from dagad._tracing.slopes import over_cosh_square, share
from dagad._tracing.stacked_tangents import FUNCTIONS, OPERATIONS, is_double, sides_of
from dagad._types import Array, Axis, Cotangent, Function, Index, Value
from dagad._values import pytree

Parts = tuple[Any, ...]
Rule = Callable[[Any], Parts]  # from a cotangent to those of the operands that are traced
Found = tuple[Any, Parts, Rule]  # the value, the nodes of the traced operands, the pullback

_FLOAT = np.dtype(float)
_NUMBERS = frozenset({float, int, np.float64})


# Rules: of both operands, of the first one beside a constant, of the second one


def _add(x: Array, y: Array) -> Rule:
    del x, y
    return lambda g: (g, g)


def _subtract(x: Array, y: Array) -> Rule:
    del x, y
    return lambda g: (g, -g)


def _multiply(x: Array, y: Array) -> Rule:
    return lambda g: (y * g, x * g)


def _divide(x: Array, y: Array) -> Rule:
    return lambda g: (g / y, -g * x / y**2)


def _logaddexp(x: Array, y: Array) -> Rule:
    return lambda g: (g * share(x - y), g * share(y - x))


def _same(x: Array, y: Array) -> Rule:
    del x, y
    return lambda g: (g,)


def _negated(x: Array, y: Array) -> Rule:
    del x, y
    return lambda g: (-g,)


def _tanh(value: Value, x: Array) -> Rule:
    del value
    return (lambda g: (over_cosh_square(g, x),)) if isbox(x) else (lambda g: (g / np.cosh(x) ** 2,))


BINARY: dict[Any, tuple[Callable[[Any, Any], Rule], ...]] = {
    anp.add: (_add, _same, _same),
    anp.subtract: (_subtract, _same, _negated),
    anp.multiply: (_multiply, lambda x, y: lambda g: (y * g,), lambda x, y: lambda g: (x * g,)),
    anp.true_divide: (_divide, lambda x, y: lambda g: (g / y,), lambda x, y: lambda g: (-g * x / y**2,)),
    anp.logaddexp: (
        _logaddexp,
        lambda x, y: lambda g: (g * share(x - y),),
        lambda x, y: lambda g: (g * share(y - x),),
    ),
}
UNARY: dict[Any, Callable[[Any, Any], Rule]] = {
    anp.negative: lambda value, x: lambda g: (-g,),
    anp.exp: lambda value, x: lambda g: (value * g,),
    anp.log: lambda value, x: lambda g: (g / x,),
    anp.sin: lambda value, x: lambda g: (g * np.cos(x),),
    anp.cos: lambda value, x: lambda g: (-g * np.sin(x),),
    anp.tanh: _tanh,
    anp.sqrt: lambda value, x: lambda g: (g * 0.5 * x**-0.5,),
    anp.sinh: lambda value, x: lambda g: (g * np.cosh(x),),
    anp.cosh: lambda value, x: lambda g: (g * np.sinh(x),),
    anp.log1p: lambda value, x: lambda g: (g / (x + 1),),
    anp.square: lambda value, x: lambda g: (g * 2 * x,),
}
_GETITEM = numpy_boxes.ArrayBox.__dict__["__getitem__"]
_INDICES = frozenset({int, slice})
_POWER = numpy_wrapper.power
_STOCK = stock_rules(primitive_vjps, *BINARY, *UNARY, anp.matmul, anp.sum, _POWER)


def of_two(fun: Function, operate: Function, box: Array, other: Array, is_reflected: bool = False) -> Found | None:
    """Operate on a traced array and something else, with Python's operators; None where autograd's way has to."""
    rules = BINARY.get(fun)
    if rules is None:
        return _product_of(operate, box, other, is_reflected) if fun is anp.matmul else None
    x, node = box._value, box._node
    kind = type(x)
    if kind is np.ndarray:
        shape = x.shape
        if x.dtype is not _FLOAT or 1 in shape or not shape:  # along an axis of one a cotangent may have been broadcast
            return None
    elif kind is np.float64:
        shape = ()
    elif kind is type(box):
        return _of_two_traced(fun, operate, box, other, is_reflected)
    else:
        return None
    if primitive_vjps.get(fun) is not _STOCK[fun]:
        return None
    other_kind = type(other)
    if other_kind is type(box):
        y = other._value
        if other._trace != box._trace or type(y) is type(box):
            return _of_two_traced(fun, operate, box, other, is_reflected)
        if type(other._node) is not type(node) or type(y) is not kind:
            return None
        if y.dtype is not _FLOAT or y.shape != shape:
            return None
        parents: Parts = (node, other._node)
        value, rule = operate(x, y), rules[0](x, y)
        whole: Any = kind
    elif other_kind in _NUMBERS or (other_kind is np.ndarray and other.dtype is _FLOAT):
        parents = (node,)
        whole = kind if other_kind in _NUMBERS or other.shape == shape else None
        value, look = operate(other, x) if is_reflected else operate(x, other), None
        if other_kind is np.ndarray and fun not in SHAPES_ONLY:
            other, look = held(other)
        rule = rules[2](other, x) if is_reflected else rules[1](x, other)
        rule = rule if look is None else look(rule)
    else:
        return None
    if type(value) is not (np.ndarray if whole is None else kind):
        return None
    return value, parents, _fitting(rule, whole, shape)


def _of_two_traced(fun: Function, operate: Function, box: Array, other: Array, is_reflected: bool) -> Found | None:
    """Do so where somebody traces one of their values too, who began before."""
    x, node = box._value, box._node
    shape = x.shape
    if not is_double(x) or 1 in shape or primitive_vjps.get(fun) is not _STOCK[fun]:
        return None
    parents: Parts = (node,)
    y, kind, rules = other, type(other), BINARY[fun]
    if kind is type(box) and other._trace == box._trace:
        y, parents = other._value, (node, other._node)
        if type(other._node) is not type(node) or not is_double(y) or y.shape != shape:
            return None
    elif kind is type(box):
        if other._trace > box._trace or not is_double(y):
            return None
    elif kind not in _NUMBERS and not (kind is np.ndarray and y.dtype is _FLOAT):
        return None
    value, look = operate(y, x) if is_reflected else operate(x, y), None
    if not is_double(value):
        return None
    if kind is np.ndarray and fun not in SHAPES_ONLY:
        y, look = held(y)
    left, right = (y, x) if is_reflected else (x, y)
    rule = rules[0 if len(parents) == 2 else 2 if is_reflected else 1](left, right)
    is_whole = value.shape == shape
    return value, parents, _fitting(rule if look is None else look(rule), type(box) if is_whole else None, shape)


def of_ufunc(ufunc: np.ufunc, inputs: Sequence[Any], kind: type[Any]) -> tuple[Any, Found] | None:
    """Call a ufunc with traced arrays, which are of some kind; return one of these too."""
    if len(inputs) == 2:
        found = OPERATIONS.get(ufunc)
        if found is None:
            return None
        box, other, is_reflected = sides_of(inputs, kind)
        recorded = of_two(*found, box, other, is_reflected)
        return None if recorded is None else (box, recorded)
    fun, box = FUNCTIONS.get(ufunc), inputs[0]
    if fun is None or primitive_vjps.get(fun) is not _STOCK[fun]:
        return None
    x = box._value
    kind_of_x = type(x)
    if not (_is_array(x) if kind_of_x is np.ndarray else kind_of_x is np.float64 or is_double(x)):
        return None
    value = ufunc(x)
    if type(value) is not kind_of_x:
        return None
    return box, (value, (box._node,), UNARY[fun](value, x))


def entry_of(box: Array, where: Index) -> Found | None:
    """Return what stands at whole numbers and slices."""
    x = box._value
    if not _is_array(x):
        return None
    if type(where) in _INDICES or (type(where) is tuple and _INDICES.issuperset(map(type, where))):
        value = x[where]
        return value, (box._node,), vjp_rule(_GETITEM)((0,), value, (x, where), {})
    return None


def sum_of(box: Array, axis: Axis) -> Found | None:
    """Return the sum of an array, or the sums along one axis."""
    x = box._value
    if not _is_array(x):
        return None
    if (axis is not None and type(axis) is not int) or primitive_vjps.get(anp.sum) is not _STOCK[anp.sum]:
        return None
    value, plain = np.add.reduce(x, axis) if type(x) is np.ndarray else x.sum(axis), pytree.plain(x)
    is_number, shape = type(pytree.plain(value)) is np.float64, plain.shape
    summed = range(plain.ndim) if axis is None else (axis % plain.ndim,)
    kept = tuple([1 if at in summed else length for at, length in enumerate(shape)])

    def pull(g: Cotangent) -> Parts:
        if is_number and type(g) is np.float64:
            return (np.full(shape, g + 0.0),)  # the sum turns -0.0 into 0.0, as autograd's does
        return (anp.reshape(g, kept) + np.zeros(shape),)

    return value, (box._node,), pull


def power_of(box: Array, exponent: float) -> Found | None:
    """Return the power of an array or a number by a Python number."""
    x = box._value
    kind = type(x)
    if kind is not np.float64 and (not is_double(x) or 1 in x.shape or (kind is np.ndarray and not x.ndim)):
        return None
    if primitive_vjps.get(_POWER) is not _STOCK[_POWER]:
        return None
    value = x**exponent
    if type(value) is not kind:
        return None

    def rule(g: Cotangent) -> Parts:
        return (g * exponent * x ** anp.where(exponent, exponent - 1, 1.0),)

    return value, (box._node,), _fitting(rule, kind, x.shape)


def _product_of(operate: Function, box: Array, other: Array, is_reflected: bool) -> Found | None:
    """Multiply vectors and matrices, of which one is traced, or both."""
    x, node = box._value, box._node
    parents: Parts = (node,)
    if type(other) is type(box):
        if other._trace > box._trace:
            return None
        if other._trace == box._trace:
            if type(other._node) is not type(node):
                return None
            other, parents = other._value, (node, other._node)
    elif type(other) is not np.ndarray:  # somebody else may trace it, who began later
        return None
    if not (_is_vector_or_matrix(x) and _is_vector_or_matrix(other)):
        return None
    if primitive_vjps.get(anp.matmul) is not _STOCK[anp.matmul]:
        return None
    value, look = operate(other, x) if is_reflected else operate(x, other), None
    if len(parents) == 1 and type(other) is np.ndarray:
        other, look = held(other)
    left, right = (other, x) if is_reflected else (x, other)
    if len(parents) == 2:
        of_left, of_right = _of_left(left.shape, right), _of_right(left, right.shape)
        return value, parents, lambda g: (of_left(g), of_right(g))
    of_one = _of_right(left, right.shape) if is_reflected else _of_left(left.shape, right)
    return value, parents, (lambda g: (of_one(g),)) if look is None else look(lambda g: (of_one(g),))


def _is_array(x: Array) -> bool:
    """Return whether something is an array of doubles, that somebody else may trace."""
    plain = pytree.plain(x)
    return type(plain) is np.ndarray and plain.dtype is _FLOAT and plain.ndim > 0


def _is_vector_or_matrix(x: Array) -> bool:
    plain = pytree.plain(x)
    return type(plain) is np.ndarray and plain.dtype is _FLOAT and 0 < plain.ndim < 3 and 1 not in plain.shape


def _of_left(shape: tuple[int, ...], right: Array) -> Callable[[Any], Any]:
    """Return the pullback of a product to its left operand, of some shape."""
    meta = shape, len(shape), _FLOAT, False

    def pull(g: Cotangent) -> Any:
        if len(shape) == 1 or not _is_array(g):
            return numpy_vjps.matmul_adjoint_0(right, g, meta, right.ndim)
        if right.ndim == 1:
            return np.matmul(g.reshape(-1, 1), right.reshape(1, -1))
        return np.matmul(g, right.swapaxes(0, 1))

    return pull


def _of_right(left: Array, shape: tuple[int, ...]) -> Callable[[Any], Any]:
    """Return the pullback of a product to its right operand, of some shape."""
    meta = shape, len(shape), _FLOAT, False

    def times_column(g: Cotangent) -> Any:
        return np.matmul(left.swapaxes(0, 1), g.reshape(-1, 1)).squeeze(1)

    def pull(g: Cotangent) -> Any:
        if left.ndim == 1 or not _is_array(g):
            return numpy_vjps.matmul_adjoint_1(left, g, left.ndim, meta)
        if len(shape) == 1:
            linearly = getattr(g, "linearly", None) if type(left) is np.ndarray else None
            quick = None if linearly is None else linearly(times_column, anp.reshape, anp.matmul, anp.squeeze)
            return times_column(g) if quick is None else quick
        return np.matmul(left.swapaxes(0, 1), g)

    return pull


def _fitting(rule: Rule, kind: type[Any] | None, shape: tuple[int, ...]) -> Rule:
    """Return a pullback that gives cotangents like their targets, which are real and of a shape, as autograd's do.

    `kind` is None where the targets were broadcast.
    """

    def pull(g: Cotangent) -> Parts:
        parts = rule(g)
        kind_of_g = type(g)
        if kind_of_g is kind or (kind_of_g is np.ndarray and kind is not None and shape):  # else it may be complex
            if g.shape == shape and g.dtype is _FLOAT:
                return parts
        target = shape, len(shape), _FLOAT, False
        return tuple([numpy_vjps.unbroadcast(part, target) for part in parts])

    return pull
