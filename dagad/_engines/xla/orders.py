"""Sorting, quantiles and what is between sorted knots, of what jax traces, with numpy's options and errors."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dagad._engines.xla import refusals
from dagad._engines.xla.matrices import floating
from dagad._engines.xla.protocols import Called, array_of, public_name
from dagad._errors import NotDifferentiableError
from dagad._types import Array, Function

_METHODS = (None, "linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf")


def quantiles(func: Function, most: float) -> Function:
    """Return a function of quantiles: numpy refuses those that there are not, and jax takes the next."""
    called = Called(func)

    def found(a: Array, q: Array, *args: Any, **kwargs: Any) -> Any:
        method = dict(zip(["axis", "out", "overwrite_input", "method"], args, strict=False)).get("method")
        method = kwargs.get("method", method)
        if method not in _METHODS:
            raise NotDifferentiableError(refusals.of_option(public_name(func), [f"method={method!r}"]))
        q = floating(array_of(q))
        if not isinstance(q, jax.Array):
            if not np.all((np.asarray(q) >= 0) & (np.asarray(q) <= most)):
                raise ValueError(f"Quantiles must be in the range [0, {most:g}]")
            return called(a, q, *args, **kwargs)
        inside = jnp.logical_and(q >= 0, q <= most)
        taken = called(a, q, *args, **kwargs)
        return jnp.where(jnp.reshape(inside, inside.shape + (1,) * (taken.ndim - inside.ndim)), taken, jnp.nan)

    return functools.wraps(func)(found)


def sorting(func: Function) -> Function:
    """Return a way to sort: jax's keeps the order of equal entries, as numpy's ways that promise any order do."""

    def found(a: Array, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
        del kind, stable
        if order is not None:
            raise NotDifferentiableError(refusals.of_option(public_name(func), ["order"]))
        return Called(func)(a, axis)

    return functools.wraps(func)(found)


_OF_REAL = Called(np.interp)


def interp(x: Array, xp: Array, fp: Array, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """Return what is between knots; of complex numbers in two parts, as jax has it of real ones only."""
    fp = array_of(fp)
    rest = {} if period is None else {"period": period}
    ends = {name: each for name, each in (("left", left), ("right", right)) if each is not None}
    if jnp.result_type(fp).kind != "c":
        return _OF_REAL(x, xp, fp, **ends, **rest)
    parts = [
        _OF_REAL(x, xp, part(fp), **{name: part(each) for name, each in ends.items()}, **rest)
        for part in (np.real, np.imag)
    ]
    return jax.lax.complex(*parts)
