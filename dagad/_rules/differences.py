"""Sums of products of differences between all rows of two matrices, with derivatives, a column at a time.

The differences of all pairs at once would take as much memory as there are columns; and what is written with products
of matrices instead cancels where two rows are close. Both functions are made of each other when they are pulled.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dagad._tracing.rules import own_primitive
from dagad._types import Argnums, Args, Array, Function, Kwargs, Tangents, Value
from dagad._values import pytree

plain = pytree.plain


def _difference(a: Array, b: Array) -> Any:
    return np.subtract.outer(a, b)


def _products(a: Array, b: Array, c: Array, d: Array) -> Any:
    """Return the sums over k of (a[i, k] - b[j, k]) (c[i, k] - d[j, k])."""
    total = np.zeros((len(a), len(b)), dtype=np.result_type(a, b, c, d))
    for k in range(a.shape[1]):
        left = _difference(a[:, k], b[:, k])
        total += left * (left if c is a and d is b else _difference(c[:, k], d[:, k]))
    return total


def _drawn(g: Array, a: Array, b: Array) -> Any:
    """Return the sums over j of g[i, j] (a[i, k] - b[j, k])."""
    found = np.empty(a.shape, dtype=np.result_type(g, a, b))
    for k in range(a.shape[1]):
        found[:, k] = np.einsum("ij,ij->i", g, _difference(a[:, k], b[:, k]))
    return found


def _nothing(x: Array) -> Any:
    return np.zeros_like(plain(x))


def _vjp_products(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Function:
    del ans, kwargs
    a, b, c, d = args
    pulls = (
        lambda g: drawn(g, c, d),
        lambda g: drawn(np.transpose(g), d, c),
        lambda g: drawn(g, a, b),
        lambda g: drawn(np.transpose(g), b, a),
    )
    return lambda g: tuple(pulls[at](g) for at in argnums)


def _jvp_products(argnums: Argnums, tangents: Tangents, ans: Value, args: Args, kwargs: Kwargs) -> Any:
    del ans, kwargs
    by_argnum = dict(zip(argnums, tangents, strict=True))
    parts = []
    for first in (0, 2):
        if by_argnum.keys() & {first, first + 1}:
            pair = [by_argnum.get(at, _nothing(args[at])) for at in (first, first + 1)]
            parts.append(products(*pair, *args[2 - first : 4 - first]))
    return sum(parts[1:], parts[0])


def _vjp_drawn(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Function:
    del ans, kwargs
    g, a, b = args
    pulls = (
        lambda h: products(h, _nothing(b), a, b),
        lambda h: h * np.sum(g, axis=1, keepdims=True),
        lambda h: -np.matmul(np.transpose(g), h),
    )
    return lambda h: tuple(pulls[at](h) for at in argnums)


def _jvp_drawn(argnums: Argnums, tangents: Tangents, ans: Value, args: Args, kwargs: Kwargs) -> Any:
    del ans, kwargs
    g, a, b = args
    by_argnum = dict(zip(argnums, tangents, strict=True))
    parts = [drawn(by_argnum[0], a, b)] if 0 in by_argnum else []
    if by_argnum.keys() & {1, 2}:
        parts.append(drawn(g, by_argnum.get(1, _nothing(a)), by_argnum.get(2, _nothing(b))))
    return sum(parts[1:], parts[0])


products: Any = own_primitive(_products, _vjp_products, _jvp_products)
drawn: Any = own_primitive(_drawn, _vjp_drawn, _jvp_drawn)


def squares(a: Array, b: Array) -> Any:
    """Return the squared distances of all rows of one matrix to all of another."""
    return products(a, b, a, b)
