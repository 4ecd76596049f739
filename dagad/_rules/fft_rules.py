"""Fourier transforms of real numbers, by those of complex ones: of any length, and with a norm by any name."""

from __future__ import annotations

import functools
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._tracing.rules import Better
from dagad._types import Argnums, Args, Array, Axis, Function, Kwargs, Shape, Value
from dagad._values import pytree

plain = pytree.plain


def _rfft(a: Array, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    whole = anp.moveaxis(anp.fft.fft(a, n, axis, norm), axis, 0)
    return anp.moveaxis(whole[: whole.shape[0] // 2 + 1], 0, axis)


def _irfft(a: Array, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    half = anp.moveaxis(a, axis, 0)
    n = 2 * (half.shape[0] - 1) if n is None else n
    missing = max(n // 2 + 1 - half.shape[0], 0)
    half = anp.concatenate([half, np.zeros((missing, *half.shape[1:]))])[: n // 2 + 1]
    whole = anp.concatenate([half, anp.conj(half[1 : (n + 1) // 2])[::-1]])
    return anp.moveaxis(anp.real(anp.fft.ifft(whole, None, 0, norm)), 0, axis)


def _axes(a: Array, s: Shape, axes: Axis) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return the last axis of a transform with its length, and the others with theirs."""
    axes = range(-len(s if s is not None else np.shape(plain(a))), 0) if axes is None else axes
    lengths = [None] * len(axes) if s is None else s
    return (lengths[-1], axes[-1]), (None if s is None else lengths[:-1], axes[:-1])


_OF_OPPOSITE_SIGN = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


def _rfftn(a: Array, s: Shape = None, axes: Axis = None, norm: str | None = None) -> Any:
    last, others = _axes(a, s, axes)
    return anp.fft.fftn(_rfft(a, *last, norm), *others, norm)


def _irfftn(a: Array, s: Shape = None, axes: Axis = None, norm: str | None = None) -> Any:
    last, others = _axes(a, s, axes)
    return _irfft(anp.fft.ifftn(a, *others, norm), *last, norm)


def _odd_transform(inverse: bool) -> Better:
    """As of autograd 1.9: of real numbers no odd lengths, and no notice of `norm` and `n` by name."""

    def better(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
        del argnums
        given = dict(zip(("a", "n", "axis", "norm"), args, strict=False)) | kwargs
        n, axis = given.get("n", given.get("s")), given.get("axis", given.get("axes"))
        last = -1 if axis is None else np.atleast_1d(axis)[-1]
        own = np.shape(plain(ans if inverse else args[0]))[last]
        n = own if n is None else np.atleast_1d(n)[-1]
        return bool(n % 2 or n != own) or given.get("norm") not in (None, "ortho")

    return better


DEFINED: dict[Any, Function] = {
    np.fft.hfft: lambda a, n=None, axis=-1, norm=None: _irfft(anp.conj(a), n, axis, _OF_OPPOSITE_SIGN[norm]),
    np.fft.ihfft: lambda a, n=None, axis=-1, norm=None: anp.conj(_rfft(a, n, axis, _OF_OPPOSITE_SIGN[norm])),
}
BETTER: dict[Any, tuple[Function, Better]] = {
    np.fft.rfft: (_rfft, _odd_transform(inverse=False)),
    np.fft.irfft: (_irfft, _odd_transform(inverse=True)),
    np.fft.rfft2: (functools.partial(_rfftn, axes=(-2, -1)), _odd_transform(inverse=False)),
    np.fft.irfft2: (functools.partial(_irfftn, axes=(-2, -1)), _odd_transform(inverse=True)),
    np.fft.rfftn: (_rfftn, _odd_transform(inverse=False)),
    np.fft.irfftn: (_irfftn, _odd_transform(inverse=True)),
}
