"""Faddeeva's function and Voigt's profile of a spectral line, which is its real part, with derivatives of any order.

Voigt's profile is the real part of an analytic function U of x + i gamma, and spreads with sigma as heat does: so all
its derivatives are real and imaginary parts of those of U.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dagad._rules.faddeeva import ROOT_PI, derivative
from dagad._tracing.by_definition import entrywise
from dagad._tracing.rules import own_primitive
from dagad._types import Array


def _derivative(n: int, z: Array, sigma: Array) -> Any:
    with np.errstate(all="ignore"):
        whole, spread = np.broadcast_arrays(np.asarray(z) + 0j, sigma)
        return derivative(n, whole, spread, np)


def _profile(n: int, part: int, x: Array, sigma: Array, gamma: Array) -> Any:
    found = _derivative(n, x + 1j * np.asarray(gamma), sigma)
    return (found.imag if part else found.real)[()]


def _by_x(ans: Array, n: int, part: int, x: Array, sigma: Array, gamma: Array) -> Any:
    return profile(n + 1, part, x, sigma, gamma)


def _by_sigma(ans: Array, n: int, part: int, x: Array, sigma: Array, gamma: Array) -> Any:
    return sigma * profile(n + 2, part, x, sigma, gamma)


def _by_gamma(ans: Array, n: int, part: int, x: Array, sigma: Array, gamma: Array) -> Any:
    return profile(n + 1, 0, x, sigma, gamma) if part else -profile(n + 1, 1, x, sigma, gamma)


def _faddeeva(n: int, z: Array) -> Any:
    return (ROOT_PI * _derivative(n, z, np.sqrt(0.5)))[()]


def _next(ans: Array, n: int, z: Array) -> Any:
    return faddeeva(n + 1, z)


profile: Any = own_primitive(_profile, *entrywise("voigt_profile", None, None, _by_x, _by_sigma, _by_gamma))
faddeeva: Any = own_primitive(_faddeeva, *entrywise("wofz", None, _next))


WOFZ = (lambda ans, z: faddeeva(1, z),)
VOIGT = (
    lambda ans, x, sigma, gamma: profile(1, 0, x, sigma, gamma),
    lambda ans, x, sigma, gamma: sigma * profile(2, 0, x, sigma, gamma),
    lambda ans, x, sigma, gamma: -profile(1, 1, x, sigma, gamma),
)
