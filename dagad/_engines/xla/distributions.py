"""Distributions of scipy.stats of what jax traces, by the definitions that dagad's other engines take where it has one.

jax's own differ in tails, at the edges of supports, and for parameters of which scipy says nan.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dagad._engines.xla import refusals
from dagad._engines.xla.matrices import floating
from dagad._errors import NotDifferentiableError
from dagad._types import AnyDistribution, Array, Function


def of_distribution(method: str, owner: AnyDistribution) -> Function:
    """Return a method of a distribution, as a function of what is asked and the parameters."""
    import scipy.stats as of  # it is there: this is of it

    known: Any = getattr(of, owner.name, None)  # a frozen one has an owner of its own, as has one that a user made
    same = type(known) is type(owner) and (known.a, known.b) == (owner.a, owner.b)
    found = _found(known, method) if same else None
    if found is None:
        raise NotDifferentiableError(refusals.of_function(f"scipy.stats.{owner.name}.{method}"))

    def call(*args: Any, **kwargs: Any) -> Any:
        from dagad._rules.scipy_stats import arguments_of

        return found(*map(floating, arguments_of(known, method, args, kwargs)))

    return call


def _found(owner: AnyDistribution, method: str) -> Function | None:
    from dagad._rules.scipy_stats import has_support_of_shapes, quantile_of, standard_of  # needs scipy.stats

    moves = has_support_of_shapes(owner) and owner.name not in _COUNTS
    if method in ("ppf", "isf"):
        quantile = quantile_of(owner, method)
        return None if quantile is None or moves else functools.partial(_quantile, owner, method, quantile)
    standard = standard_of(owner, method)
    if standard is None or (moves and owner.name not in _SUPPORTS):
        return None
    if owner.name in _COUNTS:
        return functools.partial(_counted, owner, method, standard)
    return functools.partial(_defined, owner, method, standard)


def _is_share(p: Array) -> Any:
    return (p >= 0) & (p <= 1)


def _is_count(n: Array) -> Any:
    return (n >= 0) & (n == jnp.floor(n))


# Of counts: the first, the last, and which parameters there are.
_COUNTS: dict[str, tuple[float, Function, Function]] = {
    "bernoulli": (0.0, lambda p: 1.0, _is_share),
    "betabinom": (0.0, lambda n, a, b: n, lambda n, a, b: _is_count(n) & (a > 0) & (b > 0)),
    "betanbinom": (0.0, lambda n, a, b: np.inf, lambda n, a, b: _is_count(n) & (a > 0) & (b > 0)),
    "binom": (0.0, lambda n, p: n, lambda n, p: _is_count(n) & _is_share(p)),
    "boltzmann": (0.0, lambda a, n: n - 1.0, lambda a, n: (a > 0) & _is_count(n) & (n > 0)),
    "dlaplace": (-np.inf, lambda a: np.inf, lambda a: a > 0),
    "geom": (1.0, lambda p: np.inf, lambda p: (p > 0) & (p <= 1)),
    "logser": (1.0, lambda p: np.inf, lambda p: (p > 0) & (p < 1)),
    "nbinom": (0.0, lambda n, p: np.inf, lambda n, p: (n > 0) & (p > 0) & (p <= 1)),
    "planck": (0.0, lambda a: np.inf, lambda a: a > 0),
    "poisson": (0.0, lambda mu: np.inf, lambda mu: mu >= 0),
    "skellam": (-np.inf, lambda a, b: np.inf, lambda a, b: (a > 0) & (b > 0)),
    "yulesimon": (1.0, lambda a: np.inf, lambda a: a > 0),
}


def _counted(owner: AnyDistribution, method: str, standard: Function, k: Array, *args: Any) -> Any:
    """Return the mass of counts, or what is below or above: outside of the support there is none, and no slope."""
    *shapes, loc = args
    first, last, allows = _COUNTS[owner.name]
    k, missing = k - loc, jnp.asarray(-np.inf)
    if method.endswith("pmf"):
        inside = (k >= first) & (k <= last(*shapes)) & (k == jnp.floor(k))
    else:  # steps, which do not move between counts
        k = jax.lax.stop_gradient(jnp.floor(k))
        inside = (k >= first) & (k < last(*shapes))
        missing = jnp.where((k < first) == method.endswith("sf"), 0.0, -jnp.inf)
    found = jnp.where(inside, standard(jnp.where(inside, k, max(first, 0.0)), *shapes), missing)
    found = found if method.startswith("log") else jnp.exp(found)
    return found * jnp.where(allows(*shapes) & ~jnp.isnan(k), 1.0, jnp.nan)


def _defined(owner: AnyDistribution, method: str, standard: Function, x: Array, *args: Any) -> Any:
    """Return a method of a distribution from the logarithm that its standard one has inside the support.

    At an edge where the density is zero or has a pole, and where all of it lies on one side, there is no slope.
    """
    *shapes, loc, scale = args
    z, is_density = (x - loc) / scale, method.endswith("pdf")
    middle, ends = _MIDDLE.get(owner.name, 0.5), (owner.a, owner.b)
    if owner.name in _SUPPORTS:
        fixed = [jax.lax.stop_gradient(shape) for shape in shapes]
        middle, *ends = _SUPPORTS[owner.name](*fixed)
    below, above = jnp.less(z, ends[0]), jnp.greater(z, ends[1])
    outside, edges = below | above, []
    for end in ends:
        if isinstance(end, float | int) and not np.isfinite(end):
            continue
        value = _at_edge(standard, jnp.where(jnp.isfinite(end), end, middle), shapes) if is_density else jnp.nan
        edges.append(((z == end) & ~jnp.isfinite(value), value))
        outside = outside | edges[-1][0]
    form: Any = (lambda one: one) if method.startswith("log") else jnp.exp
    found = standard(jnp.where(outside, middle, z), *shapes)
    if is_density:
        found = jnp.where(below | above, form(-jnp.inf), form(found - jnp.log(scale)))
        for at, value in edges:
            found = jnp.where(at, form(value), found)
    else:
        below, above = below | (z == ends[0]), above | (z == ends[1])
        zero, one = (above, below) if method.endswith("sf") else (below, above)
        found = jnp.where(zero, form(-jnp.inf), jnp.where(one, form(0.0), form(found)))
    return found * jnp.where((scale > 0) & _are_allowed(owner, shapes), 1.0, jnp.nan)


def _quantile(owner: AnyDistribution, method: str, standard: Function, q: Array, *args: Any) -> Any:
    """Return where so much of a distribution is below, or above: nothing moves an end of its support at infinity."""
    *shapes, loc, scale = args
    low, high = (owner.b, owner.a) if method == "isf" else (owner.a, owner.b)
    inside, end = (q > 0) & (q < 1), jnp.where(q == 0, low, high)
    z = jnp.where(inside, standard(jnp.where(inside, q, 0.5), *shapes), jnp.where(jnp.isfinite(end), end, 0.0))
    found = jnp.where(inside | jnp.isfinite(end), loc + scale * z, end)
    allowed = (scale > 0) & _are_allowed(owner, shapes)
    return found * jnp.where(allowed & (q >= 0) & (q <= 1), 1.0, jnp.nan)


# Somewhere inside the support, which is here where it is not the same for all shapes.
_MIDDLE = {"levy_l": -1.0, "pareto": 2.0, "weibull_max": -1.0}


def _of_bounds(a: Array, b: Array) -> Any:
    """Return a point between two bounds, and these; each may be infinite."""
    low, high = (jnp.where(jnp.isfinite(end), end, other) for end, other in ((a, b - 2.0), (b, a + 2.0)))
    middle = 0.5 * (low + high)
    return jnp.where(jnp.isfinite(middle), middle, 0.0), a, b


def _of_excesses(c: Array) -> Any:
    high = jnp.where(c < 0, -1.0 / jnp.where(c < 0, c, 1.0), np.inf)
    return 0.5 * jnp.minimum(high, 1.0), 0.0, high


def _of_extremes(c: Array) -> Any:
    end = 1.0 / jnp.where(c == 0, 1.0, c)
    return 0.0, jnp.where(c < 0, end, -np.inf), jnp.where(c > 0, end, np.inf)


_SUPPORTS: dict[str, Function] = {
    "genextreme": _of_extremes,
    "genpareto": _of_excesses,
    "loguniform": _of_bounds,
    "reciprocal": _of_bounds,
    "truncexpon": lambda b: (0.5 * b, 0.0, b),
    "truncnorm": _of_bounds,
    "truncpareto": lambda b, c: (0.5 * (1.0 + c), 1.0, c),
}


def _at_edge(standard: Function, end: Array, shapes: list[Any]) -> Any:
    """Return the logarithm of a density at an end of its support, where two infinite terms leave none of it."""
    found = jax.lax.stop_gradient(standard(end, *shapes))
    return jnp.where(jnp.isnan(found), -jnp.inf, found)


def _are_allowed(owner: AnyDistribution, shapes: list[Any]) -> Any:
    """Return where shapes are those of a distribution: as scipy says it, or as it means it if it says nothing."""
    import scipy.stats as of  # it is there: the owner is of it

    if type(owner)._argcheck is of.rv_continuous._argcheck or owner.name == "erlang":  # which warns of others
        positive: Any = True
        for shape in shapes:
            positive = positive & (shape > 0)
        return positive
    return owner._argcheck(*shapes)
