"""Functions of scipy.linalg that jax has none for: bands, pairs of matrices, factors, and what is made of vectors.

Bands are dense here, so that large ones are refused: what scipy does in their diagonals would take their square.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import scipy.linalg

from dagad._engines.xla import refusals
from dagad._engines.xla.conversions import as_dtype
from dagad._engines.xla.equations import discrete_riccati, lyapunov, riccati, stein, sylvester, unitary
from dagad._engines.xla.matrices import double, floating, mirrored
from dagad._engines.xla.protocols import array_of, common_dtype
from dagad._errors import NotDifferentiableError
from dagad._rules import bands
from dagad._types import Args, Array, Function, Tangents

MOST_ROWS = 1000


def _refuse(name: str, why: str) -> None:
    raise NotDifferentiableError(refusals.of_function(f"scipy.linalg.{name}", why))


def _adjoint(a: Array) -> Any:
    return jnp.conj(jnp.swapaxes(a, -1, -2))


def _solve(a: Array, b: Array) -> Any:
    dtype = common_dtype([a, b])
    return jnp.linalg.solve(as_dtype(a, dtype), as_dtype(b, dtype))


def _one_matrix(name: str, *arrays: Any) -> None:
    if any(np.ndim(each) > 2 for each in arrays):
        _refuse(name, " of a stack of matrices")


# Bands


def _dense(name: str, ab: Array, below: int, above: int) -> Any:
    n = ab.shape[-1]
    if n > MOST_ROWS:
        _refuse(name, f" of a band matrix with more than {MOST_ROWS:,} rows, which would be a dense one,")
    zero = jnp.zeros((*ab.shape[:-2], 1), ab.dtype)
    flat = jnp.concatenate([zero, ab.reshape(*ab.shape[:-2], -1)], -1)
    return flat[..., bands.of_dense(n, below, above)]


def _triangle(name: str, ab: Array, lower: bool) -> Any:
    beside = ab.shape[-2] - 1
    return _dense(name, ab, *((beside, 0) if lower else (0, beside)))


def _hermitian(name: str, ab: Array, lower: bool) -> Any:
    return mirrored(_triangle(name, ab, lower), lower)


def _solve_banded(l_and_u: tuple[int, int], ab: Array, b: Array) -> Any:
    ab, b = floating(ab), floating(b)
    _one_matrix("solve_banded", ab, b)
    below, above = l_and_u
    if ab.shape[-1] == 1:
        return b / ab[above, 0]
    return _solve(_dense("solve_banded", ab, below, above), b)


def _solveh_banded(ab: Array, b: Array, lower: bool = False) -> Any:
    return _solve(_hermitian("solveh_banded", floating(ab), lower), floating(b))


def _cholesky_banded(ab: Array, lower: bool = False) -> Any:
    ab = floating(ab)
    kept, n = ab.shape[-2:]
    factor = jnp.linalg.cholesky(_hermitian("cholesky_banded", ab, lower), upper=not lower)
    row, inside = bands.of_columns(n, *((kept - 1, 0) if lower else (0, kept - 1)))
    return jnp.where(inside, factor[..., row, np.arange(n)], ab)


def _cho_solve_banded(cb_and_lower: tuple[Array, bool], b: Array) -> Any:
    cb, lower = cb_and_lower
    cb, b = floating(cb), floating(b)
    _one_matrix("cho_solve_banded", cb, b)
    dtype = common_dtype([cb, b])
    return jsp.linalg.cho_solve((_triangle("cho_solve_banded", as_dtype(cb, dtype), lower), lower), as_dtype(b, dtype))


# Eigenvalues


def _eigh(
    a: Array,
    b: Array = None,
    lower: bool = True,
    eigvals_only: bool = False,
    type: int = 1,
    subset_by_index: Sequence[int] | None = None,
) -> Any:
    a = mirrored(floating(a), lower)
    some = slice(None) if subset_by_index is None else slice(int(subset_by_index[0]), int(subset_by_index[1]) + 1)
    if b is None:
        if eigvals_only:
            return jnp.linalg.eigvalsh(a)[..., some]
        values, vectors = jnp.linalg.eigh(a)
        return values[..., some], vectors[..., some]
    dtype = common_dtype([a, floating(b)])
    a, factor = as_dtype(a, dtype), jnp.linalg.cholesky(mirrored(as_dtype(floating(b), dtype), lower))
    if type == 1:
        one = _adjoint(_solve(factor, _adjoint(_solve(factor, a))))
    else:
        one = _adjoint(factor) @ a @ factor
    one = 0.5 * (one + _adjoint(one))
    if eigvals_only:
        return jnp.linalg.eigvalsh(one)[..., some]
    values, vectors = jnp.linalg.eigh(one)
    vectors = factor @ vectors if type == 3 else _solve(_adjoint(factor), vectors)
    return values[..., some], vectors[..., some]


def _eigvalsh(
    a: Array, b: Array = None, lower: bool = True, type: int = 1, subset_by_index: Sequence[int] | None = None
) -> Any:
    return _eigh(a, b, lower, True, type, subset_by_index)


def _some_of(name: str, select: str, ends: object) -> Any:
    kind = select.lower()[:1] if isinstance(select, str) else "avi"[select]
    if kind == "v":
        raise NotDifferentiableError(refusals.of_option(f"scipy.linalg.{name}", [f"select={select!r}"]))
    return None if kind == "a" else ends


def _eigh_tridiagonal(
    d: Array, e: Array, eigvals_only: bool = False, select: str = "a", select_range: Sequence[float] | None = None
) -> Any:
    if _some_of("eigh_tridiagonal", select, select_range) is not None and not eigvals_only:  # their signs are others
        raise NotDifferentiableError(refusals.of_function("scipy.linalg.eigh_tridiagonal", " for some vectors"))
    d, e = floating(d), floating(e)
    below = jnp.concatenate([e, jnp.zeros((*e.shape[:-1], 1), e.dtype)], -1)
    return _eig_banded(jnp.stack([d, below], -2), True, eigvals_only, select, select_range)


def _eig_banded(
    a_band: Array,
    lower: bool = False,
    eigvals_only: bool = False,
    select: str = "a",
    select_range: Sequence[float] | None = None,
) -> Any:
    some = _some_of("eig_banded", select, select_range)
    return _eigh(_hermitian("eig_banded", floating(a_band), lower), None, True, eigvals_only, 1, some)


@jax.custom_jvp
def _eig(a: Array) -> Any:
    """Return eigenvalues, and vectors whose lengths and phases are free: for derivatives of the values."""
    return tuple(jnp.linalg.eig(a))


@_eig.defjvp
def _jvp_of_eig(args: Args, tangents: Tangents) -> Any:
    values, vectors = _eig(*args)
    inner = jnp.linalg.solve(vectors, tangents[0].astype(vectors.dtype) @ vectors)
    eye = np.eye(values.shape[-1], dtype=bool)
    gaps = jnp.where(eye, 1.0, values[..., None, :] - values[..., :, None])
    tangent_of_vectors = vectors @ jnp.where(eye, 0.0, inner / gaps)
    return (values, vectors), (jnp.diagonal(inner, axis1=-2, axis2=-1), tangent_of_vectors)


# Factors and inverses


def _polar(a: Array, side: str = "right") -> Any:
    a = floating(a)
    u = unitary(a)
    positive = _adjoint(u) @ a if side == "right" else a @ _adjoint(u)
    return u, 0.5 * (positive + _adjoint(positive))


def _procrustes(A: Array, B: Array) -> Any:
    product = _adjoint(floating(A)) @ floating(B)
    turn = unitary(product)
    return turn, jnp.real(jnp.sum(jnp.conj(turn) * product))


def _one_or_nan(sizes: Array, rows: int) -> Any:
    """Return nan for a matrix whose singular values tell that it is not of full rank: as a factor, of slopes too."""
    return jnp.where(sizes[..., -1] <= rows * np.finfo(sizes.dtype).eps * sizes[..., 0], jnp.nan, 1.0)


def _lstsq(a: Array, b: Array, lapack_driver: str | None = None) -> Any:
    """Solve by an orthogonal factor. The rank is not known here: where it is less than full, what is found is nan."""
    del lapack_driver
    a, b = floating(a), floating(b)
    _one_matrix("lstsq", a, b)
    rows, columns = a.shape
    if rows <= columns:
        _refuse("lstsq", " of a matrix without more rows than columns")
    q, r = jnp.linalg.qr(a)
    sizes = jnp.linalg.svd(a, compute_uv=False)
    projected = _adjoint(q) @ b
    x = _one_or_nan(sizes, 1) * jsp.linalg.solve_triangular(r, projected)
    residual = b - a @ x
    return x, jnp.sum(jnp.real(residual * jnp.conj(residual)), axis=0), columns, sizes


def _frechet(A: Array, E: Array, method: str | None = None, compute_expm: bool = True) -> Any:
    dtype = common_dtype([double(A), double(E)])
    a, e = as_dtype(double(A), dtype), as_dtype(double(E), dtype)
    return jsp.linalg.expm_frechet(a, e, method=method, compute_expm=compute_expm)


def _pinvh(a: Array, lower: bool = True) -> Any:
    return jnp.linalg.pinv(mirrored(floating(a), lower), rtol=a.shape[-1] * np.finfo(floating(a).dtype).eps)


def _subspace_angles(A: Array, B: Array) -> Any:
    bases = []
    for each in (floating(A), floating(B)):
        sizes = jnp.linalg.svd(each, compute_uv=False)
        bases.append(_one_or_nan(sizes, max(each.shape)) * jnp.linalg.qr(each)[0])
    one, other = sorted(bases, key=lambda base: -base.shape[1])
    inner = _adjoint(one) @ other
    cosines = jnp.linalg.svd(inner, compute_uv=False)[::-1]
    sines = jnp.linalg.svd(other - one @ inner, compute_uv=False)
    small = cosines**2 >= 0.5
    return jnp.where(small, jnp.arcsin(jnp.where(small, sines, 0.5)), jnp.arccos(jnp.where(small, 0.5, cosines)))


# Matrices that are made of vectors, and equations in them


def _toeplitz(name: str, c_or_cr: Array | tuple[Array, Array]) -> Any:
    c, r = map(array_of, c_or_cr) if isinstance(c_or_cr, tuple) else (array_of(c_or_cr), None)
    if np.ndim(c) > 1 or (r is not None and np.ndim(r) > 1) or np.size(c) > MOST_ROWS:
        _refuse(name, f" of a stack of matrices, or of one of more than {MOST_ROWS:,} rows, which is a dense one here,")
    return jsp.linalg.toeplitz(double(c), None if r is None else double(r))


def _circulant(c: Array) -> Any:
    n = c.shape[-1]
    return jnp.ravel(c)[(np.arange(n)[:, None] - np.arange(n)) % n]


def _solve_circulant(c: Array, b: Array) -> Any:
    c, b = floating(c), floating(b)
    if c.ndim > 1 or b.ndim > 2 or c.size > MOST_ROWS:
        _refuse("solve_circulant", " of a stack of matrices, or of one that is large")
    return _solve(_circulant(c), b)


def _matmul_toeplitz(c_or_cr: Array | tuple[Array, Array], x: Array) -> Any:
    return _toeplitz("matmul_toeplitz", c_or_cr) @ double(x)


def _of_coefficients(name: str) -> Function:
    own = getattr(scipy.linalg, name)

    def made(a: Array) -> Any:
        a = jnp.atleast_1d(floating(a))
        numbers = own(np.arange(1.0, a.shape[-1] + 1.0))  # -k for the coefficient number k, from 2 on, and 0 and 1
        at = np.where(numbers < 0, -numbers.astype(int) - 1, 0)
        return np.where(numbers < 0, 1.0, -numbers).astype(a.real.dtype) * (-a / a[..., :1])[..., at]

    return made


def _fiedler(a: Array) -> Any:
    a = jnp.atleast_1d(floating(a))
    eye = np.eye(a.shape[-1], dtype=a.real.dtype)
    return (1.0 - eye) * jnp.abs(a[..., :, None] - a[..., None, :] + eye)


def _leslie(f: Array, s: Array) -> Any:
    f, s = (jnp.atleast_1d(floating(array_of(each))) for each in (f, s))
    n = f.shape[-1]
    at = np.zeros((n, n), int)
    at[0], at[np.arange(1, n), np.arange(n - 1)] = np.arange(1, n + 1), np.arange(n + 1, 2 * n)
    return jnp.concatenate([jnp.zeros((*f.shape[:-1], 1), f.dtype), f, s], -1)[..., at]


LINALG: dict[str, Function] = {
    "scipy.linalg.solve_banded": _solve_banded,
    "scipy.linalg.solveh_banded": _solveh_banded,
    "scipy.linalg.cholesky_banded": _cholesky_banded,
    "scipy.linalg.cho_solve_banded": _cho_solve_banded,
    "scipy.linalg.eigh": _eigh,
    "scipy.linalg.eigvalsh": _eigvalsh,
    "scipy.linalg.eigh_tridiagonal": _eigh_tridiagonal,
    "scipy.linalg.eigvalsh_tridiagonal": lambda d, e, select="a", select_range=None: _eigh_tridiagonal(
        d, e, True, select, select_range
    ),
    "scipy.linalg.eig_banded": _eig_banded,
    "scipy.linalg.eigvals_banded": lambda a_band, lower=False, select="a", select_range=None: _eig_banded(
        a_band, lower, True, select, select_range
    ),
    "scipy.linalg.eigvals": lambda a: _eig(floating(a))[0],
    "scipy.linalg.polar": _polar,
    "scipy.linalg.orthogonal_procrustes": _procrustes,
    "scipy.linalg.lstsq": _lstsq,
    "scipy.linalg.expm_frechet": _frechet,
    "scipy.linalg.pinvh": _pinvh,
    "scipy.linalg.subspace_angles": _subspace_angles,
    "scipy.linalg.solve_sylvester": lambda a, b, q: sylvester(*map(floating, (a, b, q))),
    "scipy.linalg.solve_continuous_lyapunov": lambda a, q: lyapunov(floating(a), floating(q)),
    "scipy.linalg.solve_discrete_lyapunov": lambda a, q, method=None: stein(double(a), double(q)),
    "scipy.linalg.solve_continuous_are": riccati,
    "scipy.linalg.solve_discrete_are": discrete_riccati,
    "scipy.linalg.solve_toeplitz": lambda c_or_cr, b: _solve(_toeplitz("solve_toeplitz", c_or_cr), double(b)),
    "scipy.linalg.circulant": lambda c: _circulant(array_of(c)),
    "scipy.linalg.solve_circulant": _solve_circulant,
    "scipy.linalg.matmul_toeplitz": _matmul_toeplitz,
    "scipy.linalg.companion": _of_coefficients("companion"),
    "scipy.linalg.fiedler_companion": _of_coefficients("fiedler_companion"),
    "scipy.linalg.fiedler": _fiedler,
    "scipy.linalg.leslie": _leslie,
}
