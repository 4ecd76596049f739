"""Elliptic integrals of scipy.special: primitives with slopes by Carlson's forms.

The textbook's derivatives of Legendre's integrals are differences that cancel where the parameter is small or next to
one; those by Carlson's R_D have one term.
"""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
import scipy.special as of

from dagad._rules import carlson
from dagad._rules.scipy_functions import primitive_of
from dagad._rules.scipy_rules import Slopes, enter, f
from dagad._tracing.numpy_protocols import UFUNCS
from dagad._types import Array, Function
from dagad._values import pytree

plain = pytree.plain


def _by_roots(form: Function, *roots: Array) -> Any:
    """Return an integral of the squares of these: of roots, so that nothing is singular where one is zero."""
    held = [plain(each) for each in roots]
    found = form(roots, anp.sqrt, carlson.steps_for(*map(np.square, held)))
    diverges = sum(1 * np.equal(each, 0) for each in held) > 1
    return anp.where(diverges, np.inf, found) if np.any(diverges) else found


def _of_two(a: Array, b: Array, c: Array) -> Any:
    return _by_roots(carlson.rd, a, b, c)


def complete_first(p: Array) -> Any:
    """Return the derivative in the parameter m of K(m), of p = 1 - m."""
    return _of_two(0.0, 1.0, anp.sqrt(p)) / 6.0


def complete_second(p: Array) -> Any:
    """Return the derivative of E(m)."""
    return -_of_two(0.0, anp.sqrt(p), 1.0) / 6.0


def _by_quarters(phi: Array, m: Array) -> Any:
    """Return how often pi is in an angle, and of what is left the sine, the cosine and sqrt(1 - m sine^2)."""
    turns = np.round(plain(phi) / np.pi)
    sign = 1.0 - 2.0 * np.mod(turns, 2.0)
    sine, cosine = sign * anp.sin(phi), sign * anp.cos(phi)
    return turns, sine, cosine, anp.sqrt(cosine**2 + (1.0 - m) * sine**2)


def _incomplete_first(ans: Array, phi: Array, m: Array) -> Any:
    turns, sine, cosine, root = _by_quarters(phi, m)
    part = sine**3 * _of_two(cosine, 1.0, root) / 6.0
    return part + 2.0 * turns * complete_first(1.0 - m) if np.any(turns) else part


def _incomplete_second(ans: Array, phi: Array, m: Array) -> Any:
    turns, sine, cosine, root = _by_quarters(phi, m)
    part = -(sine**3) * _of_two(cosine, root, 1.0) / 6.0
    return part + 2.0 * turns * complete_second(1.0 - m) if np.any(turns) else part


SLOPES: dict[str, Slopes] = {
    "ellipk": (lambda ans, m: complete_first(1.0 - m),),
    "ellipkm1": (lambda ans, p: -complete_first(p),),
    "ellipe": (lambda ans, m: complete_second(1.0 - m),),
    "ellipkinc": (lambda ans, phi, m: 1.0 / _by_quarters(phi, m)[3], _incomplete_first),
    "ellipeinc": (lambda ans, phi, m: _by_quarters(phi, m)[3], _incomplete_second),
    "elliprf": (
        lambda ans, x, y, z: -f.elliprd(y, z, x) / 6.0,
        lambda ans, x, y, z: -f.elliprd(z, x, y) / 6.0,
        lambda ans, x, y, z: -f.elliprd(x, y, z) / 6.0,
    ),
}


def _elliprd(x: Array, y: Array, z: Array) -> Any:
    return _of_two(anp.sqrt(x), anp.sqrt(y), anp.sqrt(z))


def _elliprc(x: Array, y: Array) -> Any:
    """Return R_C; below zero it is a principal value, by that of another pair."""
    below = np.real(plain(y)) < 0 if not np.iscomplexobj(plain(y)) else np.zeros(np.shape(plain(y)), bool)
    factor = anp.where(below, anp.sqrt(anp.where(below, x / anp.where(below, x - y, 1.0), 1.0)), 1.0)
    root, other = anp.sqrt(anp.where(below, x - y, x)), anp.sqrt(anp.where(below, -y, y))
    return factor * _by_roots(carlson.rf, root, other, other)


def _agm(a: Array, b: Array) -> Any:
    """Return the mean of two numbers of one sign."""
    sign = np.where(plain(a) < 0, -1.0, 1.0)
    return sign * carlson.mean(sign * a, sign * b, anp.sqrt)


def enter_all() -> None:
    """Put these where numpy's protocol looks for ufuncs."""
    for name, slopes in SLOPES.items():
        enter(getattr(of, name), slopes)
    for ufunc, definition in ((of.elliprd, _elliprd), (of.elliprc, _elliprc), (of.agm, _agm)):
        UFUNCS[ufunc] = primitive_of(ufunc, definition)
