"""The autograd engine: differentiates functions written with numpy, by autograd."""

from __future__ import annotations

from typing import Any

from dagad import _rules as _rules  # all tables of rules are in force from here on
from dagad._tracing.flat_functions import Flat, FlatFunction, Leaves, Traits
from dagad._tracing.forward import push
from dagad._tracing.tape import TapePullback, pull, record_flat
from dagad._types import Leaf
from dagad._values import pytree


class AutogradEngine:
    """The engine of functions that are written with numpy, or ``autograd.numpy``; the default.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.extend import AutogradEngine
    >>> def total(theta):
    ...     return dagad.reduce_sum(lambda rows, t: np.sum(rows * t**2), np.arange(4.0), theta, engine=AutogradEngine())
    >>> float(dagad.grad(total)(2.0))
    24.0
    """

    __slots__ = ()
    name = "autograd"
    is_autograds = True  # what traces outside is what traces inside: traced leaves go right through a function
    traits = Traits(is_autograds=True)

    def takes(self, leaf: Leaf) -> bool:
        """Take everything, to see traced values wherever they are hidden."""
        del leaf
        return True

    def value(self, fun: Flat, leaves: Leaves) -> list[Any]:
        return fun(leaves)

    def run(self, fun: FlatFunction, leaves: Leaves) -> Any:
        """Return what a task returns; the leaves may be traced."""
        return fun.run(leaves)

    def linearize(self, fun: Flat, leaves: Leaves) -> tuple[list[Any], TapePullback]:
        values, ends, roots = record_flat(fun, leaves)
        return values, TapePullback(ends, roots, leaves)

    def pushforward(self, fun: Flat, n: int) -> Flat:
        def jvp(leaves: Leaves) -> list[Any]:
            each = len(leaves) // (1 + n)
            directions = [leaves[start : start + each] for start in range(each, len(leaves), each)]
            values, tangents = push(fun, leaves[:each], directions)
            return [*values, *(part for parts in tangents for part in pytree.filled(parts, values))]

        return jvp

    def pullback(self, fun: Flat, n: int) -> Flat:
        def pulled(leaves: Leaves) -> list[Any]:
            _, ends, roots = record_flat(fun, leaves[:n])
            return pytree.filled(pull(ends, leaves[n:], roots, leaves[:n]), leaves[:n])

        return pulled
