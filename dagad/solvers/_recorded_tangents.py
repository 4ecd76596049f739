"""Recorded numbers with tangents that are recorded numbers too: of a right-hand side that is extended more than once.

An extended equation computes with values and tangents, and the one around it follows all of that. What it computes
stands in the rules of `_recording`: here they are applied to recorded numbers, each of which notes what is done to it
and has tangents of its own in the program. Their values may have tangents in turn, for derivatives of any order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dagad._tracing.own_rules import REFUSERS
from dagad._tracing.private import box_types
from dagad._tracing.stacked_tangents import NUMBERS, has_stock_rule
from dagad._types import Args, Array, Function, Kwargs, Leaf
from dagad.solvers._recorded_rules import COMPARISONS, OF_ONE, OF_TWO, OPERATE, POWER, Rule
from dagad.solvers._recording import Number, Numbers, Recording, Stack, Unrecorded, is_array, leave, level_of, parts_of


@functools.cache
def _function_of(template: str) -> Callable[..., Any]:
    """Return what a line of a program does, for recorded numbers: numpy's functions and operators note it."""
    names: dict[str, Any] = {ufunc.__name__: ufunc for ufunc in OF_ONE}
    names["float"] = lambda number: number  # it is one
    words = ("dx", "dy", "x", "y", "v", "f", "less")
    line = template.format(**dict(zip(words, words, strict=True)))
    made: Callable[..., Any] = eval(f"lambda {', '.join(words)}: {line}", names)  # nothing but rules of ours
    return made


class DualNumber(Unrecorded):
    """A number that moves, by tangents of its own in each direction, and what is done to it.

    Parameters
    ----------
    recording
        Where operations are written down.
    value
        A recorded number, which may move in the directions of the equation around this one.
    tangents
        One such number for each direction.
    level
        How many equations are around the one whose directions these are, as far as they are recorded: numbers of higher
        levels have lower ones for values.
    """

    __slots__ = ("recorded_level", "recorded_tangents", "recorded_value", "recording")
    shape, ndim, size = (), 0, 1

    def __init__(self, recording: Recording, value: Any, tangents: Sequence[Any], level: int) -> None:
        self.recording, self.recorded_level = recording, level
        self.recorded_value, self.recorded_tangents = value, tangents

    def entry(self, index: int) -> Any:
        """Return itself, as all that is there."""
        del index
        return self

    def __neg__(self) -> Any:
        return _one(np.negative, self)

    def __pow__(self, exponent: Leaf) -> Any:
        if type(exponent) not in NUMBERS:
            self.recording.give_up()
        less = exponent - 1 if exponent else 1.0
        x, dx = self.recorded_value, self.recorded_tangents
        return _dual(self, POWER, x**exponent, [dx, None], x, exponent, less)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "__call__" and not kwargs:
            if ufunc in COMPARISONS:
                return COMPARISONS[ufunc][1](*_values(_level(*inputs), inputs))
            if ufunc in OF_TWO:
                return _two(ufunc, *inputs)
            if ufunc in OF_ONE:
                return _one(ufunc, self)
        return self.recording.give_up()

    def __array_function__(self, func: Function, types: Any, args: Args, kwargs: Kwargs) -> Any:
        if func is np.stack and len(args) == 1 and not kwargs and type(args[0]) in (list, tuple):
            return Stack(self.recording, args[0])
        return self.recording.give_up()


def _operator(ufunc: np.ufunc, is_reflected: bool) -> Any:
    def method(self: DualNumber, other: Leaf) -> Any:
        return _two(ufunc, other, self) if is_reflected else _two(ufunc, self, other)

    return method


def _comparison(ufunc: np.ufunc) -> Any:
    compare = COMPARISONS[ufunc][1]

    def method(self: DualNumber, other: Leaf) -> Any:
        return compare(*_values(_level(self, other), (self, other)))

    return method


_ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide}
for _name, _ufunc in _ARITHMETIC.items():
    setattr(DualNumber, f"__{_name}__", _operator(_ufunc, is_reflected=False))
    setattr(DualNumber, f"__r{_name}__", _operator(_ufunc, is_reflected=True))
for _name, _compared in {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}.items():
    setattr(DualNumber, f"__{_name}__", _comparison(_compared))

# A primitive that the user gave a rule has not that of its code.
REFUSERS[DualNumber] = leave
box_types.add(DualNumber)  # as in `_recording`


def _level(*operands: Leaf) -> int:
    return max(map(level_of, operands))


def _values(level: int, operands: Sequence[Leaf]) -> list[Any]:
    """Return what operands of a level have for values; the others as they are, which do not move in its directions."""
    return [each.recorded_value if level_of(each) == level else each for each in operands]


def _two(ufunc: np.ufunc, first: Leaf, second: Leaf) -> Any:
    if is_array(first) or is_array(second):
        leave(first if level_of(first) > 0 else second)
    level, (symbol, rules) = _level(first, second), OF_TWO[ufunc]
    is_moving = [level_of(each) == level for each in (first, second)]
    sides = [each.recorded_tangents if moves else None for each, moves in zip((first, second), is_moving, strict=True)]
    rule = rules[0] if all(is_moving) else rules[1 + is_moving[1]]
    x, y = _values(level, (first, second))
    return _dual(first if is_moving[0] else second, rule, OPERATE[symbol](x, y), sides, x, y)


def _one(ufunc: np.ufunc, box: DualNumber) -> Any:
    value = -box.recorded_value if ufunc is np.negative else ufunc(box.recorded_value)
    return _dual(box, OF_ONE[ufunc], value, [box.recorded_tangents, None], box.recorded_value, None)


def _dual(
    box: DualNumber, rule: Rule, value: Any, sides: Sequence[Any], x: Any, y: Any, less: Leaf = None
) -> DualNumber:
    """Return the value of an operation with its tangents, from those of its two sides; None for what does not move."""
    if not has_stock_rule(rule.function):
        box.recording.give_up()
    dx, dy = ([None] * len(box.recorded_tangents) if side is None else side for side in sides)
    tangent = _function_of(rule.tangent)
    with np.errstate(all="ignore"):  # the tracer has warned of tangents already
        factor = _function_of(rule.factor)(None, None, x, y, value, None, less) if rule.factor else None
        own_tangents = [tangent(*each, x, y, value, factor, less) for each in zip(dx, dy, strict=True)]
    return DualNumber(box.recording, value, own_tangents, box.recorded_level)


def level_above(states: Numbers) -> int:
    """Return the level of numbers that move in one equation more than these."""
    return 1 + level_of(states.entry(0))


def entries_with_tangents(recording: Recording, leaf: Array, tangents: Sequence[Any], level: int) -> Any:
    """Return a parameter with tangents: a number, or numbers that are looked up where somebody takes them."""
    known: dict[int, DualNumber] = {}

    def number(index: int) -> DualNumber:
        if index not in known:
            value, *own_tangents = (_entry(recording, part, index) for part in (leaf, *tangents))
            known[index] = DualNumber(recording, value, own_tangents, level)
        return known[index]

    shape = getattr(leaf, "shape", ())
    indices = np.arange(int(np.prod(shape))).reshape(shape)
    return Numbers(recording, indices, number) if shape else number(0)


def _entry(recording: Recording, part: Any, index: int) -> Any:
    number = np.ravel(part)[index] if level_of(part) < 0 else part.entry(index)
    return number if level_of(number) > 0 else recording.number(number)


def extended(field: Callable[[Any, Any], Any], n: int, count: int, t: Number, states: Numbers) -> list[Any]:
    """Return the slopes of `n` states and of their `count` tangents, from the field of the states."""
    recording, level = states.recording, level_above(states)

    def number(index: int) -> DualNumber:
        tangents = [states[(1 + row) * n + index] for row in range(count)]
        return DualNumber(recording, states[index], tangents, level)

    slopes = parts_of(recording, field(t, Numbers(recording, np.arange(n), number)), n)
    nothing = [0.0] * count
    rows = [part.recorded_tangents if level_of(part) == level else nothing for part in slopes]
    return [*_values(level, slopes), *(row[number] for number in range(count) for row in rows)]
