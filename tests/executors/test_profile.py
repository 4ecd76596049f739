"""The record of an evaluation: does it say what ran, who ran it, how far it is and what it took, on every executor?"""

from __future__ import annotations

import re
import threading
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dagad
from dagad._executors.profile import Profile
from dagad_scheduler import Progress
from support.evaluations_seen import evaluations_seen

X, THETA = np.random.default_rng(0).standard_normal((40, 3)), np.array([0.3, -0.7, 1.1])
WAIT = 60


def chunk(rows: Any, theta: Any) -> Any:
    return np.sum(np.tanh(rows @ theta))


@pytest.mark.sampled(2)
def test_an_evaluation_says_what_ran_and_what_it_gave(scheduler: Any) -> None:
    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, X, theta, grainsize=5, scheduler=scheduler)

    evaluation = dagad.evaluate(loss, THETA)
    gradient, profile = evaluation.gradient(WAIT), evaluation.profile()
    assert (profile.name, profile.value) == ("loss", evaluation.value())
    assert profile.gradient_norm == pytest.approx(float(np.linalg.norm(gradient)))
    assert profile.progress == Progress(8, 8, 8, 8)
    assert [(call.function, call.gives, call.n_rows, call.n_chunks, call.grainsize) for call in profile.calls] == [
        ("chunk", "value", 40, 8, 5),
        ("chunk", "gradient", 40, 8, 5),
    ]
    assert {call.executor for call in profile.calls} == {"graph"}
    assert profile.seconds is not None
    assert 0 < sum(call.seconds or 0.0 for call in profile.calls) <= profile.seconds


def test_a_profile_separates_seconds_of_values_from_those_of_pullbacks() -> None:
    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, X, theta, grainsize=5, scheduler="threads")

    evaluation = dagad.evaluate(loss, THETA)
    evaluation.gradient(WAIT)
    value, gradient = evaluation.profile().calls
    assert value.account.seconds["value"] > 0
    assert gradient.account.seconds["pullback"] > 0
    assert "pullback" not in value.account.seconds


def test_a_cluster_says_what_its_tasks_took_and_what_went_to_and_fro(cluster: Client) -> None:
    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, X, theta, grainsize=5, scheduler=cluster)

    evaluation = dagad.evaluate(loss, THETA)
    evaluation.gradient(WAIT)
    value, gradient = evaluation.profile().calls
    assert value.account.seconds["value"] > 0
    assert gradient.account.seconds["pullback"] > 0
    assert value.account.sent > X.nbytes
    assert gradient.account.received >= THETA.nbytes


def test_a_hot_loop_says_who_answers_and_how_much_it_was_sent(cluster: Client) -> None:
    shards = dagad.shard(X, grainsize=5, scheduler=cluster)

    def fresh(rows: Any, theta: Any) -> Any:
        return np.sum(np.tanh(rows @ theta)) + 1.0

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(fresh, shards, theta)

    with evaluations_seen() as seen:
        for _ in range(4):
            value, gradient = dagad.value_and_grad(loss)(THETA)
    assert [profile.value for profile in seen.over] == [value] * 4
    assert seen.over[-1].gradient_norm == pytest.approx(float(np.linalg.norm(gradient)))
    first, last = seen.calls[0], seen.calls[-1]
    assert (first.executor, first.reason) == ("graph", "it is the first of its kind")
    assert (last.executor, last.reason) == ("resident", "rows live on workers, chunks are short")
    assert THETA.nbytes < last.account.sent < 10_000
    assert THETA.nbytes < last.account.received < 10_000
    assert seen.over[-1].progress == Progress(8, 8, 8, 8)


def test_progress_counts_the_chunks_of_tasks_that_have_several(monkeypatch: pytest.MonkeyPatch) -> None:
    from dagad._executors import choose
    from dagad._executors.planning import Strategy

    monkeypatch.setattr(choose, "choose_strategy", lambda *args, **kwargs: Strategy(group=4))
    half, go, n_runs = threading.Event(), threading.Event(), 0

    def slow(rows: Any, theta: Any) -> Any:
        nonlocal n_runs
        n_runs += 1
        if n_runs > 6:
            half.set()
            assert go.wait(WAIT)
        return np.sum(rows) * theta

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(slow, np.arange(8.0), theta, grainsize=1, scheduler="sync")

    done: list[Progress] = []
    with evaluations_seen() as seen:

        def look() -> None:
            assert half.wait(WAIT)
            done.append(seen.begun[0].progress)
            go.set()

        looks = threading.Thread(target=look)
        looks.start()
        dagad.value_and_grad(loss)(2.0)
        looks.join()
    assert done == [Progress(4, 8, 4, 8)]
    assert seen.begun[0].progress == Progress(8, 8, 8, 8)


def test_a_profile_leaves_out_reductions_that_chunks_call() -> None:
    def outer(rows: Any, theta: Any) -> Any:
        return dagad.reduce_sum(chunk, rows, theta, grainsize=2, scheduler="sync")

    with evaluations_seen() as seen:
        dagad.grad(lambda theta: dagad.reduce_sum(outer, X, theta, grainsize=10, scheduler="sync"))(THETA)
    assert [call.function for call in seen.calls] == ["outer"]
    assert len(seen.over) == 1


def test_only_the_outermost_call_is_an_evaluation() -> None:
    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, X, theta, grainsize=10, scheduler="sync")

    with evaluations_seen() as seen:
        loss(THETA)
        dagad.hvp(loss, THETA, THETA)
        dagad.hessian(loss)(THETA)
        pullback = dagad.vjp(loss, THETA)[1]
        pullback(1.0)
    assert [profile.name for profile in seen.over] == ["chunk", "loss", "loss", "loss", "loss"]


def test_an_error_ends_an_evaluation() -> None:
    def fails(rows: Any, theta: Any) -> Any:
        raise ZeroDivisionError("on purpose")

    with evaluations_seen() as seen, pytest.raises(ZeroDivisionError):
        dagad.grad(lambda theta: dagad.reduce_sum(fails, X, theta, grainsize=10, scheduler="sync"))(THETA)
    (profile,) = seen.over
    assert profile.error == "ZeroDivisionError: on purpose"


@pytest.mark.parametrize("at_once", [True, False])
def test_a_profile_of_an_evaluation_that_fails_keeps_its_progress(scheduler: Any, at_once: bool) -> None:
    def fails(rows: Any, theta: Any) -> Any:
        if rows[0] == 25.0:
            raise ArithmeticError("the sixth chunk")
        return np.sum(rows) * theta

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(fails, np.arange(40.0), theta, grainsize=5, scheduler=scheduler)

    with evaluations_seen() as seen, pytest.raises(ArithmeticError, match="the sixth"):
        dagad.value_and_grad(loss)(1.0) if at_once else dagad.evaluate(loss, 1.0).gradient(WAIT)
    (profile,) = seen.over
    (call,), progress = profile.calls, profile.progress
    assert (call.n_chunks, progress.values_total) == (8, 8)
    assert call.reached == progress.values_done == call.progress().values_done < 8
    assert scheduler != "sync" or call.reached == 5  # elsewhere chunks don't come in their order


def test_a_profile_counts_chunks_that_were_recomputed() -> None:
    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, X, theta, grainsize=5, scheduler="threads", policy=dagad.extend.Recompute())

    evaluation = dagad.evaluate(loss, THETA)
    evaluation.gradient(WAIT)
    assert [call.recomputed for call in evaluation.profile().calls] == [0, 8]


def test_an_evaluation_that_nobody_watches_writes_no_profile() -> None:
    with evaluations_seen() as seen:
        pass
    dagad.grad(lambda theta: dagad.reduce_sum(chunk, X, theta, scheduler="sync"))(THETA)
    assert seen.begun == []
    assert isinstance(Profile("f").progress, Progress)


def test_a_profile_says_what_was_reckoned_with() -> None:
    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(
            lambda rows, t: np.sum(rows * t), np.arange(8.0), theta, grainsize=2, scheduler="threads"
        )

    with evaluations_seen() as seen:
        for _ in range(3):
            dagad.value_and_grad(loss)(2.0)
    assert seen.calls[0].reckoned == ""
    assert re.fullmatch(r"[\d.e+-]+ m?s on \d+ threads(, [\d.e+-]+ m?s alone)?", seen.calls[-1].reckoned)
    assert f"({seen.calls[-1].reckoned})" in seen.over[-1]._repr_html_()
