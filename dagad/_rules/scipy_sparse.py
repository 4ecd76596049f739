"""Products of sparse matrices and linear operators of scipy with traced arrays: linear, so the transpose pulls back.

Imported when a process records and has scipy.sparse. The matrix is constant: what it holds are ordinary numbers.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse as sparse

from dagad._errors import NotDifferentiableError
from dagad._rules.scipy_functions import stock, swap
from dagad._rules.triangles import transposed
from dagad._tracing import refusals
from dagad._tracing.patches import Swap
from dagad._tracing.private import isbox
from dagad._tracing.rules import own_primitive, shaped
from dagad._types import Argnums, Args, Array, Function, Kwargs, Tangents, Value
from dagad._values import pytree

plain = pytree.plain


def _linear(raw: Function) -> Any:
    """Return a function of a matrix and an array as a primitive: it is linear in the array."""

    def vjp(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Function:
        del argnums, ans, kwargs
        return lambda g: (shaped(_pulled(made, args[0], g), args[1]),)

    def jvp(argnums: Argnums, tangents: Tangents, ans: Value, args: Args, kwargs: Kwargs) -> Any:
        del argnums, ans, kwargs
        return made(args[0], tangents[0])

    made = own_primitive(raw, vjp, jvp)
    return made


def _pulled(made: Function, a: Array, g: Array) -> Any:
    try:
        return made(a.T, g)
    except NotImplementedError as error:  # an operator that knows one direction only
        raise NotDifferentiableError(
            "The derivative of a product with a `LinearOperator` was asked for that has no `rmatvec`: in reverse, the "
            "transposed operator is applied. Give it one, by `LinearOperator(shape, matvec=..., rmatvec=...)`."
        ) from error


def _apply(a: Array, x: Array) -> Any:
    return a @ x


_APPLY = _linear(_apply)


def times(a: Array, x: Array) -> Any:
    """Return the product of a sparse matrix, or of a linear operator, with a traced vector or matrix."""
    if not np.ndim(plain(x)) and sparse.issparse(a):
        raise NotDifferentiableError(
            "A sparse matrix was multiplied by a number that is being differentiated, and its entries are plain "
            "numbers. Multiply what comes of it, `t * (A @ x)`, or give it as `A.toarray()`."
        )
    if isbox(a) or len(a.shape) != 2:
        raise NotDifferentiableError(
            refusals.of_function("scipy.sparse", " arrays of other than two dimensions in products")
        )
    return _APPLY(a, x)


def _times_from_right(a: Array, x: Array) -> Any:
    """Return x @ a, as scipy computes it."""
    return times(a.T, x) if np.ndim(plain(x)) < 2 else transposed(times(a.T, transposed(x)))


def _times_vectors(a: Array, x: Array) -> Any:
    """Return the product of a linear operator with a vector, a column, or from scipy 1.18 on a stack of vectors."""
    shape = np.shape(plain(x))
    return times(a, x) if len(shape) < 2 or shape == (a.shape[-1], 1) else times(a, x[..., None])[..., 0]


def _functions(names: tuple[str, ...], *kinds: Any) -> list[Any]:
    """Return the methods of these names that classes have, each once."""
    found = [getattr(kind, name, None) for name in names for kind in kinds]
    return list(dict.fromkeys(each for each in found if each is not None))


_KINDS = [
    getattr(sparse, f"{form}_{kind}") for form in ("csr", "csc", "coo", "bsr", "dia") for kind in ("array", "matrix")
]
_MATRICES = [kind for kind in _KINDS if issubclass(kind, sparse.spmatrix)]
SWAPS: list[Swap] = [
    *(swap(each, times) for each in _functions(("__matmul__", "dot"), *_KINDS) + _functions(("__mul__",), *_MATRICES)),
    *(
        swap(each, _times_from_right)
        for each in _functions(("__rmatmul__",), *_KINDS) + _functions(("__rmul__",), *_MATRICES)
    ),
]


def of_operators(linalg: ModuleType) -> list[Swap]:
    """Return the swaps for `scipy.sparse.linalg`: linear operators, and solutions of sparse equations."""
    operator, solving = linalg.LinearOperator, stock(linalg.spsolve)
    solved = _linear(lambda a, b: solving(a, b))

    def solution(A: Array, b: Array, permc_spec: str | None = None, use_umfpack: bool = True) -> Any:
        del permc_spec, use_umfpack
        if isbox(A):
            raise NotDifferentiableError(refusals.of_function("scipy.sparse.linalg.spsolve", refusals.IN_ONE))
        return solved(A.tocsc(), b)

    return [
        *(swap(each, times) for each in (operator.dot, operator.matmat)),
        swap(operator.matvec, _times_vectors),
        swap(operator.rmatvec, lambda a, x: _times_vectors(a.H, x)),
        swap(operator.rmatmat, lambda a, x: times(a.H, x)),
        *(swap(each, _times_from_right) for each in _functions(("__rmatmul__", "__rmul__", "rdot"), operator)),
        swap(linalg.spsolve, solution),
    ]
