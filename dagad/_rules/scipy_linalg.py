"""Functions of scipy.linalg as traced arrays meet them: what they are, written with others.

Imported when a process records and has scipy.linalg. The value is scipy's own. A function that reads one triangle of a
symmetric matrix has a derivative in that triangle only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
import scipy.linalg as of
from autograd.numpy import linalg
from autograd.scipy import linalg as traced

from dagad._errors import NotDifferentiableError
from dagad._rules.linalg_rules import least_squares, norm, qr, singular_values, solve
from dagad._rules.scipy_functions import defined, primitive_of, stock, swap, with_rules
from dagad._rules.triangles import adjoint, mirrored, transposed
from dagad._tracing import refusals
from dagad._tracing.by_definition import as_gather
from dagad._tracing.operands import array_of
from dagad._tracing.patches import Swap
from dagad._tracing.rules import keep_real, shaped
from dagad._types import Argnums, Args, Array, Axis, Function, Kwargs, Tangents, Value
from dagad._values import pytree

plain = pytree.plain
LEAVES_THE_REST = bool(of.cho_factor(np.array([[1.0, 0.0], [1.0, 2.0]]))[0][1, 0])  # in the triangle without the factor


def _symmetric(a: Array, lower: bool) -> Any:
    return mirrored(a, lower, transposed)


_READ_AS: dict[Any, Function] = {
    None: lambda a, lower: a,
    "gen": lambda a, lower: a,
    "general": lambda a, lower: a,
    "diagonal": lambda a, lower: a * np.eye(np.shape(plain(a))[-1]),
    "upper triangular": lambda a, lower: anp.triu(a),
    "lower triangular": lambda a, lower: anp.tril(a),
    "sym": _symmetric,
    "symmetric": _symmetric,
} | dict.fromkeys(("her", "hermitian", "pos", "positive definite"), mirrored)


def _solve(
    a: Array,
    b: Array,
    lower: bool = False,
    *,
    check_finite: bool = True,
    assume_a: str | None = None,
    transposed: bool = False,
) -> Any:
    del check_finite
    if assume_a not in _READ_AS:
        raise NotImplementedError("VJP of scipy.linalg.solve with this `assume_a` not defined")
    a = _READ_AS[assume_a](a, lower)
    return linalg.solve(anp.swapaxes(a, -1, -2) if transposed else a, b)


def _inv(a: Array, *, check_finite: bool = True, assume_a: str | None = None, lower: bool = False) -> Any:
    del check_finite
    if assume_a not in _READ_AS:
        raise NotImplementedError("VJP of scipy.linalg.inv with this `assume_a` not defined")
    return linalg.inv(_READ_AS[assume_a](a, lower))


def _cholesky(a: Array, lower: bool = False, check_finite: bool = True) -> Any:
    del check_finite
    factor = linalg.cholesky(mirrored(a, lower))
    return factor if lower else adjoint(factor)


def _cho_factor(a: Array, lower: bool = False) -> Any:
    """Return the factor in one triangle; in the other, scipy leaves what was there, and from 1.18 on zeros."""
    factor = _cholesky(a, lower)
    if not LEAVES_THE_REST:
        return factor
    return factor + (anp.triu(a, 1) if lower else anp.tril(a, -1))


def _solve_triangular(
    a: Array,
    b: Array,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Any:
    """Solve by autograd's primitive, whose rule knows no `unit_diagonal`, no stacks and no complex numbers."""
    del overwrite_b, check_finite
    if _is_stack(a, b) or np.iscomplexobj(plain(a)) or np.iscomplexobj(plain(b)):
        return _ANY_TRIANGULAR(a, b, trans, lower, unit_diagonal)
    if unit_diagonal:
        ones = np.eye(np.shape(plain(a))[-1], dtype=plain(a).dtype)
        a = a * (1.0 - ones) + ones
    return traced.solve_triangular(a, b, trans=trans, lower=lower)


def _is_stack(*arrays: Any) -> bool:
    return any(np.ndim(plain(each)) > 2 for each in arrays)


def _any_triangular(a: Array, b: Array, trans: int | str, lower: bool, unit_diagonal: bool) -> Any:
    eye = np.eye(np.shape(plain(a))[-1])
    a = anp.tril(a) if lower else anp.triu(a)
    a = a * (1.0 - eye) + eye if unit_diagonal else a
    operation = {0: None, "N": None, 1: transposed, "T": transposed}.get(trans, adjoint)
    return solve(operation(a) if operation else a, b)


_ANY_TRIANGULAR = primitive_of(stock(of.solve_triangular), _any_triangular)


def _cho_solve(c: Array, b: Array, lower: bool) -> Any:
    factor = anp.tril(c) if lower else adjoint(anp.triu(c))
    if np.iscomplexobj(plain(c)) or _is_stack(c, b):
        return solve(anp.matmul(factor, adjoint(factor)), b)
    return traced.solve_triangular(factor, traced.solve_triangular(factor, b, lower=True), trans=1, lower=True)


def blocks_of(a: Array, e: Array) -> Any:
    """Return [[A, E], [0, A]], of which a function of matrices has its derivative along E at the right."""
    return anp.concatenate([anp.concatenate([a, e], -1), anp.concatenate([0.0 * e, a], -1)], -2)


def by_blocks(function: Function) -> tuple[Swap, Any]:
    """Return the swap of a function of matrices, and the primitive."""
    own: dict[str, Any] = {}

    def along(a: Array, e: Array, *args: Any, **kwargs: Any) -> Any:
        n = np.shape(plain(a))[-1]
        return own["primitive"](blocks_of(a, e), *args, **kwargs)[..., :n, n:]

    found, made = with_rules(
        function,
        lambda argnums, ans, args, kwargs: (
            lambda g: (
                shaped(along(transposed(args[0]), g, *args[1:], **kwargs), args[0]),  # the value may be complex
            )
        ),
        lambda argnums, tangents, ans, args, kwargs: along(args[0], tangents[0], *args[1:], **kwargs),
    )
    own["primitive"] = made
    return found, made


# Factors whose signs are free: scipy's, which a definition by numpy's has to follow


_SVD, _QR = stock(of.svd), stock(of.qr)


def _svd(a: Array, full_matrices: bool = True, compute_uv: bool = True, **options: Any) -> Any:
    _none_of(options, "svd", "lapack_driver")
    shape = np.shape(plain(a))
    if full_matrices and compute_uv and shape[-1] != shape[-2]:
        raise NotImplementedError("VJP of scipy.linalg.svd with `full_matrices` not defined")
    u, sizes, v = linalg.svd(a, False)
    if not compute_uv:
        return sizes
    signs = np.sign(np.sum(np.conj(plain(u)) * _SVD(plain(a), False, **options)[0], axis=-2))
    return u * signs[..., None, :], sizes, v * np.conj(signs)[..., :, None]


_QR_FORM = ' in this form. It has one with `mode="economic"`, of matrices with at least as many rows as columns'


def _qr(a: Array, lwork: object = None, mode: str = "full", pivoting: bool = False, check_finite: bool = True) -> Any:
    del lwork, check_finite
    rows, columns = np.shape(plain(a))[-2:]
    if rows < columns or (mode != "economic" and rows > columns) or mode == "raw":
        raise NotDifferentiableError(refusals.of_function("scipy.linalg.qr", _QR_FORM))
    q, r, *order = _QR(plain(a), mode="economic", pivoting=pivoting)
    taken = anp.take_along_axis(a, order[0][..., None, :], -1) if order else a
    factors = qr(taken, q, r)
    return (*factors[mode == "r" :], *order)


def _none_of(options: dict[str, Any], name: str, *allowed: str) -> None:
    for option, value in options.items():
        if option not in ("check_finite", *allowed) and value is not None:
            raise NotImplementedError(f"VJP of scipy.linalg.{name} with `{option}` not defined")


# Matrices that are made of vectors, and equations in them

_BLOCKS = stock(of.block_diag)
_of_column_and_row, _circulant = as_gather(stock(of.toeplitz), 0, 1), as_gather(stock(of.circulant), 0)
_of_edges = as_gather(stock(of.hankel), 0, 1)
_LESLIE = primitive_of(stock(of.leslie), as_gather(stock(of.leslie), 0, 1))


def _toeplitz(c: Array, r: Array = None) -> Any:
    return _of_column_and_row(c, anp.conj(c) if r is None else r)


def _of_coefficients(function: Function) -> Swap:
    """Return the swap of a matrix that holds the coefficients of a polynomial but the first, by which it divides."""
    own = stock(function)

    def definition(a: Array) -> Any:
        a = anp.atleast_1d(a)
        n = np.shape(plain(a))[-1]
        numbers = own(np.arange(1.0, n + 1.0))  # -k for the coefficient number k, from 2 on, and 0 and 1
        at = np.where(numbers < 0, -numbers.astype(int) - 1, 0)
        quotients = -a / a[..., :1]  # of which the first is -1
        return np.where(numbers < 0, 1.0, -numbers) * quotients[..., at]

    return defined(function, definition)


def _fiedler(a: Array) -> Any:
    a = anp.atleast_1d(a)
    eye = np.eye(np.shape(plain(a))[-1])
    return (1.0 - eye) * anp.abs(a[..., :, None] - a[..., None, :] + eye)


def _by_toeplitz(function: Function, definition: Callable[..., Any]) -> Swap:
    """Return the swap of a function whose first argument is a column, or a pair of column and row."""
    own = stock(function)

    def value(c: Array, r: Array, b: Array) -> Any:
        return own(c if r is None else (c, r), b)

    made = primitive_of(value, lambda c, r, b: definition(_toeplitz(c, r), b))

    def ours(c_or_cr: Array, *args: Any, **kwargs: Any) -> Any:
        b = args[0] if args else kwargs.get("b", kwargs.get("x"))
        c, r = map(array_of, c_or_cr if isinstance(c_or_cr, tuple) else (c_or_cr, None))
        return made(c, r, b)

    return swap(function, ours)


def _no_stack(name: str, *arrays: Any) -> None:
    if _is_stack(*arrays):
        why = " of a stack of matrices. Call it for each of them, and put the results together by `np.stack`"
        raise NotDifferentiableError(refusals.of_function(f"scipy.linalg.{name}", why))


def _no_mixture(name: str, matrices: tuple[Array, ...], q: Array) -> None:
    """Refuse what scipy solves wrongly, 1.18 does: in a real Schur form are blocks that complex numbers pass over."""
    is_complex = any(np.iscomplexobj(plain(each)) for each in (*matrices, q))
    real = [plain(each) for each in matrices if is_complex and not np.iscomplexobj(plain(each))]
    if any(np.any(np.imag(np.linalg.eigvals(each))) for each in real):  # from numpy 2.5 on, all are complex numbers
        why = " of real matrices with complex eigenvalues beside complex ones, where scipy is wrong: write `a + 0j`"
        raise NotDifferentiableError(refusals.of_function(f"scipy.linalg.{name}", why))


def _sylvester(a: Array, b: Array, q: Array) -> Any:
    _no_stack("solve_sylvester", a, b, q)
    _no_mixture("solve_sylvester", (a, b), q)
    return traced.solve_sylvester(a, b, q)


def _continuous_lyapunov(a: Array, q: Array) -> Any:
    _no_stack("solve_continuous_lyapunov", a, q)
    _no_mixture("solve_continuous_lyapunov", (a,), q)
    return traced.solve_sylvester(a, anp.conj(a.T), q)


def _discrete_lyapunov(a: Array, q: Array, method: str | None = None) -> Any:
    _no_stack("solve_discrete_lyapunov", a, q)
    n = np.shape(plain(a))[0]
    if method == "bilinear" or (method is None and n >= 10):
        _no_mixture("solve_discrete_lyapunov", (a,), q)
    return anp.reshape(linalg.solve(np.eye(n * n) - anp.kron(a, anp.conj(a)), anp.ravel(q)), (n, n))


def _khatri_rao(a: Array, b: Array) -> Any:
    shape = np.shape(plain(a))
    return anp.reshape(anp.einsum("...ij,...kj->...ikj", a, b), (*shape[:-2], -1, shape[-1]))


def _norm(a: Array, ord: Any = None, axis: Axis = None, keepdims: bool = False, check_finite: bool = True) -> Any:
    del check_finite
    return norm(a, ord, axis, keepdims)


def _pinv(a: Array, **options: Any) -> Any:
    _none_of(options, "pinv")
    return linalg.pinv(a)


# Those which return or take more than arrays


def _lu_vjp(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Function:
    """Return the pullback dL = L tril(F), dU = triu(F) U with F = L^-1 P^T dA U^-1, turned round; P stands still."""
    del argnums
    _check_lu(args, kwargs)
    p, lower, upper = ans
    below = np.tril(np.ones(np.shape(plain(lower))), -1)

    def pullback(g: Array) -> tuple[Any]:
        inner = below * anp.matmul(transposed(lower), g[1]) + (1.0 - below) * anp.matmul(g[2], transposed(upper))
        left = linalg.solve(transposed(lower), inner)
        return (anp.matmul(p, transposed(linalg.solve(upper, transposed(left)))),)

    return pullback


def _lu_jvp(argnums: Argnums, tangents: Tangents, ans: Value, args: Args, kwargs: Kwargs) -> Any:
    del argnums
    _check_lu(args, kwargs)
    p, lower, upper = ans
    below = np.tril(np.ones(np.shape(plain(lower))), -1)
    solved = linalg.solve(lower, anp.matmul(transposed(p), tangents[0]))
    inner = transposed(linalg.solve(transposed(upper), transposed(solved)))
    return 0.0 * p, anp.matmul(lower, below * inner), anp.matmul((1.0 - below) * inner, upper)


def _check_lu(args: Args, kwargs: Kwargs) -> None:
    shape = np.shape(plain(args[0]))
    if len(args) > 1 or any(kwargs.get(name) for name in ("permute_l", "p_indices")) or shape[-1] != shape[-2]:
        raise NotImplementedError("VJP of scipy.linalg.lu of a matrix that is not square, or with options, not defined")


def _lu_pair(factors: Function) -> list[Swap]:
    """Return the swaps of `lu_factor` and `lu_solve`; `factors` is the primitive of `lu`."""
    own, solving = stock(of.lu_factor), stock(of.lu_solve)

    def packed(a: Array) -> Any:
        return own(a)[0]

    def definition(a: Array) -> Any:
        found = factors(a)
        return found[1] + found[2] - np.eye(np.shape(plain(a))[-1])

    def solution(lu: Array, b: Array, pivots: Array, trans: int) -> Any:
        return solving((lu, pivots), b, trans)

    def definition_of_solution(lu: Array, b: Array, pivots: Array, trans: int) -> Any:
        n = np.shape(plain(lu))[-1]
        order = np.arange(n)
        for row, other in enumerate(pivots):
            order[[row, other]] = order[[other, row]]
        a = anp.matmul(anp.tril(lu, -1) + np.eye(n), anp.triu(lu))[np.argsort(order)]
        return linalg.solve((a, transposed(a), adjoint(a))[trans], b)

    factored, solved = primitive_of(packed, definition), primitive_of(solution, definition_of_solution)

    def ours(a: Array, overwrite_a: bool = False, check_finite: bool = True) -> Any:
        del overwrite_a, check_finite
        _no_stack("lu_factor", a)
        _check_lu((a,), {})
        return factored(a), own(plain(a))[1]

    def ours_solving(
        lu_and_piv: tuple[Array, Array], b: Array, trans: int = 0, overwrite_b: bool = False, check_finite: bool = True
    ) -> Any:
        del overwrite_b, check_finite
        _no_stack("lu_solve", lu_and_piv[0])
        return solved(lu_and_piv[0], b, plain(lu_and_piv[1]), trans)

    return [swap(of.lu_factor, ours), swap(of.lu_solve, ours_solving)]


def _least_squares() -> Swap:
    own = stock(of.lstsq)

    def solution(a: Array, b: Array) -> Any:
        x, residuals, _, sizes = own(a, b)
        return x, residuals, sizes

    made = primitive_of(solution, least_squares)

    def ours(a: Array, b: Array, **options: Any) -> Any:
        _none_of({name: each for name, each in options.items() if not name.startswith("overwrite")}, "lstsq")
        _no_stack("lstsq", a, b)
        rows, columns = np.shape(plain(a))
        if np.linalg.matrix_rank(plain(a)) < columns or rows <= columns:
            raise NotImplementedError(
                "VJP of scipy.linalg.lstsq of a matrix without more rows than its rank not defined"
            )
        found = made(a, b)
        return found[0], found[1], columns, found[2]

    return swap(of.lstsq, ours)


def _cholesky_pair() -> list[Swap]:
    own, solving = stock(of.cho_factor), stock(of.cho_solve)

    def factor(a: Array, lower: bool) -> Any:
        return own(a, lower)[0]

    def solution(c: Array, b: Array, lower: bool) -> Any:
        return solving((c, lower), b)

    factored, solved = primitive_of(factor, _cho_factor), primitive_of(solution, _cho_solve)

    def ours(a: Array, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
        del overwrite_a, check_finite
        return factored(a, lower), np.full(np.shape(plain(a))[:-2], lower) if _is_stack(a) else lower

    def ours_solving(c_and_lower: Any, b: Array, overwrite_b: bool = False, check_finite: bool = True) -> Any:
        del overwrite_b, check_finite
        c, lower = c_and_lower
        return solved(c, b, bool(np.ravel(lower)[:1].all()))  # of a stack of factors it is an array

    return [swap(of.cho_factor, ours), swap(of.cho_solve, ours_solving)]


keep_real(traced.solve_sylvester)
_OF_EXPM, EXPM = by_blocks(of.expm)
_OF_LOGM, LOGM = by_blocks(of.logm)
_LU, _LU_PRIMITIVE = with_rules(of.lu, _lu_vjp, _lu_jvp)
SWAPS: list[Swap] = [
    defined(of.solve, _solve),
    defined(of.inv, _inv),
    defined(of.det, lambda a, **options: linalg.det(a)),
    defined(of.cholesky, _cholesky),
    *_cholesky_pair(),
    swap(of.solve_triangular, _solve_triangular),
    defined(of.svd, _svd),
    defined(of.svdvals, lambda a, **options: singular_values(a)),
    defined(of.qr, _qr),
    _LU,
    *_lu_pair(_LU_PRIMITIVE),
    defined(of.pinv, _pinv),
    defined(of.norm, _norm),
    _least_squares(),
    swap(of.solve_sylvester, _sylvester),
    defined(of.solve_continuous_lyapunov, _continuous_lyapunov),
    defined(of.solve_discrete_lyapunov, _discrete_lyapunov),
    defined(of.toeplitz, _toeplitz),
    defined(of.hankel, lambda c, r=None: _of_edges(*[each for each in (c, r) if each is not None])),
    defined(of.circulant, _circulant),
    swap(of.leslie, lambda f, s: _LESLIE(array_of(f), array_of(s))),
    _of_coefficients(of.companion),
    _of_coefficients(of.fiedler_companion),
    defined(of.fiedler, _fiedler),
    defined(of.convolution_matrix, as_gather(stock(of.convolution_matrix), 0)),
    defined(of.block_diag, lambda *arrays: as_gather(_BLOCKS, *range(len(arrays)))(*arrays)),
    defined(of.khatri_rao, _khatri_rao),
    _by_toeplitz(of.solve_toeplitz, linalg.solve),
    _by_toeplitz(of.matmul_toeplitz, anp.matmul),
    _OF_EXPM,
    _OF_LOGM,
    *(by_blocks(each)[0] for each in (of.sqrtm, of.sinm, of.cosm, of.tanm, of.sinhm, of.coshm, of.tanhm)),
]
