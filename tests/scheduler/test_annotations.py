"""What users say with `dask.annotate`: is it done, on graphs, on Shards and in hot loops, and does nothing break?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import autograd.numpy as anp
import dask
import dask.array as da
import numpy as np
import pytest
from dask.delayed import delayed
from distributed import Client, get_worker

import dagad
from dagad._sources.lineage import At, made_rows
from dagad._sources.plan import Chunk
from dagad_scheduler.annotations import Annotated, tasks_annotated
from dagad_scheduler.private import DataNode, Task, TaskRef
from dagad_scheduler.process import calmed
from dagad_scheduler.roles import Names, Role
from dagad_scheduler.running.placement import homes_of
from support.clusters import a_worker
from support.gated_chunks import bits
from support.hot_loops import THETA, X, a_watched_cluster, heat_up, in_all, is_hot, shards_on
from support.waiting import PATIENCE, until

annotate: Any = dask.annotate  # type: ignore[attr-defined]  # dask's `__init__` does not say what it exports


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    """A cluster that is to be empty in the end."""
    with a_watched_cluster() as client:
        yield client


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows @ theta))


def where_it_runs(rows: Any, theta: Any) -> Any:
    """Return a number that tells the worker's port, beside what depends on theta."""
    return anp.sum(theta) * 0.0 + float(get_worker().address.rpartition(":")[2])


def ports(scheduler: Any, data: Any = X) -> float:
    """Return the sum of the ports of the workers that six chunks ran on."""
    options: dict[str, Any] = {} if isinstance(data, dagad.Shards) else {"scheduler": scheduler, "grainsize": 4}
    return float(dagad.value_and_grad(lambda theta: dagad.reduce_sum(where_it_runs, data, theta, **options))(THETA)[0])


def port(address: str) -> float:
    return float(address.rpartition(":")[2])


def addresses(client: Client) -> list[str]:
    return list(client.nthreads())


def holders(client: Client, shards: Any) -> set[str]:
    until(lambda: all(future.done() for future in shards.kept.values()))
    return {address for held in client.who_has(list(shards.kept.values())).values() for address in held}


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_chunks_and_shards_stay_on_the_annotated_workers(client: Client) -> None:
    for address in addresses(client):
        with annotate(workers=[address]):
            assert ports(client) == 6 * port(address)
            shards = shards_on(client)
        assert holders(client, shards) == {address}


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_hot_loop_runs_on_the_annotated_workers(client: Client) -> None:
    # Where a worker is made to run all chunks, copies of rows come to lie there. Dask drops the others every two
    # seconds, on whichever worker has less memory left: a loop that finds its rows gone takes a graph, once.
    client.amm.stop()
    shards = shards_on(client)
    there = in_all(lambda theta: dagad.reduce_sum(chunk, shards, theta))
    heat_up(client, lambda: there(THETA))
    expected = there(THETA)
    for address in addresses(client):
        with annotate(workers=address):
            assert ports(client, shards) == 6 * port(address)
            assert there(THETA) == expected
    with annotate(retries=2, some_word="fit"):
        heat_up(client, lambda: there(THETA))
        assert is_hot(client, lambda: there(THETA))
    client.amm.start()
    until(lambda: is_hot(client, lambda: there(THETA)))


def test_resources_that_no_worker_has_are_waited_for_and_harm_nobody(client: Client) -> None:
    """Dask's scheduler fails on them together with the places that we would like, and forgets other tasks then."""
    shards = shards_on(client)
    loss: Callable[[Any], Any] = lambda theta: dagad.reduce_sum(chunk, X, theta, grainsize=4, scheduler=client)  # noqa: E731  # short
    expected = bits(dagad.value_and_grad(loss)(THETA))
    with annotate(resources={"GPU": 1}):
        evaluation = dagad.evaluate(loss, THETA)
    until(lambda: evaluation.progress.values_total)
    assert bits(dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, shards, theta))(THETA)) == expected
    assert not evaluation._value.done()
    where: Any = client.cluster
    with a_worker(where.scheduler_address, "--resources", "GPU=1"):
        assert bits([evaluation.value(PATIENCE), evaluation.gradient(PATIENCE)]) == expected
    until(lambda: len(addresses(client)) == 2)
    assert bits(dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, shards, theta))(THETA)) == expected


def test_priorities_are_the_users_and_within_them_ours(client: Client) -> None:
    def ours(key: Any) -> int:
        return {"value": 10, "pullback": 0}[key]

    for users in (3, lambda key: 3):
        found = Annotated({"priority": users}).with_ours(ours, None)["priority"]
        assert 3 <= found("pullback") < found("value") < 4
    assert Annotated({}).with_ours(ours, None)["priority"] is ours
    with annotate(priority=7):
        shards = shards_on(client)
    assert holders(client, shards)
    assert set(client.run_on_scheduler(priorities, keys=list(shards.kept))) == {-7.0 - 20 / 64}


def priorities(dask_scheduler: Any, keys: list[Any]) -> list[float]:
    return [dask_scheduler.tasks[key].priority[0] for key in keys]


def test_annotations_of_workers_are_read_as_dask_reads_them() -> None:
    assert Annotated({}).workers is None
    assert Annotated({"workers": "a"}).workers == ["a"]
    assert Annotated({"workers": ["a", "b"]}).workers == ["a", "b"]
    assert Annotated({"workers": ["a"], "allow_other_workers": True}).workers is None
    assert Annotated({"workers": str}).workers is None
    homes: Any = {"home": ["a"]}.get
    assert "workers" not in Annotated({"workers": ["a"]}).with_ours(int, homes)
    assert "workers" not in Annotated({"resources": {"GPU": 1}}).with_ours(int, homes)
    assert Annotated({"retries": 2}).with_ours(int, homes)["workers"] is homes
    assert str(Annotated({"workers": ["a"], "retries": 2})) == "`dask.annotate(workers=['a'])`"


# Annotations of single tasks, whose rows become Shards


def address_here(number: int) -> list[str]:
    return [f"{number} {get_worker().address}"] * 2


def block_here(block: Any) -> Any:
    return np.full_like(block, port(get_worker().address))


def test_loaders_run_and_rows_stay_where_each_loader_is_annotated(client: Client) -> None:
    where = addresses(client)
    wanted = [where[number] for number in (1, 0, 0, 1, 1, 1)]
    loaders = []
    for number, address in enumerate(wanted):
        with annotate(workers=[address], retries=1):
            loaders.append(delayed(address_here, pure=False)(number))
    for grainsize in ("auto", 1):
        shards = dagad.shard(loaders, grainsize=grainsize, scheduler=client)
        assert shards.gather()[::2] == [f"{number} {address}" for number, address in enumerate(wanted)]
        assert holders(client, shards) == set(where)
        held = client.who_has(list(shards.kept.values()))
        chunks = 1 if grainsize == "auto" else 2
        assert [held[key] for key in shards.keys] == [(address,) for address in wanted for _ in range(chunks)]
    with annotate(workers=where[:1]):  # of those that say nothing themselves
        some = dagad.shard([loaders[0], delayed(address_here)(9)], scheduler=client)
    assert some.gather()[::2] == [f"0 {where[1]}", f"9 {where[0]}"]
    assert dagad.shard(loaders[:1], scheduler=client).n_rows == 2


def test_blocks_of_an_array_are_computed_where_they_are_annotated(client: Client) -> None:
    for address in addresses(client):
        with annotate(workers=[address]):
            blocks = da.ones((8, 2), chunks=(2, 2)).map_blocks(block_here, meta=np.ones((0, 0)))
        assert np.unique(dagad.shard({"x": blocks + 0.0}, scheduler=client).gather()["x"]).tolist() == [port(address)]


def test_annotations_of_single_tasks_go_before_those_in_force() -> None:
    own: dict[str, dict[str, Any]] = {"a": {"workers": ["x"]}, "b": {"resources": {"GPU": 1}}, "c": {}}
    with annotate(workers=lambda key: [key], allow_other_workers=True, retries=3), tasks_annotated(own):
        found = dask.get_annotations()  # type: ignore[attr-defined]  # as above
        said = {kind: [value(key) for key in "abc"] for kind, value in found.items() if callable(value)}
    assert said == {
        "workers": [["x"], ["b"], ["c"]],
        "allow_other_workers": [False, True, True],
        "resources": [{}, {"GPU": 1}, {}],
    }
    assert found["retries"] == 3
    with tasks_annotated({"a": {}}):
        assert dask.get_annotations() == {}  # type: ignore[attr-defined]  # as above


def test_a_home_is_found_behind_the_function_of_a_task_that_leaves() -> None:
    """Rows that a call has left on a worker are looked for there first."""
    key = Names("t")(Role.SHARD, 0)
    graph = {"x": DataNode("x", 1.0), key: Task(key, made_rows, At(Chunk(0, 0, 1), "b"), ["rows", 0], [], TaskRef("x"))}
    for one in (graph, calmed(graph)):
        assert homes_of(one, ["a", "b", "c"], ())(key) == ["b"]
