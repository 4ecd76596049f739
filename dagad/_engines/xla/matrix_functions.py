"""Functions of matrices as scipy.linalg has them, for jax: roots, logarithms, powers, circular and hyperbolic ones.

Roots are principal. Of a matrix with an eigenvalue that is negative or zero they are nan: that scipy's value is complex
there, only numbers tell, and jax compiles before there are any.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np

from dagad._engines.xla.equations import sylvester
from dagad._engines.xla.matrices import double, floating
from dagad._types import Args, Array, Function, Tangents

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_N_ROOTS = 4  # of an eigenvalue between 1e-14 and 1e14 the logarithm is 2 at most then, for which the nodes are enough


@jax.custom_jvp
def _root(a: Array) -> Any:
    """Return the principal square root: by Denman and Beavers, in products, with two of Newton's steps."""
    eye = np.eye(a.shape[-1], dtype=a.dtype)

    def closer(_: int, state: tuple[Array, ...]) -> Any:
        x, m = state
        inverse = jnp.linalg.inv(m)
        scale = jnp.sqrt(jnp.linalg.norm(inverse) / jnp.linalg.norm(m))  # of m, so that both are as large
        m, inverse = m * scale, inverse / scale
        return 0.5 * jnp.sqrt(scale) * (x + x @ inverse), 0.5 * (eye + 0.5 * (m + inverse))

    x, _ = jax.lax.fori_loop(0, 40, closer, (a, a))
    for _ in range(2):
        x = x + sylvester(x, x, a - x @ x, "sqrtm")
    is_root = jnp.linalg.norm(a - x @ x) <= 1e-8 * jnp.linalg.norm(a)
    return jnp.where(is_root, x, jnp.nan)


@_root.defjvp
def _jvp_of_root(args: Args, tangents: Tangents) -> Any:
    x = _root(*args)
    return x, sylvester(x, x, tangents[0], "sqrtm")


def _each(function: Function) -> Function:
    return jnp.vectorize(function, signature="(n,n)->(n,n)")


_roots = _each(_root)


def sqrtm(A: Array) -> Any:
    return _roots(floating(A))


def logm(A: Array) -> Any:
    """Return the principal logarithm: of a root of roots by Gauss's quadrature of (1 + x E)^-1 E."""
    near = double(A)
    eye = np.eye(near.shape[-1], dtype=near.dtype)
    for _ in range(_N_ROOTS):
        near = _roots(near)
    excess = near - eye
    parts = [
        float(weight) * jnp.linalg.solve(eye + float(0.5 + 0.5 * node) * excess, excess)
        for node, weight in zip(_NODES, _WEIGHTS, strict=True)
    ]
    return 2.0 ** (_N_ROOTS - 1) * sum(parts[1:], parts[0])


def fractional_matrix_power(A: Array, t: Array) -> Any:
    a = floating(A)
    if isinstance(t, int | float | np.number) and t == int(t):
        return jnp.linalg.matrix_power(a, int(t))
    return _exp(t * logm(a))


_exp = _each(jsp.linalg.expm)


def _both(a: Array) -> tuple[Any, Any]:
    """Return cosine and sine."""
    if a.dtype.kind == "c":
        ahead, behind = _exp(1j * a), _exp(-1j * a)
        return 0.5 * (ahead + behind), -0.5j * (ahead - behind)
    rotation = _exp(1j * a)
    return jnp.real(rotation), jnp.imag(rotation)


def _hyperbolic(a: Array) -> tuple[Any, Any]:
    ahead, behind = _exp(a), _exp(-a)
    return 0.5 * (ahead + behind), 0.5 * (ahead - behind)


def _quotient(pair: tuple[Any, Any]) -> Any:
    return jnp.linalg.solve(*pair)


FUNCTIONS: dict[str, Function] = {
    "scipy.linalg.sqrtm": sqrtm,
    "scipy.linalg.logm": logm,
    "scipy.linalg.fractional_matrix_power": fractional_matrix_power,
    "scipy.linalg.cosm": lambda A: _both(floating(A))[0],
    "scipy.linalg.sinm": lambda A: _both(floating(A))[1],
    "scipy.linalg.tanm": lambda A: _quotient(_both(floating(A))),
    "scipy.linalg.coshm": lambda A: _hyperbolic(floating(A))[0],
    "scipy.linalg.sinhm": lambda A: _hyperbolic(floating(A))[1],
    "scipy.linalg.tanhm": lambda A: _quotient(_hyperbolic(floating(A))),
}
