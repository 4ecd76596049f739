"""Distances of scipy.spatial.distance: what they are, in plain numpy, for each engine that has numpy's functions.

A distance has a corner where two points are one: its derivative there is 0, of any order, as that of `np.abs` is. So
kernels such as ``exp(-cdist(X, X))`` have finite gradients. On the diagonal of ``cdist(X, X)`` this is exact, whatever
function of the distance follows: a point never moves away from itself. Where points of two different arrays are one,
``cdist(X, Y)**2`` lacks the second derivative 2 of a square, since that of the distance is infinite there; the metric
`"sqeuclidean"` has it.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._rules.differences import squares
from dagad._rules.scipy_functions import defined, primitive_of, stock, swap
from dagad._tracing import refusals
from dagad._tracing.by_definition import as_given
from dagad._tracing.operands import array_of
from dagad._tracing.patches import Swap
from dagad._types import Array, Function, Kwargs
from dagad._values import pytree

plain = pytree.plain
HOME = "scipy.spatial.distance"
# The metrics by the names that scipy takes.
KINDS: dict[str, str] = {
    short: name
    for name, others in {
        "euclidean": "euclid eu e",
        "sqeuclidean": "sqe sqeuclid",
        "cityblock": "cblock cb c",
        "chebyshev": "chebychev cheby cheb ch",
        "minkowski": "mi m pnorm",
        "cosine": "cos",
        "correlation": "co",
        "mahalanobis": "mahal mahalanobis",
        "seuclidean": "se s",
    }.items()
    for short in (name, *others.split())
}


# Of differences, along the last axis


def _difference(u: Array, v: Array) -> Any:
    """Return a difference of real numbers."""
    _real(u, v)
    return u - v


def _real(*points: Array) -> None:
    if any(map(np.iscomplexobj, points)):
        raise NotDifferentiableError(refusals.of_function(HOME, " of complex numbers"))


def _root(square: Array, power: float = 0.5) -> Any:
    """Return a root, with the derivative 0 at 0."""
    some = square != 0  # what is no number stays none
    return np.where(some, np.where(some, square, 1.0) ** power, 0.0)


def _sum(terms: Array, w: Array) -> Any:
    return np.sum(terms if w is None else w * terms, axis=-1)


def _minkowski(d: Array, w: Array, p: float) -> Any:
    if p == 2:
        return _root(_sum(d * d, w))
    if p == 1:
        return _sum(np.abs(d), w)
    if p == np.inf:
        return np.max(np.abs(d) if w is None else (w > 0) * np.abs(d), axis=-1)
    if p % 2 == 0:
        return _root(_sum(d**p, w), 1.0 / p)
    some = d != 0  # an entry 0 has no second derivative for p < 2, and that of a power there is infinite
    return _root(_sum(np.where(some, np.where(some, np.abs(d), 1.0) ** p, 0.0), w), 1.0 / p)


_POWERS = {"euclidean": 2, "cityblock": 1, "chebyshev": np.inf}


def _of_differences(kind: str, d: Array, w: Array, v: Array, vi: Array, p: Any) -> Any:
    if kind == "sqeuclidean":
        return _sum(d * d, w)
    if kind == "seuclidean":
        return _root(np.sum(d * d / v, axis=-1))
    if kind == "mahalanobis":
        return _root(np.sum(np.matmul(d, vi) * d, axis=-1))
    return _minkowski(d, w, _POWERS.get(kind, 2 if p is None else p))


def _centred(a: Array, w: Array) -> Any:
    mean = np.mean(a, axis=-1) if w is None else np.sum(a * w, axis=-1) / np.sum(w)
    return a - mean[..., None]


def _angle(products: Array, a: Array, b: Array, w: Array) -> Any:
    """Return 1 less the cosine between vectors, from their products."""
    return 1.0 - products / np.sqrt(_sum(a * a, w) * _sum(b * b, w))


# Of arrays


def _is_plain(kind: str, w: Array, p: object) -> bool:
    """Return whether a distance follows from the sum of squares."""
    by_squares = kind in ("euclidean", "sqeuclidean") or (kind == "minkowski" and p in (None, 2))
    return by_squares and w is None


def between(
    xa: Array, xb: Array, w: Array, v: Array, vi: Array, kind: str, p: object, squares: Function | None = None
) -> Any:
    """Return the distances of all rows of one matrix to all of another."""
    if len(np.shape(plain(xa))) != 2 or np.shape(plain(xa))[1:] != np.shape(plain(xb))[1:]:  # where scipy is not asked
        raise ValueError("Distances are those between rows of two matrices with the same number of columns.")
    _real(xa, xb)
    if squares is not None and _is_plain(kind, w, p):
        return squares(xa, xb) if kind == "sqeuclidean" else _root(squares(xa, xb))
    if kind in ("cosine", "correlation"):
        if kind == "correlation":
            xa, xb = _centred(xa, w), _centred(xb, w)
        products = np.matmul(xa if w is None else xa * w, xb.T)
        return _angle(products, xa[:, None, :], xb[None, :, :], w)
    if (kind == "seuclidean" and v is None) or (kind == "mahalanobis" and vi is None):
        v, vi = _spread(kind, np.concatenate([xa, xb]))
    return _of_differences(kind, _difference(xa[:, None, :], xb[None, :, :]), w, v, vi, p)


def among(x: Array, w: Array, v: Array, vi: Array, kind: str, p: object, squares: Function | None = None) -> Any:
    """Return the distances of all pairs of rows, each pair once."""
    if len(np.shape(plain(x))) != 2:
        raise ValueError("Distances are those between rows of a matrix.")
    _real(x)
    first, second = np.triu_indices(np.shape(plain(x))[0], 1)
    if squares is not None and _is_plain(kind, w, p):
        found = squares(x, x)[first, second]
        return found if kind == "sqeuclidean" else _root(found)
    if kind in ("cosine", "correlation"):
        x = _centred(x, w) if kind == "correlation" else x
        a, b = x[first], x[second]
        return _angle(_sum(a * b, w), a, b, w)
    if (kind == "seuclidean" and v is None) or (kind == "mahalanobis" and vi is None):
        v, vi = _spread(kind, x)
    return _of_differences(kind, x[first] - x[second], w, v, vi, p)


def _spread(kind: str, x: Array) -> Any:
    """Return what scipy takes for variances, or for an inverse covariance, where it is told none."""
    if kind == "seuclidean":
        return np.var(x, axis=0, ddof=1), None
    centred = x - np.mean(x, axis=0)
    return None, np.linalg.inv(np.matmul(centred.T, centred) / (np.shape(plain(x))[0] - 1)).T


def as_matrix(x: Array, force: str = "no", checks: bool = True) -> Any:
    """Return distances of pairs as a symmetric matrix, or the other way round: of a matrix scipy reads the upper half.

    What scipy refuses, it has refused before.
    """
    del checks
    shape = np.shape(plain(x))
    n = round((1 + (1 + 8 * shape[0]) ** 0.5) / 2) if shape else 0
    right = shape[0] == shape[-1] if len(shape) == 2 else len(shape) == 1 and n * (n - 1) == 2 * shape[0]
    if not right or force.lower() not in ("no", "tovector" if len(shape) == 2 else "tomatrix"):
        raise ValueError(
            f"Distances of pairs can't be made a matrix or a vector by `force={force!r}` of shape {shape}."
        )
    if len(shape) == 2:
        return x[np.triu_indices(shape[0], 1)]
    if n < 2:
        return np.zeros((1, 1)) + 0.0 * np.sum(x)
    at = np.zeros((n, n), dtype=int)
    at[np.triu_indices(n, 1)] = np.arange(shape[0])
    at = at + at.T
    return np.where(np.eye(n, dtype=bool), 0, x[at])


# Of two vectors, or of those in two stacks


def _wide(w: Array) -> Any:
    """Return weights as scipy has them, in double precision."""
    return w.astype(float) if isinstance(w, np.ndarray) else w


def _scaled(length: Function) -> Function:
    """Return a length of differences that are scaled before by a power of 2: a slope is that of a direction.

    Scipy's lengths do not overflow either, up to 1.17; from 1.18 on they are those of stacks of vectors.
    """

    def scaled(u: Array, v: Array, w: Array = None) -> Any:
        d = _difference(u, v) if w is None else _root(_wide(w)) * _difference(u, v)
        if not np.size(plain(d)):
            return np.sum(d, axis=-1)
        power = np.frexp(np.max(np.abs(d), axis=-1))[1]
        return np.ldexp(length(np.ldexp(d, -power[..., None])), power)

    return scaled


def _numbers_of(u: Array, v: Array, p: float = 2, w: Array = None) -> Any:
    p = _constant(p, f"{HOME}.minkowski")
    return euclidean(u, v, w) if p == 2 else _minkowski(_difference(u, v), _wide(w), p)


def _correlation(u: Array, v: Array, w: Array = None, centered: bool = True) -> Any:
    w = _wide(w)
    u, v = (_centred(u, w), _centred(v, w)) if centered else (u, v)
    w = None if w is None else w / np.sum(w)
    return _angle(_sum(u * v, w), u, v, w)


euclidean = _scaled(lambda d: _root(np.sum(d * d, axis=-1)))
VECTORS: dict[str, Function] = {
    "euclidean": euclidean,
    "sqeuclidean": lambda u, v, w=None: _sum(_difference(u, v) ** 2, _wide(w)),
    "cityblock": lambda u, v, w=None: _minkowski(_difference(u, v), _wide(w), 1),
    "chebyshev": lambda u, v, w=None: _minkowski(_difference(u, v), w, np.inf),
    "minkowski": _numbers_of,
    "cosine": lambda u, v, w=None: _correlation(u, v, w, False),
    "correlation": _correlation,
    "mahalanobis": lambda u, v, VI: _of_differences(
        "mahalanobis", _difference(u, v), None, None, np.atleast_2d(VI), None
    ),
}


# As scipy calls them


def asked(name: str, metric: str | Function, out: object, options: Kwargs) -> tuple[Any, ...]:
    """Return w, V, VI, the kind of the metric and p, or refuse what is asked for."""
    if out is not None:
        raise NotDifferentiableError(refusals.of_out(f"{HOME}.{name}"))
    kind = KINDS.get(metric.lower()) if isinstance(metric, str) else None
    if kind is None:
        shown = repr(metric) if isinstance(metric, str) else getattr(metric, "__name__", metric)
        raise NotDifferentiableError(refusals.of_option(f"{HOME}.{name}", [f"metric={shown}"]))
    strange = [option for option in options if option not in ("w", "V", "VI", "p")]
    if strange:
        raise NotDifferentiableError(refusals.of_option(f"{HOME}.{name}", strange))
    w, v, vi = (None if options.get(each) is None else array_of(options[each]) for each in ("w", "V", "VI"))
    return w, v, vi, kind, _constant(options.get("p"), f"{HOME}.{name}")


def _constant(p: object, name: str) -> Any:
    """Return the order of a metric, which has no derivative here."""
    if p is not None and not isinstance(p, int | float | np.number):
        raise NotDifferentiableError(refusals.of_option(name, ["p"]))
    return p


def _given(w: Array, v: Array, vi: Array, p: object) -> Kwargs:
    return {name: each for name, each in {"w": w, "V": v, "VI": vi, "p": p}.items() if each is not None}


def _of_pairs(module: ModuleType) -> list[Swap]:
    to_all, to_each = stock(module.cdist), stock(module.pdist)

    def cdist(xa: Array, xb: Array, w: Array, v: Array, vi: Array, kind: str, p: object) -> Any:
        return to_all(xa, xb, kind, **_given(w, v, vi, p))

    def pdist(x: Array, w: Array, v: Array, vi: Array, kind: str, p: object) -> Any:
        return to_each(x, kind, **_given(w, v, vi, p))

    all_rows = primitive_of(cdist, functools.partial(between, squares=squares))
    each_pair = primitive_of(pdist, functools.partial(among, squares=squares))

    def our_cdist(
        XA: Array, XB: Array, metric: str | Function = "euclidean", *, out: object = None, **options: Any
    ) -> Any:
        return all_rows(XA, XB, *asked("cdist", metric, out, options))

    def our_pdist(X: Array, metric: str | Function = "euclidean", *, out: object = None, **options: Any) -> Any:
        return each_pair(X, *asked("pdist", metric, out, options))

    return [swap(module.cdist, our_cdist), swap(module.pdist, our_pdist)]


def of_distances(module: ModuleType) -> list[Swap]:
    """Return the swaps for `scipy.spatial.distance`."""
    return [
        *_of_pairs(module),
        defined(module.squareform, as_given(as_matrix)),
        *(defined(getattr(module, name), definition) for name, definition in VECTORS.items()),
    ]
