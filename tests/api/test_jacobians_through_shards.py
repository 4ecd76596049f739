"""Jacobians whose way leads through Shards that move: has each row its own cotangent in Shards, wherever these lie?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest

import dagad
from dagad._executors import graph, resident
from dagad._executors.inline import Inline
from dagad._kernels.job import Job, Results
from dagad._kernels.members import Together
from dagad._kernels.operation import Operation, Recorded
from dagad._kernels.pullbacks import Pullbacks
from support.gated_chunks import bits

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((22, 3)), RNG.standard_normal((22, 3))
THETA = np.array([0.3, -0.7, 1.1])


def numbers(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.sin(rows * theta) ** 2)


def vectors(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows * theta), axis=0)


def pairs(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows[0] * theta) * rows[1], axis=0)


def item(row: Any, theta: Any) -> Any:
    return anp.sin(row * theta)


def slope(shards: Any, theta: Any) -> Any:
    """Return Shards that move with the parameters."""
    return dagad.grad(lambda rows: dagad.reduce_sum(numbers, rows, theta))(shards)


def plain_slope(theta: Any) -> Any:
    return autograd.elementwise_grad(lambda rows: anp.sin(rows * theta) ** 2)(X)


Through = Callable[[Any, Any], Any]
THROUGH: dict[str, tuple[Through, Callable[[Any], Any]]] = {
    "vectors": (
        lambda shards, theta: dagad.reduce_sum(vectors, slope(shards, theta), theta),
        lambda theta: vectors(plain_slope(theta), theta),
    ),
    "beside other Shards": (
        lambda shards, theta: dagad.reduce_sum(pairs, (slope(shards, theta), shards), theta),
        lambda theta: pairs((plain_slope(theta), X), theta),
    ),
    "beside an array that moves": (
        lambda shards, theta: dagad.reduce_sum(pairs, (slope(shards, theta), Y * anp.sin(theta)), theta),
        lambda theta: pairs((plain_slope(theta), Y * anp.sin(theta)), theta),
    ),
    "two Shards that move": (
        lambda shards, theta: dagad.reduce_sum(pairs, (slope(shards, theta), slope(shards, 2.0 * theta)), theta),
        lambda theta: pairs((plain_slope(theta), plain_slope(2.0 * theta)), theta),
    ),
    "a map": (
        lambda shards, theta: dagad.map(item, slope(shards, theta), theta),
        lambda theta: item(plain_slope(theta), theta),
    ),
    "a map, most of it times zero": (
        lambda shards, theta: dagad.map(item, slope(shards, theta), theta) * np.eye(22, 3),
        lambda theta: item(plain_slope(theta), theta) * np.eye(22, 3),
    ),
}


@pytest.mark.parametrize("what", THROUGH)
def test_a_jacobian_through_shards_that_move_is_that_of_autograd(what: str, scheduler: Any) -> None:
    """Many seeds at once have their cotangents in Shards, beside others that come here."""
    through, plain = THROUGH[what]
    here, there = (dagad.shard(X, grainsize=4, scheduler=one) for one in ("sync", scheduler))
    expected = dagad.jacrev(lambda theta: through(here, theta))(THETA)
    np.testing.assert_allclose(expected, autograd.jacobian(plain)(THETA), rtol=1e-10)
    np.testing.assert_allclose(expected, dagad.jacfwd(lambda theta: through(there, theta))(THETA), rtol=1e-10)
    for _ in range(3):  # hot, on a cluster
        assert bits([dagad.jacrev(lambda theta: through(there, theta))(THETA)]) == bits([expected])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", THROUGH)
def test_seeds_through_shards_are_pulled_together_where_nothing_is_left_to_pull(
    what: str, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that move lie elsewhere than what was left: each chunk is run once more for all, not for each seed."""
    through, _ = THROUGH[what]
    here, there = (dagad.shard(X, grainsize=4, scheduler=one) for one in ("sync", scheduler))
    expected = dagad.jacrev(lambda theta: through(here, theta))(THETA)
    monkeypatch.setattr(Recorded, "pull", lambda *_: False)
    monkeypatch.delattr(Operation, "_pull_anew")  # which is for one seed
    for _ in range(3):  # hot, on a cluster
        assert bits([dagad.jacrev(lambda theta: through(there, theta))(THETA)]) == bits([expected])


@pytest.mark.parametrize("what", THROUGH)
def test_members_pull_seeds_through_shards_together(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    through, _ = THROUGH[what]
    here, call, n_jobs = dagad.shard(X, grainsize=4, scheduler="sync"), Inline.call, 0
    expected = dagad.jacrev(lambda theta: through(here, theta))(THETA)

    def by_two(executor: Inline, job: Job) -> Results:
        nonlocal n_jobs
        if type(job.kernel) is not Pullbacks:
            return call(executor, job)
        together, n_jobs = Together([job, job], [job.kernel]), n_jobs + 1
        return together.split(call(executor, together.job))[1]

    monkeypatch.setattr(Recorded, "pull", lambda *_: False)
    monkeypatch.setattr(Inline, "call", by_two)
    assert bits([dagad.jacrev(lambda theta: through(here, theta))(THETA)]) == bits([expected])
    assert n_jobs > 0


@pytest.mark.whole("many rounds, workers or bytes: the same is seen of few here")
def test_a_jacobian_of_many_rows_through_shards_has_each_with_its_own_bits(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a task takes at a time, and than a call of residents; at first what they had left is gone."""
    monkeypatch.setattr(graph, "SEEDS_A_TASK", 2)
    monkeypatch.setattr(resident, "SEEDS_A_CALL", 4)

    def wide(rows: Any, theta: Any) -> Any:
        return anp.reshape(anp.sum(anp.tanh(rows * theta), axis=0)[:, None] * anp.arange(1.0, 4.0), (-1,))

    here, there = (dagad.shard(X, grainsize=8, scheduler=one) for one in ("sync", cluster))
    jacobians = [
        lambda shards=shards: dagad.jacrev(lambda theta: dagad.reduce_sum(wide, slope(shards, theta), theta))(THETA)
        for shards in (here, there)
    ]
    expected = jacobians[0]()
    assert expected.shape == (9, 3)
    for _ in range(3):
        assert bits([jacobians[1]()]) == bits([expected])


def test_seeds_that_are_zero_leave_shards_of_zeros(scheduler: Any) -> None:
    shards = dagad.shard(X, grainsize=4, scheduler=scheduler)

    def some(rows: Any, theta: Any) -> Any:
        return anp.array([anp.sum(rows * theta), 0.0 * anp.sum(theta), anp.sum(rows)])

    def through(theta: Any) -> Any:
        return dagad.reduce_sum(some, slope(shards, theta), theta) * np.array([1.0, 0.0, 1.0])

    for _ in range(3):
        found = dagad.jacrev(through)(THETA)
        np.testing.assert_array_equal(found[1], np.zeros(3))
        np.testing.assert_allclose(found, dagad.jacfwd(through)(THETA), rtol=1e-10, atol=1e-12)
