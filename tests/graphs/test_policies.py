"""Policies: how often is a chunk run, pulled and kept, and are the bits the same whatever becomes of it?"""

from __future__ import annotations

import gc
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from autograd.core import VJPNode

import dagad
from dagad.extend import Keep, Linearization, Preaccumulate, Recompute

X = np.random.default_rng(0).standard_normal((24, 3))
THETA = np.array([0.3, -0.7, 1.1])
CHUNKS = 6
POLICIES: list[Any] = [Keep, Recompute, Preaccumulate]


def logistic(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.logaddexp(0.0, anp.dot(rows, theta)))


def moments(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows * theta), axis=0)


def gradient(policy: Any, scheduler: Any, fun: Any = logistic) -> Any:
    def loss(x: Any, theta: Any) -> Any:
        return anp.sum(dagad.reduce_sum(fun, x, theta, grainsize=4, policy=policy, scheduler=scheduler) ** 2)

    value, (x_part, theta_part) = dagad.value_and_grad(loss, (0, 1))(X, THETA)
    return float(value).hex(), x_part.tobytes(), theta_part.tobytes()


@pytest.mark.parametrize("local", ["sync", "threads"])
@pytest.mark.parametrize(("policy", "runs"), [(Keep(), 6), (Recompute(), 12), (Preaccumulate(), 6)])
def test_a_policy_counts_what_it_had_done(policy: Any, runs: int, local: str) -> None:
    before = policy.n_primal, policy.n_pullback
    gradient(policy, local)
    assert policy.n_primal - before[0] == runs
    assert policy.n_pullback - before[1] == CHUNKS


def test_the_policy_keep_has_all_tapes_alive_at_once_and_drops_them() -> None:
    policy = Keep()
    for _ in range(3):
        gradient(policy, "sync")
    assert policy.peak_linearizations == CHUNKS


@pytest.mark.parametrize("policy", [Recompute(), Preaccumulate()], ids=["recompute", "preaccumulate"])
def test_recompute_and_preaccumulate_have_one_tape_alive_per_thread(policy: Any) -> None:
    gradient(policy, "sync")
    assert policy.peak_linearizations == 1


def test_preaccumulate_keeps_the_tapes_of_chunks_that_are_no_numbers() -> None:
    policy = Preaccumulate()
    gradient(policy, "sync", moments)
    assert (policy.n_primal, policy.n_pullback, policy.peak_linearizations) == (CHUNKS, CHUNKS, CHUNKS)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("fun", [logistic, moments])
def test_the_bits_of_a_gradient_do_not_depend_on_the_policy(fun: Any, scheduler: Any) -> None:
    assert len({gradient(policy(), scheduler, fun) for policy in POLICIES} | {gradient(Keep(), "sync", fun)}) == 1


@pytest.mark.parametrize(
    "policy", [None, Keep(), Recompute(), Preaccumulate()], ids=["default", "keep", "recompute", "pre"]
)
def test_a_plain_value_runs_each_chunk_once_and_no_pullback(policy: Any) -> None:
    seen: list[float] = []

    def count(rows: Any, theta: Any) -> Any:
        seen.append(float(rows[0, 0]))
        return logistic(rows, theta)

    dagad.reduce_sum(count, X, THETA, grainsize=4, policy=policy, scheduler="threads")
    assert sorted(seen) == sorted(X[::4, 0])
    assert policy is None or policy.n_pullback == 0


@pytest.mark.parametrize("policy", [None, Keep(), Preaccumulate()], ids=["default", "keep", "preaccumulate"])
@pytest.mark.parametrize("fun", [logistic, moments])
def test_value_and_gradient_together_run_each_chunk_once(fun: Any, policy: Any) -> None:
    seen: list[float] = []

    def count(rows: Any, theta: Any) -> Any:
        seen.append(float(rows[0, 0]))
        return fun(rows, theta)

    def loss(theta: Any) -> Any:
        return anp.sum(dagad.reduce_sum(count, X, theta, grainsize=4, policy=policy, scheduler="threads"))

    for _ in range(3):  # how it went before must not change how often it runs
        seen.clear()
        dagad.value_and_grad(loss)(THETA)
        assert sorted(seen) == sorted(X[::4, 0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_pullback_can_be_called_again_under_every_policy(policy: Any, scheduler: Any) -> None:
    def total(theta: Any) -> Any:
        return dagad.reduce_sum(moments, X, theta, grainsize=4, policy=policy(), scheduler=scheduler)

    _, pullback = dagad.vjp(total, THETA)
    first, other, again = (pullback(np.array(seed))[0] for seed in ([1.0, 0, 0], [0, 2.0, 0], [1.0, 0, 0]))
    np.testing.assert_array_equal(first, again)
    assert first[1:].tolist() == [0, 0]
    assert other[[0, 2]].tolist() == [0, 0]


def test_a_pullback_that_nobody_calls_is_not_run() -> None:
    policy = Keep()
    dagad.vjp(lambda theta: dagad.reduce_sum(logistic, X, theta, grainsize=4, policy=policy, scheduler="sync"), THETA)
    assert (policy.n_primal, policy.n_pullback) == (CHUNKS, 0)


def leftovers() -> list[Any]:
    kept = (Linearization, VJPNode)
    return [found for found in gc.get_objects() if issubclass(type(found), kept)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("local", ["sync", "threads"])
@pytest.mark.parametrize("policy", [None, *POLICIES])
@pytest.mark.parametrize("fun", [logistic, moments])
def test_no_tape_has_to_wait_for_the_collector(fun: Any, policy: Any, local: str) -> None:
    def loss(theta: Any) -> Any:
        made = None if policy is None else policy()
        return anp.sum(dagad.reduce_sum(fun, X, theta, grainsize=4, policy=made, scheduler=local))

    gc.collect()
    gc.disable()
    try:
        before = {id(found) for found in leftovers()}
        dagad.value_and_grad(loss)(THETA)
        _, pullback = dagad.vjp(loss, THETA)
        pullback(1.0)
        del pullback, _
        assert not {id(found) for found in leftovers()} - before
    finally:
        gc.enable()


def test_a_policy_of_ones_own_is_an_object_that_linearizes() -> None:
    class Alternating:
        """Keeps every other tape."""

        turn = 0

        def linearize(self, task: Any, args: tuple[Any, ...]) -> Linearization:
            self.turn += 1
            return (Linearization.recorded if self.turn % 2 else Linearization.unrecorded)(task, args)

    assert gradient(Alternating(), "sync") == gradient(Keep(), "sync")


def test_policies_without_a_history_are_equal() -> None:
    keep, other, recompute = POLICIES[0](), POLICIES[0](), POLICIES[1]()
    assert keep == other
    assert keep != recompute
    assert repr(Recompute()) == "Recompute()"


def counted(calls: list[int], factor: Any) -> Any:
    def chunk(rows: Any, theta: Any) -> Any:
        calls.append(1)  # of its own: that it changes is no reason to refuse
        return anp.sum(rows * factor[0]) * theta**2

    return chunk


@pytest.mark.parametrize("times", [1, 2])
def test_a_change_since_the_value_is_named_when_a_gradient_runs_the_function_again(scheduler: Any, times: int) -> None:
    factor, calls = [1.0], list[int]()
    chunk = counted(calls, factor)

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, X, theta, grainsize=4, policy=Recompute(), scheduler=scheduler)

    expected = 2.0 * X.sum() * 1.5
    _, pull = dagad.vjp(loss, 1.5)
    for _ in range(times):
        assert pull(1.0)[0] == pytest.approx(expected)
    _, pull = dagad.vjp(loss, 1.5)
    factor[0] = 2.0
    with pytest.raises(dagad.ClosureError, match=r"`chunk` uses is not what it was at the value: `factor` in its"):
        pull(1.0)
    factor[0] = 1.0
    assert pull(1.0)[0] == pytest.approx(expected)


def test_a_chunk_that_draws_random_numbers_is_refused_where_it_has_to_run_again() -> None:
    rng = np.random.default_rng(0)

    def noisy(rows: Any, theta: Any) -> Any:
        return anp.sum(rows + rng.normal(size=rows.shape)) * theta

    _, pull = dagad.vjp(lambda t: dagad.reduce_sum(noisy, X, t, policy=Recompute(), scheduler="sync"), 1.5)
    with pytest.raises(dagad.ClosureError, match=r"another value when it runs again.*random numbers outside"):
        pull(1.0)


@pytest.mark.filterwarnings("ignore:`moments` gave nan:dagad.DagadWarning")  # as it is to
def test_a_chunk_that_gives_nan_has_given_the_same_when_it_runs_again(scheduler: Any) -> None:
    holed = X.copy()
    holed[5, 0] = np.nan  # one chunk has no number in one of its columns

    def slopes(policy: Any) -> Any:
        value, pull = dagad.vjp(
            lambda t: dagad.reduce_sum(moments, holed, t, grainsize=4, policy=policy, scheduler=scheduler), THETA
        )
        assert np.isnan(value).tolist() == [True, False, False]
        return pull(np.ones(3))[0]

    np.testing.assert_array_equal(slopes(Recompute()), slopes(Keep()))
    assert np.isnan(slopes(Recompute())).tolist() == [True, False, False]
