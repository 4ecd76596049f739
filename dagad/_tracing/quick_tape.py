"""Arithmetic on a tape past autograd's tracer: the commonest operations are recorded at once, with autograd's rules.

autograd's way of recording an operation asks which arguments are traced, by whom, and of what shape, in ten calls of
Python: of small arrays that takes several times as long as the arithmetic. Here are the operators and a few functions
of real numbers and arrays: of one shape, or beside constants. What is computed, forth and back, is what autograd's
rules say, in the same order, so the bits are the same. All else (traced arrays of other shapes, other numbers, values
that somebody else traces, rules of a user's) goes autograd's way. Forward mode has the like in `stacked_tangents`.

State: `_STOCK`, autograd's own rules of these operations, as they are when this is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._tracing.private import numpy_boxes, numpy_vjps, primitive_vjps
from dagad._tracing.rules import vjp_rule
from dagad._tracing.stacked_tangents import FUNCTIONS, OPERATIONS, sides_of
from dagad._types import Array, Cotangent, Function, Index

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


def _same(x: Array, y: Array) -> Rule:
    del x, y
    return lambda g: (g,)


def _negated(x: Array, y: Array) -> Rule:
    del x, y
    return lambda g: (-g,)


BINARY: dict[Any, tuple[Callable[[Any, Any], Rule], ...]] = {
    anp.add: (_add, _same, _same),
    anp.subtract: (_subtract, _same, _negated),
    anp.multiply: (_multiply, lambda x, y: lambda g: (y * g,), lambda x, y: lambda g: (x * g,)),
    anp.true_divide: (_divide, lambda x, y: lambda g: (g / y,), lambda x, y: lambda g: (-g * x / y**2,)),
}
UNARY: dict[Any, Callable[[Any, Any], Rule]] = {
    anp.negative: lambda value, x: lambda g: (-g,),
    anp.exp: lambda value, x: lambda g: (value * g,),
    anp.log: lambda value, x: lambda g: (g / x,),
    anp.sin: lambda value, x: lambda g: (g * np.cos(x),),
    anp.cos: lambda value, x: lambda g: (-g * np.sin(x),),
    anp.tanh: lambda value, x: lambda g: (g / np.cosh(x) ** 2,),
    anp.sqrt: lambda value, x: lambda g: (g * 0.5 * x**-0.5,),
}
_GETITEM = numpy_boxes.ArrayBox.__dict__["__getitem__"]
_INDICES = frozenset({int, slice})
_STOCK = {fun: primitive_vjps[fun] for fun in (*BINARY, *UNARY)}


def of_two(fun: Function, operate: Function, box: Array, other: Array, is_reflected: bool = False) -> Found | None:
    """Operate on a traced array and something else, with Python's operators; None where autograd's way has to."""
    rules = BINARY.get(fun)
    if rules is None:
        return None
    x, node = box._value, box._node
    kind = type(x)
    if kind is np.ndarray:
        shape = x.shape
        if x.dtype is not _FLOAT or 1 in shape:  # along an axis of one, a cotangent may have been broadcast
            return None
    elif kind is np.float64:
        shape = ()
    else:
        return None
    if primitive_vjps.get(fun) is not _STOCK[fun]:
        return None
    other_kind = type(other)
    if other_kind is type(box):
        y = other._value
        if other._trace != box._trace or type(other._node) is not type(node) or type(y) is not kind:
            return None
        if y.dtype is not _FLOAT or y.shape != shape:
            return None
        parents: Parts = (node, other._node)
        value, rule = operate(x, y), rules[0](x, y)
        whole: Any = kind
    elif other_kind in _NUMBERS or (other_kind is np.ndarray and other.dtype is _FLOAT):
        parents = (node,)
        whole = kind if other_kind in _NUMBERS or other.shape == shape else None
        if is_reflected:
            value, rule = operate(other, x), rules[2](other, x)
        else:
            value, rule = operate(x, other), rules[1](x, other)
    else:
        return None
    if type(value) is not (np.ndarray if whole is None else kind):
        return None
    return value, parents, _fitting(rule, whole, shape)


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
    if kind_of_x is not np.float64 and not (kind_of_x is np.ndarray and x.dtype is _FLOAT):
        return None
    value = ufunc(x)
    if type(value) is not kind_of_x:
        return None
    return box, (value, (box._node,), UNARY[fun](value, x))


def entry_of(box: Array, where: Index) -> Found | None:
    """Return what stands at whole numbers and slices."""
    x = box._value
    if type(x) is not np.ndarray or x.dtype is not _FLOAT:
        return None
    if type(where) in _INDICES or (type(where) is tuple and _INDICES.issuperset(map(type, where))):
        value = x[where]
        return value, (box._node,), vjp_rule(_GETITEM)((0,), value, (x, where), {})
    return None


def _fitting(rule: Rule, kind: type[Any], shape: tuple[int, ...]) -> Rule:
    """Return a pullback that gives cotangents like their targets, which are real and of a shape, as autograd's do.

    `kind` is None where the targets were broadcast.
    """

    def pull(g: Cotangent) -> Parts:
        parts = rule(g)
        if type(g) is kind and g.shape == shape and g.dtype is _FLOAT:  # nearly always; else it may be complex
            return parts
        target = shape, len(shape), _FLOAT, False
        return tuple([numpy_vjps.unbroadcast(part, target) for part in parts])

    return pull
