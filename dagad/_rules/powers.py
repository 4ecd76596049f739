"""Powers whose exponent is being differentiated: autograd's rule is wrong in second order where the exponent is 0.

The slope of ``x**y`` in x is ``y * x**(y - 1)``. autograd writes ``x`` for ``x**(y - 1)`` where y is 0, so that 0 times
infinity is no nan at ``x = 0``. That is right in value, but not where it is differentiated in y. Here it is written
only where x is 0, or so near that its inverse is infinite.
"""

from __future__ import annotations

import sys
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._tracing.private import isbox, numpy_vjps, numpy_wrapper, unbroadcast_f
from dagad._tracing.rules import define
from dagad._tracing.wide_numbers import wide
from dagad._types import Argnums, Args, Array, Function, Kwargs, Tangents, Value
from dagad._values import pytree

plain = pytree.plain
LEAST = sys.float_info.min  # what is nearer to 0 has no finite inverse


def _in_base(g: Array, ans: Value, x: Array, y: Array) -> Any:
    y = wide(y, ans)
    has_slope = (plain(y) != 0) | (np.abs(plain(x)) >= LEAST)
    return g * y * x ** anp.where(has_slope, y - 1, 1.0)


def _in_exponent(g: Array, ans: Value, x: Array) -> Any:
    return g * anp.log(numpy_vjps.replace_zero(wide(x, ans), 1.0)) * ans


def _vjp(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Function:
    del kwargs
    x, y = args
    each = [lambda g: _in_base(g, ans, x, y), lambda g: _in_exponent(g, ans, x)]
    parts = [unbroadcast_f(args[argnum], each[argnum]) for argnum in argnums]
    return lambda g: tuple(part(g) for part in parts)


def _jvp(argnums: Argnums, tangents: Tangents, ans: Value, args: Args, kwargs: Kwargs) -> Any:
    del kwargs
    x, y = args
    parts = [
        _in_base(tangent, ans, x, y) if argnum == 0 else _in_exponent(tangent, ans, x)
        for argnum, tangent in zip(argnums, tangents, strict=True)
    ]
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _is_ours(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    """Return whether the exponent is differentiated, or of so small a type that 1 can't be taken off."""
    del kwargs
    return 1 in argnums or isbox(args[1]) or wide(args[1], ans) is not args[1]


define(numpy_wrapper.power, _vjp, _jvp, _is_ours)
