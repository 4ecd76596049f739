"""Whole numbers as numpy makes them of others, where jax has others."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
