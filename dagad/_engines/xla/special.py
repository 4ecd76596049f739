"""Special functions that jax has inexactly, or with other derivatives at some points: written by hand, for all orders.

A derivative of jax's by `jnp.where` sees one branch, so that a condition may hold at single points; what the other
branch is given is some number that does no harm, since nan times zero is nan.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special as jss

from dagad._engines.xla import corners, vectors
from dagad._types import Args, Array, DType, Function, Tangent, Tangents


def _series(coefficients: list[float], x: Array) -> Any:
    """Return the sum of powers, the lowest first, in the precision of what they are of."""
    return jnp.polyval(jnp.asarray(coefficients[::-1], jnp.result_type(x)), x)


# Of gamma functions


def digamma(x: Array) -> Any:
    """Return the derivative of gammaln; below zero by reflection, since jax's zeta, its derivative, has none."""
    x = jnp.asarray(x)
    if vectors.is_long(x):
        return vectors.of_gamma(1)(x)
    below = x < 0
    up = jss.digamma(jnp.where(below, 1.0 - x, x))
    rest = jnp.where(below, x - jnp.round(jax.lax.stop_gradient(x)), 0.25)  # the tangent has the period one
    found = jnp.where(below, up - np.pi * jnp.cos(np.pi * rest) / jnp.sin(np.pi * rest), up)
    at_pole = jnp.where(below, jnp.nan, -jnp.copysign(jnp.inf, x))
    return jnp.where((x <= 0) & (x == jnp.floor(x)), at_pole, found)


_gammaln = jax.custom_jvp(jss.gammaln)
_gammaln.defjvps(lambda tangent, value, x: digamma(x) * tangent)


def gammaln(x: Array) -> Any:
    """Return the logarithm of the absolute value of the gamma function."""
    return vectors.of_gamma(0)(x) if vectors.is_long(x) else _gammaln(x)


_STIRLING = [1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156]
_LARGE = 10.0  # from where on these terms are exact


def _remainder(x: Array) -> Any:
    """Return gammaln less Stirling's formula, of large numbers."""
    return _series(_STIRLING, 1.0 / x**2) / x


def betaln(a: Array, b: Array) -> Any:
    """Return the logarithm of the beta function: of large arguments differences of gammaln have few digits."""
    a, b = jnp.broadcast_arrays(a, b)
    less = a < b
    small, large = jnp.where(less, a, b), jnp.where(less, b, a)
    is_large = (large >= _LARGE) & (small > 0)
    plain = [jnp.where(is_large, 1.0, each) for each in (a, b)]
    by_gamma = gammaln(plain[0]) + gammaln(plain[1]) - gammaln(plain[0] + plain[1])
    p, q = jnp.where(is_large, small, 1.0), jnp.where(is_large, large, _LARGE)
    ratio = p - (p + q - 0.5) * jnp.log1p(p / q) - p * jnp.log(q) + _remainder(q) - _remainder(p + q)
    return jnp.where(is_large, gammaln(p) + ratio, by_gamma)


def beta(a: Array, b: Array) -> Any:
    """Return the beta function; at a pole it is infinite, but of two whole numbers where their poles cancel."""
    a, b = jnp.broadcast_arrays(a, b)
    of_a, of_b = _is_pole(a), _is_pole(b)
    pole, other = jnp.where(of_a, a, b), jnp.where(of_a, b, a)
    cancels = (of_a | of_b) & (other == jnp.floor(other)) & (1.0 - pole - other > 0)
    p = jnp.where(cancels, 1.0 - pole - other, jnp.where(of_a | of_b, 1.0, a))
    q = jnp.where(cancels, other, jnp.where(of_a | of_b, 1.0, b))
    signs = jss.gammasgn(p) * jss.gammasgn(q) * jss.gammasgn(p + q)
    found = jnp.where(cancels, 1.0 - 2.0 * jnp.mod(other, 2.0), signs) * jnp.exp(betaln(p, q))
    is_infinite = (of_a | of_b) & ~cancels
    return jnp.where(is_infinite, jnp.exp(gammaln(jnp.where(is_infinite, pole, 1.0))), found)


def gamma(x: Array) -> Any:
    """Return the gamma function, whose second derivative below zero is that of our gammaln."""
    return jnp.where(x == jnp.inf, jnp.inf, jss.gammasgn(x) * jnp.exp(gammaln(x)))


def binom(n: Array, k: Array) -> Any:
    """Return binomial coefficients of any numbers, with their signs; of negative whole ones scipy has none."""
    found = 1.0 / ((n + 1.0) * beta(1.0 + n - k, 1.0 + k))
    return found * jnp.where((n < 0) & (n == jnp.floor(n)), jnp.nan, 1.0)


def _is_pole(x: Array) -> Any:
    return (x <= 0) & (x == jnp.floor(x))


def _poch(a: Array, m: Array) -> Any:
    top, below = _is_pole(a + m), _is_pole(a)
    x, y = (jnp.where(top | below, 1.0, each) for each in (a + m, a))
    usual = jss.gammasgn(x) * jss.gammasgn(y) * jnp.exp(jss.gammaln(x) - jss.gammaln(y))
    sign = 1.0 - 2.0 * jnp.mod(m, 2.0)
    reflected = sign * jnp.exp(jss.gammaln(1.0 - a) - jss.gammaln(1.0 - a - m))  # by reflection: both are whole
    return jnp.where(top & below, reflected, jnp.where(below, 0.0, jnp.where(top, jnp.inf, usual)))


poch = corners.with_slopes(
    _poch,
    lambda ans, a, m: ans * (digamma(a + m) - digamma(a)),
    lambda ans, a, m: ans * digamma(a + m),
)


def loggamma(x: Array) -> Any:
    """Return the logarithm of the gamma function, which real numbers below zero have not."""
    return gammaln(x) * jnp.where(x < 0, jnp.nan, 1.0)


rgamma = corners.with_slopes(
    lambda x: jnp.where(_is_pole(x), 0.0, 1.0 / gamma(jnp.where(_is_pole(x), 1.0, x))),
    lambda ans, x: -digamma(x) * ans,
)


# Of the normal distribution

_ROOT_PI = float(np.sqrt(np.pi))
ndtri = corners.with_slopes(jss.ndtri, lambda ans, x: np.sqrt(2.0) * _ROOT_PI * jnp.exp(0.5 * ans**2))
erfcinv = corners.with_slopes(
    lambda x: -jss.ndtri(0.5 * x) / np.sqrt(2.0), lambda ans, x: -0.5 * _ROOT_PI * jnp.exp(ans**2)
)
_ODD = [float(math.prod(range(1, 2 * k, 2))) * (-0.5) ** k for k in range(17)]
_FAR_UP = 10.0  # from where on these terms are exact


# Its second derivative is an error of jax's own, in release 0.12.
_erfcx = corners.with_slopes(jss.erfcx, lambda ans, x: 2.0 * x * ans - 2.0 / _ROOT_PI)


def erfcx(x: Array) -> Any:
    """Return exp(x**2) erfc(x); far above zero jax's is zero."""
    far = x > _FAR_UP
    z = jnp.where(far, x, _FAR_UP)
    return jnp.where(far, _series(_ODD, 1.0 / z**2) / (_ROOT_PI * z), _erfcx(jnp.where(far, 0.0, x)))


_FAR = -20.0
# Of the series in 1 / x**2 that is left of the tail of the normal distribution, far below zero.
_TAIL = [float(math.prod(range(1, 2 * k, 2))) * (-1) ** k for k in range(13)]


def log_ndtr(x: Array) -> Any:
    """Return the logarithm of the distribution function of the normal distribution."""
    far, above = x < _FAR, x > -1.0
    z = jnp.where(far, x, _FAR)
    tail = jnp.log(_series(_TAIL, 1.0 / z**2))
    found = tail - 0.5 * z**2 - jnp.log(-z) - 0.5 * np.log(2.0 * np.pi)
    middle = jnp.log(0.5 * jss.erfc(-jnp.where(far | above, -1.0, x) / np.sqrt(2.0)))
    upper = jnp.log1p(-0.5 * jss.erfc(jnp.where(above, x, 0.0) / np.sqrt(2.0)))
    return jnp.where(far, found, jnp.where(above, upper, middle))


# Of Bessel's

_TERMS = [1.0 / (4.0**k * math.factorial(k) ** 2) for k in range(12)]
_OF_ONE = [0.5 / (4.0**k * math.factorial(k) * math.factorial(k + 1)) for k in range(12)]


def i0(x: Array) -> Any:
    """Return the modified Bessel function of order zero; jax's has the slope of the absolute value at zero."""
    small = jnp.abs(x) < 1.0
    near = _series(_TERMS, jnp.where(small, x, 0.0) ** 2)
    return jnp.where(small, near, jss.i0(jnp.where(small, 1.0, x)))


def i1(x: Array) -> Any:
    """Return the modified Bessel function of order one."""
    small = jnp.abs(x) < 1.0
    inner = jnp.where(small, x, 0.0)
    near = inner * _series(_OF_ONE, inner**2)
    return jnp.where(small, near, jss.i1(jnp.where(small, 1.0, x)))


# Of hypergeometric functions


def hyp1f1(a: Array, b: Array, x: Array) -> Any:
    """Return Kummer's function: below zero by his transformation, as the terms cancel there."""
    below = x < 0
    found = jss.hyp1f1(jnp.where(below, b - a, a), b, jnp.abs(x))
    return jnp.where(below, jnp.exp(jnp.where(below, x, 0.0)), 1.0) * found


# Of powers


@jax.custom_jvp
def exprel(x: Array) -> Any:
    small = jnp.abs(x) < 1e-5
    at = jnp.where(small, 1.0, x)
    return jnp.where(small, 1.0 + 0.5 * x, jnp.expm1(at) / at)


@exprel.defjvp
def _jvp_of_exprel(given: Args, tangents: Tangents) -> Any:
    return exprel(*given), exprel_slope(*given) * tangents[0]


_TERMS_OF_SLOPE = [1.0 / (math.factorial(k) * (k + 2)) for k in range(14)]


def exprel_slope(x: Array) -> Any:
    """Return the derivative of (exp(x) - 1) / x, by its series where that cancels."""
    small = jnp.abs(x) < 0.3
    at = jnp.where(small, 1.0, x)
    return jnp.where(small, _series(_TERMS_OF_SLOPE, jnp.where(small, x, 0.0)), (jnp.exp(at) - exprel(at)) / at)


def _by_power(log: Array, power: Array) -> Any:
    return jnp.where(log == 0, 0.0, log**2 * exprel_slope(power * log))


boxcox = corners.with_slopes(jss.boxcox, lambda ans, x, p: x ** (p - 1.0), lambda ans, x, p: _by_power(jnp.log(x), p))
boxcox1p = corners.with_slopes(
    jss.boxcox1p, lambda ans, x, p: (1.0 + x) ** (p - 1.0), lambda ans, x, p: _by_power(jnp.log1p(x), p)
)
powm1 = corners.with_slopes(
    lambda x, y: jnp.where(x > 0, jnp.expm1(y * jnp.log(jnp.where(x > 0, x, 1.0))), jnp.power(x, y) - 1.0),
    lambda ans, x, y: y * x ** (y - 1.0),
    lambda ans, x, y: jnp.log(x) * x**y,
)

_LOGARITHMS_OVER = [(-1.0) ** k / (k + 1) for k in range(18)]


def _log_of_power(y: Array, power: Array) -> Any:
    """Return log(1 + power y) / power, and y where the power is zero; by its series where that cancels."""
    u = power * y
    small = jnp.abs(u) < 0.1
    near = y * jnp.polyval(jnp.asarray(_LOGARITHMS_OVER[::-1], u.dtype), jnp.where(small, u, 0.0))
    return jnp.where(small, near, jnp.log1p(jnp.where(small, 1.0, u)) / jnp.where(small, 1.0, power))


def _inverse_by_power(y: Array, power: Array) -> Any:
    log = _log_of_power(y, power)
    return -(log**2) * exprel_slope(power * log) * jnp.exp((1.0 - power) * log)


def _inverse_boxcox(exponential: Function) -> Function:
    return corners.with_slopes(
        lambda y, power: exponential(_log_of_power(y, power)),
        lambda ans, y, power: jnp.exp((1.0 - power) * _log_of_power(y, power)),
        lambda ans, y, power: _inverse_by_power(y, power),
    )


inv_boxcox, inv_boxcox1p = _inverse_boxcox(jnp.exp), _inverse_boxcox(corners.expm1)


def power_by(exponent: Array) -> Any:
    """Return the function that raises to a constant power, at zero as elsewhere: 0 times 0 ** -1 is no slope."""

    @jax.custom_jvp
    def power(x: Array) -> Any:
        return jnp.power(x, exponent)

    def slope(tangent: Tangent, value: Array, x: Array) -> Any:
        constant = np.equal(exponent, 0)
        lower = power_by(np.where(constant, exponent, exponent - 1))(x)
        return jnp.where(constant, 0.0, exponent * lower) * tangent

    power.defjvps(slope)
    return power


@jax.custom_jvp
def _whole_power(x: Array, n: Array) -> Any:
    return jax.lax.pow(x, n)


@_whole_power.defjvp
def _slope_of_whole_power(given: tuple[Array, Array], tangents: tuple[Array, Array]) -> Any:
    x, n = given
    lower = _whole_power(x, jnp.where(n == 0, 0, n - 1))
    return _whole_power(x, n), jnp.where(n == 0, 0.0, n * lower) * tangents[0]


def _power_of_whole(x: Array, n: Array) -> Any:
    """Return powers of whole numbers, wrapped as numpy's are: jax looks at six bits of an exponent."""
    n_bits = int(np.max(n, initial=0)).bit_length() if isinstance(n, np.ndarray) else 8 * n.dtype.itemsize
    found, square = jnp.ones((), x.dtype), x
    for bit in range(n_bits):
        found = found * jnp.where((n >> bit) & 1 == 1, square, 1)
        square = square * square
    return jnp.broadcast_to(found, jnp.broadcast_shapes(jnp.shape(x), jnp.shape(n)))


def power(x: Array, y: Array) -> Any:
    """Return powers as numpy has them, where jax has others of zero."""
    if jnp.result_type(x).kind in "iu" and jnp.result_type(y).kind in "iu":
        return _power_of_whole(jnp.asarray(x), y if isinstance(y, jax.Array) else np.asarray(y))
    number = y.item() if isinstance(y, np.ndarray | np.generic) and np.ndim(y) == 0 else y
    if isinstance(number, int | float) and jnp.issubdtype(jnp.result_type(x), jnp.inexact):
        if number == int(number) if abs(number) <= 64 else False:
            return jax.lax.integer_pow(x, int(number))
        if number == 0.5:
            return jnp.sqrt(x)
    if jnp.result_type(x, y).kind == "c":  # of zero jax gives nan
        is_zero = jnp.logical_and(jnp.equal(x, 0), jnp.greater(jnp.real(y), 0))
        return jnp.where(is_zero, 0, jnp.power(jnp.where(is_zero, 1, x), y))
    if not isinstance(y, jax.Array) and np.ndim(y) and jnp.result_type(x).kind == "f":
        return power_by(np.asarray(y))(x)
    if jnp.result_type(x).kind == "f" and jnp.result_type(y).kind in "iu":  # jnp.power would make them floats
        return _whole_power(*jnp.broadcast_arrays(x, y))
    return corners.power_of(x, y)


def exponent_of(given: Array, operand: Array, dtype: DType) -> Any:
    """Return an exponent as it was given, instead of as floats: jax knows the slope at zero of whole ones only."""
    if dtype.kind != "f":
        return operand
    if isinstance(given, jax.Array):
        return jnp.asarray(given, np.int64) if given.dtype.kind in "iu" else operand
    return np.asarray(given, dtype) if np.ndim(given) else operand


# Of two lengths


def hypot(x: Array, y: Array) -> Any:
    """Return the length of a vector; jax divides by the larger part, and where none is loses the second derivative."""
    scale = jax.lax.stop_gradient(jnp.maximum(jnp.abs(x), jnp.abs(y)))
    usual = (scale > 0) & (scale < np.inf)
    scale = jnp.where(usual, scale, 1.0)
    p, q = x / scale, y / scale
    found = scale * jnp.sqrt(p**2 + q**2)  # of no length the derivative is nan, as of any square root of zero
    return jnp.where(jnp.isinf(x) | jnp.isinf(y), np.inf, found)
