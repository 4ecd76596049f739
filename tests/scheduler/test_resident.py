"""What evaluations leave on workers: does it go when nobody can ask for it, and is it measured in nobody's way?"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client

import dagad
from dagad_scheduler.residents import client as resident_client, service
from dagad_scheduler.residents.client import ResidentClient
from dagad_scheduler.running.cluster import Cluster
from support.gated_chunks import bits
from support.hot_loops import THETA, X, a_watched_cluster, heat_up, in_all, shards_on, until_hung_up
from support.service_contents import n_held, n_programs, services_of
from support.waiting import PATIENCE, until


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    """A cluster that is to be empty in the end."""
    with a_watched_cluster() as client:
        yield client


@pytest.fixture(params=["direct", "relayed"])
def road(client: Client, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    until_hung_up(client)
    if request.param == "relayed":
        monkeypatch.setattr(ResidentClient, "_open", out_of_reach)
    return str(request.param)


async def out_of_reach(self: Any, address: str) -> Any:
    raise resident_client._OutOfReach(address)


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.logaddexp(0.0, anp.dot(rows, theta)))


def loss(sliced: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda theta: dagad.reduce_sum(chunk, sliced, theta, **options)


def pulled(fun: Callable[..., Any]) -> list[bytes]:
    value, pullback = dagad.vjp(fun, THETA)
    return bits([value, *pullback(1.0)])


EXPECTED = pulled(loss(X, grainsize=4, scheduler="sync"))


def held(client: Client) -> set[int]:
    gc.collect()
    return set(client.run(n_held).values())


def hot_on(client: Client) -> Callable[[Any], Any]:
    fun = loss(shards_on(client))
    heat_up(client, lambda: in_all(fun)(THETA))
    return fun


@pytest.mark.sampled(2)
def test_tapes_go_with_the_pullback(road: str, client: Client) -> None:
    fun = hot_on(client)
    kept, lost = dagad.vjp(fun, THETA), dagad.vjp(fun, THETA)
    assert held(client) == {2}
    del lost
    until(lambda: held(client) == {1})
    assert bits([kept[0], *kept[1](1.0)]) == EXPECTED
    until(lambda: held(client) == {0})


@pytest.mark.sampled(2)
def test_tapes_go_with_the_evaluation_cancelled_or_deleted(road: str, client: Client) -> None:
    fun = hot_on(client)
    evaluations = [dagad.evaluate(fun, THETA, lazy=True) for _ in range(3)]
    assert all(bits([one.value(PATIENCE)]) == EXPECTED[:1] for one in evaluations)
    assert held(client) == {3}
    evaluations[0].cancel()
    until(lambda: held(client) == {2})
    evaluations.pop()
    until(lambda: held(client) == {1})
    assert bits([evaluations[1].gradient(PATIENCE)]) == EXPECTED[1:]
    until(lambda: held(client) == {0})


@pytest.mark.whole("what stays in memory: pullbacks and evaluations are seen to go in this tier")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("has_our_loop", [True, False])
def test_tapes_go_with_the_client(has_our_loop: bool, client: Client) -> None:
    place = client.cluster if has_our_loop else client.scheduler_info()["address"]
    with Client(place, set_as_default=False) as other:
        fun = loss(shards_on(other))
        heat_up(client, lambda: in_all(fun)(THETA))
        value, pullback = dagad.vjp(fun, THETA)
        assert held(client) == {1}
    until(lambda: held(client) == {0})
    del value, pullback


def test_tapes_of_a_value_that_did_not_come_go_too(client: Client) -> None:
    """One worker has answered, the other one has not: the graph gives the value, nobody asks for what was left."""
    fun = hot_on(client)
    kept = dagad.vjp(fun, THETA)
    other = list(client.nthreads())[:1]
    client.run(lose_rows, workers=other)
    value, pullback = dagad.vjp(fun, THETA)
    until(lambda: held(client) <= {0, 1})
    assert bits([value, *pullback(1.0)]) == bits([kept[0], *kept[1](1.0)]) == EXPECTED


def lose_rows(dask_worker: Any) -> None:
    """Have the next look for rows fail, as when they have just moved."""
    for held in services_of(dask_worker):
        for known in held._programs.values():
            known.keys = {number: ["elsewhere"] for number in known.keys}


@pytest.mark.whole("what stays in memory: pullbacks and evaluations are seen to go in this tier")
def test_tapes_of_relayed_calls_of_a_dead_client_go_after_a_while(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    until_hung_up(client)
    monkeypatch.setattr(ResidentClient, "_open", out_of_reach)
    monkeypatch.setattr(ResidentClient, "let_go", lambda *_: None)  # as if the client were dead
    client.run(relayed_for, seconds=0.5)
    before = client.run(n_programs)
    try:
        fun = hot_on(client)
        kept = dagad.vjp(fun, THETA)
        until(lambda: held(client) == {0})
        until(lambda: client.run(n_programs) == before)
        assert bits([kept[0], *kept[1](1.0)]) == EXPECTED  # both are sent and computed again
    finally:
        client.run(relayed_for, seconds=service.KEEP_RELAYED)


def relayed_for(seconds: float) -> None:
    service.KEEP_RELAYED = seconds


# Measuring


class Weighty:
    """A program whose tapes are measured when a gate opens."""

    def __init__(self, folder: str, nbytes: int) -> None:
        self._folder, self._nbytes = folder, nbytes

    def is_current(self) -> bool:
        return True

    def job(self, message: dict[str, Any], held: Any) -> Weighty:
        self.holds = bool(message["keep"])
        return self

    def split(self, parts: Sequence[Any], n_threads: int) -> list[Any]:
        return [list(parts)]

    def part(self, part: Any, rows: Any, stopped: Any) -> float:
        return 1.0

    def reply(self, parts: Any, sums: Any) -> tuple[dict[str, Any], Any]:
        return {}, memoryview(b"1")

    def nbytes(self) -> int:
        with Path(self._folder, "measured").open("a") as file:
            file.write(threading.current_thread().name + "\n")
        until(Path(self._folder, "gate").exists)
        return self._nbytes


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_large", [False, True])
def test_a_tape_is_measured_once_in_a_thread_after_the_answer(is_large: bool, client: Client, tmp_path: Path) -> None:
    hot_on(client)  # the workers have desks
    residents, address = Cluster(client).residents(), next(iter(client.nthreads()))
    program = dagad_parcel(Weighty(str(tmp_path), 2**40 if is_large else 8))
    call = {"token": "weighty", "method": "value", "keep": True, "number": "first"}
    told = {"program": program, "keys": [], "parts": [(0, 0)], "instead": []}
    measured, gate = tmp_path / "measured", tmp_path / "gate"
    reply = answer(residents, address, call | told)
    assert reply["status"] == "OK"
    until(measured.exists)
    held_now = client.run(n_held, workers=[address])[address]  # the worker's event loop is free
    assert held_now == 1
    gate.touch()
    if is_large:
        until(lambda: client.run(n_held, workers=[address])[address] == 0)
    else:
        assert answer(residents, address, call | {"number": "second"})["status"] == "OK"
        until(lambda: len(measured.read_text().splitlines()) == 2)
        assert client.run(n_held, workers=[address])[address] == 2
    names = measured.read_text().splitlines()
    assert len(names) == 2 - is_large
    assert all("Dask-Default-Threads" in name for name in names), names
    for number in ("first", "second"):  # which nobody else lets go of
        residents.let_go(number, frozenset([address]))
    until(lambda: held(client) == {0})


def answer(residents: ResidentClient, address: str, call: dict[str, Any]) -> dict[str, Any]:
    run = residents.call({address: call}, 1, 0, PATIENCE)
    run.wait()
    return dict(run.replies[address])


def dagad_parcel(program: Any) -> list[Any]:
    import cloudpickle

    return [memoryview(cloudpickle.dumps(program))]


def test_a_tape_whose_gradient_follows_at_once_is_not_measured(client: Client, tmp_path: Path) -> None:
    hot_on(client)
    residents, address = Cluster(client).residents(), next(iter(client.nthreads()))
    call = {"token": "weighty", "method": "value", "keep": True, "number": "first"}
    told = {"program": dagad_parcel(Weighty(str(tmp_path), 8)), "keys": [], "parts": [(0, 0)], "instead": []}
    for number in map(str, range(10)):
        answer(residents, address, call | told | {"number": number})
        answer(residents, address, call | {"number": number, "method": "pull", "keep": False})
        told = {}
    last = np.float64(client.submit(float, 1, pure=False).result())  # and whoever would measure has had time
    assert last == 1.0
    assert not (tmp_path / "measured").exists()
