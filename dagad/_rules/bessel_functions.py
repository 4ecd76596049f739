"""Bessel functions beside those of `scipy_rules`: Airy's, Hankel's, Kelvin's and spherical ones, with their slopes.

Formulas are those of Abramowitz and Stegun, 9.1, 9.9, 10.1 and 10.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
import scipy.special as of

from dagad._rules.scipy_functions import defined, stock
from dagad._rules.scipy_rules import Slopes, enter, enter_results, f
from dagad._tracing.by_definition import entrywise
from dagad._tracing.patches import Swap
from dagad._tracing.rules import own_primitive
from dagad._types import Array, Function, Value

# Kelvin's functions are the parts of J0 and K0 of numbers turned by three eighths and by an eighth.
_TURN, _QUARTER = (complex(sign, 1.0) * np.sqrt(0.5) for sign in (-1.0, 1.0))


def _kelvin(part: Callable[[Any], Any], turn: complex, bessel: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a slope from Bessel's functions, which scipy has with more digits than Kelvin's derivatives."""
    return lambda ans, x: part(turn * bessel(turn * x))


def _first_j(z: Array) -> Any:
    return -f.jv(1, z)


def _first_k(z: Array) -> Any:
    return -f.kv(1, z)


def _second_j(z: Array) -> Any:
    return _TURN * (f.jv(2, z) - f.jv(0, z)) / 2.0


def _second_k(z: Array) -> Any:
    return _QUARTER * (f.kv(2, z) + f.kv(0, z)) / 2.0


TABLE: dict[str, Slopes] = {
    "hankel1": (None, lambda ans, v, z: (f.hankel1(v - 1, z) - f.hankel1(v + 1, z)) / 2.0),
    "hankel2": (None, lambda ans, v, z: (f.hankel2(v - 1, z) - f.hankel2(v + 1, z)) / 2.0),
    "ber": (_kelvin(anp.real, _TURN, _first_j),),
    "bei": (_kelvin(anp.imag, _TURN, _first_j),),
    "ker": (_kelvin(anp.real, _QUARTER, _first_k),),
    "kei": (_kelvin(anp.imag, _QUARTER, _first_k),),
    "berp": (_kelvin(anp.real, _TURN, _second_j),),
    "beip": (_kelvin(anp.imag, _TURN, _second_j),),
    "kerp": (_kelvin(anp.real, _QUARTER, _second_k),),
    "keip": (_kelvin(anp.imag, _QUARTER, _second_k),),
}
AIRY = (lambda x: f.airy(x)[1], lambda x: x * f.airy(x)[0], lambda x: f.airy(x)[3], lambda x: x * f.airy(x)[2])


# Of spheres


def _of_sphere(function: Function, before: float, after: float) -> Swap:
    """Return the swap of a spherical Bessel function, whose derivative is a sum of its two neighbours."""
    own = stock(function)

    def slope(ans: Value, n: Array, z: Array, derivative: bool) -> Any:
        order = np.asarray(n).astype(int)  # as scipy reads it
        down, up = made(np.maximum(order - 1, 0), z, derivative), made(order + 1, z, derivative)
        down = anp.where(order > 0, before * order * down, 0.0)
        return (down + after * (order + 1.0) * up) / (2.0 * order + 1.0)

    def raw(n: Array, z: Array, derivative: bool) -> Any:
        return own(n, z, derivative)

    def definition(n: Array, z: Array, derivative: bool = False) -> Any:
        return made(n, z, derivative)

    made = own_primitive(raw, *entrywise(function.__name__, None, slope, None))
    return defined(function, definition)


SWAPS: list[Swap] = [
    _of_sphere(of.spherical_jn, 1.0, -1.0),
    _of_sphere(of.spherical_yn, 1.0, -1.0),
    _of_sphere(of.spherical_in, 1.0, 1.0),
    _of_sphere(of.spherical_kn, -1.0, -1.0),
]


def enter_all() -> None:
    """Enter the slopes of these functions where those of `scipy.special` are looked up."""
    for name, slopes in TABLE.items():
        enter(getattr(of, name), slopes)
    enter_results(of.airy, *AIRY)
