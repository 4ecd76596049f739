"""Threads: may several of them pull the same operation at once, when it is let go of by the first that is done?

The seeds of a Jacobian are shared among tasks, so that an operation inside an item is pulled by many of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import autograd
import autograd.numpy as np
import dask
import numpy as onp
import pytest

import dagad
from dagad._executors.graph import SEEDS_A_TASK
from dagad.extend import CompensatedSum, Keep, Preaccumulate, Recompute

X, THETA = onp.random.default_rng(0).standard_normal((3, 3)), onp.array([0.1, 0.2, 0.3])
WEIGHTS = onp.arange(1.0, 16.0)
SPREAD = onp.arange(1.0, 2.0 * SEEDS_A_TASK)


@pytest.fixture
def _hasty() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with dask.config.set(num_workers=4):
        yield
    sys.setswitchinterval(before)


def inside(item: Any, theta: Any) -> Any:
    return np.sum(np.sin(WEIGHTS * np.sum(theta * item)))


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("_hasty")
@pytest.mark.parametrize("policy", [None, Recompute()])
@pytest.mark.parametrize("way", [None, CompensatedSum()])
def test_the_tasks_of_a_jacobian_can_pull_a_reduction_inside_an_item(way: Any, policy: Any) -> None:
    def chunk(weights: Any, theta: Any, item: Any) -> Any:
        return np.sum(np.sin(weights * np.sum(theta * item)))

    def item(x: Any, theta: Any) -> Any:
        options: Any = {"grainsize": 5, "scheduler": "sync", "sum": way}
        return dagad.reduce_sum(chunk, WEIGHTS, theta, x, **options) * SPREAD

    expected = autograd.jacobian(lambda t: np.concatenate([inside(x, t) * SPREAD for x in X]))(THETA)
    for _ in range(10):
        found = dagad.jacrev(lambda t: dagad.map_rect(item, X, t, grainsize=3, scheduler="threads", policy=policy))(
            THETA
        )
        onp.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda t, **options: dagad.reduce_sum(lambda rows, t: np.sum(np.sin(rows * t)), X, t, **options),
    "sum of arrays": lambda t, **options: dagad.reduce_sum(lambda rows, t: np.sum(rows * t, axis=0), X, t, **options),
    "map": lambda t, **options: dagad.map(lambda row, t: np.sum(np.sin(row * t)), X, t, **options),
}


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("_hasty")
@pytest.mark.parametrize("policy", [Keep(), Recompute(), Preaccumulate()])
@pytest.mark.parametrize("name", ["sum", "sum of arrays", "map", "compensated sum", "compensated sum of arrays"])
def test_several_threads_can_call_one_pullback_at_once(name: str, policy: Any) -> None:
    options: Any = {"grainsize": 1, "scheduler": "sync", "policy": policy}
    if name.startswith("compensated"):
        options["sum"] = CompensatedSum()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            value, pullback = dagad.vjp(lambda t: OPERATIONS[name.removeprefix("compensated ")](t, **options), THETA)
            found = list(pool.map(pullback, [onp.ones(onp.shape(value))] * 8))
            for (gradient,) in found:
                assert onp.array_equal(gradient, found[0][0])
