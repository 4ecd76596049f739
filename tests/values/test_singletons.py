"""What exists once a process: is it what each function last knew, whoever brought it to the workers in between?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from autograd.extend import defvjp, primitive
from distributed import Client

import dagad
from dagad._values.singletons import Singletons
from dagad_scheduler.residents.loop import Loop
from support.hot_loops import THETA, X, a_watched_cluster, heat_up, in_all, is_hot, shards_on


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    """A cluster that is to be empty in the end."""
    with a_watched_cluster() as client:
        yield client


def a_class() -> tuple[Callable[[], float], Callable[[float], None]]:
    class Config:
        """With what classes of scripts have."""

        scale = 1.0
        table: dict[str, float] = {}  # noqa: RUF012  # changed below

        def half(self) -> float:
            return self.scale / 2

    def change(scale: float) -> None:
        Config.scale = scale

    return lambda: 2 * Config().half() + len(Config.table), change


def a_class_with_a_container() -> tuple[Callable[[], float], Callable[[float], None]]:
    class Config:
        table = {"scale": 1.0}  # noqa: RUF012  # changed below

    def change(scale: float) -> None:
        Config.table["scale"] = scale

    return lambda: Config.table["scale"], change


def a_class_with_a_helper() -> tuple[Callable[[], float], Callable[[float], None]]:
    class Config:
        @staticmethod
        def scale() -> float:
            return 1.0

    def change(scale: float) -> None:
        Config.scale = staticmethod(lambda: scale)  # type: ignore[method-assign]  # what users do

    return lambda: Config.scale(), change


def a_primitive() -> tuple[Callable[[], float], Callable[[float], None]]:
    state = {"scale": 1.0}

    def plain(x: Any) -> Any:
        return x * state["scale"]

    times: Any = primitive(plain)
    defvjp(times, lambda ans, x: lambda g: g * state["scale"])
    return lambda: times(1.0), lambda scale: state.update(scale=scale)


KINDS = [a_class, a_class_with_a_container, a_class_with_a_helper, a_primitive]


def two_functions(scale: Callable[[], float]) -> tuple[Any, Any]:
    def train(rows: Any, theta: Any) -> Any:
        return scale() * anp.sum(anp.tanh(rows @ theta))

    def valid(rows: Any, theta: Any) -> Any:
        return 3.0 * scale() * anp.sum(anp.tanh(rows @ theta))

    return train, valid


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["sync", "threads", "cluster"])
def test_two_functions_share_a_singleton_that_changes_and_changes_back(kind: Any, where: str, client: Client) -> None:
    scale, change = kind()
    place: Any = client if where == "cluster" else where
    shards = shards_on(place)
    losses = [lambda theta, fun=fun: dagad.reduce_sum(fun, shards, theta) for fun in two_functions(scale)]
    value, gradient = (np.sum(np.tanh(X @ THETA)), X.T @ (1.0 - np.tanh(X @ THETA) ** 2))
    train, valid = ((loss, factor) for loss, factor in zip(losses, (1.0, 3.0), strict=True))

    def check(which: Any, now: float) -> None:
        change(now)
        loss, factor = which
        found = dagad.value_and_grad(loss)(THETA)
        np.testing.assert_allclose(found[0], factor * now * value, rtol=1e-12)
        np.testing.assert_allclose(found[1], factor * now * gradient, rtol=1e-12)

    if where == "cluster":
        heat_up(client, lambda: [check(train, 1.0), check(valid, 1.0)])  # type: ignore[func-returns-value]  # in turn
    for which, now in [
        (train, 1.0),
        (valid, 2.0),
        (train, 1.0),
        (train, 1.0),
        (valid, 1.0),
        (train, 2.0),
        (train, 1.0),
    ]:
        if where == "cluster":
            assert is_hot(client, lambda which=which, now=now: check(which, now))  # type: ignore[misc]  # defaults
        else:
            check(which, now)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_hot_loop_is_not_changed_by_a_singleton_that_a_users_task_brings(kind: Any, client: Client) -> None:
    scale, change = kind()
    train, _ = two_functions(scale)
    shards = shards_on(client)
    there = in_all(lambda theta: dagad.reduce_sum(train, shards, theta))
    heat_up(client, lambda: there(THETA))
    expected = there(THETA)
    change(5.0)
    if kind is a_primitive:  # without dagad a primitive travels as a copy; graphs bring the one
        dagad.reduce_sum(lambda rows: scale(), X, grainsize=1, scheduler=client)
    else:
        assert set(client.run(lambda: scale()).values()) == {5.0}
    change(1.0)
    assert there(THETA) == there(THETA) == expected


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_singletons_that_have_not_changed_are_not_sent_again(
    kind: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale, _ = kind()
    shards = shards_on(client)
    acts = [in_all(lambda theta, fun=fun: dagad.reduce_sum(fun, shards, theta)) for fun in two_functions(scale)]

    def turn() -> None:
        for act in acts:
            act(THETA)

    heat_up(client, turn)
    turn()
    introduced: list[Any] = []
    introduction = Loop._introduction

    def watched(self: Any, sent: Any, homes: Any, address: str) -> Any:
        told = introduction(self, sent, homes, address)
        introduced.extend(told)
        return told

    monkeypatch.setattr(Loop, "_introduction", watched)
    turn()
    turn()
    assert introduced == []


def test_attributes_of_a_singleton_that_were_added_or_removed_are_noticed() -> None:
    class Config:
        scale = 1.0

    found = Singletons([Config])
    assert found.are_as_found()
    Config.scale = float("1.0")  # another object of the same value
    assert found.are_as_found()
    Config.more = 1  # type: ignore[attr-defined]  # what users do
    assert not found.are_as_found()
    del Config.more  # type: ignore[attr-defined]  # what users do
    assert found.are_as_found()
    Config.scale = -1.0
    assert not found.are_as_found()
