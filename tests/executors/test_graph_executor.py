"""Jobs as graphs: which tasks are there, what stays on a scheduler between value and gradient, and does it go?"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import autograd.numpy as np
import numpy as onp
import pytest
from dask._task_spec import Task
from distributed import Client

import dagad
from dagad._executors import choose, graph
from dagad._executors.evaluation import find_scheduler, new_names
from dagad._executors.graph import GraphExecutor, lower
from dagad._executors.planning import Cost
from dagad._sources.plan import Plan
from dagad.extend import CompensatedSum, Keep, Preaccumulate, Recompute
from dagad_scheduler import Role, role_of
from support.evaluations_seen import evaluations_seen
from support.gated_chunks import bits
from support.matrix_cells import note_run, take_all_runs
from support.operations_by_hand import SYNC, Known, Run, operation
from support.waiting import until

X, THETA = onp.random.default_rng(0).standard_normal((10, 3)), onp.array([0.3, -0.7, 1.1])


def chunk(rows: Any, theta: Any) -> Any:
    return np.sum(np.tanh(rows @ theta))


def moments(rows: Any, theta: Any) -> Any:
    return np.sum(np.tanh(rows * theta), axis=0)


@pytest.mark.parametrize("group", [1, 2, 4, 16])
@pytest.mark.parametrize("active", [False, True])
def test_a_job_is_a_task_for_each_group_of_chunks(group: int, active: bool) -> None:
    made = operation(chunk, X, [THETA], Plan(10, 1), active=active)
    lowered = lower(made.job([THETA, X] if active else [THETA]), new_names(), group)
    tasks = [key for key, node in lowered.graph.items() if isinstance(node, Task)]
    assert [len(some) for some in lowered.batches.values()] == [min(group, 10 - start) for start in range(0, 10, group)]
    assert tasks == list(lowered.batches)
    assert {role_of(key) for key in tasks} == {Role.VALUE}
    assert [one.number for some in lowered.batches.values() for one in some] == list(range(10))
    inputs = [target for targets in lowered.inputs.values() for target in targets]
    assert inputs == [(0, None), *([(1, slice(n, n + 1)) for n in range(10)] if active else [])]


@pytest.mark.parametrize("fun", [chunk, moments])
@pytest.mark.parametrize("monoid", [None, CompensatedSum()])
def test_the_bits_of_a_graph_do_not_depend_on_the_chunks_per_task(fun: Any, monoid: Any) -> None:
    options = {} if monoid is None else {"monoid": monoid}
    for policy in (Keep(), Recompute(), Preaccumulate()):
        found = []
        for group in (1, 2, 8, 16):
            executor = GraphExecutor(SYNC, group)
            made = operation(fun, X, [THETA], Plan(10, 1), executor=executor, policy=policy, active=True, **options)
            run = Run(made, [THETA, X])
            seeds = [onp.full(onp.shape(leaf), 0.3) for leaf in run.value.floats()]
            found.append(bits([*run.value.leaves(), *run.pulled(seeds), *run.pulled([2 * seed for seed in seeds])]))
        assert found == [found[0]] * len(found)


def test_chunks_whose_seeds_are_zero_are_no_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    inner: Any = vars(graph)["run_graph"]

    def watched(scheduler: Any, tasks: Any, *args: Any, **kwargs: Any) -> Any:
        sizes.append(sum(role_of(key) == Role.PULLBACK for key in tasks))
        return inner(scheduler, tasks, *args, **kwargs)

    run = Run(operation(moments, X, [THETA], Plan(10, 1), policy=Keep()), [THETA])
    monkeypatch.setattr(graph, "run_graph", watched)
    assert run.many([[None]])[0] == [None]
    assert sizes == []
    run.pulled([onp.ones(3)])
    assert sizes == [10]


def results(client: Client) -> set[str]:
    """Return the keys of the results that stay on a scheduler."""
    found: set[str] = client.run_on_scheduler(
        lambda dask_scheduler: {str(key) for key, task in dask_scheduler.tasks.items() if task.who_has}
    )
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fun", [chunk, moments])
@pytest.mark.parametrize("policy", [Keep, Recompute, Preaccumulate])
def test_linearizations_on_a_cluster_go_when_they_were_pulled_or_nobody_can_pull_them(
    fun: Any, policy: Any, cluster: Client
) -> None:
    of_others = results(cluster)  # that the cluster of all tests still has, of those before

    def held() -> int:
        return len(results(cluster) - of_others)

    executor = GraphExecutor(find_scheduler(cluster))
    run = Run(operation(fun, X, [THETA], Plan(10, 1), executor=executor, policy=policy()), [THETA])
    kept = 0 if fun is chunk and policy is Preaccumulate else 10
    until(lambda: held() == kept)
    seeds = [onp.ones(onp.shape(leaf)) for leaf in run.value.floats()]
    once = bits(run.pulled(seeds))
    assert bits(run.pulled(seeds)) == once
    if fun is chunk:  # scaled from now on: released at once
        until(lambda: held() == 0)
    del run
    until(lambda: held() == 0)


def one_number(rows: Any, theta: Any) -> Any:
    note_run()
    return np.sum(np.tanh(rows @ theta))


def two_numbers(rows: Any, theta: Any) -> Any:
    note_run()
    return {"one": np.sum(np.tanh(rows @ theta)), "two": np.sum(np.tanh(rows * theta), axis=0)}


def received(dask_worker: Any) -> int:
    """Return how many bytes a worker has got from others since this was asked."""
    n_bytes = sum(int(transfer["total"]) for transfer in dask_worker.transfer_incoming_log)
    dask_worker.transfer_incoming_log.clear()
    return n_bytes


async def stop_stealing(dask_scheduler: Any) -> None:
    await dask_scheduler.extensions["stealing"].stop()


async def start_stealing(dask_scheduler: Any) -> None:
    await dask_scheduler.extensions["stealing"].start()


@pytest.fixture
def _chunks_stay_where_their_rows_are(cluster: Client) -> Iterator[None]:
    """Have no worker steal chunks, and their rows with them, where the other one is slow."""
    cluster.run_on_scheduler(stop_stealing)
    yield
    cluster.run_on_scheduler(start_stealing)


@pytest.mark.sampled(12)
@pytest.mark.usefixtures("_chunks_stay_where_their_rows_are")
@pytest.mark.parametrize("known", [None, False, True])
@pytest.mark.parametrize("fun", [one_number, two_numbers])
@pytest.mark.parametrize("sharded", [False, True])
def test_no_rows_go_to_the_workers_that_add_up(
    known: bool | None, fun: Any, sharded: bool, cluster: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither as the recipe of a linearization nor as cotangents; and so each chunk runs once."""
    monkeypatch.setattr("dagad._kernels.operation._GIVES_NUMBERS", Known(numbers=known))
    monkeypatch.setattr(choose, "cost_of", lambda signature: Cost(seconds=100.0))
    rows = onp.random.default_rng(0).standard_normal((12, 2000, 3)).reshape(-1, 3)  # 12 chunks of 48 kB

    def program(theta: Any, data: Any, **options: Any) -> Any:
        found = dagad.reduce_sum(fun, data, theta, **options)
        return sum(np.sum(np.sin(leaf)) for leaf in (found.values() if fun is two_numbers else [found]))

    data = dagad.shard(rows, grainsize=2000, scheduler=cluster) if sharded else rows
    options = {} if sharded else {"grainsize": 2000, "scheduler": cluster}
    wrt = (0, 1) if sharded else 0
    take_all_runs(cluster)
    cluster.run(received)
    value, gradient = dagad.value_and_grad(functools.partial(program, **options), wrt)(THETA, data)
    n_runs, n_bytes = take_all_runs(cluster), sum(cluster.run(received).values())
    if not (known and fun is two_numbers):  # numbers were expected: it runs again, by a job of its own
        assert n_runs == 12
        assert n_bytes < 48_000
    sync = functools.partial(program, grainsize=2000, scheduler="sync")
    expected = dagad.value_and_grad(sync, wrt)(THETA, rows)
    found = [gradient[0], gradient[1].gather()] if sharded else [gradient]
    assert bits([value, *found]) == bits([expected[0], *(expected[1] if sharded else [expected[1]])])


def test_a_mode_of_any_kind_is_a_graph_on_a_cluster(cluster: Client) -> None:
    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, X, theta, grainsize=2, scheduler=cluster)

    with evaluations_seen() as seen:
        loss(THETA)
        dagad.grad(loss)(THETA)
        dagad.vjp(loss, THETA)[1](1.0)
        dagad.jvp(loss, THETA, THETA)
        dagad.hvp(loss, THETA, THETA)
    assert {(job.executor, job.n_chunks) for job in seen.calls} == {("graph", 5)}
    methods = [job.method for job in seen.calls]
    assert methods[:4] == ["call", "linearize", "linearize", "call"]  # a number is called for once it is known as one
