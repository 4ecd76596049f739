"""Statistics of samples in scipy.stats: moments, means, scores, entropies, and densities by kernels.

Imported when a process records and has scipy.stats. The value is scipy's own, the derivative that of its definition,
which is all there is where jax traces.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
import scipy.stats as of

from dagad._errors import NotDifferentiableError
from dagad._rules.scipy_functions import defined, primitive_of, stock, swap
from dagad._rules.scipy_rules import f
from dagad._tracing import refusals
from dagad._tracing.by_definition import as_given
from dagad._tracing.patches import Swap
from dagad._types import Array, Axis, DType, Function
from dagad._values import pytree

plain = pytree.plain


def _check(name: str, nan_policy: str, dtype: DType = None) -> None:
    """Refuse what leaves entries out, which ones is seen by their values, and other precisions."""
    if nan_policy != "propagate":
        raise NotDifferentiableError(refusals.of_option(f"scipy.stats.{name}", [f"nan_policy={nan_policy!r}"]))
    if dtype is not None:
        raise NotDifferentiableError(refusals.of_option(f"scipy.stats.{name}", ["dtype"]))


def _central(a: Array, order: int, axis: Axis, center: Array = None, keepdims: bool = False) -> Any:
    middle = anp.mean(a, axis=axis, keepdims=True) if center is None else center
    return anp.mean((a - middle) ** order, axis=axis, keepdims=keepdims)


def _count(a: Array, axis: Axis) -> int:
    shape = np.shape(plain(a))
    return int(np.prod(shape)) if axis is None else int(np.prod([shape[each] for each in np.atleast_1d(axis)]))


def _moment(
    a: Array,
    order: int = 1,
    axis: Axis = 0,
    nan_policy: str = "propagate",
    *,
    center: Array = None,
    keepdims: bool = False,
) -> Any:
    _check("moment", nan_policy)
    if np.ndim(order) or order != int(order):
        raise NotDifferentiableError(refusals.of_option("scipy.stats.moment", [f"order={order!r}"]))
    if order == 1 and center is None:  # none of it is left, whatever is rounded
        return 0.0 * anp.mean(a, axis=axis, keepdims=keepdims)
    return _central(a, int(order), axis, center, keepdims)


def _skew(a: Array, axis: Axis = 0, bias: bool = True, nan_policy: str = "propagate", *, keepdims: bool = False) -> Any:
    _check("skew", nan_policy)
    found, n = _central(a, 3, axis, None, keepdims) / _central(a, 2, axis, None, keepdims) ** 1.5, _count(a, axis)
    return found if bias or n <= 2 else math.sqrt((n - 1.0) * n) / (n - 2.0) * found


def _kurtosis(
    a: Array,
    axis: Axis = 0,
    fisher: bool = True,
    bias: bool = True,
    nan_policy: str = "propagate",
    *,
    keepdims: bool = False,
) -> Any:
    _check("kurtosis", nan_policy)
    found, n = _central(a, 4, axis, None, keepdims) / _central(a, 2, axis, None, keepdims) ** 2, _count(a, axis)
    if not bias and n > 3:
        found = ((n**2 - 1.0) * found - 3.0 * (n - 1.0) ** 2) / ((n - 2.0) * (n - 3.0)) + 3.0
    return found - 3.0 if fisher else found


def _mean_of(name: str, there: Function, back: Function) -> Function:
    """Return the mean of a function of entries, taken back."""

    def mean(
        a: Array,
        axis: Axis = 0,
        dtype: DType = None,
        weights: Array = None,
        *,
        nan_policy: str = "propagate",
        keepdims: bool = False,
    ) -> Any:
        _check(name, nan_policy, dtype)
        own = there(a)
        if weights is None:
            return back(anp.mean(own, axis=axis, keepdims=keepdims))
        if np.shape(plain(weights)) != np.shape(plain(a)):
            raise NotDifferentiableError(
                f"`scipy.stats.{name}` was called with `weights` of another shape than what is averaged, and dagad "
                "has no derivative of that. Give it `np.broadcast_to(weights, shape)`."
            )
        total = anp.sum(weights, axis=axis, keepdims=keepdims)
        return back(anp.sum(weights * own, axis=axis, keepdims=keepdims) / total)

    return mean


def _zscore(a: Array, axis: Axis = 0, ddof: int = 0, nan_policy: str = "propagate") -> Any:
    _check("zscore", nan_policy)
    away = a - anp.mean(a, axis=axis, keepdims=True)
    return away / anp.std(a, axis=axis, ddof=ddof, keepdims=True)


def _sem(a: Array, axis: Axis = 0, ddof: int = 1, nan_policy: str = "propagate", *, keepdims: bool = False) -> Any:
    _check("sem", nan_policy)
    return anp.std(a, axis=axis, ddof=ddof, keepdims=keepdims) / math.sqrt(_count(a, axis))


def _variation(
    a: Array, axis: Axis = 0, nan_policy: str = "propagate", ddof: int = 0, *, keepdims: bool = False
) -> Any:
    _check("variation", nan_policy)
    return anp.std(a, axis=axis, ddof=ddof, keepdims=keepdims) / anp.mean(a, axis=axis, keepdims=keepdims)


def _entropy(
    pk: Array,
    qk: Array = None,
    base: float | None = None,
    axis: Axis = 0,
    *,
    nan_policy: str = "propagate",
    keepdims: bool = False,
) -> Any:
    _check("entropy", nan_policy)
    if qk is not None:  # which has the sums of the shape that both have together
        shape = np.broadcast_shapes(np.shape(plain(pk)), np.shape(plain(qk)))
        pk, qk = (anp.broadcast_to(each, shape) for each in (pk, qk))
    shares = pk / anp.sum(pk, axis=axis, keepdims=True)
    terms = f.entr(shares) if qk is None else f.rel_entr(shares, qk / anp.sum(qk, axis=axis, keepdims=True))
    found = anp.sum(terms, axis=axis, keepdims=keepdims)
    if base is None:
        return found
    return found / (math.log(base) if isinstance(base, int | float) else anp.log(base))  # of no precision of its own


def _boxcox_llf(
    lmb: Array, data: Array, *, axis: Axis = 0, keepdims: bool = False, nan_policy: str = "propagate"
) -> Any:
    _check("boxcox_llf", nan_policy)
    spread = anp.log(anp.var(f.boxcox(data, lmb), axis=axis, keepdims=keepdims))
    return (lmb - 1.0) * anp.sum(anp.log(data), axis=axis, keepdims=keepdims) - 0.5 * _count(data, axis) * spread


DEFINITIONS: dict[str, Function] = {
    "boxcox_llf": _boxcox_llf,
    "entropy": _entropy,
    "gmean": _mean_of("gmean", anp.log, anp.exp),
    "hmean": _mean_of("hmean", lambda a: 1.0 / a, lambda a: 1.0 / a),
    "kurtosis": _kurtosis,
    "moment": _moment,
    "sem": _sem,
    "skew": _skew,
    "variation": _variation,
    "zscore": _zscore,
}


# Densities by kernels, at points that move


def _log_terms(kde: Any, points: Array) -> Any:
    """Return the logarithm of what each row of the data gives to the density at each point."""
    held = np.shape(plain(points))
    if len(held) < 2 or (held[0] == 1 and held[1] == kde.d):  # one point, or points on a line
        points = anp.reshape(points, (kde.d, -1))
    root = kde.cho_cov  # of the covariance, its lower factor
    white = np.linalg.inv(root)
    away = (np.matmul(white, kde.dataset)[:, :, None] - anp.matmul(white, points)[:, None, :]) ** 2
    scale = np.sum(np.log(np.diag(root))) + 0.5 * kde.d * np.log(2.0 * np.pi)
    return np.log(kde.weights)[:, None] - 0.5 * anp.sum(away, axis=0) - scale


def _density(kde: object, points: Array) -> Any:
    return anp.sum(anp.exp(_log_terms(kde, points)), axis=0)


def _log_density(kde: object, x: Array) -> Any:
    terms = _log_terms(kde, x)
    top = np.max(plain(terms), axis=0)
    return anp.log(anp.sum(anp.exp(terms - top), axis=0)) + top


OF_KERNELS: dict[str, Callable[[Any, Any], Any]] = {"evaluate": _density, "logpdf": _log_density}


def _by_kernels(name: str, definition: Function) -> Swap:
    own = stock(getattr(of.gaussian_kde, name))

    def value(kde: object, points: Array) -> Any:
        return own(kde, points)

    value.__name__ = f"scipy.stats.gaussian_kde.{name}"
    return swap(getattr(of.gaussian_kde, name), primitive_of(value, as_given(definition)))


SWAPS: list[Swap] = [defined(getattr(of, name), definition) for name, definition in DEFINITIONS.items()]
SWAPS += [_by_kernels(name, definition) for name, definition in OF_KERNELS.items()]
