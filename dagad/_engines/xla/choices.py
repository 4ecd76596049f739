"""Functions of numpy's that choose by conditions, or call functions of the user's, for what jax traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive

from dagad._engines.xla import refusals
from dagad._engines.xla.conversions import as_dtype
from dagad._engines.xla.missing import beyond, note_beyond
from dagad._engines.xla.protocols import array_of, common_dtype
from dagad._errors import NotDifferentiableError
from dagad._types import Args, Array, Axis, DType, Function, Kwargs, Shape, Tree


def where(condition: Array, *branches: Any) -> Any:
    if not branches:
        raise NotDifferentiableError(
            refusals.of_shape("np.where(mask)", "`np.where(mask, x, 0.0)` has three arguments")
        )
    x, y = map(array_of, branches)
    dtype = common_dtype([x, y])
    return as_dtype(jnp.where(array_of(condition), _wrapped(x, dtype), _wrapped(y, dtype)), dtype)


def _wrapped(operand: Array, dtype: DType) -> Any:
    """Return an operand in a dtype, whole numbers of Python's that don't fit as numpy has them in the end."""
    return as_dtype(np.asarray(operand).astype(dtype) if type(operand) is int else operand, dtype)


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Array = 0) -> Any:
    for number, condition in enumerate(map(array_of, condlist)):
        if np.dtype(getattr(condition, "dtype", type(condition))) != bool:
            raise TypeError(f"invalid entry {number} in condlist: should be boolean ndarray")
    choices = [*map(array_of, choicelist), array_of(default)]
    dtype = common_dtype(choices)
    *choices, found = (_wrapped(each, dtype) for each in choices)
    for condition, choice in zip(reversed(condlist), reversed(choices), strict=True):
        found = where(condition, choice, found)
    return found


def choose(a: Array, choices: Array, out: object = None) -> Any:
    if out is not None:
        raise NotDifferentiableError(refusals.of_out("np.choose"))
    a, choices = array_of(a), list(map(array_of, choices))
    if not isinstance(a, jax.Array):
        np.choose(a, [0] * len(choices))  # raises what numpy raises
    else:
        note_beyond(a, len(choices), 0)
    indices = [jnp.equal(a, index) for index in range(len(choices))]
    dtype = common_dtype(choices)
    return select(indices, choices, np.asarray(beyond(dtype), dtype))


def piecewise(x: Array, condlist: Array, funclist: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    if not isinstance(condlist, list | tuple) and np.ndim(condlist) == x.ndim:
        condlist = [condlist]
    found = [_piece(x, fun, args, kwargs) if callable(fun) else fun for fun in funclist]
    rest = found[-1] if len(found) > len(condlist) else 0
    pieces = [each * np.ones(x.shape) for each in found[: len(condlist)]]
    return select(condlist[::-1], pieces[::-1], rest).astype(x.dtype)  # of several that are true, numpy takes the last


def _piece(x: Array, fun: Function, args: Args, kwargs: Kwargs) -> Any:
    """Return what a function gives for all entries: numpy gives it some, so it may not look at several at once."""
    with x._trace.outside(), x._trace.recording() as operations:
        found = fun(x, *args, **kwargs)
    if not all(_is_elementwise(each, params, shapes, np.shape(x)) for each, params, shapes in operations):
        raise NotDifferentiableError(refusals.of_piece())
    return found


_MIXING = frozenset(
    """
    sort rev cumsum cumprod cummax cummin cumlogsumexp gather dynamic_slice slice concatenate transpose reshape pad
    """.split()
)


def _is_elementwise(primitive: Primitive, params: Tree, shapes: Sequence[Shape], shape: Shape) -> bool:
    inner = params.get("jaxpr") or params.get("call_jaxpr")
    if inner is not None:
        equations = getattr(inner, "jaxpr", inner).eqns
        return all(_is_elementwise(e.primitive, e.params, [v.aval.shape for v in e.outvars], shape) for e in equations)
    if primitive.name in _MIXING or primitive.name.startswith(("reduce", "arg", "dot", "scatter", "conv_", "fft")):
        return False
    return all(each in ((), shape) for each in shapes)


def apply_along_axis(func1d: Function, axis: int, arr: Array, *args: Any, **kwargs: Any) -> Any:
    rows = np.moveaxis(array_of(arr), axis, -1)
    outer, n = rows.shape[:-1], rows.shape[-1]
    parts = []
    for row in np.reshape(rows, (-1, n)):
        with arr._trace.outside():
            parts.append(func1d(row, *args, **kwargs))
    found = np.stack(parts)
    inner = found.shape[1:]
    at = axis % (len(outer) + 1)
    indices = range(len(outer), len(outer) + len(inner)), range(at, at + len(inner))
    return np.moveaxis(np.reshape(found, (*outer, *inner)), *indices)


def apply_over_axes(func: Function, a: Array, axes: Axis) -> Any:
    found = array_of(a)
    for axis in [axes] if np.ndim(axes) == 0 else axes:
        axis = range(a.ndim)[axis]
        with found._trace.outside():
            part = func(found, axis)
        if np.ndim(part) != a.ndim:
            part = np.expand_dims(part, axis)
        if np.ndim(part) != a.ndim:
            raise ValueError("function is not returning an array of the correct shape")
        found = part
    return found
