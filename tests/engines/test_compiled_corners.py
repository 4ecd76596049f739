"""Plain numpy compiled by jax, at its corners: changes in place, types of its own, single points, refusals caught."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dagad

ROWS = np.array([3.0, 1.0, 2.0])


def at(fun: Any, t: Any = 1.0, rows: Any = ROWS, engine: str | None = "jax") -> Any:
    """Return value and gradient of a function of all rows and a parameter, compiled or by autograd."""
    return dagad.value_and_grad(total(fun, rows, engine))(t)


def total(fun: Any, rows: Any = ROWS, engine: str | None = "jax") -> Any:
    return lambda t: dagad.reduce_sum(fun, rows, t, grainsize=len(rows), scheduler="sync", engine=engine)


# --- in place ---------------------------------------------------------------------------------------------------------


def sorted_and_indexed(rows: Any, t: Any) -> Any:
    y = rows * t
    y.sort()
    return y[0]


def sorted_and_weighed(rows: Any, t: Any) -> Any:
    y = rows * t
    y.sort()
    return (y * np.arange(3.0)).sum()


def seen_in_other_bits(rows: Any, t: Any) -> Any:
    y = rows * t
    part = y[1:]
    part *= 2.0
    return y.view(np.int64)[0] * 0.0 + y[1]


def in_a_new_array(rows: Any, t: Any) -> Any:
    y = rows * t
    part = y[1:]
    part *= 2.0
    return np.array([y[1], y[2]])[0]


def beside_a_new_array(rows: Any, t: Any) -> Any:
    y = rows * t
    part = y[1:]
    part *= 2.0
    return y[1] + np.asarray([t, t])[0]


@pytest.mark.filterwarnings("ignore:.*does not add up")
@pytest.mark.parametrize(
    "fun", [sorted_and_indexed, sorted_and_weighed, seen_in_other_bits, in_a_new_array, beside_a_new_array]
)
def test_changes_in_place_are_refused_without_any_call_of_numpys_functions(fun: Any) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"changes an array in place.*`np\.sort\(x\)`"):
        at(fun)
