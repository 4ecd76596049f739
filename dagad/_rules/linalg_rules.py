"""Functions of numpy.linalg that autograd has no derivative of, or a wrong one: what they are, written with others."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.numpy import linalg

from dagad._errors import NotDifferentiableError
from dagad._rules import triangles
from dagad._rules.determinants import determinant_vjp, is_nearly_singular
from dagad._rules.triangles import adjoint, mirrored, transposed
from dagad._tracing import refusals
from dagad._tracing.by_definition import as_gather, rules_of
from dagad._tracing.numpy_protocols import WRITTEN
from dagad._tracing.operands import array_of
from dagad._tracing.private import isbox
from dagad._tracing.rules import HOMES, define, keep_real, own_primitive
from dagad._types import Argnums, Args, Array, Axis, Cotangent, Function, Kwargs, Value
from dagad._values import pytree

plain = pytree.plain


def singular_values(x: Array) -> Any:
    """Return the singular values of matrices, whose slopes ask for no vectors: of equal values these have none."""
    return linalg.svd(x, compute_uv=False)


def vector_norm(x: Array, *, axis: Axis = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """Return the norm of vectors along one or more axes."""
    if ord in (2, None):
        return anp.sqrt(anp.sum(anp.real(x * anp.conj(x)), axis=axis, keepdims=keepdims))
    sizes = anp.abs(x)
    if np.isinf(ord):
        return (anp.max if ord > 0 else anp.min)(sizes, axis=axis, keepdims=keepdims)
    if ord == 0:
        return anp.sum(0.0 * sizes, axis=axis, keepdims=keepdims)  # a count
    if ord == 1:
        return anp.sum(sizes, axis=axis, keepdims=keepdims)
    return anp.sum(sizes**ord, axis=axis, keepdims=keepdims) ** (1.0 / ord)


def matrix_norm(x: Array, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """Return the norm of matrices."""
    if ord in ("fro", None):
        found = anp.sqrt(anp.sum(anp.real(x * anp.conj(x)), axis=(-2, -1)))
    elif ord == "nuc":
        found = anp.sum(singular_values(x), axis=-1)
    elif abs(ord) == 2:
        found = singular_values(x)[..., 0 if ord > 0 else -1]
    else:
        sums = anp.sum(anp.abs(x), axis=-2 if abs(ord) == 1 else -1)
        found = (anp.max if ord > 0 else anp.min)(sums, axis=-1)
    return anp.reshape(found, (*np.shape(plain(found)), 1, 1)) if keepdims else found


def norm(x: Array, ord: float | str | None = None, axis: Axis = None, keepdims: bool = False) -> Any:
    """Return the norm of vectors or matrices, as numpy and scipy take their arguments."""
    n_dims = np.ndim(plain(x))
    if axis is None and ord is None:
        found = vector_norm(anp.ravel(x))
        return anp.reshape(found, (1,) * n_dims) if keepdims else found
    axes = tuple(range(n_dims)) if axis is None else axis
    if isinstance(axes, int) or len(axes) == 1:
        return vector_norm(x, axis=axes, keepdims=keepdims, ord=ord)
    found = matrix_norm(anp.moveaxis(x, axes, (-2, -1)), ord=ord)
    return anp.expand_dims(found, axes) if keepdims else found


def _odd_norm(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    """As of autograd 1.9: no `keepdims`, no axis in a tuple, of orders some only, of complex numbers one derivative."""
    del argnums, ans
    given = dict(zip(("x", "ord", "axis", "keepdims"), args, strict=False)) | kwargs
    ord, axis = given.get("ord"), given.get("axis")
    matrix = isinstance(axis, tuple) or (axis is None and np.ndim(plain(given["x"])) == 2)
    if np.ndim(plain(given["x"])) == 0 or (matrix and axis is not None and len(axis) == 1):
        return True
    known = ord in (None, "fro", "nuc") or (not matrix and not isinstance(ord, str) and 1 < ord < np.inf)
    return bool(given.get("keepdims")) or not known or np.iscomplexobj(plain(given["x"]))


def _is_complex(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    """As of autograd 1.9, the rules of some functions take matrices for real."""
    del argnums, args, kwargs
    return np.iscomplexobj(plain(ans[0] if isinstance(ans, tuple) else ans))


def _has_odd_inverse(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    return bool(kwargs) or len(args) > 1 or _is_complex(argnums, ans, args, kwargs)


def _slogdet(a: Array) -> Any:
    n = np.shape(plain(a))[-1]
    size = np.linalg.slogdet(plain(a))[1] / n
    scaled = linalg.det(a / np.exp(size)[..., None, None])  # of modulus 1: neither too large nor too small
    return scaled / anp.abs(scaled), anp.log(anp.abs(scaled)) + n * size


def _pinv(a: Array, rcond: Array = None, hermitian: bool = False) -> Any:
    if rcond is not None:
        raise NotDifferentiableError(refusals.of_option("np.linalg.pinv", ["rcond"]))
    if hermitian:
        return linalg.pinv(mirrored(a, True))
    rows, columns = np.shape(plain(a))[-2:]
    if np.min(np.linalg.matrix_rank(plain(a))) < min(rows, columns):
        raise NotDifferentiableError(refusals.of_function("pinv", " of complex matrices that are not of full rank"))
    if rows < columns:
        return adjoint(linalg.solve(anp.matmul(a, adjoint(a)), a))
    return linalg.solve(anp.matmul(adjoint(a), a), adjoint(a))


def solve(a: Array, b: Array) -> Any:
    """Return solutions for matrices and right-hand sides in stacks that are broadcast; a vector is one for each."""
    if np.ndim(plain(b)) == 1:
        return solve(a, b[:, None])[..., 0]
    stack = np.ones((*np.broadcast_shapes(np.shape(plain(a))[:-2], np.shape(plain(b))[:-2]), 1, 1))
    return linalg.solve(a * stack, b * stack)


def _differ_in_stack(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    del argnums, ans, kwargs
    return bool(np.shape(plain(args[0]))[:-2] != np.shape(plain(args[1]))[:-2])


def _matrix_power(a: Array, n: int) -> Any:
    if n == 0:
        return 0.0 * a + np.eye(np.shape(plain(a))[-1])
    return functools.reduce(anp.matmul, [linalg.inv(a) if n < 0 else a] * abs(n))


def _cond(x: Array, p: Array = None) -> Any:
    if p in (None, 2, -2):
        sizes = singular_values(x)
        return sizes[..., 0] / sizes[..., -1] if p != -2 else sizes[..., -1] / sizes[..., 0]
    return matrix_norm(x, ord=p) * matrix_norm(linalg.inv(x), ord=p)


def _tensorsolve(a: Array, b: Array) -> Any:
    size, shape = np.size(plain(b)), np.shape(plain(a))[np.ndim(plain(b)) :]
    return anp.reshape(linalg.solve(anp.reshape(a, (size, size)), anp.ravel(b)), shape)


def _tensorinv(a: Array, ind: int = 2) -> Any:
    shape = np.shape(plain(a))
    rows = int(np.prod(shape[:ind]))
    return anp.reshape(linalg.inv(anp.reshape(a, (rows, -1))), (*shape[ind:], *shape[:ind]))


# Vectors of complex matrices: their phases are free, and LAPACK's routines choose those that make an entry real. Rules
# choose others, with which a loss that looks at phases has another slope.

A_ROUNDING = 1e-10


def _is_real(entries: Array) -> Any:
    return (np.abs(np.imag(plain(entries))) < A_ROUNDING) & (np.abs(plain(entries)) > A_ROUNDING)


def _per_entry(rotation: Array, entries: Array, size: Array, name: str) -> Any:
    """Return what a loss gains as vectors turn, by how far that would take their real entries from the real line."""
    is_real = _is_real(entries)
    looked_at = np.abs(plain(rotation)) > 1e-9 * size
    if np.any(looked_at & ~is_real):
        raise NotDifferentiableError(refusals.of_function(name, " where the result depends on the phases of vectors"))
    return rotation / anp.where(is_real, anp.real(entries), 1.0)


def _turns(g: Array, v: Array, axis: int) -> Any:
    return anp.imag(anp.sum(g * v, axis=axis))


def _size(*cotangents: Any) -> Any:
    return sum(float(np.linalg.norm(np.ravel(plain(g)))) for g in cotangents)


def _of_columns(ans: Value, g: Array, name: str) -> Any:
    """Return the cotangents of eigenvalues and eigenvectors with what turning the vectors is worth."""
    v = plain(ans[1])
    real_at = np.argmax(np.abs(v), axis=-2)  # of the entries that are real: the largest, or all first, or all last ones
    if name == "eigh":
        real_at = np.full_like(real_at, 0 if np.all(_is_real(v[..., 0, :])) else v.shape[-2] - 1)
    at = np.arange(v.shape[-2])[:, None] == real_at[..., None, :]
    ratio = _per_entry(-_turns(g[1], ans[1], -2), anp.sum(ans[1] * at, axis=-2), _size(g[1]), name)
    return g[0], g[1] + 1j * ratio[..., None, :] * at


def _of_both_sides(ans: Value, g: Array, name: str) -> Any:
    """Return the same of singular vectors, which turn in pairs: the first entry of one of them is real."""
    (u, vh), (gu, gs, gvh) = (ans[0], ans[2]), g
    if np.shape(plain(u))[-1] != np.shape(plain(vh))[-2]:  # full matrices, which the rule refuses
        return g
    rotation, size = _turns(gvh, vh, -1) - _turns(gu, u, -2), _size(gu, gvh)
    if np.all(_is_real(plain(u)[..., 0, :])):
        ratio = _per_entry(rotation, u[..., 0, :], size, name)
        return gu + 1j * ratio[..., None, :] * (np.arange(np.shape(plain(u))[-2])[:, None] == 0), gs, gvh
    ratio = _per_entry(rotation, vh[..., :, 0], size, name)
    return gu, gs, gvh - 1j * ratio[..., :, None] * (np.arange(np.shape(plain(vh))[-1]) == 0)


def _phased(stock: Function, turning: Function, name: str) -> Function:
    """Return the rule of a function that gives vectors, for cotangents that look at their phases."""

    def vjp(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Function:
        del argnums
        pull = stock(ans, *args, **kwargs)
        return lambda g: (pull(turning(ans, g, name)),)

    return vjp


def _grad_svd(ans: Value, a: Array, full_matrices: bool = True, compute_uv: bool = True) -> Function:
    """Return the pullback of autograd's, for which whole factors are none that it knows; of square ones they are.

    Where nobody asks for vectors it does without the differences of the values, which may be equal.
    """
    rows, columns = np.shape(plain(a))[-2:]
    whole = full_matrices and rows != columns
    found: Function = linalg.grad_svd(ans, a, whole, compute_uv)

    def pull(g: Cotangent) -> Any:
        if whole or not (_is_nothing(g[0]) and _is_nothing(g[2])):
            return found(g)
        return anp.matmul(anp.conj(ans[0]) * g[1][..., None, :], anp.conj(ans[2]))

    return pull if compute_uv else found


def _is_nothing(part: Cotangent) -> bool:
    return not isbox(part) and not np.any(part)


_HERMITIAN_SVD = rules_of("svd", triangles.svd)[0]


def _svd_vjp(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Function:
    if triangles.is_hermitian(args, kwargs, 3):
        pull_back: Function = _HERMITIAN_SVD(argnums, ans, args, kwargs)
        return pull_back
    args, kwargs = args[:3], {name: each for name, each in kwargs.items() if name != "hermitian"}
    if _has_complex_vectors(argnums, ans, args, kwargs):
        phased: Function = _phased(_grad_svd, _of_both_sides, "svd")(argnums, ans, args, kwargs)
        return phased
    pull = _grad_svd(ans, *args, **kwargs)
    return lambda g: (pull(g),)


def _has_complex_vectors(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    del argnums, args, kwargs
    found = plain(ans)  # a tuple that somebody else traces is none
    return isinstance(found, tuple) and np.iscomplexobj(plain(found[-1]))


# Orthogonal factors, and least squares


def qr(a: Array, q: Array, r: Array) -> tuple[Any, Any]:
    """Return the factors of matrices that have at least as many rows as columns, of full rank. Good for derivatives.

    LAPACK's are given, and held: B = Q + (A - QR) R^-1, which is A R^-1, has columns as good as orthonormal, and the
    factors of A are Q of B, and R of B times R. Those of B are found by Cholesky, which of A^H A itself would find them
    to half the digits, and of what is nearly singular not at all.
    """
    near = q + anp.matmul(a - plain(a), np.linalg.inv(r))
    factor = adjoint(linalg.cholesky(anp.matmul(adjoint(near), near)))
    return anp.matmul(near, linalg.inv(factor)), anp.matmul(factor, r)


def _qr(a: Array, mode: str = "reduced") -> Any:
    rows, columns = np.shape(plain(a))[-2:]
    if mode not in ("reduced", "r"):
        raise NotImplementedError("VJP of qr wrt argnums (0,) not defined")
    square = a[..., :rows]
    factors = qr(square, *np.linalg.qr(plain(square)))
    if rows < columns:
        factors = factors[0], anp.concatenate([factors[1], anp.matmul(adjoint(factors[0]), a[..., rows:])], -1)
    return factors[1] if mode == "r" else factors


def least_squares(a: Array, b: Array) -> Any:
    """Return solution, squared residuals and singular values, of a matrix of full rank."""
    x = anp.matmul(linalg.pinv(a), b)
    residual = b - anp.matmul(a, x)
    return x, anp.sum(anp.real(residual * anp.conj(residual)), axis=0), singular_values(a)


def _lstsq(a: Array, b: Array) -> Any:
    """Return solution, residuals and singular values, of a matrix of full rank."""
    x, residuals, sizes = least_squares(a, b)
    return x, anp.reshape(residuals, (-1,)), sizes


@functools.cache
def _of_lists() -> tuple[Any, Any]:
    """Return the primitives of what takes or returns more than arrays."""

    def multi_dot(*arrays: Any) -> Any:
        return np.linalg.multi_dot(arrays)

    def lstsq(a: Array, b: Array, rcond: Array) -> Any:
        x, residuals, _, sizes = np.linalg.lstsq(a, b, rcond)
        return x, residuals, sizes

    product = rules_of("multi_dot", lambda *arrays: functools.reduce(anp.dot, arrays))
    solution = rules_of("lstsq", lambda a, b, rcond: _lstsq(a, b)[: 3 if len(plain(b)) else 2])
    return own_primitive(multi_dot, *product), own_primitive(lstsq, *solution)


def _written_multi_dot(arrays: Sequence[Any]) -> Any:
    return _of_lists()[0](*map(array_of, arrays))


def _written_lstsq(a: Array, b: Array, rcond: Array = None) -> Any:
    a, b = array_of(a), array_of(b)
    rank = np.linalg.matrix_rank(plain(a))
    if rank < np.shape(plain(a))[1] or np.shape(plain(a))[0] <= rank:
        raise NotImplementedError("VJP of lstsq wrt argnums (0, 1) not defined")
    found = _of_lists()[1](a, b, rcond)
    return found[0], found[1], rank, found[2]


DEFINED: dict[Any, Function] = {
    np.linalg.eigvals: lambda a: linalg.eig(a)[0],
    np.linalg.eigvalsh: triangles.eigvalsh,
    np.linalg.svdvals: singular_values,
    np.linalg.qr: _qr,
    np.linalg.vector_norm: vector_norm,
    np.linalg.matrix_norm: matrix_norm,
    np.linalg.matrix_power: _matrix_power,
    np.linalg.cond: _cond,
    np.linalg.tensorsolve: _tensorsolve,
    np.linalg.tensorinv: _tensorinv,
    np.linalg.diagonal: lambda x, *, offset=0: as_gather(np.linalg.diagonal, 0)(x, offset=offset),
    np.linalg.trace: lambda x, *, offset=0: anp.sum(as_gather(np.linalg.diagonal, 0)(x, offset=offset), axis=-1),
    np.linalg.matrix_transpose: transposed,
    np.linalg.outer: anp.outer,
    np.linalg.cross: lambda x, y, axis=-1: anp.cross(x, y, axis=axis),
    np.linalg.vecdot: lambda x, y, axis=-1: anp.sum(anp.conj(x) * y, axis=axis),
    np.linalg.matmul: anp.matmul,
    np.linalg.tensordot: lambda x, y, axes=2: anp.tensordot(x, y, axes),
}


def learn(module: ModuleType) -> bool:
    """Enter all rules."""
    del module
    for func, definition in DEFINED.items():
        define(func, *rules_of(func.__name__, definition))
    define(np.linalg.det, determinant_vjp, None, is_nearly_singular)
    define(np.linalg.norm, *rules_of("norm", norm), _odd_norm)
    define(np.linalg.slogdet, *rules_of("slogdet", _slogdet), _is_complex)
    define(np.linalg.pinv, *rules_of("pinv", _pinv), _has_odd_inverse)
    define(np.linalg.cholesky, triangles.cholesky_vjp, None, lambda *call: True)
    define(np.linalg.solve, *rules_of("solve", solve), _differ_in_stack)
    for func, stock, turning in (
        (np.linalg.eigh, linalg.grad_eigh, _of_columns),
        (np.linalg.eig, linalg.grad_eig, _of_columns),
    ):
        define(func, _phased(stock, turning, func.__name__), None, _has_complex_vectors)
    define(np.linalg.svd, _svd_vjp, None, lambda *call: True)
    keep_real(linalg.solve)
    return True


HOMES["numpy.linalg"] = learn
WRITTEN[np.linalg.eigh] = triangles.eigh
WRITTEN[np.linalg.multi_dot] = _written_multi_dot
WRITTEN[np.linalg.lstsq] = _written_lstsq
