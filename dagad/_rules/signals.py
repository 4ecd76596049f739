"""Functions of scipy.signal: what they are, by three that each engine has of its own: convolutions and linear filters.

Scipy's own functions compute the values of the usual engine, and have refused what they refuse.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._tracing import refusals
from dagad._types import Array, Axis, DType, Function, Shape
from dagad._values import pytree

plain = pytree.plain


class Means(NamedTuple):
    """What an engine has of its own.

    `convolve` takes two arrays, "full" or "valid" (the first is the larger one then), the axes if these are not all,
    and scipy's name of the method. `weigh(b, x)` is the sum of ``b[k] * x[..., n - k]`` where there is such an entry.
    `lfilter` filters along the last axis, from a state or None, and returns the state at the end, too.
    `take(x, at)` has entries of a vector at whole numbers that may be known to nobody yet.
    """

    convolve: Function
    weigh: Function
    lfilter: Callable[[Any, Any, Any, Any], tuple[Any, Any]]
    take: Function


def shape_of(x: Array) -> Any:
    return np.shape(plain(x))


def reverse(x: Array, axes: Axis = None) -> Any:
    """Return an array in reverse order along some axes, or all."""
    axes = range(len(shape_of(x))) if axes is None else [axis % len(shape_of(x)) for axis in axes]
    return x[tuple(slice(None, None, -1 if axis in axes else 1) for axis in range(len(shape_of(x))))]


def one_of(name: str, value: object, *allowed: Any) -> None:
    """Refuse an option that scipy refuses, where scipy is not asked."""
    if value not in allowed:
        raise ValueError(f"`{name}` was {value!r}. Give one of {', '.join(map(repr, allowed))}.")


def fits(condition: object, sentence: str) -> None:
    """Refuse shapes that scipy refuses, where scipy is not asked."""
    if not condition:
        raise ValueError(sentence)


# Convolutions


def in_mode(
    means: Means, a: Array, b: Array, mode: str, axes: Axis = None, method: str = "auto", shape: Shape = None
) -> Any:
    """Return a convolution in one of scipy's modes; "same" is the shape of the first array, or this one."""
    one_of("mode", mode, "full", "valid", "same")
    fits(len(shape_of(a)) == len(shape_of(b)), "Arrays that are convolved have the same number of axes.")
    if mode == "valid":
        some = range(len(shape_of(a))) if axes is None else axes
        swapped = any(shape_of(a)[axis] < shape_of(b)[axis] for axis in some)
        larger = all(shape_of(a)[axis] <= shape_of(b)[axis] for axis in some) or not swapped
        fits(larger, 'In mode "valid", one of two arrays is at least as large as the other along every axis.')
        return means.convolve(*((b, a) if swapped else (a, b)), "valid", axes, method)
    full = means.convolve(a, b, "full", axes, method)
    return _centre(full, shape_of(a) if shape is None else shape) if mode == "same" else full


def _centre(full: Array, shape: Shape, later: int = 0) -> Any:
    starts = [(n - own + later) // 2 for n, own in zip(shape_of(full), shape, strict=True)]
    return full[tuple(slice(start, start + own) for start, own in zip(starts, shape, strict=True))]


def _convolve(means: Means, in1: Array, in2: Array, mode: str = "full", method: str = "auto") -> Any:
    one_of("method", method, "auto", "direct", "fft")
    if not len(shape_of(in1)):
        return in1 * in2
    if not np.size(plain(in1)) or not np.size(plain(in2)):
        return np.ravel(in1)[:0] + np.ravel(in2)[:0]
    return in_mode(means, in1, in2, mode, None, method)


def _correlate(means: Means, in1: Array, in2: Array, mode: str = "full", method: str = "auto") -> Any:
    other = np.conj(in2)
    return _convolve(means, in1, reverse(other) if len(shape_of(other)) else other, mode, method)


def _fftconvolve(means: Means, in1: Array, in2: Array, mode: str = "full", axes: Axis = None) -> Any:
    n = len(shape_of(in1))
    if not n or not np.size(plain(in1)) or not np.size(plain(in2)):
        return _convolve(means, in1, in2, mode)
    axes = range(n) if axes is None else [int(axis) % n for axis in np.atleast_1d(axes)]
    both = np.broadcast_shapes(*(tuple(1 if k in axes else m for k, m in enumerate(shape_of(x))) for x in (in1, in2)))
    own = shape_of(in1)
    in1, in2 = (
        np.broadcast_to(x, tuple(m if k in axes else both[k] for k, m in enumerate(shape_of(x)))) for x in (in1, in2)
    )
    return in_mode(means, in1, in2, mode, None if len(axes) == n else tuple(axes), "fft", own)


# What is beyond an edge, by the names that scipy.signal and scipy.ndimage have for it: places in a period.
PERIODS: dict[str, Callable[[int], Any]] = {
    "wrap": np.arange,
    "grid-wrap": np.arange,
    "symm": lambda n: np.r_[:n, n - 1 : -1 : -1],
    "reflect": lambda n: np.r_[:n, n - 1 : -1 : -1],
    "grid-mirror": lambda n: np.r_[:n, n - 1 : -1 : -1],
    "mirror": lambda n: np.r_[:n, n - 2 : 0 : -1],
}


def extended(x: Array, axis: int, before: int, after: int, mode: str, value: Array = 0.0) -> Any:
    """Return an array with more entries before and behind those along an axis."""
    n = shape_of(x)[axis]
    at = np.arange(-before, n + after)
    if mode in PERIODS:
        period = PERIODS[mode](n)
        return np.take(x, period[at % len(period)], axis=axis)
    inside = np.take(x, np.clip(at, 0, n - 1), axis=axis)
    if mode == "nearest":
        return inside
    known = ((at >= 0) & (at < n)).reshape([-1 if k == axis % len(shape_of(x)) else 1 for k in range(len(shape_of(x)))])
    return np.where(known, inside, value if pytree.is_traced(value) else _number_beside(plain(x).dtype, value))


def _number_beside(dtype: DType, value: object) -> Any:
    """Return a number in the precision of what it stands beside; whole ones get a place behind the point for it."""
    number = np.asarray(value).item()
    return np.asarray(number, dtype=np.result_type(dtype, number))


_BOUNDARIES = {
    **{"fill": "fill", "pad": "fill", "wrap": "wrap", "circular": "wrap"},
    **{"symm": "symm", "symmetric": "symm"},
}


def _convolve2d(
    means: Means,
    in1: Array,
    in2: Array,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: float = 0,
    *,
    later: int = 0,
) -> Any:
    one_of("mode", mode, "full", "valid", "same")
    one_of("boundary", boundary, *_BOUNDARIES)
    name = _BOUNDARIES[boundary]
    fits(len(shape_of(in1)) == len(shape_of(in2)) == 2, "Matrices are convolved in two dimensions.")
    if mode == "valid":
        return in_mode(means, in1, in2, mode, None, "direct")
    wide = in1
    for axis in (0, 1):
        more = shape_of(in2)[axis] - 1
        wide = extended(wide, axis, more, more, name, fillvalue)
    full = means.convolve(wide, in2, "valid", None, "direct")
    return _centre(full, shape_of(in1), later) if mode == "same" else full


def _correlate2d(
    means: Means, in1: Array, in2: Array, mode: str = "full", boundary: str = "fill", fillvalue: float = 0
) -> Any:
    if mode == "valid" and any(m < n for m, n in zip(shape_of(in1), shape_of(in2), strict=True)):
        return means.convolve(reverse(in2), np.conj(in1), "valid", None, "direct")
    other = reverse(np.conj(in2))
    return _convolve2d(means, in1, other, mode, boundary, fillvalue, later=1)  # of an even length, the later half


# Linear filters


def _floating(x: Array) -> Any:
    return x if plain(x).dtype.kind in "fc" else x * 1.0


def _coefficients(b: Array, a: Array, x: Array) -> list[Any]:
    """Return the coefficients of a filter in the precision in which scipy filters: they are divided by one another."""
    vectors = [np.reshape(each, (-1,)) for each in (b, a)]  # of numbers, too
    own = [plain(each).dtype for each in vectors]
    precision = np.finfo(np.result_type(plain(x).dtype, *own)).dtype
    finer = [np.result_type(precision, each) if each.kind in "fc" else each for each in own]
    return [
        each.astype(dtype) if plain(each).dtype != dtype else each for each, dtype in zip(vectors, finer, strict=True)
    ]


def _lfilter(means: Means, b: Array, a: Array, x: Array, axis: int = -1, zi: Array = None) -> Any:
    x = _floating(x)
    b, a = _coefficients(b, a, x)
    count = max(shape_of(b)[0], shape_of(a)[0]) - 1
    state = None if zi is None else _state(np.moveaxis(zi, axis, -1), x, axis, count)
    found, after = means.lfilter(b, a, np.moveaxis(x, axis, -1), state)
    found = np.moveaxis(found, -1, axis)
    return found if zi is None else (found, np.moveaxis(after, -1, axis))


def _state(zi: Array, x: Array, axis: int, count: int) -> Any:
    rows = list(shape_of(x))
    del rows[axis]
    fits(shape_of(zi)[-1] == count, f"The state of this filter, `zi`, has {count} entries along `axis`.")
    return np.broadcast_to(zi, (*rows, shape_of(zi)[-1]))


def _sosfilt(means: Means, sos: Array, x: Array, axis: int = -1, zi: Array = None) -> Any:
    fits(len(shape_of(sos)) == 2 and shape_of(sos)[1] == 6, "Sections of second order are rows of six coefficients.")
    found, after = np.moveaxis(_floating(x), axis, -1), []
    for number in range(shape_of(sos)[0]):
        state = None if zi is None else _state(np.moveaxis(zi[number], axis, -1), x, axis, 2)
        found, end = means.lfilter(sos[number, :3], sos[number, 3:], found, state)
        after.append(end)
    found = np.moveaxis(found, -1, axis)
    return found if zi is None else (found, np.stack([np.moveaxis(end, -1, axis) for end in after]))


def _steady(b: Array, a: Array) -> Any:
    """Return the state of a filter whose input has always been 1."""
    n = max(len(shape_of(b)) and shape_of(b)[0], shape_of(a)[0])
    b, a = (np.concatenate([c, np.zeros(n - shape_of(c)[0])]) / a[0] for c in (b, a))
    rest = b[1:] - a[1:] * b[0]
    return np.cumsum(a)[:-1] * (np.sum(rest) / np.sum(a)) - np.concatenate([np.zeros(1), np.cumsum(rest)[:-1]])


def _filtfilt(
    means: Means,
    b: Array,
    a: Array,
    x: Array,
    axis: int = -1,
    padtype: str | None = "odd",
    padlen: int | None = None,
    method: str = "pad",
    irlen: int | None = None,
) -> Any:
    if method != "pad" or irlen is not None:
        raise NotDifferentiableError(refusals.of_option("scipy.signal.filtfilt", [f"method={method!r}"]))
    x = np.moveaxis(_floating(x), axis, -1)
    b, a = _coefficients(b, a, x)
    edge = 3 * max(shape_of(a)[0], shape_of(b)[0]) if padlen is None else padlen
    one_of("padtype", padtype, "even", "odd", "constant", None)
    if padtype is not None:
        fits(
            shape_of(x)[-1] > edge >= 0, f"To be padded by {edge}, as of `padlen`, a signal has to be longer than that."
        )
    if padtype is not None and edge:
        first, last = x[..., :1], x[..., -1:]
        before, behind = x[..., edge:0:-1], x[..., -2 : -(edge + 2) : -1]
        if padtype == "constant":
            before, behind = first * np.ones(edge), last * np.ones(edge)
        elif padtype == "odd":
            before, behind = 2.0 * first - before, 2.0 * last - behind
        x = np.concatenate([before, x, behind], axis=-1)
    steady = _steady(b, a)
    for _ in range(2):
        x = reverse(means.lfilter(b, a, x, steady * x[..., :1])[0], [-1])
    x = x[..., edge : shape_of(x)[-1] - edge] if padtype is not None else x
    return np.moveaxis(x, -1, axis)


# Linear maps along an axis


def _detrend(means: Means, data: Array, axis: int = -1, type: str = "linear", bp: int | Sequence[int] = 0) -> Any:
    del means
    x = np.moveaxis(_floating(data), axis, -1)
    n = shape_of(x)[-1]
    one_of("type", type, "linear", "l", "constant", "c")
    if type in ("constant", "c"):
        return np.moveaxis(x - np.mean(x, axis=-1, keepdims=True), -1, axis)
    fits(np.all(np.ravel(bp) <= n), "Breakpoints lie within the data.")
    cuts = np.unique(np.concatenate([[0], np.ravel(bp), [n]])).astype(int)
    parts = []
    for start, stop in itertools.pairwise(cuts):
        line = np.stack([np.arange(1, stop - start + 1) / (stop - start), np.ones(stop - start)], axis=1)
        lines = np.linalg.qr(line)[0].astype(plain(x).real.dtype)
        part = x[..., start:stop]
        parts.append(part - np.matmul(np.matmul(part, lines), lines.T))
    return np.moveaxis(np.concatenate(parts, axis=-1), -1, axis)


def _hilbert(means: Means, x: Array, N: int | None = None, axis: int = -1) -> Any:
    del means
    n = shape_of(x)[axis] if N is None else N
    fits(n > 0 and plain(x).dtype.kind != "c", "An analytic signal is that of real numbers, of one at least.")
    factor = np.zeros(n, dtype=plain(x).dtype if plain(x).dtype.kind == "f" else float)
    factor[0] = factor[n // 2] = 1.0
    factor[1 : (n + 1) // 2] = 2.0
    return np.moveaxis(np.fft.ifft(np.moveaxis(np.fft.fft(x, n, axis), axis, -1) * factor), -1, axis)


def _savgol_filter(
    means: Means,
    x: Array,
    window_length: int,
    polyorder: int,
    deriv: int = 0,
    delta: float = 1.0,
    axis: int = -1,
    mode: str = "interp",
    cval: float = 0.0,
) -> Any:
    from scipy.signal import savgol_coeffs, savgol_filter

    one_of("mode", mode, "mirror", "constant", "nearest", "wrap", "interp")
    dtype = plain(x).dtype if plain(x).dtype.kind == "f" else np.dtype(float)
    weights = np.asarray(savgol_coeffs(window_length, polyorder, deriv=deriv, delta=delta), dtype=dtype)
    half = window_length // 2
    x = np.moveaxis(_floating(x), axis, -1)
    if mode != "interp":
        wide = extended(x, -1, window_length, window_length, mode, cval)
        start = window_length + half
        return np.moveaxis(means.weigh(weights, wide)[..., start : start + shape_of(x)[-1]], -1, axis)
    fits(window_length <= shape_of(x)[-1], 'In mode "interp", a window is not longer than the data.')
    inner = means.weigh(weights, x)[..., 2 * half : shape_of(x)[-1]]
    ends = savgol_filter(np.eye(window_length), window_length, polyorder, deriv, delta, 0).astype(dtype)
    first = np.matmul(x[..., :window_length], ends[:half].T)
    last = np.matmul(x[..., -window_length:], ends[window_length - half :].T)
    return np.moveaxis(np.concatenate([first, inner, last], axis=-1), -1, axis)


_DEFINITIONS: dict[str, Function] = {
    "convolve": _convolve,
    "correlate": _correlate,
    "fftconvolve": _fftconvolve,
    "oaconvolve": _fftconvolve,
    "convolve2d": _convolve2d,
    "correlate2d": _correlate2d,
    "lfilter": _lfilter,
    "sosfilt": _sosfilt,
    "filtfilt": _filtfilt,
    "detrend": _detrend,
    "hilbert": _hilbert,
    "savgol_filter": _savgol_filter,
}


def by_means(means: Means) -> dict[str, Function]:
    """Return the definitions of functions of scipy.signal, by what an engine has."""
    return {name: functools.partial(each, means) for name, each in _DEFINITIONS.items()}
