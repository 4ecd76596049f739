"""Gradients in Shards: the same in every mode that asks for the value first, in loops that are hot too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client

import dagad
from dagad.extend import Keep, Preaccumulate, Recompute
from support.gated_chunks import bits
from support.hot_loops import a_watched_cluster, heat_up, is_hot
from support.waiting import PATIENCE

X = np.random.default_rng(0).standard_normal((10, 3))
THETA = np.array([0.3, -0.7, 1.1])


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    """A cluster that is to be empty in the end."""
    with a_watched_cluster() as client:
        yield client


@pytest.fixture(params=["sync", "threads", "cluster"])
def place(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("client") if request.param == "cluster" else request.param


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows * theta) ** 2)


def loss(data: Any, theta: Any, **options: Any) -> Any:
    return dagad.reduce_sum(chunk, data, theta, **options)


def by_vjp(fun: Callable[..., Any], *args: Any) -> Any:
    value, pullback = dagad.vjp(fun, *args)
    return value, pullback(1.0)


def by_evaluation(fun: Callable[..., Any], *args: Any) -> Any:
    evaluation = dagad.evaluate(fun, *args, argnums=tuple(range(len(args))))
    return evaluation.value(PATIENCE), evaluation.gradient(PATIENCE)


def lazily(fun: Callable[..., Any], *args: Any) -> Any:
    evaluation = dagad.evaluate(fun, *args, argnums=tuple(range(len(args))), lazy=True)
    return evaluation.value(PATIENCE), evaluation.gradient(PATIENCE)


WAYS = pytest.mark.parametrize("how", [by_vjp, by_evaluation, lazily])


@pytest.mark.sampled(32)
@WAYS
@pytest.mark.parametrize("policy", [None, Keep(), Recompute(), Preaccumulate()], ids=str)
def test_a_gradient_in_shards_has_the_bits_of_arrays_after_its_value(how: Any, policy: Any, place: Any) -> None:
    shards = dagad.shard(X, grainsize=4, scheduler=place)
    value, (of_x, of_theta) = how(lambda x, theta: loss(x, theta, policy=policy), shards, THETA)
    expected, (rows, theta) = dagad.value_and_grad(
        lambda x, theta: loss(x, theta, grainsize=4, scheduler="sync"), argnums=(0, 1)
    )(X, THETA)
    assert bits([value, of_x.gather(), of_theta]) == bits([expected, rows, theta])


@pytest.mark.sampled(3)
@WAYS
def test_a_gradient_in_shards_after_a_hot_loop_has_the_bits_of_arrays(how: Any, client: Client) -> None:
    shards = dagad.shard(X, grainsize=4, scheduler=client)
    heat_up(client, lambda: dagad.value_and_grad(lambda theta: loss(shards, theta))(THETA))
    value, (of_x, of_theta) = how(loss, shards, THETA)
    expected = dagad.value_and_grad(lambda *args: loss(*args, grainsize=4, scheduler="sync"), argnums=(0, 1))(X, THETA)
    assert bits([value, of_x.gather(), of_theta]) == bits([expected[0], *expected[1]])
    assert is_hot(client, lambda: dagad.value_and_grad(lambda theta: loss(shards, theta))(THETA))


@pytest.mark.parametrize("policy", [Keep(), Recompute()], ids=str)
def test_a_pullback_of_a_loop_that_is_hot_is_of_its_own_point(policy: Any, client: Client) -> None:
    shards, theta = dagad.shard(X, grainsize=4, scheduler=client), THETA.copy()
    heat_up(client, lambda: dagad.value_and_grad(lambda theta: loss(shards, theta))(THETA))
    value, pullback = dagad.vjp(lambda theta: loss(shards, theta, policy=policy), theta)
    theta += 1.0
    expected = dagad.value_and_grad(lambda theta: loss(X, theta, grainsize=4, scheduler="sync"))(THETA)
    assert bits([value, *pullback(1.0)]) == bits(list(expected))


@pytest.mark.sampled(3)
def test_a_gradient_in_shards_is_right_where_vectors_follow_numbers(place: Any) -> None:
    """No linearization was kept, since numbers were expected; so Shards' cotangents come from a job of its own."""
    shards = dagad.shard(X, grainsize=4, scheduler=place)

    def number_or_vector(rows: Any, theta: Any) -> Any:
        return anp.sum(anp.tanh(rows) @ theta, axis=0)

    def program(x: Any, theta: Any, **options: Any) -> Any:
        return anp.sum(anp.sin(dagad.reduce_sum(number_or_vector, x, theta, **options)))

    for theta in (THETA, THETA, np.stack([THETA, THETA**2], axis=1)):
        found, (of_x, of_theta) = dagad.value_and_grad(program, argnums=(0, 1))(shards, theta)
        expected = dagad.value_and_grad(functools.partial(program, grainsize=4, scheduler="sync"), argnums=(0, 1))(
            X, theta
        )
        assert bits([found, of_x.gather(), of_theta]) == bits([expected[0], *expected[1]])


def test_a_gradient_in_shards_and_in_a_closed_over_parameter_is_right(place: Any) -> None:
    shards = dagad.shard(X, grainsize=4, scheduler=place)

    def program(x: Any, theta: Any) -> Any:
        return dagad.reduce_sum(lambda rows: chunk(rows, theta), x)

    value, (of_x, of_theta) = by_vjp(program, shards, THETA)
    expected = dagad.value_and_grad(lambda *args: loss(*args, grainsize=4, scheduler="sync"), argnums=(0, 1))(X, THETA)
    assert bits([value, of_x.gather(), of_theta]) == bits([expected[0], *expected[1]])


@pytest.mark.sampled(2)
@WAYS
def test_arrays_beside_shards_have_gradients_too(how: Any, place: Any) -> None:
    shards = dagad.shard(X, grainsize=4, scheduler=place)

    def program(x: Any, y: Any) -> Any:
        return dagad.reduce_sum(lambda rows: anp.sum(rows["x"] * anp.sin(rows["y"])), {"x": x, "y": y})

    value, (of_x, of_y) = how(program, shards, X)
    assert float(value) == pytest.approx(float(np.sum(X * np.sin(X))), rel=1e-13)
    np.testing.assert_allclose(of_x.gather(), np.sin(X), rtol=1e-14)
    np.testing.assert_allclose(of_y, X * np.cos(X), rtol=1e-14)
