"""Slopes far in tails and next to poles, where the textbook's formula is a difference of two nearly equal numbers.

In a tail an asymptotic series takes its place. It is written in powers of 1/x, so that derivatives of it of any order
are as good as itself; with as many terms as here it is so to the last bits from `FAR` on. Abramowitz and Stegun,
7.1.23, 9.7.1 and 9.7.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._tracing.slopes import over_cosh_square, share
from dagad._types import Array, Function, Value
from dagad._values import pytree

plain = pytree.plain
FAR, FAR_OF_BESSEL, N_TERMS = 10.0, 50.0, 16
ROOT_2PI, ROOT_PI = np.sqrt(2.0 * np.pi), np.sqrt(np.pi)


def _in_parts(far: Array, ans: Value, x: Array, near: Callable[[Any, Any], Any], series: Callable[[Any], Any]) -> Any:
    """Return a series where x is far out, and a formula of value and x elsewhere; each sees its own part only."""
    if not np.any(far):
        return near(ans, x)
    if np.all(far):
        return series(x)
    return anp.where(far, series(anp.where(far, x, FAR)), near(anp.where(far, 0.0, ans), anp.where(far, 1.0, x)))


def _odd_factorials(z: Array) -> Any:
    """Return 1 + 3 z + 3 5 z^2 + 3 5 7 z^3 + ..."""
    total: Any = 1.0
    for factor in range(2 * N_TERMS + 1, 1, -2):
        total = 1.0 + factor * z * total
    return total


def _is_beyond(x: Array, low: float, high: float) -> Any:
    """Return where real numbers are far out; complex ones have tails in some directions only, and are left alone."""
    held = plain(x)
    return np.zeros(np.shape(held), bool) if np.iscomplexobj(held) else (held < low) | (held > high)


def erfcx_slope(ans: Value, x: Array) -> Any:
    """Return the derivative of exp(x^2) erfc(x)."""
    return _in_parts(
        _is_beyond(x, -np.inf, FAR),
        ans,
        x,
        lambda ans, x: 2.0 * x * ans - 2.0 / ROOT_PI,
        lambda x: -(x**-2.0) / ROOT_PI * _odd_factorials(-0.5 * x**-2.0),
    )


def dawsn_slope(ans: Value, x: Array) -> Any:
    """Return the derivative of Dawson's integral."""
    return _in_parts(
        _is_beyond(x, -FAR, FAR),
        ans,
        x,
        lambda ans, x: 1.0 - 2.0 * x * ans,
        lambda x: -0.5 * x**-2.0 * _odd_factorials(0.5 * x**-2.0),
    )


def log_ndtr_slope(ans: Value, x: Array) -> Any:
    """Return the density of a normal distribution by its integral up to there, whose logarithm is given."""
    return _in_parts(
        _is_beyond(x, -FAR, np.inf),
        ans,
        x,
        lambda ans, x: anp.exp(-(x**2) / 2.0 - ans) / ROOT_2PI,
        lambda x: -x / (1.0 - x**-2.0 * _odd_factorials(-(x**-2.0))),
    )


def scaled_bessel_slope(order: Array, sign: float, near: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the derivative of `ive` (sign -1) or `kve` (sign 1) of an order; with `near`, where x is small."""

    def series(x: Array) -> Any:
        size, total, term = anp.abs(x), 0.0, 1.0
        for power in range(N_TERMS):
            total = total + (power + 0.5) * term
            term = term * sign * (4.0 * order**2 - (2 * power + 1) ** 2) / (8.0 * (power + 1)) * size**-1.0
        factor = 1.0 / ROOT_2PI if sign < 0 else ROOT_PI / np.sqrt(2.0)
        odd = anp.sign(x) ** (order + 1) if sign < 0 else 1.0  # `ive` of a negative number has whole orders only
        return -factor * odd * size**-1.5 * total

    def slope(ans: Value, x: Array) -> Any:
        edge = FAR_OF_BESSEL + np.asarray(order) ** 2
        held = plain(x)
        far = np.zeros(np.shape(ans), bool) if np.iscomplexobj(held) else np.abs(held) > edge
        return _in_parts(far, ans, x, near, series)

    return slope


# In place of autograd's own, which cancel or overflow.
TANH: tuple[Function, Function] = (
    lambda argnums, ans, args, kwargs: lambda g: (over_cosh_square(g, args[0]),),
    lambda argnums, tangents, ans, args, kwargs: over_cosh_square(tangents[0], args[0]),
)


BETTER_SLOPES: dict[Any, tuple[Function, ...]] = {
    np.arcsin: (lambda ans, x: 1.0 / anp.sqrt((1.0 - x) * (1.0 + x)),),
    np.arccos: (lambda ans, x: -1.0 / anp.sqrt((1.0 - x) * (1.0 + x)),),
    np.arccosh: (lambda ans, x: 1.0 / (anp.sqrt(x - 1.0) * anp.sqrt(x + 1.0)),),
    np.arctanh: (lambda ans, x: 1.0 / ((1.0 - x) * (1.0 + x)),),
    np.expm1: (lambda ans, x: anp.exp(x),),
    np.logaddexp: (lambda ans, x, y: share(x - y), lambda ans, x, y: share(y - x)),
    np.logaddexp2: (lambda ans, x, y: share(np.log(2.0) * (x - y)), lambda ans, x, y: share(np.log(2.0) * (y - x))),
    np.arctan2: (
        lambda ans, y, x: x / anp.hypot(x, y) / anp.hypot(x, y),
        lambda ans, y, x: -y / anp.hypot(x, y) / anp.hypot(x, y),
    ),
}
