"""Engines with arrays of their own: are seeds that are none left out, and data that have changed read again?"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as onp
import pytest
import torch
from dask.delayed import delayed

import dagad

ROWS = onp.linspace(0.1, 2.0, 24)


@pytest.fixture(params=["jax", "torch"])
def engine(request: pytest.FixtureRequest) -> Any:
    """Return the name of an engine, and its numpy."""
    return request.param, {"jax": jnp, "torch": torch}[request.param]


def test_an_engine_with_own_arrays_skips_leaves_without_a_seed_or_tangent(engine: Any) -> None:
    """At an infinite slope a zero would be nan."""
    name, np = engine

    def roots(rows: Any, a: Any, b: Any) -> Any:
        return {"a": np.sqrt(a) * np.sum(rows), "b": b**3 * np.sum(rows), "n": np.sum(rows > 1.0)}

    def total(a: Any, b: Any) -> Any:
        return dagad.reduce_sum(roots, ROWS, a, b, grainsize=6, engine=name, scheduler="sync")

    value, tangent = dagad.jvp(total, (0.0, 2.0), (0.0, 1.0))
    assert value["n"] == onp.sum(ROWS > 1.0)
    assert tangent["b"] == pytest.approx(12.0 * ROWS.sum())
    assert tangent["a"] == 0.0
    assert dagad.grad(lambda b: total(0.0, b)["b"])(2.0) == pytest.approx(12.0 * ROWS.sum())
    assert dagad.hvp(lambda b: total(0.0, b)["b"], 2.0, 1.0) == pytest.approx(12.0 * ROWS.sum())
    counts = dagad.reduce_sum(lambda rows, t: np.sum(rows > t), ROWS, 1.0, engine=name, scheduler="sync")
    assert counts == onp.sum(ROWS > 1.0)


def test_data_that_are_made_writable_again_are_read_again(engine: Any) -> None:
    name, np = engine
    data = onp.ones(4)
    data.flags.writeable = False

    def total(rows: Any, t: Any) -> Any:
        return np.sum(rows * t)

    def slope() -> Any:
        t = delayed(float)(2.0)
        return dagad.gradient(delayed(total)(data, t), t, engine=name).compute(scheduler="sync")

    assert slope() == slope() == 4.0
    data.flags.writeable = True
    data[:] = 5.0
    assert slope() == 20.0


def test_rows_that_begin_anywhere_in_memory_are_read_as_they_are_now() -> None:
    """XLA takes some of them as they lie: those may change while it has them."""
    memory, starts = onp.zeros(2**17 + 128, onp.uint8), (0, 8, 16, 24, 64)
    first = -memory.ctypes.data % 64

    def moments(rows: Any, scale: Any) -> Any:
        return jnp.stack([jnp.sum(jnp.sin(rows * scale)), jnp.sum(jnp.exp(-scale * rows**2))])

    for start in starts:
        rows = memory[first + start : first + start + 2**17].view(float)
        for seed in range(3):
            x = onp.random.default_rng(seed).normal(size=rows.size)
            rows[:] = x
            found, pull = dagad.vjp(
                lambda scale, rows=rows: dagad.reduce_sum(
                    moments, rows, scale, engine="jax", scheduler="sync", grainsize=2**13
                ),
                1.5,
            )[:2]
            rows[:] = 0.0
            bell = onp.exp(-1.5 * x**2)
            onp.testing.assert_allclose(found, [onp.sum(onp.sin(1.5 * x)), onp.sum(bell)], rtol=1e-10)
            (slope,) = pull(onp.array([1.0, 2.0]))
            assert slope == pytest.approx(onp.sum(onp.cos(1.5 * x) * x - 2.0 * x**2 * bell), rel=1e-10)
