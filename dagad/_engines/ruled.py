"""Operations with derivatives that are written by hand, and are differentiable in turn: a node on anybody's tape.

A rule computes plain leaves from plain leaves, and says what becomes of tangents and cotangents at leaves that somebody
may trace. It says so in numpy, or by operations with such rules: so every mode has every order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dagad._tracing.embedded import NodePullback, Trace, innermost
from dagad._tracing.flat_functions import Flat, Leaves
from dagad._tracing.forward import push
from dagad._tracing.tape import pull, record_flat, traceable
from dagad._values import pytree


class Rule(Protocol):
    """An operation from leaves to leaves, with its derivatives."""

    def value(self, leaves: Leaves) -> list[Any]:
        """Compute plain leaves from plain ones."""

    def push(self, values: Leaves, leaves: Leaves, tangents: Mapping[int, Any]) -> Leaves:
        """Return the tangents of the values, None for zero, from those of some leaves, by their index."""

    def pull(self, values: Leaves, leaves: Leaves, cotangents: Sequence[Any], asked: Sequence[int]) -> dict[int, Any]:
        """Return the cotangents of the leaves that are asked for, from those of the values, None for zero."""


def applied(rule: Rule, leaves: Leaves) -> list[Any]:
    """Return what an operation gives, traced by all who trace its leaves."""
    trace = innermost(leaves)
    if trace is None:
        return rule.value(list(map(traceable, leaves)))
    return (_forward if trace.moves else _reverse)(rule, trace)


def _forward(rule: Rule, trace: Trace) -> list[Any]:
    values = applied(rule, trace.below)
    tangents, count = trace.tangents()
    tangents_out: list[list[Any]] = []
    for number in range(count):
        own = {index: many[number] for index, many in tangents.items() if many[number] is not None}
        parts = rule.push(values, trace.below, own) if own else [None] * len(values)
        tangents_out.append([pytree.dense(part, value, "A tangent") for part, value in zip(parts, values, strict=True)])
    return [trace.with_tangents(value, [parts[index] for parts in tangents_out]) for index, value in enumerate(values)]


def _reverse(rule: Rule, trace: Trace) -> list[Any]:
    values = applied(rule, trace.below)
    asked = list(trace.nodes)

    def pulled(cotangents: Sequence[Any]) -> list[Any]:
        found = {} if all(part is None for part in cotangents) else rule.pull(values, trace.below, cotangents, asked)
        return [found.get(index) for index in range(len(trace.below))]

    back: Any = pulled
    return trace.pulled(values, NodePullback(back, trace.below, asked, list(range(len(values))), len(values)))


def output_tangents(fun: Flat, leaves: Leaves, tangents: Mapping[int, Any]) -> list[Any]:
    """Return the tangents of what a function written with numpy returns, None for zero."""
    found: list[Any] = push(fun, leaves, [[tangents.get(index) for index in range(len(leaves))]])[1][0]
    return found


def pulled_back(fun: Flat, leaves: Leaves, cotangents: Sequence[Any], asked: Sequence[int]) -> dict[int, Any]:
    """Return the cotangents of some leaves of such a function, without those that are zero."""

    def of_asked(own: Leaves) -> list[Any]:
        at = dict(zip(asked, own, strict=True))
        return fun([at.get(index, leaf) for index, leaf in enumerate(leaves)])

    own = [leaves[index] for index in asked]
    _, ends, roots = record_flat(of_asked, own)
    found = pull(ends, cotangents, roots, own)
    return {index: part for index, part in zip(asked, found, strict=True) if part is not None}


class Followed:
    """A value that was computed in another way, with the derivatives of a function written with numpy."""

    def __init__(self, values: Sequence[Any], fun: Flat) -> None:
        self._values, self._fun = list(values), fun

    def value(self, leaves: Leaves) -> list[Any]:
        del leaves
        return [np.array(part) if isinstance(part, np.ndarray) else part for part in self._values]

    def push(self, values: Leaves, leaves: Leaves, tangents: Mapping[int, Any]) -> Leaves:
        del values
        return output_tangents(self._fun, leaves, tangents)

    def pull(self, values: Leaves, leaves: Leaves, cotangents: Sequence[Any], asked: Sequence[int]) -> dict[int, Any]:
        del values
        return pulled_back(self._fun, leaves, cotangents, asked)
