"""Functions at points where they have several slopes, or none: with those of dagad's other tables, where jax's differ.

Slopes are written with functions of jax's and of this module, so that they have derivatives of any order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.scipy import special as jss

from dagad._engines.xla import vectors
from dagad._types import Args, Array, Function, Tangents

Slope = Callable[..., Any] | None  # of the value and the arguments; None where the function is constant
LEAST = sys.float_info.min  # what is nearer to 0 has no finite inverse


def with_slopes(value: Function, *slopes: Slope) -> Function:
    """Return a function of entries with these partial derivatives.

    That of an argument that does not move is not asked for: where it is infinite, zero times it would be nan.
    """

    @jax.custom_jvp
    def function(*args: Any) -> Any:
        return value(*args)

    def jvp(args: Args, tangents: Tangents) -> Any:
        found = function(*args)
        parts = [
            slope(found, *args) * tangent
            for slope, tangent in zip(slopes, tangents, strict=True)
            if slope is not None and type(tangent) is not SymbolicZero
        ]
        return found, sum(parts[1:], parts[0]) if parts else jnp.zeros_like(found)

    function.defjvp(jvp, symbolic_zeros=True)

    def call(*args: Any) -> Any:
        own = list(map(jnp.asarray, args))
        kind = jnp.result_type(*(arg for arg, slope in zip(own, slopes, strict=True) if slope is not None))
        if kind.kind != "f":
            return value(*args)
        for index, slope in enumerate(slopes):
            if slope is not None and own[index].dtype != kind:
                own[index] = own[index].astype(kind)
        return function(*jnp.broadcast_arrays(*own))

    return call


def _sign(x: Array) -> Any:
    return jnp.sign(jax.lax.stop_gradient(x))


def _share_of(own: Array, other: Array, ans: Array) -> Any:
    """Return 1 where an entry is the one taken, half of it where both are."""
    return jnp.where(own == ans, jnp.where(other == ans, 0.5, 1.0), 0.0)


def _of_taken(value: Function) -> Function:
    return with_slopes(value, lambda ans, x, y: _share_of(x, y, ans), lambda ans, x, y: _share_of(y, x, ans))


# Of complex numbers


_complex_arccosh = jax.custom_jvp(jnp.arccosh)


@_complex_arccosh.defjvp
def _jvp_of_arccosh(args: Args, tangents: Tangents) -> Any:
    """Have the slope of the branch that numpy gives: jax's is of the other one where the real part is negative."""
    (z,), (tangent,) = args, tangents
    return _complex_arccosh(z), tangent / (jnp.sqrt(z - 1.0) * jnp.sqrt(z + 1.0))


@jax.custom_jvp
def _direction(z: Array) -> Any:
    return jnp.sign(z)


@_direction.defjvp
def _jvp_of_direction(args: Args, tangents: Tangents) -> Any:
    """Have the slope of z / |z|, which only turns, and none at 0."""
    (z,), (tangent,) = args, tangents
    found, is_zero = _direction(z), z == 0
    turn = jnp.imag(jnp.conj(found) * tangent) / jnp.abs(jnp.where(is_zero, 1.0, z))
    return found, jnp.where(is_zero, 0.0, 1j * found * turn).astype(z.dtype)


def _size(z: Array) -> Any:
    is_zero = z == 0  # where no derivative of any order has a place
    return jnp.where(is_zero, 0.0, jnp.abs(jnp.where(is_zero, 1.0, z)))


def _of_kinds(of_real: Function, of_complex: Function) -> Function:
    """Return a function that is another one of complex numbers."""
    return lambda x: (of_complex if jnp.result_type(x).kind == "c" else of_real)(x)


sign = _of_kinds(jnp.sign, _direction)
arccosh = _of_kinds(jnp.arccosh, _complex_arccosh)
absolute = _of_kinds(with_slopes(jnp.abs, lambda ans, x: _sign(x)), _size)
fmax, fmin = _of_taken(jnp.fmax), _of_taken(jnp.fmin)
expit: Function = with_slopes(jss.expit, lambda ans, x: ans * expit(-x))
copysign = with_slopes(jnp.copysign, lambda ans, x, y: _sign(x) * _sign(ans), lambda ans, x, y: 0.0 * y)
ldexp = with_slopes(jnp.ldexp, lambda ans, x, n: jnp.exp2(n.astype(x.dtype)), None)
logaddexp = with_slopes(vectors.logaddexp, lambda ans, x, y: expit(x - y), lambda ans, x, y: expit(y - x))
expm1 = with_slopes(jnp.expm1, lambda ans, x: jnp.exp(x))  # jax's, the value and one, is 0 where that is nearly -1
_LOG_2 = float(np.log(2.0))
logaddexp2 = with_slopes(
    jnp.logaddexp2, lambda ans, x, y: expit(_LOG_2 * (x - y)), lambda ans, x, y: expit(_LOG_2 * (y - x))
)
# By the quotient as it is rounded, where a number is nearly a multiple.
remainder = with_slopes(jnp.remainder, lambda ans, x, y: jnp.ones_like(x), lambda ans, x, y: -jnp.floor(x / y))
fmod = with_slopes(jnp.fmod, lambda ans, x, y: jnp.ones_like(x), lambda ans, x, y: -jnp.trunc(x / y))
nextafter = with_slopes(jnp.nextafter, lambda ans, x, y: jnp.ones_like(x), lambda ans, x, y: 0.0 * y)
_fraction = with_slopes(
    lambda x: jnp.copysign(jnp.where(jnp.isinf(x), 0.0, x - jnp.trunc(x)), x), lambda ans, x: jnp.ones_like(x)
)


def modf(x: Array) -> Any:
    """Return fractions and whole parts; of infinity jax has nan as the fraction."""
    return _fraction(x), jnp.trunc(x)


def unwrap(p: Array, discont: float | None = None, axis: int = -1, *, period: float = 2.0 * np.pi) -> Any:
    """Return angles without their jumps, which are whole turns and constant."""
    return with_slopes(
        lambda p: jnp.unwrap(p, discont=discont, axis=axis, period=period), lambda ans, p: jnp.ones_like(p)
    )(p)


# Where a quotient of small numbers has lost its digits


def _sinc_slope(ans: Array, x: Array) -> Any:
    is_small = jnp.abs(x) < 1e-2
    at, square = jnp.where(is_small, 1.0, x), (jnp.pi * x) ** 2
    series = jnp.pi**2 * x * (-1.0 / 3.0 + square * (1.0 / 30.0 - square / 840.0 + square**2 / 45360.0))
    return jnp.where(is_small, series, (jnp.cos(jnp.pi * x) - sinc(at)) / at)


sinc: Function = with_slopes(jnp.sinc, _sinc_slope)


# What is largest and smallest so far


def _so_far(function: Function, is_beyond: Function) -> Function:
    def so_far(x: Array, axis: int) -> Any:
        """Return the first of equal entries, as it is that which has the slope."""
        axis %= x.ndim
        found = function(x, axis)
        if not x.shape[axis] or x.dtype.kind != "f":
            return found
        known, before = (jnp.moveaxis(each, axis, -1) for each in map(jax.lax.stop_gradient, (x, found)))
        before = jnp.roll(before, 1, -1)
        is_new = is_beyond(known, before) | (jnp.isnan(known) & ~jnp.isnan(before))
        numbers = jnp.where(is_new, jnp.arange(x.shape[axis]), 0)
        indices = jax.lax.cummax(numbers.at[..., 0].set(0), x.ndim - 1)
        return jnp.take_along_axis(x, jnp.moveaxis(indices, -1, axis), axis, mode="promise_in_bounds")

    return so_far


cummax, cummin = _so_far(jax.lax.cummax, jnp.greater), _so_far(jax.lax.cummin, jnp.less)


# Powers


def _in_base(ans: Array, x: Array, y: Array) -> Any:
    has_slope = (y != 0) | (jnp.abs(x) >= LEAST)
    return y * power_of(x, jnp.where(has_slope, y - 1.0, 1.0))


power_of: Function = with_slopes(
    jnp.power, _in_base, lambda ans, x, y: jnp.log(jnp.where(x == 0, 1.0, x)) * power_of(x, y)
)


# Logarithms


def _ratio(x: Array, y: Array) -> Any:
    """Return x / y, and 0 for 0 / 0: the limit of x log(y) along x = 0."""
    return x / jnp.where((x == 0) & (y == 0), 1.0, y)


xlogy = with_slopes(jss.xlogy, lambda ans, x, y: vectors.log(y), lambda ans, x, y: _ratio(x, y))
xlog1py = with_slopes(jss.xlog1py, lambda ans, x, y: vectors.log1p(y), lambda ans, x, y: _ratio(x, 1.0 + y))
entr = with_slopes(jss.entr, lambda ans, x: -jnp.log(x) - 1.0)
rel_entr = with_slopes(jss.rel_entr, lambda ans, x, y: jnp.log(x / y) + 1.0, lambda ans, x, y: -x / y)
kl_div = with_slopes(jss.kl_div, lambda ans, x, y: jnp.log(x / y), lambda ans, x, y: 1.0 - x / y)


def _huber(width: Array, r: Array) -> Any:
    size = jnp.abs(r)
    found = jnp.where(size <= width, 0.5 * r**2, width * (size - 0.5 * width))
    return jnp.where(width < 0, jnp.inf, found)


huber = with_slopes(
    _huber,
    lambda ans, width, r: jnp.maximum(absolute(r) - width, 0.0),
    lambda ans, width, r: jnp.minimum(jnp.maximum(r, -width), width),
)


def _soft(width: Array, r: Array) -> Any:
    return jnp.sqrt(1.0 + (r / width) ** 2)


def _pseudo_huber(width: Array, r: Array) -> Any:
    flat = (width == 0) | (r == 0)
    found = width**2 * jnp.expm1(0.5 * jnp.log1p((r / jnp.where(flat, 1.0, width)) ** 2))
    return jnp.where(width < 0, jnp.inf, jnp.where(flat, 0.0, found))


pseudo_huber = with_slopes(
    _pseudo_huber,
    lambda ans, width, r: width * ((r / width) ** 2 / (_soft(width, r) + 1.0)) ** 2 / _soft(width, r),
    lambda ans, width, r: r / _soft(width, r),
)


# Bounds


@jax.custom_jvp
def _between(a: Array, low: Array, high: Array) -> Any:
    return jnp.minimum(jnp.maximum(a, low), high)


def _jvp_of_between(args: Args, tangents: Tangents) -> Any:
    """Have no slope at a bound that does not move, and half of it at one that does."""
    moves = [type(tangent) is not SymbolicZero for tangent in tangents]
    found = _between(*args)
    if not any(moves[1:]):
        inside = (found != args[1]) & (found != args[2])
        return found, jnp.where(inside, tangents[0], 0.0) if moves[0] else jnp.zeros_like(found)
    full = tuple(
        tangent if is_moving else jnp.zeros_like(arg)
        for arg, tangent, is_moving in zip(args, tangents, moves, strict=True)
    )
    return found, jax.jvp(lambda a, low, high: jnp.minimum(jnp.maximum(a, low), high), args, full)[1]


_between.defjvp(_jvp_of_between, symbolic_zeros=True)


def between(a: Array, low: Array, high: Array, kind: str) -> Any:
    """Return floating-point numbers kept between bounds, None for one that there is not."""
    low, high = (-np.inf if low is None else low), (np.inf if high is None else high)
    return _between(*jnp.broadcast_arrays(*(jnp.asarray(each, kind) for each in (a, low, high))))
