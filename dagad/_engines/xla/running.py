"""Methods of ufuncs of what jax traces that are no functions of numpy's: extremes and sums so far, of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special as jss

from dagad._engines.xla import corners, refusals
from dagad._engines.xla.jaxs_core import Tracer
from dagad._engines.xla.matrices import floating
from dagad._engines.xla.protocols import METHODS
from dagad._errors import NotDifferentiableError
from dagad._rules.ufunc_methods import axis_of, log_sums, numbers_of
from dagad._types import Array, Axis, Function


def _so_far(function: Function) -> Function:
    return lambda a, axis=0: function(a, axis)


def _log_sum(a: Array, axis: Axis = 0, keepdims: bool = False) -> Any:
    return jss.logsumexp(floating(a), axis=axis, keepdims=keepdims)


def _log_sums(a: Array, axis: int | None = 0) -> Any:
    return log_sums(floating(a), axis_of(a, axis), jnp, corners.logaddexp)


def _sums(a: Array, indices: Sequence[int] | Array, axis: int | None = 0) -> Any:
    axis = axis_of(a, axis)
    if isinstance(indices, Tracer):
        raise NotDifferentiableError(refusals.of_function("np.add.reduceat", " with indices that are traced"))
    a = jnp.moveaxis(a, axis, 0)
    first, numbers = numbers_of(indices, len(a))
    n = len(np.asarray(indices))
    found = jax.ops.segment_sum(a[first:], numbers, num_segments=n, indices_are_sorted=True)
    return jnp.moveaxis(found, 0, axis)


METHODS.update(
    {
        "maximum.accumulate": _so_far(corners.cummax),
        "minimum.accumulate": _so_far(corners.cummin),
        "logaddexp.reduce": _log_sum,
        "logaddexp.accumulate": _log_sums,
        "add.reduceat": _sums,
    }
)
