"""Explicit functions whose pullbacks find in some holder what their call has put there, until the next one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad
from dagad.extend import explicit
from support.holders import HOLDERS, ROWS

X = np.array([0.7, -0.3])
WEIGHTS = np.array([3.0, 5.0])


def made_with(holder: str) -> Any:
    put, get = HOLDERS[holder]()

    @explicit
    def fun(rows: Any, x: Any) -> Any:
        own = np.array(rows).reshape(-1, 2)
        put(own)

        def pullback(seed: Any) -> Any:
            held = get()
            return None, seed * np.sum(np.cos(held * x) * held**2, axis=0)

        return np.sum(np.sin(own * x) * own, axis=0), pullback

    return fun


def right(x: Any, seed: Any) -> Any:
    return seed * np.sum(np.cos(ROWS * x) * ROWS**2, axis=0)


WAYS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a sum": lambda fun, x, how: dagad.reduce_sum(fun, ROWS, x, grainsize=2, scheduler=how),
    "a map": lambda fun, x, how: sum(dagad.map(fun, list(ROWS), x, scheduler=how)),
    "a sum of items": lambda fun, x, how: dagad.map_sum(fun, list(ROWS), x, grainsize=2, scheduler=how),
}


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_pullback_finds_what_its_own_call_has_left_in_any_holder(holder: str, way: str) -> None:
    check(holder, way, "sync")


@pytest.mark.parametrize("way", WAYS)
def test_a_pullback_finds_what_its_own_call_has_left_for_its_thread(way: str) -> None:
    """Whichever thread calls it."""
    check("a thread local", way, "threads")


def check(holder: str, way: str, scheduler: str) -> None:
    fun = made_with(holder)
    found = dagad.grad(lambda x: np.sum(WEIGHTS * WAYS[way](fun, x, scheduler)))(X)
    np.testing.assert_allclose(found, right(X, WEIGHTS), rtol=1e-13)
    found = dagad.jacrev(lambda x: WAYS[way](fun, x, scheduler))(X)
    np.testing.assert_allclose(found, np.diag(right(X, np.ones(2))), rtol=1e-13, atol=1e-15)
    _, pullback = dagad.vjp(lambda x: WAYS[way](fun, x, scheduler), X)
    dagad.value_and_grad(lambda x: np.sum(WAYS[way](fun, x, scheduler)))(2.0 * X)
    for seed in (WEIGHTS, np.ones(2)):
        np.testing.assert_allclose(pullback(seed)[0], right(X, seed), rtol=1e-13)


def test_a_function_whose_pullback_reads_what_stays_the_same_runs_once_a_chunk() -> None:
    table, names, by_key = np.linspace(0.0, 1.0, 50), ["a", "b"], {"scale": 2.0, "rows": (ROWS, 3)}
    runs = list[int]()

    @explicit
    def fun(rows: Any, x: Any) -> Any:
        runs.append(len(rows))
        own = np.array(rows)

        def pullback(seed: Any) -> Any:
            scale = by_key["scale"] * table[-1] / len(names)
            return None, seed * np.sum(np.cos(own * x) * own**2, axis=0) * scale

        return np.sum(np.sin(own * x) * own, axis=0), pullback

    found = dagad.grad(lambda x: np.sum(WEIGHTS * dagad.reduce_sum(fun, ROWS, x, grainsize=2, scheduler="sync")))(X)
    np.testing.assert_allclose(found, right(X, WEIGHTS), rtol=1e-13)
    assert runs == [2, 2, 2]
