"""Special functions that are integrals, and that jax has not or with other slopes: of sines, Spence's, distributions.

Values are computed to the last digits, by series where a quotient cancels; slopes are those of the other engine.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special as jss

from dagad._engines.xla import corners, refusals, special
from dagad._engines.xla.refusals import of_real, refused
from dagad._errors import NotDifferentiableError
from dagad._rules.scipy_integrate import by_nodes
from dagad._types import Array, Function


def _split(small: Array, terms: list[float], x: Array, formula: Function, away: float) -> Any:
    """Return a sum of powers where x is small, and a formula elsewhere; each sees its own part only."""
    series = jnp.polyval(jnp.asarray(terms[::-1], x.dtype), jnp.where(small, x, 0.0))
    return jnp.where(small, series, formula(jnp.where(small, away, x)))


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


def _factorial(n: Array, exact: bool = False, extend: str = "zero") -> Any:
    if extend != "zero":
        raise NotDifferentiableError(refusals.of_option("scipy.special.factorial", [f"extend={extend!r}"]))
    up = n >= 0
    return jnp.where(up, special.gamma(jnp.where(up, n, 0.0) + 1.0), 0.0)


UFUNCS: dict[str, Function] = {
    "fresnel": of_real(
        "fresnel",
        _several(jss.fresnel, lambda x: jnp.sin(np.pi / 2.0 * x**2), lambda x: jnp.cos(np.pi / 2.0 * x**2)),
    ),
    "sici": of_real("sici", _several(jss.sici, _sine_over, lambda x: jnp.cos(x) / x)),
    "spence": of_real("spence", corners.with_slopes(jss.spence, _spence_slope)),
    "_zeta": of_real("zeta", zeta),
    "_riemann_zeta": refused("zeta", " of one argument"),
    "kolmogorov": corners.with_slopes(_kolmogorov, _kolmogorov_slope),
    "nbdtr": lambda k, n, p: jss.betainc(jnp.trunc(n), jnp.trunc(k) + 1.0, p),
    "nbdtrc": lambda k, n, p: jss.betainc(jnp.trunc(k) + 1.0, jnp.trunc(n), 1.0 - p),
    "stdtr": _stdtr,
}
WRITTEN: dict[str, Function] = {"scipy.special.factorial": _factorial, "scipy.integrate.fixed_quad": by_nodes}
