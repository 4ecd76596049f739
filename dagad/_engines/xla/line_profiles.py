"""Faddeeva's function and Voigt's profile, which jax has not: by the sum of `_rules/faddeeva`, in every order."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dagad._engines.xla import corners
from dagad._rules.faddeeva import derivative as derivative_of_u
from dagad._types import Array, Function


@functools.cache
def _faddeeva(n: int) -> Any:
    """Return the n-th derivative of Faddeeva's function."""

    @jax.custom_jvp
    def function(z: Array) -> Any:
        sigma = jnp.asarray(np.sqrt(0.5), z.real.dtype)
        return math.sqrt(np.pi) * derivative_of_u(n, z, sigma, jnp)

    function.defjvps(lambda tangent, ans, z: _faddeeva(n + 1)(z) * tangent)
    return function


@functools.cache
def _profile(n: int, part: int) -> Any:
    """Return the real or the imaginary part of the n-th derivative of what has Voigt's profile as its real part."""

    def value(x: Array, sigma: Array, gamma: Array) -> Any:
        found = derivative_of_u(n, jax.lax.complex(x, gamma), sigma, jnp)
        return found.imag if part else found.real

    return corners.with_slopes(
        value,
        lambda ans, x, sigma, gamma: _profile(n + 1, part)(x, sigma, gamma),
        lambda ans, x, sigma, gamma: sigma * _profile(n + 2, part)(x, sigma, gamma),
        lambda ans, x, sigma, gamma: (1.0 if part else -1.0) * _profile(n + 1, 1 - part)(x, sigma, gamma),
    )


UFUNCS: dict[str, Function] = {"wofz": _faddeeva(0), "voigt_profile": _profile(0, 0)}
