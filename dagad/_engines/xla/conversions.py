"""Numbers of one dtype as those of another, as numpy makes them, where jax has others or none."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dagad._engines.xla import refusals
from dagad._errors import NotDifferentiableError
from dagad._types import Array, DType


def whole_of(x: Array, dtype: DType) -> Any:
    """Return floating-point numbers as whole ones, as numpy does: those too large are wrapped, where jax takes the end.

    Numpy goes by signed ones of a processor's; what is beyond these, it says itself here.
    """
    wide = np.dtype(np.int32 if dtype.itemsize <= 2 or dtype == np.int32 else np.int64)
    least = -(2.0 ** (8 * wide.itemsize - 1))
    most = 2.0**64 if dtype == np.uint64 else -least
    with np.errstate(invalid="ignore"):
        high, low, none = np.array([np.inf, -np.inf, np.nan]).astype(dtype)
    found = jax.lax.convert_element_type(jax.lax.convert_element_type(x, wide), dtype)
    if dtype == np.uint64:
        found = jnp.where(x >= -least, jax.lax.convert_element_type(x, dtype), found)
    return jnp.where(x >= most, high, jnp.where(x < least, low, jnp.where(jnp.isnan(x), none, found)))


LONG = {np.dtype(np.longdouble), np.dtype(np.clongdouble)} - {np.dtype(float), np.dtype(complex)}


def as_dtype(operand: Array, dtype: DType) -> Any:
    """Return an operand in a dtype; a large constant of one number alone is made on the device."""
    if np.dtype(dtype) in LONG or np.dtype(dtype).kind not in "biufc":
        raise NotDifferentiableError(refusals.of_words(np.dtype(dtype)))
    if isinstance(operand, jax.Array):
        same = operand.dtype == dtype and not operand.weak_type
        if operand.dtype.kind == "f" and np.dtype(dtype).kind in "iu":
            return whole_of(operand, np.dtype(dtype))
        if operand.dtype == bool and np.dtype(dtype).kind in "fc":  # converted by XLA, it were zero times infinity
            return jnp.where(operand, jnp.ones((), dtype), jnp.zeros((), dtype))
        if np.dtype(dtype).kind == "b" and operand.dtype.kind == "c":  # jax would look at the real part only
            return jnp.not_equal(operand, 0)
        return operand if same else jax.lax.convert_element_type(operand, dtype)
    array = np.asarray(operand, dtype)
    if array.size > 64 and (array == array.flat[0]).all():
        return jnp.full(array.shape, array.flat[0], dtype)
    return array
