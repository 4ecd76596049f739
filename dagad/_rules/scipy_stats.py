"""Distributions of scipy.stats as traced arrays meet them: densities and masses, as functions of all parameters.

Imported when a process records and has scipy.stats. The value is scipy's own. A density is given for the standard
distribution; location and scale are common to all. Of the rest (`cdf`, `sf` and their logarithms) those are here that
scipy.special has in closed form.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import autograd.numpy as anp
import numpy as np
import scipy.stats as of
from autograd.scipy import special

from dagad._errors import NotDifferentiableError
from dagad._rules.scipy_functions import primitive_of, stock, swap
from dagad._rules.scipy_rules import f
from dagad._tracing import refusals
from dagad._tracing.by_definition import rules_of
from dagad._tracing.patches import Swap
from dagad._tracing.private import primitive_vjps
from dagad._tracing.rules import define, read_distribution
from dagad._types import AnyDistribution, Array, Function
from dagad._values import pytree

plain = pytree.plain
LOG_ROOT_2PI = 0.5 * np.log(2.0 * np.pi)


def _t(z: Array, df: Array) -> Any:
    scale = special.gammaln((df + 1.0) / 2.0) - special.gammaln(df / 2.0) - 0.5 * anp.log(df * np.pi)
    return scale - (df + 1.0) / 2.0 * anp.log1p(z**2 / df)


def _normal(z: Array) -> Any:
    return -(z**2) / 2.0 - LOG_ROOT_2PI


def _gamma(z: Array, a: Array) -> Any:
    return f.xlogy(a - 1.0, z) - z - special.gammaln(a)


def _f(z: Array, n: Array, m: Array) -> Any:
    scale = 0.5 * (m * anp.log(m) + n * anp.log(n)) - special.betaln(0.5 * n, 0.5 * m)
    return scale + f.xlogy(0.5 * n - 1.0, z) - 0.5 * (n + m) * anp.log(m + n * z)


def _log1p_power(z: Array, c: Array) -> Any:
    """Return log(1 + z**c), from what of the two is small."""
    small = plain(z) < 1.0
    below, above = anp.where(small, z, 0.5), anp.where(small, 1.0, z)
    return anp.where(small, anp.log1p(below**c), c * anp.log(above) + anp.log1p(above**-c))


def _log1p_by(c: Array, z: Array) -> Any:
    """Return log(1 + c z) / c; by its series, z (1 - u/2 + u^2/3 - ...) in u = c z, where that cancels."""
    u = c * z
    small = np.abs(plain(u)) < 0.1
    near, far = anp.where(small, u, 0.0), anp.where(small, 1.0, u)
    series: Any = 0.0
    for power in range(17, 0, -1):
        series = 1.0 / power - near * series
    return anp.where(small, z * series, anp.log1p(far) / anp.where(small, 1.0, c))


def _genextreme(z: Array, c: Array) -> Any:
    y = _log1p_by(-c, z)
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


def _log_mass(a: Array, b: Array) -> Any:
    """Return the logarithm of what a normal distribution has between two numbers, from the tail that is nearer."""
    above = plain(a) > 0.0
    low, high = anp.where(above, -b, a), anp.where(above, -a, b)
    has_low, has_high = np.isfinite(plain(low)), np.isfinite(plain(high))
    upto = anp.where(has_high, f.log_ndtr(anp.where(has_high, high, 0.0)), 0.0)
    rest = anp.where(has_low, f.log_ndtr(anp.where(has_low, low, 0.0)) - upto, -1.0)
    return upto + anp.log1p(-anp.where(has_low, anp.exp(rest), 0.0))


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
    "fisk": lambda z, c: anp.log(c) + f.xlogy(c - 1.0, z) - 2.0 * _log1p_power(z, c),
    "gennorm": lambda z, b: anp.log(0.5 * b) - special.gammaln(1.0 / b) - anp.abs(z) ** b,
    "exponnorm": lambda z, k: _exponnorm(z, k),
    "vonmises": lambda z, k: k - anp.abs(k) - 2.0 * k * anp.sin(0.5 * z) ** 2 - anp.log(2.0 * np.pi * f.i0e(k)),
    "genpareto": lambda z, c: -(c + 1.0) * _log1p_by(c, z),
    "genextreme": _genextreme,
    "truncnorm": lambda z, a, b: _normal(z) - _log_mass(a, b),
    "invgauss": lambda z, mu: -LOG_ROOT_2PI - 1.5 * anp.log(z) - ((z - mu) / mu) ** 2 / (2.0 * z),
}
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
}


def _powers(a: Array, b: Array, p: Array) -> Any:
    return f.xlogy(a, p) + f.xlog1py(b, -p)


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
    "fisk": (lambda z, c: -_log1p_power(1.0 / z, c), lambda z, c: -_log1p_power(z, c)),
    "genpareto": (lambda z, c: anp.log(-anp.expm1(-_log1p_by(c, z))), lambda z, c: -_log1p_by(c, z)),
    "genextreme": (
        lambda z, c: -anp.exp(-_log1p_by(-c, z)),
        lambda z, c: anp.log(-anp.expm1(-anp.exp(-_log1p_by(-c, z)))),
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


def standard_of(owner: AnyDistribution, method: str) -> Function | None:
    """Return the logarithm that a method gives of the standard distribution of that name, None if it is not here."""
    if method.removeprefix("log") in ("pdf", "pmf"):
        return (DENSITIES if method.endswith("pdf") else MASSES).get(owner.name)
    return TAILS.get(owner.name, (None, None))[method.endswith("sf")]


def _definition(owner: AnyDistribution, method: str) -> Function | None:
    """Return the definition of a method of a distribution, as a function of what is asked and all parameters."""
    if method in ("ppf", "isf"):
        return _quantile(owner, method)
    standard = standard_of(owner, method)
    if standard is None:
        return None
    has_scale = isinstance(owner, of.rv_continuous)

    def logarithm(x: Array, *args: Any) -> Any:
        scale = args[-1] if has_scale else 1.0
        *shapes, loc = args[:-1] if has_scale else args
        z = (x - loc) / scale
        inside = _is_inside(owner, plain(z), shapes, standard if method.endswith("pdf") else None)
        if not np.all(inside):  # there it is constant
            z = anp.where(inside, z, owner.median(*map(plain, shapes)))
        found = standard(z, *shapes)
        found = found - anp.log(scale) if method.endswith("pdf") else found
        return found if np.all(inside) else anp.where(inside, found, 0.0)

    def itself(*args: Any) -> Any:
        return anp.exp(logarithm(*args))

    return logarithm if method.startswith("log") else itself


def quantile_of(owner: AnyDistribution, method: str) -> Function | None:
    """Return where so much of the standard distribution of that name is below, or above; None if it is not here."""
    return QUANTILES.get(owner.name, (None, None))[method == "isf"]


def _quantile(owner: AnyDistribution, method: str) -> Function | None:
    standard = quantile_of(owner, method)
    if standard is None:
        return None

    def definition(q: Array, *args: Any) -> Any:
        *shapes, loc, scale = args
        held = np.asarray(plain(q))
        inside = (held > 0.0) & (held < 1.0)
        if np.all(inside):
            return loc + scale * standard(q, *shapes)
        low, high = (owner.b, owner.a) if method == "isf" else (owner.a, owner.b)
        ends = np.where(
            held == 0.0, low, np.where(held == 1.0, high, np.nan)
        )  # of the support; nan where there is none
        has_slope = inside | np.isfinite(ends)
        z = anp.where(inside, standard(anp.where(inside, q, 0.5), *shapes), np.where(has_slope, ends, 0.0))
        return anp.where(has_slope, loc + scale * z, 0.0)

    return definition


def has_support_of_shapes(owner: AnyDistribution) -> bool:
    """Return whether the support is another one for other shapes."""
    return type(owner)._get_support is not of.rv_continuous._get_support


def _is_inside(owner: AnyDistribution, z: Array, shapes: list[Any], density: Function | None) -> Any:
    """Return where there is a slope: inside the support, and on its edge where the density is no zero and no pole."""
    low, high = owner.a, owner.b
    if has_support_of_shapes(owner):
        low, high = owner.support(*map(plain, shapes))
    if isinstance(owner, of.rv_continuous):
        inside, edge = (z > low) & (z < high), (z == low) | (z == high)
        if density is not None and np.any(edge):
            with np.errstate(all="ignore"):
                inside = inside | (edge & np.isfinite(density(z, *map(plain, shapes))))
        return inside
    return (z >= low) & (z <= high) & (z == np.floor(z))


@functools.cache
def _primitive(owner: AnyDistribution, method: str) -> Any:
    """Return a method of a distribution as a primitive of all its parameters."""
    definition = _definition(owner, method)
    if definition is None:
        return None
    own = _OWN[of.rv_discrete if isinstance(owner, of.rv_discrete) else of.rv_continuous, method]

    def value(*args: Any) -> Any:
        return own(owner, *args)

    value.__name__ = f"scipy.stats.{owner.name}.{method}"
    return primitive_of(value, definition)


@functools.cache
def _names(owner: AnyDistribution) -> list[str]:
    names = [*filter(None, (owner.shapes or "").replace(" ", "").split(",")), "loc"]
    return [*names, "scale"] if isinstance(owner, of.rv_continuous) else names


_METHODS = {
    of.rv_continuous: ("pdf", "logpdf", "cdf", "logcdf", "sf", "logsf", "ppf", "isf"),
    of.rv_discrete: ("pmf", "logpmf"),
}
_OWN = {(base, method): stock(getattr(base, method)) for base, methods in _METHODS.items() for method in methods}


def _ours(method: str) -> Function:
    def call(owner: AnyDistribution, x: Array, *args: Any, **kwargs: Any) -> Any:
        known: Any = getattr(of, owner.name, None)  # a frozen one has an owner of its own, as has one that a user made
        same = type(known) is type(owner) and (known.a, known.b) == (owner.a, owner.b)
        made = _primitive(known, method) if same else None
        if made is None:
            sentence = refusals.of_function(f"scipy.stats.{owner.name}.{method}")
            raise NotDifferentiableError(sentence)
        names = _names(known)
        strange = [*args[len(names) :], *(name for name in kwargs if name not in names)]
        if strange:
            raise TypeError(f"{owner.name}.{method}() got unexpected arguments: {strange}")
        given = {"loc": 0.0, "scale": 1.0} | dict(zip(names, args, strict=False)) | kwargs
        parts = [x, *(given[name] for name in names)]
        return made(*(np.asarray(part) if isinstance(part, list | tuple) else part for part in parts))

    return call


SWAPS: list[Swap] = [swap(getattr(base, method), _ours(method)) for base, method in _OWN]


def learn_normal(module: ModuleType) -> bool:
    """Enter better rules for logarithms of autograd's own `norm`, which cancel; return whether it is there."""
    functions: list[Any] = [getattr(module, name, None) for name in ("logcdf", "logsf")]
    if not all(fun in primitive_vjps for fun in functions):
        return False
    for fun, tail in zip(functions, (1.0, -1.0), strict=True):

        def definition(x: Array, loc: Array = 0.0, scale: Array = 1.0, tail: float = tail) -> Any:
            return f.log_ndtr(tail * (x - loc) / scale)

        define(fun, *rules_of(f"norm.{fun.__name__}", definition), lambda *call: True)
    return read_distribution(module)
