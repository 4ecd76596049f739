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

import dagad
from dagad._executors import choose, routes
from dagad._executors.profile import Call
from dagad._executors.routes import Trips
from dagad._values import pytree
from dagad_scheduler.residents import client as lines, keep_alive, loop
from support.evaluations_seen import evaluations_seen
from support.gated_chunks import bits, fresh
from support.many_workers import Traffic, Wire, many_workers, out_of_reach, traffic_here
from support.waiting import CANARY, until

pytestmark = [
    pytest.mark.whole("many rounds, workers or bytes: the same is seen of few here"),
]

N_WORKERS, COUNT = 8, 3
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
    monkeypatch.setattr(keep_alive, "LOOK_EVERY", 1e6)


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows[:, 0])) * anp.sum(anp.sin(theta))


def total_on(scheduler: Any, n_chunks: int, fun: Any = chunk, **options: Any) -> Callable[[Any], Any]:
    """Return a sum over so many chunks."""
    rows = np.random.default_rng(n_chunks).standard_normal((2 * n_chunks, 1))
    data = dagad.shard(rows, grainsize=2, scheduler=scheduler)
    return lambda theta: dagad.reduce_sum(fun, data, theta, **options)


def every_bit(found: Any) -> list[bytes]:
    return bits(pytree.flatten(found)[0])


def ran_by(act: Callable[[], Any], expected: list[bytes]) -> Call:
    """Evaluate, see that the bits are right, and return the first of what ran for it."""
    with evaluations_seen() as seen:
        assert every_bit(act()) == expected
    return seen.calls[0]


def through_scheduler(client: Client, act: Callable[[], Any]) -> Traffic:
    """Return what the scheduler received and sent for each of some evaluations."""

    def now() -> Traffic:
        return Traffic(*client.run_on_scheduler(traffic_here))

    first, before = now(), now()
    for _ in range(COUNT):
        act()
    return now().since(before).since(before.since(first), COUNT)


@pytest.mark.parametrize(("road", "n_chunks"), [("direct", 1), ("relayed", 1), ("relayed", 3), ("relayed", 10)])
def test_bytes_of_a_hot_loop_grow_with_the_workers_and_not_with_their_square(
    road: str, n_chunks: int, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of 3 chunks used to send two gradients, one of 10 up to three: what lies apart in the tree of sums."""
    monkeypatch.setattr(Trips, "prefer_tree", False)  # whatever the clock says of a busy machine
    found = {}
    for n_workers in (N_WORKERS // 2, N_WORKERS) if n_chunks == 1 else (N_WORKERS,):
        act = dagad.value_and_grad(total_on(client, n_chunks * n_workers))
        act(THETA)
        with Wire().counting() as wire, out_of_reach(client) if road == "relayed" else contextlib.nullcontext():
            act(THETA)
            act(THETA)
            before = wire.traffic()
            found[n_workers] = through_scheduler(client, functools.partial(act, THETA))
            assert wire.traffic().since(before, COUNT).bytes_in < n_workers * (THETA.nbytes + WORDS)
    few, many = found[min(found)], found[max(found)]
    if road == "direct":
        assert many.received + many.sent < 1
        return
    for n_workers, traffic in found.items():
        assert traffic.bytes_out < n_workers * (
            2 * THETA.nbytes + WORDS
        )  # calls to workers, and one reply to the client
        assert traffic.bytes_in < THETA.nbytes + n_workers * (THETA.nbytes + WORDS)
        assert traffic.received < (1 if n_chunks == 1 else 2) * (n_workers + 2) + 1
    assert n_chunks > 1 or many.bytes_out == pytest.approx(2 * few.bytes_out, rel=0.01)


# Sums that workers give each other


def with_integers(rows: Any, theta: Any) -> Any:
    """Numbers and, here and there, what has no derivative."""
    return anp.sum(anp.tanh(rows[:, 0])) * anp.sum(anp.sin(theta)) if rows[0, 0] > 0 else 1


def complex_numbers(rows: Any, theta: Any) -> Any:
    return anp.sum(rows[:, 0]) * anp.sum(theta * (1.0 + 2.0j))


def arrays(rows: Any, theta: Any) -> Any:
    return anp.sum(rows) * anp.tanh(theta)


PULLS: dict[str, Callable[..., Any]] = {
    "value and gradient": lambda total: dagad.value_and_grad(total)(THETA),
    "pullback": lambda total: [dagad.vjp(total, THETA)[1](seed * np.asarray(total(THETA))) for seed in (1.0, -2.0)],
}
SUMS: list[Any] = [
    (chunk, 10 * N_WORKERS - 7, "value and gradient", {}),
    (chunk, 5 * N_WORKERS + 3, "pullback", {}),
    (chunk, 3 * N_WORKERS, "value and gradient", {"sum": dagad.extend.CompensatedSum()}),
    (with_integers, 3 * N_WORKERS, "value and gradient", {}),
    (complex_numbers, 3 * N_WORKERS, "pullback", {}),
    (arrays, N_WORKERS + 3, "pullback", {}),
]


@pytest.mark.parametrize(("fun", "n_chunks", "way", "options"), SUMS)
def test_sums_that_workers_give_each_other_have_the_bits_of_one_thread(
    fun: Any, n_chunks: int, way: str, options: dict[str, Any], client: Client
) -> None:
    there = total_on(client, n_chunks, fun, **options)
    expected = every_bit(PULLS[way](total_on("sync", n_chunks, fun, **options)))
    with out_of_reach(client):
        until(lambda: ran_by(lambda: PULLS[way](there), expected).executor == "resident")
    until(lambda: set(client.run(n_kept).values()) == {0})


def n_kept(dask_worker: Any) -> int:
    """Return how many calls are half done on a worker."""
    return len(dask_worker.plugins["dagad-resident"].service.exchange)


@pytest.mark.parametrize("trouble", ["gone", "refused"])
def test_sums_that_a_neighbour_does_not_give_are_computed_by_the_graph(trouble: str, client: Client) -> None:
    expected = every_bit(dagad.value_and_grad(total_on("sync", 3 * N_WORKERS))(THETA))
    act = functools.partial(dagad.value_and_grad(total_on(client, 3 * N_WORKERS)), THETA)
    with out_of_reach(client):
        until(lambda: ran_by(act, expected).executor == "resident")
        client.run(trouble_with_sums, trouble)
        try:
            call = ran_by(act, expected)
        finally:
            client.run(trouble_with_sums, "")
    assert call.executor == "graph"
    assert "missing" in call.refusals[0] or "refused" in call.refusals[0]


def trouble_with_sums(trouble: str, dask_worker: Any) -> None:
    """Have a worker give no sums, or begin to do so again."""

    async def refused(number: str, parts: Any) -> Any:
        raise OSError("refused")

    async def gone(number: str, parts: Any) -> Any:
        return {"status": "missing"}

    give = dask_worker.plugins["dagad-resident"].service.exchange.give
    dask_worker.handlers["dagad_sums"] = {"refused": refused, "gone": gone, "": give}[trouble]


# Words, and who is chosen


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
def test_a_gradient_has_the_same_bits_by_a_star_and_a_tree_of_workers(
    way: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = every_bit(WAYS[way](total_on("sync", 20)))
    act = functools.partial(WAYS[way], total_on(client, 20))
    monkeypatch.setattr(Trips, "prefer_tree", False)
    until(lambda: ran_by(act, expected).executor == "resident")
    monkeypatch.setattr(Trips, "prefer_tree", True)
    call = ran_by(act, expected)
    assert (call.executor, call.reason) == ("graph", choose.FROM_WORKER_TO_WORKER)
    assert call.group == 2  # a task for each worker, of 2 or 3 chunks


# The slow link is slower than a busy machine is late.
@pytest.mark.parametrize("bandwidth", [math.inf, 10e6 / max(1.0, 2.0 * CANARY)], ids=["fast", "slow"])
def test_a_tree_is_tried_where_it_may_be_faster_and_kept_where_it_is(
    bandwidth: float, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a slow link the client gets one gradient sooner than eight. By the fast one of this machine it does not."""
    theta = np.resize(THETA, 50_000)
    monkeypatch.setattr(routes, "PROMISE", routes.PROMISE if bandwidth < math.inf else 0.0)
    there, calls = total_on(client, N_WORKERS, fresh(chunk)), list[Call]()
    expected = every_bit(dagad.value_and_grad(total_on("sync", N_WORKERS))(theta))
    with Wire(bandwidth).counting():
        for _ in range(1 + routes.FAIR_TRIPS + routes.FAIR_TREES + 2):
            calls.append(ran_by(lambda: dagad.value_and_grad(there)(theta), expected))
    by_clock = min(calls[1:-2], key=lambda call: call.seconds or 0.0).executor
    assert by_clock == ("graph" if bandwidth < math.inf else "resident")
    tried = ["graph"] + ["resident"] * routes.FAIR_TRIPS + ["graph"] * routes.FAIR_TREES
    assert [call.executor for call in calls] == tried + [by_clock] * 2
