"""What a right-hand side is given while its operations are written down: numbers that note what is done to them.

A number knows what it is called in the program that is being written, whether it moves and whether it depends on the
time or on states. Anything else that somebody asks of it ends the recording; see `_recorded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._tracing.own_rules import REFUSERS
from dagad._tracing.private import box_types
from dagad._tracing.stacked_tangents import INDICES, NUMBERS, has_stock_rule
from dagad._types import Args, Function, Index, Kwargs, Leaf, Value
from dagad.solvers._recorded_rules import COMPARISONS, OF_ONE, OF_TWO, OPERATE, POWER, Rule

MOST_LINES = 10_000  # of a program: to compile them takes a tenth of a second


class NotRecorded(NotDifferentiableError):
    """Raised inside the user's function where it does what can't be written down; nobody else meets it."""


_KEPT = (
    "A right-hand side of a differential equation has kept a value of an earlier call, which belonged to a derivative. "
    "Keep nothing between calls: a slope is a function of the time and the states that it is given."
)


class Recording:
    """The operations of one call, as lines of a program; those of parameters alone are done once, ahead.

    A number of the name ``n`` has the tangents ``n_0``, ``n_1`` and so on, if it moves.

    Attributes
    ----------
    constants
        Numbers, functions and arrays that the program is given, by their names.
    ahead, body
        Lines, and whether each is there for values, too: others are for tangents alone.
    taken
        Constants that are parameters, by their names: which parameter, and which index in it.
    tangents
        Names of constants that are tangents of these.
    is_portable
        Whether the same is done at other parameters: nothing has been decided by these alone, or found beforehand.
    is_open
        Whether everything so far is written down, and more may come.
    most_lines
        Of more the recording is given up.
    array
        What arrays of numbers are, a kind of `Numbers`.
    is_sure
        Whether the function that is recorded is known not to ask what its arguments are.
    """

    def __init__(self, count: int, array: type[Numbers] | None = None, is_sure: bool = False) -> None:
        self.count, self.is_open, self.most_lines, self.is_sure = count, True, MOST_LINES, is_sure
        self.array = Numbers if array is None else array
        self.constants: dict[str, Any] = {}
        self.ahead: list[tuple[str, bool]] = []
        self.body: list[tuple[str, bool]] = []
        self.taken: dict[str, tuple[int, int]] = {}
        self.tangents: set[str] = set()
        self.is_portable = True
        self._n_names = 0

    def give_up(self) -> NoReturn:
        """Leave the function to the tracer, also where somebody catches this."""
        self.is_open = False
        raise NotRecorded(_KEPT)

    def constant(self, value: Value) -> str:
        """Return the name of something that stays as it is."""
        name = self._new_name("c")
        self.constants[name] = value
        return name

    def number(self, operand: Leaf) -> Number:
        """Return an operand as a number of this recording."""
        if type(operand) is Number and operand.recording is self and self.is_open:
            return operand
        if type(operand) not in NUMBERS or not self.is_open:
            self.give_up()
        value = float(operand) if type(operand) is np.float64 else operand  # which is slower
        return Number(self, self.constant(value), operand, moves=False, varies=False)

    def done(self, rule: Rule | None, value: Leaf, source: str, *operands: Number, **names: str) -> Number:
        """Write an operation down: how its value is found, and its tangents where it moves."""
        moves, varies = any(each.is_moving for each in operands), any(each.is_varying for each in operands)
        lines, name = self.body if varies else self.ahead, self._new_name("v")
        if (moves and (rule is None or not has_stock_rule(rule.function))) or self.n_lines > self.most_lines:
            self.give_up()
        lines.append((f"{name} = {source}", True))
        if moves and rule is not None:
            x, y = operands[0].term, operands[-1].term
            names |= {"v": name, "x": x, "y": y, "f": f"{name}_f"}
            if rule.factor:
                lines.append((f"{name}_f = {rule.factor.format(**names)}", False))
            for number in range(self.count):
                tangent = rule.tangent.format(dx=f"{x}_{number}", dy=f"{y}_{number}", **names)
                lines.append((f"{name}_{number} = {tangent}", False))
        return Number(self, name, value, moves, varies)

    def named(self, source: str, numbers: Sequence[Number], is_value: bool = True) -> str:
        """Write down what is made of numbers, an array for the most part; return its name."""
        return self.names_of(f"[{source}]", 1, numbers, is_value)[0]

    def names_of(self, source: str, n: int, numbers: Sequence[Number], is_value: bool = True) -> list[str]:
        """Write down what gives `n` parts, and return the names of these."""
        names = [self._new_name("v") for _ in range(n)]
        self._lines_of(numbers).append((f"{', '.join(names)}, = {source}", is_value))
        return names

    def several(self, source: str, values: np.ndarray, numbers: Sequence[Number]) -> list[Number]:
        """Write down what gives several numbers at once, which don't move."""
        varies = any(each.is_varying for each in numbers)
        names = self.names_of(source, len(values), numbers)
        return [Number(self, name, value, False, varies) for name, value in zip(names, values, strict=True)]

    def with_tangents(self, found: Sequence[Number], source: str, numbers: Sequence[Number]) -> list[Number]:
        """Write down what gives the tangents of several numbers at once, a row for each direction."""
        if self.count:
            rows = [", ".join(f"{each.term}_{number}" for each in found) for number in range(self.count)]
            self._lines_of(numbers).append((f"{', '.join(f'({row},)' for row in rows)}, = {source}", False))
        return [Number(self, each.term, each.recorded_number, True, each.is_varying) for each in found]

    def with_tangent_of(self, found: Number, tangent: str, of: Number, factor: str = "") -> Number:
        """Write down the tangents of a number, from those of another."""
        for number in range(self.count):
            own = f"{found.term}_{number}"
            line = tangent.format(dx=f"{of.term}_{number}", x=of.term, v=found.term, dv=own, f=factor)
            self._lines_of([found]).append((f"{found.term}_{number} = {line}", False))
        return Number(self, found.term, found.recorded_number, True, found.is_varying)

    def moving(self, number: Number) -> Number:
        """Return a number that has tangents, of zero where it did not move."""
        if number.is_moving:
            return number
        (name,) = self.names_of(f"[{number.term}]", 1, [number])
        return self.with_tangent_of(Number(self, name, number.recorded_number, False, number.is_varying), "0.0", number)

    def of_constants(self, constants: np.ndarray) -> Numbers:
        """Return an array that does not move as numbers."""
        if constants.dtype != float or not constants.ndim:
            self.give_up()
        flat = list(map(self.number, constants.flat))
        return self.array(self, np.arange(len(flat)).reshape(constants.shape), flat.__getitem__)

    def of_parts(self, parts: Sequence[Any]) -> Numbers:
        """Return numbers as an array, all of which move if one does."""
        cells = list(map(self.number, parts))
        if any(cell.is_moving for cell in cells):
            cells = list(map(self.moving, cells))
        return self.array(self, np.arange(len(cells)), cells.__getitem__)

    def _lines_of(self, numbers: Sequence[Number]) -> list[tuple[str, bool]]:
        if self.n_lines > self.most_lines:
            self.give_up()
        return self.body if any(each.is_varying for each in numbers) else self.ahead

    def decided(self, compare: Function, symbol: str, first: Leaf, second: Leaf) -> bool:
        """Return what a comparison finds; where it comes out otherwise, the program returns None."""
        x, y = self.number(first), self.number(second)
        outcome = bool(compare(x.recorded_number, y.recorded_number))
        if x.is_varying or y.is_varying:
            self.body.append((f"if ({x.term} {symbol} {y.term}) is not {outcome}: return None", True))
        elif x.is_moving or y.is_moving:
            self.is_portable = False
        return outcome

    @property
    def n_lines(self) -> int:
        """How many lines there are."""
        return len(self.ahead) + len(self.body)

    def _new_name(self, letter: str) -> str:
        self._n_names += 1
        return f"{letter}{self._n_names}"


# What the user's function is given


class _KnownByType(type):
    """Says what is an object of a class by its type alone: numpy asks it of operands, and loses an error."""

    def __instancecheck__(cls, instance: object) -> bool:
        return issubclass(type(instance), cls)


class Unrecorded(metaclass=_KnownByType):
    """What nobody can ask of what is recorded, without giving up."""

    __slots__ = ()
    recording: Recording
    recorded_level = 0  # see `_recorded_tangents`

    def _refused(self, *args: Any, **kwargs: Any) -> NoReturn:
        self.recording.give_up()

    __array__ = __float__ = __int__ = __complex__ = __index__ = __bool__ = __setitem__ = __contains__ = _refused
    __eq__ = __ne__ = __hash__ = _refused  # who asks may look for what he remembers
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _refused
    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = _refused
    __lt__ = __le__ = __gt__ = __ge__ = __divmod__ = __rdivmod__ = __abs__ = __round__ = _refused
    # Without these Python says that there is no such operation, and who tries first goes another way.
    __pos__ = __invert__ = __trunc__ = __floor__ = __ceil__ = __bytes__ = __delitem__ = _refused
    __getitem__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refused
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refused
    __array_ufunc__ = __array_function__ = __copy__ = __deepcopy__ = __reduce_ex__ = _refused
    __str__ = __repr__ = __format__ = _refused

    def _what_it_is(self) -> Any:
        return type(self) if self.recording.is_sure else self._refused()  # numpy asks, too, of several arguments

    __class__ = property(_what_it_is)  # `isinstance` asks for it: a time would be a float

    def __getattr__(self, name: str) -> Any:
        self.recording.give_up()


class Numbers(Unrecorded):
    """States, or an array of parameters: what somebody takes numbers from.

    Parameters
    ----------
    recording
        Where operations are written down.
    places
        Which numbers these are, an array.
    number
        Returns a number, by its index.
    still
        An array of parameters alone and its stack of tangents; None for what varies.
    """

    __slots__ = ("_indices", "_number", "recording", "still")

    def __init__(
        self, recording: Recording, indices: np.ndarray, number: Callable[[int], Any], still: Any = None
    ) -> None:
        self.recording, self._indices, self._number, self.still = recording, indices, number, still

    shape = property(lambda self: self._indices.shape)
    ndim = property(lambda self: self._indices.ndim)
    size = property(lambda self: self._indices.size)

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def entry(self, index: int) -> Any:
        """Return the number at an index among all of them, row by row."""
        return self._number(int(self._indices.flat[index]))

    def __getitem__(self, where: Index) -> Any:
        if not INDICES.issuperset(map(type, where if type(where) is tuple else (where,))):
            self.recording.give_up()
        indices = self._indices[where]
        if isinstance(indices, np.ndarray):
            still = self.still
            if still is not None:
                still = still[0][where], still[1][(slice(None), *(where if type(where) is tuple else (where,)))]
            return type(self)(self.recording, indices, self._number, still)
        return self._number(int(indices))


def level_of(operand: Leaf) -> int:
    """Return the level of what is recorded; less than 0 for what is not."""
    found: int = getattr(operand, "recorded_level", -1)
    return found


def _has_tangents(operand: Leaf) -> bool:
    """Return whether an operand is a number with tangents of its own, which says itself what is done to it."""
    return level_of(operand) > 0


def is_array(operand: Any) -> bool:
    """Return whether an operand is an array, recorded or not."""
    return type(operand) is np.ndarray or is_recorded(operand)


def is_recorded(operand: Any) -> bool:
    """Return whether an operand is an array of recorded numbers."""
    return hasattr(type(operand), "still")


def parts_of(recording: Recording, slope: Leaf, n: int) -> Sequence[Any]:
    """Return the numbers that a right-hand side has returned, in a list or a stack."""
    parts: Any = slope.parts if type(slope) is Stack else slope
    if is_recorded(parts) and parts.ndim == 1 and parts.recording is recording:
        parts = list(parts)
    if type(parts) not in (list, tuple) or len(parts) != n:
        recording.give_up()
    return list(parts)


def _operators(ufunc: np.ufunc) -> tuple[Any, Any]:
    def forward(self: Number, other: Leaf) -> Any:
        if _has_tangents(other) or is_array(other):
            return NotImplemented
        return of_two(self.recording, ufunc, self, other)

    def reflected(self: Number, other: Leaf) -> Any:
        if _has_tangents(other) or is_array(other):
            return NotImplemented
        return of_two(self.recording, ufunc, other, self)

    return forward, reflected


def _comparison(ufunc: np.ufunc) -> Any:
    symbol, compare = COMPARISONS[ufunc]

    def method(self: Number, other: Leaf) -> bool:
        return NotImplemented if _has_tangents(other) else self.recording.decided(compare, symbol, self, other)

    return method


class Number(Unrecorded):
    """A number, of the type that the tracer has, while operations are written down: whether it moves, or varies."""

    # Nobody asks for these: `getattr(t, "value", t)` is asked of what may be a number or have one, and the tangents of
    # what he got so would be lost.
    __slots__ = ("is_moving", "is_varying", "recorded_number", "recording", "term")
    shape, ndim, size = (), 0, 1

    def __init__(self, recording: Recording, name: str, value: Leaf, moves: bool, varies: bool) -> None:
        self.recording, self.term, self.recorded_number = recording, name, value
        self.is_moving, self.is_varying = moves, varies

    def entry(self, index: int) -> Any:
        """Return itself, as all that is there."""
        del index
        return self

    __add__, __radd__ = _operators(np.add)
    __sub__, __rsub__ = _operators(np.subtract)
    __mul__, __rmul__ = _operators(np.multiply)
    __truediv__, __rtruediv__ = _operators(np.true_divide)
    __lt__, __le__ = _comparison(np.less), _comparison(np.less_equal)
    __gt__, __ge__ = _comparison(np.greater), _comparison(np.greater_equal)

    def __neg__(self) -> Any:
        return self.recording.done(OF_ONE[np.negative], -self.recorded_number, f"-{self.term}", self)

    def __pow__(self, exponent: Leaf) -> Any:
        if type(exponent) not in NUMBERS:
            self.recording.give_up()
        power, x = self.recording.number(exponent), self
        less = self.recording.number(power.recorded_number - 1 if power.recorded_number else 1.0).term
        source = f"float({x.term} ** {power.term})"  # which fails where Python's power is complex, and numpy's is nan
        return self.recording.done(POWER, x.recorded_number**power.recorded_number, source, x, power, less=less)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs:
            self.recording.give_up()
        if any(_has_tangents(each) or is_recorded(each) for each in inputs):
            return NotImplemented
        if any(map(is_array, inputs)):  # a constant, with a number
            return ufunc(*[self.recording.of_constants(each) if is_array(each) else each for each in inputs])
        if ufunc in COMPARISONS:
            symbol, compare = COMPARISONS[ufunc]
            return self.recording.decided(compare, symbol, *inputs)
        if ufunc in OF_TWO:
            return of_two(self.recording, ufunc, *inputs)
        if ufunc in OF_ONE and ufunc is not np.negative:
            source = f"float({ufunc.__name__}({self.term}))"
            return self.recording.done(OF_ONE[ufunc], ufunc(self.recorded_number), source, self)
        return -self if ufunc is np.negative else _of_still(self.recording, ufunc, inputs)

    def __array_function__(self, func: Function, types: Any, args: Args, kwargs: Kwargs) -> Any:
        if func is np.interp and any(map(is_recorded, args)):
            return NotImplemented
        if func is np.stack and len(args) == 1 and not kwargs and type(args[0]) in (list, tuple):
            if any(map(is_array, args[0])):
                self.recording.give_up()
            if not any(map(_has_tangents, args[0])):
                return self.recording.of_parts(args[0])
            return Stack(self.recording, args[0])
        return self.recording.give_up() if kwargs else _of_still(self.recording, func, args)


class Stack(Unrecorded):
    """An array of numbers, to be returned and nothing else."""

    __slots__ = ("parts", "recording")

    def __init__(self, recording: Recording, parts: Sequence[Any]) -> None:
        self.recording, self.parts = recording, parts


def leave(operand: Unrecorded, *_: str) -> NoReturn:
    """Leave the function to the tracer."""
    operand.recording.give_up()


# A primitive that the user gave a rule has not that of its code.
REFUSERS[Number] = REFUSERS[Numbers] = REFUSERS[Stack] = leave
# `getval` of autograd's takes a value out of a traced one, whose tangents are lost: what is recorded is asked, too.
box_types.update({Number, Numbers, Stack})


def of_two(recording: Recording, ufunc: np.ufunc, first: Leaf, second: Leaf) -> Number:
    """Write arithmetic of two numbers down."""
    x, y = recording.number(first), recording.number(second)
    symbol, (both, of_first, of_second) = OF_TWO[ufunc]
    rule = both if x.is_moving and y.is_moving else of_first if x.is_moving else of_second
    return recording.done(
        rule, OPERATE[symbol](x.recorded_number, y.recorded_number), f"{x.term} {symbol} {y.term}", x, y
    )


def _of_still(recording: Recording, function: Function, args: Args) -> Number:
    """Call any function with what does not move, times for the most part, and constants."""
    numbers = [arg for arg in args if type(arg) is Number]
    if any(number.is_moving for number in numbers):
        recording.give_up()
    names = [recording.number(arg).term if type(arg) is Number else recording.constant(arg) for arg in args]
    found = function(*[arg.recorded_number if type(arg) is Number else arg for arg in args])
    if type(found) not in (float, np.float64):
        recording.give_up()
    return recording.done(None, found, f"float({recording.constant(function)}({', '.join(names)}))", *numbers)
