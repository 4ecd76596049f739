"""Distances of scipy.spatial.distance compiled: by the same definitions, in the precision that scipy has."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from dagad._engines.xla.conversions import as_dtype
from dagad._engines.xla.matrices import floating
from dagad._engines.xla.protocols import array_of
from dagad._rules import distances
from dagad._types import Array, Function


def _double(x: Array) -> Any:
    return as_dtype(array_of(x), np.float64)


def _cdist(
    XA: Array,
    XB: Array,
    metric: str | Function = "euclidean",
    out: object = None,
    w: Array = None,
    V: Array = None,
    VI: Array = None,
    p: object = None,
) -> Any:
    options = {"w": w, "V": V, "VI": VI, "p": p}
    return distances.between(_double(XA), _double(XB), *distances.asked("cdist", metric, out, options))


def _pdist(
    X: Array,
    metric: str | Function = "euclidean",
    out: object = None,
    w: Array = None,
    V: Array = None,
    VI: Array = None,
    p: object = None,
) -> Any:
    return distances.among(_double(X), *distances.asked("pdist", metric, out, {"w": w, "V": V, "VI": VI, "p": p}))


def _of_vectors(name: str, definition: Function) -> Function:
    """Return a function of vectors: its weights are double, and lengths by BLAS are Python's numbers."""

    @functools.wraps(definition)
    def run(u: Array, v: Array, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("w") is not None:
            kwargs["w"] = _double(kwargs["w"])
        found = definition(floating(u), floating(v), *args, **kwargs)
        is_length = name == "euclidean" or (name == "minkowski" and kwargs.get("p", 2) == 2)
        return as_dtype(found, np.float64) if is_length else found

    return run


DISTANCES: dict[str, Function] = {
    "cdist": _cdist,
    "pdist": _pdist,
    "squareform": distances.as_matrix,
    **{name: _of_vectors(name, definition) for name, definition in distances.VECTORS.items()},
}
