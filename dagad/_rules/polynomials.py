"""Sums of polynomials by numpy.polynomial: what they are, by the recurrences of Abramowitz and Stegun, 22.7.

Numpy's own code asks whether x is one of its arrays, to see whether it has axes; of a traced one it thinks that it has
none. So the value is always that of plain numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._rules.scipy_functions import defined
from dagad._tracing.patches import Swap
from dagad._types import Array, Function
from dagad._values import pytree

plain = pytree.plain

# By the name of the sum, from n: P(n + 1) = (a + b x) P(n) - c P(n - 1), where P(0) is 1 and P(-1) is 0.
RECURRENCES: dict[str, Callable[[int], tuple[float, float, float]]] = {
    "chebval": lambda n: (0.0, 2.0 if n else 1.0, 1.0),
    "legval": lambda n: (0.0, (2.0 * n + 1.0) / (n + 1.0), n / (n + 1.0)),
    "hermval": lambda n: (0.0, 2.0, 2.0 * n),
    "hermeval": lambda n: (0.0, 1.0, float(n)),
    "lagval": lambda n: ((2.0 * n + 1.0) / (n + 1.0), -1.0 / (n + 1.0), n / (n + 1.0)),
}


def with_axes_of(x: Array, c: Array) -> Any:
    """Return coefficients that have axes for those of x, behind their own."""
    return c[(..., *[None] * np.ndim(plain(x)))]


def summed(recurrence: Callable[[int], tuple[float, float, float]], x: Array, c: Array) -> Any:
    """Return the sum of polynomials of x, with coefficients along the first axis."""
    before, now = 0.0 * x, 1.0 + 0.0 * x
    total = c[0] * now
    for n in range(np.shape(plain(c))[0] - 1):
        of_now, of_x, of_before = recurrence(n)
        before, now = now, (of_now + of_x * x) * now - of_before * before
        total = total + c[n + 1] * now
    return total


def _series(recurrence: Callable[[int], tuple[float, float, float]]) -> Function:
    def series(x: Array, c: Array, tensor: bool = True) -> Any:
        c = anp.reshape(c, np.shape(plain(c)) or (1,))
        return summed(recurrence, x, with_axes_of(x, c) if tensor else c)

    return series


def _polyval(x: Array, c: Array, tensor: bool = True) -> Any:
    """Return a polynomial by Horner's rule; coefficients beyond one axis are polynomials of their own."""
    c = with_axes_of(x, c) if tensor and np.ndim(plain(c)) > 1 else c
    found = c[-1] + 0.0 * x
    for index in range(2, np.shape(plain(c))[0] + 1):
        found = c[-index] + found * x
    return found


def _from_roots(x: Array, r: Array, tensor: bool = True) -> Any:
    r = anp.reshape(r, np.shape(plain(r)) or (1,))
    return anp.prod(x - (with_axes_of(x, r) if tensor else r), axis=0)


def of_powers(polynomial: ModuleType) -> list[Swap]:
    """Return the swaps for `numpy.polynomial.polynomial`."""
    return [defined(polynomial.polyval, _polyval), defined(polynomial.polyvalfromroots, _from_roots)]


def of_series(module: ModuleType) -> list[Swap]:
    """Return the swaps for another module of polynomials."""
    (name,) = RECURRENCES.keys() & vars(module).keys()
    return [defined(vars(module)[name], _series(RECURRENCES[name]))]
