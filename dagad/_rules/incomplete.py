"""Incomplete gamma and beta functions in their shapes: series and fractions whose terms are differentiated.

Below the middle a function is a series or a continued fraction of positive terms, above it is one less the other one:
so a slope is as exact as the smaller of the two. As many terms are taken as the last bit needs. Abramowitz and Stegun,
6.5.29, 6.5.31 and 26.5.8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.scipy import special

from dagad._errors import NotDifferentiableError
from dagad._tracing.flat_functions import Leaves
from dagad._tracing.forward import push
from dagad._types import Array, Function
from dagad._values import pytree

plain = pytree.plain
EPS = 2.0**-54
MOST_TERMS = 20_000
_ROOTS, _SHARES = np.polynomial.legendre.leggauss(24)
NODES, WEIGHTS = 0.5 * (1.0 + _ROOTS), 0.5 * _SHARES
NEAR = 1.5


def slope_in(argnum: int, definition: Function) -> Callable[..., Any]:
    """Return the slope of a function of entries in one argument, as `entrywise` asks for it."""

    def slope(ans: Array, *args: Array) -> Any:
        del ans
        own = args[argnum]

        def run(leaves: Leaves) -> Any:
            return definition(*args[:argnum], leaves[0], *args[argnum + 1 :])

        values, tangents_out = push(run, [own], [[np.ones(np.shape(plain(own)))]])
        return 0.0 * values if tangents_out[0][0] is None else tangents_out[0][0]

    return slope


def _as_many(name: str, is_enough: Callable[[int], bool]) -> int:
    """Return how many terms are enough; each time half as many again."""
    n = 16
    while not is_enough(n):
        n += n // 2
        if n > MOST_TERMS:
            raise NotDifferentiableError(
                f"`scipy.special.{name}` was to be differentiated in a shape that is too large: it would take over "
                f"{MOST_TERMS:,} terms. Use the normal distribution that it is nearly, or give the function as a "
                "constant."
            )
    return n


# The gamma function's


def gammainc(a: Array, x: Array) -> Any:
    """Return what of the gamma function of `a` is below `x`, where both are positive."""
    held_a, held_x = np.broadcast_arrays(plain(a), plain(x))
    usual = (held_a > 0.0) & (held_x > 0.0) & np.isfinite(held_x) & np.isfinite(held_a)
    low = usual & (held_x < held_a + 1.0)
    high = usual & ~low
    found: Any = np.where(np.isnan(held_a + held_x) | (held_a <= 0.0), np.nan, np.where(held_x > 0.0, 1.0, 0.0))
    if np.any(low):
        found = anp.where(low, _gamma_series(anp.where(low, a, 1.0), anp.where(low, x, 1.0)), found)
    if np.any(high):
        found = anp.where(high, 1.0 - _gamma_fraction(anp.where(high, a, 1.0), anp.where(high, x, 3.0)), found)
    return found


def _gamma_series(a: Array, x: Array) -> Any:
    held_a, held_x = np.broadcast_arrays(plain(a), plain(x))

    def is_enough(n: int) -> bool:
        logs = special.gammaln(held_a + 1.0) - special.gammaln(held_a + n + 1.0) + n * np.log(held_x)
        return bool(np.all(logs + np.log(n) < np.log(EPS)))

    total, term = 1.0, 1.0
    for n in range(1, _as_many("gammainc", is_enough) + 1):
        term = term * x / (a + n)
        total = total + term
    return anp.exp(a * anp.log(x) - x - special.gammaln(a + 1.0)) * total


def _gamma_fraction(a: Array, x: Array) -> Any:
    n_terms = _as_many("gammaincc", _settles(lambda n: _down_gamma(plain(a), plain(x), n)))
    return anp.exp(a * anp.log(x) - x - special.gammaln(a)) / _down_gamma(a, x, n_terms)


def _down_gamma(a: Array, x: Array, n_terms: int) -> Any:
    found = x + 2.0 * n_terms + 1.0 - a
    for n in range(n_terms, 0, -1):
        found = x + 2.0 * n - 1.0 - a + n * (a - n) / found
    return found


def _settles(fraction: Callable[[int], Any]) -> Callable[[int], bool]:
    """Return whether two thirds of so many terms already give the same: a slope takes more than a value."""

    def is_enough(n: int) -> bool:
        some, more = fraction(2 * n // 3), fraction(n)
        return bool(np.all(np.abs(some - more) <= 4.0 * EPS * np.abs(more)))

    return is_enough


# The beta function's


def betainc(a: Array, b: Array, x: Array) -> Any:
    """Return what of the beta function of `a` and `b` is below `x`, between 0 and 1."""
    held_a, held_b, held_x = np.broadcast_arrays(plain(a), plain(b), plain(x))
    usual = (held_a > 0.0) & (held_b > 0.0) & (held_x > 0.0) & (held_x < 1.0)
    low = usual & (held_x * (held_a + held_b + 2.0) < held_a + 1.0)
    high = usual & ~low
    outside = np.where((held_x >= 0.0) & (held_x <= 1.0) & (held_a > 0.0) & (held_b > 0.0), held_x, np.nan)
    found: Any = np.where(usual, 0.0, outside)
    if np.any(low):
        found = anp.where(low, _beta_fraction(*(anp.where(low, each, 0.5) for each in (a, b, x))), found)
    if np.any(high):
        found = anp.where(high, 1.0 - _beta_fraction(*(anp.where(high, e, 0.5) for e in (b, a, 1.0 - x))), found)
    return found


def _beta_fraction(a: Array, b: Array, x: Array) -> Any:
    n_terms = _as_many("betainc", _settles(lambda n: _down_beta(plain(a), plain(b), plain(x), n)))
    logarithm = a * anp.log(x) + b * anp.log1p(-x) - anp.log(a) - special.betaln(a, b)
    return anp.exp(logarithm) / _down_beta(a, b, x, n_terms)


def _down_beta(a: Array, b: Array, x: Array, n_terms: int) -> Any:
    found: Any = 1.0
    for m in range(n_terms, -1, -1):
        odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        found = 1.0 + odd / found
        if m:
            found = 1.0 + m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)) / found
    return found


# Student's t, whose distribution function is made of these


def log1p_by(c: Array, z: Array) -> Any:
    """Return log(1 + c z) / c; by its series, z (1 - u/2 + u^2/3 - ...) in u = c z, where that cancels."""
    u = c * z
    small = np.abs(plain(u)) < 0.1
    near, far = anp.where(small, u, 0.0), anp.where(small, 1.0, u)
    series: Any = 0.0
    for power in range(17, 0, -1):
        series = 1.0 / power - near * series
    return anp.where(small, z * series, anp.log1p(far) / anp.where(small, 1.0, c))


_STEPS = (-1.0 / 8.0, 1.0 / 192.0, -1.0 / 640.0, 17.0 / 14336.0)  # of log(gamma(x + 1/2) / gamma(x)), in 1/x


def log_t_density(df: Array, t: Array) -> Any:
    """Return the logarithm of Student's density, whose terms cancel where the degrees of freedom are many."""
    many = plain(df) > 60.0
    few, half = anp.where(many, 1.0, df), anp.where(many, 0.5 * df, 100.0)
    scale = special.gammaln((few + 1.0) / 2.0) - special.gammaln(few / 2.0) - 0.5 * anp.log(0.5 * few)
    series: Any = 0.0
    for step in _STEPS[::-1]:
        series = series * half**-2.0 + step
    scale = anp.where(many, series / half, scale) - 0.5 * np.log(2.0 * np.pi)
    return scale - 0.5 * (1.0 + 1.0 / df) * log1p_by(1.0 / df, t**2)


def student(density: Function, of_beta: Function) -> Function:
    """Return the distribution function of Student's t from its density, and from the beta function's in its tails.

    In the middle it is the integral of the density from zero on, by Gauss' rule: there, a square root of its square is
    no slope.
    """

    def below(df: Array, t: Array) -> Any:
        held_df, held_t = np.broadcast_arrays(plain(df), plain(t))
        near = np.abs(held_t) <= np.minimum(NEAR, np.sqrt(np.maximum(held_df, 0.0)))
        inner = anp.where(near, t, 0.0)
        middle = sum(weight * density(df, inner * node) for node, weight in zip(NODES, WEIGHTS, strict=True))
        far = anp.where(near, NEAR, t)
        tail = 0.5 * of_beta(0.5 * df, 0.5, df / (df + far**2))
        return anp.where(near, 0.5 + inner * middle, anp.where(plain(far) > 0.0, 1.0 - tail, tail))

    return below
