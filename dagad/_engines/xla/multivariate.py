"""Distributions of several variables of scipy.stats of what jax traces, by the formulas of dagad's other engines.

Where scipy raises an error for points and parameters that can't be, the result is nan: they are not known yet.
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
from dagad._types import Args, Array, Function, Kwargs


def of_several(function: Function, args: Args, kwargs: Kwargs) -> Any:
    """Return what a method of a distribution gives of points and parameters, of which one at least is traced."""
    import scipy.special

    from dagad._rules.multivariate import (  # needs scipy.stats, which is there: this is of it
        FREEZING,
        FROZEN,
        METHODS,
        check_shapes,
        freeze,
        read,
    )

    called = function.__qualname__
    if called in FREEZING:
        return freeze(FREEZING[called], function, args[1:], kwargs)
    if called in FROZEN:
        return FROZEN[called](*args, **kwargs)
    if called not in METHODS:
        raise NotDifferentiableError(refusals.of_function(f"scipy.stats.{called}"))
    formula, name, method = METHODS[called]
    parts = [None if part is None else floating(part) for part in read(name, method, function, args[1:], kwargs)]
    check_shapes(name, function, parts)
    logarithm = functools.partial(formula, np, scipy.special)  # which ask what is traced
    around: Any = _WITH_ITS_DOMAIN.get(name, _anywhere)
    found = around(logarithm, *parts)
    return found if method.startswith("log") else jnp.exp(found)


def _anywhere(formula: Function, *parts: Array) -> Any:
    return formula(*parts)


def _shares(formula: Function, x: Array, alpha: Array) -> Any:
    """Return a density of shares, which are no less than zero and sum to one."""
    if len(x) != len(alpha):
        x = jnp.concatenate([x, 1.0 - jnp.sum(x, axis=0, keepdims=True)])
    column = jnp.reshape(alpha, (-1, *[1] * (jnp.ndim(x) - 1)))
    sums = jnp.abs(jnp.sum(x, axis=0) - 1.0) <= 1e-9
    allowed = jnp.all(sums) & jnp.all((x > 0) | ((x == 0) & (column >= 1))) & jnp.all(alpha > 0)
    return formula(x, alpha) * jnp.where(allowed, 1.0, jnp.nan)


def _counts(formula: Function, x: Array, n: Array, p: Array) -> Any:
    """Return a mass of counts: minus infinity, without a slope, for those that do not sum to n."""
    from dagad._rules.multivariate import summing_to_one

    x, n = jax.lax.stop_gradient(x), jnp.trunc(jax.lax.stop_gradient(n))
    p = summing_to_one(jnp, p)
    inside = jnp.all((x >= 0) & (x == jnp.floor(x)), axis=-1) & (jnp.sum(x, axis=-1) == n)
    found = formula(jnp.where(inside[..., None], x, 0.0), n, p)
    allowed = (n >= 0) & jnp.all((p >= 0) & (p <= 1), axis=-1)
    return jnp.where(inside, found, -jnp.inf) * jnp.where(allowed, 1.0, jnp.nan)


_WITH_ITS_DOMAIN: dict[str, Function] = {"dirichlet": _shares, "multinomial": _counts}
