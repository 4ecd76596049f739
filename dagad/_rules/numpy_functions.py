"""Functions of numpy's that are no primitive of autograd's: of lists, under another name, or without a derivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import autograd.numpy as anp
import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._rules.einsums import einsum
from dagad._rules.numpy_rules import bins_of
from dagad._tracing import refusals
from dagad._tracing.by_definition import as_gather, rules_of
from dagad._tracing.numpy_protocols import WRITTEN
from dagad._tracing.operands import array_of
from dagad._tracing.private import isbox
from dagad._tracing.rules import cast, own_primitive
from dagad._tracing.traced_array import with_value
from dagad._types import Array, Axis, DType, Function, Shape
from dagad._values import pytree

plain = pytree.plain


def _concatenate(arrays: Sequence[Any], axis: int | None = 0) -> Any:
    if axis is None:
        return anp.concatenate([anp.ravel(each) for each in arrays])
    return anp.concatenate(arrays, axis)


def _select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Array = 0) -> Any:
    found = default
    for condition, choice in zip(reversed(condlist), reversed(choicelist), strict=True):
        found = anp.where(plain(condition), choice, found)
    return found


def _piecewise(x: Array, condlist: Array, funclist: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    if np.ndim(condlist) == 0 or (np.ndim(condlist[0]) == 0 and np.ndim(plain(x))):
        condlist = [condlist]  # as numpy has it
    conditions = [np.broadcast_to(plain(each), np.shape(plain(x))) for each in condlist]
    if len(funclist) == len(conditions) + 1:
        conditions.append(~np.any(conditions, axis=0))
    dtype = np.asarray(plain(x)).dtype
    whole, position = [0.0 * anp.ravel(x)], np.arange(np.size(plain(x)))
    start = len(position)
    for condition, fun in zip(conditions, funclist, strict=True):
        at = np.flatnonzero(condition)
        part = fun(anp.ravel(x)[at], *args, **kwargs) if callable(fun) else fun
        whole.append(part * np.ones(len(at), dtype))
        position[at] = np.arange(start, start + len(at))
        start += len(at)
    return anp.reshape(anp.concatenate(whole)[position], np.shape(plain(x)))


def _apply_along_axis(func1d: Function, axis: int, arr: Array, *args: Any, **kwargs: Any) -> Any:
    rows = anp.moveaxis(arr, axis, -1)
    outer = np.shape(plain(rows))[:-1]
    found = anp.stack([func1d(row, *args, **kwargs) for row in anp.reshape(rows, (-1, np.shape(plain(rows))[-1]))])
    inner = np.shape(plain(found))[1:]
    at = axis % (len(outer) + 1)
    positions = range(len(outer), len(outer) + len(inner)), range(at, at + len(inner))
    return anp.moveaxis(anp.reshape(found, (*outer, *inner)), *positions)


def _broadcast_arrays(*args: Any, subok: bool = False) -> tuple[Any, ...]:
    del subok
    shape = np.broadcast_shapes(*(np.shape(plain(each)) for each in args))
    return tuple(anp.broadcast_to(each, shape) for each in args)


def _meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: Literal["xy", "ij"] = "xy") -> Any:
    numbers = [np.arange(np.size(plain(each))) for each in xi]
    positions = np.meshgrid(*numbers, sparse=sparse, indexing=indexing)
    found = tuple(anp.ravel(each)[at] for each, at in zip(xi, positions, strict=True))
    if copy:
        return found
    views = np.meshgrid(*map(plain, xi), copy=False, sparse=sparse, indexing=indexing)
    return tuple(with_value(each, view) if isbox(each) else each for each, view in zip(found, views, strict=True))


def _windows(x: Array, *args: Any, **kwargs: Any) -> Any:
    windows = np.lib.stride_tricks.sliding_window_view
    return with_value(as_gather(windows, 0)(x, *args, **kwargs), windows(plain(x), *args, **kwargs))


_SCALAR = (int, float, type(None))


def _clip(a: Array, a_min: Array = None, a_max: Array = None, *, min: Array = None, max: Array = None) -> Any:
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    if isbox(a) and not isbox(low) and not isbox(high):
        if not isinstance(low, _SCALAR) or not isinstance(high, _SCALAR):
            shape = np.broadcast_shapes(a.shape, np.shape(low), np.shape(high))
            a = a if shape == a.shape else anp.broadcast_to(a, shape)
        return anp.clip(a, low, high)
    found = a if low is None else anp.maximum(a, low)
    return found if high is None else anp.minimum(found, high)


def _astype(x: Array, dtype: DType, *, copy: bool = True, device: object = None) -> Any:
    """Return the entries as another type: whole numbers and truths are constant between their jumps."""
    del device
    if not copy and plain(x).dtype == dtype:
        return x
    kind = np.dtype(dtype).kind
    if kind in "OSUV":
        raise NotDifferentiableError(refusals.of_dtype(np.dtype(dtype)))
    return cast(x, dtype) if kind in "fc" else plain(x).astype(dtype)


def _frexp(x: Array) -> tuple[Any, Any]:
    """Return the mantissas and the exponents, which are whole numbers."""
    exponents = np.frexp(plain(x))[1]
    return np.ldexp(x, -exponents), exponents


def _direction(z: Array) -> Any:
    """Return complex numbers by their sizes; 0 has no direction, and no slope."""
    is_zero = plain(z) == 0
    return anp.where(is_zero, 0.0, z / anp.abs(anp.where(is_zero, 1.0, z)))


def _complex_sign(z: Array) -> Any:
    return np.sign(z)


_sign_of_complex = own_primitive(_complex_sign, *rules_of("np.sign", _direction))


def _sign(x: Array) -> Any:
    """Return the sign, which of real numbers is constant between its jumps."""
    return _sign_of_complex(x) if np.iscomplexobj(plain(x)) else np.sign(plain(x))


def _insert(arr: Array, obj: Array, values: Array, axis: Axis = None) -> Any:
    """Return the array with more entries, all of its own type."""
    found, dtype = as_gather(np.insert, 0, 2)(arr, obj, values, axis), getattr(plain(arr), "dtype", None)
    return found if dtype is None or dtype == found.dtype else _astype(found, dtype)


def _asarray(a: Array, dtype: DType = None, **options: Any) -> Any:
    """Return an array, traced if what is given is: `like` says where it is to be at home, which is here."""
    del options
    if not isbox(a):
        return np.asarray(a, dtype)
    return a if dtype is None or a.dtype == dtype else a.astype(dtype)


def _full_like(
    a: Array, fill_value: Array, dtype: DType = None, order: Any = "K", subok: bool = True, shape: Shape = None
) -> Any:
    like = np.ones_like(plain(a), dtype, order, subok, shape)
    if not isbox(fill_value):
        return np.full_like(like, fill_value)
    found = fill_value * (like if like.dtype.kind in "fc" else np.ones(like.shape))
    return found if found.dtype == like.dtype else _astype(found, like.dtype)


def _atleast(fun: Function) -> Function:
    def definition(*arys: Any) -> Any:
        found = tuple(fun(each) for each in arys)
        return found[0] if len(found) == 1 else found

    return definition


def untraced(func: Function) -> Function:
    """Return a function of values: what it says has no derivative."""

    def value(*args: Any, **kwargs: Any) -> Any:
        leaves, treedef = pytree.flatten_with_none((args, kwargs))
        args, kwargs = pytree.unflatten(treedef, [plain(leaf) for leaf in leaves])
        return func(*args, **kwargs)

    return value


def _refused(sentence: Function) -> Function:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotDifferentiableError(sentence())

    return refuse


def _histogramdd(
    sample: Array, bins: Array = 10, range: Array = None, density: bool | None = None, weights: Array = None
) -> Any:
    """Return sums of weights and edges. A list is one of columns, and an array of these is not."""
    columns = _columns(sample)
    given = [array_of(each) for each in bins] if np.iterable(plain(bins)) else [bins] * len(columns)
    # Numpy sees to what can't be, and says what the edges are.
    whole, found = np.histogramdd(
        np.stack([plain(each) for each in columns], axis=-1), list(map(plain, given)), range, density, plain(weights)
    )
    ranges = [None] * len(columns) if range is None else range
    edges = [_edges_along(*each) for each in zip(columns, given, ranges, found, strict=True)]
    if not isbox(weights) and not (density and any(map(isbox, edges))):
        return whole, tuple(edges)
    positions = [bins_of(plain(each), along) for each, along in zip(columns, found, strict=True)]
    shape = [len(along) + 1 for along in found]
    weights = np.ones(len(positions[0])) if weights is None else weights
    flat = np.bincount(np.ravel_multi_index(positions, shape), weights, int(np.prod(shape)))
    sums = anp.reshape(flat, shape)[tuple([slice(1, -1)] * len(shape))]
    if density:
        total = anp.sum(sums)
        for axis, along in enumerate(edges):
            widths = along[1:] - along[:-1]
            sums = sums / anp.reshape(widths, [-1 if each == axis else 1 for each, _ in enumerate(edges)])
        sums = sums / total
    return sums, tuple(edges)


def _columns(sample: Array) -> list[Any]:
    if isinstance(sample, list | tuple):
        return [each if isbox(each) else np.asarray(each) for each in sample]
    sample = sample if np.ndim(plain(sample)) == 2 else anp.reshape(sample, (-1, 1))
    return [sample[:, column] for column in np.arange(np.shape(plain(sample))[1])]


def _edges_along(column: Array, bins: Array, range: Array, found: Array) -> Any:
    """Return the edges along one dimension, traced where they follow what is traced."""
    if np.ndim(plain(bins)) == 1:
        return bins if isbox(bins) else found
    return found if range is not None or not isbox(column) else np.histogram_bin_edges(column, len(found) - 1)


def _histogram2d(
    x: Array, y: Array, bins: Array = 10, range: Array = None, density: bool | None = None, weights: Array = None
) -> tuple[Any, Any, Any]:
    if np.iterable(plain(bins)) and len(bins) not in (1, 2):  # the edges of both
        bins = [bins, bins]
    sums, (of_x, of_y) = _histogramdd([x, y], bins, range, density, weights)
    return sums, of_x, of_y


_UNTRACED = """
shape ndim size result_type iscomplexobj isrealobj common_type digitize nanargmax nanargmin lexsort isin
array_repr array_str array2string may_share_memory shares_memory can_cast
min_scalar_type empty_like zeros_like ones_like einsum_path tril_indices_from triu_indices_from diag_indices_from
""".split()


def _where(condition: Array, *branches: Any) -> Any:
    return anp.where(plain(condition), *branches)


WRITTEN.update(
    {
        np.concatenate: _concatenate,
        np.stack: anp.stack,
        np.vstack: anp.vstack,
        np.hstack: anp.hstack,
        np.column_stack: anp.column_stack,
        np.append: anp.append,
        np.insert: _insert,
        np.select: _select,
        np.choose: lambda a, choices: _select(
            [np.asarray(plain(a)) == index for index in range(len(choices))], choices
        ),
        np.piecewise: _piecewise,
        np.apply_along_axis: _apply_along_axis,
        np.broadcast_arrays: _broadcast_arrays,
        np.meshgrid: _meshgrid,
        np.clip: _clip,
        np.full_like: _full_like,
        np.astype: _astype,
        np.array: _asarray,
        np.asarray: _asarray,
        np.asanyarray: _asarray,
        np.copy: lambda a, order="K", subok=False: a.copy(order),
        np.einsum: einsum,
        np.where: _where,
        np.frexp: _frexp,
        np.sign: _sign,
        np.histogramdd: _histogramdd,
        np.histogram2d: _histogram2d,
    }
)
WRITTEN.update({getattr(np, name): untraced(getattr(np, name)) for name in _UNTRACED})
WRITTEN[np.linalg.matrix_rank] = untraced(np.linalg.matrix_rank)
WRITTEN.update({func: as_gather(func, 0) for func in (np.block, np.dstack)})
WRITTEN[np.lib.stride_tricks.sliding_window_view] = _windows
WRITTEN.update(
    {
        func: _refused(refusals.of_assignment)
        for func in (np.copyto, np.put, np.place, np.putmask, np.fill_diagonal, np.put_along_axis)
    }
)
for _number, _fun in enumerate((anp.atleast_1d, anp.atleast_2d, anp.atleast_3d), 1):
    WRITTEN[getattr(np, f"atleast_{_number}d")] = _atleast(_fun)
