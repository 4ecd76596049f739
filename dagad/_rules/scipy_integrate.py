"""Integrals of samples by numpy and scipy: what they are, written with others."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._rules.scipy_functions import defined, swap
from dagad._tracing.by_definition import as_given
from dagad._tracing.operands import array_of
from dagad._tracing.patches import Swap
from dagad._tracing.private import isbox
from dagad._tracing.wide_numbers import wide_entries
from dagad._types import Args, Array, Function
from dagad._values import pytree

plain = pytree.plain


def widths_between(x: Array, axis: int) -> Any:
    """Return what numpy takes for the widths between points, along the last axis: of constants in their own type."""
    x = x if np.ndim(plain(x)) == 1 else anp.moveaxis(x, axis, -1)
    return x[..., 1:] - x[..., :-1] if isbox(x) else np.diff(x)


@as_given
def trapezoid(y: Array, x: Array = None, dx: Array = 1.0, axis: int = -1) -> Any:
    """Return the integral of samples by straight lines between them."""
    if np.ndim(plain(dx)):  # cut like the rises along this axis
        dx = anp.moveaxis(dx * np.ones_like(np.diff(plain(y), axis=axis)), axis, -1)
    y = anp.moveaxis(y, axis, -1)
    if x is not None:
        dx = widths_between(x if isbox(x) else np.asarray(x), axis)
    return anp.sum(dx * (y[..., 1:] + y[..., :-1]) / 2.0, axis=-1)


def _spacing(y: Array, x: Array, dx: Array, axis: int) -> Any:
    """Return the widths of the intervals, along the last axis; a number of them for each row where x has rows."""
    if x is None:
        return dx * np.ones(np.shape(plain(y))[axis] - 1)
    return widths_between(array_of(x), axis)


def _quotient(above: Array, below: Array) -> Any:
    """Return a quotient that is 0 where it is divided by 0: by a width between points that are one."""
    some = plain(below) != 0
    return anp.where(some, above / anp.where(some, below, 1.0), 0.0)


def _simpson(y: Array, x: Array = None, dx: Array = 1.0, axis: int = -1, *, by_floats: bool = False) -> Any:
    """Return the integral by parabolas through three neighbours; a last single interval has Cartwright's.

    With `by_floats` points become floats before they are subtracted.
    """
    if x is not None and by_floats and not isbox(x):
        x = np.asarray(x)
        x = x.astype(np.result_type(x, plain(y)), copy=False)
    h = wide_entries(_spacing(y, x, dx, axis), plain(y))
    y = anp.moveaxis(y, axis, -1)
    n = np.shape(plain(y))[-1]
    if n == 2:
        return 0.5 * anp.sum(h * (y[..., 1:] + y[..., :-1]), axis=-1)
    pairs = n - 1 - (n % 2 == 0)
    left, right = h[..., 0:pairs:2], h[..., 1:pairs:2]
    total = left + right
    parabolas = y[..., 0:pairs:2] * (2.0 - _quotient(right, left)) + y[..., 2 : pairs + 1 : 2] * (
        2.0 - _quotient(left, right)
    )
    middle = y[..., 1:pairs:2] * total * _quotient(total, left * right)
    found = anp.sum(total / 6.0 * (parabolas + middle), axis=-1)
    if n % 2:
        return found
    first, last = h[..., -2], h[..., -1]
    ends = y[..., -1] * _quotient(2.0 * last**2 + 3.0 * first * last, 6.0 * (first + last))
    ends = ends + y[..., -2] * _quotient(last**2 + 3.0 * first * last, 6.0 * first)
    return found + ends - y[..., -3] * _quotient(last**3, 6.0 * first * (first + last))


@as_given
def _cumulative_trapezoid(y: Array, x: Array = None, dx: Array = 1.0, axis: int = -1, initial: Array = None) -> Any:
    h = _spacing(y, x, dx, axis)
    y = anp.moveaxis(y, axis, -1)
    found = anp.cumsum(h * (y[..., 1:] + y[..., :-1]) / 2.0, axis=-1)
    if initial is not None:
        start = initial * np.ones((*np.shape(plain(found))[:-1], 1))
        found = anp.concatenate([start, found], axis=-1)
    return anp.moveaxis(found, -1, axis)


@functools.cache
def _keeps_precision() -> bool:
    """Return whether scipy has nodes in the precision of the limits, as from 1.18 on."""
    from scipy.integrate import fixed_quad

    return bool(fixed_quad(np.cos, np.float32(0.0), np.float32(1.0))[0].dtype == np.float32)


def by_nodes(func: Function, a: Array, b: Array, args: Args = (), n: int = 5) -> tuple[Any, None]:
    """Return the integral of a function between two numbers, as scipy computes it."""
    from scipy.special import roots_legendre  # scipy.integrate has imported it

    nodes, weights = roots_legendre(n)
    own = np.result_type(*(getattr(plain(each), "dtype", each) for each in (a, b)))
    if own.kind == "f" and _keeps_precision():
        nodes, weights = nodes.astype(own), weights.astype(own)
    points = (b - a) * (nodes + 1) / 2.0 + a
    return (b - a) / 2.0 * np.sum(weights * func(points, *args), axis=-1), None


def _fixed_quad(func: Function, a: Array, b: Array, args: Args = (), n: int = 5) -> tuple[Any, None]:
    if np.any(np.isinf([plain(a), plain(b)])):
        raise ValueError("Gaussian quadrature has finite limits.")
    return by_nodes(func, a, b, args, n)


def of_integrals(integrate: ModuleType) -> list[Swap]:
    """Return the swaps for `scipy.integrate`."""
    by_floats = integrate.simpson([1.0, 1.0, 1.0], x=np.array([2, 1, 0], "u1")) < 0.0  # from 1.18 on
    return [
        defined(integrate.trapezoid, trapezoid),
        defined(integrate.simpson, as_given(functools.partial(_simpson, by_floats=bool(by_floats)))),
        defined(integrate.cumulative_trapezoid, _cumulative_trapezoid),
        swap(integrate.fixed_quad, _fixed_quad),
    ]
