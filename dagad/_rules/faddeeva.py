"""Derivatives of Faddeeva's function and of U, which is that spread by sigma, in any order, for all engines.

U(z) is w(z / (sigma sqrt(2))) / (sigma sqrt(2 pi)). Near the origin its derivatives follow from the value by the
recurrence of Hermite's polynomials; far out, where that cancels, by a series in 1/z. Abramowitz and Stegun, 7.1.15 to
7.1.23.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from dagad._types import Array

_ON_LINE = 0.01
_FAR, _N_TERMS = 6.5, 32  # from there on, in units of sqrt(2) sigma, that many terms are exact
ROOT_2, ROOT_PI = float(np.sqrt(2.0)), float(np.sqrt(np.pi))
_STEP, _N_NODES = float(np.sqrt(np.pi / 12.0)), 12


def wofz(z: Array, xp: ModuleType) -> Any:
    """Return Faddeeva's function to the last digits, as an integral by the trapezoidal rule.

    That is corrected for a pole of the integrand next to the real line. Of two grids that is taken which has no node
    next to z. Chiarella and Reichel, Mathematics of Computation 22 (1968), 137.
    """
    below = z.imag < 0
    up = xp.where(below, -z, z)
    grid = xp.mod(xp.abs(up.real) / _STEP, 1.0)
    is_shifted = (grid < 0.25) | (grid > 0.75)  # then the nodes are between multiples of the step
    corrected = up.imag < np.pi / _STEP
    turn = xp.exp(xp.where(corrected, 2j * np.pi / _STEP * up, 0.0))
    pole = 2.0 * xp.exp(xp.where(corrected, -up * up, 0.0)) * turn
    pole = xp.where(is_shifted, pole / (turn + 1.0), pole / xp.where(is_shifted, 2.0, turn - 1.0))
    total: Any = 0.0
    for k in range(_N_NODES):
        node = xp.where(is_shifted, (k + 0.5) * _STEP, k * _STEP)
        weight = 0.5 if k == 0 else 1.0
        weight = xp.where(is_shifted, 1.0, weight) * xp.exp(-node * node)
        total = total + weight * up / (up * up - node * node)
    found = 2j * _STEP / np.pi * total + xp.where(corrected, pole, 0.0)
    return xp.where(below, 2.0 * xp.exp(xp.where(below, -z * z, 0.0)) - found, found)


def _near(n: int, z: Array, xp: ModuleType) -> Any:
    """Return the n-th derivative of Faddeeva's function by its recurrence."""
    value = wofz(z, xp)
    if n == 0:
        return value
    before, now = value, -2.0 * z * value + 2j / ROOT_PI
    for order in range(1, n):
        before, now = now, -2.0 * (z * now + order * before)
    return now


def _far(n: int, z: Array, sigma: Array) -> Any:
    """Return the n-th derivative of U by its series, for which sigma may be zero."""
    inverse = 1.0 / z
    square: Any = sigma * inverse
    square, total = square * square, 1.0
    for k in range(_N_TERMS, 0, -1):
        total = 1.0 + (2.0 * k + n) * (2.0 * k + n - 1.0) / (2.0 * k) * square * total
    power = inverse
    for order in range(1, n + 1):
        power = power * inverse * float(-order)
    return 1j / np.pi * power * total


def _below(n: int, z: Array, xp: ModuleType) -> Any:
    """Return what the n-th derivative has beside the series on the real line and below it.

    By how much it counts changes across the real line, where its real part counts alone; but farther from there than
    `_ON_LINE` it is nothing beside the series, or the series beside it.
    """
    weight = xp.where(z.imag < -_ON_LINE, 2.0, xp.where(z.imag <= _ON_LINE, 1.0, 0.0))
    inside = xp.where(weight == 0, 0.0, z)
    before, now = 0.0 * inside, 1.0 + 0.0 * inside
    for order in range(n):
        before, now = now, -2.0 * (inside * now + order * before)
    return weight * now * xp.exp(-inside * inside)


def derivative(n: int, z: Array, sigma: Array, xp: ModuleType) -> Any:
    """Return the n-th derivative of U at complex numbers."""
    far = xp.abs(z) > _FAR * ROOT_2 * xp.abs(sigma)
    is_sharp = far & (sigma == 0)
    width = xp.where(is_sharp, 1.0, sigma) * ROOT_2
    scaled = xp.where(is_sharp, 99.0 + 1j, z / width)
    rest = xp.where(far, _below(n, scaled, xp), _near(n, xp.where(far, 0.0, scaled), xp))
    rest = rest / (width ** (n + 1) * ROOT_PI)
    return xp.where(far, rest + _far(n, xp.where(far, z, 1.0), sigma), rest)
