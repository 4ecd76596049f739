"""What an expression of `numpy_calls` gives, as one number, as a function of `x` and as a chunk function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.fft
import scipy.integrate
import scipy.linalg
import scipy.ndimage
import scipy.signal
import scipy.spatial.distance
import scipy.special
import scipy.stats

import dagad

RNG = np.random.default_rng(0)
X = RNG.uniform(0.3, 0.9, 12)
Y = np.linspace(0.5, 1.6, 12)
PLAIN = {
    "np": np,
    "special": scipy.special,
    "linalg": scipy.linalg,
    "stats": scipy.stats,
    "integrate": scipy.integrate,
    "distance": scipy.spatial.distance,
    "fft": scipy.fft,
    "signal": scipy.signal,
    "ndimage": scipy.ndimage,
}


def weighed(out: Any, xp: Any) -> Any:
    """Return one number in which every entry of what a function returned counts."""
    total: Any = 0.0
    for part in out if isinstance(out, list | tuple) else [out]:
        weights = np.cos(np.arange(np.prod(xp.shape(part), dtype=int))).reshape(xp.shape(part)) + 1.5
        total = total + 0.25 * np.size(weights)  # an entry too many may be zero
        total = total + xp.sum(weights * xp.real(part))
        total = total + xp.sum(weights * xp.imag(part)) if xp.iscomplexobj(part) else total
    return total


def evaluated(call: str, names: dict[str, Any]) -> Callable[[Any, Any], Any]:
    """Return a chunk function: an expression, from the functions of these modules."""
    fun = function(call, names)
    return lambda rows, x: weighed(fun(x), names["np"]) * np.sum(rows)


def function(call: str, names: dict[str, Any]) -> Callable[[Any], Any]:
    code, xp = compile(call, "<call>", "eval"), names["np"]

    def run(x: Any) -> Any:
        y, one = Y.astype(x.dtype), x.dtype.type(1)
        m = xp.reshape(x, (3, 4))
        made = {"x": x, "m": m, "s": xp.matmul(m, m.T) + np.eye(3, dtype=x.dtype), "y": y}
        made["z"] = x * (one + np.complex64(0.5j)) + np.complex64(0.25j) * x**2
        made["hole"] = xp.where(y > 1.5, one * np.nan, x)
        return eval(code, {**names, **made})

    return run


def total(chunk: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    return lambda x: dagad.reduce_sum(chunk, np.full(1, 2.0), x, grainsize=1, scheduler="sync")
