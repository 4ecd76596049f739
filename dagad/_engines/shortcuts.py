"""Two of autograd's helpers, replaced by equals that don't question numpy four times an operation.

On tapes of many small operations autograd spends a fifth of its time asking for the shape, the rank, the dtype and the
kind of numbers it knows. The replacements answer for plain arrays and numbers themselves, and hand everything else to
the originals.

State: autograd's own ``numpy_wrapper.metadata`` and ``numpy_vjps.unbroadcast``, set once, when this module is imported,
if they answer what the replacements answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from autograd.numpy import numpy_vjps, numpy_wrapper
from autograd.tracer import isbox

_metadata, _unbroadcast = numpy_wrapper.metadata, numpy_vjps.unbroadcast
_FLOAT = np.dtype(float)


def metadata(target: Any) -> Any:
    """Return shape, rank, dtype, and whether it is complex."""
    while isbox(target):
        target = target._value
    kind = type(target)
    if kind is np.ndarray:
        return target.shape, target.ndim, target.dtype, target.dtype.kind == "c"
    if kind is np.float64 or kind is float:
        return (), 0, _FLOAT, False
    return _metadata(target)


def unbroadcast(x: Any, target_meta: Any, broadcast_idx: int = 0) -> Any:
    """Sum a cotangent over the axes along which its target was broadcast."""
    shape = target_meta[0]
    kind = type(x)
    if kind is np.ndarray:
        if x.shape == shape and 1 not in shape and x.dtype.kind != "c":
            return x
    elif (kind is np.float64 or kind is float) and not shape:
        return x
    return _unbroadcast(x, target_meta, broadcast_idx)


def _agree() -> bool:
    """Return whether the originals still mean the same."""
    samples = [1.0, np.float64(2.0), np.ones(3), np.ones((2, 1)), np.ones(2, complex), np.float32(1.0)]
    same = all(_metadata(sample) == metadata(sample) for sample in samples)
    pairs = [(np.ones(3), np.ones(3)), (np.ones((2, 3)), np.ones(3)), (np.float64(1.0), 2.0), (np.ones(3), 1.0)]
    return same and all(
        np.array_equal(_unbroadcast(x, _metadata(target)), unbroadcast(x, metadata(target))) for x, target in pairs
    )


if _agree():
    numpy_wrapper.metadata, numpy_vjps.unbroadcast = metadata, unbroadcast
