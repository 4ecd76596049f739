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
    "invgauss": lambda z, mu: -LOG_ROOT_2PI - 1.5 * anp.log(z) - ((z - mu) / mu) ** 2 / (2.0 * z),
}
MASSES: dict[str, Function] = {
    "bernoulli": lambda k, p: f.xlogy(k, p) + f.xlog1py(1.0 - k, -p),
    "binom": lambda k, n, p: -anp.log(n + 1.0) - special.betaln(n - k + 1.0, k + 1.0) + _powers(k, n - k, p),
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
}


def standard_of(owner: AnyDistribution, method: str) -> Function | None:
    """Return the logarithm that a method gives of the standard distribution of that name, None if it is not here."""
    if method.removeprefix("log") in ("pdf", "pmf"):
        return (DENSITIES if method.endswith("pdf") else MASSES).get(owner.name)
    return TAILS.get(owner.name, (None, None))[method.endswith("sf")]


def _definition(owner: AnyDistribution, method: str) -> Function | None:
    """Return the definition of a method of a distribution, as a function of what is asked and all parameters."""
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


def _is_inside(owner: AnyDistribution, z: Array, shapes: list[Any], density: Function | None) -> Any:
    """Return where there is a slope: inside the support, and on its edge where the density is no zero and no pole."""
    low, high = owner.a, owner.b
    if type(owner)._get_support is not of.rv_continuous._get_support:  # it is another one for other shapes
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
    of.rv_continuous: ("pdf", "logpdf", "cdf", "logcdf", "sf", "logsf"),
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
