"""Evaluation: is the value there first, and does one that is watched, awaited or broken behave?"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest

import dagad
from dagad.extend import Keep, explicit
from dagad_scheduler import Progress
from support.gated_evaluations import LOCAL, PATIENCE, Refusal, Steps, X, evaluation_threads, loss_on, until

# Values first


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("kind", ["explicit", "primitive"])
@pytest.mark.parametrize("local", LOCAL)
def test_the_value_is_there_before_any_pullback_has_ended(kind: str, local: str) -> None:
    steps = Steps()
    fun = steps.fun() if kind == "explicit" else steps.primitive()
    evaluation = dagad.evaluate(loss_on(local, fun), 2.0)
    steps.values.set()
    assert evaluation.value(PATIENCE) == 2.0 * X.sum()
    assert steps.events == ["value"] * 8
    progress = evaluation.progress
    assert progress == Progress(8, 8, 0, progress.gradients_total)
    steps.pullbacks.set()
    assert evaluation.gradient(PATIENCE) == X.sum()
    assert steps.events == ["value"] * 8 + ["pullback"] * 8


def test_the_value_of_several_reductions_is_there_before_any_pullback() -> None:
    steps = Steps()
    loss = loss_on("threads", steps.fun())
    evaluation = dagad.evaluate(lambda theta: loss(theta) ** 2 + loss(3 * theta), 2.0)
    steps.values.set()
    steps.pullbacks.set()
    total = X.sum()
    assert evaluation.value(PATIENCE) == (2 * total) ** 2 + 6 * total
    assert evaluation.gradient(PATIENCE) == 2 * (2 * total) * total + 3 * total
    assert steps.events == ["value"] * 16 + ["pullback"] * 16


def logged(path: str) -> Any:
    """Return a chunk function that writes down what it does, in whatever process it runs."""

    def note(word: str) -> None:
        with open(path, "a") as file:
            file.write(word + "\n")

    @explicit
    def fun(rows: Any, theta: Any) -> Any:
        note("value")

        def pullback(seed: Any) -> Any:
            note("pullback")
            return None, seed * np.sum(rows)

        return theta * np.sum(rows), pullback

    return fun


def test_without_a_request_a_lazy_evaluation_runs_no_pullback(scheduler: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    evaluation = dagad.evaluate(loss_on(scheduler, logged(str(log))), 2.0, lazy=True)
    assert evaluation.value(PATIENCE) == 2.0 * X.sum()
    until(lambda: not evaluation_threads())
    assert log.read_text().split() == ["value"] * 8
    assert evaluation.gradient(PATIENCE) == X.sum()
    assert log.read_text().split() == ["value"] * 8 + ["pullback"] * 8


def test_a_lazy_evaluation_of_nested_reductions_runs_no_pullback(scheduler: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    inner = logged(str(log))

    def chunk(rows: Any, theta: Any) -> Any:
        return dagad.reduce_sum(inner, rows, theta, grainsize=1)

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, X, theta, grainsize=4, scheduler=scheduler)

    evaluation = dagad.evaluate(loss, 2.0, lazy=True)
    assert evaluation.value(PATIENCE) == 2.0 * X.sum()
    assert log.read_text().split() == ["value"] * 8
    assert evaluation.gradient(PATIENCE) == X.sum()
    assert log.read_text().split().count("pullback") == 8


def test_a_policy_counts_no_pullback_before_the_request() -> None:
    policy = Keep()
    evaluation = dagad.evaluate(loss_on("threads", policy=policy), 1.0, lazy=True)
    evaluation.value(PATIENCE)
    assert (policy.n_primal, policy.n_pullback) == (8, 0)
    evaluation.gradient(PATIENCE)
    assert (policy.n_primal, policy.n_pullback) == (8, 8)


@pytest.mark.parametrize("local", LOCAL)
def test_evaluate_returns_at_once(local: str) -> None:
    steps = Steps()
    evaluation = dagad.evaluate(loss_on(local, steps.fun()), 2.0)
    assert not steps.events
    with pytest.raises(TimeoutError):
        evaluation.value(0.0)
    steps.values.set()
    steps.pullbacks.set()
    assert evaluation.gradient(PATIENCE) == X.sum()


# Results


@pytest.mark.sampled(2)
def test_value_and_gradient_are_those_of_value_and_grad(scheduler: Any) -> None:
    def loss(params: Any, scale: Any) -> Any:
        return anp.exp(-0.01 * loss_on(scheduler)(params["a"])) * scale + params["b"][0]

    params = {"a": 1.5, "b": [np.array(0.5)]}
    for argnums in (0, 1, (0, 1)):
        evaluation = dagad.evaluate(loss, params, 3.0, argnums=argnums)
        value, gradient = dagad.value_and_grad(loss, argnums)(params, 3.0)
        assert evaluation.value(PATIENCE) == value
        assert evaluation.gradient(PATIENCE) == gradient


def test_value_and_gradient_of_an_evaluation_can_be_asked_for_again_in_any_order() -> None:
    evaluation = dagad.evaluate(loss_on("threads"), 1.0, lazy=True)
    for _ in range(2):
        assert evaluation.gradient(PATIENCE) == -40.0
        assert evaluation.value(PATIENCE) == 92.0


def test_several_threads_may_wait_for_the_same_gradient() -> None:
    policy = Keep()
    evaluation = dagad.evaluate(loss_on("threads", policy=policy), 1.0, lazy=True)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert {float(found) for found in pool.map(lambda _: evaluation.gradient(PATIENCE), range(8))} == {-40.0}
    assert policy.n_pullback == 8


@pytest.mark.sampled(4)
def test_many_evaluations_may_run_at_once(scheduler: Any) -> None:
    evaluations = [dagad.evaluate(loss_on(scheduler), float(theta)) for theta in range(6)]
    for theta, evaluation in enumerate(evaluations):
        assert evaluation.gradient(PATIENCE) == -2 * np.sum(X - theta)


def test_an_evaluation_sees_the_callers_context() -> None:
    def divide(rows: Any, theta: Any) -> Any:
        return anp.sum(rows / (0.0 * theta))

    with np.errstate(divide="raise", invalid="raise"):
        evaluation = dagad.evaluate(loss_on("threads", divide), 1.0)
    with pytest.raises(FloatingPointError):
        evaluation.value(PATIENCE)


# Progress


def test_progress_goes_up_to_all_chunks(scheduler: Any) -> None:
    evaluation = dagad.evaluate(loss_on(scheduler), 1.0, lazy=True)
    evaluation.value(PATIENCE)
    progress = evaluation.progress
    assert progress == Progress(8, 8, 0, progress.gradients_total)
    evaluation.gradient(PATIENCE)
    assert evaluation.progress == Progress(8, 8, 8, 8)
    assert repr(evaluation) == "<Evaluation: 8 of 8 values, 8 of 8 gradients>"


def test_progress_adds_up_all_reductions() -> None:
    loss = loss_on("threads")
    evaluation = dagad.evaluate(lambda theta: loss(theta) + loss(2 * theta), 1.0)
    evaluation.gradient(PATIENCE)
    assert evaluation.progress == Progress(16, 16, 16, 16)


def test_progress_can_be_watched(scheduler: Any, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def chunk(rows: Any, theta: Any) -> Any:
        for ticket in range(3):  # three chunks may pass, the others wait
            try:
                Path(folder, f"ticket{ticket}").touch(exist_ok=False)
                break
            except FileExistsError:
                continue
        else:
            deadline = time.monotonic() + PATIENCE
            while not Path(folder, "gate").exists() and time.monotonic() < deadline:
                time.sleep(0.005)
        return theta * anp.sum(rows)

    evaluation = dagad.evaluate(loss_on(scheduler, chunk), 1.0)
    until(lambda: evaluation.progress.values_done == 3)
    assert evaluation.progress.values_total == 8
    Path(folder, "gate").touch()
    evaluation.gradient(PATIENCE)
    assert evaluation.progress == Progress(8, 8, 8, 8)


def test_an_evaluation_that_has_not_started_has_no_progress() -> None:
    gate = threading.Event()

    def loss(theta: Any) -> Any:
        assert gate.wait(PATIENCE)
        return theta**2

    evaluation = dagad.evaluate(loss, 3.0)
    assert evaluation.progress == Progress(0, 0, 0, 0)
    gate.set()
    assert evaluation.gradient(PATIENCE) == 6.0


# Waiting


def test_a_wait_that_times_out_lets_the_evaluation_go_on() -> None:
    steps = Steps()
    evaluation = dagad.evaluate(loss_on("threads", steps.fun()), 2.0)
    with pytest.raises(TimeoutError):
        evaluation.value(0.01)
    with pytest.raises(TimeoutError):
        evaluation.gradient(timeout=0.01)
    steps.values.set()
    assert evaluation.value(PATIENCE) == 2.0 * X.sum()
    with pytest.raises(TimeoutError):
        evaluation.gradient(0.01)
    steps.pullbacks.set()
    assert evaluation.gradient(PATIENCE) == X.sum()


@pytest.mark.parametrize("lazy", [False, True])
def test_an_evaluation_can_be_awaited(lazy: bool, scheduler: Any) -> None:
    async def both() -> Any:
        return await dagad.evaluate(loss_on(scheduler), 1.0, lazy=lazy)

    assert asyncio.run(both()) == (92.0, -40.0)


def test_several_coroutines_may_await_the_same_evaluation() -> None:
    async def gather() -> Any:
        async def both() -> Any:
            return await evaluation

        evaluation = dagad.evaluate(loss_on("threads"), 1.0)
        return await asyncio.gather(both(), both(), both())

    assert asyncio.run(gather()) == [(92.0, -40.0)] * 3


def test_the_event_loop_goes_on_while_an_evaluation_is_awaited() -> None:
    steps = Steps()
    steps.pullbacks.set()

    async def both() -> Any:
        async def open_gate() -> None:
            steps.values.set()

        evaluation = dagad.evaluate(loss_on("threads", steps.fun()), 2.0)
        task = asyncio.create_task(open_gate())
        result = await evaluation
        await task
        return result

    assert asyncio.run(both()) == (2.0 * X.sum(), X.sum())


def test_an_await_that_times_out_lets_the_evaluation_go_on() -> None:
    steps = Steps()

    async def impatient() -> Any:
        evaluation = dagad.evaluate(loss_on("threads", steps.fun()), 2.0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(evaluation, 0.01)
        steps.values.set()
        steps.pullbacks.set()
        return evaluation, await evaluation

    evaluation, both = asyncio.run(impatient())
    assert both == (evaluation.value(0.0), evaluation.gradient(0.0)) == (2.0 * X.sum(), X.sum())


def test_awaiting_a_cancelled_evaluation_raises() -> None:
    async def cancelled() -> None:
        steps = Steps()
        evaluation = dagad.evaluate(loss_on("threads", steps.fun()), 2.0)
        evaluation.cancel()
        steps.values.set()
        with pytest.raises(dagad.CancelledError):
            await evaluation

    asyncio.run(cancelled())


# Errors


def test_an_exception_of_a_chunk_comes_from_value_and_gradient_of_its_evaluation(scheduler: Any) -> None:
    def refuse(rows: Any, theta: Any) -> Any:
        if rows[0] == 5:
            raise Refusal("five")
        return theta * anp.sum(rows)

    evaluation = dagad.evaluate(loss_on(scheduler, refuse), 1.0)
    for wait in (evaluation.value, evaluation.gradient):
        with pytest.raises(Refusal, match="five") as caught:
            wait(PATIENCE)
        assert any("chunk 5 (rows 5:6)" in note for note in caught.value.__notes__)
    assert dagad.evaluate(loss_on(scheduler), 1.0).gradient(PATIENCE) == -40.0


def test_an_exception_of_a_pullback_comes_from_the_gradient_of_its_evaluation_only(scheduler: Any) -> None:
    @explicit
    def refuse(rows: Any, theta: Any) -> Any:
        def pullback(seed: Any) -> Any:
            raise Refusal("no gradient today")

        return theta * np.sum(rows), pullback

    evaluation = dagad.evaluate(loss_on(scheduler, refuse), 2.0)
    assert evaluation.value(PATIENCE) == 2.0 * X.sum()
    with pytest.raises(Refusal, match="no gradient today") as caught:
        evaluation.gradient(PATIENCE)
    assert any("pullback of chunk" in note for note in caught.value.__notes__)


def test_an_exception_of_the_program_comes_from_value_and_gradient_of_its_evaluation() -> None:
    def refuse(theta: Any) -> Any:
        raise Refusal("at once")

    evaluation = dagad.evaluate(refuse, 1.0)
    with pytest.raises(Refusal, match="at once"):
        evaluation.value(PATIENCE)
    with pytest.raises(Refusal, match="at once"):
        evaluation.gradient(PATIENCE)


def test_a_value_that_is_no_number_is_refused_by_value() -> None:
    evaluation = dagad.evaluate(lambda theta: theta * np.ones(3), 1.0)
    with pytest.raises(dagad.NotDifferentiableError, match="array of shape"):
        evaluation.value(PATIENCE)


def test_evaluate_refuses_arguments_without_floats_at_once() -> None:
    with pytest.raises(dagad.NotDifferentiableError, match="Convert integers"):
        dagad.evaluate(loss_on("threads"), 1)
    with pytest.raises(dagad.StructureError, match="argnums=2"):
        dagad.evaluate(loss_on("threads"), 1.0, argnums=2)


# vjp


def test_a_pullback_can_be_called_again_with_another_cotangent(scheduler: Any) -> None:
    def moments(theta: Any) -> Any:
        def chunk(rows: Any, theta: Any) -> Any:
            return theta * anp.sum(rows)

        return dagad.reduce_sum(chunk, X, theta, grainsize=2, scheduler=scheduler)

    _, pullback = dagad.vjp(moments, np.array([1.0, 2.0]))
    for seed in ([1.0, 0.0], [0.0, 3.0], [1.0, 0.0]):
        np.testing.assert_array_equal(pullback(np.array(seed))[0], X.sum() * np.array(seed))


def test_no_pullback_of_a_chunk_runs_before_vjps_pullback_is_called(scheduler: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    value, pullback = dagad.vjp(loss_on(scheduler, logged(str(log))), 2.0)
    assert value == 2.0 * X.sum()
    assert log.read_text().split() == ["value"] * 8
    assert pullback(2.0) == (2.0 * X.sum(),)
    assert log.read_text().split() == ["value"] * 8 + ["pullback"] * 8
