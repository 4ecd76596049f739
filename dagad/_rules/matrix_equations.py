"""Functions of scipy.linalg whose value solves an equation, and powers: their slopes are found by that equation."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
import scipy.linalg as of
from autograd.numpy import linalg
from autograd.scipy import linalg as traced

from dagad._errors import NotDifferentiableError
from dagad._rules.linalg_rules import qr, singular_values, solve
from dagad._rules.scipy_functions import defined, stock, swap, with_rules
from dagad._rules.scipy_linalg import EXPM, LOGM, blocks_of
from dagad._rules.triangles import adjoint, mirrored, transposed
from dagad._tracing import refusals
from dagad._tracing.by_definition import rules_near
from dagad._tracing.patches import Swap
from dagad._tracing.rules import own_primitive, shaped
from dagad._types import Argnums, Args, Array, Function, Kwargs, Tangents, Value
from dagad._values import pytree

plain = pytree.plain

# Polar decomposition: U of A = U P has no slope of its own in the singular values, which may be equal

_POLAR = stock(of.polar)


def _unitary(a: Array) -> Any:
    return _POLAR(a)[0]


def _unitary_near(ans: Value, held: Args, a: Array) -> Any:
    """Turn U by the X with X P + P X = U^H dA - dA^H U, and out of its columns by what of dA is there."""
    rows, columns = np.shape(plain(a))
    at = held[0]
    if rows < columns:
        return adjoint(_unitary_near(adjoint(ans), (adjoint(at),), adjoint(a)))
    sizes = np.linalg.svd(plain(at), compute_uv=False)
    if columns and sizes[-1] <= rows * np.finfo(sizes.dtype).eps * sizes[0]:
        raise NotDifferentiableError(
            refusals.of_function("scipy.linalg.polar", ", nor of `orthogonal_procrustes`, where its matrix is singular")
        )
    positive = anp.matmul(adjoint(ans), at)
    positive = 0.5 * (positive + adjoint(positive))
    rotated = anp.matmul(adjoint(ans), a)
    found = ans + anp.matmul(ans, traced.solve_sylvester(positive, positive, rotated - adjoint(rotated)))
    if rows == columns:
        return found
    residual = a - anp.matmul(ans, rotated)
    return found + transposed(linalg.solve(transposed(positive), transposed(residual)))


_UNITARY = own_primitive(_unitary, *rules_near("scipy.linalg.polar", _unitary_near))


def unitary(a: Array) -> Any:
    """Return the unitary factor of matrices."""
    shape = np.shape(plain(a))
    if len(shape) == 2:
        return _UNITARY(a)
    return anp.reshape(anp.stack([_UNITARY(each) for each in anp.reshape(a, (-1, *shape[-2:]))]), shape)


def _polar(a: Array, side: str = "right") -> Any:
    u = unitary(a)
    positive = anp.matmul(adjoint(u), a) if side == "right" else anp.matmul(a, adjoint(u))
    return u, 0.5 * (positive + adjoint(positive))


def _procrustes(A: Array, B: Array, check_finite: bool = True) -> Any:
    del check_finite
    product = anp.matmul(adjoint(A), B)
    turn = unitary(product)
    return turn, anp.real(anp.sum(anp.conj(turn) * product))


# Pseudo-inverses of Hermitian matrices, of the same rank nearby


def _pinvh_near(ans: Value, held: Args, a: Array, *, lower: bool = True) -> Any:
    a, at = mirrored(a, lower), mirrored(held[0], lower)
    eye = np.eye(np.shape(plain(at))[-1])
    residual = anp.matmul(anp.matmul(anp.matmul(ans, ans), a), eye - anp.matmul(at, ans))
    return residual + adjoint(residual) - anp.matmul(ans, anp.matmul(a, ans))


def _pinvh() -> Swap:
    own = stock(of.pinvh)

    def raw(a: Array, *, lower: bool) -> Any:
        return own(a, lower=lower)

    made = own_primitive(raw, *rules_near("scipy.linalg.pinvh", _pinvh_near))

    def ours(
        a: Array,
        atol: float | None = None,
        rtol: float | None = None,
        lower: bool = True,
        return_rank: bool = False,
        check_finite: bool = True,
    ) -> Any:
        del check_finite
        strange = {"atol": atol is not None, "rtol": rtol is not None, "return_rank": return_rank}
        if any(strange.values()):
            raise NotDifferentiableError(
                refusals.of_option("scipy.linalg.pinvh", [n for n, is_on in strange.items() if is_on])
            )
        return made(a, lower=lower)

    return swap(of.pinvh, ours)


# Riccati equations: their linearization is Lyapunov's equation for the loop that is closed


def _continuous_near(ans: Value, held: Args, a: Array, b: Array, q: Array, r: Array, *, balanced: bool = True) -> Any:
    del balanced
    a, b, q, r = map(anp.atleast_2d, (a, b, q, r))
    a_at, b_at, _, r_at = map(anp.atleast_2d, held)
    closed = a_at - anp.matmul(b_at, linalg.solve(r_at, anp.matmul(adjoint(b_at), ans)))
    forward = anp.matmul(ans, a)
    driven = anp.matmul(adjoint(b), ans)
    rest = forward + adjoint(forward) - anp.matmul(adjoint(driven), linalg.solve(r, driven)) + q
    found = traced.solve_sylvester(adjoint(closed), closed, -rest)
    return ans + 0.5 * (found + adjoint(found))


def _discrete_near(ans: Value, held: Args, a: Array, b: Array, q: Array, r: Array, *, balanced: bool = True) -> Any:
    del balanced
    a, b, q, r = map(anp.atleast_2d, (a, b, q, r))
    a_at, b_at, _, r_at = map(anp.atleast_2d, held)

    def gained(a: Array, b: Array, r: Array) -> tuple[Any, Any]:
        driven = anp.matmul(adjoint(b), ans)
        return anp.matmul(driven, a), linalg.solve(r + anp.matmul(driven, b), anp.matmul(driven, a))

    closed = a_at - anp.matmul(b_at, gained(a_at, b_at, r_at)[1])
    driven, gain = gained(a, b, r)
    rest = anp.matmul(adjoint(a), anp.matmul(ans, a)) - anp.matmul(adjoint(driven), gain) + q - ans
    found = _stein(closed, rest)
    return ans + 0.5 * (found + adjoint(found))


def _stein(a: Array, q: Array) -> Any:
    """Return the X with X - A^H X A = Q by a Cayley transform, which is Lyapunov's equation."""
    eye = np.eye(np.shape(plain(a))[0])
    inverse = linalg.inv(a + eye)
    cayley = anp.matmul(a - eye, inverse)
    right = 2.0 * anp.matmul(adjoint(inverse), anp.matmul(q, inverse))
    return traced.solve_sylvester(adjoint(cayley), cayley, -right)


def _riccati(function: Function, near: Function) -> Swap:
    own = stock(function)
    name = f"scipy.linalg.{function.__name__}"

    def raw(a: Array, b: Array, q: Array, r: Array, *, balanced: bool = True) -> Any:
        return own(a, b, q, r, balanced=balanced)

    made = own_primitive(raw, *rules_near(name, near))

    def ours(a: Array, b: Array, q: Array, r: Array, e: Array = None, s: Array = None, balanced: bool = True) -> Any:
        strange = [option for option, value in (("e", e), ("s", s)) if value is not None]
        if strange:
            raise NotDifferentiableError(refusals.of_option(name, strange))
        return made(a, b, q, r, balanced=balanced)

    return swap(function, ours)


# Angles between subspaces


def _base(a: Array) -> Any:
    """Return an orthonormal base of the space that columns span, as many as there are."""
    found = qr(a, *np.linalg.qr(plain(a)))
    return found[0]


def _subspace_angles(A: Array, B: Array) -> Any:
    for each in (A, B):
        if np.linalg.matrix_rank(plain(each)) < np.shape(plain(each))[1]:
            why = " of columns that depend on each other linearly"
            raise NotDifferentiableError(refusals.of_function("scipy.linalg.subspace_angles", why))
    one, other = sorted((_base(A), _base(B)), key=lambda base: -np.shape(plain(base))[1])
    inner = anp.matmul(adjoint(one), other)
    cosines = singular_values(inner)[::-1]
    sines = singular_values(other - anp.matmul(one, inner))
    is_small = plain(cosines) ** 2 >= 0.5
    return anp.where(
        is_small, anp.arcsin(anp.where(is_small, sines, 0.5)), anp.arccos(anp.where(is_small, 0.5, cosines))
    )


# Functions of matrices


def _frechet(
    A: Array, E: Array, method: str | None = None, compute_expm: bool = True, check_finite: bool = True
) -> Any:
    del method, check_finite
    n = np.shape(plain(A))[-1]
    size = np.max(np.abs(plain(E)), initial=0.0) or 1.0  # it is linear in E, and of a large one expm halves often
    found = EXPM(blocks_of(A, E / size))
    slope = size * found[..., :n, n:]
    return (found[..., :n, :n], slope) if compute_expm else slope


def _base_and_power(A: Array, t: Array) -> tuple[Any, Any]:
    return A, t


def _power_along(a: Array, e: Array, t: Array) -> Any:
    n = np.shape(plain(a))[-1]
    size = (np.max(np.abs(plain(e)), initial=0.0) or 1.0) / (np.max(np.abs(plain(a)), initial=0.0) or 1.0)
    return size * _POWER(blocks_of(a, e / size), t)[..., :n, n:]


def _power_vjp(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Function:
    a, t = _base_and_power(*args, **kwargs)

    def part(argnum: int, g: Array) -> Any:
        if argnum == 0:
            return _power_along(transposed(a), g, t)
        return anp.sum(g * anp.matmul(ans, LOGM(a)))

    return lambda g: tuple(shaped(part(argnum, g), args[argnum]) for argnum in argnums)


def _power_jvp(argnums: Argnums, tangents: Tangents, ans: Value, args: Args, kwargs: Kwargs) -> Any:
    a, t = _base_and_power(*args, **kwargs)
    found: Any = 0.0
    for argnum, tangent in zip(argnums, tangents, strict=True):
        found = found + (tangent * anp.matmul(ans, LOGM(a)) if argnum else _power_along(a, tangent, t))
    return found


def _circulant_solution(c: Array, b: Array, caxis: int = -1, baxis: int = 0, outaxis: int = 0) -> Any:
    """Return solutions for columns of circulant matrices along one axis, and right-hand sides along another."""
    c, b = anp.moveaxis(anp.atleast_1d(c), caxis, -1), anp.moveaxis(anp.atleast_1d(b), baxis, -1)
    n = np.shape(plain(c))[-1]
    matrices = c[..., (np.arange(n)[:, None] - np.arange(n)) % n]
    return anp.moveaxis(solve(matrices, b[..., None])[..., 0], -1, outaxis)


_OF_POWER, _POWER = with_rules(of.fractional_matrix_power, _power_vjp, _power_jvp)
SWAPS: list[Swap] = [
    defined(of.polar, _polar),
    defined(of.solve_circulant, _circulant_solution),
    defined(of.orthogonal_procrustes, _procrustes),
    _pinvh(),
    _riccati(of.solve_continuous_are, _continuous_near),
    _riccati(of.solve_discrete_are, _discrete_near),
    defined(of.subspace_angles, _subspace_angles),
    defined(of.expm_frechet, _frechet),
    _OF_POWER,
]
