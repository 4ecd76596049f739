"""Entries of what jax traces, by numpy's rules: lists are arrays, and none is taken for one out of bounds.

Functions of numpy's that take entries, leave some out or put some in are here too.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dagad._engines.xla import refusals
from dagad._engines.xla.conversions import as_dtype
from dagad._engines.xla.jaxs_core import Tracer
from dagad._engines.xla.missing import beyond, by_axes, note_beyond
from dagad._engines.xla.protocols import Called, array_of, holds_traced, stand_in
from dagad._errors import NotDifferentiableError
from dagad._tracing.in_place import is_view
from dagad._types import Array, Axis, DType, Function, Index, Value


def entries(array: Array, where: Index) -> Any:
    """Return the entries of a traced array at an index that may be traced too."""
    parts = tuple([wide(array_of(part)) for part in (where if isinstance(where, tuple) else (where,))])
    if any(isinstance(part, jax.Array) and part.dtype == bool for part in parts):
        raise NotDifferentiableError(refusals.of_shape("x[mask]", "`np.where(mask, x, 0.0)` does"))
    known = tuple(np.zeros(part.shape, int) if isinstance(part, jax.Array) else part for part in parts)
    if not any(0 in np.shape(array)[:1] and isinstance(part, jax.Array) for part in parts):
        np.broadcast_to(np.zeros((), bool), array.shape)[known]  # raises what numpy raises
    if any(map(_is_truth, parts)):
        return _by_truths(array, parts)
    if is_view(where):
        return Tracer.__getitem__(array, where)
    if any(isinstance(part, jax.Array) for part in parts):  # of what is out of bounds jax would take another entry
        if array.dtype.kind not in "fc":
            for axis, part in by_axes(parts, array.ndim):
                note_beyond(part, array.shape[axis])
        return array.at[parts].get(mode="fill", fill_value=beyond(array.dtype))
    return array.at[parts].get(mode="promise_in_bounds")


def wide(index: Index) -> Any:
    """Return a traced index in a type that holds the length of any axis: that of one of 200 is no `int8`."""
    is_narrow = isinstance(index, jax.Array) and index.dtype.kind in "iu" and index.dtype.itemsize < 8
    return index.astype(np.int64) if is_narrow else index


def _is_truth(part: object) -> bool:
    return isinstance(part, bool | np.bool_ | np.ndarray) and np.ndim(part) == 0 and np.asarray(part).dtype == bool


def _by_truths(array: Array, parts: tuple[Any, ...]) -> Any:
    """Return entries where a single True or False is among the indices: jax takes another dimension than numpy."""
    if holds_traced(parts):
        raise NotDifferentiableError(refusals.of_option("x[...]", ["True"]))
    return moving(np.ndarray.__getitem__)(jnp.asarray(array), parts)


def take(a: Array, indices: Index, axis: Axis = None, out: object = None, mode: str = "raise") -> Any:
    if out is not None:
        raise NotDifferentiableError(refusals.of_out("np.take"))
    a, indices = jnp.asarray(array_of(a)), array_of(indices)
    if not isinstance(indices, jax.Array):
        indices = np.asarray(indices)
    if not np.can_cast(indices.dtype, np.intp, "same_kind"):
        raise TypeError(f"Cannot cast array data from {indices.dtype!r} to dtype('int64') according to the rule 'safe'")
    a, axis = (jnp.ravel(a), 0) if axis is None else (a, range(a.ndim)[axis])
    indices = as_dtype(indices, np.int64)
    if mode != "raise":
        return jnp.take(a, indices, axis, mode=mode)
    return entries(a, (*[slice(None)] * axis, indices))


def take_along_axis(arr: Array, indices: Array, axis: Axis = -1) -> Any:
    if not isinstance(indices, jax.Array):
        np.take_along_axis(stand_in(arr), np.asarray(indices), axis)  # raises what numpy raises
    elif np.dtype(getattr(arr, "dtype", float)).kind not in "fc":
        note_beyond(indices, np.size(arr) if axis is None else np.shape(arr)[axis])
    return jnp.take_along_axis(arr, indices, axis)


def delete(arr: Array, obj: Index, axis: Axis = None) -> Any:
    _refuse_traced("np.delete", obj)
    return moving(np.delete)(arr, obj, axis)


def insert(arr: Array, obj: Index, values: Array, axis: Axis = None) -> Any:
    """Insert numbers of places among those of an array, and take the entries there."""
    _refuse_traced("np.insert", obj)
    arr, values = array_of(arr), array_of(values)
    arr = arr if isinstance(arr, jax.Array) else np.asarray(arr)
    values = as_dtype(_operand_of(values, arr.dtype), arr.dtype)
    n, m = np.size(arr), np.size(values)
    numbers = np.arange(n).reshape(np.shape(arr)), np.arange(n, n + m).reshape(np.shape(values))
    both = jnp.concatenate([jnp.ravel(arr), jnp.ravel(values)])
    return both.at[np.insert(numbers[0], obj, numbers[1], axis)].get(mode="promise_in_bounds")


def _operand_of(value: Value, dtype: DType) -> Any:
    return np.asarray(value, dtype) if type(value) is int else value


def _refuse_traced(name: str, where: Index) -> None:
    if holds_traced(where):
        raise NotDifferentiableError(refusals.of_shape(name))


def repeat(a: Array, repeats: Array, axis: Axis = None) -> Any:
    if not holds_traced(repeats) and np.any(np.less(repeats, 0)):
        raise ValueError("repeats may not contain negative values.")
    return Called(np.repeat)(a, repeats, axis)


def moving(func: Function) -> Function:
    """Return a function that moves entries: numpy moves their numbers, and jax takes them from there."""

    def picked(x: Array, *args: Any, **kwargs: Any) -> Any:
        numbers = np.arange(x.size).reshape(x.shape)
        return jnp.ravel(x).at[func(numbers, *args, **kwargs)].get(mode="promise_in_bounds")

    return functools.wraps(func)(picked)


def compress(condition: Array, a: Array, axis: Axis = None, out: object = None) -> Any:
    if out is not None:
        raise NotDifferentiableError(refusals.of_out("np.compress"))
    if isinstance(condition, jax.Array):
        raise NotDifferentiableError(refusals.of_shape("np.compress"))
    return np.take(a, np.flatnonzero(np.asarray(condition)), axis)


def extract(condition: Array, arr: Array) -> Any:
    if isinstance(condition, jax.Array):
        raise NotDifferentiableError(refusals.of_shape("np.extract"))
    return jnp.ravel(arr)[np.flatnonzero(np.asarray(condition))]
