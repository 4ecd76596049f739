"""Special functions that jax has not, or with other derivatives: integrals, means, line profiles, polynomials.

Values are computed to the last digits, by series, by iterations of square roots or by a sum with which an integral
converges at once; slopes are those of the other engine.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special as jss

from dagad._engines.xla import corners, lambert, refusals, special
from dagad._errors import NotDifferentiableError
from dagad._rules import carlson, polynomials
from dagad._rules.faddeeva import derivative as derivative_of_u
from dagad._types import Array, Function


def refused(name: str, why: str) -> Function:
    """Return what refuses a function of scipy's by name."""

    def refuse(*args: Any) -> Any:
        raise NotDifferentiableError(refusals.of_function(f"scipy.special.{name}", why))

    return refuse


def _of_real(name: str, function: Function) -> Function:
    """Return a function that takes real numbers only."""

    def call(*args: Any) -> Any:
        if any(jnp.result_type(arg).kind == "c" for arg in args):
            refused(name, " of complex numbers")()
        return function(*args)

    return call


def _split(small: Array, terms: list[float], x: Array, formula: Function, away: float) -> Any:
    """Return a sum of powers where x is small, and a formula elsewhere; each sees its own part only."""
    series = jnp.polyval(jnp.asarray(terms[::-1], x.dtype), jnp.where(small, x, 0.0))
    return jnp.where(small, series, formula(jnp.where(small, away, x)))


# Integrals

_SINES = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(24)]
_LOGARITHMS = [(-1.0) ** (k + 1) / (k + 1) for k in range(40)]


def _sine_over(x: Array) -> Any:
    small = jnp.abs(x) < 2.0
    at = jnp.where(small, 2.0, x)
    return _split(small, _SINES, x * x, lambda _: jnp.sin(at) / at, 4.0)


def _several(function: Function, *slopes: Function) -> Function:
    """Return a function with several results, from the slope of each."""

    def part(index: int, slope: Function) -> Any:
        return corners.with_slopes(lambda x: function(x)[index], lambda ans, x: slope(x))

    parts = [part(index, slope) for index, slope in enumerate(slopes)]
    return lambda x: tuple(each(x) for each in parts)


def _spence_slope(ans: Array, z: Array) -> Any:
    near = jnp.abs(z - 1.0) < 0.25
    return _split(near, _LOGARITHMS, z - 1.0, lambda less: jnp.log(jnp.where(near, 2.0, z)) / -less, 1.0)


def _zeta(x: Array, q: Array) -> Any:
    return jnp.where((q <= 0) & (q == jnp.floor(q)), jnp.inf, jss.zeta(x, q))


zeta: Function = corners.with_slopes(
    _zeta,
    lambda ans, x, q: refused("zeta", " in its first argument")(),
    lambda ans, x, q: -x * zeta(x + 1.0, q),
)
_ROOT_2PI = float(np.sqrt(2.0 * np.pi))
_RATES = [(np.pi * k) ** 2 / 8.0 for k in (1, 3, 5, 7, 9)]


def _kolmogorov(y: Array) -> Any:
    large, none = y > 1.0, y < 0.03
    at = jnp.where(large, y, 1.0)
    outer = sum(-2.0 * (-1.0) ** k * jnp.exp(-2.0 * k**2 * at**2) for k in range(1, 9))
    at = jnp.where(large | none, 1.0, y)
    inside = 1.0 - _ROOT_2PI / at * sum(jnp.exp(-a / at**2) for a in _RATES)
    return jnp.where(large, outer, jnp.where(none, 1.0, inside))


def _kolmogorov_slope(ans: Array, y: Array) -> Any:
    large, none = y > 1.0, y < 0.03
    at = jnp.where(large, y, 1.0)
    outer = sum((-1.0) ** k * 8.0 * k**2 * at * jnp.exp(-2.0 * k**2 * at**2) for k in range(1, 9))
    at = jnp.where(large | none, 1.0, y)
    inside = _ROOT_2PI * sum((1.0 - 2.0 * a / at**2) / at**2 * jnp.exp(-a / at**2) for a in _RATES)
    return jnp.where(large, outer, jnp.where(none, 0.0, inside))


# Elliptic integrals


def _by_roots(form: Function, *roots: Array) -> Any:
    """Return an integral of the squares of these; of two zeros it is infinite."""
    n_zeros = sum(jnp.equal(each, 0).astype(int) for each in roots)
    found = form(roots, jnp.sqrt, carlson.MOST)
    return jnp.where(n_zeros > 1, jnp.inf, found)


def _rd(a: Array, b: Array, c: Array) -> Any:
    return _by_roots(carlson.rd, a, b, c)


def _rf(a: Array, b: Array, c: Array) -> Any:
    return _by_roots(carlson.rf, a, b, c)


def _complete(p: Array) -> Any:
    """Return K and E of m = 1 - p."""
    root = jnp.sqrt(jnp.where(p == 0, 1.0, p))
    first = _rf(0.0, root, 1.0)
    second = first - (1.0 - p) / 3.0 * _rd(0.0, root, 1.0)
    return jnp.where(p == 0, jnp.inf, first), jnp.where(p == 0, 1.0, second)


def _first_by_m(p: Array) -> Any:
    return _rd(0.0, 1.0, jnp.sqrt(p)) / 6.0


def _second_by_m(p: Array) -> Any:
    return -_rd(0.0, jnp.sqrt(p), 1.0) / 6.0


def _turned(phi: Array, m: Array) -> Any:
    """Return how often pi is in an angle, and of what is left the sine, the cosine and sqrt(1 - m sine^2)."""
    turns = jnp.round(jax.lax.stop_gradient(phi) / np.pi)
    sign = 1.0 - 2.0 * jnp.mod(turns, 2.0)
    sine, cosine = sign * jnp.sin(phi), sign * jnp.cos(phi)
    return turns, sine, cosine, jnp.sqrt(cosine**2 + (1.0 - m) * sine**2)


def _whole_turns(turns: Array, each: Array) -> Any:
    return jnp.where(turns == 0, 0.0, 2.0 * turns * jnp.where(turns == 0, 0.0, each))


def _ellipkinc(phi: Array, m: Array) -> Any:
    turns, sine, cosine, root = _turned(phi, m)
    return sine * _rf(cosine, root, 1.0) + _whole_turns(turns, _complete(1.0 - m)[0])


def _ellipeinc(phi: Array, m: Array) -> Any:
    turns, sine, cosine, root = _turned(phi, m)
    part = sine * _rf(cosine, root, 1.0) - m / 3.0 * sine**3 * _rd(cosine, root, 1.0)
    return part + _whole_turns(turns, _complete(1.0 - m)[1])


def _incomplete_first(ans: Array, phi: Array, m: Array) -> Any:
    turns, sine, cosine, root = _turned(phi, m)
    return sine**3 * _rd(cosine, 1.0, root) / 6.0 + _whole_turns(turns, _first_by_m(1.0 - m))


def _incomplete_second(ans: Array, phi: Array, m: Array) -> Any:
    turns, sine, cosine, root = _turned(phi, m)
    return -(sine**3) * _rd(cosine, root, 1.0) / 6.0 + _whole_turns(turns, _second_by_m(1.0 - m))


def _elliprd(x: Array, y: Array, z: Array) -> Any:
    return _rd(jnp.sqrt(x), jnp.sqrt(y), jnp.sqrt(z))


def _elliprf(x: Array, y: Array, z: Array) -> Any:
    return _rf(jnp.sqrt(x), jnp.sqrt(y), jnp.sqrt(z))


def _elliprc(x: Array, y: Array) -> Any:
    below = y < 0
    factor = jnp.sqrt(jnp.where(below, x / jnp.where(below, x - y, 1.0), 1.0))
    other = jnp.sqrt(jnp.abs(y))
    found = factor * _rf(jnp.sqrt(jnp.where(below, x - y, x)), other, other)
    return jnp.where(y == 0, jnp.nan, found)


def _agm(a: Array, b: Array) -> Any:
    sign, gone = jnp.where(a < 0, -1.0, 1.0), a * b == 0
    p, q = (jnp.where(gone, 1.0, sign * each) for each in (a, b))
    return jnp.where(gone, jnp.sqrt(a * b), sign * carlson.mean(p, q, jnp.sqrt))  # whose slope is infinite, too


# Line profiles


@functools.cache
def _faddeeva(n: int) -> Any:
    """Return the n-th derivative of Faddeeva's function."""

    @jax.custom_jvp
    def function(z: Array) -> Any:
        sigma = jnp.asarray(np.sqrt(0.5), z.real.dtype)
        return math.sqrt(np.pi) * derivative_of_u(n, z, sigma, jnp)

    function.defjvps(lambda tangent, ans, z: _faddeeva(n + 1)(z) * tangent)
    return function


@functools.cache
def _profile(n: int, part: int) -> Any:
    """Return the real or the imaginary part of the n-th derivative of what has Voigt's profile as its real part."""

    def value(x: Array, sigma: Array, gamma: Array) -> Any:
        found = derivative_of_u(n, jax.lax.complex(x, gamma), sigma, jnp)
        return found.imag if part else found.real

    return corners.with_slopes(
        value,
        lambda ans, x, sigma, gamma: _profile(n + 1, part)(x, sigma, gamma),
        lambda ans, x, sigma, gamma: sigma * _profile(n + 2, part)(x, sigma, gamma),
        lambda ans, x, sigma, gamma: (1.0 if part else -1.0) * _profile(n + 1, 1 - part)(x, sigma, gamma),
    )


# Polynomials of constant degree

_LARGEST = 100


def _polynomial(name: str, recurrence: Function) -> Function:
    def polynomial(n: Array, *args: Any) -> Any:
        if isinstance(n, jax.Array):
            refused(name, " in a degree that jax traces")()
        degrees = np.asarray(n)
        if np.any((degrees < 0) | (degrees != np.floor(degrees)) | (degrees > _LARGEST)):
            refused(name, f" in a degree that is no whole number up to {_LARGEST}")()
        *others, x = map(jnp.asarray, args)
        shape = jnp.broadcast_shapes(degrees.shape, *(each.shape for each in (*others, x)))
        before, now = jnp.zeros(shape, x.dtype), jnp.ones(shape, x.dtype)
        found = now
        for degree in range(int(np.max(degrees, initial=0))):
            of_now, of_x, of_before = recurrence(degree, *others)
            before, now = now, (of_now + of_x * x) * now - of_before * before
            found = jnp.where(degrees == degree + 1, now, found)
        return found

    return polynomial


_POLYNOMIALS: dict[str, Function] = {
    "eval_chebyt": polynomials.RECURRENCES["chebval"],
    "eval_chebyu": lambda n: (0.0, 2.0, 1.0),
    "eval_legendre": polynomials.RECURRENCES["legval"],
    "eval_hermite": polynomials.RECURRENCES["hermval"],
    "eval_hermitenorm": polynomials.RECURRENCES["hermeval"],
    "eval_laguerre": polynomials.RECURRENCES["lagval"],
    "eval_genlaguerre": lambda n, a: ((2.0 * n + 1.0 + a) / (n + 1.0), -1.0 / (n + 1.0), (n + a) / (n + 1.0)),
    "eval_gegenbauer": lambda n, a: (0.0, 2.0 * (n + a) / (n + 1.0), (n + 2.0 * a - 1.0) / (n + 1.0)),
}


def _diric(x: Array, n: Array) -> Any:
    if isinstance(n, jax.Array):
        refused("diric", " of a number of terms that jax traces")()
    orders = np.asarray(n)
    is_whole = (orders > 0) & (orders == np.floor(orders))
    orders = np.where(is_whole, orders, 1.0)
    x = jnp.asarray(x)
    found = UFUNCS["eval_chebyu"](orders - 1.0, jnp.cos(x / 2.0)) / orders.astype(x.dtype)
    return jnp.where(is_whole, found, jnp.nan)


def _factorial(n: Array, exact: bool = False, extend: str = "zero") -> Any:
    if extend != "zero":
        raise NotDifferentiableError(refusals.of_option("scipy.special.factorial", [f"extend={extend!r}"]))
    up = n >= 0
    return jnp.where(up, special.gamma(jnp.where(up, n, 0.0) + 1.0), 0.0)


# Powers, distributions and what is left


_LOGARITHMS_OVER = [(-1.0) ** k / (k + 1) for k in range(18)]


def _log_of_power(y: Array, power: Array) -> Any:
    """Return log(1 + power y) / power, and y where the power is zero; by its series where that cancels."""
    u = power * y
    small = jnp.abs(u) < 0.1
    near = y * jnp.polyval(jnp.asarray(_LOGARITHMS_OVER[::-1], u.dtype), jnp.where(small, u, 0.0))
    return jnp.where(small, near, jnp.log1p(jnp.where(small, 1.0, u)) / jnp.where(small, 1.0, power))


def _by_power(y: Array, power: Array) -> Any:
    log = _log_of_power(y, power)
    return -(log**2) * special.exprel_slope(power * log) * jnp.exp((1.0 - power) * log)


def _inverse(value: Function) -> Function:
    return corners.with_slopes(
        lambda y, power: value(_log_of_power(y, power)),
        lambda ans, y, power: jnp.exp((1.0 - power) * _log_of_power(y, power)),
        lambda ans, y, power: _by_power(y, power),
    )


def _wrightomega(x: Array) -> Any:
    """Return the solution of w + log(w) = x, by Halley's steps in log(w)."""
    low = x < -50.0
    at = jnp.where(low, 0.0, x)
    log = jnp.where(at > 1.0, jnp.log(jnp.where(at > 1.0, at, 1.0)), jnp.where(at > -2.0, (at - 1.0) / 2.0, at))
    for _ in range(4):
        w = jnp.exp(log)
        rest = w + log - at
        log = log - 2.0 * rest * (1.0 + w) / (2.0 * (1.0 + w) ** 2 - rest * w)
    return jnp.where(low, jnp.exp(x), jnp.where(x == jnp.inf, x, jnp.exp(log)))


_MOST_FREEDOM = 500.0  # beyond, digits of t are lost in what the integral is taken up to


def _stdtr(df: Array, t: Array) -> Any:
    if isinstance(df, jax.Array) or np.any(np.asarray(df) > _MOST_FREEDOM):
        refused("stdtr", f" with degrees of freedom that jax traces, or more than {_MOST_FREEDOM:.0f}")()
    return corners.with_slopes(_share_below, None, _t_density)(np.asarray(df, float), t)


def _share_below(df: Array, t: Array) -> Any:
    df, square = df.astype(t.dtype), t * t
    is_tail = square > 1.0
    tail = 0.5 * jss.betainc(0.5 * df, 0.5, df / (df + jnp.where(is_tail, square, 1.0)))
    middle = 0.5 * jss.betainc(0.5, 0.5 * df, jnp.where(is_tail, 0.0, square) / (df + square))
    return jnp.where(is_tail, jnp.where(t < 0, tail, 1.0 - tail), 0.5 + jnp.sign(t) * middle)


def _t_density(ans: Array, df: Array, t: Array) -> Any:
    scale = special.gammaln(0.5 * (df + 1.0)) - special.gammaln(0.5 * df) - 0.5 * jnp.log(df * np.pi)
    return jnp.exp(scale - 0.5 * (df + 1.0) * jnp.log1p(t * t / df)).astype(t.dtype)


def _wrightomega_slope(ans: Array, x: Array) -> Any:
    return jnp.where(ans > 1.0, 1.0 - 1.0 / (1.0 + ans), ans / (1.0 + ans))  # of which both have exact derivatives


UFUNCS: dict[str, Function] = {
    "fresnel": _of_real(
        "fresnel",
        _several(jss.fresnel, lambda x: jnp.sin(np.pi / 2.0 * x**2), lambda x: jnp.cos(np.pi / 2.0 * x**2)),
    ),
    "sici": _of_real("sici", _several(jss.sici, _sine_over, lambda x: jnp.cos(x) / x)),
    "spence": _of_real("spence", corners.with_slopes(jss.spence, _spence_slope)),
    "_zeta": _of_real("zeta", zeta),
    "_riemann_zeta": refused("zeta", " of one argument"),
    "_lambertw": lambert.lambertw,
    "kolmogorov": corners.with_slopes(_kolmogorov, _kolmogorov_slope),
    "ellipk": corners.with_slopes(lambda m: _complete(1.0 - m)[0], lambda ans, m: _first_by_m(1.0 - m)),
    "ellipkm1": corners.with_slopes(lambda p: _complete(p)[0], lambda ans, p: -_first_by_m(p)),
    "ellipe": corners.with_slopes(lambda m: _complete(1.0 - m)[1], lambda ans, m: _second_by_m(1.0 - m)),
    "ellipkinc": corners.with_slopes(_ellipkinc, lambda ans, phi, m: 1.0 / _turned(phi, m)[3], _incomplete_first),
    "ellipeinc": corners.with_slopes(_ellipeinc, lambda ans, phi, m: _turned(phi, m)[3], _incomplete_second),
    "elliprf": _of_real(
        "elliprf",
        corners.with_slopes(
            _elliprf,
            lambda ans, x, y, z: -_elliprd(y, z, x) / 6.0,
            lambda ans, x, y, z: -_elliprd(z, x, y) / 6.0,
            lambda ans, x, y, z: -_elliprd(x, y, z) / 6.0,
        ),
    ),
    "elliprd": _of_real("elliprd", _elliprd),
    "elliprc": _of_real("elliprc", _elliprc),
    "agm": _agm,
    "wofz": _faddeeva(0),
    "voigt_profile": _profile(0, 0),
    "nbdtr": lambda k, n, p: jss.betainc(jnp.trunc(n), jnp.trunc(k) + 1.0, p),
    "nbdtrc": lambda k, n, p: jss.betainc(jnp.trunc(k) + 1.0, jnp.trunc(n), 1.0 - p),
    "round": jnp.round,
    "stdtr": _stdtr,
    "exprel": special.exprel,
    "inv_boxcox": _inverse(jnp.exp),
    "inv_boxcox1p": _inverse(corners.expm1),
    "wrightomega": _of_real("wrightomega", corners.with_slopes(_wrightomega, _wrightomega_slope)),
    **{name: _polynomial(name, recurrence) for name, recurrence in _POLYNOMIALS.items()},
}
WRITTEN: dict[str, Function] = {"scipy.special.diric": _diric, "scipy.special.factorial": _factorial}
