"""Additivity: is every function that adds up left alone, and every one that does not found out?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dagad._kernels.additivity import why_no_sum

TURN = np.random.default_rng(1).standard_normal((3, 3)) + 3 * np.eye(3)
Function = Callable[[Any], Any]


def why(fun: Function, rows: Any) -> str | None:
    def run(start: int, stop: int) -> Any:
        return fun(rows[start:stop])

    middle = len(rows) // 2
    return why_no_sum("fun", run, (0, middle, len(rows)), [run(0, middle), run(middle, len(rows))], rows)


SUMS: dict[str, Function] = {
    "sum": np.sum,
    "of squares": lambda rows: rows.ravel() @ rows.ravel(),
    "by column": lambda rows: rows.sum(axis=0),
    "products": lambda rows: rows.T @ rows,
    "some of which vanish": lambda rows: (np.sum(rows - rows), rows.T @ rows),
    "pytree": lambda rows: {"n": len(rows), "of": [np.sum(np.sin(rows)), float(np.max(rows * 0))]},
    "count": len,
    "true or not": lambda rows: np.sum(rows > 0),
    "complex": lambda rows: np.sum(np.exp(1j * rows)),
    "residuals of exact data": lambda rows: np.sum((rows @ np.linalg.inv(TURN) @ TURN - rows) ** 2),
    "absolute ones": lambda rows: np.sum(np.abs(rows @ np.linalg.inv(TURN) @ TURN - rows)),
    "nan": lambda rows: np.nan * len(rows),
    "infinity": lambda rows: -np.inf,
    "other shapes, refused elsewhere": lambda rows: rows[:, 0],
    "other structures": lambda rows: (1.0,) * len(rows),
    "nothing": lambda rows: (),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SUMS)
@settings(max_examples=15, deadline=None)
@given(n_rows=st.integers(2, 1000), scale=st.sampled_from([1e-6, 1.0, 1e4]), seed=st.integers(0, 10**6))
def test_a_function_that_adds_up_is_never_doubted(name: str, n_rows: int, scale: float, seed: int) -> None:
    rows = scale * np.random.default_rng(seed).standard_normal((n_rows, 3))
    assert why(SUMS[name], rows) is None
    assert why(SUMS[name], rows.astype("f4")) is None


OTHERS: dict[str, Function] = {
    "mean": lambda rows: np.mean(rows**2),
    "prior": lambda rows: np.sum(rows**2) + 3.0,
    "in a container": lambda rows: {"n": len(rows), "squares": np.mean(rows**2, axis=0)},
    "column against rows": lambda rows: np.sum((rows[:, :1] - rows[:, 1]) ** 2),
    "edges": lambda rows: np.sum(np.diff(rows, axis=0) ** 2),
    "the same noise in each chunk": lambda rows: rows.ravel() @ np.random.default_rng(0).random(rows.size),
}


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("name", OTHERS)
def test_a_function_that_does_not_add_up_is_found_out(name: str, dtype: str) -> None:
    said = why(OTHERS[name], np.random.default_rng(3).standard_normal((64, 3)).astype(dtype))
    assert said is not None
    assert "`fun` does not add up: for rows 0:64 it gives" in said
    assert "for rows 0:32 and 32:64 together" in said


def test_a_function_of_random_numbers_is_distinguished_from_one_that_does_not_add_up() -> None:
    rng = np.random.default_rng(0)
    said = why(lambda rows: np.sum(rows[:, 0] * rng.standard_normal(len(rows))), np.ones((64, 3)))
    assert said is not None
    assert "for the same rows when it was called again" in said
    assert "Draw random numbers before" in said
