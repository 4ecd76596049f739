"""Functions of numpy's that are not simply those of the same name in jax.numpy, or that jax can't have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dagad._engines.xla import corners, refusals, vectors
from dagad._engines.xla.choices import apply_along_axis, apply_over_axes, choose, piecewise, select, where
from dagad._engines.xla.conversions import as_dtype
from dagad._engines.xla.histograms import histogram, histogram2d, histogramdd
from dagad._engines.xla.indexing import compress, delete, extract, insert, moving, repeat, take, take_along_axis, wide
from dagad._engines.xla.matrices import cholesky, double, eigh, eigvalsh, floating, norm_of, of_hermitian, triangle_by
from dagad._engines.xla.missing import beyond, note_beyond
from dagad._engines.xla.orders import interp, quantiles, sorting
from dagad._engines.xla.protocols import (
    WRITTEN as WRITTEN,
    Called,
    array_of,
    common_dtype,
    public_name,
    stand_in,
)
from dagad._engines.xla.special import power
from dagad._errors import NotDifferentiableError
from dagad._types import Array, Axis, DType, Function, Shape, Tree

# Of several arrays


def _joined(function: Function) -> Function:
    def join(arrays: Tree, *args: Any, dtype: DType = None, casting: Any = "same_kind", **kwargs: Any) -> Any:
        if isinstance(arrays, list | tuple):
            arrays = [array_of(each) for each in arrays]
            arrays = [each if hasattr(each, "dtype") else np.asarray(each) for each in arrays]
            common = common_dtype(arrays)
            dtype = common if dtype is None else np.dtype(dtype)
            if not np.can_cast(common, dtype, casting):
                raise TypeError(
                    f"Cannot cast array data from {common!r} to {dtype!r} according to the rule '{casting}'"
                )
            arrays = [as_dtype(each, dtype) for each in arrays]
        if kwargs.pop("out", None) is not None:
            raise NotDifferentiableError(refusals.of_out(f"np.{function.__name__}"))
        return function(arrays, *args, **kwargs)

    return functools.wraps(function)(join)


def _block(arrays: Tree) -> Any:
    leaves, treedef = jax.tree.flatten(arrays)
    dtype = common_dtype(leaves)
    return jnp.block(jax.tree.unflatten(treedef, [as_dtype(leaf, dtype) for leaf in leaves]))


def _append(arr: Array, values: Array, axis: Axis = None) -> Any:
    return _joined(jnp.concatenate)(
        [np.ravel(arr), np.ravel(array_of(values))] if axis is None else [arr, values], axis or 0
    )


def _einsum(
    *operands: Any, optimize: object = False, dtype: DType = None, casting: Any = "safe", order: str = "K"
) -> Any:
    del order
    first, rest = ((operands[0],), operands[1:]) if isinstance(operands[0], str) else ((), operands)
    arrays = [array_of(each) for each in (rest if first else rest[0 : len(rest) - len(rest) % 2 : 2])]
    common = common_dtype(arrays)
    own = common if dtype is None else np.dtype(dtype)
    if not np.can_cast(common, own, casting):
        raise TypeError(f"Cannot cast array data from {common!r} to {own!r} according to the rule '{casting}'")
    arrays = [as_dtype(each, own) for each in arrays]
    if not first:
        marks = list(rest[1::2]) + ([rest[-1]] if len(rest) % 2 else [])
        mixed = [part for pair in zip(arrays, marks, strict=False) for part in pair]
        return jnp.einsum(*mixed, *marks[len(arrays) :])
    optimize = optimize if isinstance(optimize, bool | str) else True
    return jnp.einsum(*first, *arrays, optimize=optimize or "optimal")


# Of one array


def _astype(x: Array, dtype: DType, *, copy: bool = True, device: object = None) -> Any:
    del copy, device
    dtype = np.dtype(dtype)
    if x.dtype.kind == "c" and dtype.kind in "fiu":
        x = jnp.real(x)
    return as_dtype(x, dtype)


def _asarray(a: Array, dtype: DType = None, **options: Any) -> Any:
    del options
    found = array_of(a)
    return found if dtype is None else _astype(found, dtype)


def _clip(
    a: Array, a_min: Array = None, a_max: Array = None, out: object = None, *, min: Array = None, max: Array = None
) -> Any:
    if out is not None:
        raise NotDifferentiableError(refusals.of_out("np.clip"))
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    a = array_of(a)
    if getattr(a, "dtype", np.dtype(float)).kind in "iu":  # numbers of Python's that bound nothing need not fit
        bounds = np.iinfo(a.dtype)
        low = None if type(low) is int and low <= bounds.min else low
        high = None if type(high) is int and high >= bounds.max else high
    kind = common_dtype([each for each in (a, low, high) if each is not None])
    if np.dtype(kind).kind == "f":
        return corners.between(a, low, high, kind)
    found = a if low is None else np.maximum(a, low)
    return found if high is None else np.minimum(found, high)


def _unwrap(p: Array, discont: float | None = None, axis: int = -1, *, period: float = 2.0 * np.pi) -> Any:
    return corners.unwrap(floating(p), discont, axis, period=period)


def _nan_to_num(x: Array, copy: bool = True, nan: Array = 0.0, posinf: Array = None, neginf: Array = None) -> Any:
    if not copy:
        raise NotDifferentiableError(refusals.of_out("np.nan_to_num"))
    return Called(np.nan_to_num)(x, True, nan, posinf, neginf)


def _full_like(
    a: Array, fill_value: Array, dtype: DType = None, order: str = "K", subok: bool = True, shape: Shape = None
) -> Any:
    del order, subok
    own = np.dtype(a.dtype if dtype is None else dtype)
    shape = a.shape if shape is None else shape
    if not isinstance(fill_value, jax.Array):
        return np.full(shape, fill_value, own)
    return jnp.broadcast_to(_astype(fill_value, own), shape)


def _like(make: Function) -> Function:
    def made(
        a: Array, dtype: DType = None, order: str = "K", subok: bool = True, shape: Shape = None, **rest: Any
    ) -> Any:
        del order, subok, rest
        return make(a.shape if shape is None else shape, a.dtype if dtype is None else dtype)

    return made


def _bincount(x: Array, /, weights: Array = None, minlength: int = 0) -> Any:
    """Count up to `minlength`, which numpy takes for a lower bound; a group beyond makes the function's result nan."""
    if not isinstance(x, jax.Array):
        if np.any(np.less(x, 0)):
            raise ValueError("'list' argument must have no negative elements")
        minlength = max(minlength, int(np.max(np.asarray(x), initial=-1)) + 1)
    elif not minlength:
        remedy = "`np.bincount(group, weights=x, minlength=n_groups)` says how many groups there are"
        raise NotDifferentiableError(refusals.of_shape("np.bincount", remedy))
    if weights is not None:
        weights = as_dtype(array_of(weights), np.float64)
    group = wide(jnp.asarray(x))
    found = jnp.bincount(group, weights=weights, length=minlength)
    if not isinstance(x, jax.Array):
        return found
    is_beyond = note_beyond(group, minlength, 0)
    return jnp.where(is_beyond, np.asarray(beyond(found.dtype), found.dtype), found)


def _ravel(a: Array, order: str = "C") -> Any:
    if order in ("A", "K") and a.ndim > 1:
        raise NotDifferentiableError(refusals.of_option("np.ravel", [f"order={order!r}"]))
    return jnp.ravel(a, order=order if order == "F" else "C")


def _reshape(a: Array, /, shape: Shape = None, order: str = "C", *, copy: bool | None = None) -> Any:
    del copy
    if order == "A" and a.ndim > 1:
        raise NotDifferentiableError(refusals.of_option("np.reshape", ["order='A'"]))
    return jnp.reshape(a, shape, order=order)


def _round(a: Array, decimals: int = 0, out: object = None) -> Any:
    if out is not None:
        raise NotDifferentiableError(refusals.of_out("np.round"))
    if decimals < 0 and a.dtype.kind in "iu":
        raise NotDifferentiableError(
            refusals.of_option("np.round", [f"decimals={decimals}` of whole numbers, `{a.dtype}"])
        )
    return jnp.round(a, decimals)


def _divmod(x: Array, y: Array) -> tuple[Any, Any]:
    return jnp.floor_divide(x, y), corners.remainder(x, y)


def _divided(function: Function) -> Function:
    """Return a division of whole numbers that gives zero where it is by zero, as numpy's."""

    def divided(x: Array, y: Array) -> Any:
        if jnp.result_type(x, y).kind not in "iu":
            return function(x, y)
        if not isinstance(y, jax.Array) and np.all(y):
            return function(x, y)
        by_zero = jnp.equal(y, 0)
        found = function(x, jnp.where(by_zero, 1, y))
        return jax.tree.map(lambda part: jnp.where(by_zero, 0, part), found)

    return divided


def _vander(x: Array, N: int | None = None, increasing: bool = False) -> Any:
    x = array_of(x)
    dtype = np.promote_types(x.dtype, int) if x.dtype.kind in "iub" else x.dtype
    if x.ndim != 1 or x.dtype.kind != "f":
        return jnp.vander(as_dtype(x, dtype), N, increasing)
    exponents = np.arange(len(x) if N is None else N)
    return power(jnp.asarray(x)[:, None], exponents if increasing else exponents[::-1])


def _gradient(f: Array, *varargs: Any, axis: Axis = None, edge_order: int = 1) -> Any:
    if edge_order != 1:
        raise NotDifferentiableError(refusals.of_option("np.gradient", [f"edge_order={edge_order}"]))
    if f.dtype == bool:
        raise TypeError("numpy boolean subtract, the `-` operator, is not supported")
    return jnp.gradient(floating(f), *map(array_of, varargs), axis=axis)


def _ediff1d(ary: Array, to_end: Array = None, to_begin: Array = None) -> Any:
    ary = array_of(ary)
    ends = [each if each is None or isinstance(each, jax.Array) else np.asarray(each) for each in (to_end, to_begin)]
    for name, each in zip(("to_end", "to_begin"), ends, strict=True):
        if each is not None and not np.can_cast(each.dtype, ary.dtype, "same_kind"):
            raise TypeError(f"dtype of `{name}` must be compatible with input `ary` under the `same_kind` rule.")
    return jnp.ediff1d(ary, *(each if each is None else as_dtype(each, ary.dtype) for each in ends))


def _masked(function: Function) -> Function:
    """Return a function that does not look at entries that are left out: nan there has nan as derivative."""

    def masked(a: Array, *args: Any, where: Array = True, **kwargs: Any) -> Any:
        if where is True:
            return Called(getattr(np, function.__name__), function)(a, *args, **kwargs)
        a = jnp.where(where, floating(a), 0.0)
        return Called(getattr(np, function.__name__), function)(a, *args, where=where, **kwargs)

    return functools.wraps(function)(masked)


def _of_truths(function: Function) -> Function:
    """Return a function of truths: of complex numbers jax looks at the real part."""

    def truths(a: Array, *args: Any, **kwargs: Any) -> Any:
        a = array_of(a)
        return Called(function)(np.not_equal(a, 0) if a.dtype.kind == "c" else a, *args, **kwargs)

    return functools.wraps(function)(truths)


def _index_of(function: Function) -> Function:
    def index(a: Array, *args: Any, **kwargs: Any) -> Any:
        if array_of(a).dtype.kind == "c":
            raise NotDifferentiableError(refusals.of_function(public_name(function), " of complex numbers"))
        return Called(function)(a, *args, **kwargs)

    return functools.wraps(function)(index)


def _real_if_close(a: Array, tol: float = 100.0) -> Any:
    del tol
    if a.dtype.kind == "c":
        raise NotDifferentiableError(refusals.of_function("np.real_if_close", " of complex numbers"))
    return a


# What jax can't have


def _of_shapes(name: str, remedy: str = "`np.where(mask, x, 0.0)` does") -> Function:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotDifferentiableError(refusals.of_shape(name, remedy))

    return refuse


def _refused(sentence: Callable[[], str]) -> Function:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotDifferentiableError(sentence())

    return refuse


def _missing(func: Function, why: str = "") -> Function:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotDifferentiableError(refusals.of_function(public_name(func), why))

    return refuse


def asked_of_shapes(func: Function) -> Function:
    """Return a function that asks for shapes and dtypes only, and is numpy's own."""

    def answered(*args: Any, **kwargs: Any) -> Any:
        leaves, treedef = jax.tree.flatten((args, kwargs), is_leaf=lambda leaf: leaf is None)
        leaves = [stand_in(leaf) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
        args, kwargs = jax.tree.unflatten(treedef, leaves)
        return func(*args, **kwargs)

    return answered


_OF_SHAPES = """
shape ndim size result_type iscomplexobj isrealobj common_type may_share_memory shares_memory can_cast
min_scalar_type einsum_path tril_indices_from triu_indices_from diag_indices_from
""".split()


WRITTEN.update({getattr(np, name): asked_of_shapes(getattr(np, name)) for name in _OF_SHAPES})
WRITTEN.update(
    {
        getattr(np, name): _joined(getattr(jnp, name))
        for name in ("concatenate", "stack", "vstack", "hstack", "dstack", "column_stack")
    }
)
WRITTEN.update(
    {
        np.block: _block,
        np.append: _append,
        np.where: where,
        np.select: select,
        np.take: take,
        np.take_along_axis: take_along_axis,
        np.delete: delete,
        np.insert: insert,
        np.floor_divide: _divided(jnp.floor_divide),
        np.remainder: _divided(corners.remainder),
        np.fmod: _divided(corners.fmod),
        np.divmod: _divided(_divmod),
        np.vander: _vander,
        np.gradient: _gradient,
        np.ediff1d: _ediff1d,
        np.choose: choose,
        np.piecewise: piecewise,
        np.apply_along_axis: apply_along_axis,
        np.apply_over_axes: apply_over_axes,
        np.einsum: _einsum,
        np.astype: _astype,
        np.array: _asarray,
        np.asarray: _asarray,
        np.asanyarray: _asarray,
        np.copy: lambda a, order="K", subok=False: a,
        np.clip: _clip,
        np.repeat: repeat,
        np.nan_to_num: _nan_to_num,
        np.quantile: quantiles(np.quantile, 1.0),
        np.nanquantile: quantiles(np.nanquantile, 1.0),
        np.percentile: quantiles(np.percentile, 100.0),
        np.nanpercentile: quantiles(np.nanpercentile, 100.0),
        np.interp: interp,
        np.polyder: lambda p, m=1: jnp.polyder(as_dtype(array_of(p), common_dtype([array_of(p), np.arange(1)])), m),
        np.polyint: lambda p, m=1, k=None: jnp.polyint(double(p), m, None if k is None else double(k)),
        np.full_like: _full_like,
        np.zeros_like: _like(np.zeros),
        np.ones_like: _like(np.ones),
        np.empty_like: _like(np.zeros),
        np.bincount: _bincount,
        np.histogram: histogram,
        np.histogramdd: histogramdd,
        np.histogram2d: histogram2d,
        np.absolute: corners.absolute,
        np.fabs: corners.absolute,
        np.sign: corners.sign,
        np.arccosh: corners.arccosh,
        np.fmax: corners.fmax,
        np.fmin: corners.fmin,
        np.copysign: corners.copysign,
        np.ldexp: corners.ldexp,
        np.sinc: lambda x: corners.sinc(floating(x)),
        np.log: vectors.log,
        np.log1p: vectors.log1p,
        np.expm1: lambda x: corners.expm1(floating(x)),
        np.logaddexp: corners.logaddexp,
        np.logaddexp2: corners.logaddexp2,
        np.modf: corners.modf,
        np.unwrap: _unwrap,
        np.power: power,
        np.float_power: power,
        np.nextafter: corners.nextafter,
        np.spacing: lambda x: jnp.spacing(jax.lax.stop_gradient(x)),
        np.ravel: _ravel,
        np.reshape: _reshape,
        np.round: _round,
        np.real_if_close: _real_if_close,
        np.linalg.cholesky: cholesky,
        np.linalg.eigh: eigh,
        np.linalg.svd: of_hermitian(np.linalg.svd),
        np.linalg.pinv: of_hermitian(np.linalg.pinv),
        np.linalg.eigvalsh: eigvalsh,
        np.compress: compress,
        np.extract: extract,
        np.broadcast_arrays: lambda *args, subok=False: tuple(jnp.broadcast_arrays(*map(array_of, args))),
        np.meshgrid: lambda *xi, copy=True, **how: tuple(jnp.meshgrid(*map(array_of, xi), **how)),
        np.all: _of_truths(np.all),
        np.any: _of_truths(np.any),
        np.argmax: _index_of(np.argmax),
        np.argmin: _index_of(np.argmin),
        np.nanargmax: _index_of(np.nanargmax),
        np.nanargmin: _index_of(np.nanargmin),
        np.sort: sorting(np.sort),
        np.argsort: sorting(np.argsort),
        np.triu: triangle_by(jnp.triu),
        np.tril: triangle_by(jnp.tril),
        np.linalg.norm: norm_of(np.linalg.norm),
        np.linalg.vector_norm: norm_of(np.linalg.vector_norm),
        np.linalg.matrix_norm: norm_of(np.linalg.matrix_norm),
        np.var: _masked(jnp.var),
        np.std: _masked(jnp.std),
        np.amax: Called(np.max),
        np.amin: Called(np.min),
        np.partition: _missing(np.partition, ", the order of whose parts is numpy's own: `np.sort` has one"),
        np.argpartition: _missing(np.argpartition, ", the order of whose parts is numpy's own: `np.argsort` has one"),
        np.lib.stride_tricks.sliding_window_view: moving(np.lib.stride_tricks.sliding_window_view),
    }
)
WRITTEN.update(
    {
        getattr(np, name): _of_shapes(f"np.{name}")
        for name in "nonzero flatnonzero argwhere unique unique_all unique_counts unique_inverse unique_values".split()
    }
)
WRITTEN[np.polydiv] = _of_shapes("np.polydiv")  # its rest has no zeros in front
WRITTEN.update(
    {
        func: _refused(refusals.of_assignment)
        for func in (np.copyto, np.put, np.place, np.putmask, np.fill_diagonal, np.put_along_axis)
    }
)
