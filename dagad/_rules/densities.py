"""Densities and masses of scipy.stats: the logarithm that each has of its standard distribution, inside its support.

Imported when a process records and has scipy.stats. A formula is given arrays of whoever traces, autograd's or jax's.
"""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.scipy import special

from dagad._rules.incomplete import log1p_by, log_t_density
from dagad._rules.scipy_rules import f
from dagad._types import Array, Function
from dagad._values import pytree

plain = pytree.plain
LOG_ROOT_2PI = 0.5 * np.log(2.0 * np.pi)


def _t(z: Array, df: Array) -> Any:
    return log_t_density(df, z)


def _normal(z: Array) -> Any:
    return -(z**2) / 2.0 - LOG_ROOT_2PI


def _gamma(z: Array, a: Array) -> Any:
    return f.xlogy(a - 1.0, z) - z - special.gammaln(a)


def _f(z: Array, n: Array, m: Array) -> Any:
    scale = 0.5 * (m * anp.log(m) + n * anp.log(n)) - special.betaln(0.5 * n, 0.5 * m)
    return scale + f.xlogy(0.5 * n - 1.0, z) - 0.5 * (n + m) * anp.log(m + n * z)


def log1p_power(z: Array, c: Array) -> Any:
    """Return log(1 + z**c), from what of the two is small."""
    small = plain(z) < 1.0
    below, above = anp.where(small, z, 0.5), anp.where(small, 1.0, z)
    return anp.where(small, anp.log1p(below**c), c * anp.log(above) + anp.log1p(above**-c))


def _genextreme(z: Array, c: Array) -> Any:
    y = log1p_by(-c, z)
    return -(1.0 - c) * y - anp.exp(-y)


def _exponnorm(z: Array, k: Array) -> Any:
    """Return the logarithm of the density of a normal variable and k times an exponential one.

    Where the tail of the normal one is asked for, its square and that of 1/k cancel: there it is taken in parts.
    """
    u = 1.0 / k - z
    near = plain(u) > 0.0
    scaled = anp.log(0.5 * f.erfcx(anp.where(near, u, 0.0) / np.sqrt(2.0))) - 0.5 * z**2
    plainly = 0.5 / k**2 - z / k + f.log_ndtr(anp.where(near, 0.0, -u))
    return anp.where(near, scaled, plainly) - anp.log(k)


def log_mass(a: Array, b: Array) -> Any:
    """Return the logarithm of what a normal distribution has between two numbers, from the tail that is nearer."""
    above = plain(a) > 0.0
    low, high = anp.where(above, -b, a), anp.where(above, -a, b)
    has_low, has_high = np.isfinite(plain(low)), np.isfinite(plain(high))
    upto = anp.where(has_high, f.log_ndtr(anp.where(has_high, high, 0.0)), 0.0)
    rest = anp.where(has_low, f.log_ndtr(anp.where(has_low, low, 0.0)) - upto, -1.0)
    return upto + anp.log1p(-anp.where(has_low, anp.exp(rest), 0.0))


def log_rest(logarithm: Array) -> Any:
    """Return log(1 - p) of the logarithm of a probability, from what of the two is small."""
    near = plain(logarithm) > -np.log(2.0)
    rest = anp.log(-anp.expm1(anp.where(near, logarithm, -1.0)))
    return anp.where(near, rest, anp.log1p(-anp.exp(anp.where(near, -1.0, logarithm))))


def _argus(z: Array, chi: Array) -> Any:
    """Return the logarithm of ARGUS' density; its mass is that of a Maxwell distribution below chi."""
    mass = anp.log(0.5 * special.gammainc(1.5, 0.5 * chi**2))
    return (
        3.0 * anp.log(chi) - LOG_ROOT_2PI - mass + anp.log(z) + 0.5 * anp.log1p(-(z**2)) - 0.5 * chi**2 * (1.0 - z**2)
    )


def _crystalball(z: Array, beta: Array, m: Array) -> Any:
    """Return the logarithm of a normal density, with a power for a tail, which begin with the same slope."""
    tail = plain(z) <= -plain(beta)
    ratio = m / beta
    mass = anp.log(anp.exp(-0.5 * beta**2) * ratio / (m - 1.0) + np.sqrt(2.0 * np.pi) * anp.exp(f.log_ndtr(beta)))
    away = anp.where(tail, 1.0 - (beta / m) * (beta + anp.where(tail, z, 0.0)), 1.0)
    return anp.where(tail, -0.5 * beta**2 - m * anp.log(away), -0.5 * anp.where(tail, 0.0, z) ** 2) - mass


def _triang(z: Array, c: Array) -> Any:
    rises = plain(z) < plain(c)
    up = anp.log(anp.where(rises, z, 1.0)) - anp.log(anp.where(rises, c, 1.0))
    down = anp.log1p(-anp.where(rises, 0.0, z)) - anp.log1p(-anp.where(rises, 0.0, c))
    flat = plain(c) == 1.0  # all of it rises, to the end
    return np.log(2.0) + anp.where(rises | flat, anp.where(flat, anp.log(anp.where(flat, z, 1.0)), up), down)


def _laplace_asymmetric(z: Array, kappa: Array) -> Any:
    return -anp.where(plain(z) < 0.0, -z / kappa, z * kappa) - anp.log(kappa + 1.0 / kappa)


def _skew_cauchy(z: Array, a: Array) -> Any:
    return -np.log(np.pi) - anp.log1p((z / (1.0 + a * np.sign(plain(z)))) ** 2)


def _ncx2(z: Array, df: Array, nc: Array) -> Any:
    order, root, middle = 0.5 * df - 1.0, anp.sqrt(z), anp.sqrt(nc)
    rest = _log_ive(order, root * middle) - np.log(2.0)
    return 0.5 * order * (anp.log(z) - anp.log(nc)) - 0.5 * (root - middle) ** 2 + rest


def _norminvgauss(z: Array, a: Array, b: Array) -> Any:
    root = anp.sqrt(1.0 + z**2)
    return anp.log(a / np.pi) + anp.log(f.k1e(a * root) / root) + anp.sqrt((a - b) * (a + b)) + b * z - a * root


def _rel_breitwigner(z: Array, rho: Array) -> Any:
    scale = anp.sqrt(1.0 + 1.0 / rho**2)
    height = np.log(2.0 / np.pi) + 0.5 * (np.log(2.0) + 2.0 * anp.log(scale) - anp.log1p(scale))
    return height - anp.log1p(((z - rho) * (z + rho) / rho) ** 2)


def _log_ive(v: Array, x: Array) -> Any:
    """Return the logarithm of `ive`, also where that is too small to be a number."""
    value = f.ive(v, x)
    gone = plain(value) < 1e-100  # whose square is needed for second derivatives
    if not np.any(gone):
        return anp.log(value)
    large = gone & (plain(v) >= 200.0)
    found = anp.where(gone, 0.0, anp.log(anp.where(gone, 1.0, value)))
    found = anp.where(large, _of_large_order(anp.where(large, v, 200.0), anp.where(large, x, 100.0)), found)
    other = gone & ~large
    return anp.where(other, _by_powers(anp.where(other, v, 9.0), anp.where(other, x, 1.0)), found)


def _by_powers(v: Array, x: Array) -> Any:
    """Return the logarithm of `ive` by its sum of powers; of a small one few of them count."""
    square, total, term = 0.25 * x**2, 1.0, 1.0
    for k in range(1, 61):
        term = term * square / (k * (v + k))
        total = total + term
    return v * anp.log(0.5 * x) - special.gammaln(v + 1.0) - x + anp.log(total)


def _of_large_order(v: Array, x: Array) -> Any:
    """Return the logarithm of `ive` by its expansion for large orders: Abramowitz and Stegun, 9.7.7."""
    z = x / v
    root = anp.sqrt(1.0 + z**2)
    t, s = 1.0 / root, root**-2.0
    first, second = t * (3.0 - 5.0 * s) / 24.0, s * (81.0 + s * (-462.0 + 385.0 * s)) / 1152.0
    third = t * s * (30375.0 + s * (-369603.0 + s * (765765.0 - 425425.0 * s))) / 414720.0
    fourth = s * s * (4465125.0 + s * (-94121676.0 + s * (349922430.0 + s * (-446185740.0 + 185910725.0 * s))))
    series = 1.0 + (first + (second + (third + fourth / 39813120.0 / v) / v) / v) / v
    exponent = v * (1.0 / (root + z) + anp.log(z) - anp.log1p(root))
    return exponent - 0.5 * anp.log(2.0 * np.pi * v * root) + anp.log(series)


def _skellam(k: Array, a: Array, b: Array) -> Any:
    rest = _log_ive(anp.abs(k), 2.0 * anp.sqrt(a * b))
    return rest - (anp.sqrt(a) - anp.sqrt(b)) ** 2 + 0.5 * k * (anp.log(a) - anp.log(b))


DENSITIES: dict[str, Function] = {
    "norm": _normal,
    "expon": lambda z: -z,
    "laplace": lambda z: -anp.abs(z) - np.log(2.0),
    "logistic": lambda z: -z - 2.0 * anp.logaddexp(0.0, -z),
    "cauchy": lambda z: -np.log(np.pi) - anp.log1p(z**2),
    "gumbel_r": lambda z: -z - anp.exp(-z),
    "gumbel_l": lambda z: z - anp.exp(z),
    "halfnorm": lambda z: -(z**2) / 2.0 - LOG_ROOT_2PI + np.log(2.0),
    "halfcauchy": lambda z: np.log(2.0 / np.pi) - anp.log1p(z**2),
    "rayleigh": lambda z: anp.log(z) - z**2 / 2.0,
    "uniform": lambda z: 0.0 * z,
    "t": _t,
    "gamma": _gamma,
    "invgamma": lambda z, a: -(a + 1.0) * anp.log(z) - 1.0 / z - special.gammaln(a),
    "chi2": lambda z, df: _gamma(z / 2.0, df / 2.0) - np.log(2.0),
    "beta": lambda z, a, b: f.xlogy(a - 1.0, z) + f.xlog1py(b - 1.0, -z) - special.betaln(a, b),
    "lognorm": lambda z, s: _normal(anp.log(z) / s) - anp.log(s * z),
    "weibull_min": lambda z, c: anp.log(c) + f.xlogy(c - 1.0, z) - z**c,
    "pareto": lambda z, b: anp.log(b) - (b + 1.0) * anp.log(z),
    "skewnorm": lambda z, a: np.log(2.0) + _normal(z) + f.log_ndtr(a * z),
    "f": _f,
    "fisk": lambda z, c: anp.log(c) + f.xlogy(c - 1.0, z) - 2.0 * log1p_power(z, c),
    "gennorm": lambda z, b: anp.log(0.5 * b) - special.gammaln(1.0 / b) - anp.abs(z) ** b,
    "exponnorm": lambda z, k: _exponnorm(z, k),
    "vonmises": lambda z, k: k - anp.abs(k) - 2.0 * k * anp.sin(0.5 * z) ** 2 - anp.log(2.0 * np.pi * f.i0e(k)),
    "genpareto": lambda z, c: -(c + 1.0) * log1p_by(c, z),
    "genextreme": _genextreme,
    "truncnorm": lambda z, a, b: _normal(z) - log_mass(a, b),
    "invgauss": lambda z, mu: -LOG_ROOT_2PI - 1.5 * anp.log(z) - ((z - mu) / mu) ** 2 / (2.0 * z),
    "alpha": lambda z, a: -2.0 * anp.log(z) + _normal(a - 1.0 / z) - f.log_ndtr(a),
    "anglit": lambda z: anp.log(anp.cos(2.0 * z)),
    "arcsine": lambda z: -np.log(np.pi) - 0.5 * (anp.log(z) + anp.log1p(-z)),
    "argus": _argus,
    "betaprime": lambda z, a, b: f.xlogy(a - 1.0, z) - f.xlog1py(a + b, z) - special.betaln(a, b),
    "bradford": lambda z, c: anp.log(c) - anp.log1p(c * z) - anp.log(anp.log1p(c)),
    "burr": lambda z, c, d: anp.log(c) + anp.log(d) - (c + 1.0) * anp.log(z) - (d + 1.0) * log1p_power(1.0 / z, c),
    "burr12": lambda z, c, d: anp.log(c) + anp.log(d) + f.xlogy(c - 1.0, z) - (d + 1.0) * log1p_power(z, c),
    "chi": lambda z, df: f.xlogy(df - 1.0, z) - 0.5 * z**2 + (1.0 - 0.5 * df) * np.log(2.0) - special.gammaln(0.5 * df),
    "cosine": lambda z: 2.0 * anp.log(anp.where(np.abs(plain(z)) < np.pi, anp.cos(0.5 * z), 0.0)) - np.log(np.pi),
    "crystalball": _crystalball,
    "dgamma": lambda z, a: _gamma(anp.abs(z), a) - np.log(2.0),
    "dweibull": lambda z, c: anp.log(0.5 * c) + f.xlogy(c - 1.0, anp.abs(z)) - anp.abs(z) ** c,
    "erlang": lambda z, a: _gamma(z, a),
    "exponpow": lambda z, b: anp.log(b) + f.xlogy(b - 1.0, z) + z**b - anp.expm1(z**b),
    "exponweib": lambda z, a, c: (
        anp.log(a) + anp.log(c) + f.xlogy(c - 1.0, z) - z**c + f.xlogy(a - 1.0, -anp.expm1(-(z**c)))
    ),
    "fatiguelife": lambda z, c: (
        anp.log1p(z) - (z - 1.0) ** 2 / (2.0 * z * c**2) - anp.log(2.0 * c) - LOG_ROOT_2PI - 1.5 * anp.log(z)
    ),
    "foldcauchy": lambda z, c: anp.log(1.0 / (1.0 + (z - c) ** 2) + 1.0 / (1.0 + (z + c) ** 2)) - np.log(np.pi),
    "foldnorm": lambda z, c: anp.logaddexp(_normal(z - c), _normal(z + c)),
    "gengamma": lambda z, a, c: anp.log(anp.abs(c)) + f.xlogy(c * a - 1.0, z) - z**c - special.gammaln(a),
    "genexpon": lambda z, a, b, c: anp.log(a - b * anp.expm1(-c * z)) - (a + b) * z - b / c * anp.expm1(-c * z),
    "geninvgauss": lambda z, p, b: (
        f.xlogy(p - 1.0, z) - 0.5 * b * (anp.sqrt(z) - 1.0 / anp.sqrt(z)) ** 2 - anp.log(2.0 * f.kve(p, b))
    ),
    "genlogistic": lambda z, c: anp.log(c) - z - (c + 1.0) * anp.logaddexp(0.0, -z),
    "gibrat": lambda z: _normal(anp.log(z)) - anp.log(z),
    "gompertz": lambda z, c: anp.log(c) + z - c * anp.expm1(z),
    "halfgennorm": lambda z, b: anp.log(b) - special.gammaln(1.0 / b) - z**b,
    "halflogistic": lambda z: np.log(2.0) - z - 2.0 * anp.log1p(anp.exp(-z)),
    "hypsecant": lambda z: np.log(2.0 / np.pi) - anp.logaddexp(z, -z),
    "invweibull": lambda z, c: anp.log(c) - (c + 1.0) * anp.log(z) - z**-c,
    "johnsonsb": lambda z, a, b: anp.log(b) - anp.log(z) - anp.log1p(-z) + _normal(a + b * f.logit(z)),
    "johnsonsu": lambda z, a, b: anp.log(b) - 0.5 * anp.log1p(z**2) + _normal(a + b * anp.arcsinh(z)),
    "kappa3": lambda z, a: anp.log(a) - (1.0 / a + 1.0) * anp.log(a + z**a),
    "laplace_asymmetric": _laplace_asymmetric,
    "levy": lambda z: -LOG_ROOT_2PI - 1.5 * anp.log(z) - 0.5 / z,
    "levy_l": lambda z: -LOG_ROOT_2PI - 1.5 * anp.log(anp.abs(z)) - 0.5 / anp.abs(z),
    "loggamma": lambda z, c: c * z - anp.exp(z) - special.gammaln(c),
    "loglaplace": lambda z, c: anp.log(0.5 * c) - anp.log(z) - c * anp.abs(anp.log(z)),
    "loguniform": lambda z, a, b: -anp.log(z) - anp.log(anp.log(b) - anp.log(a)),
    "lomax": lambda z, c: anp.log(c) - (c + 1.0) * anp.log1p(z),
    "maxwell": lambda z: 0.5 * np.log(2.0 / np.pi) + 2.0 * anp.log(z) - 0.5 * z**2,
    "mielke": lambda z, k, s: anp.log(k) + f.xlogy(k - 1.0, z) - (1.0 + k / s) * log1p_power(z, s),
    "moyal": lambda z: -LOG_ROOT_2PI - 0.5 * (z + anp.exp(-z)),
    "nakagami": lambda z, nu: (
        np.log(2.0) + f.xlogy(nu, nu) - special.gammaln(nu) + f.xlogy(2.0 * nu - 1.0, z) - nu * z**2
    ),
    "ncx2": _ncx2,
    "norminvgauss": _norminvgauss,
    "powerlaw": lambda z, a: anp.log(a) + f.xlogy(a - 1.0, z),
    "powerlognorm": lambda z, c, s: (
        anp.log(c) + _normal(anp.log(z) / s) - anp.log(s * z) + (c - 1.0) * f.log_ndtr(-anp.log(z) / s)
    ),
    "powernorm": lambda z, c: anp.log(c) + _normal(z) + (c - 1.0) * f.log_ndtr(-z),
    "rdist": lambda z, c: f.xlog1py(0.5 * c - 1.0, -(z**2)) - special.betaln(0.5, 0.5 * c),
    "recipinvgauss": lambda z, mu: -LOG_ROOT_2PI - 0.5 * anp.log(z) - (1.0 - mu * z) ** 2 / (2.0 * z * mu**2),
    "rel_breitwigner": _rel_breitwigner,
    "rice": lambda z, b: anp.log(z) - 0.5 * (z - b) ** 2 + anp.log(f.i0e(z * b)),
    "semicircular": lambda z: np.log(2.0 / np.pi) + 0.5 * anp.log1p(-(z**2)),
    "skewcauchy": _skew_cauchy,
    "triang": _triang,
    "truncexpon": lambda z, b: -z - anp.log(-anp.expm1(-b)),
    "truncpareto": lambda z, b, c: anp.log(b / -anp.expm1(-b * anp.log(c))) - (b + 1.0) * anp.log(z),
    "wald": lambda z: -LOG_ROOT_2PI - 1.5 * anp.log(z) - (z - 1.0) ** 2 / (2.0 * z),
    "weibull_max": lambda z, c: anp.log(c) + f.xlogy(c - 1.0, -z) - (-z) ** c,
    "wrapcauchy": lambda z, c: (
        anp.log1p(-(c**2)) - anp.log((1.0 - c) ** 2 + 4.0 * c * anp.sin(0.5 * z) ** 2) - np.log(2.0 * np.pi)
    ),
}
DENSITIES["reciprocal"] = DENSITIES["loguniform"]
DENSITIES["vonmises_line"] = DENSITIES["vonmises"]
MASSES: dict[str, Function] = {
    "bernoulli": lambda k, p: f.xlogy(k, p) + f.xlog1py(1.0 - k, -p),
    "binom": lambda k, n, p: -anp.log(n + 1.0) - special.betaln(n - k + 1.0, k + 1.0) + _powers(k, n - k, p),
    "betabinom": lambda k, n, a, b: (
        special.betaln(k + a, n - k + b)
        - special.betaln(a, b)
        - special.betaln(n - k + 1.0, k + 1.0)
        - anp.log(n + 1.0)
    ),
    "geom": lambda k, p: anp.log(p) + f.xlog1py(k - 1.0, -p),
    "nbinom": lambda k, n, p: special.gammaln(k + n) - special.gammaln(k + 1.0) - special.gammaln(n) + _powers(n, k, p),
    "poisson": lambda k, mu: f.xlogy(k, mu) - mu - special.gammaln(k + 1.0),
    "betanbinom": lambda k, n, a, b: (
        special.betaln(a + n, b + k) - special.betaln(a, b) - special.betaln(n, k + 1.0) - anp.log(n + k)
    ),
    "boltzmann": lambda k, a, n: anp.log(anp.expm1(-a) / anp.expm1(-a * n)) - a * k,
    "dlaplace": lambda k, a: anp.log(anp.tanh(0.5 * a)) - a * anp.abs(k),
    "logser": lambda k, p: f.xlogy(k, p) - anp.log(k) - anp.log(-anp.log1p(-p)),
    "planck": lambda k, a: anp.log(-anp.expm1(-a)) - a * k,
    "skellam": _skellam,
    "yulesimon": lambda k, a: anp.log(a) + special.betaln(k, a + 1.0),
}


def _powers(a: Array, b: Array, p: Array) -> Any:
    return f.xlogy(a, p) + f.xlog1py(b, -p)
