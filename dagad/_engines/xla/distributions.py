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
from dagad._types import Array, Function


def of_distribution(method: str, owner: Any) -> Function:
    """Return a method of a distribution, as a function of what is asked and the parameters."""
    import scipy.stats as of  # it is there: this is of it

    known: Any = getattr(of, owner.name, None)  # a frozen one has an owner of its own, as has one that a user made
    same = type(known) is type(owner) and (known.a, known.b) == (owner.a, owner.b)
    found = _found(known, method) if same else None
    if found is None:
        raise NotDifferentiableError(refusals.of_function(f"scipy.stats.{owner.name}.{method}"))
    names = _names(known)

    def call(x: Array, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        strange = [key for key in given if key not in names]
        if strange or len(args) > len(names):
            raise TypeError(f"{owner.name}.{method}() got unexpected arguments: {strange}")
        parts = [x, *(given.get(key, {"loc": 0.0, "scale": 1.0}.get(key)) for key in names)]
        return found(*(floating(part) for part in parts))

    return call


def _found(owner: Any, method: str) -> Function | None:
    from dagad._rules.scipy_stats import has_support_of_shapes, quantile_of, standard_of  # needs scipy.stats

    if method in ("ppf", "isf"):
        quantile = quantile_of(owner, method)
        return None if quantile is None else functools.partial(_quantile, owner, method, quantile)
    standard = standard_of(owner, method)
    if standard is None:
        return None
    if owner.name in _COUNTS:
        return functools.partial(_counted, owner.name, method, standard)
    return None if has_support_of_shapes(owner) else functools.partial(_defined, owner, method, standard)


def _is_share(p: Array) -> Any:
    return (p >= 0) & (p <= 1)


# Of counts: the first, the last, and which parameters there are.
_COUNTS: dict[str, tuple[float, Function, Function]] = {
    "bernoulli": (0.0, lambda p: 1.0, _is_share),
    "betabinom": (0.0, lambda n, a, b: n, lambda n, a, b: (n >= 0) & (n == jnp.floor(n)) & (a > 0) & (b > 0)),
    "binom": (0.0, lambda n, p: n, lambda n, p: (n >= 0) & (n == jnp.floor(n)) & _is_share(p)),
    "geom": (1.0, lambda p: np.inf, lambda p: (p > 0) & (p <= 1)),
    "nbinom": (0.0, lambda n, p: np.inf, lambda n, p: (n > 0) & (p > 0) & (p <= 1)),
    "poisson": (0.0, lambda mu: np.inf, lambda mu: mu >= 0),
}


def _counted(name: str, method: str, standard: Function, k: Array, *args: Any) -> Any:
    """Return the mass of counts, or its logarithm: outside of the support there is none, and no slope."""
    *shapes, loc = args
    first, last, allows = _COUNTS[name]
    k = k - loc
    inside = (k >= first) & (k <= last(*shapes)) & (k == jnp.floor(k))
    found = jnp.where(inside, standard(jnp.where(inside, k, first), *shapes), -jnp.inf)
    found = found if method.startswith("log") else jnp.exp(found)
    return found * jnp.where(allows(*shapes) & ~jnp.isnan(k), 1.0, jnp.nan)


def _defined(owner: Any, method: str, standard: Function, x: Array, *args: Any) -> Any:
    """Return a method of a distribution from the logarithm that its standard one has inside the support.

    At an edge where the density is zero or has a pole, and where all of it lies on one side, there is no slope.
    """
    *shapes, loc, scale = args
    z, is_density = (x - loc) / scale, method.endswith("pdf")
    below, above = jnp.less(z, owner.a), jnp.greater(z, owner.b)
    outside, edges = below | above, []
    for end in filter(np.isfinite, (owner.a, owner.b)):
        value = _at_edge(standard, end, shapes) if is_density else jnp.nan
        edges.append(((z == end) & ~jnp.isfinite(value), value))
        outside = outside | edges[-1][0]
    found = standard(jnp.where(outside, _MIDDLE.get(owner.name, 0.5), z), *shapes)
    if is_density:
        found = jnp.where(below | above, -jnp.inf, found - jnp.log(scale))
        for at, value in edges:
            found = jnp.where(at, value, found)
    else:
        below, above = below | (z == owner.a), above | (z == owner.b)
        zero, one = (above, below) if method.endswith("sf") else (below, above)
        found = jnp.where(zero, -jnp.inf, jnp.where(one, 0.0, found))
    found = found if method.startswith("log") else jnp.exp(found)
    allowed = functools.reduce(jnp.logical_and, [scale > 0, *(_is_allowed(owner, shape) for shape in shapes)])
    return found * jnp.where(allowed, 1.0, jnp.nan)


def _quantile(owner: Any, method: str, standard: Function, q: Array, *args: Any) -> Any:
    """Return where so much of a distribution is below, or above: nothing moves an end of its support at infinity."""
    *shapes, loc, scale = args
    low, high = (owner.b, owner.a) if method == "isf" else (owner.a, owner.b)
    inside, end = (q > 0) & (q < 1), jnp.where(q == 0, low, high)
    z = jnp.where(inside, standard(jnp.where(inside, q, 0.5), *shapes), jnp.where(jnp.isfinite(end), end, 0.0))
    found = jnp.where(inside | jnp.isfinite(end), loc + scale * z, end)
    allowed = functools.reduce(jnp.logical_and, [scale > 0, *(_is_allowed(owner, shape) for shape in shapes)])
    return found * jnp.where(allowed & (q >= 0) & (q <= 1), 1.0, jnp.nan)


_MIDDLE = {"pareto": 2.0}  # somewhere inside the support


def _at_edge(standard: Function, end: float, shapes: list[Any]) -> Any:
    """Return the logarithm of a density at an end of its support, where two infinite terms leave none of it."""
    found = jax.lax.stop_gradient(standard(jnp.asarray(end), *shapes))
    return jnp.where(jnp.isnan(found), -jnp.inf, found)


def _is_allowed(owner: Any, shape: Array) -> Any:
    if owner.name == "skewnorm":
        return jnp.isfinite(shape)
    return shape >= 0 if owner.name == "vonmises" else shape > 0


@functools.cache
def _names(owner: Any) -> list[str]:
    names = [*filter(None, (owner.shapes or "").replace(" ", "").split(",")), "loc"]
    return [*names, "scale"] if hasattr(owner, "pdf") else names
