"""Functions of scipy.signal and scipy.ndimage compiled: convolutions, and filters step by step as scipy runs them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dagad._engines.xla.conversions import as_dtype
from dagad._rules import images, signals
from dagad._rules.signals import Means, shape_of
from dagad._types import Array, Axis, Function


def _alike(*arrays: Any) -> Any:
    dtype = np.result_type(*(each.dtype for each in map(_array, arrays)), np.float32)
    return [as_dtype(_array(each), dtype) for each in arrays]


def _array(x: Array) -> Any:
    return x if hasattr(x, "dtype") else np.asarray(x)


def _convolve(a: Array, b: Array, mode: str, axes: Axis, method: str) -> Any:
    a, b = _alike(a, b)
    if method == "fft":
        return _by_transforms(a, b, mode, axes)
    return _direct(a, b, tuple(n - 1 if mode == "full" else 0 for n in b.shape))


def _direct(a: Array, b: Array, edges: tuple[int, ...]) -> Any:
    """Return sums of products: of complex numbers those of their parts, which XLA has for all devices."""
    if a.dtype.kind == "c":
        parts = [[_direct(x, y, edges) for y in (jnp.real(b), jnp.imag(b))] for x in (jnp.real(a), jnp.imag(a))]
        return jax.lax.complex(parts[0][0] - parts[1][1], parts[0][1] + parts[1][0])
    found = jax.lax.conv_general_dilated(
        a[None, None],
        jnp.flip(b)[None, None],
        (1,) * a.ndim,
        [(edge, edge) for edge in edges],
        precision=jax.lax.Precision.HIGHEST,
    )
    return found[0, 0]


def _by_transforms(a: Array, b: Array, mode: str, axes: Axis) -> Any:
    axes = tuple(range(a.ndim)) if axes is None else axes
    sizes = [a.shape[axis] + b.shape[axis] - 1 for axis in axes]
    there, back = (jnp.fft.fftn, jnp.fft.ifftn) if a.dtype.kind == "c" else (jnp.fft.rfftn, jnp.fft.irfftn)
    found = back(there(a, sizes, axes) * there(b, sizes, axes), sizes, axes)
    if mode == "full":
        return found
    parts = [slice(None)] * a.ndim
    for axis in axes:
        parts[axis] = slice(b.shape[axis] - 1, a.shape[axis])
    return found[tuple(parts)]


def _weigh(b: Array, x: Array) -> Any:
    b, x = _alike(b, x)
    if not x.size:
        return x
    rows = x.reshape(-1, x.shape[-1])
    return _weighed_rows(b, rows).reshape(x.shape)


def _weighed_rows(b: Array, x: Array) -> Any:
    if x.dtype.kind == "c":
        parts = [[_weighed_rows(c, y) for y in (jnp.real(x), jnp.imag(x))] for c in (jnp.real(b), jnp.imag(b))]
        return jax.lax.complex(parts[0][0] - parts[1][1], parts[0][1] + parts[1][0])
    highest = jax.lax.Precision.HIGHEST
    return jax.lax.conv_general_dilated(
        x[:, None], jnp.flip(b)[None, None], (1,), [(b.shape[0] - 1, 0)], precision=highest
    )[:, 0]


@jax.jit
def _filtered(b: Array, a: Array, x: Array, state: Array) -> Any:
    """Filter along the first axis by the transposed direct form, whose rounding is scipy's."""
    wide = (slice(None), *[None] * (x.ndim - 1))

    def step(state: Array, now: Array) -> Any:
        found = b[0] * now + (state[0] if state.shape[0] else 0.0)
        shifted = jnp.concatenate([state[1:], jnp.zeros_like(state[:1])])
        return shifted + now * b[1:][wide] - found * a[1:][wide], found

    return jax.lax.scan(step, state, x)


def _lfilter(b: Array, a: Array, x: Array, state: Array) -> tuple[Any, Any]:
    b, a = b / a[0], a / a[0]
    count = max(shape_of(b)[0], shape_of(a)[0])
    b, a = (jnp.concatenate([c, jnp.zeros(count - shape_of(c)[0], c.dtype)]) for c in (b, a))
    start = np.zeros((*shape_of(x)[:-1], count - 1), x.dtype) if state is None else state
    b, a, x, start = _alike(b, a, x, start)
    after, found = _filtered(b, a, jnp.moveaxis(x, -1, 0), jnp.moveaxis(start, -1, 0))
    return jnp.moveaxis(found, 0, -1), jnp.moveaxis(after, 0, -1)


_MEANS = Means(_convolve, _weigh, _lfilter, lambda x, at: jnp.take(x, at, mode="clip"))
SIGNALS: dict[str, Function] = signals.by_means(_MEANS)
IMAGES: dict[str, Function] = images.by_means(_MEANS)
