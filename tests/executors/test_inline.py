"""The calling thread: does it run all chunks of a job, in their order, with nobody else's help, and leave nothing?"""

from __future__ import annotations

import gc
import threading
from typing import Any

import autograd.numpy as np
import numpy as onp
import pytest

import dagad
from dagad._kernels.operation import Recorded, WithGrad
from dagad._sources.plan import Plan
from dagad.extend import Keep, Linearization, Preaccumulate, Recompute
from support.evaluations_seen import evaluations_seen
from support.gated_chunks import bits
from support.operations_by_hand import EXECUTORS, Run, operation
from support.waiting import until

X, THETA = onp.random.default_rng(0).standard_normal((10, 3)), onp.array([0.3, -0.7, 1.1])


def chunk(rows: Any, theta: Any) -> Any:
    return np.sum(np.tanh(rows @ theta))


def moments(rows: Any, theta: Any) -> Any:
    return np.sum(np.tanh(rows * theta), axis=0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fun", [chunk, moments])
def test_the_inline_executor_runs_chunks_in_this_thread_one_after_the_other(fun: Any) -> None:
    seen: list[tuple[int, float]] = []

    def watched(rows: Any, theta: Any) -> Any:
        seen.append((threading.get_ident(), float(rows[0, 0])))
        return fun(rows, theta)

    here = threading.get_ident()
    for policy in (Keep(), Recompute(), Preaccumulate()):
        seen.clear()
        run = Run(operation(watched, X, [THETA], Plan(10, 3), executor="inline", policy=policy), [THETA])
        assert seen == [(here, row) for row in X[::3, 0]]
        run.pulled([onp.ones(onp.shape(leaf)) for leaf in run.value.floats()])
        assert {thread for thread, _ in seen} == {here}


def test_the_inline_executor_runs_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a graph was run")

    monkeypatch.setattr("dagad._executors.graph.run_graph", refused)
    made = operation(chunk, X, [THETA], Plan(10, 3), executor="inline", policy=Keep())
    run = Run(made, [THETA])
    assert run.pulled([2.0])[0].shape == THETA.shape
    assert made.pushforward(1).call([THETA, THETA]).reduced is not None


def test_the_inline_executor_notes_what_a_job_took() -> None:
    made = operation(chunk, X, [THETA], Plan(10, 3), executor="inline")
    results = EXECUTORS["inline"].call(made.job([THETA]))
    assert results.spent.workers == 1
    assert 0.0 <= results.spent.cpu
    assert 0.0 < results.spent.wall


def test_the_inline_executor_gives_the_bits_of_every_other_executor() -> None:
    for fun in (chunk, moments):
        found = []
        for place in EXECUTORS:
            run = Run(operation(fun, X, [THETA], Plan(10, 1), executor=place), [THETA])
            seeds = [onp.full(onp.shape(leaf), 0.3) for leaf in run.value.floats()]
            found.append(bits([*run.value.leaves(), *run.pulled(seeds)]))
        assert found == [found[0]] * len(found)


@pytest.mark.parametrize("fun", [chunk, moments])
def test_the_inline_executor_leaves_no_linearization_when_its_state_goes(fun: Any) -> None:
    gc.collect()
    before = {id(one) for one in gc.get_objects() if type(one) is Linearization}
    for policy in (Keep(), Recompute(), Preaccumulate()):
        run = Run(operation(fun, X, [THETA], Plan(10, 3), executor="inline", policy=policy), [THETA])
        assert isinstance(run.state, Recorded | WithGrad)
        del run
        assert not {id(one) for one in gc.get_objects() if type(one) is Linearization} - before


def test_a_cheap_reduction_is_soon_run_inline() -> None:
    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, X, theta, grainsize=1, scheduler="threads")

    def is_run_so() -> bool:
        dagad.value_and_grad(loss)(THETA)
        dagad.hvp(loss, THETA, THETA)
        return seen.calls[-1].executor == "inline"

    with evaluations_seen() as seen:
        until(is_run_so)  # on a machine that does other work, too, it may take some more
    assert seen.calls[0].executor == "threads"
