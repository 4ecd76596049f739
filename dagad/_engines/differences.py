"""Derivatives compared with differences, where a function may keep something between two calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._tracing import equalities
from dagad._tracing.flat_functions import Flat, Leaves
from dagad._tracing.forward import push
from dagad._tracing.recalled import left_to_others
from dagad._tracing.refusals import explained
from dagad._tracing.tape import traceable
from dagad._types import Leaf, Tangent, Value
from dagad._values import pytree

STEP = 1e-4  # how far arguments move, of their size: further than what is usually taken for equal
ROUGH, NOISE = 0.1, 1e-8  # how well a difference has to agree with a derivative; what of the value may be noise


class Compared:
    """A function of leaves whose derivative is compared with a difference, once, if it may return what it has kept.

    That is where it has found a value being differentiated equal to another: see `equalities`. `refuse` is called if
    they don't agree. The first leaves, so many, are states, which are compared with zero more often than not: what is
    zero in them stays.
    """

    def __init__(self, fun: Flat, n_states: int, refuse: Callable[[], Any]) -> None:
        self._fun, self._n_states, self._refuse, self._is_seen = fun, n_states, refuse, False

    def __call__(self, leaves: Leaves) -> list[Any]:
        """Return what the function does."""
        before = equalities.count()
        with left_to_others():
            found = self._fun(leaves)
        if equalities.count() != before:
            self.look(leaves)
        return found

    @left_to_others()
    def look(self, leaves: Leaves) -> None:
        """Compare, at the plain values of these leaves."""
        if self._is_seen:
            return
        self._is_seen = True
        here = [traceable(pytree.plain(leaf)) for leaf in leaves]
        for index, leaf in enumerate(here):
            if not pytree.is_differentiable(leaf):
                continue
            self._fun(here)  # what it remembers is of this point
            there, delta = list(here), [None] * len(here)
            there[index] = _stepped(leaf, 0.0 if index < self._n_states else 1.0)
            delta[index] = there[index] - leaf
            try:
                values, (tangents,) = push(self._fun, here, [delta])
                near, beside = self._beside(there, delta, values)
                self._fun(here)
            except Exception:  # it may go by a value that it knows, and take no other
                continue
            moves = zip(near, values, tangents, beside, strict=True)
            # Where another branch is taken for exactly this value, the derivative beside it is of no use either.
            if any(differs(one, two, tangent) and not differs(one, two, other) for one, two, tangent, other in moves):
                self._refuse()
        self._fun(here)

    def _beside(self, there: Leaves, delta: list[Any], values: Sequence[Any]) -> tuple[list[Any], Sequence[Any]]:
        """Return values and tangents at a point of which the function remembers nothing.

        Where it can't be followed there, as one that writes its argument into an array, the tangent at hand came of
        what it remembers, and the values speak for themselves.
        """
        try:
            near, (beside,) = push(self._fun, there, [delta])
        except Exception as error:
            if not isinstance(explained(error), NotDifferentiableError):
                raise
            near = self._fun(there)
            beside = [np.asarray(one) - np.asarray(two) for one, two in zip(near, values, strict=True)]
        return near, beside


def differs(near: Value, here: Value, tangent: Tangent) -> bool:
    """Return whether a tangent is not what a value moves by, not even roughly."""
    found = np.asarray(near) - np.asarray(here)
    derived = np.zeros_like(found) if tangent is None else np.asarray(tangent)
    gap, size = np.linalg.norm(found - derived), max(np.linalg.norm(found), np.linalg.norm(derived))
    return bool(gap > ROUGH * size + NOISE * np.linalg.norm(np.asarray(here)))


def _stepped(leaf: Leaf, step_of_zero: float) -> Any:
    """Return a leaf moved by a little of its size, each entry in its own way."""
    array = np.array(leaf)
    ways = np.cos(1.0 + np.arange(array.size)).reshape(array.shape)
    stepped = array + STEP * np.where(array == 0, step_of_zero, abs(array)) * (ways + np.sign(ways))
    return pytree.cast(stepped if isinstance(leaf, np.ndarray) else stepped[()], leaf)
