"""Matrices of which a function reads one triangle: what stands in the other one has no part in the derivative.

Routines for symmetric and Hermitian matrices look at one triangle and take the other for its mirror image. So their
derivative is that of the mirrored matrix, in the entries that are read: a user may have filled these only.
"""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.numpy import linalg

from dagad._types import Argnums, Args, Array, Function, Kwargs, Value
from dagad._values import pytree

plain = pytree.plain


def transposed(x: Array) -> Any:
    """Return matrices with rows and columns changed over."""
    return anp.swapaxes(x, -1, -2)


def adjoint(x: Array) -> Any:
    """Return matrices with rows and columns changed over, and conjugated if they are complex."""
    return anp.conj(transposed(x)) if np.iscomplexobj(plain(x)) else transposed(x)


def mirrored(a: Array, lower: bool, oriented: Function = adjoint) -> Any:
    """Return the Hermitian matrix that has this triangle, or the symmetric one."""
    triangle = anp.tril(a) if lower else anp.triu(a)
    diagonal = triangle * np.eye(np.shape(plain(a))[-1], dtype=plain(a).real.dtype)
    return triangle + oriented(triangle) - (anp.real(diagonal) if oriented is adjoint else diagonal)


def folded(g: Array, lower: bool) -> Any:
    """Return the cotangent of a triangle from that of its mirrored matrix, which is Hermitian itself."""
    whole = np.ones(np.shape(plain(g))[-2:], plain(g).real.dtype)
    return g * (2.0 * (np.tril(whole) if lower else np.triu(whole)) - np.eye(len(whole), dtype=whole.dtype))


# Cholesky factors: numpy reads the lower triangle, and the upper one for an upper factor


def cholesky_vjp(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Function:
    """Return the pullback dL = L phi(L^-1 dA L^-H), transposed; phi is the lower triangle with half its diagonal."""
    del argnums, args
    upper = bool(kwargs.get("upper"))
    oriented = adjoint if upper else _itself
    factor = oriented(ans)

    def pullback(g: Array) -> tuple[Any]:
        half = anp.tril(anp.matmul(adjoint(factor), anp.conj(oriented(g)))) / (1.0 + np.eye(np.shape(plain(ans))[-1]))
        found = linalg.solve(adjoint(factor), transposed(linalg.solve(transposed(factor), transposed(half))))
        return (folded(anp.conj(found + adjoint(found)) / 2.0, not upper),)

    return pullback


def _itself(x: Array) -> Any:
    return x


# Eigenvalues, and what is made of them


def eigh(a: Array, UPLO: str = "L") -> Any:
    """Return eigenvalues and eigenvectors; autograd's rule knows the triangle by a capital letter only."""
    return linalg.eigh(a, UPLO.upper())


def eigvalsh(a: Array, UPLO: str = "L") -> Any:
    """Return the eigenvalues."""
    return eigh(a, UPLO)[0]


def is_hermitian(args: Args, kwargs: Kwargs, at: int) -> bool:
    """Return whether a function is called with `hermitian`, its argument number `at`: it reads the lower triangle."""
    return bool(kwargs.get("hermitian", args[at] if len(args) > at else False))


def svd(a: Array, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = True) -> Any:
    """Return the singular values of Hermitian matrices, with vectors if asked for: from the eigenvalues."""
    del full_matrices, hermitian
    values, vectors = linalg.eigh(a)
    order = np.argsort(np.abs(plain(values)), axis=-1)[..., ::-1]
    sizes = anp.take_along_axis(anp.abs(values), order, -1)
    if not compute_uv:
        return sizes
    u = anp.take_along_axis(vectors, order[..., None, :], -1)
    signs = np.take_along_axis(np.sign(plain(values)), order, -1)
    return u, sizes, adjoint(u * signs[..., None, :])
