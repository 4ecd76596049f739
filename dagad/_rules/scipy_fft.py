"""Fourier, cosine and sine transforms of scipy.fft: what they are by numpy's, for each engine that has those.

The functions that users call ask first who transforms (`scipy.fft.set_backend`). Where that is scipy itself, functions
of the same names do it, and these are what is changed. Those of two dimensions call those of several.
"""

from __future__ import annotations

import operator
from types import ModuleType
from typing import Any

import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._rules.scipy_functions import defined
from dagad._tracing import refusals
from dagad._tracing.by_definition import as_given
from dagad._tracing.patches import Swap
from dagad._types import Array, Axis, Function, Shape
from dagad._values import pytree

plain = pytree.plain
_SWAPPED: dict[Any, Any] = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


def _of_one_axis(function: Function) -> Function:
    def transform(
        x: Array,
        n: int | None = None,
        axis: int = -1,
        norm: str | None = None,
        overwrite_x: bool = False,
        workers: int | None = None,
        *,
        plan: object = None,
    ) -> Any:
        del overwrite_x, workers, plan
        return function(x, n, axis, norm)

    return as_given(transform)


def _sizes(x: Array, s: Shape, axes: Axis) -> tuple[Any, Any]:
    """Return the lengths, if any are given, and the axes of a transform of several dimensions."""
    if axes is not None:
        axes = tuple(map(operator.index, np.atleast_1d(axes)))
    if s is None:
        return None, axes
    s = tuple(map(operator.index, np.atleast_1d(s)))
    axes = tuple(range(np.ndim(plain(x)) - len(s), np.ndim(plain(x)))) if axes is None else axes
    return tuple(np.shape(plain(x))[axis] if n == -1 else n for n, axis in zip(s, axes, strict=True)), axes


def _of_axes(function: Function) -> Function:
    def transform(
        x: Array,
        s: Shape = None,
        axes: Axis = None,
        norm: str | None = None,
        overwrite_x: bool = False,
        workers: int | None = None,
        *,
        plan: object = None,
    ) -> Any:
        del overwrite_x, workers, plan
        return function(x, *_sizes(x, s, axes), norm)

    return as_given(transform)


def _hfftn(x: Array, s: Shape, axes: Axis, norm: str | None) -> Any:
    return np.fft.irfftn(np.conj(x), s, axes, _SWAPPED[norm])


def _ihfftn(x: Array, s: Shape, axes: Axis, norm: str | None) -> Any:
    return np.conj(np.fft.rfftn(x, s, axes, _SWAPPED[norm]))


# Transforms by cosines and sines, along the last axis: parts of Fourier transforms of twice the length


def _turns(angle: Array, x: Array) -> Any:
    """Return exp(-i angle), in the precision of x."""
    return np.exp(-1j * angle).astype(np.result_type(np.complex64, plain(x).dtype))


def _part(z: Array, cosine: bool) -> Any:
    return 2.0 * np.real(z) if cosine else -2.0 * np.imag(z)


def _ends(x: Array, factors: dict[int, float]) -> Any:
    """Return entries of which some are multiplied."""
    factor = np.ones(np.shape(plain(x))[-1], dtype=plain(x).dtype)
    for index, each in factors.items():
        factor[index] *= each
    return x * factor


def _first(x: Array, cosine: bool) -> Any:
    if cosine:
        return np.real(np.fft.rfft(np.concatenate([x, x[..., -2:0:-1]], axis=-1)))
    none = np.zeros_like(plain(x)[..., :1])
    n = np.shape(plain(x))[-1]
    return -np.imag(np.fft.rfft(np.concatenate([none, x, none, -x[..., ::-1]], axis=-1)))[..., 1 : n + 1]


def _second(x: Array, cosine: bool) -> Any:
    n = np.shape(plain(x))[-1]
    k = np.arange(n) + (not cosine)
    found = np.fft.rfft(x, 2 * n)
    found = found[..., :n] if cosine else found[..., 1 : n + 1]
    return _part(found * _turns(np.pi * k / (2 * n), x), cosine)


def _third(x: Array, cosine: bool) -> Any:
    n = np.shape(plain(x))[-1]
    k = np.arange(n) + (not cosine)
    x = _ends(x, {0 if cosine else -1: 0.5}) * _turns(np.pi * k / (2 * n), x)
    if not cosine:
        x = np.concatenate([np.zeros_like(plain(x)[..., :1]), x], axis=-1)
    return _part(np.fft.fft(x, 2 * n)[..., :n], cosine)


def _fourth(x: Array, cosine: bool) -> Any:
    n = np.shape(plain(x))[-1]
    k = np.arange(n)
    found = np.fft.fft(x * _turns(np.pi * k / (2 * n), x), 2 * n)[..., :n]
    return _part(found * _turns(np.pi * (2 * k + 1) / (4 * n), x), cosine)


_TYPES = {1: _first, 2: _second, 3: _third, 4: _fourth}


def _sized(x: Array, n: int | None) -> Any:
    own = np.shape(plain(x))[-1]
    if n is None or n == own:
        return x
    more = np.zeros((*np.shape(plain(x))[:-1], max(n - own, 0)), dtype=plain(x).dtype)
    return x[..., :n] if n < own else np.concatenate([x, more], axis=-1)


def _by_waves(x: Array, cosine: bool, forward: bool, type: int, norm: str | None, orthogonal: bool) -> Any:
    n = np.shape(plain(x))[-1]
    type = type if forward else {2: 3, 3: 2}.get(type, type)
    end, root = 0 if cosine else -1, np.sqrt(2.0)
    if orthogonal and type == 1 and cosine:
        x = _ends(x, {0: root, -1: root})
    if orthogonal and type == 3:
        x = _ends(x, {end: root})
    found = _TYPES[type](x, cosine)
    if orthogonal and type == 1 and cosine:
        found = _ends(found, {0: 1 / root, -1: 1 / root})
    if orthogonal and type == 2:
        found = _ends(found, {end: 1 / root})
    length = 2 * (n - 1 if cosine else n + 1) if type == 1 else 2 * n
    if norm == "ortho":
        return found / np.sqrt(length).astype(plain(x).dtype)
    return found / length if (norm == "forward") == forward else found


def _waves(x: Array, along: Array, name: str, options: tuple[Any, ...]) -> Any:
    """Return a transform along some axes with their lengths, one after the other."""
    type, norm, orthogonal = options
    if type not in _TYPES or norm not in _SWAPPED:  # where scipy is not asked
        raise ValueError(f"`scipy.fft.{name}` has no `type={type!r}` or no `norm={norm!r}`.")
    if plain(x).dtype.kind == "c":
        if orthogonal is not None:  # which scipy takes no notice of, then
            raise NotDifferentiableError(refusals.of_option(f"scipy.fft.{name}", ["orthogonalize"]))
        return _waves(np.real(x), along, name, options) + 1j * _waves(np.imag(x), along, name, options)
    if plain(x).dtype.kind != "f":
        x = x * 1.0
    orthogonal = norm == "ortho" if orthogonal is None else orthogonal
    for n, axis in along:
        last = _sized(np.moveaxis(x, axis, -1), n)
        found = _by_waves(last, "dc" in name, not name.startswith("i"), type, norm, orthogonal)
        x = np.moveaxis(found, -1, axis)
    return x


def _wave_of_one_axis(name: str) -> Function:
    def transform(
        x: Array,
        type: int = 2,
        n: int | None = None,
        axis: int = -1,
        norm: str | None = None,
        overwrite_x: bool = False,
        workers: int | None = None,
        orthogonalize: bool | None = None,
    ) -> Any:
        del overwrite_x, workers
        return _waves(x, [(n, axis)], name, (type, norm, orthogonalize))

    return as_given(transform)


def _wave_of_axes(name: str) -> Function:
    def transform(
        x: Array,
        type: int = 2,
        s: Shape = None,
        axes: Axis = None,
        norm: str | None = None,
        overwrite_x: bool = False,
        workers: int | None = None,
        orthogonalize: bool | None = None,
    ) -> Any:
        del overwrite_x, workers
        s, axes = _sizes(x, s, axes)
        axes = tuple(range(np.ndim(plain(x)))) if axes is None else axes
        along = [*zip([None] * len(axes) if s is None else s, axes, strict=True)]
        return _waves(x, along, name, (type, norm, orthogonalize))

    return as_given(transform)


FOURIER: dict[str, Function] = {
    **{name: _of_one_axis(getattr(np.fft, name)) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{name: _of_axes(getattr(np.fft, name)) for name in ("fftn", "ifftn", "rfftn", "irfftn")},
    "hfftn": _of_axes(_hfftn),
    "ihfftn": _of_axes(_ihfftn),
}
WAVES: dict[str, Function] = {
    **{name: _wave_of_one_axis(name) for name in ("dct", "idct", "dst", "idst")},
    **{name: _wave_of_axes(name) for name in ("dctn", "idctn", "dstn", "idstn")},
}


def of_transforms(fft: ModuleType) -> list[Swap]:
    """Return the swaps for `scipy.fft`."""
    tables = [(fft._basic_backend, FOURIER), (fft._realtransforms_backend, WAVES)]
    return [
        defined(getattr(module, name), definition)
        for module, table in tables
        for name, definition in table.items()
        if hasattr(module, name)
    ]
