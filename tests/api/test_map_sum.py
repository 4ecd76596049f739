"""Sums over items: is each what a loop makes, and may a function bring its own derivative?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import optree
import pytest
from distributed import Client, LocalCluster

import dagad
from dagad.extend import CompensatedSum, PlainSum, explicit
from support.sum_cases import CASES, RAGGED, THETA, Model, X, Y, assert_close, reference, squares

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")


def one_visit(item: Any, rate: Any) -> Any:
    return item["n"] * np.sum(np.sin(rate * item["x"])) * item["deep"][0]


ITEMS = {
    "list of dicts": (one_visit, CASES["list of dicts"].sliced, (1.5,)),
    "rows of an array": (lambda row, theta: np.exp(row @ theta), X, (THETA,)),
    "dict of arrays": (lambda item, t: item["x"] @ t * item["y"], {"x": X, "y": Y}, (THETA,)),
    "array and list": (lambda item, t: item[0] * np.sum(item[1] ** 2) * t, (Y[: len(RAGGED)], RAGGED), (0.5,)),
    "numbers": (lambda item, t: item**2 * t, [0.5, 1.5, -1.0], (2.0,)),
    "records": (lambda item, t: item.slope * t + item.offset**2, [Model(0.5, 1.0), Model(2.0, 3.0)], (0.7,)),
}


def loop(fun: Callable[..., Any], items: Any, *shared: Any) -> Any:
    if not isinstance(items, list):
        leaves, treedef = optree.tree_flatten(items, lambda tree: isinstance(tree, list), namespace="dagad")
        items = [optree.tree_unflatten(treedef, [leaf[i] for leaf in leaves]) for i in range(len(leaves[0]))]
    return sum([fun(item, *shared) for item in items])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ITEMS)
def test_map_sum_is_the_sum_over_items(name: str, scheduler: Any) -> None:
    fun, items, shared = ITEMS[name]
    expected, expected_gradients = reference(lambda *args: loop(fun, *args), items, *shared)
    for grainsize in (1, 3, "auto"):
        total = partial(dagad.map_sum, fun, grainsize=grainsize, scheduler=scheduler)
        assert_close(total(items, *shared), expected)
        value, gradients = dagad.value_and_grad(total, (0, 1))(items, *shared)
        assert_close(value, expected)
        assert_close(gradients, expected_gradients)


def test_map_sum_adds_up_items_that_are_pytrees() -> None:
    def parts(row: Any, theta: Any) -> Any:
        return {"a": row * theta, "b": (np.sum(row) * theta[0],)}

    def program(theta: Any) -> Any:
        total = dagad.map_sum(parts, X, theta, grainsize=4)
        return np.sum(total["a"] ** 2) * total["b"][0]

    expected = autograd.grad(lambda theta: np.sum((X.sum(0) * theta) ** 2) * X.sum() * theta[0])(THETA)
    assert_close(dagad.grad(program)(THETA), expected)


@explicit
def line_by_hand(row: Any, theta: Any) -> Any:
    return row @ theta, lambda seed: (seed * theta, seed * row)


@explicit
def squares_by_hand(rows: Any, center: Any) -> Any:
    residual = rows - center
    return onp.sum(residual**2), lambda seed: (2 * seed * residual, -2 * seed * residual.sum(axis=0))


def test_an_explicit_function_has_its_own_derivative_in_reduce_sum_and_map_sum(scheduler: Any) -> None:
    for total, fun, uncut in (
        (dagad.reduce_sum, squares_by_hand, squares),
        (dagad.map_sum, line_by_hand, lambda x, t: np.sum(x @ t)),
    ):

        def loss(x: Any, t: Any, total: Any = total, fun: Any = fun) -> Any:
            return total(fun, x, t, grainsize=4, scheduler=scheduler)

        expected, expected_gradients = reference(uncut, X, THETA)
        assert_close(loss(X, THETA), expected)
        value, gradients = dagad.value_and_grad(loss, (0, 1))(X, THETA)
        assert_close(value, expected)
        assert_close(gradients, expected_gradients)


def test_cotangents_of_items_of_an_explicit_function_have_the_kind_of_their_rows() -> None:
    @explicit
    def total_of(item: Any, rate: Any) -> Any:
        one, many = item["one"], item["many"]
        return rate * one * many.sum(), lambda seed: (
            {"one": seed * rate * many.sum(), "many": seed * rate * one * onp.ones_like(many)},
            seed * one * many.sum(),
        )

    rows: dict[str, Any] = {"one": onp.arange(1.0, 1 + len(RAGGED)), "many": RAGGED}
    found = dagad.grad(lambda rows: dagad.map_sum(total_of, rows, 0.3, grainsize=2))(rows)
    assert type(found["many"]) is list
    assert type(found["one"]) is onp.ndarray
    assert_close(found["one"], onp.array([0.3 * onp.sum(part) for part in RAGGED]))
    assert_close(
        found["many"], [0.3 * one * onp.ones_like(part) for one, part in zip(rows["one"], RAGGED, strict=True)]
    )


def test_items_of_an_explicit_function_can_be_ragged() -> None:
    @explicit
    def total_of(item: Any, rate: Any) -> Any:
        grown = onp.exp(rate * item["x"])
        return grown.sum(), lambda seed: ({"x": seed * rate * grown}, seed * (grown * item["x"]).sum())

    items = [{"x": x} for x in RAGGED]
    gradients = dagad.grad(lambda x, t: dagad.map_sum(total_of, x, t, grainsize=3), (0, 1))(items, 0.3)
    assert_close(gradients, reference(lambda x, t: loop(lambda i, t: np.sum(np.exp(t * i["x"])), x, t), items, 0.3)[1])


def test_truths_are_counted_as_by_pythons_sum(scheduler: Any) -> None:
    numbers = onp.arange(1.0, 8.0)
    for grainsize in (1, 2, 7):
        for how in (PlainSum(), CompensatedSum()):
            total = partial(dagad.map_sum, grainsize=grainsize, scheduler=scheduler, sum=how)
            assert total(lambda item, t: item > t, numbers, 3.0) == 4
            assert total(lambda item: {"n": item > 3.0, "s": item}, numbers) == {"n": 4, "s": 28.0}
            assert total(lambda item: onp.bool_(True) if item < 4 else 1.5, numbers) == 9.0
            assert total(lambda item: bool(item > 3.0), numbers) == 4
            onp.testing.assert_array_equal(total(lambda item: item > onp.array([0.0, 3.0]), numbers), [7, 4])
    assert dagad.map_sum(lambda item: item > 3.0, numbers[5:6], scheduler=scheduler).dtype == int
    assert dagad.reduce_sum(lambda rows: onp.sum(rows) > t0, numbers, grainsize=1, scheduler=scheduler) == 4
    value, slope = dagad.value_and_grad(lambda t: counting(t, scheduler))(2.0)
    assert (value, slope) == (2.0 * 28.0 * 4, 28.0 * 4)
    explicitly = explicit(lambda item, t: (item > 3.0, lambda seed: (None, 0.0)))
    assert dagad.map_sum(explicitly, numbers, 1.0, scheduler=scheduler, grainsize=2) == 4


t0 = 3.0


def counting(t: Any, scheduler: Any) -> Any:
    both = dagad.map_sum(lambda item, t: (item > 3.0, item * t), onp.arange(1.0, 8.0), t, scheduler=scheduler)
    return both[0] * both[1]


def test_truths_are_combined_as_they_are() -> None:
    found = dagad.map_reduce(lambda rows: onp.any(rows > 3.0), onp.logical_or, onp.arange(5.0), grainsize=2)
    assert found is onp.True_ or found.dtype == bool


def pulled_after_a_change(scheduler: Any) -> tuple[Any, Any]:
    """Return a gradient, and what is pulled when the array that `combine` has in its closure is another."""
    factor = onp.array([2.0])

    def chunk(rows: Any, t: Any) -> Any:
        return np.sum(np.sin(rows * t), keepdims=True)

    def combine(a: Any, b: Any) -> Any:
        return a * factor + b

    def total(t: Any) -> Any:
        return np.sum(dagad.map_reduce(chunk, combine, onp.arange(8.0), t, grainsize=2, scheduler=scheduler))

    gradient = dagad.grad(total)(0.3)
    pull = dagad.vjp(total, 0.3)[1]
    factor[:] = 9.0
    return gradient, pull(1.0)[0]


def test_a_function_that_combines_keeps_its_arrays_as_they_were_at_the_value(scheduler: Any) -> None:
    gradient, pulled = pulled_after_a_change(scheduler)
    assert pulled == gradient


def test_a_function_that_combines_on_workers_of_this_process_keeps_its_arrays() -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        gradient, pulled = pulled_after_a_change(client)  # they get what is given, and no copy
    assert pulled == gradient
