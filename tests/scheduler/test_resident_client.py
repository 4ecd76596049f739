"""Connections to workers: cut, jammed, diverted or full of nonsense, is the answer right, and then hot again?"""

from __future__ import annotations

import functools
import gc
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client
from distributed.protocol.core import dumps

import dagad
from dagad._executors import resident
from dagad_scheduler.residents import client as lines, loop
from dagad_scheduler.residents.client import ResidentClient
from support.clusters import kill, pids_of
from support.gated_chunks import BOTH, Watch, bits, chunk as watched_chunk
from support.hot_loops import (
    THETA,
    Act,
    X,
    a_watched_cluster,
    chunks_as_tasks,
    heat_up,
    in_all,
    is_hot,
    shards_on,
    until_hung_up,
)
from support.service_contents import n_connections, n_held, n_left, n_now, n_programs, on_workers
from support.waiting import PATIENCE, in_background, interrupted_when, until

pytestmark = [
    pytest.mark.each_value("all combinations of parameters: each value of each is in this tier"),
    pytest.mark.sampled(2),
]

ROWS = {"row": np.arange(24), "x": X}
Road = str  # how calls reach the workers: "direct" or "relayed"


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    """A cluster that is to be empty in the end."""
    with a_watched_cluster() as client:
        yield client


@pytest.fixture
def frail() -> Iterator[Client]:
    """A cluster whose workers will not live."""
    with a_watched_cluster() as client:
        yield client
        client.wait_for_workers(2, PATIENCE)


@pytest.fixture
def alone() -> Iterator[Client]:
    """A cluster of one worker."""
    with a_watched_cluster(1) as client:
        yield client


@pytest.fixture(params=["direct", "relayed"])
def road(client: Client, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Road:
    until_hung_up(client)
    if request.param == "relayed":
        monkeypatch.setattr(ResidentClient, "_open", out_of_reach)
    return str(request.param)


async def out_of_reach(self: Any, address: str) -> Any:
    raise lines._OutOfReach(address)


def chunk(rows: Any, theta: Any, trouble: str = "") -> Any:
    """Return a partial sum; have trouble once where a file says so, or with one chunk where theta is large."""
    if trouble and float(rows["row"][0]) == 8 and Path(trouble).exists():
        Path(trouble).unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    if rows["row"][0] == 8 and _plain(theta)[0] > 1.0:
        raise LookupError("theta is too large")
    return anp.sum(anp.logaddexp(0.0, anp.dot(rows["x"], theta)))


def _plain(theta: Any) -> Any:
    return getattr(theta, "_value", theta)


def on(sliced: Any, *shared: Any, fun: Any = chunk, **options: Any) -> Act:
    return in_all(lambda theta: dagad.reduce_sum(fun, sliced, theta, *shared, **options))


EXPECTED: Callable[..., list[bytes]] = on(ROWS, grainsize=4, scheduler="sync")


def heated(client: Client, *shared: Any, **options: Any) -> Act:
    """Return how to evaluate on new Shards, once that goes without tasks."""
    there = on(shards_on(client, ROWS), *shared, **options)
    heat_up(client, lambda: there(THETA))
    return there


def reheat(client: Client, there: Act) -> None:
    """See that all is as before, soon."""

    def act() -> None:
        assert there(THETA) == EXPECTED(THETA)

    heat_up(client, act)


# Workers that die or move


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever would wait for a worker that does not answer waits too long."""
    monkeypatch.setattr(resident, "LEAST_PATIENCE", 10.0 * PATIENCE)


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("deaths", [1, 2])
def test_a_hot_loop_survives_a_worker_that_died_between_evaluations(deaths: int, road: Road, frail: Client) -> None:
    there = heated(frail)
    for _ in range(2):
        for pid in list(pids_of(frail).values())[:deaths]:
            kill(pid)
        assert in_background(there, THETA).result(PATIENCE) == EXPECTED(THETA)
    reheat(frail, there)


@pytest.mark.usefixtures("endless")
def test_a_hot_loop_survives_a_worker_that_dies_in_a_call(road: Road, frail: Client, tmp_path: Path) -> None:
    there, trouble = heated(frail, str(tmp_path / "trouble")), tmp_path / "trouble"
    trouble.touch()
    assert in_background(there, THETA).result(PATIENCE) == EXPECTED(THETA)
    assert not trouble.exists()
    reheat(frail, there)


def moves(address: str, other: str) -> Callable[..., Any]:
    """Return what moves all rows from one worker to another, as the memory manager does, on the scheduler."""

    async def move(dask_scheduler: Any) -> None:
        keys = [key for key, task in dask_scheduler.tasks.items() if "dagad-shard" in str(key) and task.who_has]
        await dask_scheduler.replicate(keys=keys, n=2)
        await dask_scheduler.delete_worker_data(address, keys, "dagad-tests")

    return move


def test_rows_that_have_moved_are_found_again(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    there = heated(client)
    one, other = client.nthreads()
    with caplog.at_level(logging.INFO, "dagad"):
        client.run_on_scheduler(moves(one, other))
        assert not is_hot(client, lambda: there(THETA))
        assert f"{one} says: missing" in caplog.text
    reheat(client, there)


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_workers_that_have_come_take_their_part(alone: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LOOK_AGAIN", 0.0)
    there, cluster = heated(alone), cast("Any", alone.cluster)
    cluster.scale(2)
    alone.wait_for_workers(2, PATIENCE)

    def shared_out() -> bool:
        assert there(THETA) == EXPECTED(THETA)
        return len({address for homes in alone.who_has().values() for address in homes}) == 2

    until(shared_out)
    reheat(alone, there)


# Workers that do not answer


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_a_worker_that_has_stopped_is_not_waited_for_for_ever(
    road: Road, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = heated(client)
    pid = next(iter(pids_of(client).values()))
    monkeypatch.setattr(resident, "LEAST_PATIENCE", 0.5)
    monkeypatch.setattr(resident, "PATIENCE", 0.0)
    before = chunks_as_tasks(client)
    os.kill(pid, signal.SIGSTOP)
    try:
        waiting = in_background(there, THETA)
        until(lambda: chunks_as_tasks(client) > before)  # the graph can wait: it goes on when the worker does
        assert not waiting.done()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert waiting.result(PATIENCE) == EXPECTED(THETA)
    monkeypatch.undo()
    reheat(client, there)


def test_workers_out_of_reach_are_called_through_the_scheduler(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def watched(self: Any, address: str) -> Any:
        asked.append(address)
        raise lines._OutOfReach(address)

    def of_large(rows: Any, theta: Any, constant: Any) -> Any:
        return anp.sum(anp.tanh(theta * rows["x"][0, 0])) * constant[0]

    shards, large, constant = shards_on(client, ROWS), np.linspace(0.0, 1.0, 20_000), np.ones(20_000)
    with monkeypatch.context() as patch:
        until_hung_up(client)
        patch.setattr(ResidentClient, "_open", watched)
        there, here = (on(data, constant, fun=of_large, **o) for data, o in ((shards, {}), (ROWS, ON_ONE_THREAD)))
        heat_up(client, lambda: there(large))
        assert there(large) == here(large)
        assert on(shards)(THETA) == EXPECTED(THETA)
        assert len(asked) == 1  # not for every evaluation
        with pytest.raises(LookupError):
            on(shards)(10.0 * THETA)
    now = time.monotonic
    monkeypatch.setattr("dagad_scheduler.residents.client.time.monotonic", lambda: now() + lines.RELAY_FOR)
    assert is_hot(client, lambda: there(large))  # they are within reach again
    assert there(large) == here(large)


def relayed(client: Client, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[tuple[int, int]]]:
    """Have calls go through the scheduler; what is returned begins to note their bytes, and to how many workers."""
    until_hung_up(client)
    monkeypatch.setattr(ResidentClient, "_open", out_of_reach)
    scheduler: Any = client.scheduler
    broadcast, sent = scheduler.broadcast, list[tuple[int, int]]()

    def watched(msg: Any, **options: Any) -> Any:
        sent.append((sum(memoryview(frame).nbytes for frame in dumps(msg)), len(options["workers"])))
        return broadcast(msg=msg, **options)

    def start() -> list[tuple[int, int]]:
        monkeypatch.setattr(scheduler, "broadcast", watched, raising=False)
        return sent

    return start


def test_bytes_of_relayed_calls_do_not_grow_with_the_workers(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them used to get the calls of all, each with parameters and program of its own."""
    start = relayed(client, monkeypatch)

    def of_large(rows: Any, theta: Any, constant: Any) -> Any:
        return anp.sum(anp.tanh(theta * rows["x"][0, 0])) * constant[0]

    large, constant = np.linspace(0.0, 1.0, 20_000), np.ones(30_000)
    there = on(shards_on(client, ROWS), constant, fun=of_large)
    there(large)
    sent = start()
    heat_up(client, lambda: there(large))
    here = on(ROWS, constant, fun=of_large, **ON_ONE_THREAD)
    assert there(large) == here(large)
    calls = [size for size, _ in sent if size > large.nbytes]
    assert max(calls) < large.nbytes + constant.nbytes + 10_000  # the first brings the program
    assert calls[-1] < large.nbytes + 2_000
    constant[0] = 2.0
    assert there(large) == here(large)


def test_rows_of_one_worker_go_through_the_scheduler_to_that_worker_alone(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All workers used to get the rows of all that come with each call."""
    start = relayed(client, monkeypatch)

    def of_both(rows: Any, theta: Any) -> Any:
        return anp.sum(anp.tanh(rows["x"] @ theta) * anp.sum(rows["y"], axis=1))

    def both(scheduler: Any, x: Any) -> Callable[[Any], Any]:
        y, options = np.arange(24 * 2000.0).reshape(24, 2000) / 1e5, {} if scheduler is client else ON_ONE_THREAD
        loss = dagad.value_and_grad(
            lambda theta, y: dagad.reduce_sum(of_both, {"x": x, "y": y}, theta, **options), BOTH
        )
        return lambda theta: loss(theta, y)

    there, here = both(client, shards_on(client)), both("sync", X)
    there(THETA)
    sent = start()
    heat_up(client, lambda: there(THETA))
    del sent[:]
    (value, found), (right, expected) = there(THETA), here(THETA)
    assert bits([value, *found]) == bits([right, *expected])
    assert len(sent) == 2
    assert 24 * 2000 * 8 < sum(size * n_workers for size, n_workers in sent) < 24 * 2000 * 8 + 10_000


ON_ONE_THREAD: dict[str, Any] = {"grainsize": 4, "scheduler": "sync"}


@pytest.mark.usefixtures("endless")
def test_a_client_that_is_closed_says_so(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(client.cluster, set_as_default=False) as closed:
        there = on(shards_on(closed, ROWS))
        until(lambda: there(THETA) == EXPECTED(THETA))
        there(THETA)
    for seconds in (60.0, 0.0):
        monkeypatch.setattr(loop, "LOOK_AGAIN", seconds)
        with pytest.raises(dagad.SchedulerLostError, match="closed, and are gone"):
            in_background(there, THETA).result(PATIENCE)


# What chunks raise, and who gives up


def test_an_exception_arrives_as_by_the_graph(road: Road, client: Client) -> None:
    there = heated(client)
    for _ in range(2):
        with pytest.raises(LookupError, match="theta is too large") as caught:
            there(10.0 * THETA)
        (note,) = caught.value.__notes__
        assert re.match(r"dagad: value of chunk 2 \(rows 8:12\), key \('dagad-value[\w-]+', 2\)", note)
        assert is_hot(client, lambda: there(THETA))
        assert there(THETA) == EXPECTED(THETA)


def watched_on(client: Client, watch: Watch) -> Callable[[Any], Any]:
    shards = shards_on(client, ROWS)
    return lambda theta: dagad.reduce_sum(held_up, shards, theta, watch.folder)


def held_up(rows: Any, theta: Any, folder: str) -> Any:
    """Wait at a gate in the third chunk."""
    if rows["row"][0] == 8:
        Path(folder, "come").touch()
        until(Path(folder, "gate").exists)
    return chunk(rows, theta)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", ["cancelled", "interrupted"])
def test_a_hot_call_that_is_given_up_leaves_everything_usable(
    how: str, road: Road, client: Client, tmp_path: Path
) -> None:
    come, gate, shards = tmp_path / "come", tmp_path / "gate", shards_on(client, ROWS)
    gate.touch()

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(held_up, shards, theta, str(tmp_path))

    heat_up(client, lambda: in_all(loss)(THETA))
    other = heated(client)
    gate.unlink()
    come.unlink()
    before = chunks_as_tasks(client)
    if how == "cancelled":
        evaluation = dagad.evaluate(loss, THETA)
        until(come.exists)
        neighbour = in_background(other, 0.5 * THETA)  # waits for the same workers
        evaluation.cancel()
        with pytest.raises(dagad.CancelledError):
            evaluation.value(PATIENCE)
    else:
        with interrupted_when(come.exists), pytest.raises(KeyboardInterrupt):
            in_all(loss)(THETA)
        neighbour = in_background(other, 0.5 * THETA)
    assert chunks_as_tasks(client) == before or how == "cancelled"
    gate.touch()
    assert neighbour.result(PATIENCE) == EXPECTED(0.5 * THETA)
    assert in_all(loss)(THETA) == other(THETA) == EXPECTED(THETA)
    reheat(client, in_all(loss))
    reheat(client, other)


# Many Shards, and many calls at the same time


@pytest.mark.whole("many rounds, workers or bytes: the same is seen of few here")
def test_ten_shards_in_turn_need_one_connection_to_a_worker(client: Client) -> None:
    until_hung_up(client)
    losses = [heated(client) for _ in range(10)]
    assert all([is_hot(client, functools.partial(there, THETA)) for there in losses])
    assert on_workers(client, n_connections) == [1, 1]
    assert on_workers(client, n_programs) == on_workers(client, n_left) == [10, 10]
    del losses[1:]
    until(lambda: on_workers(client, n_programs) == [1, 1])  # the programs of Shards go with them
    assert on_workers(client, n_left) == [1, 1]
    assert is_hot(client, lambda: losses[0](THETA))
    losses.clear()
    until(lambda: on_workers(client, n_connections) == [0, 0])
    until(lambda: on_workers(client, n_programs) == [0, 0])


def test_workers_hear_of_dropped_programs_though_the_call_with_the_word_failed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    until_hung_up(client)
    losses, sent = [heated(client) for _ in range(2)], list[Any]()

    async def unsent(self: Any, calls: Any) -> Any:
        sent.extend(calls.values())
        raise OSError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(ResidentClient, "_exchange", unsent)
        # Nothing but a call tells workers then.
        patch.setattr(ResidentClient, "let_go", lambda self, *what: self._let_go.append(what))
        losses.pop()
        gc.collect()
        assert losses[0](THETA) == EXPECTED(THETA)
    assert [len(call["forget"]) for call in sent] == [1, 1]
    until(lambda: on_workers(client, n_programs) == [1, 1])
    reheat(client, losses[0])
    assert on_workers(client, n_left) == [1, 1]


@pytest.mark.parametrize("of_one", [True, False])
def test_calls_at_the_same_time_do_not_disturb_one_another(of_one: bool, client: Client) -> None:
    until_hung_up(client)
    first = heated(client)
    losses = [first if of_one else heated(client) for _ in range(8)]

    def repeat(number: int) -> None:
        for turn in range(20):
            theta = (number - turn / 7.0) * THETA / 10.0
            assert losses[number](theta) == EXPECTED(theta)

    for waiting in [in_background(repeat, number) for number in range(8)]:
        waiting.result(PATIENCE)
    until(lambda: max(on_workers(client, n_connections)) <= 4)  # those that are idle are few
    assert is_hot(client, lambda: first(THETA))


def test_a_hot_call_that_is_given_up_leaves_other_calls_and_their_tapes_alone(client: Client, tmp_path: Path) -> None:
    until_hung_up(client)
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    watches = [Watch(folder, "value", "pullback") for folder in folders]
    shards = [dagad.shard(WATCHED, grainsize=4, scheduler=client) for _ in watches]
    losses = [gated(some, watch) for some, watch in zip(shards, watches, strict=True)]
    for loss in losses:
        heat_up(client, functools.partial(in_all(loss), THETA))
    value, pullback = dagad.vjp(losses[0], THETA)
    for watch in watches:
        watch.close("value")
    before = chunks_as_tasks(client)
    one = dagad.evaluate(losses[0], 0.5 * THETA, lazy=True)
    watches[0].wait("value", processes=2)  # each worker is busy with it
    other = dagad.evaluate(losses[1], 0.5 * THETA, lazy=True)
    until(lambda: on_workers(client, n_connections) == [2, 2])
    one.cancel()
    with pytest.raises(dagad.CancelledError):
        one.value(PATIENCE)
    watches[0].open("value")
    watches[1].open("value")
    assert other.value(PATIENCE) == gated_here(0.5 * THETA)
    assert bits([other.gradient(PATIENCE)]) == bits([dagad.grad(gated_here)(0.5 * THETA)])
    until(lambda: on_workers(client, n_held) == [1, 1])  # what is the pullback's, and nothing of who gave up
    assert bits([value, *pullback(1.0)]) == bits([gated_here(THETA), dagad.grad(gated_here)(THETA)])
    assert chunks_as_tasks(client) == before


WATCHED = {"row": np.arange(24), "x": X}


@pytest.mark.whole("what stays in memory: pullbacks and evaluations are seen to go in this tier")
def test_tapes_of_a_hot_call_that_was_given_up_are_not_kept(road: Road, client: Client, tmp_path: Path) -> None:
    """Who reaches the scheduler alone can't hang up on a call that was given up: the word that it was overtakes it."""
    watch = Watch(tmp_path, "value", "pullback")
    loss = gated(dagad.shard(WATCHED, grainsize=4, scheduler=client), watch)
    heat_up(client, functools.partial(in_all(loss), THETA))
    watch.close("value")
    evaluation = dagad.evaluate(loss, 0.5 * THETA, lazy=True)
    watch.wait("value", processes=2)
    evaluation.cancel()
    with pytest.raises(dagad.CancelledError):
        evaluation.value(PATIENCE)
    del evaluation
    until(lambda: has_told_all(client))
    watch.open("value")
    until(lambda: not any(on_workers(client, n_now)))
    assert on_workers(client, n_held) == [0, 0]
    assert in_all(loss)(THETA) == bits([gated_here(THETA), dagad.grad(gated_here)(THETA)])


def has_told_all(client: Client) -> bool:
    """Return whether workers know of all that was let go of."""
    gc.collect()
    at_client = client.extensions["dagad-residents"].residents()
    return not at_client._let_go and at_client._telling is not None and at_client._telling.done()


def gated(sliced: Any, watch: Watch) -> Callable[[Any], Any]:
    return lambda theta: dagad.reduce_sum(watched_chunk, sliced, theta, watch.folder)


def gated_here(theta: Any) -> Any:
    return dagad.reduce_sum(watched_chunk, WATCHED, theta, "", grainsize=4, scheduler="sync")
