"""Sorting, quantiles and what is between sorted knots, of what jax traces, with numpy's options and errors."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dagad._engines.xla import refusals
from dagad._engines.xla.conversions import as_dtype
from dagad._engines.xla.matrices import double, floating
from dagad._engines.xla.protocols import Called, array_of, public_name
from dagad._errors import NotDifferentiableError
from dagad._types import Array, Axis, Function

_METHODS = (None, "linear", "lower", "higher", "midpoint", "inverted_cdf")  # of jax's that are numpy's


def quantiles(func: Function, most: float) -> Function:
    """Return a function of quantiles: numpy refuses those that there are not, and jax takes the next."""
    called, names = Called(func), ["axis", "out", "overwrite_input", "method"]

    def found(a: Array, q: Array, *args: Any, **kwargs: Any) -> Any:
        options = dict(zip(names, args, strict=False)) | kwargs
        method, q = options.get("method"), floating(array_of(q))
        is_constant = not isinstance(q, jax.Array)
        if is_constant and not np.all((np.asarray(q) >= 0) & (np.asarray(q) <= most)):
            raise ValueError(f"Quantiles must be in the range [0, {most:g}]")
        if method not in (None, "linear") and is_constant and not func.__name__.startswith("nan"):
            q, options["method"] = _linear_or_nearest(
                np.asarray(q) / most, _count(a, options.get("axis")), method, most
            )
        elif method not in _METHODS:
            raise NotDifferentiableError(refusals.of_option(public_name(func), [f"method={method!r}"]))
        if method == "inverted_cdf" and options["method"] == method and jnp.result_type(a) == np.float32:
            a = as_dtype(array_of(a), np.float64)  # jax's takes one precision alone
            return as_dtype(called(a, q, **options), np.float32)
        taken = called(a, q, **options)
        if is_constant:
            return taken
        inside = jnp.logical_and(q >= 0, q <= most)
        return jnp.where(jnp.reshape(inside, inside.shape + (1,) * (taken.ndim - inside.ndim)), taken, jnp.nan)

    return functools.wraps(func)(found)


def _count(a: Array, axis: Axis) -> int:
    shape = np.shape(a)
    return math.prod(shape if axis is None else [shape[each] for each in np.atleast_1d(axis)])


def _linear_or_nearest(q: Array, count: int, method: Any, most: float) -> tuple[Any, str]:
    """Return the quantile that is linear between entries, or is the nearest one, where numpy's method has this one."""
    if count < 2:
        return q * most, "linear"
    positions = np.quantile(np.arange(float(count)), q, method=method)
    return positions / (count - 1.0) * most, "nearest" if np.all(positions == np.floor(positions)) else "linear"


def _in_opposite_order(x: Array) -> Any:
    """Return numbers in the opposite order; what is no number stays last."""
    return -x if jnp.result_type(x).kind in "fc" else ~x


def sorting(func: Function) -> Function:
    """Return a way to sort: jax's keeps the order of equal entries, as numpy's ways that promise any order do."""

    def found(
        a: Array,
        axis: Axis = -1,
        kind: str | None = None,
        order: str | Sequence[str] | None = None,
        *,
        stable: object = None,
        descending: object = False,
    ) -> Any:
        del kind, stable
        if order is not None:
            raise NotDifferentiableError(refusals.of_option(public_name(func), ["order"]))
        if not descending or descending is np._NoValue:
            return Called(func)(a, axis)
        backwards = Called(func)(_in_opposite_order(array_of(a)), axis)
        return _in_opposite_order(backwards) if func is np.sort else backwards

    return functools.wraps(func)(found)


_OF_REAL = Called(np.interp)


def interp(x: Array, xp: Array, fp: Array, left: Array = None, right: Array = None, period: float | None = None) -> Any:
    """Return what is between knots; of complex numbers in two parts, as jax has it of real ones only."""
    x, xp, fp = map(double, (x, xp, fp))
    rest = {} if period is None else {"period": period}
    ends = {name: each for name, each in (("left", left), ("right", right)) if each is not None}
    if jnp.result_type(fp).kind != "c":
        return _OF_REAL(x, xp, fp, **ends, **rest)
    parts = [
        _OF_REAL(x, xp, part(fp), **{name: part(each) for name, each in ends.items()}, **rest)
        for part in (np.real, np.imag)
    ]
    return jax.lax.complex(*parts)
