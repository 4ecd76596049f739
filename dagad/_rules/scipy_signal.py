"""Functions of scipy.signal as traced arrays meet them, made of a few that are closed under transposes.

The transpose of a filter is the filter in reversed time, and its
slopes in the coefficients are correlations with what was filtered; so no derivative runs a loop of Python's over time.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

import numpy as np

from dagad._rules import images
from dagad._rules.scipy_functions import defined, stock
from dagad._rules.signals import Means, by_means, reverse, shape_of
from dagad._tracing.by_definition import as_given
from dagad._tracing.operands import array_of
from dagad._tracing.patches import Swap
from dagad._tracing.rules import own_primitive, shaped
from dagad._types import Argnums, Args, Array, Axis, Function, Kwargs, Tangents, Value
from dagad._values import pytree

plain = pytree.plain


@functools.cache
def _own(name: str) -> Any:
    """Return a function of scipy.signal's with its own code.

    Filters of scipy.ndimage need them, too, but only where they are differentiated: scipy.stats imports scipy.ndimage,
    and nobody is to get scipy.signal by that.
    """
    import scipy.signal

    return stock(getattr(scipy.signal, name))


def _bilinear(raw: Function, *transposes: Function) -> Any:
    """Return a function that is linear in each of its first two arguments as a primitive, by its two transposes."""

    def vjp(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Function:
        del ans, kwargs
        return lambda g: tuple(shaped(transposes[at](g, *args), args[at]) for at in argnums)

    def jvp(argnums: Argnums, tangents: Tangents, ans: Value, args: Args, kwargs: Kwargs) -> Any:
        del ans, kwargs
        parts = [made(*args[:at], tangent, *args[at + 1 :]) for at, tangent in zip(argnums, tangents, strict=True)]
        return sum(parts[1:], parts[0])

    made = own_primitive(raw, vjp, jvp)
    return made


# Convolutions


def _convolved(a: Array, b: Array, mode: str, axes: Axis, method: str) -> Any:
    return _own("convolve")(a, b, mode, method) if axes is None else _own("fftconvolve")(a, b, mode, axes)


def _to_first(g: Array, a: Array, b: Array, mode: str, axes: Axis, method: str) -> Any:
    return convolve(g, reverse(b, axes), "valid" if mode == "full" else "full", axes, method)


def _to_second(g: Array, a: Array, b: Array, mode: str, axes: Axis, method: str) -> Any:
    if mode == "full":
        return convolve(g, reverse(a, axes), "valid", axes, method)
    return reverse(convolve(a, reverse(g, axes), "valid", axes, method), axes)


convolve = _bilinear(_convolved, _to_first, _to_second)


# Filters along the last axis, with one-dimensional coefficients


def _weighed(b: Array, x: Array) -> Any:
    n = x.shape[-1]
    if x.ndim == 1 and n and len(b):
        return np.convolve(b, x)[:n]
    out = np.zeros(x.shape, dtype=np.result_type(b, x))
    for k in range(min(len(b), n)):
        out[..., k:] += b[k] * x[..., : n - k]
    return out


def _lagged(g: Array, x: Array, count: int) -> Any:
    """Return the sums of products of g with x delayed by 0, 1, 2 and so on."""
    n = x.shape[-1]
    sums = [np.sum(g[..., k:] * x[..., : n - k]) for k in range(min(count, n))]
    return np.array(sums + [0.0] * (count - len(sums)), dtype=np.result_type(g, x))


def _back(b: Array, g: Array) -> Any:
    return reverse(weigh(b, reverse(g, [-1])), [-1])


weigh = _bilinear(_weighed, lambda g, b, x: lagged(g, x, shape_of(b)[0]), lambda g, b, x: _back(b, g))
lagged: Any = _bilinear(_lagged, lambda c, g, x, count: weigh(c, x), lambda c, g, x, count: _back(c, g))


def _recursive(a: Array, u: Array) -> Any:
    """Return the y with sum of ``a[k] * y[n - k]`` = u[n], where a[0] is 1."""
    return _own("lfilter")(np.ones(1, dtype=a.dtype), a, u)


def _vjp_recursive(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Function:
    del kwargs
    a = args[0]

    def pullback(g: Array) -> tuple[Any, ...]:
        to_input = reverse(recursive(a, reverse(g, [-1])), [-1])
        return tuple(shaped(to_input if at else -lagged(to_input, ans, shape_of(a)[0]), args[at]) for at in argnums)

    return pullback


def _jvp_recursive(argnums: Argnums, tangents: Tangents, ans: Value, args: Args, kwargs: Kwargs) -> Any:
    del kwargs
    parts = [tangent if at else -weigh(tangent, ans) for at, tangent in zip(argnums, tangents, strict=True)]
    return recursive(args[0], sum(parts[1:], parts[0]))


recursive: Any = own_primitive(_recursive, _vjp_recursive, _jvp_recursive)


def _beyond(b: Array, x: Array, count: int) -> Any:
    """Return what the last entries of x give where time goes on without input."""
    tail = x[..., max(shape_of(x)[-1] - count, 0) :]
    more = np.zeros((*shape_of(tail)[:-1], count), dtype=plain(tail).dtype)
    return weigh(b, np.concatenate([tail, more], axis=-1))[..., shape_of(tail)[-1] :]


def lfilter(b: Array, a: Array, x: Array, state: Array) -> tuple[Any, Any]:
    """Filter along the last axis: a state is what later outputs get without further input."""
    b, a = b / a[0], a / a[0]
    count, n = max(shape_of(b)[0], shape_of(a)[0]) - 1, shape_of(x)[-1]
    found = weigh(b, x)
    if state is not None:
        more = np.zeros((*shape_of(x)[:-1], max(n - count, 0)), dtype=plain(x).dtype)
        found = found + np.concatenate([state, more], axis=-1)[..., :n]
    found = recursive(a, found) if shape_of(a)[0] > 1 else found
    if state is None:
        return found, None
    rest = np.zeros((*shape_of(x)[:-1], min(n, count)), dtype=plain(x).dtype)
    after = np.concatenate([state[..., min(n, count) :], rest], axis=-1)
    return found, after + _beyond(b, x, count) - _beyond(a, found, count)


MEANS = Means(convolve, weigh, lfilter, lambda x, at: x[plain(at)])


def of_images(ndimage: ModuleType) -> list[Swap]:
    """Return the swaps for `scipy.ndimage`, whose filters are made of the same few."""

    def look(name: str) -> Function:
        signature = inspect.signature(getattr(ndimage, name))

        def refuse(*args: Any, **kwargs: Any) -> None:
            """Refuse before an array is written into, from which somebody may go on without derivatives."""
            given = signature.bind(*args, **kwargs).arguments
            images.checked(
                name, array_of(given["input"]), given.get("output"), given.get("cval", 0.0), given.get("weights")
            )

        return refuse

    every = images.by_means(MEANS).items()
    return [defined(getattr(ndimage, name), as_given(each), look(name)) for name, each in every]


def of_signals(signal: ModuleType) -> list[Swap]:
    """Return the swaps for `scipy.signal`."""
    for name in ("convolve", "fftconvolve", "lfilter"):  # before there is other code in them
        _own(name)
    return [defined(getattr(signal, name), as_given(each)) for name, each in by_means(MEANS).items()]
