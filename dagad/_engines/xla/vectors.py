"""Logarithms, and those of the gamma function, of long arrays: of arithmetic that XLA makes vector instructions of.

For these functions of double precision XLA's processor backend calls C's library, or runs a loop of its own, number by
number: 9 ns for a logarithm, 17 for `logaddexp`, 35 for the gamma function's. What is written here takes 3, 3 and 9.
Each stands behind a barrier, so that it has a loop of its own: as part of a sum it would go number by number again.

The numbers are as exact as numpy's and scipy's. What is smaller than any normal number counts as zero, as all over XLA.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.polynomial import Chebyshev, Polynomial
from scipy import special

from dagad._types import Array, Function

_stored: Any = lax.optimization_barrier  # jax has no type for it
LONG = 4000  # entries: for fewer, so many instructions would only take long to compile
LEAST = float(np.finfo(float).tiny)


def is_long(*args: Array) -> bool:
    """Return whether what is computed of these is a long array of doubles, on a processor."""
    of_doubles = all(jnp.result_type(arg) == np.float64 for arg in args)
    return of_doubles and max(map(np.size, args)) >= LONG and jax.default_backend() == "cpu"


def _in_a_loop_of_its_own(value: Function) -> Function:
    """Return a function that is computed in a loop of its own."""

    @functools.wraps(value)
    def function(*args: Any) -> Any:
        return _stored(value(*args))

    return function


def _shorter(coefficients: Array, low: float, high: float) -> Any:
    """Return a series with the fewest terms that have all digits between two numbers, by way of Chebyshev's."""
    chebyshev = Polynomial(coefficients).convert(domain=[low, high], kind=Chebyshev)
    largest = np.abs(chebyshev.coef).max()
    return chebyshev.trim(1e-17 * largest).convert(domain=[-1.0, 1.0], kind=Polynomial).coef


def _series(coefficients: Array, x: Array) -> Any:
    """Return the sum of powers, the lowest first."""
    found = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        found = found * x + coefficient
    return found


# Logarithms: of x = 2**k (1 + f), with log(1 + f) = 2 artanh(f / (2 + f))

_FIRST_MANTISSA = np.float64(math.sqrt(0.5)).view(np.int64)
_N_BITS = np.int64(52)  # of a mantissa
_LOG_2 = 0.6931471803691238, 1.9082149292705877e-10  # in two parts, of which k times the first is exact
_ARTANH = _shorter([2.0 / (2 * n + 1) for n in range(1, 14)], 0.0, (math.sqrt(2.0) - 1.0) ** 4)


def _of_mantissa(k: Array, f: Array) -> Any:
    s, half = f / (2.0 + f), 0.5 * f * f
    rest = s * (half + s * s * _series(_ARTANH, s * s))  # log(1 + f) less f - half: f has all of its digits
    return k * _LOG_2[0] - ((half - (rest + k * _LOG_2[1])) - f)


def _opened(x: Array) -> tuple[Any, Any]:
    """Return k and f of positive normal numbers."""
    bits = lax.bitcast_convert_type(x, np.int64)
    k = lax.shift_right_arithmetic(bits - _FIRST_MANTISSA, _N_BITS)
    return k.astype(float), lax.bitcast_convert_type(bits - lax.shift_left(k, _N_BITS), float) - 1.0


def _everywhere(x: Array, found: Array) -> Any:
    """Return the logarithms of all numbers, where that of positive normal ones was found."""
    return jnp.where(x >= LEAST, jnp.where(x < jnp.inf, found, x), jnp.where(x > -LEAST, -jnp.inf, jnp.nan))


def _log(x: Array) -> Any:
    return _everywhere(x, _of_mantissa(*_opened(x)))


def _log1p(x: Array) -> Any:
    """Return log(1 + x): near zero of x itself, whose last digits 1 + x has lost."""
    k, f = _opened(1.0 + x)
    return _everywhere(1.0 + x, _of_mantissa(k, jnp.where(k == 0, x, f)))


@_in_a_loop_of_its_own
def _long_logaddexp(x: Array, y: Array) -> Any:
    gap = jnp.where(x == y, 0.0, -jnp.abs(x - y))  # of two infinities too
    return jnp.maximum(x, y) + _log1p(jnp.exp(gap))


_long_log = jax.custom_jvp(_in_a_loop_of_its_own(_log))
_long_log.defjvps(lambda tangent, ans, x: tangent / x)
_long_log1p = jax.custom_jvp(_in_a_loop_of_its_own(_log1p))
_long_log1p.defjvps(lambda tangent, ans, x: tangent / (1.0 + x))


def log(x: Array) -> Any:
    """Return the natural logarithm of numbers of any kind."""
    return _long_log(x) if is_long(x) else jnp.log(x)


def log1p(x: Array) -> Any:
    """Return log(1 + x) of numbers of any kind."""
    return _long_log1p(x) if is_long(x) else jnp.log1p(x)


def logaddexp(x: Array, y: Array) -> Any:
    """Return log(exp(x) + exp(y)), whose derivatives are for the caller to say."""
    return _long_logaddexp(x, y) if is_long(x, y) else jnp.logaddexp(x, y)


# The logarithm of the gamma function, which is of order zero, and its derivatives: near two, to where up to four steps
# of the recurrence lead, by Taylor's series; from `LARGE` on by Stirling's; below zero by reflection.

LARGE = 6.5
_ZETA = special.zetac(np.arange(2, 32))  # of 2, 3, ..., less one
_TAYLOR = [0.0, 1.0 - np.euler_gamma, *((-1.0) ** n * _ZETA[n - 2] / n for n in range(2, 32))]
_STIRLING = [special.bernoulli(2 * n)[-1] / (2 * n * (2 * n - 1)) for n in range(1, 13)]  # of x**(1 - 2n)
_SINE = [_ZETA[2 * n - 2] / n for n in range(1, 15)]  # of r**2n
_UP, _DOWN = (1.0, 2.0, 3.0, 4.0), (0.0, -1.0)  # what is taken from x in each step of the recurrence


def _factor(x: Array, k: Array) -> Any:
    """Return what the gamma function of x is divided by in `k` steps."""
    up: Any = math.prod(jnp.where(k >= n, x - n, 1.0) for n in _UP)
    down: Any = math.prod(jnp.where(k < n, x - n, 1.0) for n in _DOWN)
    return up / down


def _powers(order: int, x: Array, k: Array) -> Any:
    """Return this derivative of the logarithm of that factor: a sum of powers, put together as one fraction."""
    top, bottom = jnp.zeros_like(x), jnp.ones_like(x)
    for n in (*_UP, *_DOWN):
        taken, sign = (k >= n, 1.0) if n > 0 else (k < n, -1.0)
        power = (x - n) ** order
        top = jnp.where(taken, top * power + sign * bottom, top)
        bottom = jnp.where(taken, bottom * power, bottom)
    return (-1.0) ** (order - 1) * math.factorial(order - 1) * top / bottom


def _above_zero(order: int, x: Array) -> Any:
    low = jnp.minimum(x, LARGE)
    k = jnp.round(low) - 2.0
    near = _series(_shorter(Polynomial(_TAYLOR).deriv(order).coef, -0.5, 0.5), low - (k + 2.0))
    y = 1.0 / x
    terms = [c * math.prod(1 - 2 * n - m for m in range(order)) for n, c in enumerate(_STIRLING, 1)]
    far = y ** (order + 1) * _series(_shorter(terms, 0.0, LARGE**-2), y * y)
    if order == 0:
        log_of = _log(jnp.where(x < LARGE, jnp.abs(_factor(low, k)), x))
        near, far = near + log_of, far + (x - 0.5) * log_of - x + 0.5 * math.log(2.0 * math.pi)
        return jnp.where(x < LARGE, near, far)
    lead = _log(x) if order == 1 else (-1.0) ** order * math.factorial(order - 2) * y ** (order - 1)
    far = far + lead + (-1.0) ** order * 0.5 * math.factorial(order - 1) * y**order
    return jnp.where(x < LARGE, near + _powers(order, low, k), far)


def _reflected(order: int, r: Array) -> Any:
    """Return this derivative of -log(abs(sin(pi r)) / pi), for r up to a half."""
    if order == 0:
        return r * r * _series(_shorter(_SINE, 0.0, 0.25), r * r) - _log(jnp.abs(r) * (1.0 - r * r))
    if order == 1:
        slopes = [2 * n * c for n, c in enumerate(_SINE, 1)]
        return r * _series(_shorter(slopes, 0.0, 0.25), r * r) + (3.0 * r * r - 1.0) / (r * (1.0 - r * r))
    return jax.jvp(functools.partial(_reflected, order - 1), (r,), (jnp.ones_like(r),))[1]


def _below_zero(order: int, x: Array, found: Array) -> Any:
    """Return what was found above zero, and by it what is below."""
    reflected = _reflected(order, x - jnp.round(x)) - (-1.0) ** order * found
    if order % 2:
        reflected = jnp.where(x == jnp.floor(x), jnp.nan, reflected)  # of a pole of two signs
    return jnp.where(x < 0, reflected, found)


@functools.cache
def of_gamma(order: int) -> Function:
    """Return this derivative of the logarithm of the absolute value of the gamma function; of order 1 it is digamma."""

    @_in_a_loop_of_its_own
    def value(x: Array) -> Any:
        below = x < 0
        found = _stored(_above_zero(order, jnp.where(below, 1.0 - x, x)))
        found = lax.cond(jnp.any(below), functools.partial(_below_zero, order), lambda x, found: found, x, found)
        return found if order else jnp.where(jnp.isinf(x), x, found)

    function = jax.custom_jvp(value)
    function.defjvps(lambda tangent, ans, x: of_gamma(order + 1)(x) * tangent)
    return function
