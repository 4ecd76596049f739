"""A traced array: autograd's box with numpy's protocols on top, in dagad's own traces only.

`patches` sees to it that what dagad traces is in such boxes. What others trace is in autograd's own, which stay as they
are: numpy treats these as ever.
"""

from __future__ import annotations

import copy
import functools
import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import Box

from dagad._errors import ClosureError, NotDifferentiableError
from dagad._tracing import equalities, patterns, refusals
from dagad._tracing.caught import refused
from dagad._tracing.in_place import CHANGED, as_part, changed, refuse_stale_memory
from dagad._tracing.numpy_protocols import CONSTANT, UFUNCS, call_function, call_ufunc, opened
from dagad._tracing.operands import SEQUENCES, array_of, operators
from dagad._tracing.own_rules import REFUSERS, refuse_users_rule
from dagad._tracing.private import (
    box_types,
    new_box as stock_new_box,
    numpy_boxes,
    numpy_wrapper,
    subvals,
    trace_primitives_map,
)
from dagad._tracing.quick_ways import (
    QUICK,
    quick_entry,
    quick_linear,
    quick_list,
    quick_operators,
    quick_power,
    quick_slope,
    quick_sum,
    quick_ufunc,
)
from dagad._tracing.recalled import SMALLEST, suspect, suspect_nothing_left
from dagad._tracing.texts import Digits, numbered
from dagad._types import AnyNode, Args, Array, Axis, DType, Function, Index, Kwargs, Leaf, Value
from dagad._values import pytree


def _power_of(base: Array, exponent: Array) -> Any:
    return power(base, exponent)


_stock_sum = numpy_boxes.ArrayBox.__dict__["sum"]
_stock_getitem = numpy_boxes.ArrayBox.__dict__["__getitem__"]
_usual_power = operators(_power_of)[0]


def _quotient_and_rest(left: Array, right: Array) -> Any:
    return left // right, left % right


_WORDS = (str, bytes)  # ufuncs compare numbers with none of these, arrays do
IN_ANOTHER_WAY = CONSTANT | {np.sign, np.frexp}  # than by their primitive, whatever that is; see `call_ufunc`


class OwnNode:
    """Marks the nodes of dagad's own traces. Others' are none of our business.

    A copy of a traced value has its node, by whatever way it is copied: Python would copy the tape otherwise, and the
    derivative of the copy would end there.
    """

    __slots__ = ()
    is_ours = True
    moves = False  # whether it has tangents, of forward mode

    def __copy__(self) -> OwnNode:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnNode:
        return self

    def __reduce_ex__(self, protocol: object) -> Any:
        raise ClosureError(
            "A value being differentiated can't be pickled: what came out of the pickle would be a constant. Pass it "
            "to the function as an argument, and copy it with `copy.deepcopy` if it is to be copied."
        )


class TracedArray(numpy_boxes.ArrayBox):  # type: ignore[misc]  # autograd has no types
    """An array that dagad traces."""

    __slots__ = ()
    __pandas_priority__ = 10_000  # `series * traced` is ours, and a traced array

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if ufunc in QUICK and not kwargs and not CHANGED and method == "__call__":  # nearly always
            quick = quick_ufunc(self, ufunc, inputs)
            if quick is not None:
                return quick
        if not SEQUENCES.isdisjoint(map(type, inputs)):
            inputs = tuple(map(array_of, inputs))
        if CHANGED:
            refuse_stale_memory(inputs)
        if not kwargs and method == "__call__" and ufunc not in IN_ANOTHER_WAY:
            quick = quick_ufunc(self, ufunc, inputs) if ufunc in QUICK else None
            if quick is not None:
                return quick
            fun = trace_primitives_map.get(ufunc) or UFUNCS.get(ufunc)
            if fun is not None:
                try:
                    found = fun(*inputs, called_by_autograd_dispatcher=True)
                    if ufunc in equalities.OF_ENTRIES:
                        equalities.noted(found, inputs, equalities.OF_ENTRIES[ufunc])
                    return found if ufunc.nout == 1 else opened(found)
                except NotImplementedError as error:
                    if not isinstance(error.__cause__, TypeError):  # not for what stands beside a traced array
                        raise
        return call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Function, types: Iterable[type], args: Args, kwargs: Kwargs) -> Any:
        if func is np.sum and (quick := quick_sum(self, args, kwargs)) is not None:
            return quick
        if CHANGED:
            refuse_stale_memory(pytree.flatten((args, kwargs))[0])
        if func in equalities.OF_KEYS:
            return equalities.noted_as_key(func, call_function(func, args, kwargs), args, kwargs)
        return call_function(func, args, kwargs)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise refused(self, NotDifferentiableError(refusals.of_conversion()))

    def __setitem__(self, where: Index, value: Value) -> None:
        raise refused(self, NotDifferentiableError(refusals.of_assignment()))

    def __float__(self) -> float:
        raise refused(self, NotDifferentiableError(refusals.of_number()))

    __int__ = __complex__ = __trunc__ = item = tolist = __float__

    def __index__(self) -> int:
        raise refused(self, NotDifferentiableError(refusals.of_index()))

    def __repr__(self) -> str:
        return f"<traced {pytree.plain(self)!r}>"

    def __str__(self) -> str:
        return numbered(f"traced {pytree.plain(self)!r}")

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        suspect([self], may_tell=True)  # within a longer text it is no key of its own any more
        return Digits(format(pytree.plain(self), spec))

    def __getattr__(self, name: str) -> Any:
        if hasattr(np.ndarray, name) and not name.startswith("__"):
            raise AttributeError(
                f"A value being differentiated has no `{name}`, which an ordinary array has. Write it with a function "
                "of numpy that returns a new array."
            )
        raise AttributeError(f"A value being differentiated has no `{name}`.")

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __len__(self) -> int:
        return patterns.length(np.shape(pytree.plain(self)), sys._getframe(1))

    __add__, __radd__ = quick_operators(anp.add, operator.add)
    __sub__, __rsub__ = quick_operators(anp.subtract, operator.sub)
    __mul__, __rmul__ = quick_operators(anp.multiply, operator.mul)
    __truediv__, __rtruediv__ = quick_operators(anp.true_divide, operator.truediv)
    __floordiv__, __rfloordiv__ = operators(anp.floor_divide)
    __mod__, __rmod__ = operators(anp.mod)
    __matmul__, __rmatmul__ = quick_operators(anp.matmul, operator.matmul)
    __rpow__ = operators(_power_of)[1]

    def __pow__(self, other: Array) -> Any:
        quick = quick_power(self, other)
        return _usual_power(self, other) if quick is None else quick

    def __eq__(self, other: object) -> Any:
        if isinstance(other, _WORDS):
            return pytree.plain(self) == other
        return equalities.noted(super().__eq__(other), (self, other))

    def __ne__(self, other: object) -> Any:
        if isinstance(other, _WORDS):
            return pytree.plain(self) != other
        return equalities.noted(super().__ne__(other), (self, other), of_equal=False)

    __hash__ = numpy_boxes.ArrayBox.__hash__

    def __neg__(self) -> Any:
        quick = None if CHANGED else quick_ufunc(self, np.negative, (self,))
        return anp.negative(self) if quick is None else quick

    def __getitem__(self, where: Index) -> Any:
        if CHANGED:
            with as_part(self, where):
                return _stock_getitem(self, where)
        quick = quick_entry(self, where)
        return _stock_getitem(self, where) if quick is None else quick

    def __pos__(self) -> Any:
        return anp.positive(self)

    __divmod__, __rdivmod__ = operators(_quotient_and_rest)

    def __round__(self, n: int = 0) -> Any:
        return np.round(self, n)

    def round(self, decimals: int = 0) -> Any:
        """Return the entries with so many decimals, which have no derivative."""
        return np.round(self, decimals)

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        """Return the array in another shape, given as one argument or as several."""
        where = shape[0] if len(shape) == 1 else shape
        if order != "C":
            return anp.reshape(self, where, order=order)
        quick = quick_linear(self, lambda array: array.reshape(where), anp.reshape)
        return anp.reshape(self, where) if quick is None else quick

    def transpose(self, *axes: Any) -> Any:
        """Return the array with its axes in another order, given as one argument or as several."""
        return anp.transpose(self, axes[0] if len(axes) == 1 else axes or None)

    def astype(self, dtype: DType, order: str = "K", casting: str = "unsafe", **options: bool) -> Any:
        """Return the array with entries of another type."""
        del order, casting
        if CHANGED:
            refuse_stale_memory([self])
        return call_function(np.astype, (self, dtype), {"copy": options.get("copy", True)})

    def clip(self, *bounds: Any, **kwargs: Any) -> Any:
        """Return the array with its entries between two bounds."""
        return call_function(np.clip, (self, *bounds), kwargs)

    def sum(self, *args: Any, **kwargs: Any) -> Any:
        """Return the sum, or the sums along axes."""
        quick = quick_sum(self, (self, *args), kwargs)
        return _stock_sum(self, *args, **kwargs) if quick is None else quick

    def compress(self, condition: Array, axis: Axis = None) -> Any:
        """Return the entries where a condition is true."""
        return anp.compress(condition, self, axis)

    def dot(self, other: Array) -> Any:
        """Return the product of two arrays."""
        return call_function(np.dot, (self, other), {})

    def flatten(self, order: str = "C") -> Any:
        """Return a copy of the entries in one dimension."""
        return self.ravel(order).copy()

    def copy(self, order: str = "C") -> Any:
        """Return a copy: the same value in memory of its own."""
        if CHANGED:
            refuse_stale_memory([self])
        return TracedArray(_copied(self._value, order), self._trace, self._node)

    def __copy__(self) -> Any:
        return self.copy("K")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if CHANGED:
            refuse_stale_memory([self])
        return TracedArray(copy.deepcopy(self._value, memo), self._trace, self._node)

    def __bool__(self) -> bool:
        if CHANGED:
            refuse_stale_memory([self])
        return bool(self._value)

    def conj(self) -> Any:
        """Return the complex conjugate; of real numbers it is the array itself, as in numpy."""
        return anp.conj(self) if self.dtype.kind == "c" else self

    def with_slope(self, function: Function, slope: Function) -> Any:
        """Return a function of dagad's own of the entries, from its slope; None where autograd's way has to."""
        return quick_slope(self, function, slope)

    def linearly(self, function: Function, *primitives: Function) -> Any:
        """Return a linear function that is made of some primitives; None where autograd's way has to."""
        return quick_linear(self, function, *primitives)

    conjugate = conj
    shape = property(lambda self: np.shape(pytree.plain(self)))
    ndim = property(lambda self: np.ndim(pytree.plain(self)))
    real = property(lambda self: anp.real(self))
    imag = property(lambda self: anp.imag(self))
    mT = property(lambda self: anp.swapaxes(self, -1, -2))
    flat = property(lambda self: anp.ravel(self))
    nbytes = property(lambda self: pytree.plain(self).nbytes)
    itemsize = property(lambda self: pytree.plain(self).itemsize)


def with_value(leaf: Leaf, value: Value) -> Any:
    """Return a leaf, traced or not, with another plain value: of other bits, or in other memory."""
    if type(leaf) not in box_types:
        return value
    return new_box(with_value(leaf._value, value), leaf._trace, leaf._node)


def _copied(value: Value, order: Any) -> Any:
    return value.copy(order) if isinstance(value, np.ndarray | TracedArray) else value


def _in_place(forward: Function, name: str) -> Any:
    def change(self: Any, other: Array) -> Any:
        return changed(self, forward(self, other), name)

    return change


def _asking(function: Function) -> Any:
    """Return a method that asks a traced array for what has no derivative: no tape looks at it then."""

    @functools.wraps(function)
    def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        if CHANGED:
            refuse_stale_memory([self, *args])
        return function(self, *args, **kwargs)

    return ask


def _comparing(function: Function) -> Any:
    """Return a comparison that notes a distance from what is known, where that is zero."""

    @functools.wraps(function)
    def compare(self: Any, other: Any) -> Any:
        if type(other) is float and 0.0 < other <= SMALLEST:
            suspect_nothing_left(self)
        return function(self, other)

    return compare


_IN_PLACE = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "matmul": "matmul",
    "pow": "power",
}
_ASKING = "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ all any argmax argmin argpartition argsort nonzero searchsorted"
for _name, _ufunc in _IN_PLACE.items():
    setattr(TracedArray, f"__i{_name}__", _in_place(getattr(TracedArray, f"__{_name}__"), _ufunc))
for _name in ("__lt__", "__le__", "__gt__", "__ge__"):
    setattr(TracedArray, _name, _comparing(getattr(TracedArray, _name)))
for _name in _ASKING.split():
    setattr(TracedArray, _name, _asking(getattr(TracedArray, _name)))


def array_of_numbers(parts: Sequence[Any]) -> Any:
    """Return a list of numbers, some of which move by stacks of tangents, as an array; None for any other."""
    return quick_list(parts, TracedArray)


patterns.fit_as_arrays_do(TracedArray)


# What dagad's traces are made of

_ARRAY_BOXES = frozenset({numpy_boxes.ArrayBox, TracedArray})
_ARRAYS = _ARRAY_BOXES | {kind for kind, box in Box.type_mappings.items() if box is numpy_boxes.ArrayBox}
_PLAIN = frozenset({np.ndarray, np.float64, float, int, bool, complex, str, tuple, list, slice, type(None)})
_NO_OVERRIDE = (None, np.ndarray.__array_ufunc__)


def new_box(value: Value, trace: int, node: AnyNode) -> Any:
    """Return a value as a trace sees it."""
    if isinstance(node, OwnNode) and type(value) in _ARRAYS:
        return TracedArray(value, trace, node)
    return stock_new_box(value, trace, node)


def is_own(box: Array) -> bool:
    """Return whether a traced value is of a derivative of dagad's."""
    return isinstance(box._node, OwnNode)


def find_top_boxed_args(args: Args) -> tuple[list[tuple[int, Any]], int, Any, bool]:
    """Return the arguments of the innermost trace, and whether other libraries have a say in a ufunc of arrays."""
    boxes: list[tuple[int, Any]] = []
    top, node, has_arrays, has_strangers = -1, None, False, False
    for argnum, arg in enumerate(args):
        kind = type(arg)
        if kind in box_types:
            has_arrays = has_arrays or kind in _ARRAY_BOXES
            trace = arg._trace
            if trace > top:
                boxes, top, node = [(argnum, arg)], trace, type(arg._node)
            elif trace == top:
                boxes.append((argnum, arg))
        elif kind not in _PLAIN:
            has_strangers = has_strangers or getattr(kind, "__array_ufunc__", None) not in _NO_OVERRIDE
            if kind in REFUSERS:
                refuse_users_rule(sys._getframe(1), arg)
    if CHANGED and top in CHANGED:
        refuse_stale_memory([box for _, box in boxes])
    return boxes, top, node, has_arrays and has_strangers


# Powers: numpy's `**` and Python's differ from `numpy.power` in the last bit (for a number, or an array of complex
# ones). Traced or not, a chunk must have the same value.

_NUMERIC = (Box, np.ndarray, np.generic, int, float, complex)


def power(base: Array, exponent: Array) -> Any:
    """Return ``base ** exponent``, at least one of them traced; for autograd it is its own `power`."""
    boxed, trace, kind, _ = find_top_boxed_args((base, exponent))
    if not issubclass(kind, OwnNode) or not (isinstance(base, _NUMERIC) and isinstance(exponent, _NUMERIC)):
        return numpy_wrapper.power(base, exponent)
    values = subvals((base, exponent), [(argnum, box._value) for argnum, box in boxed])
    answer = _power(*values)
    argnums, parents = tuple(argnum for argnum, _ in boxed), tuple(box._node for _, box in boxed)
    return new_box(answer, trace, kind(answer, numpy_wrapper.power, values, {}, argnums, parents))


_PYTHON = frozenset({int, bool, float, complex})


def _power(base: Array, exponent: Array) -> Any:
    """Return what untraced code gets; inf and nan, as from autograd, where Python's numbers raise or turn complex."""
    if type(base) not in _PYTHON or type(exponent) not in _PYTHON:
        return base**exponent
    try:
        answer = base**exponent
    except ArithmeticError:
        return np.power(base, exponent)
    if not isinstance(answer, complex):
        return np.float64(answer)
    return np.complex128(answer) if complex in (type(base), type(exponent)) else np.power(base, exponent)
