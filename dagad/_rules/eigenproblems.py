"""Eigenvalues and eigenvectors by scipy.linalg: of two matrices, of bands, some of them, and of any matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np
import scipy.linalg as of
from autograd.numpy import linalg

from dagad._errors import NotDifferentiableError
from dagad._rules.linalg_rules import solve
from dagad._rules.scipy_banded import hermitian
from dagad._rules.scipy_functions import defined, stock
from dagad._rules.triangles import adjoint, mirrored
from dagad._tracing import refusals
from dagad._tracing.patches import Swap
from dagad._types import Array
from dagad._values import pytree

plain = pytree.plain

_EIGH, _EIG, _EIGVALS = stock(of.eigh), stock(of.eig), stock(of.eigvals)
_OF_DIAGONALS, _OF_BANDS = stock(of.eigh_tridiagonal), stock(of.eig_banded)
_PHASES = " of complex matrices with vectors, in this form: their phases are free there. Call it for the values alone"


def _refuse(name: str, **options: Any) -> None:
    strange = [option for option, value in options.items() if value is not None and value is not False]
    if strange:
        raise NotDifferentiableError(refusals.of_option(f"scipy.linalg.{name}", strange))


def _in_the_phases_of(vectors: Array, own: Array) -> Any:
    """Return vectors with the signs, or the phases, of scipy's own."""
    return vectors * np.sign(np.sum(np.conj(plain(vectors)) * own, axis=-2, keepdims=True))


# Hermitian matrices, and pairs of which the second one is positive definite


def _eigh(
    a: Array,
    b: Array = None,
    *,
    lower: bool = True,
    eigvals_only: bool = False,
    type: int = 1,
    check_finite: bool = True,
    subset_by_index: Iterable[int] | None = None,
    subset_by_value: Array = None,
    driver: str | None = None,
) -> Any:
    del check_finite
    _refuse("eigh", subset_by_value=subset_by_value)
    side = "L" if lower else "U"
    if b is None:
        values, vectors = linalg.eigh(mirrored(a, lower), side)  # as scipy's phases of vectors are
    else:
        values, vectors = _of_pair(mirrored(a, lower), mirrored(b, lower), side, type)
    if subset_by_index is not None:
        some = _between(subset_by_index)
        values, vectors = values[..., some], vectors[..., some]
    if eigvals_only:
        return values
    if np.iscomplexobj(plain(vectors)) and (subset_by_index is not None or driver is not None):
        raise NotDifferentiableError(refusals.of_function("scipy.linalg.eigh", _PHASES))
    options = {"type": type, "subset_by_index": subset_by_index, "driver": driver}
    return values, _in_the_phases_of(vectors, _EIGH(plain(a), plain(b), lower=lower, **options)[1])


def _between(ends: Iterable[int]) -> slice:
    first, last = ends
    return slice(int(first), int(last) + 1)


def _of_pair(a: Array, b: Array, side: str, type: int) -> tuple[Any, Any]:
    """Return values and vectors by those of one matrix, as LAPACK finds them: by a Cholesky factor of the second."""
    factor = linalg.cholesky(b)
    if type == 1:
        one = adjoint(solve(factor, adjoint(solve(factor, a))))
    else:
        one = anp.matmul(adjoint(factor), anp.matmul(a, factor))
    values, vectors = linalg.eigh(0.5 * (one + adjoint(one)), side)
    return values, anp.matmul(factor, vectors) if type == 3 else solve(adjoint(factor), vectors)


def _eigvalsh(a: Array, b: Array = None, **options: Any) -> Any:
    return _eigh(a, b, eigvals_only=True, **options)


# Of bands


def _some_of(name: str, select: str, ends: Any) -> slice:
    """Return which eigenvalues are asked for."""
    kind = select.lower()[:1] if isinstance(select, str) else "avi"[select]
    if kind == "v":  # how many there are depends on values
        raise NotDifferentiableError(refusals.of_option(f"scipy.linalg.{name}", [f"select={select!r}"]))
    return slice(None) if kind == "a" else _between(ends)


def _eigh_tridiagonal(
    d: Array,
    e: Array,
    eigvals_only: bool = False,
    select: str = "a",
    select_range: Sequence[float] | None = None,
    check_finite: bool = True,
    tol: float = 0.0,
    lapack_driver: str = "auto",
) -> Any:
    del check_finite
    some = _some_of("eigh_tridiagonal", select, select_range)
    below = anp.concatenate([e, np.zeros((*np.shape(plain(e))[:-1], 1))], -1)
    values, vectors = linalg.eigh(hermitian(anp.stack([d, below], -2), True))
    if eigvals_only:
        return values[..., some]
    own = _OF_DIAGONALS(plain(d), plain(e), False, select, select_range, True, tol, lapack_driver)[1]
    return values[..., some], _in_the_phases_of(vectors[..., some], own)


def _eigvalsh_tridiagonal(
    d: Array,
    e: Array,
    select: str = "a",
    select_range: Sequence[float] | None = None,
    check_finite: bool = True,
    tol: float = 0.0,
    lapack_driver: str = "auto",
) -> Any:
    del check_finite, tol, lapack_driver
    return _eigh_tridiagonal(d, e, True, select, select_range)


def _eig_banded(
    a_band: Array,
    lower: bool = False,
    eigvals_only: bool = False,
    overwrite_a_band: bool = False,
    select: str = "a",
    select_range: Sequence[float] | None = None,
    max_ev: int = 0,
    check_finite: bool = True,
) -> Any:
    del overwrite_a_band, check_finite
    some = _some_of("eig_banded", select, select_range)
    values, vectors = linalg.eigh(hermitian(a_band, lower))
    if eigvals_only:
        return values[..., some]
    if np.iscomplexobj(plain(vectors)):
        raise NotDifferentiableError(refusals.of_function("scipy.linalg.eig_banded", _PHASES))
    own = _OF_BANDS(plain(a_band), lower, False, False, select, select_range, max_ev)[1]
    return values[..., some], _in_the_phases_of(vectors[..., some], own)


def _eigvals_banded(
    a_band: Array,
    lower: bool = False,
    overwrite_a_band: bool = False,
    select: str = "a",
    select_range: Sequence[float] | None = None,
    check_finite: bool = True,
) -> Any:
    del overwrite_a_band, check_finite
    return _eig_banded(a_band, lower, True, False, select, select_range)


# Of any matrix


def _in_order_of(values: Array, own: Array) -> Any:
    """Return where the eigenvalues that scipy gives are among numpy's: of rounding they may stand otherwise."""
    distance = np.abs(plain(values)[..., None, :] - own[..., :, None])
    order: Any = np.empty(np.shape(own), int)
    for number in range(order.shape[-1]):
        order[..., number] = nearest = np.argmin(distance[..., number, :], axis=-1)
        np.put_along_axis(distance, np.expand_dims(nearest, (-2, -1)), np.inf, -1)  # each is somebody's once
    return order


def _eig(
    a: Array,
    b: Array = None,
    left: bool = False,
    right: bool = True,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    homogeneous_eigvals: bool = False,
) -> Any:
    del overwrite_a, overwrite_b, check_finite
    _refuse("eig", b=b, left=left, homogeneous_eigvals=homogeneous_eigvals)
    values, vectors = linalg.eig(a)
    own: Any = _EIG(plain(a)) if right else (_EIGVALS(plain(a)),)
    order = _in_order_of(values, own[0])
    values = anp.take_along_axis(values, order, -1)
    if not right:
        return values
    return values, _in_the_phases_of(anp.take_along_axis(vectors, order[..., None, :], -1), own[1])


def _eigvals(
    a: Array, b: Array = None, overwrite_a: bool = False, check_finite: bool = True, homogeneous_eigvals: bool = False
) -> Any:
    del overwrite_a, check_finite
    _refuse("eigvals", b=b, homogeneous_eigvals=homogeneous_eigvals)
    return _eig(a, right=False)


SWAPS: list[Swap] = [
    defined(of.eigh, _eigh),
    defined(of.eigvalsh, _eigvalsh),
    defined(of.eigh_tridiagonal, _eigh_tridiagonal),
    defined(of.eigvalsh_tridiagonal, _eigvalsh_tridiagonal),
    defined(of.eig_banded, _eig_banded),
    defined(of.eigvals_banded, _eigvals_banded),
    defined(of.eig, _eig),
    defined(of.eigvals, _eigvals),
]
