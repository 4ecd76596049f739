"""What operations do to the tangents of recorded numbers, as lines of a program, in the order of the tracer."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import autograd.numpy as anp
import numpy as np

from dagad._tracing.private import numpy_wrapper
from dagad._types import Function


class Rule(NamedTuple):
    """What an operation does to tangents: `v` is its value, `f` a factor that all directions share."""

    function: Any
    tangent: str
    factor: str = ""


def _rules(
    symbol: str, function: Any, both: str, of_first: str, of_second: str, factor: str = ""
) -> tuple[str, tuple[Rule, Rule, Rule]]:
    """As in `stacked_tangents`: where both operands move, where the first does, where the second does."""
    return symbol, (Rule(function, both), Rule(function, of_first), Rule(function, of_second, factor))


OF_TWO: dict[np.ufunc, tuple[str, tuple[Rule, Rule, Rule]]] = {
    np.multiply: _rules("*", anp.multiply, "{dx} * {y} + {x} * {dy}", "{dx} * {y}", "{x} * {dy}"),
    np.add: _rules("+", anp.add, "{dx} + {dy}", "{dx}", "{dy}"),
    np.subtract: _rules("-", anp.subtract, "{dx} - {dy}", "{dx}", "-{dy}"),
    np.true_divide: _rules("/", anp.true_divide, "({dx} - {v} * {dy}) / {y}", "{dx} / {y}", "{dy} * {f}", "-{v} / {y}"),
}
OPERATE = {"*": operator.mul, "+": operator.add, "-": operator.sub, "/": operator.truediv}
POWER = Rule(numpy_wrapper.power, "{dx} * {f}", "{y} * {x} ** {less}")
OF_ONE: dict[np.ufunc, Rule] = {
    np.negative: Rule(anp.negative, "-{dx}"),
    np.exp: Rule(anp.exp, "{v} * {dx}"),
    np.log: Rule(anp.log, "{dx} / {x}"),
    np.sin: Rule(anp.sin, "{dx} * {f}", "float(cos({x}))"),
    np.cos: Rule(anp.cos, "-{dx} * {f}", "float(sin({x}))"),
    np.tanh: Rule(anp.tanh, "{dx} / {f}", "float(cosh({x})) ** 2"),
    np.sinh: Rule(anp.sinh, "{dx} * {f}", "float(cosh({x}))"),
    np.cosh: Rule(anp.cosh, "{dx} * {f}", "float(sinh({x}))"),
    np.sqrt: Rule(anp.sqrt, "{dx} * 0.5 * {f}", "{x} ** -0.5"),
    np.square: Rule(anp.square, "{dx} * 2 * {x}"),
    np.log1p: Rule(anp.log1p, "{dx} / {f}", "{x} + 1"),
}
NAMES = {ufunc.__name__: ufunc for ufunc in OF_ONE}
COMPARISONS: dict[np.ufunc, tuple[str, Function]] = {
    np.less: ("<", operator.lt),
    np.less_equal: ("<=", operator.le),
    np.greater: (">", operator.gt),
    np.greater_equal: (">=", operator.ge),
}
