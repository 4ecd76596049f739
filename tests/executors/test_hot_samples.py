"""Samples in a hot loop: from the second step on each is one message to each worker, whoever has died meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client

import dagad
from dagad._values import pytree
from dagad_scheduler.residents.client import ResidentClient
from support.clusters import kill, pids_of
from support.gated_chunks import bits
from support.hot_loops import a_watched_cluster, refusals, tasks_made
from support.waiting import PATIENCE, until

X = np.random.default_rng(0).standard_normal((62, 3))
THETA = np.array([0.3, -0.7, 1.1])


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    with a_watched_cluster() as client:
        yield client


@pytest.fixture(scope="module")
def frail() -> Iterator[Client]:
    with a_watched_cluster() as client:
        yield client


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows * theta) ** 2)


def on(scheduler: Any) -> Any:
    return dagad.shard(X, grainsize=4, scheduler=scheduler)


def step_of(shards: Any, step: int, theta: Any = THETA) -> Any:
    some = shards.sample(5, seed=1, step=step)
    return dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, some, theta))(theta)


def row_step_of(shards: Any, step: int) -> Any:
    some = shards.sample(5, seed=1, step=step)
    value, gradient = dagad.value_and_grad(lambda x: dagad.reduce_sum(chunk, x, THETA))(some)
    return value, dagad.jvp(lambda x: dagad.reduce_sum(chunk, x, THETA), some, gradient)[1]


def warm(client: Client, shards: Any, take: Any = step_of) -> None:
    """Take steps until one needs no task: the first time, workers import what they need."""

    def is_warm() -> bool:
        before = tasks_made(client)
        take(shards, 0)
        return tasks_made(client) == before

    until(is_warm)


def steps_of_sums(total: Callable[..., Any]) -> Callable[[Any, int], Any]:
    """Return what takes a step: value and gradient of a sum over the step's sample."""

    def take(shards: Any, step: int) -> Any:
        some = shards.sample(4, step=step)
        return dagad.value_and_grad(lambda theta: dagad.reduce_sum(total, some, theta))(THETA)

    return take


def test_a_loop_over_samples_is_hot_from_the_second_step_on(client: Client) -> None:
    warm(client, on(client), row_step_of)  # a function of another kind: workers have imported all that it takes
    shards, here, take = on(client), on("sync"), steps_of_sums(lambda rows, theta: anp.sum(anp.sin(rows * theta)))
    assert bits(take(shards, 0)) == bits(take(here, 0))
    with refusals() as reasons:
        before = tasks_made(client)
        for step in range(1, 20):
            assert bits(take(shards, step)) == bits(take(here, step))
        assert tasks_made(client) == before, reasons


def test_a_step_on_a_sample_is_one_message_to_each_worker_that_has_some_of_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards, calls = on(client), list[list[dict[str, Any]]]()
    warm(client, shards)
    asked, looked = ResidentClient._exchange, list[int]()

    async def counted(self: ResidentClient, some: dict[str, dict[str, Any]]) -> Any:
        calls.append(list(some.values()))
        return await asked(self, some)

    for step in range(1, 4):  # both workers have been told of the program
        step_of(shards, step)
    monkeypatch.setattr(ResidentClient, "_exchange", counted)
    monkeypatch.setattr(ResidentClient, "homes", lambda self, keys: looked.append(len(keys)))
    monkeypatch.setattr("dagad_scheduler.residents.loop.LOOK_AGAIN", 1e9)
    for step in range(4, 24):
        step_of(shards, step)
    assert len(calls) == 20
    assert not looked  # nobody has asked the scheduler where the rows are
    assert all(1 <= len(some) <= 2 and not any("program" in one for one in some) for some in calls)
    assert all(sum(one["n_asked"] for one in some) == 5 for some in calls)


def test_gradients_in_the_rows_of_samples_make_no_tasks(client: Client) -> None:
    shards, here = on(client), on("sync")
    warm(client, shards, row_step_of)
    before = tasks_made(client)
    for step in range(12):
        assert bits(row_step_of(shards, step)) == bits(row_step_of(here, step))
    assert tasks_made(client) == before


def test_rows_of_a_gradient_in_a_sample_are_made_again_when_they_are_lost(frail: Client) -> None:
    frail.wait_for_workers(2, PATIENCE)
    shards, here = on(frail), on("sync")
    warm(frail, shards, row_step_of)

    def gradient(shards: Any) -> Any:
        return dagad.grad(lambda x: dagad.reduce_sum(chunk, x, THETA))(shards.sample(6, step=3))

    found = gradient(shards)
    for pid in pids_of(frail).values():
        kill(pid)
    assert bits(found.gather()) == bits(gradient(here).gather())


@pytest.mark.parametrize("threads", [1, 2])
def test_two_threads_of_a_worker_share_the_chunks_of_a_sample(threads: int, client: Client) -> None:
    here = on("sync")
    if threads == 1:
        shards = on(client)
        warm(client, shards)
        assert bits(step_of(shards, 3)) == bits(step_of(here, 3))
        return
    with a_watched_cluster(threads_per_worker=threads) as other:
        shards = on(other)
        warm(other, shards)
        for step in range(9):
            assert bits(step_of(shards, step)) == bits(step_of(here, step))
        del shards


def trajectory(shards: Any, n_steps: int, act: Any = None) -> list[bytes]:
    """Return every bit of a descent on samples."""
    theta = THETA
    for step in range(n_steps):
        if act is not None:
            act(step)
        value, gradient = step_of(shards, step, theta)
        theta = theta - 0.01 * (shards.n_rows / shards.sample(5, seed=1, step=step).n_rows) * gradient
    return bits([theta, value])


def test_samples_have_the_same_bits_when_workers_die(frail: Client) -> None:
    frail.wait_for_workers(2, PATIENCE)
    expected = trajectory(on("sync"), 40)

    def kill_one(step: int) -> None:
        if step in (10, 25):
            kill(next(iter(pids_of(frail).values())))

    assert trajectory(on(frail), 40, kill_one) == expected


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_samples_have_the_same_bits_with_one_worker_and_while_workers_come() -> None:
    expected = trajectory(on("sync"), 25)
    with a_watched_cluster(1) as client:
        cluster: Any = client.cluster
        shards = on(client)
        assert trajectory(shards, 25) == expected

        def grow(step: int) -> None:
            if step == 8:
                cluster.scale(2)

        assert trajectory(shards, 25, grow) == expected
        client.wait_for_workers(2, PATIENCE)
        assert trajectory(shards, 25) == expected
        del shards


def test_a_checkpoint_goes_on_in_the_middle_of_a_loop_over_samples(client: Client, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(step: int) -> None:
        if step == 7:
            raise Stopped

    expected = trajectory(on("sync"), 12)
    with pytest.raises(Stopped), dagad.checkpoint(tmp_path / "run"):
        trajectory(on(client), 12, stop)
    with dagad.checkpoint(tmp_path / "run") as run:
        assert trajectory(on(client), 12) == expected
        assert run.n_known > 0
    some = on(client).sample(5, seed=2, step=0)
    with pytest.raises(dagad.CheckpointError, match="its rows are others"), dagad.checkpoint(tmp_path / "run"):
        dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, some, theta))(THETA)


def test_a_loop_over_samples_is_hot_in_a_checkpoint_that_writes_no_chunks(client: Client, tmp_path: Path) -> None:
    """Rows are digested once for each chunk, however many samples it is in."""
    warm(client, on(client), row_step_of)
    shards, here, take = on(client), on("sync"), steps_of_sums(lambda rows, theta: anp.sum(anp.cos(rows * theta)))
    expected = [bits(take(here, step)) for step in range(24)]
    with dagad.checkpoint(tmp_path / "run", chunks=False), refusals() as reasons:
        assert [bits(take(shards, step)) for step in range(12)] == expected[:12]
        before = tasks_made(client)
        assert [bits(take(shards, step)) for step in range(12, 24)] == expected[12:]
        assert tasks_made(client) == before, reasons
    with dagad.checkpoint(tmp_path / "run") as run:
        assert [bits(take(shards, step)) for step in range(24)] == expected
        assert run.n_known == 24


# Samples beside other Shards


def beside(rows: Any, theta: Any) -> Any:
    one, other = rows
    return anp.sum(anp.tanh(one * theta) ** 2 * other)


def by_name(rows: Any, theta: Any) -> Any:
    return beside((rows["one"], rows["others"][0]), theta)


Parts = tuple[Any, Any]
BESIDE: dict[str, Any] = {
    "Shards": lambda whole, other, some, step: (whole.sample(5, step=step), some),
    "Shards that come first": lambda whole, other, some, step: (some, whole.sample(5, step=step)),
    "the same step of others": lambda whole, other, some, step: (
        whole.sample(5, step=step),
        other.sample(5, step=step),
    ),
    "another step": lambda whole, other, some, step: (whole.sample(5, step=step), whole.sample(5, step=step + 1)),
    "another step of others": lambda whole, other, some, step: (
        other.sample(5, step=3 * step),
        whole.sample(5, step=step),
    ),
    "itself": lambda whole, other, some, step: (whole.sample(5, step=step),) * 2,
    "the same once more": lambda whole, other, some, step: (whole.sample(5, step=step), whole.sample(5, step=step)),
}
STEPS = (0, 1, 2, 3, 8, 10)  # samples of the last four have their first chunk in common
LOSSES: dict[str, Any] = {
    "pairs": lambda one, other, theta: dagad.reduce_sum(beside, (one, other), theta),
    "dicts": lambda one, other, theta: dagad.reduce_sum(by_name, {"one": one, "others": (other,)}, theta),
}
BESIDE_MODES: dict[str, Any] = {
    "value": lambda loss, one, other: loss(one, other, THETA),
    "gradient": lambda loss, one, other: dagad.value_and_grad(lambda theta: loss(one, other, theta))(THETA),
    "jvp": lambda loss, one, other: dagad.jvp(lambda theta: loss(one, other, theta), THETA, np.cos(THETA)),
    "hvp": lambda loss, one, other: dagad.hvp(lambda theta: loss(one, other, theta), THETA, np.cos(THETA)),
    "gradient in rows": lambda loss, one, other: dagad.value_and_grad(loss, (0, 2))(one, other, THETA),
    "gradient in all rows": lambda loss, one, other: dagad.value_and_grad(loss, (0, 1))(one, other, THETA),
    "hvp in rows": lambda loss, one, other: dagad.hvp(lambda one: loss(one, other, THETA), one, one),
}


def wholes(scheduler: Any) -> tuple[Any, Any, Any]:
    other = np.cos(X[:60])
    one, two, three = (dagad.shard(data, grainsize=4, scheduler=scheduler) for data in (X[:60], other, other[:20]))
    return one, two, three


def beside_bits(mode: Any, loss: Any, parts: Parts) -> list[bytes]:
    leaves = pytree.flatten(mode(loss, *parts))[0]
    return bits([leaf.gather() if isinstance(leaf, dagad.Shards) else leaf for leaf in leaves])


def test_samples_of_several_steps_have_their_first_chunk_in_common() -> None:
    whole = wholes("sync")[0]
    assert len({whole.sample(5, step=step).gather()[0].tobytes() for step in STEPS}) == 3


@pytest.mark.each_value("each neighbour and each mode")
@pytest.mark.parametrize("mode", BESIDE_MODES)
@pytest.mark.parametrize("what", BESIDE)
def test_a_sample_has_its_own_rows_beside_others(what: str, mode: str, client: Client) -> None:
    """Step after step: samples of two steps may have their first chunk in common."""
    there, here = wholes(client), wholes("sync")
    for loss in LOSSES.values():
        for step in STEPS:
            found, expected = (
                beside_bits(BESIDE_MODES[mode], loss, BESIDE[what](*shards, step)) for shards in (there, here)
            )
            assert found == expected, step


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_a_sample_has_its_own_rows_beside_others_when_workers_die(frail: Client) -> None:
    frail.wait_for_workers(2, PATIENCE)
    there, here = wholes(frail), wholes("sync")
    for what, parts in BESIDE.items():
        for step in range(6):
            if step == 3:
                kill(next(iter(pids_of(frail).values())))
            for mode in ("gradient", "gradient in rows"):
                found, expected = (
                    beside_bits(BESIDE_MODES[mode], LOSSES["pairs"], parts(*shards, step)) for shards in (there, here)
                )
                assert found == expected, (what, step, mode)


def test_samples_of_other_cuts_are_refused_beside_each_other(client: Client) -> None:
    for place in (client, "sync"):
        fine, coarse = (dagad.shard(X[:60], grainsize=size, scheduler=place) for size in (4, 10))
        for pair in ((fine.sample(5, step=0), coarse.sample(2, step=0)), (fine.sample(5, step=0), coarse)):
            with pytest.raises((dagad.PlanError, dagad.StructureError), match=r"cut differently|numbers of rows"):
                dagad.reduce_sum(beside, pair, THETA)
