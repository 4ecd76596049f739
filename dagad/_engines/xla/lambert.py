"""Lambert's W on any branch, and Wright's omega: by Halley's steps from a guess that depends on where a number is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dagad._engines.xla import corners
from dagad._engines.xla.refusals import of_real
from dagad._types import Array, Function

_BRANCH_POINT = -float(np.exp(-1.0))
_N_STEPS = 8  # as tried on a million numbers; most are there after four


def _at_branch_point(z: Array, k: Array) -> tuple[Any, Any]:
    """Return where two branches are next to each other, and the guess by powers of the root of the distance."""
    is_second = ((k == -1) & (z.imag >= 0)) | ((k == 1) & (z.imag < 0))
    distance = jnp.abs(z - _BRANCH_POINT)
    is_there = (is_second & (distance < 0.3)) | ((k == 0) & (distance < 0.55))
    p = jnp.sqrt(2.0 * (np.e * z + 1.0)) * jnp.where(is_second, -1.0, 1.0)
    return is_there, -1.0 + p * (1.0 - p * (1.0 / 3.0 - p * (11.0 / 72.0 - p * 43.0 / 540.0)))


def _guess(z: Array, k: Array) -> Any:
    """Return what W is near to; of numbers that are not zero."""
    log = jnp.log(z) + 2j * np.pi * k
    log = jnp.where(jnp.abs(log) < 1e-3, 1e-3, log)
    found = log - jnp.log(log)
    is_small = (k == 0) & (jnp.abs(z) < 1.5) & (z.real > -0.3)
    found = jnp.where(is_small, z * (1.0 + 4.0 / 3.0 * z) / (1.0 + z * (7.0 / 3.0 + z * 5.0 / 6.0)), found)
    is_real = (k == -1) & (z.imag == 0) & (z.real < 0) & (z.real > _BRANCH_POINT)
    log = jnp.log(jnp.where(is_real, -z.real, 0.1))
    found = jnp.where(is_real, log - jnp.log(-log), found)
    is_there, beside = _at_branch_point(z, k)
    return jnp.where(is_there, beside, found)


def _solved(z: Array, k: Array) -> Any:
    is_zero, is_infinite = z == 0, (z == jnp.inf) & (k == 0)
    at = jnp.where(is_zero | is_infinite, 1.0, z)
    w = _guess(at, k)
    for _ in range(_N_STEPS):
        rest = w - at * jnp.exp(-w)
        step = w + 1.0 - (w + 2.0) * rest / jnp.where(w == -1.0, 1.0, 2.0 * w + 2.0)
        w = jnp.where((rest == 0) | (step == 0), w, w - rest / jnp.where(step == 0, 1.0, step))
    return jnp.where(is_zero, jnp.where(k == 0, 0.0, -jnp.inf), jnp.where(is_infinite, z, w))


@jax.custom_jvp
def _branch(z: Array, k: Array) -> Any:
    return _solved(z, k)


@_branch.defjvp
def _jvp_of_branch(given: tuple[Array, Array], tangents: tuple[Array, Array]) -> Any:
    """Return the derivative next to zero, where W is z, and elsewhere, where exp(-W) has fewer digits."""
    z, w = given[0], _branch(*given)
    small = jnp.abs(w) < 1.0
    near, far = jnp.where(small, w, 0.0), jnp.where(small, 1.0, w)
    found = jnp.where(small, jnp.exp(-near) / (1.0 + near), far / (jnp.where(small, 1.0, z) * (1.0 + far)))
    return w, found * tangents[0]


def lambertw(z: Array, k: Array, tol: Array) -> Any:
    """Return the solution w of w exp(w) = z, always to the last digits; of complex numbers, as ufuncs have it."""
    del tol
    z = jnp.asarray(z)
    return _branch(*jnp.broadcast_arrays(z, jnp.asarray(k, z.real.dtype)))


def _omega(x: Array) -> Any:
    """Return the solution of w + log(w) = x, by Halley's steps in log(w)."""
    low = x < -50.0
    at = jnp.where(low, 0.0, x)
    log = jnp.where(at > 1.0, jnp.log(jnp.where(at > 1.0, at, 1.0)), jnp.where(at > -2.0, (at - 1.0) / 2.0, at))
    for _ in range(4):
        w = jnp.exp(log)
        rest = w + log - at
        log = log - 2.0 * rest * (1.0 + w) / (2.0 * (1.0 + w) ** 2 - rest * w)
    return jnp.where(low, jnp.exp(x), jnp.where(x == jnp.inf, x, jnp.exp(log)))


def _slope_of_omega(ans: Array, x: Array) -> Any:
    return jnp.where(ans > 1.0, 1.0 - 1.0 / (1.0 + ans), ans / (1.0 + ans))  # of which both have exact derivatives


UFUNCS: dict[str, Function] = {
    "_lambertw": lambertw,
    "wrightomega": of_real("wrightomega", corners.with_slopes(_omega, _slope_of_omega)),
}
