"""Cotangents of Shards that residents leave on workers: is no task made for them, are they right when they are lost?"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client

import dagad
from dagad._kernels.operation import Operation
from dagad._sources.shards import MOST_PENDING
from dagad._values import pytree
from dagad_scheduler.residents import client as lines
from dagad_scheduler.residents.client import ResidentClient
from support.clusters import kill, pids_of
from support.gated_chunks import Watch, bits, chunk as watched_chunk
from support.hot_loops import a_watched_cluster, heat_up, is_hot, refusals, tasks_made, until_hung_up
from support.service_contents import n_rows, services_of
from support.waiting import PATIENCE, in_background, until

RNG = np.random.default_rng(0)
X, V, THETA = RNG.standard_normal((10, 3)), RNG.standard_normal((10, 3)), np.array([0.3, -0.7, 1.1])

Program = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    """A cluster that is to be empty in the end."""
    with a_watched_cluster() as client:
        yield client


@pytest.fixture(scope="module")
def _threaded() -> Iterator[Client]:
    with a_watched_cluster(threads_per_worker=2) as client:
        yield client


@pytest.fixture
def frail(_threaded: Client) -> Client:
    """A cluster whose workers will not live; each has two threads."""
    _threaded.wait_for_workers(2, PATIENCE)
    return _threaded


def number(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows * theta) ** 2)


def moments(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows * theta), axis=0)


def on(scheduler: Any, data: Any = X) -> Any:
    return dagad.shard(data, grainsize=4, scheduler=scheduler)


def sums(fun: Any = number, **options: Any) -> Program:
    return lambda x, theta: dagad.reduce_sum(fun, x, theta, **options)


def curved(x: Any, theta: Any) -> Any:
    return anp.exp(0.1 * sums()(x, theta))


def every_bit(tree: Any) -> list[bytes]:
    leaves = [leaf.gather() if isinstance(leaf, dagad.Shards) else leaf for leaf in pytree.flatten(tree)[0]]
    return bits(pytree.flatten(leaves)[0])


def by_vjp(fun: Program, x: Any, v: Any) -> Any:
    value, pullback = dagad.vjp(fun, x, THETA)
    return value, pullback(1.5)


def by_evaluation(fun: Program, x: Any, v: Any) -> Any:
    evaluation = dagad.evaluate(fun, x, THETA, argnums=(0, 1))
    return evaluation.value(PATIENCE), evaluation.gradient(PATIENCE)


WAYS: dict[str, Callable[[Program, Any, Any], Any]] = {
    "grad": lambda fun, x, v: dagad.value_and_grad(fun, argnums=(0, 1))(x, THETA),
    "vjp": by_vjp,
    "evaluate": by_evaluation,
    "jvp": lambda fun, x, v: dagad.jvp(fun, (x, THETA), (v, THETA)),
    "hvp": lambda fun, x, v: dagad.hvp(fun, (x, THETA), (v, THETA)),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("way", WAYS)
def test_gradients_in_shards_make_no_task_before_their_rows_are_asked_for(way: str, client: Client) -> None:
    x, v, expected = on(client), on(client, V), every_bit(WAYS[way](curved, on("sync"), on("sync", V)))
    found = without_tasks(client, lambda: [WAYS[way](curved, x, v) for _ in range(3)])
    before = tasks_made(client)
    assert every_bit(found[-1]) == expected
    n_shards = sum(isinstance(leaf, dagad.Shards) for leaf in pytree.flatten(found[-1])[0])
    assert tasks_made(client) <= before + n_shards * (
        2 * len(x.plan) + 1
    )  # to find them, to bring them home; a program
    assert every_bit(found[0]) == every_bit(found[0]) == expected


def without_tasks(client: Client, act: Callable[[], Any]) -> Any:
    """Do something until it goes without any task; return what it gave."""
    found: list[Any] = []

    def goes_without() -> bool:
        before = tasks_made(client)
        found[:] = [act()]
        return tasks_made(client) == before

    until(goes_without)
    return found[0]


def lose_left(dask_worker: Any) -> None:
    for service in services_of(dask_worker):
        service._rows.forget(list(service._rows._items))


def left(client: Client) -> set[int]:
    gc.collect()
    return set(client.run(n_rows).values())


def beside(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows["x"] * theta)) * anp.sum(rows["n"]) + sum(
        anp.sum(anp.sin(one)) for one in rows["more"]
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", ["forgotten", "deaths"])
def test_gradients_in_shards_that_are_lost_are_computed_again_from_the_sent_arguments(
    fault: str, client: Client, frail: Client
) -> None:
    """Also where the user has written into all that it was computed from."""
    client = client if fault == "forgotten" else frail
    n, more, theta = np.arange(10.0), [np.ones(1 + i % 3) * 0.1 * i for i in range(10)], THETA.copy()

    def gradients(x: Any, **options: Any) -> Any:
        fun = dagad.value_and_grad(
            lambda x, theta, more: dagad.reduce_sum(beside, {"x": x, "n": n, "more": more}, theta, **options), (0, 1, 2)
        )
        return fun(x, theta, more)

    expected, x = every_bit(gradients(X, grainsize=4, scheduler="sync")), on(client)
    heat_up(client, lambda: gradients(x))
    found = gradients(x)
    for array in (n, theta, *more):
        array += 1.0
    if fault == "forgotten":
        client.run(lose_left)
    for pid in pids_of(client).values() if fault == "deaths" else ():
        kill(pid)
    assert every_bit(found) == expected
    again = every_bit(gradients(x))
    assert again == every_bit(gradients(X, grainsize=4, scheduler="sync")) != expected


def test_a_worker_that_dies_in_a_call_costs_only_time(frail: Client, tmp_path: Any) -> None:
    rows = {"row": np.arange(10), "x": X}
    watch = Watch(tmp_path, "value", "pullback")

    def gradients(data: Any, folder: str, **options: Any) -> Any:
        fun = dagad.value_and_grad(
            lambda x, theta: dagad.reduce_sum(watched_chunk, x, theta, folder, **options), (0, 1)
        )
        return fun(data, THETA)

    x, expected = on(frail, rows), every_bit(gradients(on("sync", rows), ""))
    heat_up(frail, lambda: gradients(x, watch.folder))
    watch.close("pullback")
    with watch.waiting(gradients, x, watch.folder) as waiting:
        kill(watch.wait("pullback", waiting))
        watch.open("pullback")
        assert every_bit(waiting.result()) == expected
    heat_up(frail, lambda: gradients(x, watch.folder))


@pytest.mark.whole("one more death, between value and pullback: those in a call are seen here")
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_jacobian_whose_tapes_die_with_a_worker_is_pulled_in_one_job(
    is_checkpointed: bool, frail: Client, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, deaths = on(frail), list[int]()
    around: Any = dagad.checkpoint(tmp_path / "run") if is_checkpointed else contextlib.nullcontext()

    def dying(theta: Any) -> Any:
        value = dagad.reduce_sum(moments, x, theta)
        if deaths:
            kill(deaths.pop())
        return value

    expected = dagad.jacrev(lambda theta: dagad.reduce_sum(moments, X, theta, grainsize=4))(THETA)
    heat_up(frail, lambda: dagad.jacrev(dying)(THETA))
    monkeypatch.delattr(Operation, "_pull_anew")  # which is for one seed
    deaths.append(next(iter(pids_of(frail).values())))
    with around:
        assert bits([dagad.jacrev(dying)(THETA)]) == bits([expected])
    assert not deaths


def test_gradients_in_shards_are_said_to_be_gone_after_a_restart(frail: Client) -> None:
    x = on(frail)
    heat_up(frail, lambda: dagad.grad(sums())(x, THETA))
    found = dagad.grad(sums())(x, THETA)
    frail.restart()
    with pytest.raises(dagad.DataLostError, match=r"Shards are gone: .*again with `dagad\.shard"):
        found.gather()


def test_several_threads_may_ask_for_rows_of_a_gradient_in_shards_at_once(client: Client) -> None:
    x, local = on(client), on("sync")
    heat_up(client, lambda: dagad.grad(curved)(x, THETA))
    found, expected = dagad.grad(curved)(x, THETA), every_bit(dagad.grad(curved)(local, THETA))
    before = tasks_made(client)
    waiting = [in_background(every_bit, found) for _ in range(6)]
    assert [one.result(PATIENCE) for one in waiting] == 6 * [expected]
    assert tasks_made(client) - before == 1 + 3 + 6 * 3  # made once, and brought home by each


# They go when nobody holds them


async def out_of_reach(self: Any, address: str) -> Any:
    raise lines._OutOfReach(address)


@pytest.mark.whole("what stays in memory: pullbacks and evaluations are seen to go in this tier")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("road", ["direct", "relayed"])
def test_a_hot_loop_leaves_two_gradients_in_shards_on_workers_at_most(
    road: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    until_hung_up(client)
    if road == "relayed":
        monkeypatch.setattr(ResidentClient, "_open", out_of_reach)
    x = on(client)
    heat_up(client, lambda: dagad.grad(sums())(x, THETA))
    for _ in range(20):
        found = dagad.grad(sums())(x, THETA)
    assert max(left(client)) <= 2
    held = [dagad.grad(sums())(x, THETA) for _ in range(6)]
    assert min(left(client)) >= 7
    _ = held[0].kept  # now they are tasks' results
    del held[1:]
    until(lambda: left(client) == {1})
    assert every_bit([held[0], found]) == 2 * every_bit([dagad.grad(sums())(on("sync"), THETA)])
    until(lambda: left(client) == {0})


def test_gradients_in_shards_go_with_their_client(client: Client) -> None:
    with Client(client.scheduler_info()["address"], set_as_default=False) as other:
        x = on(other)
        heat_up(client, functools.partial(dagad.grad(sums()), x, THETA))
        found = dagad.grad(sums())(x, THETA)
        assert left(client) == {1}
    until(lambda: left(client) == {0})
    del found


@pytest.mark.whole("what stays in memory: pullbacks and evaluations are seen to go in this tier")
def test_gradients_in_shards_have_a_limited_share_of_a_workers_memory(client: Client) -> None:
    x = on(client)
    heat_up(client, lambda: dagad.grad(sums())(x, THETA))
    shares = client.run(has_share, share=0.0)
    try:
        found = dagad.grad(sums())(x, THETA)
        until(lambda: left(client) == {0})
        assert every_bit([found]) == every_bit([dagad.grad(sums())(on("sync"), THETA)])
    finally:
        client.run(has_share, share=next(iter(shares.values())))


def has_share(dask_worker: Any, share: float) -> float:
    (service,) = services_of(dask_worker)
    store = service._rows
    before, store._share = store._share, share
    return float(before)


# What they are used for


def test_gradients_in_shards_are_tangents_of_hot_hvps_without_tasks(client: Client) -> None:
    def powers(x: Any, count: int) -> Any:
        """Return a vector that the Hessian has been applied to again and again: each is made of the one before."""
        v = dagad.grad(curved)(x, THETA)
        for _ in range(count):
            v = dagad.hvp(lambda x: sums()(x, THETA), x, v)
        return v

    x, local = on(client), on("sync")
    some = without_tasks(client, lambda: powers(x, 3))
    assert every_bit([some]) == every_bit([powers(local, 3)])
    few = 4 * (2 * len(x.plan) + 1)  # now and then one for each chunk, and one that says that it is there
    many: list[Any] = []

    def takes_few_tasks() -> bool:
        before = tasks_made(client)
        with refusals() as reasons:
            many[:] = [powers(x, 3 * MOST_PENDING)]
        assert many[0].n_pending <= MOST_PENDING + 2
        are_few = tasks_made(client) - before <= few
        assert are_few or reasons, "tasks were made though no call was refused"
        return are_few

    until(takes_few_tasks)  # on a busy machine some calls are too late
    expected = every_bit([powers(local, 3 * MOST_PENDING)])
    client.run(lose_left)
    assert every_bit(many) == expected


def test_gradients_in_shards_are_rows_of_a_sum_that_is_an_array(client: Client) -> None:
    def slope(x: Any, theta: Any) -> Any:
        """A number made of a gradient in Shards, whose cotangents are Shards."""
        return sums(moments)(dagad.grad(curved)(x, theta), theta) @ THETA

    x, local = on(client), on("sync")
    for _ in range(3):
        assert every_bit([slope(x, THETA)]) == every_bit([slope(local, THETA)])


def test_gradients_in_shards_are_rows_of_another_hot_sum(client: Client) -> None:
    x, local = on(client), on("sync")
    heat_up(client, lambda: dagad.grad(sums())(x, THETA))
    rows, expected = dagad.grad(sums())(x, THETA), dagad.grad(sums())(local, THETA)
    act = dagad.value_and_grad(sums(), (0, 1))
    for _ in range(3):
        assert every_bit(act(rows, THETA)) == every_bit(act(expected, THETA))
    assert is_hot(client, lambda: act(rows, THETA))


def of_three(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows["x"] * theta) * rows["z"]) + sum(anp.sum(one**2) for one in rows["y"])


@pytest.mark.filterwarnings("ignore::dagad.DagadWarning")  # an integer on purpose
def test_gradients_in_several_shards_and_lists_at_once_have_the_bits_of_arrays(client: Client) -> None:
    y = [np.ones(1 + i % 3) * 0.1 * i if i != 9 else 2 for i in range(10)]  # nothing to differentiate in the last chunk

    def act(x: Any, z: Any, **options: Any) -> Any:
        def fun(x: Any, y: Any, z: Any, theta: Any) -> Any:
            return dagad.reduce_sum(of_three, {"x": x, "y": y, "z": z}, theta, **options)

        args = x, y, z, THETA
        moved = dagad.jvp(fun, args, (x, [*y[:9], None], z, THETA))
        return dagad.value_and_grad(fun, (0, 1, 2, 3))(*args), moved

    x, z, expected = on(client), on(client, V), every_bit(act(X, V, grainsize=4, scheduler="sync"))
    heat_up(client, lambda: act(x, z))
    assert every_bit(act(x, z)) == expected


def some_constant(rows: Any, theta: Any) -> Any:
    return anp.sum(theta) if rows[0, 0] > 0 else anp.sum(rows * theta)


def only_numbers(rows: Any, theta: Any) -> Any:
    return np.sum(theta)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fun", [some_constant, only_numbers])
def test_chunks_that_do_not_depend_on_their_rows_have_zeros(fun: Any, client: Client) -> None:
    x, expected = on(client), every_bit(dagad.value_and_grad(sums(fun), (0, 1))(on("sync"), THETA))
    heat_up(client, lambda: dagad.value_and_grad(sums(fun), (0, 1))(x, THETA))
    assert every_bit(dagad.value_and_grad(sums(fun), (0, 1))(x, THETA)) == expected


@pytest.mark.whole("many rounds, workers or bytes: the same is seen of few here")
def test_threads_of_a_worker_share_the_chunks_of_gradients_in_shards(frail: Client) -> None:
    for way in WAYS.values():
        there, here = ([dagad.shard(data, grainsize=1, scheduler=one) for data in (X, V)] for one in (frail, "sync"))
        heat_up(frail, functools.partial(way, curved, *there))
        assert every_bit(way(curved, *there)) == every_bit(way(curved, *here))


def test_a_gradient_of_a_gradient_in_shards_has_the_numbers_of_arrays(client: Client) -> None:
    """The cotangent of what scales them is a sum over their rows."""

    def slope(x: Any, theta: Any, **options: Any) -> Any:
        inner = dagad.grad(lambda x: anp.exp(0.1 * sums(**options)(x, theta)))(x)
        return sums(moments, **options)(inner, theta) @ THETA

    x, act = on(client), dagad.grad(slope, (0, 1))
    expected, (of_x, of_theta) = act(on("sync"), THETA), act(X, THETA, grainsize=4, scheduler="sync")
    for _ in range(2):
        found = act(x, THETA)
        assert every_bit(found) == every_bit(expected)
        np.testing.assert_allclose(found[0].gather(), of_x, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(found[1], of_theta, rtol=1e-12)


@pytest.mark.whole("many rounds, workers or bytes: the same is seen of few here")
def test_sums_of_many_gradients_in_shards_are_no_deep_chain(client: Client) -> None:
    def many(x: Any) -> Any:
        return sum((1.0 + k) * sums()(x, THETA) for k in range(150))  # one chain would take 5 frames of Python's a link

    found: Any = dagad.grad(many)(on(client))
    assert found.n_pending <= MOST_PENDING
    assert every_bit([found]) == every_bit([dagad.grad(many)(on("sync"))])
