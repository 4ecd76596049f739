"""Dask's protocol: does our `get` run what Dask's runs, on as many threads as it is given?"""

from __future__ import annotations

import operator
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from operator import add
from typing import Any

import dask
import dask.array
import dask.bag
import dask.local
import pytest
from dask._task_spec import Alias, DataNode, Dict, List, Task, TaskRef
from dask.base import compute
from dask.delayed import delayed

import dagad_scheduler
from dagad_scheduler import Sync, Threads
from support.thread_graphs import LOCAL, each, increase
from support.waiting import PATIENCE


@pytest.mark.sampled(2)
@pytest.mark.parametrize("get", [dagad_scheduler.get, Threads(3).get, Sync().get], ids=["get", "threads", "sync"])
def test_dask_computes_with_our_get(get: Any) -> None:
    a, b = delayed(increase)(1), delayed(increase)(2)
    assert compute(a, [b, {"sum": a + b}], 5, scheduler=get) == (2, [3, {"sum": 5}], 5)


def test_dasks_collections_compute_with_our_get() -> None:
    numbers = dask.bag.from_sequence(range(20), npartitions=5)
    assert numbers.map(increase).sum().compute(scheduler=dagad_scheduler.get) == 210
    array = dask.array.arange(100, chunks=7)
    assert (array**2).sum().compute(scheduler=dagad_scheduler.get) == sum(i**2 for i in range(100))


KEYS = ["c", ["a", "c"], [["a"], ["b", ["c"]]], [], [[]], ["c", "c"]]


@pytest.mark.parametrize("keys", KEYS, ids=str)
@pytest.mark.parametrize("get", [dagad_scheduler.get, Sync().get], ids=["threads", "sync"])
def test_nested_keys_come_back_nested_as_from_dask(get: Any, keys: Any) -> None:
    graph = {"a": 1, "b": (increase, "a"), "c": (sum, ["a", "b"])}
    assert get(graph, keys) == dask.local.get_sync(graph, keys)


LEGACY: dict[Any, Any] = {
    "literal": 1,
    ("x", 0): (add, "literal", 2),
    "nested": (add, (add, "literal", ("x", 0)), 10),
    "list": (sum, [("x", 0), "nested", 4]),
    "alias": ("x", 0),
    "none": None,
    "text": "not a key",
    7: (str, ("x", 0)),
}


@pytest.mark.parametrize("get", [dagad_scheduler.get, Sync().get], ids=["threads", "sync"])
def test_legacy_graphs_are_understood(get: Any) -> None:
    keys: list[Any] = list(LEGACY)
    assert get(LEGACY, keys) == dask.local.get_sync(LEGACY, keys)


@pytest.mark.parametrize("scheduler", LOCAL, ids=lambda value: repr(value).partition(" at 0x")[0])
def test_every_kind_of_node_is_run(scheduler: Threads) -> None:
    graph = {
        "a": DataNode("a", 3),
        "b": Alias("b", "a"),
        "c": Task("c", dict, x=TaskRef("b"), y=List(TaskRef("a"), 1)),
        "d": Task("d", operator.itemgetter("z"), Dict({"z": TaskRef("c"), "w": 0})),
        "e": Task("e", add, Task(None, increase, TaskRef("a")), 1),
    }
    assert scheduler.get(graph, ["b", "d", "e"]) == (3, {"x": 3, "y": [3, 1]}, 5)


def test_num_workers_is_the_number_of_threads() -> None:
    seen: set[int] = set()

    def meet(i: int) -> None:
        seen.add(threading.get_ident())
        barrier.wait(PATIENCE)

    for n in (1, 2, 4):
        graph = each(meet, 3 * n)
        barrier = threading.Barrier(n)
        seen.clear()
        dagad_scheduler.get(graph, list(graph), num_workers=n)
        assert len(seen) == n
        assert threading.get_ident() in seen


def test_a_given_pool_lends_its_threads_and_stays_open() -> None:
    barrier, names = threading.Barrier(3), set()

    def meet(i: int) -> None:
        names.add(threading.current_thread().name.partition("_")[0])
        barrier.wait(PATIENCE)

    with ThreadPoolExecutor(2, thread_name_prefix="lent") as pool:
        graph = each(meet, 3)
        dagad_scheduler.get(graph, list(graph), num_workers=3, pool=pool)
        assert pool.submit(increase, 1).result() == 2
    assert names == {"MainThread", "lent"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lent", [False, True])
def test_no_more_threads_take_part_than_asked_for(lent: bool) -> None:
    graph, interval = each(lambda _: threading.get_ident(), 64), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # the interpreter changes threads wherever it can
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(500):
                seen = dagad_scheduler.get(graph, list(graph), num_workers=3, pool=pool if lent else None)
                assert len(set(seen)) <= 3
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("get", [dagad_scheduler.get, Sync().get], ids=["threads", "sync"])
def test_a_key_that_is_not_there_is_named(get: Any) -> None:
    with pytest.raises(KeyError, match="no task for 'nowhere'"):
        get({"a": 1}, "nowhere")
    with pytest.raises(KeyError, match="no task for 'nowhere', which another task or the caller asks for"):
        get({"a": Task("a", increase, TaskRef("nowhere"))}, "a")


@pytest.mark.parametrize("get", [dagad_scheduler.get, Sync().get], ids=["threads", "sync"])
def test_a_graph_that_goes_in_circles_is_refused(get: Any) -> None:
    graph = {"a": Task("a", increase, TaskRef("b")), "b": Task("b", increase, TaskRef("a"))}
    with pytest.raises(Exception, match=r"(?i)cycle"):
        get(graph, "a")


def test_get_runs_only_what_its_keys_need() -> None:
    graph = {"a": (increase, 1), "b": (operator.truediv, 1, 0), "c": (increase, "a")}
    assert dagad_scheduler.get(graph, ["c"]) == (3,)
