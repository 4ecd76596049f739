"""Orthogonal polynomials of constant degree, which jax has not: by the recurrences of `_rules/polynomials`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dagad._engines.xla.refusals import refused
from dagad._rules import polynomials
from dagad._types import Array, Function

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


UFUNCS: dict[str, Function] = {name: _polynomial(name, recurrence) for name, recurrence in _POLYNOMIALS.items()}


def _diric(x: Array, n: Array) -> Any:
    if isinstance(n, jax.Array):
        refused("diric", " of a number of terms that jax traces")()
    orders = np.asarray(n)
    is_whole = (orders > 0) & (orders == np.floor(orders))
    orders = np.where(is_whole, orders, 1.0)
    x = jnp.asarray(x)
    found = UFUNCS["eval_chebyu"](orders - 1.0, jnp.cos(x / 2.0)) / orders.astype(x.dtype)
    return jnp.where(is_whole, found, jnp.nan)


WRITTEN: dict[str, Function] = {"scipy.special.diric": _diric}
