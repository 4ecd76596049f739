"""Sums, means, products, orders and quantiles: their definitions, and where autograd's own rules for them are wrong."""

from __future__ import annotations

import functools
import math
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._tracing.by_definition import as_gather, rules_of
from dagad._tracing.numpy_protocols import WRITTEN
from dagad._tracing.private import isbox
from dagad._tracing.rules import Better, own_primitive
from dagad._types import Argnums, Args, Array, Axis, DType, Function, Kwargs, Shape, Value
from dagad._values import pytree

plain = pytree.plain


# Sums, means, products: of some entries only, from a start, or with other options that autograd's rules know nothing of

_ALL: Any = np._NoValue


def _keeps(keepdims: object) -> bool:
    return keepdims is not _ALL and bool(keepdims)


def _is_float(dtype: DType) -> bool:
    return dtype is not None and dtype is not _ALL and np.dtype(dtype).kind == "f"


def _present(a: Array, where: Array, fill: float) -> Any:
    return a if where is True or where is _ALL else anp.where(where, a, fill)


def _n_present(a: Array, axis: Axis, keepdims: object, where: Array) -> Any:
    shape = np.shape(plain(a))
    return np.sum(np.broadcast_to(True if where is _ALL else where, shape), axis=axis, keepdims=_keeps(keepdims))


def _sum(
    a: Array,
    axis: Axis = None,
    dtype: DType = None,
    out: object = None,
    keepdims: object = False,
    initial: Array = 0,
    where: Array = True,
) -> Any:
    del dtype, out
    found = anp.sum(_present(a, where, 0.0), axis=axis, keepdims=_keeps(keepdims))
    return found if initial is _ALL else found + initial


def _mean(
    a: Array,
    axis: Axis = None,
    dtype: DType = None,
    out: object = None,
    keepdims: object = False,
    *,
    where: Array = True,
) -> Any:
    del dtype, out
    return _sum(a, axis, keepdims=keepdims, where=where) / _n_present(a, axis, keepdims, where)


def _var(
    a: Array,
    axis: Axis = None,
    dtype: DType = None,
    out: object = None,
    ddof: float = 0,
    keepdims: object = False,
    *,
    where: Array = True,
    correction: object = _ALL,
) -> Any:
    del out
    middle = _mean(a, axis, keepdims=True, where=where)
    if _is_float(dtype):
        middle = anp.real(middle)  # numpy forgets the rest, of the mean only
    deviations = _present(a - middle, where, 0.0)
    free = _n_present(a, axis, keepdims, where) - (ddof if correction is _ALL else correction)
    return _sum(anp.real(deviations * anp.conj(deviations)), axis, keepdims=keepdims) / free


def _std(a: Array, *args: Any, **kwargs: Any) -> Any:
    return anp.sqrt(_var(a, *args, **kwargs))


def _extreme(fun: Function, pair: Function, fill: float) -> Function:
    def definition(
        a: Array,
        axis: Axis = None,
        out: object = None,
        keepdims: object = False,
        initial: Array = _ALL,
        where: Array = True,
    ) -> Any:
        del out
        found = fun(_present(a, where, fill), axis=axis, keepdims=_keeps(keepdims))
        return found if initial is _ALL else pair(found, initial)

    return definition


def _without_nan(fun: Function, fill: float) -> Function:
    def definition(a: Array, axis: Axis = None, **kwargs: Any) -> Any:
        return fun(anp.where(np.isnan(plain(a)), fill, a), axis=axis, **kwargs)

    return definition


def _count(a: Array, axis: Axis, keepdims: bool = False) -> Any:
    return np.sum(~np.isnan(plain(a)), axis=axis, keepdims=keepdims)


def _nanmean(a: Array, axis: Axis = None, keepdims: bool = False) -> Any:
    return anp.sum(anp.where(np.isnan(plain(a)), 0.0, a), axis=axis, keepdims=keepdims) / _count(a, axis, keepdims)


def _nanvar(a: Array, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> Any:
    deviations = anp.where(np.isnan(plain(a)), 0.0, a - _nanmean(a, axis, keepdims=True))
    return anp.sum(anp.real(deviations * anp.conj(deviations)), axis=axis, keepdims=keepdims) / (
        _count(a, axis, keepdims) - ddof
    )


def _nanstd(a: Array, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> Any:
    return anp.sqrt(_nanvar(a, axis, ddof, keepdims))


def _ptp(a: Array, axis: Axis = None, keepdims: bool = False) -> Any:
    return anp.max(a, axis=axis, keepdims=keepdims) - anp.min(a, axis=axis, keepdims=keepdims)


def _average(a: Array, axis: Axis = None, weights: Array = None, *, keepdims: bool = False) -> Any:
    if weights is None:
        return anp.mean(a, axis=axis, keepdims=keepdims)
    if np.shape(plain(weights)) != np.shape(plain(a)):
        axes = [each % np.ndim(plain(a)) for each in np.atleast_1d(axis)]
        rest = tuple(each for each in range(np.ndim(plain(a))) if each not in axes)
        weights = anp.expand_dims(anp.transpose(weights, np.argsort(axes)), rest)
    total = anp.sum(weights * np.ones(np.shape(plain(a))), axis=axis, keepdims=keepdims)
    return anp.sum(a * weights, axis=axis, keepdims=keepdims) / total


def cumprod(a: Array, axis: Axis = None) -> Any:
    """Return the products so far: by logarithms, or step by step where a factor is zero."""
    rows = anp.ravel(a) if axis is None else anp.moveaxis(a, axis, 0)
    if np.all(plain(rows)) and not np.iscomplexobj(plain(rows)):
        found = np.cumprod(np.sign(plain(rows)), 0) * anp.exp(anp.cumsum(anp.log(anp.abs(rows)), 0))
        return anp.moveaxis(found, 0, axis or 0)
    steps = [rows[0]]
    for index in range(1, rows.shape[0]):
        steps.append(steps[-1] * rows[index])
    return anp.moveaxis(anp.stack(steps), 0, axis or 0)


def _prod(
    a: Array,
    axis: Axis = None,
    dtype: DType = None,
    out: object = None,
    keepdims: object = False,
    initial: Array = 1,
    where: Array = True,
) -> Any:
    del out
    if _is_float(dtype):
        a = anp.real(a)  # before they are multiplied
    n_dims = np.ndim(plain(a))
    axes = tuple(range(n_dims)) if axis is None else tuple(each % n_dims for each in np.atleast_1d(axis))
    rows = anp.moveaxis(_present(a, where, 1.0), axes, tuple(range(len(axes))))
    shape = np.shape(plain(rows))
    rows = anp.reshape(rows, (math.prod(shape[: len(axes)]), *shape[len(axes) :]))
    factors = [rows[index] for index in range(rows.shape[0])] or [1.0 + anp.sum(rows, axis=0)]  # of none it is one
    found = functools.reduce(anp.multiply, factors)
    found = anp.expand_dims(found, axes) if _keeps(keepdims) else found
    return found if initial is _ALL else found * initial


def cumulative(fun: Function, start: float) -> Function:
    """Return the definition of a function of the array interface that may begin with a start."""

    def definition(x: Array, /, *, axis: Axis = None, include_initial: bool = False) -> Any:
        axis = 0 if axis is None else axis
        found = fun(x, axis)
        if include_initial:
            shape = list(np.shape(plain(x)))
            shape[axis] = 1
            found = anp.concatenate([np.full(shape, start), found], axis)
        return found

    return definition


def _running(ufunc: np.ufunc, is_new: Function) -> Function:
    """Return the definition of the largest or smallest entry so far: of equal ones it is the first."""

    def definition(a: Array, axis: int = 0) -> Any:
        values = np.moveaxis(plain(a), axis, 0)
        so_far = ufunc.accumulate(values, 0)
        changes = np.concatenate([np.ones_like(values[:1], bool), is_new(values[1:], so_far[:-1])])
        own = np.arange(len(values)).reshape(-1, *[1] * (values.ndim - 1))
        at = np.maximum.accumulate(np.where(changes, own, 0), 0)
        return anp.take_along_axis(a, np.moveaxis(at, 0, axis), axis)

    return definition


def running(ufunc: np.ufunc, is_new: Function) -> Any:
    """Return `ufunc.accumulate` as a primitive."""

    def accumulate(a: Array, axis: int = 0) -> Any:
        return ufunc.accumulate(a, axis)

    return own_primitive(accumulate, *rules_of(f"{ufunc.__name__}.accumulate", _running(ufunc, is_new)))


WRITTEN["maximum.accumulate"] = running(np.maximum, np.greater)
WRITTEN["minimum.accumulate"] = running(np.minimum, np.less)


def _cov(m: Array, y: Array = None, rowvar: bool = True, bias: bool = False, ddof: float | None = None) -> Any:
    both = [each if rowvar or np.ndim(plain(each)) == 1 else each.T for each in (m, y) if each is not None]
    x = anp.concatenate([anp.reshape(each, (-1, np.shape(plain(each))[-1])) for each in both], 0)
    deviations = x - anp.mean(x, axis=1, keepdims=True)
    free = x.shape[1] - ((0 if bias else 1) if ddof is None else ddof)
    return anp.reshape(anp.dot(deviations, anp.conj(deviations.T)) / free, () if x.shape[0] == 1 else (x.shape[0],) * 2)


def _corrcoef(x: Array, y: Array = None, rowvar: bool = True) -> Any:
    c = _cov(x, y, rowvar)
    if np.ndim(plain(c)) == 0:
        return c / c
    scale = anp.sqrt(anp.real(anp.diag(c)))
    return c / scale[:, None] / scale[None, :]


# What is sorted


def _ordered(order: Function) -> Function:
    """Return the definition of a function that puts entries along an axis in another order."""

    def definition(a: Array, *args: Any, axis: Axis = -1, **kwargs: Any) -> Any:
        at = order(plain(a), *args, axis=axis, **kwargs)
        indices = np.arange(np.size(plain(a))).reshape(np.shape(plain(a)))
        taken = np.ravel(indices)[at] if axis is None else np.take_along_axis(indices, at, axis)
        return as_gather(lambda indices: np.ravel(indices)[taken], 0)(a)

    return definition


def _sort(a: Array, axis: Axis = -1, kind: Any = None, order: str | None = None, **options: Any) -> Any:
    return _ordered(functools.partial(np.argsort, kind=kind, order=order, **options))(a, axis=axis)


def _partition(a: Array, kth: Array, axis: Axis = -1, kind: Any = "introselect", order: str | None = None) -> Any:
    def positions(x: Array, axis: Axis) -> Any:
        ranks = np.argsort(np.argsort(np.partition(x, kth, axis, kind, order), axis), axis)
        return np.take_along_axis(np.argsort(x, axis), ranks, axis)

    return _ordered(positions)(a, axis=axis)


def _positions(counts: Array, q: Array, method: Any, shape: Shape) -> Any:
    """Return where among so many sorted entries a quantile is: what numpy finds if each of them is its own place."""
    found, counts = np.zeros((*shape, *q.shape)), np.broadcast_to(np.maximum(counts, 1), shape)
    for count in np.unique(counts):
        found[counts == count] = np.quantile(np.arange(float(count)), q, method=method)
    return found


def _quantile(
    a: Array, q: Array, axis: Axis = None, *, method: str = "linear", keepdims: bool = False, present: bool = False
) -> Any:
    """Return quantiles; of those entries only that are not nan, if that is asked for: the others come last."""
    if isbox(q):
        raise NotImplementedError("VJP of quantile wrt argnums (1,) not defined")
    q, kept, n_dims = np.asarray(q), np.shape(plain(a)), np.ndim(plain(a))
    axes = tuple(range(n_dims)) if axis is None else tuple(each % n_dims for each in np.atleast_1d(axis))
    rows = anp.moveaxis(a, axes, tuple(range(-len(axes), 0)))
    shape = np.shape(plain(rows))
    outer, n_rows = shape[: n_dims - len(axes)], math.prod(shape[n_dims - len(axes) :])
    rows = _sort(anp.reshape(rows, (*outer, n_rows))) if n_rows else np.full((*outer, 1), np.nan)  # none has nothing
    counts = np.sum(~np.isnan(plain(rows)), axis=-1) if present else np.array(rows.shape[-1])
    last = np.broadcast_to(np.maximum(counts - 1, 0), rows.shape[:-1])[(..., *[None] * q.ndim)]
    position = q * last if method == "linear" else _positions(counts, q, method, last.shape[: rows.ndim - 1])
    low = np.floor(position).astype(int)
    part, high = position - low, np.minimum(low + 1, last)
    others = np.indices(position.shape, sparse=True)[: len(rows.shape) - 1]
    low_ones, high_ones = rows[(*others, low)], rows[(*others, high)]
    # Where nothing is to be added, an entry that is not there must not count.
    found = low_ones + anp.where(part > 0.0, part * (anp.where(part > 0.0, high_ones, 0.0) - low_ones), 0.0)
    if q.ndim:
        found = anp.moveaxis(found, range(-q.ndim, 0), range(q.ndim))
    if keepdims:
        found = anp.reshape(found, (*q.shape, *(1 if at in axes else size for at, size in enumerate(kept))))
    return found


def _median(a: Array, axis: Axis = None, keepdims: bool = False) -> Any:
    return _quantile(a, 0.5, axis, keepdims=keepdims)


def _percentile(a: Array, q: Array, axis: Axis = None, *, method: str = "linear", keepdims: bool = False) -> Any:
    return _quantile(a, q / 100.0 if isbox(q) else np.asarray(q) / 100.0, axis, method=method, keepdims=keepdims)


def _nanquantile(a: Array, q: Array, axis: Axis = None, *, method: str = "linear", keepdims: bool = False) -> Any:
    return _quantile(a, q, axis, method=method, keepdims=keepdims, present=True)


def _nanmedian(a: Array, axis: Axis = None, keepdims: bool = False) -> Any:
    return _nanquantile(a, 0.5, axis, keepdims=keepdims)


def _nanpercentile(a: Array, q: Array, axis: Axis = None, *, method: str = "linear", keepdims: bool = False) -> Any:
    return _nanquantile(a, q / 100.0 if isbox(q) else np.asarray(q) / 100.0, axis, method=method, keepdims=keepdims)


_USUAL = frozenset({"axis", "keepdims"})
_ALSO_DDOF = _USUAL | {"ddof"}


def _has_options(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    del argnums, ans
    return len(args) > 2 or bool(kwargs and not _USUAL.issuperset(kwargs))


def _has_other_options(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    del argnums, ans
    return len(args) > 2 or bool(kwargs and not _ALSO_DDOF.issuperset(kwargs))


def _has_zero(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    several = isinstance(args[1] if len(args) > 1 else kwargs.get("axis"), tuple)
    return several or _has_options(argnums, ans, args, kwargs) or not np.all(plain(args[0]))


def is_deep(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    del argnums, ans, kwargs
    return np.ndim(plain(args[0])) > 1


def _sorts_otherwise(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    """Return whether more is sorted than a vector, or in a way that rules of autograd's don't know."""
    return is_deep(argnums, ans, args, kwargs) or "stable" in kwargs or "descending" in kwargs


def has_no_axes(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    del argnums, ans, kwargs
    return np.ndim(plain(args[0])) == 0


DEFINED: dict[Any, Function] = {
    np.nansum: _without_nan(anp.sum, 0.0),
    np.nanprod: _without_nan(_prod, 1.0),
    np.nanmax: _without_nan(anp.max, -np.inf),
    np.nanmin: _without_nan(anp.min, np.inf),
    np.nancumsum: _without_nan(anp.cumsum, 0.0),
    np.nancumprod: _without_nan(cumprod, 1.0),
    np.nanmean: _nanmean,
    np.nanvar: _nanvar,
    np.nanstd: _nanstd,
    np.nanmedian: _nanmedian,
    np.nanquantile: _nanquantile,
    np.nanpercentile: _nanpercentile,
    np.median: _median,
    np.quantile: _quantile,
    np.percentile: _percentile,
    np.ptp: _ptp,
    np.average: _average,
    np.cumprod: cumprod,
    np.cov: _cov,
    np.corrcoef: _corrcoef,
}
BETTER: dict[Any, tuple[Function, Better]] = {
    np.sort: (_sort, _sorts_otherwise),
    np.partition: (_partition, lambda *a: True),
    np.cumsum: (lambda a, axis=None: anp.reshape(a, (1,)), has_no_axes),
    np.prod: (_prod, _has_zero),
    np.sum: (_sum, _has_options),
    np.mean: (_mean, _has_options),
    np.std: (_std, _has_other_options),
    np.var: (_var, _has_other_options),
    np.max: (_extreme(anp.max, anp.maximum, -np.inf), _has_options),
    np.min: (_extreme(anp.min, anp.minimum, np.inf), _has_options),
    np.amax: (_extreme(anp.max, anp.maximum, -np.inf), _has_options),
    np.amin: (_extreme(anp.min, anp.minimum, np.inf), _has_options),
}
