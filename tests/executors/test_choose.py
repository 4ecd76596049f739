"""Which executor runs a job: is what it cost noted every time, and what failed remembered?"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client, Event

import dagad
from dagad._executors import choose
from dagad._executors.cost_model import TRY_AGAIN
from support.gated_chunks import bits
from support.hot_loops import THETA, X, a_watched_cluster, heat_up, is_hot, shards_on
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.sampled(2)


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    with a_watched_cluster(threads_per_worker=4) as client:
        yield client


def value(loss: Callable[[Any], Any]) -> Any:
    return loss(THETA)


def gradient(loss: Callable[[Any], Any]) -> Any:
    return dagad.value_and_grad(loss)(THETA)


def pullback(loss: Callable[[Any], Any]) -> Any:
    total, pull = dagad.vjp(loss, THETA)
    return total, pull(np.ones(np.shape(total)))


def evaluation(loss: Callable[[Any], Any]) -> Any:
    evaluation = dagad.evaluate(loss, THETA)
    return evaluation.value(PATIENCE), evaluation.gradient(PATIENCE)


WAYS = pytest.mark.parametrize("how", [value, gradient, pullback, evaluation])


def times_off(caplog: pytest.LogCaptureFixture, act: Callable[[], Any], count: int) -> int:
    """Return how often residents were asked in vain while something was done so many times."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "dagad"):
        for _ in range(count):
            act()
    return sum("takes the graph" in record.message for record in caplog.records)


@pytest.mark.sampled(4)
@WAYS
def test_a_loop_that_residents_refuse_is_not_tried_hot_for_ever(how: Any, client: Client, caplog: Any) -> None:
    shards = shards_on(client)

    def often_nothing(rows: Any, theta: Any) -> Any:
        return anp.sum(rows @ theta) if rows[0, 0] > 0 else how.__name__ == ""  # a bool: a sum of nothing

    def loss(theta: Any, data: Any = shards, **options: Any) -> Any:
        return dagad.reduce_sum(often_nothing, data, theta, **options)

    expected = bits(
        dagad._values.pytree.flatten(how(functools.partial(loss, data=X, grainsize=4, scheduler="sync")))[0]
    )
    assert times_off(caplog, lambda: how(loss), TRY_AGAIN) <= 1
    assert bits(dagad._values.pytree.flatten(how(loss))[0]) == expected


def decorated(fun: Callable[..., Any]) -> Callable[..., Any]:
    return lambda rows, theta: fun(rows, theta)


def a_number(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows @ theta))


def numbers(rows: Any, theta: Any) -> Any:
    return anp.tanh(rows).sum(axis=0) * theta


@pytest.mark.parametrize("how", [value, pullback])
def test_functions_that_share_their_code_do_not_share_their_costs(how: Any, client: Client, caplog: Any) -> None:
    shards = shards_on(client)

    def loss(fun: Any) -> Callable[[Any], Any]:
        return lambda theta: dagad.reduce_sum(decorated(fun), shards, theta)

    heat_up(client, lambda: how(loss(a_number)))
    assert times_off(caplog, lambda: (how(loss(numbers)), how(loss(a_number))), 3) == 0
    assert is_hot(client, lambda: how(loss(a_number)))


def wait_for(name: str) -> None:
    Event(name).wait(PATIENCE)


@pytest.mark.sampled(4)
@WAYS
def test_a_slow_start_does_not_keep_a_loop_from_getting_hot(
    how: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reproducer: the first call waits in a queue, for longer than any evaluation that is worth being hot."""
    monkeypatch.setattr(choose, "LONGEST_HOT_CALL", 0.5)
    shards, name = shards_on(client), f"slow start {how.__name__}"

    def fun(rows: Any, theta: Any) -> Any:
        return anp.sum(rows @ theta)

    fun.__code__ = fun.__code__.replace(co_name=name)

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(fun, shards, theta)

    others = client.map(wait_for, [name] * 8, pure=False, priority=100)
    until(lambda: client.run_on_scheduler(_n_processing) >= 8)
    first = threading.Thread(target=how, args=(loss,))
    first.start()
    first.join(0.7)  # longer than the limit
    Event(name, client=client).set()
    first.join()
    client.gather(others)
    heat_up(client, lambda: how(loss))


def _n_processing(dask_scheduler: Any) -> int:
    return sum(len(worker.processing) for worker in dask_scheduler.workers.values())


def test_a_hot_loop_on_many_workers_is_judged_by_the_time_of_each(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "LONGEST_HOT_CALL", 0.8)
    shards = shards_on(client, np.ones((24, 3)), grainsize=1)

    def fun(rows: Any, theta: Any) -> Any:
        time.sleep(0.05)  # 1.2 s in all, 0.15 s on each of eight threads
        return anp.sum(rows @ theta)

    heat_up(client, lambda: gradient(lambda theta: dagad.reduce_sum(fun, shards, theta)))
