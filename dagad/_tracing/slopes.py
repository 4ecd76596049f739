"""The slope of the hyperbolic tangent, as a function of its own: its square may be infinite, and still has derivatives.

Autograd's rule divides by that square. Differentiated itself, it divides infinity by infinity.
"""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._tracing.private import unbroadcast_f
from dagad._tracing.rules import own_primitive
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
