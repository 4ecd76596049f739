"""What scipy tells, of vectors, as users are told it: results and what callbacks are called with, of pytrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dagad._types import Array, Value
from dagad._words import signature_of
from dagad.interop._from_scipy import optimize


def with_pytrees(callback: Callable[..., Any] | None, tree: Callable[[Any], Any]) -> Callable[..., Any] | None:
    """Return a callback that is called with pytrees; scipy asks what its argument is called."""
    if callback is None:
        return None
    if _names_of_arguments(callback) == ["intermediate_result"]:

        def of_result(intermediate_result: object) -> Any:
            found = intermediate_result
            if not isinstance(found, optimize.OptimizeResult):  # SLSQP of scipy before 1.16 has the vector alone
                found = optimize.OptimizeResult(x=found)
            return callback(intermediate_result=as_trees(found, tree))

        return of_result

    def called(x: Array, *state: Any) -> Any:
        return callback(tree(x), *(as_trees(one, tree) for one in state))

    return called


def _names_of_arguments(callback: Callable[..., Any]) -> list[str]:
    try:
        return list(signature_of(callback).parameters)
    except ValueError:  # some of those written in C have none
        return []


def as_trees(result: Value, tree: Callable[[Any], Any]) -> Any:
    """Return a result of scipy's with pytrees in it."""
    found = optimize.OptimizeResult(result)
    for name in ("x", "jac", "grad"):
        vector = found.get(name)
        if isinstance(vector, np.ndarray) and vector.ndim == 1:
            found[name], found[f"{name}_flat"] = tree(vector), vector
    return found
