"""Distribution functions of scipy.stats, what is above them, and their inverses, of standard distributions.

Imported when a process records and has scipy.stats. A formula is given arrays of whoever traces, autograd's or jax's.
Those are here that scipy.special has in closed form.
"""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.scipy import special

from dagad._rules.densities import log1p_power, log_mass, log_rest
from dagad._rules.incomplete import log1p_by
from dagad._rules.scipy_rules import f
from dagad._types import Array, Function
from dagad._values import pytree

plain = pytree.plain
ROOT_2 = np.sqrt(2.0)


def _laplace(z: Array) -> Any:
    low = plain(z) < 0.0
    return anp.where(low, anp.where(low, z, 0.0) - np.log(2.0), anp.log1p(-0.5 * anp.exp(-anp.where(low, 0.0, z))))


def _laplace_asymmetric(z: Array, k: Array) -> Any:
    low = plain(z) < 0.0
    below = anp.where(low, z, 0.0) / k - anp.log1p(k**-2.0)
    return anp.where(low, below, anp.log1p(-anp.exp(-k * anp.where(low, 0.0, z)) / (1.0 + k**2)))


def _gengamma(z: Array, a: Array, c: Array, above: bool = False) -> Any:
    """Return what is below, or above, which are the other way round where the power falls."""
    upper = (plain(c) < 0.0) != above
    at = z**c
    lower = anp.log(special.gammainc(a, anp.where(upper, 1.0, at)))
    return anp.where(upper, anp.log(special.gammaincc(a, anp.where(upper, at, 1.0))), lower)


def _parts_of_invgauss(z: Array, mu: Array, sign: float) -> tuple[Any, Any]:
    root = 1.0 / anp.sqrt(z)
    return f.log_ndtr(sign * root * (z / mu - 1.0)), 2.0 / mu + f.log_ndtr(-root * (z / mu + 1.0))


def _invgauss(z: Array, mu: Array) -> Any:
    return anp.logaddexp(*_parts_of_invgauss(z, mu, 1.0))


def _above_invgauss(z: Array, mu: Array) -> Any:
    all_of_it, less = _parts_of_invgauss(z, mu, -1.0)
    return all_of_it + log_rest(less - all_of_it)


def _power_of(log: Array, c: Array) -> Any:
    """Return (exp(c log) - 1) / c, and its limit where c is zero."""
    return log * f.exprel(c * log)


# Logarithms of the distribution function, and of what is above it.
TAILS: dict[str, tuple[Function, Function]] = {
    "norm": (lambda z: f.log_ndtr(z), lambda z: f.log_ndtr(-z)),
    "expon": (lambda z: anp.log(-anp.expm1(-z)), lambda z: -z),
    "logistic": (lambda z: -anp.logaddexp(0.0, -z), lambda z: -anp.logaddexp(0.0, z)),
    "cauchy": (lambda z: anp.log(anp.arctan2(1.0, -z) / np.pi), lambda z: anp.log(anp.arctan2(1.0, z) / np.pi)),
    "gumbel_r": (lambda z: -anp.exp(-z), lambda z: anp.log(-anp.expm1(-anp.exp(-z)))),
    "uniform": (lambda z: anp.log(z), lambda z: anp.log1p(-z)),
    "t": (lambda z, df: anp.log(f.stdtr(df, z)), lambda z, df: anp.log(f.stdtr(df, -z))),
    "gamma": (lambda z, a: anp.log(special.gammainc(a, z)), lambda z, a: anp.log(special.gammaincc(a, z))),
    "chi2": (lambda z, df: anp.log(f.chdtr(df, z)), lambda z, df: anp.log(f.chdtrc(df, z))),
    "beta": (lambda z, a, b: anp.log(special.betainc(a, b, z)), lambda z, a, b: anp.log(f.betaincc(a, b, z))),
    "lognorm": (lambda z, s: f.log_ndtr(anp.log(z) / s), lambda z, s: f.log_ndtr(-anp.log(z) / s)),
    "weibull_min": (lambda z, c: anp.log(-anp.expm1(-(z**c))), lambda z, c: -(z**c)),
    "pareto": (lambda z, b: anp.log1p(-(z**-b)), lambda z, b: -b * anp.log(z)),
    "f": (lambda z, n, m: anp.log(f.fdtr(n, m, z)), lambda z, n, m: anp.log(f.fdtrc(n, m, z))),
    "fisk": (lambda z, c: -log1p_power(1.0 / z, c), lambda z, c: -log1p_power(z, c)),
    "genpareto": (lambda z, c: anp.log(-anp.expm1(-log1p_by(c, z))), lambda z, c: -log1p_by(c, z)),
    "genextreme": (
        lambda z, c: -anp.exp(-log1p_by(-c, z)),
        lambda z, c: anp.log(-anp.expm1(-anp.exp(-log1p_by(-c, z)))),
    ),
    "laplace": (lambda z: _laplace(z), lambda z: _laplace(-z)),
    "laplace_asymmetric": (lambda z, k: _laplace_asymmetric(z, k), lambda z, k: _laplace_asymmetric(-z, 1.0 / k)),
    "gumbel_l": (lambda z: log_rest(-anp.exp(z)), lambda z: -anp.exp(z)),
    "halfnorm": (lambda z: anp.log(special.erf(z / ROOT_2)), lambda z: np.log(2.0) + f.log_ndtr(-z)),
    "halfcauchy": (
        lambda z: anp.log(2.0 / np.pi * anp.arctan2(z, 1.0)),
        lambda z: anp.log(2.0 / np.pi * anp.arctan2(1.0, z)),
    ),
    "halflogistic": (lambda z: anp.log(anp.tanh(0.5 * z)), lambda z: np.log(2.0) - anp.logaddexp(0.0, z)),
    "hypsecant": (
        lambda z: anp.log(2.0 / np.pi * anp.arctan(anp.exp(z))),
        lambda z: anp.log(2.0 / np.pi * anp.arctan(anp.exp(-z))),
    ),
    "rayleigh": (lambda z: log_rest(-0.5 * z**2), lambda z: -0.5 * z**2),
    "maxwell": (
        lambda z: anp.log(special.gammainc(1.5, 0.5 * z**2)),
        lambda z: anp.log(special.gammaincc(1.5, 0.5 * z**2)),
    ),
    "chi": (
        lambda z, df: anp.log(special.gammainc(0.5 * df, 0.5 * z**2)),
        lambda z, df: anp.log(special.gammaincc(0.5 * df, 0.5 * z**2)),
    ),
    "erlang": (lambda z, a: anp.log(special.gammainc(a, z)), lambda z, a: anp.log(special.gammaincc(a, z))),
    "invgamma": (
        lambda z, a: anp.log(special.gammaincc(a, 1.0 / z)),
        lambda z, a: anp.log(special.gammainc(a, 1.0 / z)),
    ),
    "loggamma": (
        lambda z, c: anp.log(special.gammainc(c, anp.exp(z))),
        lambda z, c: anp.log(special.gammaincc(c, anp.exp(z))),
    ),
    "gengamma": (lambda z, a, c: _gengamma(z, a, c), lambda z, a, c: _gengamma(z, a, c, above=True)),
    "nakagami": (
        lambda z, nu: anp.log(special.gammainc(nu, nu * z**2)),
        lambda z, nu: anp.log(special.gammaincc(nu, nu * z**2)),
    ),
    "invgauss": (lambda z, mu: _invgauss(z, mu), lambda z, mu: _above_invgauss(z, mu)),
    "wald": (lambda z: _invgauss(z, 1.0), lambda z: _above_invgauss(z, 1.0)),
    "gompertz": (lambda z, c: log_rest(-c * anp.expm1(z)), lambda z, c: -c * anp.expm1(z)),
    "weibull_max": (lambda z, c: -((-z) ** c), lambda z, c: log_rest(-((-z) ** c))),
    "invweibull": (lambda z, c: -(z**-c), lambda z, c: log_rest(-(z**-c))),
    "exponweib": (
        lambda z, a, c: a * log_rest(-(z**c)),
        lambda z, a, c: log_rest(a * log_rest(-(z**c))),
    ),
    "exponpow": (lambda z, b: log_rest(-anp.expm1(z**b)), lambda z, b: -anp.expm1(z**b)),
    "burr": (lambda z, c, d: -d * log1p_power(1.0 / z, c), lambda z, c, d: log_rest(-d * log1p_power(1.0 / z, c))),
    "burr12": (lambda z, c, d: log_rest(-d * log1p_power(z, c)), lambda z, c, d: -d * log1p_power(z, c)),
    "lomax": (lambda z, c: log_rest(-c * anp.log1p(z)), lambda z, c: -c * anp.log1p(z)),
    "genlogistic": (
        lambda z, c: -c * anp.logaddexp(0.0, -z),
        lambda z, c: log_rest(-c * anp.logaddexp(0.0, -z)),
    ),
    "powerlaw": (lambda z, a: a * anp.log(z), lambda z, a: log_rest(a * anp.log(z))),
    "powernorm": (lambda z, c: log_rest(c * f.log_ndtr(-z)), lambda z, c: c * f.log_ndtr(-z)),
    "truncexpon": (
        lambda z, b: anp.log(anp.expm1(-z) / anp.expm1(-b)),
        lambda z, b: -z + anp.log(anp.expm1(z - b) / anp.expm1(-b)),
    ),
    "truncnorm": (
        lambda z, a, b: log_mass(a, z) - log_mass(a, b),
        lambda z, a, b: log_mass(z, b) - log_mass(a, b),
    ),
    "levy": (
        lambda z: anp.log(special.erfc(anp.sqrt(0.5 / z))),
        lambda z: anp.log(special.erf(anp.sqrt(0.5 / z))),
    ),
    "moyal": (
        lambda z: anp.log(special.erfc(anp.exp(-0.5 * z) / ROOT_2)),
        lambda z: anp.log(special.erf(anp.exp(-0.5 * z) / ROOT_2)),
    ),
    "fatiguelife": (
        lambda z, c: f.log_ndtr((anp.sqrt(z) - 1.0 / anp.sqrt(z)) / c),
        lambda z, c: f.log_ndtr(-(anp.sqrt(z) - 1.0 / anp.sqrt(z)) / c),
    ),
    "gibrat": (lambda z: f.log_ndtr(anp.log(z)), lambda z: f.log_ndtr(-anp.log(z))),
    "johnsonsu": (
        lambda z, a, b: f.log_ndtr(a + b * anp.arcsinh(z)),
        lambda z, a, b: f.log_ndtr(-a - b * anp.arcsinh(z)),
    ),
    "johnsonsb": (lambda z, a, b: f.log_ndtr(a + b * f.logit(z)), lambda z, a, b: f.log_ndtr(-a - b * f.logit(z))),
    "foldnorm": (
        lambda z, c: log_mass(-z - c, z - c),
        lambda z, c: anp.logaddexp(f.log_ndtr(c - z), f.log_ndtr(-c - z)),
    ),
    "betaprime": (
        lambda z, a, b: anp.log(special.betainc(a, b, z / (1.0 + z))),
        lambda z, a, b: anp.log(special.betainc(b, a, 1.0 / (1.0 + z))),
    ),
    "loguniform": (
        lambda z, a, b: anp.log((anp.log(z) - anp.log(a)) / (anp.log(b) - anp.log(a))),
        lambda z, a, b: anp.log((anp.log(b) - anp.log(z)) / (anp.log(b) - anp.log(a))),
    ),
    # Of counts, which are whole numbers here.
    "bernoulli": (lambda k, p: anp.log1p(-p), lambda k, p: anp.log(p)),
    "binom": (lambda k, n, p: anp.log(f.bdtr(k, n, p)), lambda k, n, p: anp.log(f.bdtrc(k, n, p))),
    "boltzmann": (
        lambda k, a, n: anp.log(anp.expm1(-a * (k + 1.0)) / anp.expm1(-a * n)),
        lambda k, a, n: -a * (k + 1.0) + anp.log(anp.expm1(-a * (n - k - 1.0)) / anp.expm1(-a * n)),
    ),
    "geom": (lambda k, p: log_rest(k * anp.log1p(-p)), lambda k, p: k * anp.log1p(-p)),
    "nbinom": (
        lambda k, n, p: anp.log(special.betainc(n, k + 1.0, p)),
        lambda k, n, p: anp.log(special.betainc(k + 1.0, n, 1.0 - p)),
    ),
    "planck": (lambda k, a: log_rest(-a * (k + 1.0)), lambda k, a: -a * (k + 1.0)),
    "poisson": (lambda k, mu: anp.log(f.pdtr(k, mu)), lambda k, mu: anp.log(f.pdtrc(k, mu))),
    "yulesimon": (
        lambda k, a: log_rest(anp.log(k) + special.betaln(k, a + 1.0)),
        lambda k, a: anp.log(k) + special.betaln(k, a + 1.0),
    ),
}


# Where so much of the distribution is below, and above.
QUANTILES: dict[str, tuple[Function, Function]] = {
    "norm": (lambda q: f.ndtri(q), lambda q: -f.ndtri(q)),
    "expon": (lambda q: -anp.log1p(-q), lambda q: -anp.log(q)),
    "laplace": (lambda q: _laplace_quantile(q), lambda q: -_laplace_quantile(q)),
    "logistic": (lambda q: f.logit(q), lambda q: -f.logit(q)),
    "cauchy": (lambda q: _cauchy_quantile(q), lambda q: -_cauchy_quantile(q)),
    "gumbel_r": (lambda q: -anp.log(-anp.log(q)), lambda q: -anp.log(-anp.log1p(-q))),
    "gumbel_l": (lambda q: anp.log(-anp.log1p(-q)), lambda q: anp.log(-anp.log(q))),
    "halfnorm": (lambda q: -f.ndtri(0.5 * (1.0 - q)), lambda q: -f.ndtri(0.5 * q)),
    "rayleigh": (lambda q: anp.sqrt(-2.0 * anp.log1p(-q)), lambda q: anp.sqrt(-2.0 * anp.log(q))),
    "uniform": (lambda q: q, lambda q: 1.0 - q),
    "lognorm": (lambda q, s: anp.exp(s * f.ndtri(q)), lambda q, s: anp.exp(-s * f.ndtri(q))),
    "weibull_min": (lambda q, c: (-anp.log1p(-q)) ** (1.0 / c), lambda q, c: (-anp.log(q)) ** (1.0 / c)),
    "pareto": (lambda q, b: anp.exp(-anp.log1p(-q) / b), lambda q, b: q ** (-1.0 / b)),
    "gamma": (lambda q, a: f.gammaincinv(a, q), lambda q, a: f.gammainccinv(a, q)),
    "chi2": (lambda q, df: 2.0 * f.gammaincinv(0.5 * df, q), lambda q, df: 2.0 * f.gammainccinv(0.5 * df, q)),
    "beta": (lambda q, a, b: f.betaincinv(a, b, q), lambda q, a, b: f.betainccinv(a, b, q)),
    "t": (lambda q, df: f.stdtrit(df, q), lambda q, df: -f.stdtrit(df, q)),
    "halfcauchy": (lambda q: anp.tan(0.5 * np.pi * q), lambda q: 1.0 / anp.tan(0.5 * np.pi * q)),
    "invgamma": (lambda q, a: 1.0 / f.gammainccinv(a, q), lambda q, a: 1.0 / f.gammaincinv(a, q)),
    "maxwell": (
        lambda q: anp.sqrt(2.0 * f.gammaincinv(1.5, q)),
        lambda q: anp.sqrt(2.0 * f.gammainccinv(1.5, q)),
    ),
    "fisk": (lambda q, c: anp.exp(f.logit(q) / c), lambda q, c: anp.exp(-f.logit(q) / c)),
    "lomax": (lambda q, c: anp.expm1(-anp.log1p(-q) / c), lambda q, c: anp.expm1(-anp.log(q) / c)),
    "gompertz": (lambda q, c: anp.log1p(-anp.log1p(-q) / c), lambda q, c: anp.log1p(-anp.log(q) / c)),
    "weibull_max": (
        lambda q, c: -((-anp.log(q)) ** (1.0 / c)),
        lambda q, c: -((-anp.log1p(-q)) ** (1.0 / c)),
    ),
    "invweibull": (
        lambda q, c: (-anp.log(q)) ** (-1.0 / c),
        lambda q, c: (-anp.log1p(-q)) ** (-1.0 / c),
    ),
    "powerlaw": (lambda q, a: q ** (1.0 / a), lambda q, a: anp.exp(anp.log1p(-q) / a)),
    "burr12": (
        lambda q, c, d: anp.expm1(-anp.log1p(-q) / d) ** (1.0 / c),
        lambda q, c, d: anp.expm1(-anp.log(q) / d) ** (1.0 / c),
    ),
    "johnsonsu": (
        lambda q, a, b: anp.sinh((f.ndtri(q) - a) / b),
        lambda q, a, b: anp.sinh((-f.ndtri(q) - a) / b),
    ),
    "genpareto": (lambda q, c: _power_of(-anp.log1p(-q), c), lambda q, c: _power_of(-anp.log(q), c)),
    "genextreme": (
        lambda q, c: _power_of(-anp.log(-anp.log(q)), -c),
        lambda q, c: _power_of(-anp.log(-anp.log1p(-q)), -c),
    ),
}


def _cauchy_quantile(q: Array) -> Any:
    """Return tan(pi (q - 1/2)), from the next of the two tails and the median."""
    held = plain(q)
    low, high = held < 0.25, held > 0.75
    middle = anp.tan(np.pi * (anp.where(low | high, 0.5, q) - 0.5))
    below, above = anp.where(low, q, 0.25), 1.0 - anp.where(high, q, 0.75)
    return anp.where(low, -1.0 / anp.tan(np.pi * below), anp.where(high, 1.0 / anp.tan(np.pi * above), middle))


def _laplace_quantile(q: Array) -> Any:
    low = plain(q) < 0.5
    return anp.where(low, anp.log(2.0 * anp.where(low, q, 0.25)), -anp.log(2.0 * (1.0 - anp.where(low, 0.75, q))))
