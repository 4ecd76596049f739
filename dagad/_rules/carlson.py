"""Elliptic integrals in Carlson's form and the arithmetic-geometric mean, by iterations of square roots.

For all engines: the square root is given. Each step adds and multiplies numbers of one sign, so that the derivatives of
all steps together are as good as the values. Carlson, Numerical Algorithms 10 (1995), 13.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dagad._types import Array, Function

MOST = 20  # steps: a ratio of 1e-308 is one of 1e-2 after eight of them, and then is 4 times nearer to one by each
_NEAR = 1e-5  # so that what the last series leaves out has derivatives that are nothing, too
N_MEANS = 14  # the same for means, whose last steps square what is left


def steps_for(*squares: Any) -> int:
    """Return after how many steps these numbers are next to each other."""
    now = [np.asarray(each) for each in squares]
    with np.errstate(all="ignore"):
        for count in range(MOST):
            middle = sum(now) / len(now)
            if all(np.all(~(np.abs(each - middle) > _NEAR * np.abs(middle))) for each in now):
                return count
            a, b, c = map(np.sqrt, now)
            grown = a * b + a * c + b * c
            now = [(each + grown) / 4.0 for each in now]
    return MOST


def rf(roots: Array, sqrt: Function, n_steps: int) -> Any:
    """Return the symmetric integral of the first kind, R_F, of the squares of these."""
    a, b, c = roots
    x, y, z = a * a, b * b, c * c
    for step in range(n_steps):
        if step:
            a, b, c = sqrt(x), sqrt(y), sqrt(z)
        grown = a * b + a * c + b * c
        x, y, z = (x + grown) / 4.0, (y + grown) / 4.0, (z + grown) / 4.0
    middle = (x + y + z) / 3.0
    p, q = 1.0 - x / middle, 1.0 - y / middle
    r = -p - q
    two, three = p * q - r * r, p * q * r
    series = 1.0 - two / 10.0 + three / 14.0 + two * two / 24.0 - 3.0 * two * three / 44.0
    return series / sqrt(middle)


def rd(roots: Array, sqrt: Function, n_steps: int) -> Any:
    """Return the integral of the second kind, R_D, of the squares of these."""
    a, b, c = roots
    x, y, z = a * a, b * b, c * c
    total, share = 0.0, 1.0
    for step in range(n_steps):
        if step:
            a, b, c = sqrt(x), sqrt(y), sqrt(z)
        grown = a * b + a * c + b * c
        total = total + share / (c * (z + grown))
        share = share / 4.0
        x, y, z = (x + grown) / 4.0, (y + grown) / 4.0, (z + grown) / 4.0
    middle = (x + y + 3.0 * z) / 5.0
    p, q = 1.0 - x / middle, 1.0 - y / middle
    r = -(p + q) / 3.0
    two, three = p * q - 6.0 * r * r, (3.0 * p * q - 8.0 * r * r) * r
    four, five = 3.0 * (p * q - r * r) * r * r, p * q * r * r * r
    series = 1.0 - 3.0 * two / 14.0 + three / 6.0 + 9.0 * two * two / 88.0 - 3.0 * four / 22.0
    series = series - 9.0 * two * three / 52.0 + 3.0 * five / 26.0
    return share * series / (middle * sqrt(middle)) + 3.0 * total


def mean(a: Array, b: Array, sqrt: Function) -> Any:
    """Return the arithmetic-geometric mean of two positive numbers."""
    for _ in range(N_MEANS):
        a, b = (a + b) / 2.0, sqrt(a) * sqrt(b)
    return (a + b) / 2.0
