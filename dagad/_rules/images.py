"""Filters of scipy.ndimage: weighed sums of neighbours, for each engine by what it has for signals.

An array is made longer first, by what scipy takes to be beyond its edges; entries that stand for others there carry
their derivatives back by themselves. Scipy sums in double precision, whatever it is given, and so is this done here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._rules.signals import PERIODS, Means, extended, fits, one_of, reverse, shape_of
from dagad._tracing import refusals
from dagad._types import Array, Axis, Function
from dagad._values import pytree

plain = pytree.plain
HOME = "scipy.ndimage"
_MODES = ("reflect", "grid-mirror", "constant", "grid-constant", "nearest", "mirror", "wrap", "grid-wrap")


def checked(name: str, x: Array, output: object, cval: Array, weights: Array = None) -> None:
    """Refuse what would write into an array, or round what it returns; complex numbers are not rounded."""
    if hasattr(output, "shape") and not isinstance(output, type):
        raise NotDifferentiableError(refusals.of_out(f"{HOME}.{name}"))
    if output is not None:
        raise NotDifferentiableError(refusals.of_option(f"{HOME}.{name}", ["output"]))
    if plain(x).dtype.kind not in "fc" and not np.iscomplexobj(weights):
        why = " of whole numbers, since it rounds to such. Give it those of floating point, `image.astype(float)`"
        raise NotDifferentiableError(refusals.of_function(f"{HOME}.{name}", why))
    _number(name, "cval", cval)


def _number(name: str, option: str, value: object) -> Any:
    if not isinstance(plain(value), int | float | complex | np.number | np.ndarray) or pytree.is_traced(value):
        raise NotDifferentiableError(refusals.of_option(f"{HOME}.{name}", [option]))
    return value


def _each(value: Any, count: int) -> list[Any]:
    """Return an option for each axis."""
    if isinstance(value, str) or not np.ndim(plain(value)):
        return [value] * count
    fits(len(value) == count, "An option is given once, or for each axis.")
    return list(value)


def _axes(x: Array, axes: Axis) -> Any:
    n = len(shape_of(x))
    return list(range(n)) if axes is None else [int(axis) % n for axis in np.atleast_1d(axes)]


def _double(x: Array) -> Any:
    return x.astype(np.result_type(plain(x).dtype, float))


def _like(found: Array, *arrays: Any) -> Any:
    """Return a result in the precision of the first array; complex, if one of them is."""
    dtype = plain(arrays[0]).dtype
    if any(plain(each).dtype.kind == "c" for each in arrays):
        dtype = np.result_type(dtype, np.complex64)
    return found.astype(dtype)


# Along one axis


def _along(means: Means, x: Array, weights: Array, axis: int, mode: str, cval: Array, origin: int) -> Any:
    """Return the sums of ``weights[j] * x[i + j - len(weights) // 2 - origin]``."""
    one_of("mode", mode, *_MODES)
    count = shape_of(weights)[0]
    fits(-(count // 2) <= origin <= (count - 1) // 2, f"A filter of {count} entries has no `origin={origin}`.")
    if not np.size(plain(x)):
        return x
    before = count // 2 + origin
    wide = extended(np.moveaxis(x, axis, -1), -1, before, count - 1 - before, mode, cval)
    return np.moveaxis(means.weigh(reverse(weights), wide)[..., count - 1 :], -1, axis)


def _correlate1d(
    means: Means,
    input: Array,
    weights: Array,
    axis: int = -1,
    output: object = None,
    mode: str = "reflect",
    cval: Array = 0.0,
    origin: int = 0,
    *,
    name: str = "correlate1d",
) -> Any:
    checked(name, input, output, cval, weights)
    w = _double(weights) if name == "convolve1d" else np.conj(_double(weights))
    return _like(_along(means, _double(input), w, axis, mode, cval, origin), input, weights)


def _convolve1d(
    means: Means,
    input: Array,
    weights: Array,
    axis: int = -1,
    output: object = None,
    mode: str = "reflect",
    cval: Array = 0.0,
    origin: int = 0,
) -> Any:
    origin = -origin - (shape_of(weights)[0] % 2 == 0)
    return _correlate1d(means, input, reverse(weights), axis, output, mode, cval, origin, name="convolve1d")


def gaussian_weights(sigma: Array, order: int, radius: int) -> Any:
    """Return a derivative of a Gaussian at whole numbers, whose sum is 1 before it is differentiated."""
    x = np.arange(-radius, radius + 1)
    density = np.exp(-0.5 * (x / sigma) ** 2)
    before, now = 0.0 * density, 0.0 * density + 1.0
    for n in range(order):
        before, now = now, -(x * now + n * before) / sigma**2
    return now * (density / np.sum(density))


def _gaussian(
    means: Means, x: Array, sigma: Array, axis: int, order: int, mode: str, cval: Array, truncate: float, radius: Any
) -> Any:
    known = plain(sigma)
    if not isinstance(known, int | float | np.number | np.ndarray):  # so many neighbours as it says, and nobody knows
        raise NotDifferentiableError(refusals.of_option(f"{HOME}.gaussian_filter", ["sigma"]))
    radius = int(truncate * float(known) + 0.5) if radius is None else radius
    weights = reverse(gaussian_weights(sigma, order, radius))
    return _along(means, x, weights, axis, mode, cval, 0)


def _gaussian_filter1d(
    means: Means,
    input: Array,
    sigma: Array,
    axis: int = -1,
    order: int = 0,
    output: object = None,
    mode: str = "reflect",
    cval: Array = 0.0,
    truncate: float = 4.0,
    *,
    radius: int | None = None,
) -> Any:
    checked("gaussian_filter1d", input, output, cval)
    found = _gaussian(means, _double(input), sigma, axis, order, mode, cval, truncate, radius)
    return _like(found, input)


def _gaussian_filter(
    means: Means,
    input: Array,
    sigma: Array,
    order: int | Sequence[int] = 0,
    output: object = None,
    mode: str | Sequence[str] = "reflect",
    cval: Array = 0.0,
    truncate: float = 4.0,
    *,
    radius: int | Sequence[int] | None = None,
    axes: Axis = None,
) -> Any:
    checked("gaussian_filter", input, output, cval)
    found, along = _double(input), _axes(input, axes)
    options = [_each(option, len(along)) for option in (order, mode)]
    radii = [None] * len(along) if radius is None else _each(radius, len(along))
    many = np.ndim(plain(sigma)) > 0
    for at, (axis, own, way, wide) in enumerate(zip(along, *options, radii, strict=True)):
        each = sigma[at] if many else sigma
        if not isinstance(plain(each), int | float | np.number | np.ndarray) or plain(each) > 1e-15:
            found = _gaussian(means, found, each, axis, own, way, cval, truncate, wide)
    return _like(found, input)


def _uniform_filter1d(
    means: Means,
    input: Array,
    size: int,
    axis: int = -1,
    output: object = None,
    mode: str = "reflect",
    cval: Array = 0.0,
    origin: int = 0,
) -> Any:
    checked("uniform_filter1d", input, output, cval)
    return _like(_along(means, _double(input), np.full(size, 1.0 / size), axis, mode, cval, origin), input)


def _uniform_filter(
    means: Means,
    input: Array,
    size: int | Sequence[int] = 3,
    output: object = None,
    mode: str | Sequence[str] = "reflect",
    cval: Array = 0.0,
    origin: int | Sequence[int] = 0,
    *,
    axes: Axis = None,
) -> Any:
    checked("uniform_filter", input, output, cval)
    found, along = _double(input), _axes(input, axes)
    options = [_each(option, len(along)) for option in (size, mode, origin)]
    for axis, count, way, start in zip(along, *options, strict=True):
        if count > 1:
            found = _along(means, found, np.full(int(count), 1.0 / int(count)), axis, way, cval, start)
    return _like(found, input)


# In all dimensions at once


def _of_neighbours(
    means: Means, x: Array, weights: Array, mode: str, cval: Array, origins: Sequence[int], axes: Axis
) -> Any:
    one_of("mode", mode, *_MODES)
    counts = [1] * len(shape_of(x))
    for axis, count in zip(axes, shape_of(weights), strict=True):
        counts[axis] = count
    if list(axes) != sorted(axes):
        raise NotDifferentiableError(refusals.of_option(f"{HOME}.correlate", ["axes"]))
    if not np.size(plain(x)):
        return x
    for axis, origin in zip(axes, origins, strict=True):
        count = counts[axis]
        fits(-(count // 2) <= origin <= (count - 1) // 2, f"A filter of {count} entries has no `origin={origin}`.")
        before = count // 2 + origin
        x = extended(x, axis, before, count - 1 - before, mode, cval)
    return means.convolve(x, reverse(np.reshape(weights, counts)), "valid", None, "direct")


def _correlate(
    means: Means,
    input: Array,
    weights: Array,
    output: object = None,
    mode: str = "reflect",
    cval: Array = 0.0,
    origin: int | Sequence[int] = 0,
    *,
    axes: Axis = None,
    name: str = "correlate",
) -> Any:
    checked(name, input, output, cval, weights)
    along = _axes(input, axes)
    fits(len(shape_of(weights)) == len(along), "A filter has as many axes as are filtered.")
    w = _double(weights) if name == "convolve" else np.conj(_double(weights))
    found = _of_neighbours(means, _double(input), w, mode, cval, _each(origin, len(along)), along)
    return _like(found, input, weights)


def _convolve(
    means: Means,
    input: Array,
    weights: Array,
    output: object = None,
    mode: str = "reflect",
    cval: Array = 0.0,
    origin: int | Sequence[int] = 0,
    *,
    axes: Axis = None,
) -> Any:
    sizes = shape_of(weights)
    origins = [-own - (n % 2 == 0) for own, n in zip(_each(origin, len(sizes)), sizes, strict=True)]
    return _correlate(means, input, reverse(weights), output, mode, cval, origins, axes=axes, name="convolve")


# Between pixels


def _extension(means: Means, at: Array, n: int, mode: str) -> Any:
    """Return which entries stand at whole numbers that may lie beyond an edge."""
    if mode in PERIODS:
        period = PERIODS[mode](n)
        return means.take(period, at % len(period))
    return np.clip(at, 0, n - 1)


_BETWEEN = ("constant", "nearest", "reflect", "grid-mirror", "mirror", "grid-wrap")


def _map_coordinates(
    means: Means,
    input: Array,
    coordinates: Array,
    output: object = None,
    order: int = 3,
    mode: str = "constant",
    cval: Array = 0.0,
    prefilter: bool = True,
) -> Any:
    """Return what lines between neighbours are at some places; at a neighbour, the slope is that of the next line."""
    del prefilter
    checked("map_coordinates", input, output, cval)
    if order != 1 or mode not in _BETWEEN:
        raise NotDifferentiableError(
            refusals.of_option(f"{HOME}.map_coordinates", [f"order={order}" if order != 1 else f"mode={mode!r}"])
        )
    shape, flat = shape_of(input), np.ravel(_double(input))
    fits(len(shape) == shape_of(coordinates)[0] and all(shape), "Coordinates have a row for each axis of an image.")
    parts: list[tuple[Any, Any]] = [(np.zeros(shape_of(coordinates)[1:], dtype=int), 1.0)]
    outside = np.zeros(shape_of(coordinates)[1:], dtype=bool)
    for axis, n in enumerate(shape):
        here = coordinates[axis] * 1.0
        start = np.floor(plain(here))
        if mode == "constant":
            outside = outside | (plain(here) < 0) | (plain(here) > n - 1)
            start = np.clip(start, 0, max(n - 2, 0))
        share, first = here - start, start.astype(int)
        both = [(_extension(means, first + k, n, mode), share if k else 1.0 - share) for k in (0, 1)]
        parts = [(at * n + index, weight * own) for at, weight in parts for index, own in both]
    found = sum(means.take(flat, at) * weight for at, weight in parts)
    return _like(np.where(outside, cval, found) if mode == "constant" else found, input)


_DEFINITIONS: dict[str, Function] = {
    "correlate1d": _correlate1d,
    "convolve1d": _convolve1d,
    "gaussian_filter1d": _gaussian_filter1d,
    "gaussian_filter": _gaussian_filter,
    "uniform_filter1d": _uniform_filter1d,
    "uniform_filter": _uniform_filter,
    "correlate": _correlate,
    "convolve": _convolve,
    "map_coordinates": _map_coordinates,
}


def by_means(means: Means) -> dict[str, Function]:
    """Return the definitions of functions of scipy.ndimage, by what an engine has for signals."""
    return {name: functools.partial(each, means) for name, each in _DEFINITIONS.items()}
