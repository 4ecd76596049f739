"""What is done to whole arrays of recorded numbers: arithmetic entry by entry, in floats, and functions by numpy.

An array of a few states costs numpy more calls than its entries cost Python. Arithmetic has the same bits either way. A
function of numpy's may compute several entries otherwise than one, and a product of a matrix adds up in an order of its
own: these are called with arrays in a program, too, as the tracer calls them. What depends on parameters alone stays as
it is while an equation is integrated: the tracer finds it once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import autograd.numpy as anp
import numpy as np

from dagad._tracing.forward import TangentNode
from dagad._tracing.own_rules import REFUSERS
from dagad._tracing.patches import patches
from dagad._tracing.private import box_types, numpy_wrapper
from dagad._tracing.stacked_tangents import FLOAT, NUMBERS, has_stock_rule
from dagad._tracing.traced_array import TracedArray, new_box
from dagad._types import Args, Array, Function, Kwargs, Leaf
from dagad.solvers._recorded_rules import OF_ONE, OF_TWO, POWER, Rule
from dagad.solvers._recorded_splines import line_at
from dagad.solvers._recording import Number, Numbers, Recording, is_recorded, leave, level_of, of_two

_ADDED = frozenset({np.add, np.subtract})
_PRODUCTS = frozenset({np.matmul, np.dot})
# Numbers of an array with its tangents, and lines of a program: of more, following arrays is as quick (measured).
MOST_ENTRIES, MOST_OF_ARRAYS = 60, 1000


def _operators(ufunc: np.ufunc) -> tuple[Any, Any]:
    def forward(self: Numbers, other: Leaf) -> Any:
        return _of_two(self.recording, ufunc, self, other)

    def reflected(self: Numbers, other: Leaf) -> Any:
        return _of_two(self.recording, ufunc, other, self)

    return forward, reflected


class RecordedArray(Numbers):
    """An array of numbers, and what is done to it as a whole."""

    __slots__ = ()
    __add__, __radd__ = _operators(np.add)
    __sub__, __rsub__ = _operators(np.subtract)
    __mul__, __rmul__ = _operators(np.multiply)
    __truediv__, __rtruediv__ = _operators(np.true_divide)
    __matmul__, __rmatmul__ = _operators(np.matmul)
    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ipow__ = __imatmul__ = Numbers._refused  # others may look at it

    def __neg__(self) -> Any:
        return _of_one(self, np.negative)

    def __pow__(self, exponent: Leaf) -> Any:
        recording = self.recording
        if self.still is not None:
            return of_still(recording, np.power, (self, exponent))
        if type(exponent) not in NUMBERS:
            recording.give_up()
        power, less = (recording.constant(each) for each in (exponent, exponent - 1 if exponent else 1.0))
        return _by_numpy(self, POWER, lambda x: x**exponent, f"{{x}} ** {power}", y=power, less=less)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs:
            self.recording.give_up()
        return _of_one(self, ufunc) if len(inputs) == 1 else _of_two(self.recording, ufunc, *inputs)

    def __array_function__(self, func: Function, types: Any, args: Args, kwargs: Kwargs) -> Any:
        recording = self.recording
        if kwargs:
            recording.give_up()
        if _are_still(recording, args):
            return of_still(recording, func, args)
        if func is np.concatenate and len(args) == 1 and type(args[0]) in (list, tuple):
            return _joined(recording, args[0])
        if func is np.interp and len(args) == 3:
            return line_at(*args)
        if func is np.sum and len(args) == 1:
            return _sum(self)
        return _product(recording, *args) if func is np.dot and len(args) == 2 else recording.give_up()


# A primitive that the user gave a rule has not that of its code.
REFUSERS[RecordedArray] = leave
box_types.add(RecordedArray)  # as in `_recording`


def _of_one(x: Numbers, ufunc: np.ufunc) -> Any:
    if x.still is not None:
        return of_still(x.recording, ufunc, (x,))
    if ufunc not in OF_ONE:
        x.recording.give_up()
    if ufunc is np.negative:
        return x.recording.of_parts([-each for each in x])
    return _by_numpy(x, OF_ONE[ufunc], ufunc, f"{ufunc.__name__}({{x}})")


# What depends on parameters alone


def entries(recording: Recording, leaf: Array, stack: Array, param: int | None = None) -> Any:
    """Return what moves by a stack as a number or an array, whose numbers become constants where somebody takes them.

    `param` is which parameter it is; None for what was found from several.
    """
    flat, tangents = np.ravel(leaf), stack.reshape(len(stack), -1)
    known: dict[int, Number] = {}
    if param is None:
        recording.is_portable = False

    def number(index: int) -> Number:
        if index not in known:
            name = recording.constant(float(flat[index]))
            constants = {f"{name}_{n}": float(row[index]) for n, row in enumerate(tangents[: recording.count])}
            recording.constants.update(constants)
            recording.tangents.update(constants)
            if param is not None:
                recording.taken[name] = param, index
            known[index] = Number(recording, name, flat[index], moves=True, varies=False)
        return known[index]

    indices = np.arange(flat.size).reshape(np.shape(leaf))
    return recording.array(recording, indices, number, (leaf, stack)) if indices.ndim else number(0)


def _are_still(recording: Recording, args: Any) -> bool:
    """Return whether all arrays of numbers among arguments are of parameters alone, and nothing else is recorded."""
    for arg in args:
        if type(arg) in (list, tuple):
            if not _are_still(recording, arg):
                return False
        elif is_recorded(arg):
            if arg.still is None or arg.recording is not recording:
                return False
        elif level_of(arg) >= 0:
            return False
    return True


def of_still(recording: Recording, function: Function, args: Args) -> Any:
    """Call a function as the tracer does, with parameters and constants: what it finds, a number too, is of these."""
    if not _are_still(recording, args):
        recording.give_up()
    recording.is_portable = False
    with patches.new_trace() as level:

        def boxed(arg: Any) -> Any:
            if type(arg) in (list, tuple):
                return type(arg)(map(boxed, arg))
            return new_box(arg.still[0], level, TangentNode.new_root(arg.still[1])) if is_recorded(arg) else arg

        found = function(*map(boxed, args))
        if type(found) is not TracedArray or found._trace != level:
            return found if type(found) in (np.ndarray, *NUMBERS) else recording.give_up()
        value, stack = found._value, found._node.g
    if type(value) not in (np.ndarray, np.float64) or value.dtype != FLOAT or type(stack) is not np.ndarray:
        recording.give_up()
    return entries(recording, value, stack)


def still_value(array: Numbers) -> Array:
    """Return what an array of parameters alone is while an equation is integrated."""
    recording = array.recording
    if array.still is None:
        recording.give_up()
    recording.is_portable = False
    return array.still[0]


# What depends on states


def _cells(recording: Recording, operand: Any) -> tuple[int | None, Sequence[Number]]:
    """Return how many numbers an operand has, None for one alone, and these."""
    if type(operand) is np.ndarray:
        operand = recording.of_constants(operand)
    if not is_recorded(operand):
        return None, [recording.number(operand)]
    is_large = operand.size * (1 + recording.count) > MOST_ENTRIES
    if operand.ndim != 1 or is_large or operand.recording is not recording:
        recording.give_up()
    return len(operand), [recording.number(each) for each in operand]


def _of_two(recording: Recording, ufunc: np.ufunc, first: Any, second: Any) -> Any:
    if _are_still(recording, (first, second)):
        return of_still(recording, ufunc, (first, second))
    if ufunc in _PRODUCTS:
        return _product(recording, first, second)
    if ufunc not in OF_TWO:
        recording.give_up()
    recording.most_lines = min(recording.most_lines, MOST_OF_ARRAYS)
    (n, xs), (m, ys) = _cells(recording, first), _cells(recording, second)
    count = max(n or 1, m or 1)
    if {n or 1, m or 1} - {1, count}:
        recording.give_up()
    found = []
    for index in range(count):
        x, y = xs[index % len(xs)], ys[index % len(ys)]
        found.append(of_two(recording, ufunc, x, y))
    moving = [(size, cells[0]) for size, cells in ((n, xs), (m, ys)) if cells[0].is_moving]
    if ufunc in _ADDED and len(moving) == 1 and moving[0][0] != count:  # a tangent is given its shape by a sum
        found = [recording.with_tangent_of(each, "{dx} + 0.0", each) for each in found]
    return recording.of_parts(found)


def _array(numbers: Sequence[Number]) -> str:
    return f"array([{', '.join(each.term for each in numbers)}], float)"


def _stack(recording: Recording, numbers: Sequence[Number]) -> str:
    rows = [", ".join(f"{each.term}_{number}" for each in numbers) for number in range(recording.count)]
    return f"array([{', '.join(f'[{row}]' for row in rows)}])"


def _values(numbers: Sequence[Number]) -> Any:
    return np.array([each.recorded_number for each in numbers], float)


def _by_numpy(x: Numbers, rule: Rule, function: Callable[[Any], Any], source: str, **names: str) -> Any:
    """Write a function of an array down, whose entries have their tangents one by one."""
    recording = x.recording
    _, numbers = _cells(recording, x)
    array = recording.named(_array(numbers), numbers)
    found = recording.several(f"({source.format(x=array)}).tolist()", function(_values(numbers)), numbers)
    if not numbers[0].is_moving:
        return recording.of_parts(found)
    if not has_stock_rule(rule.function):
        recording.give_up()
    factors = [""] * len(found)
    if rule.factor:
        factor = rule.factor.replace("float(", "(").format(x=array, **names)
        factors = recording.names_of(f"({factor}).tolist()", len(found), numbers, is_value=False)
    each = zip(found, numbers, factors, strict=True)
    return recording.of_parts([recording.with_tangent_of(value, rule.tangent, of, f) for value, of, f in each])


def _sum(x: Numbers) -> Any:
    recording = x.recording
    _, numbers = _cells(recording, x)
    found = recording.several(f"[float({_array(numbers)}.sum())]", np.atleast_1d(_values(numbers).sum()), numbers)
    if numbers[0].is_moving:
        if not has_stock_rule(anp.sum):
            recording.give_up()
        found = recording.with_tangents(found, f"{_stack(recording, numbers)}.sum(1).reshape(-1, 1).tolist()", numbers)
    return found[0]


def _joined(recording: Recording, parts: Sequence[Any]) -> Any:
    """Return arrays one after the other; where one moves all do, and the others have zeros for tangents."""
    if not has_stock_rule(numpy_wrapper.concatenate_args):
        recording.give_up()
    cells = [_cells(recording, part) for part in parts]
    if any(n is None for n, _ in cells):
        recording.give_up()
    return recording.of_parts([each for _, numbers in cells for each in numbers])


class _Side(NamedTuple):
    """A factor of a product: its name in the program and its value, the name of its stack if it moves, and numbers."""

    name: str
    value: np.ndarray
    stack: str
    numbers: Sequence[Number]


def _side(recording: Recording, operand: Any) -> _Side:
    if is_recorded(operand) and operand.still is not None:
        leaf, stack = operand.still
        recording.is_portable = False
        return _Side(recording.constant(leaf), leaf, recording.constant(stack), ())
    if type(operand) is np.ndarray and operand.dtype == FLOAT:
        return _Side(recording.constant(operand), operand, "", ())
    if not is_recorded(operand):
        recording.give_up()
    _, numbers = _cells(recording, operand)
    stack = (
        recording.named(_stack(recording, numbers), numbers, False) if numbers[0].is_moving and recording.count else ""
    )
    return _Side(recording.named(_array(numbers), numbers), _values(numbers), stack, numbers)


def _product(recording: Recording, first: Any, second: Any) -> Any:
    """Write a product of vectors, or of one and a matrix that does not vary, down."""
    if not has_stock_rule(anp.matmul) or not has_stock_rule(anp.dot):
        recording.give_up()
    x, y = _side(recording, first), _side(recording, second)
    if not {x.value.ndim, y.value.ndim} <= {1, 2}:
        recording.give_up()
    numbers, value, terms = [*x.numbers, *y.numbers], x.value @ y.value, []
    if x.stack:
        terms.append(f"{x.stack} @ {y.name}")
    if y.stack and y.value.ndim == 2:
        terms.append(f"{x.name} @ {y.stack}")
    elif y.stack:
        terms.append(f"{y.stack} @ {x.name}{'.T' if x.value.ndim == 2 else ''}")
    if value.ndim > 1:
        recording.give_up()
    source = f"({x.name} @ {y.name}).tolist()" if value.ndim else f"[float({x.name} @ {y.name})]"
    found = recording.several(source, np.atleast_1d(value), numbers)
    if terms:
        found = recording.with_tangents(found, f"({' + '.join(terms)}).reshape(-1, {len(found)}).tolist()", numbers)
    return recording.of_parts(found) if value.ndim else found[0]
