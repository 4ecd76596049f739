"""Functions of matrices, and norms, as numpy has them: of one triangle, of rows, of whole numbers."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax.numpy as jnp
import numpy as np

from dagad._engines.xla import corners
from dagad._engines.xla.conversions import as_dtype
from dagad._engines.xla.protocols import Called, array_of
from dagad._types import Array, Function


def floating(a: Array) -> Any:
    """Return an array of floating-point numbers."""
    a = array_of(a)
    a = a if hasattr(a, "dtype") else np.asarray(a)
    return as_dtype(a, np.float64) if a.dtype.kind in "iub" else a


def double(a: Array) -> Any:
    """Return an array in double precision, in which some functions of scipy's compute whatever they are given."""
    a = floating(a)
    return as_dtype(a, np.complex128 if a.dtype.kind == "c" else np.float64)


def triangle_by(function: Function) -> Function:
    def triangle(m: Array, k: int = 0) -> Any:
        """Return a triangle of a matrix; of one row, of that many of them."""
        m = array_of(m)
        return function(jnp.broadcast_to(m, (len(m), len(m))) if m.ndim == 1 else m, k)

    return functools.wraps(function)(triangle)


def norm_of(func: Function) -> Function:
    """Return a function of norms, of which some are made of absolute values."""

    def norm(x: Array, *args: Any, **kwargs: Any) -> Any:
        ord = kwargs.get("ord", args[0] if args and func is np.linalg.norm else None)
        x = array_of(x)
        if isinstance(ord, int | float) and abs(ord) in (1, np.inf):
            x = corners.absolute(floating(x))
        return Called(func)(x, *args, **kwargs)

    return functools.wraps(func)(norm)


def mirrored(a: Array, lower: bool) -> Any:
    """Return the Hermitian matrix of which numpy reads one triangle."""
    one, other = (jnp.tril(a), jnp.tril(a, -1)) if lower else (jnp.triu(a), jnp.triu(a, 1))
    return one + jnp.conj(jnp.swapaxes(other, -1, -2))


def cholesky(a: Array, /, *, upper: bool = False) -> Any:
    return jnp.linalg.cholesky(mirrored(floating(a), not upper), upper=upper)


def eigh(a: Array, UPLO: str = "L") -> Any:
    return jnp.linalg.eigh(mirrored(floating(a), UPLO.upper() == "L"), UPLO.upper(), symmetrize_input=False)


def of_hermitian(func: Function) -> Function:
    """Return a function that reads the lower triangle of a matrix, if it is told that this is Hermitian."""
    signature = inspect.signature(func)

    def read(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        a = array_of(given.pop("a"))
        return Called(func)(mirrored(floating(a), True) if given.get("hermitian") else a, **given)

    return functools.wraps(func)(read)


def eigvalsh(a: Array, UPLO: str = "L") -> Any:
    return jnp.linalg.eigvalsh(mirrored(floating(a), UPLO.upper() == "L"))
