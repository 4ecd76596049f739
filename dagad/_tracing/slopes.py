"""Slopes as functions of their own, with derivatives, where those of what they are written as cancel or overflow.

That of the hyperbolic tangent: autograd's rule divides by a square that may be infinite; differentiated itself, it
divides infinity by infinity. And what is left of one in a sum of two exponentials: the slope of `logaddexp`, and of
`expit`, whose own would be 0 where ``1 - value`` is nearly 0.
"""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._tracing.private import box_types, unbroadcast_f
from dagad._tracing.rules import own_primitive
from dagad._tracing.wide_numbers import wide_entries
from dagad._types import Argnums, Args, Array, Cotangent, Function, Kwargs, Tangents, Value


def _over_square(g: Cotangent, x: Array) -> Any:
    return g / np.cosh(x) ** 2


def _slope(argnum: int, ans: Value, x: Array) -> Any:
    return -2.0 * ans * anp.tanh(x) if argnum else over_cosh_square(1.0, x)


def _vjp(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Function:
    del kwargs
    parts = [unbroadcast_f(args[at], lambda g, at=at: g * _slope(at, ans, args[1])) for at in argnums]
    return lambda g: tuple(part(g) for part in parts)


def _jvp(argnums: Argnums, tangents: Tangents, ans: Value, args: Args, kwargs: Kwargs) -> Any:
    del kwargs
    return sum(tangent * _slope(at, ans, args[1]) for at, tangent in zip(argnums, tangents, strict=True))


over_cosh_square = own_primitive(_over_square, _vjp, _jvp)


def _share(d: Array) -> Any:
    small = np.exp(-np.abs(d))
    # 1, or `small`, which is at most 1: of numbers and truths it takes twice as long, and by `np.where` three times.
    return np.maximum(np.sign(d), small) / (1.0 + small)


def _slope_of_share(ans: Value, d: Array) -> Any:
    return ans * share(-wide_entries(d, ans))


def _vjp_of_share(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Function:
    del argnums, kwargs
    pull = unbroadcast_f(args[0], lambda g: g * _slope_of_share(ans, args[0]))
    return lambda g: (pull(g),)


def _jvp_of_share(argnums: Argnums, tangents: Tangents, ans: Value, args: Args, kwargs: Kwargs) -> Any:
    del argnums, kwargs
    return tangents[0] * _slope_of_share(ans, args[0])


_traced_share: Any = own_primitive(_share, _vjp_of_share, _jvp_of_share)


def share(d: Array) -> Any:
    """Return 1 / (1 + exp(-d))."""
    if type(d) not in box_types:
        return _share(d)
    with_slope = getattr(d, "with_slope", None)  # what others trace has none
    quick = None if with_slope is None else with_slope(_share, _slope_of_share)
    return _traced_share(d) if quick is None else quick
