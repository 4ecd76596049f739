"""Numpy's histograms of what jax traces: their dtypes, and lists of edges and columns, are other ones in jax."""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax.numpy as jnp
import numpy as np

from dagad._engines.xla.conversions import as_dtype
from dagad._engines.xla.missing import beyond, note
from dagad._engines.xla.protocols import Called, array_of, stand_in
from dagad._types import Array


def histogram(
    a: Array, bins: Array = 10, range: object = None, density: bool | None = None, weights: Array = None
) -> Any:
    """Return counts, as whole numbers, or sums of weights in the dtype that these have, and edges."""
    weights = None if weights is None else jnp.asarray(array_of(weights))
    sums, edges = Called(np.histogram)(a, bins, range, density, weights)
    if not density:
        sums = as_dtype(sums, np.dtype(int) if weights is None else weights.dtype)
    return _of_finite(sums, [edges]), edges


def _of_finite(sums: Array, edges: Array) -> Any:
    """Return sums, or what stands for none: of a range that is not finite numpy raises an error, where it is known."""
    found = functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(each)) for each in edges])
    note(~found)
    return jnp.where(found, sums, np.asarray(beyond(sums.dtype), sums.dtype))


def histogramdd(
    sample: Array, bins: Array = 10, range: Any = None, density: bool | None = None, weights: Array = None
) -> Any:
    """Return sums of weights and edges. A list is one of columns, and an array of these is not."""
    columns = array_of(sample)
    if isinstance(sample, list | tuple):
        columns = jnp.stack([jnp.asarray(array_of(each)) for each in sample], axis=-1)
    elif np.ndim(stand_in(array_of(sample))) == 1:
        columns = array_of(sample)[:, None]
    edges = jnp.histogramdd(columns, _bins(bins), range)[1]
    weights = None if weights is None else jnp.asarray(weights, float)  # what numpy adds up in
    sums = jnp.histogramdd(columns, _bins(bins), range, weights)[0].astype(float)
    if density:  # jax would do this in the precision of the sample
        volumes = functools.reduce(operator.mul, jnp.ix_(*map(jnp.diff, edges)))
        sums = sums / volumes / jnp.sum(sums)
    return _of_finite(sums, edges), tuple(edges)


def histogram2d(
    x: Array, y: Array, bins: Array = 10, range: object = None, density: bool | None = None, weights: Array = None
) -> tuple[Any, Any, Any]:
    if (isinstance(bins, list | tuple) or np.ndim(bins)) and len(bins) not in (1, 2):  # the edges of both
        bins = [bins, bins]
    sums, (of_x, of_y) = histogramdd([x, y], bins, range, density, weights)
    return sums, of_x, of_y


def _bins(bins: Array) -> Any:
    if not isinstance(bins, list | tuple):
        return bins
    return [jnp.asarray(each) if np.ndim(each) else each for each in map(array_of, bins)]
