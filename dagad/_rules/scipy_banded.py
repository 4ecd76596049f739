"""Solvers and factors of scipy.linalg for band matrices as traced arrays meet them."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
import scipy.linalg as of
from autograd.numpy import linalg

from dagad._errors import NotDifferentiableError
from dagad._rules import bands
from dagad._rules.linalg_rules import solve
from dagad._rules.scipy_functions import defined, primitive_of, stock, swap
from dagad._rules.triangles import adjoint, mirrored
from dagad._tracing import refusals
from dagad._tracing.operands import array_of
from dagad._tracing.patches import Swap
from dagad._tracing.rules import own_primitive, shaped
from dagad._types import Argnums, Args, Array, Function, Kwargs, Tangents, Value
from dagad._values import pytree

plain = pytree.plain


def _taken(ab: Array, at: Array) -> Any:
    """Return entries of what is kept of matrices, by their indices."""
    shape = np.shape(plain(ab))
    flat = anp.reshape(ab, (*shape[:-2], shape[-2] * shape[-1]))
    zero = np.zeros((*shape[:-2], 1), plain(ab).dtype)
    return anp.concatenate([zero, flat], -1)[..., at]


def dense(ab: Array, below: int, above: int) -> Any:
    """Return the matrix of which these diagonals are kept."""
    return _taken(ab, bands.of_dense(np.shape(plain(ab))[-1], below, above))


def hermitian(ab: Array, lower: bool) -> Any:
    """Return the Hermitian matrix of which one half of its diagonals is kept."""
    return mirrored(triangle(ab, lower), lower)


def triangle(ab: Array, lower: bool) -> Any:
    """Return the triangular matrix of which these diagonals are kept."""
    beside = np.shape(plain(ab))[-2] - 1
    return dense(ab, *((beside, 0) if lower else (0, beside)))


# Any band matrix: solved in its bands, and so are its derivatives


def _kept_of_product(s: Array, x: Array, below: int, above: int) -> Any:
    """Return what is kept of the matrix s x^T; of several vectors the sum."""
    row, inside = bands.of_columns(np.shape(plain(x))[0], below, above)
    s, x = (anp.reshape(each, (np.shape(plain(each))[0], -1)) for each in (s, x))
    return inside * anp.sum(s[row] * x, axis=-1)


def _times(ab: Array, x: Array, below: int, above: int) -> Any:
    """Return the product of a band matrix and vectors."""
    at, column = bands.of_rows(np.shape(plain(x))[0], below, above)
    entries = _taken(ab, at)
    return anp.sum((entries[..., None] if np.ndim(plain(x)) > 1 else entries) * x[column], axis=0)


def _banded_vjp(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Function:
    del kwargs
    ab, _, below, above = args
    transposed_bands = _taken(ab, bands.of_transposed(np.shape(plain(ab))[1], below, above))

    def pullback(g: Array) -> Any:
        s = _BANDED(transposed_bands, g, above, below)
        parts = [s if argnum else -_kept_of_product(s, ans, below, above) for argnum in argnums]
        return tuple(shaped(part, args[argnum]) for part, argnum in zip(parts, argnums, strict=True))

    return pullback


def _banded_jvp(argnums: Argnums, tangents: Tangents, ans: Value, args: Args, kwargs: Kwargs) -> Any:
    del kwargs
    ab, _, below, above = args
    found: Any = 0.0
    for argnum, tangent in zip(argnums, tangents, strict=True):
        found = found + (tangent if argnum else -_times(tangent, ans, below, above))
    return _BANDED(ab, found, below, above)


_SOLVE_BANDED, _SOLVE_FACTOR = stock(of.solve_banded), stock(of.cho_solve_banded)


def _solve_in_bands(ab: Array, b: Array, below: int, above: int) -> Any:
    return _SOLVE_BANDED((below, above), ab, b)


_BANDED = own_primitive(_solve_in_bands, _banded_vjp, _banded_jvp)


def _solve_banded(
    l_and_u: tuple[int, int],
    ab: Array,
    b: Array,
    overwrite_ab: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Any:
    del overwrite_ab, overwrite_b, check_finite
    if np.ndim(plain(ab)) > 2 or np.ndim(plain(b)) > 2:
        why = " of a stack of matrices. Call it for each of them, and put the results together by `np.stack`"
        raise NotDifferentiableError(refusals.of_function("scipy.linalg.solve_banded", why))
    below, above = l_and_u
    if np.shape(plain(ab))[0] != below + above + 1:  # of one row and column scipy takes what others there are
        return _SOLVE_ONE(ab, b, below, above)
    return _BANDED(ab, b, below, above)


_SOLVE_ONE = primitive_of(_solve_in_bands, lambda ab, b, below, above: b / ab[above, 0])


def _solveh_banded(ab: Array, b: Array, lower: bool = False, check_finite: bool = True) -> Any:
    del check_finite
    return solve(hermitian(ab, lower), b)


# Cholesky factors: what scipy keeps beside the matrix stays where it is


def _cholesky_banded(ab: Array, lower: bool = False, check_finite: bool = True) -> Any:
    del check_finite
    kept, n = np.shape(plain(ab))[-2:]
    below, above = (kept - 1, 0) if lower else (0, kept - 1)
    factor = linalg.cholesky(hermitian(ab, lower))
    row, inside = bands.of_columns(n, below, above)
    return inside * (factor if lower else adjoint(factor))[..., row, np.arange(n)] + ~inside * ab


def _factor_solution(cb: Array, b: Array, lower: bool) -> Any:
    return _SOLVE_FACTOR((cb, lower), b)


def _of_factor(cb: Array, b: Array, lower: bool) -> Any:
    factor = triangle(cb, lower) if lower else adjoint(triangle(cb, lower))
    return solve(adjoint(factor), solve(factor, b))


def _cho_solve_banded() -> Swap:
    made = primitive_of(_factor_solution, _of_factor)

    def ours(cb_and_lower: tuple[Array, bool], b: Array, overwrite_b: bool = False, check_finite: bool = True) -> Any:
        del overwrite_b, check_finite
        return made(array_of(cb_and_lower[0]), b, cb_and_lower[1])

    return swap(of.cho_solve_banded, ours)


SWAPS: list[Swap] = [
    swap(of.solve_banded, _solve_banded),
    defined(of.solveh_banded, _solveh_banded),
    defined(of.cholesky_banded, _cholesky_banded),
    _cho_solve_banded(),
]
