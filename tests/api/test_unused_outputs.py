"""Outputs that nobody uses have no cotangent: a slope that is infinite there does no harm, in any mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest

import dagad
from dagad.extend import Keep, Preaccumulate, Recompute
from support.compiled_quickly import compiled_quickly as compiled_quickly

# Forward mode moves what nobody uses, too: there the slope is infinite, as numpy says, and goes nowhere.
pytestmark = pytest.mark.filterwarnings("ignore:(divide by zero|invalid value) encountered:RuntimeWarning")
ROWS = onp.arange(1.0, 6.0)
POINT = onp.array([2.0, 0.0])
MOVED = onp.array([1.0, 0.0])


def both(rows: Any, a: Any) -> dict[str, Any]:
    return {"used": np.sum(rows * a[0] ** 3), "unused": np.sum(rows * np.sqrt(a[1])) + a[0]}


def of_item(row: Any, a: Any) -> dict[str, Any]:
    return {"used": row * a[0] ** 3, "unused": row * np.sqrt(a[1]) + a[0]}


def ragged(row: Any, a: Any) -> dict[str, Any]:
    return {"used": row * a[0] ** 3 * np.ones(2), "unused": row * np.sqrt(a[1]) * np.ones(1)}


def added(one: Any, other: Any) -> dict[str, Any]:
    return {key: one[key] + other[key] for key in one}


Program = Callable[[Any, Any, Any], Any]
PROGRAMS: dict[str, Program] = {
    "reduce_sum": lambda a, rows, options: dagad.reduce_sum(both, rows, a, **options)["used"],
    "map_sum": lambda a, rows, options: dagad.map_sum(of_item, rows, a, **options)["used"],
    "map": lambda a, rows, options: np.sum(dagad.map(of_item, rows, a, **options)["used"]),
    "map_reduce": lambda a, rows, options: dagad.map_reduce(both, added, rows, a, **options)["used"],
    "squared": lambda a, rows, options: dagad.reduce_sum(both, rows, a, **options)["used"] ** 2 / 240.0,
}
MODES: dict[str, Callable[[Any], Any]] = {
    "grad": lambda fun: dagad.grad(fun)(POINT),
    "autograd": lambda fun: autograd.grad(fun)(POINT),
    "jacrev": lambda fun: dagad.jacrev(fun)(POINT),
    "jacfwd": lambda fun: dagad.jacfwd(fun)(POINT),
}
SECOND: dict[str, Callable[[Any], Any]] = {
    "hvp": lambda fun: dagad.hvp(fun, (POINT,), (MOVED,))[0],
    "hessian": lambda fun: dagad.hessian(fun)(POINT)[0],
    "grad of grad": lambda fun: dagad.grad(lambda a: dagad.grad(fun)(a)[0])(POINT),
    "autograd of grad": lambda fun: autograd.grad(lambda a: dagad.grad(fun)(a)[0])(POINT),
    "jacfwd of grad": lambda fun: dagad.jacfwd(dagad.grad(fun))(POINT)[0],
}


def check(name: str, rows: Any, **options: Any) -> None:
    def fun(a: Any) -> Any:
        return PROGRAMS[name](a, rows, options)

    def whole(a: Any) -> Any:
        used = both(ROWS, a)["used"]
        return used**2 / 240.0 if name == "squared" else used

    first = autograd.grad(whole)(POINT)
    second = autograd.grad(lambda a: autograd.grad(whole)(a)[0])(POINT)
    assert onp.isfinite([first, second]).all()
    for found, right in ((MODES, first), (SECOND, second)):
        for called, mode in found.items():
            onp.testing.assert_allclose(onp.asarray(mode(fun)), right, rtol=1e-13, err_msg=called)


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_slope_that_is_infinite_in_an_unused_output_leaves_the_gradient_alone(name: str, scheduler: Any) -> None:
    check(name, ROWS, grainsize=2, scheduler=scheduler)


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("policy", [Keep(), Recompute(), Preaccumulate()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("name", PROGRAMS)
def test_unused_outputs_are_not_pulled_under_any_policy(name: str, policy: Any) -> None:
    check(name, ROWS, grainsize=2, scheduler="sync", policy=policy)


@pytest.mark.needs("jax")
@pytest.mark.parametrize("name", PROGRAMS)
def test_unused_outputs_are_not_pulled_by_jax(name: str) -> None:
    check(name, ROWS, grainsize=2, scheduler="sync", engine="jax")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_unused_outputs_of_shards_are_not_pulled(name: str, cluster: Any) -> None:
    check(name, dagad.shard(ROWS, grainsize=2, scheduler=cluster))


def test_an_output_used_by_some_chunks_alone_is_pulled_in_these() -> None:
    def fun(a: Any) -> Any:
        found = dagad.map(of_item, ROWS, a, grainsize=2, scheduler="sync")
        return np.sum(found["used"]) + found["unused"][4]

    def plain(a: Any) -> Any:
        return np.sum(ROWS * a[0] ** 3) + ROWS[4] * np.sqrt(a[1]) + a[0]

    at = onp.array([2.0, 0.25])
    onp.testing.assert_allclose(dagad.grad(fun)(at), autograd.grad(plain)(at), rtol=1e-13)
    onp.testing.assert_allclose(dagad.hessian(fun)(at), autograd.hessian(plain)(at), rtol=1e-13)


def test_gradients_in_the_rows_know_unused_outputs() -> None:
    rows = onp.array([[2.0, 0.0], [3.0, 0.0], [4.0, 0.0]])

    def of_row(row: Any) -> dict[str, Any]:
        return {"used": row[0] ** 3, "unused": np.sqrt(row[1])}

    def fun(rows: Any) -> Any:
        return np.sum(dagad.map(of_row, rows, grainsize=2, scheduler="sync")["used"])

    right = onp.stack([3 * rows[:, 0] ** 2, onp.zeros(3)], axis=1)
    onp.testing.assert_allclose(dagad.grad(fun)(rows), right)
    onp.testing.assert_allclose(dagad.hvp(fun, (rows,), (onp.ones_like(rows),))[0][:, 0], 6 * rows[:, 0])


def test_a_ragged_map_with_an_unused_output_is_right() -> None:
    def fun(a: Any) -> Any:
        return np.sum(dagad.map_rect(lambda row, a: ragged(row, a)["used"], ROWS, a, grainsize=2, scheduler="sync"))

    onp.testing.assert_allclose(dagad.grad(fun)(POINT), [2 * 12.0 * ROWS.sum(), 0.0])


def test_values_that_map_reduce_combines_may_hold_integers_and_none() -> None:
    def of_chunk(rows: Any, a: Any) -> dict[str, Any]:
        return {"sum": np.sum(rows) * a, "n": len(rows), "none": None}

    def combined(one: Any, other: Any) -> dict[str, Any]:
        return {"sum": one["sum"] + other["sum"], "n": one["n"] + other["n"], "none": None}

    def fun(a: Any) -> Any:
        found = dagad.map_reduce(of_chunk, combined, ROWS, a, grainsize=2, scheduler="sync")
        return found["sum"] ** 2 / found["n"]

    assert dagad.grad(fun)(2.0) == pytest.approx(2 * 2.0 * 15.0**2 / 5)
    assert dagad.hessian(fun)(2.0) == pytest.approx(2 * 15.0**2 / 5)
