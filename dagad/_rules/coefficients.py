"""Functions of numpy's of polynomials as coefficients, the highest first: values, powers, slopes and integrals."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._tracing.private import isbox
from dagad._types import Array, Function
from dagad._values import pytree

plain = pytree.plain


def _vander(x: Array, N: int | None = None, increasing: bool = False) -> Any:
    powers = np.arange(np.size(plain(x)) if N is None else N)
    return x[:, None] ** (powers if increasing else powers[::-1])


def _polyval(p: Array, x: Array) -> Any:
    x = x if isbox(x) else np.asarray(x)
    total = 0.0 * x
    for index in range(len(p)):
        total = total * x + p[index]
    return total


def _powers_down(p: Array) -> Any:
    return np.arange(np.shape(plain(p))[0], 0, -1.0)


def _polyder(p: Array, m: int = 1) -> Any:
    for _ in range(int(m)):
        p = p[:-1] * _powers_down(p[:-1])
    return p


def _polyint(p: Array, m: int = 1, k: Array = None) -> Any:
    k = np.zeros(1) if k is None else anp.ravel(k)
    for step in range(int(m)):
        p = anp.concatenate([p / _powers_down(p), k[:1] if len(k) == 1 else k[step : step + 1]])
    return p


DEFINED: dict[Any, Function] = {
    np.vander: _vander,
    np.polyval: _polyval,
    np.polyder: _polyder,
    np.polyint: _polyint,
}
