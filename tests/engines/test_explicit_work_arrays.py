"""Explicit functions whose pullbacks read work arrays, which each call fills: gradients are of their own calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import dagad
from dagad.extend import explicit

ROWS = np.arange(1.0, 7.0)
X = np.float64(0.3)
WORK = np.zeros(5)
LARGE = np.zeros(20_000)


def powers(rows: Any, size: int = 5) -> Any:
    return np.sum(rows) * np.linspace(0.1, 0.9, size)


@explicit
def by_global(rows: Any, x: Any) -> Any:
    WORK[:] = powers(rows)
    return WORK * x**2, lambda seed: (None, np.sum(seed * 2 * WORK * x))


@explicit
def by_large_global(rows: Any, x: Any) -> Any:
    LARGE[:] = np.repeat(powers(rows), LARGE.size // 5)
    return LARGE[:: LARGE.size // 5] * x**2, lambda seed: (None, np.sum(seed * 2 * LARGE[:: LARGE.size // 5] * x))


class Model:
    def __init__(self) -> None:
        self.work, self.x = np.zeros(5), 0.0

    def __call__(self, rows: Any, x: Any) -> Any:
        self.work[:] = powers(rows)
        return self.work * x**2, partial(self.pull, x)

    def pull(self, x: Any, seed: Any) -> Any:
        return None, np.sum(seed * 2 * self.work * x)


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "a global": lambda: by_global,
    "a large global": lambda: by_large_global,
    "an object": lambda: explicit(Model()),
}
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": partial(dagad.reduce_sum, grainsize=2),
    "map": dagad.map,
    "map_sum": dagad.map_sum,
    "map_rect": dagad.map_rect,
}


def by_numpy(rows: Any, x: Any) -> Any:
    return powers(rows) * x**2


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_pullback_that_reads_a_work_array_is_that_of_its_own_call(function: str, reduction: str) -> None:
    rows = ROWS if reduction == "sum" else list(ROWS)

    def loss(fun: Any, x: Any) -> Any:
        return np.sum(np.sin(REDUCTIONS[reduction](fun, rows, x, scheduler="sync")))

    fun = FUNCTIONS[function]()
    expected = dagad.value_and_grad(partial(loss, by_numpy))(X)
    assert dagad.value_and_grad(partial(loss, fun))(X) == pytest.approx(expected, rel=1e-13)
    _, pullback = dagad.vjp(partial(loss, fun), X)
    assert pullback(1.0)[0] == pytest.approx(expected[1], rel=1e-13)
    assert dagad.jvp(partial(loss, fun), X, 1.0)[1] == pytest.approx(expected[1], rel=1e-13)


def made() -> Any:
    work = np.zeros(5)

    def by_closure(rows: Any, x: Any) -> Any:
        work[:] = powers(rows)
        return work * x**2, lambda seed: (None, np.sum(seed * 2 * work * x))

    return explicit(by_closure)


def test_a_work_array_of_a_closure_is_read_only_or_its_pullback_is_that_of_its_own_call() -> None:
    def loss(fun: Any, x: Any) -> Any:
        return np.sum(np.sin(dagad.map_sum(fun, list(ROWS), x, scheduler="sync")))

    try:
        found = dagad.value_and_grad(partial(loss, made()))(X)
    except ValueError as error:
        assert "read-only" in str(error)  # noqa: PT017  # either will do
    else:
        assert found == pytest.approx(dagad.value_and_grad(partial(loss, by_numpy))(X), rel=1e-13)


def test_a_function_whose_pullback_has_memory_of_its_own_runs_once_a_chunk() -> None:
    runs = []

    @explicit
    def counted(rows: Any, x: Any) -> Any:
        runs.append(1)
        own, data = powers(rows), ROWS  # what nobody writes to may be shared
        return own * x**2, lambda seed: (None, np.sum(seed * 2 * own * x) + 0.0 * data[0])

    def loss(x: Any) -> Any:
        return np.sum(np.sin(dagad.reduce_sum(counted, ROWS, x, grainsize=2, scheduler="sync")))

    dagad.grad(loss)(X)
    runs.clear()
    dagad.grad(loss)(X)
    assert len(runs) == 3


@explicit
def number_by_global(rows: Any, x: Any) -> Any:
    WORK[:] = powers(rows)
    return np.sum(np.sin(x * WORK)), lambda seed: (None, seed * np.sum(np.cos(x * WORK) * WORK))


@pytest.mark.parametrize("reduction", sorted(REDUCTIONS.keys() - {"map_rect"}))
def test_a_pullback_of_a_number_that_reads_a_work_array_is_that_of_its_own_call(reduction: str, scheduler: Any) -> None:
    rows = ROWS if reduction == "sum" else list(ROWS)

    def loss(fun: Any, x: Any) -> Any:
        return np.sum(REDUCTIONS[reduction](fun, rows, x, scheduler=scheduler))

    def numpys(rows: Any, x: Any) -> Any:
        return np.sum(np.sin(x * powers(rows)))

    if scheduler == "threads":  # which would fill one array together, as in any program
        return
    expected = dagad.value_and_grad(partial(loss, numpys))(X)
    try:
        found = dagad.value_and_grad(partial(loss, number_by_global))(X)
    except ValueError as error:
        assert "read-only" in str(error)  # noqa: PT017  # large ones come out of a pickle so
    else:
        assert found == pytest.approx(expected, rel=1e-13)
