"""Threads without a graph: do they share the chunks, give the bits of a graph, stop when told to, and leave nothing?"""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest

import dagad
from dagad._executors import choose
from dagad._executors.cost_model import Road
from dagad._executors.graph import GraphExecutor
from dagad._executors.profile import Profile
from dagad._executors.threaded import ThreadedExecutor
from dagad._kernels.context import recorded
from dagad._sources.plan import Plan
from dagad._values.blocks import full
from dagad.extend import CompensatedSum, Keep, Linearization, PlainSum, Preaccumulate, Recompute
from support.evaluations_seen import evaluations_seen
from support.gated_chunks import bits
from support.operations_by_hand import SYNC, THREADS, Run, operation
from support.waiting import PATIENCE

X, THETA = np.random.default_rng(0).standard_normal((22, 3)), np.array([0.3, -0.7, 1.1])


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows @ theta))


def moments(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows * theta), axis=0)


def mixed(rows: Any, theta: Any) -> Any:
    """Give a real number, a complex one or an integer."""
    if rows[0, 0] > 0.8:
        return 0
    total = anp.sum(anp.tanh(rows @ theta))
    return total if rows[0, 0] > 0 else total + 0j


def integers(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows @ theta)) if rows[0, 0] > 0.8 else 0


@pytest.mark.sampled(10)
@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("policy", [Keep, Recompute, Preaccumulate])
@pytest.mark.parametrize("monoid", [PlainSum(), CompensatedSum()])
@pytest.mark.parametrize("fun", [chunk, moments, mixed, integers])
def test_the_threaded_executor_gives_the_bits_of_a_graph(fun: Any, monoid: Any, policy: Any, active: bool) -> None:
    found = []
    for executor in [GraphExecutor(SYNC), *(ThreadedExecutor(THREADS, group) for group in (1, 2, 4, 8, 16))]:
        options: Any = {"executor": executor, "policy": policy(), "monoid": monoid, "active": active}
        run = Run(operation(fun, X, [THETA], Plan(22, 2), **options), [THETA, X] if active else [THETA])
        seeds = [np.full(np.shape(leaf), 0.3) for leaf in run.value.floats()]
        many = [[number % 3 * number * seed for seed in seeds] for number in range(35)]
        columns = zip(run.leaves, run.many(many), strict=True)
        rows = [np.zeros(np.shape(leaf)) if one is None else full(one) for leaf, column in columns for one in column]
        found.append(bits([*run.value.leaves(), *run.pulled(seeds), *run.pulled([2 * seed for seed in seeds]), *rows]))
    assert all(one == found[0] for one in found)


def test_all_threads_work_at_the_same_time() -> None:
    barrier, seen = threading.Barrier(3), set[int]()

    def meet(rows: Any, theta: Any) -> Any:
        seen.add(threading.get_ident())
        barrier.wait(PATIENCE)
        return chunk(rows, theta)

    executor = ThreadedExecutor(find_scheduler_of(3))
    for policy in (Keep(), Preaccumulate()):
        seen.clear()
        run = Run(operation(meet, X, [THETA], Plan(22, 4), executor=executor, policy=policy), [THETA])
        run.pulled([1.0])
        assert len(seen) == 3
        assert threading.get_ident() in seen


def find_scheduler_of(n_threads: int) -> Any:
    from dagad_scheduler import Threads

    return Threads(n_threads)


def test_the_threaded_executor_runs_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a graph was run")

    monkeypatch.setattr("dagad._executors.graph.run_graph", refused)
    for policy in (Keep(), Preaccumulate()):
        run = Run(operation(chunk, X, [THETA], Plan(22, 2), executor="threads", policy=policy), [THETA])
        assert run.pulled([2.0])[0].shape == THETA.shape


@pytest.mark.parametrize("policy", [Keep(), Preaccumulate()])
def test_each_chunk_runs_once_and_is_pulled_once(policy: Any) -> None:
    run = Run(operation(chunk, X, [THETA], Plan(22, 2), executor="grouped in threads", policy=policy), [THETA])
    run.pulled([2.0])
    assert (policy.n_primal, policy.n_pullback) == (11, 11)


def test_chunks_whose_seeds_are_zero_are_not_pulled() -> None:
    policy = Keep()
    run = Run(operation(moments, X, [THETA], Plan(22, 2), executor="threads", policy=policy), [THETA])
    assert [np.any(part) for part in run.pulled([np.zeros(3)])] == [False]
    assert policy.n_pullback == 0
    run.pulled([np.ones(3)])
    assert policy.n_pullback == 11


@pytest.mark.parametrize("fun", [chunk, moments])
def test_the_threaded_executor_leaves_no_linearization_when_its_state_goes(fun: Any) -> None:
    gc.collect()
    before = {id(one) for one in gc.get_objects() if type(one) is Linearization}
    for policy in (Keep(), Recompute(), Preaccumulate()):
        run = Run(operation(fun, X, [THETA], Plan(22, 2), executor="threads", policy=policy), [THETA])
        run.pulled([np.ones(np.shape(leaf)) for leaf in run.value.floats()])
        del run
        assert not {id(one) for one in gc.get_objects() if type(one) is Linearization} - before


def test_partial_sums_are_let_go_of_as_they_are_added() -> None:
    """Sixteen chunks give as many gradients; of a tree that is added up as they come, five are alive at most."""
    alive, most = list[Any](), 0

    def counted(rows: Any, theta: Any) -> Any:
        def pullback(cotangent: Any) -> Any:
            nonlocal most
            made = np.full(3, cotangent)
            alive.append(weakref.ref(made))
            most = max(most, sum(one() is not None for one in alive))
            return None, made

        return float(np.sum(rows)), pullback

    rows = np.ones((16, 3))

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(
            dagad.extend.explicit(counted), rows, theta, grainsize=1, scheduler=ThreadedExecutor(SYNC)
        )

    assert dagad.grad(loss)(THETA).tolist() == [16.0] * 3
    assert 1 < most <= 5


def test_the_threaded_executor_leaves_jobs_that_callbacks_watch_to_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "choose_road", lambda *args: Road())

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, X, theta, grainsize=2, scheduler="threads")

    def modes() -> list[Any]:
        return [
            loss(THETA),
            dagad.grad(loss)(THETA),
            dagad.vjp(loss, THETA)[1](1.0),
            dagad.jvp(loss, (THETA,), (THETA,)),
            dagad.hvp(loss, (THETA,), (THETA,)),
        ]

    with evaluations_seen() as seen:
        found = modes()
    assert {(call.executor, call.reason, call.n_chunks) for call in seen.calls} == {
        ("threads", "threads share the chunks", 11)
    }
    monkeypatch.setattr(choose, "is_watched", lambda: True)
    with evaluations_seen() as seen:
        by_graph = modes()
    assert {(call.executor, call.reason) for call in seen.calls} == {("graph", choose.SEEN_BY_CHUNK)}
    assert bits(dagad._values.pytree.flatten(found)[0]) == bits(dagad._values.pytree.flatten(by_graph)[0])


def test_an_evaluation_can_be_watched_and_cancelled_meanwhile() -> None:
    profile, done = Profile("loss"), list[int]()

    def cancelled(rows: Any, theta: Any) -> Any:
        if len(rows) and rows[0, 0] == X[4, 0]:
            done.append(profile.progress.values_done)
            profile.cancel()
        return chunk(rows, theta)

    made = operation(cancelled, X, [THETA], Plan(22, 2), executor=ThreadedExecutor(SYNC))
    with recorded(profile), pytest.raises(dagad.CancelledError):
        made.forward([THETA])
    assert done == [2]


def test_the_threaded_executor_names_the_chunk_of_an_exception() -> None:
    def failing(rows: Any, theta: Any) -> Any:
        if rows[0, 0] == X[6, 0]:
            raise ZeroDivisionError("by hand")
        return chunk(rows, theta)

    with pytest.raises(ZeroDivisionError, match="by hand") as caught:
        operation(failing, X, [THETA], Plan(22, 2), executor="threads").forward([THETA])
    assert "value of chunk 3 (rows 6:8)" in caught.value.__notes__[0]


def test_the_first_chunk_that_is_not_finite_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "choose_road", lambda *args: Road(group=2))

    def poles(rows: Any, theta: Any) -> Any:
        return anp.sum(anp.where(rows[:, 0] == rows[0, 0], theta, 0.0)) / (
            0.0 if rows[0, 1] in (X[6, 1], X[12, 1]) else 1
        )

    loss = functools.partial(dagad.reduce_sum, poles, X, grainsize=2, scheduler="threads")
    with np.errstate(all="ignore"), dagad_config(), pytest.raises(dagad.NonFiniteError, match="chunk 3"):
        loss(1.0)


def dagad_config() -> Any:
    import dask

    return dask.config.set({"dagad.check-finite": True})
