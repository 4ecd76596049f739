"""Eight workers: do bytes grow with the workers, not with their square, and are bits the same on every route?"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client
from faults import bits, fresh
from many_workers import Traffic, Wire, many_workers, out_of_reach, traffic_here
from watching import evaluations_seen

import dagad
from dagad._executors import choose, routes
from dagad._executors.routes import Trips
from dagad._pytrees import pytree
from dagad_scheduler.residents import client as lines, loop, standing

pytestmark = pytest.mark.timeout(120)

N_WORKERS, COUNT = 8, 5
THETA = np.linspace(-1.0, 1.0, 12_500)  # 100 kB
WORDS = 4_000  # bytes beside parameters and gradient, for each worker


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with many_workers(N_WORKERS) as client:
        yield client


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations and nothing else: nobody looks where rows are, or says that work goes on."""
    monkeypatch.setattr(loop, "LOOK_AGAIN", 1e6)
    monkeypatch.setattr(standing, "LOOK_EVERY", 1e6)


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows[:, 0])) * anp.sum(anp.sin(theta))


def total_on(scheduler: Any, n_chunks: int, fun: Any = chunk) -> Callable[[Any], Any]:
    """Return a sum over so many chunks."""
    rows = np.random.default_rng(n_chunks).standard_normal((2 * n_chunks, 1))
    data = dagad.shard(rows, grainsize=2, scheduler=scheduler)
    return lambda theta: dagad.reduce_sum(fun, data, theta)


def every_bit(found: Any) -> list[bytes]:
    return bits(pytree.flatten(found)[0])


def through_scheduler(client: Client, act: Callable[[], Any]) -> Traffic:
    """Return what the scheduler received and sent for each of some evaluations."""

    def now() -> Traffic:
        return Traffic(*client.run_on_scheduler(traffic_here))

    first, before = now(), now()
    for _ in range(COUNT):
        act()
    return now().since(before).since(before.since(first), COUNT)


@pytest.mark.parametrize("road", ["direct", "relayed"])
def test_bytes_grow_with_the_workers_and_not_with_their_square(road: str, client: Client) -> None:
    found = {}
    for n_workers in (N_WORKERS // 2, N_WORKERS):
        act = dagad.value_and_grad(total_on(client, n_workers))
        act(THETA)
        with Wire().counting() as wire, out_of_reach(client) if road == "relayed" else contextlib.nullcontext():
            act(THETA)
            act(THETA)
            before = wire.traffic()
            found[n_workers] = through_scheduler(client, functools.partial(act, THETA))
            assert wire.traffic().since(before, COUNT).bytes_in < n_workers * (THETA.nbytes + WORDS)
    few, many = found.values()
    if road == "direct":
        assert many.received + many.sent < 1
        return
    for n_workers, traffic in found.items():
        assert traffic.bytes_out < n_workers * (
            2 * THETA.nbytes + WORDS
        )  # calls to workers, and one reply to the client
        assert traffic.bytes_in < THETA.nbytes + n_workers * (THETA.nbytes + WORDS)
        assert traffic.received == pytest.approx(n_workers + 2, abs=1)
    assert many.bytes_out == pytest.approx(2 * few.bytes_out, rel=0.01)


SHARED = [b"a program, and parameters"]


def test_words_that_tell_workers_of_their_chunks_go_to_a_few_at_a_time() -> None:
    """All of them used to get those of all, which grew with the square of the workers."""
    calls = {f"tcp://{number}": {"shared": SHARED, "keys": [number]} for number in range(100)}
    groups = lines._alike(calls)
    assert max(map(len, groups)) == lines.FEW
    assert {address: call for some in groups for address, call in some.items()} == calls
    alike = {address: {"shared": SHARED} for address in calls}
    assert lines._alike(alike) == [alike]


WAYS: dict[str, Callable[..., Any]] = {
    "value": lambda total: total(THETA),
    "value and gradient": lambda total: dagad.value_and_grad(total)(THETA),
    "pullback": lambda total: dagad.vjp(total, THETA)[1](2.0),
    "tangent": lambda total: dagad.jvp(total, (THETA,), (np.cos(THETA),)),
}


@pytest.mark.parametrize("way", WAYS)
def test_bits_are_the_same_on_both_sides_of_the_crossing(
    way: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = every_bit(WAYS[way](total_on("sync", 20)))
    there, found = total_on(client, 20), dict[bool, Any]()
    for is_tree in (False, True):
        monkeypatch.setattr(Trips, "prefer_tree", is_tree)
        for _ in range(3):
            with evaluations_seen() as seen:
                assert every_bit(WAYS[way](there)) == expected
        found[is_tree] = seen.calls[0]
    assert found[False].executor == "resident"
    assert (found[True].executor, found[True].reason) == ("graph", choose.FROM_WORKER_TO_WORKER)
    assert found[True].group == 2  # a task for each worker, of 2 or 3 chunks


@pytest.mark.parametrize("bandwidth", [math.inf, 10e6])
def test_a_tree_is_tried_where_it_may_be_faster_and_kept_where_it_is(
    bandwidth: float, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a slow link the client gets one gradient sooner than eight. By the fast one of this machine it does not."""
    theta = np.resize(THETA, 50_000)
    monkeypatch.setattr(routes, "PROMISE", routes.PROMISE if bandwidth < math.inf else 0.0)
    there, calls = total_on(client, N_WORKERS, fresh(chunk)), list[Any]()
    expected = every_bit(dagad.value_and_grad(total_on("sync", N_WORKERS))(theta))
    with Wire(bandwidth).counting():
        for _ in range(1 + routes.FAIR_TRIPS + routes.FAIR_TREES + 2):
            with evaluations_seen() as seen:
                assert every_bit(dagad.value_and_grad(there)(theta)) == expected
            calls += seen.calls
    by_clock = min(calls[1:-2], key=lambda call: call.seconds).executor
    assert by_clock == ("graph" if bandwidth < math.inf else "resident")
    tried = ["graph"] + ["resident"] * routes.FAIR_TRIPS + ["graph"] * routes.FAIR_TREES
    assert [call.executor for call in calls] == tried + [by_clock] * 2
