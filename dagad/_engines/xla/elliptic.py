"""Elliptic integrals and the arithmetic-geometric mean, which jax has not: by Carlson's forms of `_rules/carlson`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dagad._engines.xla import corners
from dagad._engines.xla.refusals import of_real
from dagad._rules import carlson
from dagad._types import Array, Function


def _by_roots(form: Function, *roots: Array) -> Any:
    """Return an integral of the squares of these; of two zeros it is infinite."""
    n_zeros = sum(jnp.equal(each, 0).astype(int) for each in roots)
    found = form(roots, jnp.sqrt, carlson.MOST)
    return jnp.where(n_zeros > 1, jnp.inf, found)


def _rd(a: Array, b: Array, c: Array) -> Any:
    return _by_roots(carlson.rd, a, b, c)


def _rf(a: Array, b: Array, c: Array) -> Any:
    return _by_roots(carlson.rf, a, b, c)


def _complete(p: Array) -> Any:
    """Return K and E of m = 1 - p."""
    root = jnp.sqrt(jnp.where(p == 0, 1.0, p))
    first = _rf(0.0, root, 1.0)
    second = first - (1.0 - p) / 3.0 * _rd(0.0, root, 1.0)
    return jnp.where(p == 0, jnp.inf, first), jnp.where(p == 0, 1.0, second)


def _first_by_m(p: Array) -> Any:
    return _rd(0.0, 1.0, jnp.sqrt(p)) / 6.0


def _second_by_m(p: Array) -> Any:
    return -_rd(0.0, jnp.sqrt(p), 1.0) / 6.0


def _by_quarters(phi: Array, m: Array) -> Any:
    """Return how often pi is in an angle, and of what is left the sine, the cosine and sqrt(1 - m sine^2)."""
    turns = jnp.round(jax.lax.stop_gradient(phi) / np.pi)
    sign = 1.0 - 2.0 * jnp.mod(turns, 2.0)
    sine, cosine = sign * jnp.sin(phi), sign * jnp.cos(phi)
    return turns, sine, cosine, jnp.sqrt(cosine**2 + (1.0 - m) * sine**2)


def _whole_turns(turns: Array, each: Array) -> Any:
    return jnp.where(turns == 0, 0.0, 2.0 * turns * jnp.where(turns == 0, 0.0, each))


def _ellipkinc(phi: Array, m: Array) -> Any:
    turns, sine, cosine, root = _by_quarters(phi, m)
    return sine * _rf(cosine, root, 1.0) + _whole_turns(turns, _complete(1.0 - m)[0])


def _ellipeinc(phi: Array, m: Array) -> Any:
    turns, sine, cosine, root = _by_quarters(phi, m)
    part = sine * _rf(cosine, root, 1.0) - m / 3.0 * sine**3 * _rd(cosine, root, 1.0)
    return part + _whole_turns(turns, _complete(1.0 - m)[1])


def _incomplete_first(ans: Array, phi: Array, m: Array) -> Any:
    turns, sine, cosine, root = _by_quarters(phi, m)
    return sine**3 * _rd(cosine, 1.0, root) / 6.0 + _whole_turns(turns, _first_by_m(1.0 - m))


def _incomplete_second(ans: Array, phi: Array, m: Array) -> Any:
    turns, sine, cosine, root = _by_quarters(phi, m)
    return -(sine**3) * _rd(cosine, root, 1.0) / 6.0 + _whole_turns(turns, _second_by_m(1.0 - m))


def _elliprd(x: Array, y: Array, z: Array) -> Any:
    return _rd(jnp.sqrt(x), jnp.sqrt(y), jnp.sqrt(z))


def _elliprf(x: Array, y: Array, z: Array) -> Any:
    return _rf(jnp.sqrt(x), jnp.sqrt(y), jnp.sqrt(z))


def _elliprc(x: Array, y: Array) -> Any:
    below = y < 0
    factor = jnp.sqrt(jnp.where(below, x / jnp.where(below, x - y, 1.0), 1.0))
    other = jnp.sqrt(jnp.abs(y))
    found = factor * _rf(jnp.sqrt(jnp.where(below, x - y, x)), other, other)
    return jnp.where(y == 0, jnp.nan, found)


def _agm(a: Array, b: Array) -> Any:
    sign, gone = jnp.where(a < 0, -1.0, 1.0), a * b == 0
    p, q = (jnp.where(gone, 1.0, sign * each) for each in (a, b))
    return jnp.where(gone, jnp.sqrt(a * b), sign * carlson.mean(p, q, jnp.sqrt))  # whose slope is infinite, too


UFUNCS: dict[str, Function] = {
    "ellipk": corners.with_slopes(lambda m: _complete(1.0 - m)[0], lambda ans, m: _first_by_m(1.0 - m)),
    "ellipkm1": corners.with_slopes(lambda p: _complete(p)[0], lambda ans, p: -_first_by_m(p)),
    "ellipe": corners.with_slopes(lambda m: _complete(1.0 - m)[1], lambda ans, m: _second_by_m(1.0 - m)),
    "ellipkinc": corners.with_slopes(_ellipkinc, lambda ans, phi, m: 1.0 / _by_quarters(phi, m)[3], _incomplete_first),
    "ellipeinc": corners.with_slopes(_ellipeinc, lambda ans, phi, m: _by_quarters(phi, m)[3], _incomplete_second),
    "elliprf": of_real(
        "elliprf",
        corners.with_slopes(
            _elliprf,
            lambda ans, x, y, z: -_elliprd(y, z, x) / 6.0,
            lambda ans, x, y, z: -_elliprd(z, x, y) / 6.0,
            lambda ans, x, y, z: -_elliprd(x, y, z) / 6.0,
        ),
    ),
    "elliprd": of_real("elliprd", _elliprd),
    "elliprc": of_real("elliprc", _elliprc),
    "agm": _agm,
}
