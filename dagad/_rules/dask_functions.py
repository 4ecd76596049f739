"""Dask's own functions of blocks that traced arrays can't go through, and what is called in their place while one does.

They write into an array that they have made, or look into what they are given. Found by name: nothing of Dask's is
changed, and what is not traced goes the way that Dask has it. The values are the same to the last bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._rules.numpy_functions import untraced
from dagad._tracing import refusals
from dagad._tracing.by_definition import movers
from dagad._types import Array, Axis, DType, Function, Index, Tree
from dagad._values import pytree

plain = pytree.plain


def joined(blocks: Tree, axis: int = 0) -> Any:
    """Return the blocks of an array as one."""
    if not isinstance(blocks, list | tuple):
        return blocks
    parts = [joined(block, axis + 1) for block in blocks]
    if len(parts) == 1:
        return parts[0]
    if any(np.ma.isMaskedArray(plain(part)) for part in parts):  # numpy would join them without their masks
        raise NotDifferentiableError(refusals.of_function("dask.array.concatenate", " of masked arrays"))
    return anp.concatenate(parts, axis)


def _merged_points(locations: Array, values: Array) -> Any:
    """Return what several blocks have of some points, each where it belongs."""
    order = np.argsort(np.concatenate([np.asarray(list(each), int) for each in locations]))
    return anp.concatenate(list(values))[order]


def _assigned(function: Function) -> Function:
    """Return what assigns to entries: it finds out which ones by numbering them all."""

    def setitem(x: Array, v: Array, indices: Index) -> Any:
        if not np.size(plain(v)):
            return x
        if np.ma.isMaskedArray(plain(v)):
            raise NotDifferentiableError(refusals.of_function("dask.array.setitem", " of masked arrays"))
        n, m = np.size(plain(x)), np.size(plain(v))
        positions = function(
            np.arange(n).reshape(np.shape(plain(x))), np.arange(n, n + m).reshape(np.shape(plain(v))), indices
        )
        dtype = pytree.dtype_of(plain(x))
        whole = anp.concatenate([anp.ravel(x), anp.ravel(v * np.ones((), dtype)) if m else v])
        found = movers()[0](whole, positions)
        return found if found.dtype == dtype else found.astype(dtype)

    return setitem


def _passed_on(function: Function) -> Function:
    """Return what makes an array like another of something, unless that is traced: it is one already."""

    def safe(a: Array, like: Array = None, dtype: DType = None, **options: Any) -> Any:
        if not pytree.is_traced(a):
            return function(a, like=like, **({} if dtype is None else {"dtype": dtype}), **options)
        return a if dtype is None or a.dtype == dtype else a.astype(dtype)

    return safe


# Moments. Where nan are left out, what Dask computes of them and drops has a derivative of nan.


def _deviations(deviations: Array) -> Any:
    """Return what Dask takes powers of: of complex numbers their size."""
    return anp.abs(deviations) if np.iscomplexobj(plain(deviations)) else deviations


def _moments(function: Function) -> Function:
    """Return what adds up powers of deviations in a block."""

    def moment_chunk(A: Array, order: int = 2, sum: Function = np.sum, **options: Any) -> Any:
        found = function(A, order=order, sum=sum, **options)
        if sum is not np.nansum:
            return found
        axes = {name: options[name] for name in ("axis", "keepdims") if name in options}
        mean = found["total"] / np.where(found["n"] == 0, 1, found["n"])
        deviations = _deviations(anp.where(np.isnan(plain(A)), 0.0, A - mean))
        found["M"] = anp.stack([anp.sum(deviations**power, **axes) for power in range(2, order + 1)], axis=-1)
        return found

    return moment_chunk


def _along(pairs: list[Any], name: str, axes: Sequence[int]) -> Any:
    """Return what nested lists of dicts have under a name, joined along these axes."""
    if not isinstance(pairs, list):
        return pairs[name]
    if not axes:  # an array without axes, which is a single block
        return _along(pairs[0], name, axes)
    return anp.concatenate([_along(each, name, axes[1:]) for each in pairs], axes[0])


def _merged_moments(function: Function) -> Function:
    """Return what puts moments of blocks together, of which some may have no entries."""

    def merge(pairs: Tree, order: int = 2, ddof: int = 0, axis: Axis = None, **options: Any) -> Any:
        pairs = pairs if isinstance(pairs, list) else [pairs]
        ns = _along(pairs, "n", axis)
        if np.all(ns):
            return function(pairs, order=order, ddof=ddof, axis=axis, **options)
        totals, powers = _along(pairs, "total", axis), _along(pairs, "M", axis)
        total, n = anp.sum(totals, axis, keepdims=True), np.sum(ns, axis, keepdims=True)
        deviations = _deviations(anp.where(ns == 0, 0.0, totals / np.maximum(ns, 1) - total / np.maximum(n, 1)))
        kept = {"axis": axis, "keepdims": function.__name__ == "moment_combine" or bool(options.get("keepdims"))}
        found = []
        for power in range(2, order + 1):
            M = anp.sum(powers[..., power - 2], **kept) + anp.sum(ns * deviations**power, **kept)
            for k in range(1, power - 1):
                M = M + math.comb(power, k) * anp.sum(powers[..., power - k - 2] * deviations**k, **kept)
            found.append(M)
        if function.__name__ == "moment_combine":
            return {"total": total, "n": n, "M": anp.stack(found, axis=-1)}
        free = np.sum(ns, **kept) - ddof
        return found[-1] / np.where(free > 0, free, np.nan)

    return merge


def _ramp(start: Array, stop: Array, num: int, dim: int, step: int) -> Any:
    rows = np.linspace(anp.moveaxis(start, dim, 0)[0], stop, num + 1)[1:][::step]
    return anp.moveaxis(rows, 0, dim)


def _added_counts(bincounts: Array, dtype: DType, **kwargs: Any) -> Any:
    del dtype, kwargs
    if not isinstance(bincounts, list):
        return bincounts
    n = max(map(len, bincounts))
    whole = [anp.concatenate([each, np.zeros(n - len(each))]) for each in bincounts]
    return functools.reduce(anp.add, whole)


def _unique(ar: Array, indices: object, counts: object, return_inverse: bool = False) -> Any:
    if indices is not None or counts is not None or return_inverse:
        raise NotDifferentiableError(refusals.of_option("dask.array.unique", ["return_index"]))
    return {"values": ar[np.unique(plain(ar), return_index=True)[1]]}


def _merged_unique(parts: Iterable[Mapping[str, Array]], return_inverse: bool = False) -> Any:
    return _unique(anp.concatenate([part["values"] for part in parts]), None, None, return_inverse)


_IN_PLACE: dict[str, Function] = {
    "dask.array.core.finalize": joined,
    "dask.array.core._vindex_merge": _merged_points,
    "dask.array.creation.linear_ramp_chunk": _ramp,
    "dask.array.routines._bincount_agg": _added_counts,
    "dask.array.routines._unique_internal": _unique,
    "dask_array.routines._unique._unique_aggregate_func": _merged_unique,
    "dask.utils.percentile": lambda a, q, method="linear": (np.percentile(a, q, method=method), len(a)),
}
_AROUND: dict[str, Callable[[Function], Function]] = {
    "dask.array.slicing.setitem": _assigned,
    "dask.array.reductions.moment_chunk": _moments,
    "dask.array.reductions.moment_combine": _merged_moments,
    "dask.array.reductions.moment_agg": _merged_moments,
    "dask.array.utils.asanyarray_safe": _passed_on,
    "dask.array.utils.asarray_safe": _passed_on,
} | {
    name: untraced  # indices have no derivative
    for name in (
        "dask.array.reductions.arg_chunk",
        "dask.array.reductions.arg_combine",
        "dask.array.chunk.argtopk",
        "dask.array.chunk.argtopk_aggregate",
    )
}


_NAMES = {name.rpartition(".")[2]: name for name in (*_IN_PLACE, *_AROUND)}


def replaced_within(function: Any, replace: Callable[[Any], Any]) -> Any:
    """Return a partial or a composition with what it calls replaced, itself if nothing is; None for any other."""
    if isinstance(function, functools.partial):
        inner = replace(function.func)
        return function if inner is function.func else functools.partial(inner, *function.args, **function.keywords)
    if type(function).__name__ != "Compose":  # of toolz or cytoolz
        return None
    parts: Sequence[Any] = [*reversed(function.funcs), function.first]
    found = list(map(replace, parts))
    return function if found == parts else type(function)(found)


def substitute(function: Any) -> Any:
    """Return what is called in place of a function; the function itself if traced arrays can go through it."""
    if (found := replaced_within(function, substitute)) is not None:
        return found
    module = getattr(function, "__module__", None)
    if not isinstance(module, str) or not module.startswith(("dask.", "dask_array.")):
        return function
    own = getattr(function, "__name__", "")
    # The package dask-array has the same functions in other modules.
    name = f"{module}.{own}" if module.startswith("dask.") else _NAMES.get(own, own)
    instead = _AROUND[name](function) if name in _AROUND else _IN_PLACE.get(name)
    return function if instead is None else _where_traced(function, instead)


def _where_traced(function: Function, instead: Function) -> Function:
    """Return what calls Dask's own function unless something is traced: constants may be masked, or of other types."""

    @functools.wraps(function)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        is_moving = any(map(pytree.is_traced, pytree.flatten((args, kwargs))[0]))
        return (instead if is_moving else function)(*args, **kwargs)

    return chosen
