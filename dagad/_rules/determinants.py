"""Determinants of matrices that are singular, or nearly so: autograd's rule divides by what is zero there.

The derivative of a determinant is the matrix of its cofactors, a polynomial in the entries. With A = U S V^H the
transpose of that, the adjugate, is det(U) det(V^H) V adj(S) U^H, and adj(S) has products of all singular values but
one, or in its own derivative but two: nothing is divided by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._rules.triangles import transposed
from dagad._tracing import refusals
from dagad._tracing.rules import own_primitive
from dagad._types import Argnums, Args, Array, Kwargs, Tangents, Value
from dagad._values import pytree

plain = pytree.plain
LARGEST_CONDITION = 1e6  # an inverse is good to this times 1e-16, and the second derivative has it twice


def is_nearly_singular(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    """Return whether a matrix, or one of several, has no good inverse."""
    del argnums, ans, kwargs
    a = np.asarray(plain(args[0]))
    try:
        sizes = [np.abs(each).sum(-1).max(-1, initial=0.0) for each in (a, np.linalg.inv(a))]
    except np.linalg.LinAlgError:
        return True
    return bool(np.any(sizes[0] * sizes[1] > LARGEST_CONDITION))


def determinant_vjp(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Callable[[Any], Any]:
    """Return the pullback of a determinant."""
    del argnums, ans, kwargs
    return lambda g: (anp.reshape(g, (*np.shape(plain(g)), 1, 1)) * transposed(adjugate(args[0])),)


def _adjugate(a: Array) -> Any:
    u, sizes, vh, sign = _factors(a)
    before = np.cumprod(np.concatenate([np.ones_like(sizes[..., :1]), sizes[..., :-1]], -1), -1)
    after = np.cumprod(np.concatenate([np.ones_like(sizes[..., :1]), sizes[..., :0:-1]], -1), -1)[..., ::-1]
    return sign * np.matmul(_adjoint(vh) * (before * after)[..., None, :], _adjoint(u))


def _adjugate_along(a: Array, e: Array) -> Any:
    """Return the derivative of the adjugate along `e`."""
    u, sizes, vh, sign = _factors(a)
    inner, products = _adjoint(u) @ e @ _adjoint(vh), _products_but_two(sizes)
    diagonal = np.matmul(products, np.diagonal(inner, axis1=-2, axis2=-1)[..., None])
    found = diagonal * np.eye(sizes.shape[-1], dtype=sizes.dtype) - products * inner
    return sign * (_adjoint(vh) @ found @ _adjoint(u))


def _factors(a: Array) -> tuple[Any, Any, Any, Any]:
    u, sizes, vh = np.linalg.svd(a)
    sign = np.linalg.det(u) * np.linalg.det(vh)
    return u, sizes, vh, (sign / np.abs(sign))[..., None, None]


def _products_but_two(sizes: Array) -> Any:
    """Return the products of all but two numbers, by which two these are; 0 on the diagonal."""
    n = sizes.shape[-1]
    found = np.zeros((*sizes.shape, n), sizes.dtype)
    ends = np.ones((*sizes.shape[:-1], 1), sizes.dtype)
    before = np.cumprod(np.concatenate([ends, sizes[..., :-1]], -1), -1)
    after = np.cumprod(np.concatenate([ends, sizes[..., :0:-1]], -1), -1)[..., ::-1]
    for i in range(n - 1):
        between = np.cumprod(np.concatenate([ends, sizes[..., i + 1 : -1]], -1), -1)
        found[..., i, i + 1 :] = before[..., i, None] * between * after[..., i + 1 :]
    return found + np.swapaxes(found, -1, -2)


def _adjoint(x: Array) -> Any:
    return np.conj(np.swapaxes(x, -1, -2))


def _pulled_along(a: Array, g: Array) -> Any:
    """Return the pullback of the derivative along something: the second derivative of a determinant is symmetric."""
    return transposed(adjugate_along(a, transposed(g)))


def _refuse_third(argnums: Sequence[int]) -> None:
    if 0 in argnums:
        sentence = refusals.of_function("np.linalg.det", " of a matrix that is nearly singular beyond the second")
        raise NotDifferentiableError(sentence)


def _along_vjp(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Callable[[Any], Any]:
    del ans, kwargs
    _refuse_third(argnums)
    return lambda g: (_pulled_along(args[0], g),)


def _along_jvp(argnums: Argnums, tangents: Tangents, ans: Value, args: Args, kwargs: Kwargs) -> Any:
    del ans, kwargs
    _refuse_third(argnums)
    return adjugate_along(args[0], tangents[0])


adjugate: Any = own_primitive(
    _adjugate,
    lambda argnums, ans, args, kwargs: lambda g: (_pulled_along(args[0], g),),
    lambda argnums, tangents, ans, args, kwargs: adjugate_along(args[0], tangents[0]),
)
adjugate_along: Any = own_primitive(_adjugate_along, _along_vjp, _along_jvp)
