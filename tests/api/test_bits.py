"""Bits: is a value the same to the bit, whoever differentiates it, where it runs and how its arrays lie?"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import autograd
import autograd.numpy as np
import dask
import numpy as onp
import optree
import pytest

import dagad
from dagad.extend import Keep, Preaccumulate, Recompute
from support.sum_cases import RNG, THETA, bits, squares, stacked, structured

pytestmark = [
    pytest.mark.each_value("all combinations of parameters: each value of each is in this tier"),
    pytest.mark.sampled(2),
]

TALL = RNG.uniform(0.1, 3.0, (211, 6))
WIDE = RNG.standard_normal((6, 6))
EXPRESSIONS: dict[str, Callable[[Any, Any], Any]] = {
    "x ** 0.5": lambda x, t: (x * t) ** 0.5,
    "x ** -1": lambda x, t: (x + t) ** -1,
    "x ** 2": lambda x, t: (x - t) ** 2,
    "x ** 3": lambda x, t: (x - t) ** 3,
    "x ** 2.0": lambda x, t: (x - t) ** 2.0,
    "x ** 1.7": lambda x, t: (x * t) ** onp.float64(1.7),
    "x ** array": lambda x, t: (x * t) ** onp.array(2),
    "x ** t": lambda x, t: x**t,
    "t ** x": lambda x, t: t**x,
    "2 ** x": lambda x, t: 2.0 ** (x * t),
    "powers of t": lambda x, t: x * (t**0.5 + t**2 + t**-1 + t**3 + (2 * t) ** 0.5 + 1.7**t),
    "powers of numbers": lambda x, t: sum([(v * t) ** p for v in x[:, 0] for p in (0.5, -1, 2, 3, -2.0, 1.7)]),
    "powers by numbers": lambda x, t: sum([(base * t) ** v for v in x[:, 0] for base in (0.3, 2)]),
    "power": lambda x, t: np.power(x * t, 2) + np.power(x, 0.5),
    "t % and //": lambda x, t: x * (7.7 % t) + (x * t) % 0.7,
    "abs and neg": lambda x, t: abs(-x + t) / (1 + t),
    "t / x": lambda x, t: t / x + x / t,
    "matmul": lambda x, t: np.tanh(x @ WIDE * t) @ WIDE.T,
    "strided": lambda x, t: x[::-1, ::2] @ WIDE[::2] * t,
    "transposed": lambda x, t: (x.T @ (x * t)).T,
    "statistics": lambda x, t: np.mean(x * t) + np.var(x * t) + np.std(x) + np.linalg.norm(x * t),
    "cumsum": lambda x, t: np.cumsum(x * t, axis=0)[-1] + np.sum(x * t, axis=1)[0],
    "einsum": lambda x, t: np.einsum("ij,jk->k", x * t, WIDE) + np.tensordot(x * t, WIDE, 1)[0],
    "mixed": lambda x, t: np.logaddexp(x, t) + np.where(x > t, x * t, np.sin(x)) + np.maximum(x, t),
    "builtin sum": lambda x, t: sum([row @ row * t for row in x]),
}


NUMBERS = [1.37, onp.float64(1.37), onp.float32(1.37), onp.array(1.37), onp.full(6, 1.37)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", NUMBERS, ids=repr)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_the_bits_of_a_value_are_the_same_whichever_gradients_are_asked_for(name: str, number: Any) -> None:
    def partial_sum(rows: Any, t: Any) -> Any:
        return np.sum(EXPRESSIONS[name](rows, t))

    def total(x: Any, t: Any) -> Any:
        return dagad.reduce_sum(partial_sum, x, t, grainsize=50, scheduler="sync")

    plain = bits(total(TALL, number))
    assert bits(dagad.value_and_grad(total, 0)(TALL, number)[0]) == plain
    assert bits(dagad.value_and_grad(total, 1)(TALL, number)[0]) == plain
    assert bits(dagad.value_and_grad(total, (0, 1))(TALL, number)[0]) == plain
    assert bits(dagad.vjp(total, TALL, number)[0]) == plain
    assert bits(dagad.evaluate(total, TALL, number, argnums=1).value()) == plain


def test_the_bits_of_a_value_are_the_same_whoever_differentiates() -> None:
    def total(t: Any) -> Any:
        return dagad.reduce_sum(squares, TALL, t, grainsize=50)

    values = [total(0.3), autograd.value_and_grad(total)(0.3)[0], autograd.make_vjp(total)(0.3)[1]]
    inner: list[Any] = []

    def nested(t: Any) -> Any:
        inner.append(total(t))
        return inner[-1] * t

    dagad.grad(dagad.grad(nested))(0.3)
    while hasattr(inner[0], "_value"):
        inner[0] = inner[0]._value
    assert len({float(value) for value in (*values, inner[0])}) == 1


def loaded(rows: Any, theta: Any) -> Any:
    """A chunk that takes an unforeseeable time and whose sums show every change of order or layout."""
    time.sleep(random.random() * 2e-3)
    x, y = rows
    return np.sum(np.log1p(np.exp(x @ theta))) + np.sum((y * (x @ theta)) ** 2) + np.sum(x * np.sum(theta))


ROWS = TALL[:71]
COLUMN = onp.arange(12.0)[::2] / 7.0
LAYOUTS = {
    "C": (ROWS, COLUMN.copy()),
    "F": (onp.asfortranarray(ROWS), COLUMN.copy()),
    "strided": (onp.repeat(ROWS, 2, axis=0)[::2], COLUMN),
    "strided columns": (onp.repeat(ROWS, 2, axis=1)[:, ::2], COLUMN),
    "backwards": (ROWS[::-1], COLUMN[::-1]),
    "transposed": (ROWS.T.copy().T, onp.stack([COLUMN, COLUMN], axis=1)[:, 0]),
    "broadcast": (onp.broadcast_to(ROWS[0], ROWS.shape), onp.broadcast_to(onp.float64(0.3), 6)),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_value_and_gradient_have_the_same_bits_on_every_scheduler(layout: str, cluster: Any) -> None:
    x, theta = LAYOUTS[layout]

    def once(argnums: Any, **options: Any) -> Any:
        def loss(x: Any, t: Any) -> Any:
            return dagad.reduce_sum(loaded, (x, x[:, :1]), t, grainsize=10, **options)

        return bits(dagad.value_and_grad(loss, argnums)(x, theta))

    for argnums in (1, (0, 1)):
        expected = once(argnums, scheduler="sync")
        for workers in (1, 2, 4):
            with dask.config.set(num_workers=workers):
                assert once(argnums, scheduler="threads") == expected
        for _ in range(2):
            assert once(argnums, scheduler=cluster) == expected


CUBE = RNG.standard_normal((40, 30, 20))
ODD = {
    "C": CUBE,
    "F": onp.asfortranarray(CUBE),
    "strided": CUBE[:, ::2],
    "backwards": CUBE[:, ::-1],
    "permuted": CUBE.transpose(1, 2, 0),
    "permuted and cut": CUBE[3:9, ::2, 1:].transpose(2, 1, 0),
    "cut out of F": onp.asfortranarray(CUBE[:, :, 0])[3:20, 5:17],
}


def sums(array: Any, t: Any) -> Any:
    return np.sum(array * t) + np.sum(np.sin(array)) + np.sum(np.sum(array, axis=0) ** 2) * np.mean(array)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("layout", ODD)
@pytest.mark.parametrize("way", ["shared", "closure", "items", "deep items"])
def test_the_bits_are_the_same_for_every_layout_of_an_array(layout: str, way: str, cluster: Any) -> None:
    """It may arrive in another layout elsewhere, or where it is differentiated in."""

    def value(array: Any, where: Any) -> Any:
        options = {"grainsize": 2, "scheduler": where}
        if way == "shared":
            return dagad.reduce_sum(lambda rows, a: sums(a, rows[0]), THETA, array, **options)
        if way == "closure":
            return dagad.reduce_sum(lambda rows: sums(array, rows[0]), THETA, **options)
        if way == "items":
            return dagad.reduce_sum(
                lambda rows: sum([sums(row, 0.3) for row in rows]), [array, array * 2.0, array], **options
            )
        return dagad.reduce_sum(
            lambda rows: sum([sums(row["a"][0], 0.3) for row in rows]), [{"a": (array,)}] * 3, **options
        )

    expected = bits(value(ODD[layout], "sync"))
    for where in ("sync", "threads", cluster):
        assert where == "sync" or bits(value(ODD[layout], where)) == expected
        assert bits(dagad.value_and_grad(value)(ODD[layout], where)[0]) == expected


def under_a_policy(layout: str, policy: Any, scheduler: Any) -> Any:
    x, theta = LAYOUTS[layout]

    def loss(x: Any, t: Any) -> Any:
        return dagad.reduce_sum(loaded, (x, x[:, :1]), t, grainsize=20, scheduler=scheduler, policy=policy)

    return bits((dagad.value_and_grad(loss, (0, 1))(x, theta), dagad.vjp(loss, x, theta)[1](1.0)))


@cache
def on_one_thread(layout: str) -> Any:
    return under_a_policy(layout, None, "sync")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_value_and_gradient_have_the_same_bits_under_every_policy(layout: str, scheduler: Any) -> None:
    for policy in (None, Keep(), Recompute(), Preaccumulate()):
        assert under_a_policy(layout, policy, scheduler) == on_one_thread(layout)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fun", [squares, stacked, structured])
def test_a_repeated_evaluation_has_the_bits_of_the_first_one(fun: Any, cluster: Any) -> None:
    """What was learnt from the first run, such as how many chunks pay for a task, changes no bit."""
    x, theta = TALL[:40, :3], THETA

    def once(where: Any) -> Any:
        total = partial(dagad.reduce_sum, fun, grainsize=1, scheduler=where)
        value, pullback = dagad.vjp(total, x, theta)
        seed = optree.tree_map(onp.ones_like, value, namespace="dagad")
        together = dagad.value_and_grad(total, (0, 1))(x, theta) if fun is squares else None
        return bits((value, pullback(seed), total(x, theta), together))

    expected = once(cluster)
    for where in ("sync", "threads"):
        for _ in range(4):
            assert once(where) == expected


def views(array: Any) -> list[Any]:
    return [array.transpose(1, 2, 0), array[::-1, :, ::-1], array[:, ::2]]


def several_sums(rows: Any, t: Any) -> Any:
    return (np.exp(t) * np.sum(t) + np.sum(np.exp(t), axis=0)) * len(rows)


def test_a_derivative_has_the_same_bits_for_every_layout_of_parameters_tangents_and_seeds() -> None:
    def several(theta: Any) -> Any:
        return dagad.reduce_sum(several_sums, TALL, theta, grainsize=100)

    def seen(theta: Any, other: Any) -> list[bytes]:
        pulled = dagad.vjp(several, theta)[1](other)
        jvps = dagad.jvp(several, (theta,), (other,))
        twice = dagad.hvp(lambda theta: np.sum(several(theta)), (theta,), (other,))
        return [onp.asarray(leaf).tobytes() for leaf in (*pulled, *jvps, *twice)]

    for theta, other in zip(*(views(RNG.standard_normal((5, 6, 47))) for _ in "ab"), strict=True):
        assert seen(theta, other) == seen(onp.ascontiguousarray(theta), onp.ascontiguousarray(other))
    theta, other = (onp.asfortranarray(RNG.standard_normal((33, 44))) for _ in "ab")
    assert seen(theta, other[::-1, ::-1]) == seen(theta, onp.ascontiguousarray(other[::-1, ::-1]))
