"""Equations in matrices that scipy.linalg solves, for jax: by what has no slope of its own, and by linear equations.

Schur forms have derivatives nowhere. Sylvester's equation is solved as one of all its unknowns here, with as many as
that will bear; polar factors and Riccati's equations have the slope of the equation that they solve.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dagad._engines.xla import refusals
from dagad._engines.xla.conversions import as_dtype
from dagad._engines.xla.matrices import double
from dagad._engines.xla.protocols import common_dtype
from dagad._errors import NotDifferentiableError
from dagad._types import Args, Array, Function, Tangents

MOST_UNKNOWNS = 1024
_LARGE = f" with more than {MOST_UNKNOWNS:,} unknowns"


def _adjoint(a: Array) -> Any:
    return jnp.conj(jnp.swapaxes(a, -1, -2))


def _solved(name: str, system: Function, q: Array, *others: Any) -> Any:
    """Solve for all unknowns at once."""
    if any(each.ndim > 2 for each in (q, *others)):
        raise NotDifferentiableError(refusals.of_function(f"scipy.linalg.{name}", " of a stack of matrices"))
    if q.size > MOST_UNKNOWNS:
        raise NotDifferentiableError(refusals.of_function(f"scipy.linalg.{name}", _LARGE))
    return jnp.linalg.solve(system(), jnp.ravel(q)).reshape(q.shape)


def sylvester(a: Array, b: Array, q: Array, name: str = "solve_sylvester") -> Any:
    """Return the X with A X + X B = Q."""
    a, b, q = (as_dtype(each, common_dtype([a, b, q])) for each in (a, b, q))
    rows, columns = np.eye(a.shape[-1], dtype=a.dtype), np.eye(b.shape[-1], dtype=a.dtype)
    return _solved(name, lambda: jnp.kron(a, columns) + jnp.kron(rows, jnp.swapaxes(b, -1, -2)), q, a, b)


def lyapunov(a: Array, q: Array) -> Any:
    """Return the X with A X + X A^H = Q."""
    return sylvester(a, _adjoint(a), q, "solve_continuous_lyapunov")


def stein(a: Array, q: Array, name: str = "solve_discrete_lyapunov") -> Any:
    """Return the X with X - A X A^H = Q."""
    a, q = (as_dtype(each, common_dtype([a, q])) for each in (a, q))
    return _solved(name, lambda: np.eye(q.size, dtype=a.dtype) - jnp.kron(a, jnp.conj(a)), q, a)


# Polar decomposition


@jax.custom_jvp
def _unitary(a: Array) -> Any:
    u, _, v = jnp.linalg.svd(a, full_matrices=False)
    return u @ v


@_unitary.defjvp
def _jvp_of_unitary(args: Args, tangents: Tangents) -> Any:
    """Turn U by the X with X P + P X = U^H dA - dA^H U, and out of its columns by what of dA is there."""
    (a,), (tangent,) = args, tangents
    u = _unitary(a)
    positive = _adjoint(u) @ a
    positive = 0.5 * (positive + _adjoint(positive))
    rotated = _adjoint(u) @ tangent
    found = u @ sylvester(positive, positive, rotated - _adjoint(rotated), "polar")
    if a.shape[-2] > a.shape[-1]:
        residual = tangent - u @ rotated
        found = found + jnp.swapaxes(jnp.linalg.solve(positive.T, residual.T), -1, -2)
    sizes = jnp.linalg.svd(a, compute_uv=False)
    is_singular = sizes[-1] <= a.shape[0] * np.finfo(sizes.dtype).eps * sizes[0]
    return u, jnp.where(is_singular, jnp.nan, 1.0) * found  # a choice would give no slope


def unitary(a: Array) -> Any:
    """Return the unitary factor of matrices."""
    if a.shape[-2] < a.shape[-1]:
        return _adjoint(unitary(_adjoint(a)))
    return jnp.vectorize(_unitary, signature="(m,n)->(m,n)")(a)


# Riccati's equations: a first solution, and Newton's steps, each of which is a linear equation


def _residual(x: Array, a: Array, b: Array, q: Array, r: Array) -> Any:
    driven = _adjoint(b) @ x
    forward = x @ a
    return forward + _adjoint(forward) - _adjoint(driven) @ jnp.linalg.solve(r, driven) + q


def _step(x: Array, rest: Array, a: Array, b: Array, r: Array) -> Any:
    closed = a - b @ jnp.linalg.solve(r, _adjoint(b) @ x)
    return sylvester(_adjoint(closed), closed, -rest, "solve_continuous_are")


def _first(a: Array, b: Array, q: Array, r: Array) -> Any:
    """Return the solution by the sign of the Hamiltonian matrix, which Newton's method finds."""
    n = a.shape[0]
    z = jnp.block([[a, -b @ jnp.linalg.solve(r, _adjoint(b))], [-q, -_adjoint(a)]])

    def towards(_: int, z: Array) -> Any:
        inverse = jnp.linalg.inv(z)
        scale = jnp.sqrt(jnp.linalg.norm(inverse) / jnp.linalg.norm(z))
        return 0.5 * (scale * z + inverse / scale)

    z = jax.lax.fori_loop(0, 40, towards, z)
    eye = np.eye(n, dtype=z.dtype)
    left = jnp.concatenate([z[:n, n:], z[n:, n:] + eye])
    right = jnp.concatenate([z[:n, :n] + eye, z[n:, :n]])
    factor, triangle = jnp.linalg.qr(left)
    return -jnp.linalg.solve(triangle, _adjoint(factor) @ right)


def _discrete_residual(x: Array, a: Array, b: Array, q: Array, r: Array) -> Any:
    driven = _adjoint(b) @ x
    gain = jnp.linalg.solve(r + driven @ b, driven @ a)
    return _adjoint(a) @ x @ a - _adjoint(driven @ a) @ gain + q - x


def _discrete_step(x: Array, rest: Array, a: Array, b: Array, r: Array) -> Any:
    driven = _adjoint(b) @ x
    closed = a - b @ jnp.linalg.solve(r + driven @ b, driven @ a)
    return stein(_adjoint(closed), rest, "solve_discrete_are")


def _discrete_first(a: Array, b: Array, q: Array, r: Array) -> Any:
    """Return the solution by doubling: each round looks twice as many steps ahead."""
    eye = np.eye(a.shape[0], dtype=a.dtype)

    def doubled(_: int, state: tuple[Array, ...]) -> Any:
        a, g, h = state
        inner = jnp.linalg.solve(eye + g @ h, jnp.concatenate([a, g], -1))
        ahead, spread = inner[:, : len(a)], inner[:, len(a) :]
        return a @ ahead, g + a @ spread @ _adjoint(a), h + _adjoint(a) @ h @ ahead

    return jax.lax.fori_loop(0, 40, doubled, (a, b @ jnp.linalg.solve(r, _adjoint(b)), q))[2]


def _riccati_of(first: Function, residual: Function, step: Function) -> Function:
    @jax.custom_jvp
    def solution(a: Array, b: Array, q: Array, r: Array) -> Any:
        x = first(a, b, q, r)
        for _ in range(2):
            x = x + step(x, residual(x, a, b, q, r), a, b, r)
            x = 0.5 * (x + _adjoint(x))
        size = jnp.linalg.norm
        is_solved = size(residual(x, a, b, q, r)) <= 1e-8 * (1.0 + size(q) + size(x))
        for weight in (q, r):  # scipy refuses others than Hermitian ones
            is_solved = is_solved & (size(weight - _adjoint(weight)) <= 1e-10 * size(weight))
        return jnp.where(is_solved, x, jnp.nan)

    @solution.defjvp
    def jvp(args: Args, tangents: Tangents) -> Any:
        x = solution(*args)
        a, b, _, r = args
        found = step(x, jax.jvp(lambda *at: residual(x, *at), args, tangents)[1], a, b, r)
        return x, 0.5 * (found + _adjoint(found))

    def called(a: Array, b: Array, q: Array, r: Array, balanced: bool = True) -> Any:
        del balanced
        arrays = [jnp.atleast_2d(double(each)) for each in (a, b, q, r)]
        dtype = common_dtype(arrays)
        return solution(*(as_dtype(each, dtype) for each in arrays))

    return called


riccati = _riccati_of(_first, _residual, _step)
discrete_riccati = _riccati_of(_discrete_first, _discrete_residual, _discrete_step)
