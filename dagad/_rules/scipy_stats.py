"""Distributions of scipy.stats as traced arrays meet them: densities and masses, as functions of all parameters.

Imported when a process records and has scipy.stats. The value is scipy's own. `densities` and `distribution_functions`
have formulas of standard distributions; location and scale are common to all.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import autograd.numpy as anp
import numpy as np
import scipy.stats as of

from dagad._errors import NotDifferentiableError
from dagad._rules.densities import DENSITIES, MASSES
from dagad._rules.distribution_functions import QUANTILES, TAILS
from dagad._rules.scipy_functions import primitive_of, stock, swap
from dagad._rules.scipy_rules import f
from dagad._tracing import refusals
from dagad._tracing.by_definition import rules_of
from dagad._tracing.patches import Swap
from dagad._tracing.private import primitive_vjps
from dagad._tracing.rules import define, read_distribution
from dagad._types import AnyDistribution, Args, Array, Function, Kwargs
from dagad._values import pytree

plain = pytree.plain


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
    has_scale, is_mass = isinstance(owner, of.rv_continuous), method.endswith(("pdf", "pmf"))

    def logarithm(x: Array, *args: Any) -> Any:
        scale = args[-1] if has_scale else 1.0
        *shapes, loc = args[:-1] if has_scale else args
        z = (x - loc) / scale
        if not has_scale and not is_mass:  # steps, which do not move between counts
            z = np.floor(plain(z))
        inside = _is_inside(owner, plain(z), shapes, standard if is_mass else None)
        if not np.all(inside):  # there it is constant
            z = anp.where(inside, z, _point_inside(owner, shapes))
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
        ends = np.where(held == 0.0, low, np.where(held == 1.0, high, np.nan))  # of the support; nan where none is
        has_slope = inside | np.isfinite(ends)
        z = anp.where(inside, standard(anp.where(inside, q, 0.5), *shapes), np.where(has_slope, ends, 0.0))
        found = anp.where(has_slope, loc + scale * z, 0.0)
        if has_support_of_shapes(owner):  # its ends move in ways that are not known here
            found = found * np.where(inside, 1.0, np.nan)
        return found

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
    if density is None:  # all of it is below the last count
        return (z >= low) & (z < high)
    return (z >= low) & (z <= high) & (z == np.floor(z))


def _point_inside(owner: AnyDistribution, shapes: list[Any]) -> Any:
    """Return points inside the support: medians have no formula for many, and would be searched for, entry by entry."""
    low, high = owner.support(*map(plain, shapes))
    if isinstance(owner, of.rv_discrete):
        return np.where(np.isfinite(low), low, 0.0)
    has_low, has_high = np.isfinite(low), np.isfinite(high)
    first = np.where(has_low, low, np.where(has_high, high - 2.0, -0.5))
    last = np.where(has_high, high, np.where(has_low, low + 2.0, 1.5))
    return 0.5 * (first + last)


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
    of.rv_discrete: ("pmf", "logpmf", "cdf", "logcdf", "sf", "logsf"),
}
_OWN = {(base, method): stock(getattr(base, method)) for base, methods in _METHODS.items() for method in methods}


def arguments_of(owner: AnyDistribution, method: str, args: Args, kwargs: Kwargs) -> list[Any]:
    """Return what a method is asked, and all parameters."""
    asked = "q" if method in ("ppf", "isf") else "k" if isinstance(owner, of.rv_discrete) else "x"
    names = [asked, *_names(owner)]
    given = dict(zip(names, args, strict=False))
    strange = [*args[len(names) :], *(name for name in kwargs if name not in names or name in given)]
    if strange:
        raise TypeError(f"{owner.name}.{method}() got unexpected arguments: {strange}")
    given = {"loc": 0.0, "scale": 1.0} | given | kwargs
    missing = [name for name in names if name not in given]
    if missing:
        raise TypeError(f"{owner.name}.{method}() misses arguments: {', '.join(missing)}.")
    return [given[name] for name in names]


def _ours(method: str) -> Function:
    def call(owner: AnyDistribution, *args: Any, **kwargs: Any) -> Any:
        known: Any = getattr(of, owner.name, None)  # a frozen one has an owner of its own, as has one that a user made
        same = type(known) is type(owner) and (known.a, known.b) == (owner.a, owner.b)
        made = _primitive(known, method) if same else None
        if made is None:
            sentence = refusals.of_function(f"scipy.stats.{owner.name}.{method}")
            raise NotDifferentiableError(sentence)
        parts = arguments_of(known, method, args, kwargs)
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
