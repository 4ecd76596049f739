"""Where tasks go first: do rows and pullbacks go to their values, and is every worker given as much?"""

from __future__ import annotations

import uuid
import warnings
from collections import Counter
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from dask._task_spec import DataNode, Task, TaskRef
from distributed import Client

import dagad
from dagad_scheduler import Names, Role
from dagad_scheduler.running.cluster import LARGE_GRAPHS
from dagad_scheduler.running.placement import anchored, homes_of

WORKERS = ["a", "b", "c"]
N = 6


def nothing(*args: Any) -> None:
    pass


def graph_of(names: Names) -> dict[Any, Any]:
    """Return values with rows of their own and something that all need, and pullbacks of some of them."""
    theta, graph = names(Role.INPUT, "theta"), dict[Any, Any]()
    graph[theta] = DataNode(theta, 1.0)
    for number in range(N):
        rows, value = names(Role.INPUT, ("rows", number)), names(Role.VALUE, number)
        graph[rows] = DataNode(rows, number)
        graph[value] = Task(value, nothing, TaskRef(rows), TaskRef(theta))
    for number in (1, 4, 5):
        pullback = names(Role.PULLBACK, number)
        graph[pullback] = Task(pullback, nothing, TaskRef(names(Role.VALUE, number)))
    return anchored(graph)


def test_rows_and_pullbacks_go_where_their_values_go() -> None:
    names = Names(uuid.uuid4().hex)
    home = homes_of(graph_of(names), WORKERS, ())
    values = [home(names(Role.VALUE, number)) for number in range(N)]
    assert values == [["a"], ["a"], ["b"], ["b"], ["c"], ["c"]]
    assert [home(names(Role.INPUT, ("rows", number))) for number in range(N)] == values
    assert [home(names(Role.PULLBACK, number)) for number in (1, 4, 5)] == [values[number] for number in (1, 4, 5)]
    assert home(names(Role.INPUT, "theta")) == []


def test_rows_that_several_read_have_no_home() -> None:
    names = Names(uuid.uuid4().hex)
    graph = graph_of(names)
    other = names(Role.VALUE, N)
    graph[other] = Task(other, nothing, TaskRef(names(Role.INPUT, ("rows", 0))))
    home = homes_of(graph, WORKERS, ())
    assert home(names(Role.INPUT, ("rows", 0))) == []
    assert home(names(Role.INPUT, ("rows", 1))) == home(names(Role.VALUE, 1)) != []


def test_rows_of_a_chunk_land_with_its_value(cluster: Client) -> None:
    """Half of them would travel on otherwise; the scheduler's word for where they were made is asked."""
    workers, names = sorted(cluster.nthreads()), Names(uuid.uuid4().hex)
    graph = graph_of(names)
    keys = [names(Role.INPUT, ("rows", number)) for number in range(N)]
    from dagad_scheduler.running.cluster import Cluster

    run = Cluster(cluster).start(graph, [names(Role.VALUE, n) for n in range(N)], nothing, keep=keys)
    run.wait()
    where = [cluster.who_has([run.kept[key]]) for key in keys]
    found = Counter(address for held in where for addresses in held.values() for address in addresses)
    assert found == {address: N // 2 for address in workers}


def test_dask_does_not_advise_against_rows_with_a_lineage(cluster: Client) -> None:
    threshold = "distributed.admin.large-graph-warning-threshold"
    with dask.config.set({threshold: "1 kB"}), warnings.catch_warnings():
        warnings.simplefilter("error")
        shards = dagad.shard(np.ones(10_000), grainsize=5_000, scheduler=cluster)
        assert dagad.reduce_sum(np.sum, shards) == 10_000.0
        with LARGE_GRAPHS, LARGE_GRAPHS:
            assert dask.config.get(threshold) == "1 PB"
        assert dask.config.get(threshold) == "1 kB"
        with pytest.warns(UserWarning, match="large graph"):
            cluster.submit(len, np.ones(10_000).tobytes(), pure=False).result()


def test_arguments_of_users_tasks_are_not_asked_for_a_home() -> None:
    table = pd.DataFrame({"home": ["here", "there"]})  # a column is no address, nor has it a truth value
    homes_of({"k": Task("k", print, table, TaskRef("z")), "z": Task("z", print)}, WORKERS, ())
