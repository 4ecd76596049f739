"""Operations of traced arrays past autograd's tracer: by stacks of tangents, or recorded on a tape at once.

What each of them does stands in `stacked_tangents` and `quick_tape`. Here is which of the two it is, and what comes out
of it: another traced array of the same trace. None is the answer where autograd's way has to be gone. Both modes are
written out in each function: a call more for each operation is seen in small chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dagad._tracing import quick_tangents, quick_tape, stacked_tangents
from dagad._tracing.in_place import CHANGED
from dagad._tracing.operands import operators
from dagad._tracing.quick_tangents import with_tangents
from dagad._tracing.stacked_tangents import FUNCTIONS, OPERATIONS
from dagad._types import Args, Array, Function, Index, Kwargs, Leaf, Value

QUICK = frozenset((*OPERATIONS, *FUNCTIONS))  # ufuncs
_ARITHMETIC = frozenset({np.ndarray, np.float64, float, int})
_NUMBERS = frozenset({int, float})
_AXIS = frozenset({"axis"})
_new = object.__new__
Operator = Callable[[Any, Any], Any]


def _recorded(box: Array, value: Value, parents: tuple[Any, ...], pullback: Function) -> Any:
    """Return a value that is recorded on the tape on which a traced array is."""
    node, found = _new(box._node.__class__), _new(box.__class__)
    node.parents, node.vjp = parents, pullback
    found._value, found._trace, found._node = value, box._trace, node
    return found


def quick_operators(function: Function, operate: Function) -> tuple[Operator, Operator]:
    """Return an operator and its reflection, which look first for a quick way.

    On a tape most operations are of two arrays or numbers, and pass what lists and sparse matrices are asked.
    """
    usual, usually_reflected = operators(function)

    def forward(self: Any, other: Array) -> Any:
        node = self._node
        if CHANGED or not getattr(node, "is_ours", False):
            return (function if type(other) in _ARITHMETIC or type(other) is type(self) else usual)(self, other)
        if node.moves:
            quick = stacked_tangents.of_two(function, operate, self, other)
            return usual(self, other) if quick is None else with_tangents(self, *quick)
        found = quick_tape.of_two(function, operate, self, other)
        if found is not None:
            return _recorded(self, *found)
        return (function if type(other) in _ARITHMETIC or type(other) is type(self) else usual)(self, other)

    def reflected(self: Any, other: Array) -> Any:
        node = self._node
        if CHANGED or not getattr(node, "is_ours", False):
            return function(other, self) if type(other) in _ARITHMETIC else usually_reflected(self, other)
        if node.moves:
            quick = stacked_tangents.of_two(function, operate, self, other, True)
            return usually_reflected(self, other) if quick is None else with_tangents(self, *quick)
        found = quick_tape.of_two(function, operate, self, other, True)
        if found is not None:
            return _recorded(self, *found)
        return function(other, self) if type(other) in _ARITHMETIC else usually_reflected(self, other)

    return forward, reflected


def quick_ufunc(box: Array, ufunc: np.ufunc, inputs: Sequence[Any]) -> Any:
    """Return what a ufunc gives; None where autograd's way has to."""
    node = box._node
    if not getattr(node, "is_ours", False):
        return None
    if node.moves:
        if len(inputs) == 2 and type(node.g) is list:
            fun, operate = OPERATIONS[ufunc]
            is_reflected = inputs[0] is not box
            pair = quick_tangents.of_two(fun, operate, box, inputs[not is_reflected], is_reflected)
            return None if pair is None else with_tangents(box, *pair)
        quick = stacked_tangents.of_ufunc(ufunc, inputs, type(box))
        return None if quick is None else with_tangents(*quick)
    found = quick_tape.of_ufunc(ufunc, inputs, type(box))
    return None if found is None else _recorded(found[0], *found[1])


def quick_sum(box: Array, args: Args, kwargs: Kwargs) -> Any:
    """Return the sum of a traced array, or the sums along one axis, as `np.sum` is asked; None for any other."""
    node, axis = box._node, None
    if kwargs or len(args) > 1:
        if len(args) + len(kwargs) > 2 or not _AXIS.issuperset(kwargs):
            return None
        axis = kwargs["axis"] if kwargs else args[1]
    if CHANGED or not args or args[0] is not box or not getattr(node, "is_ours", False):
        return None
    if node.moves:
        quick = stacked_tangents.sum_of(box, axis)
        return None if quick is None else with_tangents(box, *quick)
    found = quick_tape.sum_of(box, axis)
    return None if found is None else _recorded(box, *found)


def quick_power(box: Array, exponent: Leaf) -> Any:
    """Return the power of a traced array by a Python number; None for any other."""
    node = box._node
    if CHANGED or type(exponent) not in _NUMBERS or not getattr(node, "is_ours", False):
        return None
    if node.moves:
        quick = stacked_tangents.power_of(box, exponent)
        return None if quick is None else with_tangents(box, *quick)
    found = quick_tape.power_of(box, exponent)
    return None if found is None else _recorded(box, *found)


def quick_entry(box: Array, where: Index) -> Any:
    """Return what stands at whole numbers and slices of a traced array; None for other indices."""
    node = box._node
    if not getattr(node, "is_ours", False):
        return None
    if node.moves:
        quick = stacked_tangents.entry_of(box, where)
        return None if quick is None else with_tangents(box, *quick)
    found = quick_tape.entry_of(box, where)
    return None if found is None else _recorded(box, *found)


def quick_slope(box: Array, function: Function, slope: Function) -> Any:
    """Return a function of dagad's own of the entries of an array, from its slope; None where autograd's way has to."""
    if CHANGED or not getattr(box._node, "moves", False):
        return None
    quick = quick_tangents.of_slope(box, function, slope)
    return None if quick is None else with_tangents(box, *quick)


def quick_linear(box: Array, function: Function, *primitives: Function) -> Any:
    """Return a linear function of an array, of what is made of these primitives; None where autograd's way has to."""
    if CHANGED or not getattr(box._node, "moves", False):
        return None
    quick = quick_tangents.of_linear(box, function, *primitives)
    return None if quick is None else with_tangents(box, *quick)


def quick_list(parts: Sequence[Any], kind: type[Any]) -> Any:
    """Return a list of numbers, some of which move by stacks of tangents, as an array; None for any other."""
    quick = None if CHANGED else stacked_tangents.list_of_numbers(parts, kind)
    return None if quick is None else with_tangents(*quick)
