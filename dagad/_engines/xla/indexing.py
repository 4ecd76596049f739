"""Entries of what jax traces, by numpy's rules: lists are arrays, and none is taken for one out of bounds."""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import jax
import numpy as np

from dagad._engines.xla import refusals
from dagad._engines.xla.jaxs_core import Tracer
from dagad._engines.xla.protocols import array_of
from dagad._errors import NotDifferentiableError
from dagad._types import Array, DType

_BASIC = int | np.integer | slice | EllipsisType | None


def is_view(where: Any) -> bool:
    """Return whether what numpy returns for an index shares the array's memory."""
    return all(isinstance(part, _BASIC) for part in (where if isinstance(where, tuple) else (where,)))


def entries(array: Array, where: Any) -> Any:
    """Return the entries of a traced array at an index that may be traced too."""
    parts = tuple(map(array_of, where if isinstance(where, tuple) else (where,)))
    if any(isinstance(part, jax.Array) and part.dtype == bool for part in parts):
        raise NotDifferentiableError(refusals.of_shape("x[mask]", "`np.where(mask, x, 0.0)` does"))
    known = tuple(np.zeros(part.shape, int) if isinstance(part, jax.Array) else part for part in parts)
    if not any(0 in np.shape(array)[:1] and isinstance(part, jax.Array) for part in parts):
        np.broadcast_to(np.zeros((), bool), array.shape)[known]  # raises what numpy raises
    if is_view(where):
        return Tracer.__getitem__(array, where)
    if any(isinstance(part, jax.Array) for part in parts):  # of what is out of bounds jax would take another entry
        return array.at[parts].get(mode="fill", fill_value=beyond(array.dtype))
    return array.at[parts].get(mode="promise_in_bounds")


def beyond(dtype: DType) -> Any:
    """Return what stands for an entry that there is not, where an index is known too late for an error."""
    if dtype.kind in "fc":
        return np.nan
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max
