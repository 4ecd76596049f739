"""How a plan went says how it runs next: with threads or alone, and in how large tasks."""

from __future__ import annotations

import itertools

import pytest

from dagad._executors.planning import (
    TASKS_FOR_WORKERS,
    TRY_AGAIN,
    WORTH_THREADS,
    Cost,
    History,
    Strategy,
    choose_group,
    choose_strategy,
)
from dagad._kernels.job import Spent
from dagad._sources.plan import Plan

PLAN = Plan(8, 1)
PARALLEL, IN_TURNS, WAITING = Spent(1.9, 1.0, 2), Spent(1.0, 1.0, 2), Spent(0.01, 1.0, 2)


def after(*paces: Spent) -> History:
    history = History()
    for pace in paces:
        history = history.after(pace)
    return history


def test_a_plan_without_a_history_is_run_by_threads() -> None:
    assert choose_strategy(PLAN, History(), 2) == Strategy()


@pytest.mark.parametrize(("plan", "workers"), [(Plan(8, 8), 2), (PLAN, 1)])
def test_one_chunk_or_one_worker_needs_no_graph(plan: Plan, workers: int) -> None:
    assert choose_strategy(plan, after(PARALLEL, PARALLEL), workers).alone


@pytest.mark.parametrize("pace", [PARALLEL, WAITING])
def test_threads_that_overlap_or_wait_are_kept_for_a_plan(pace: Spent) -> None:
    assert not choose_strategy(PLAN, after(*[pace] * 1000), 2).alone


def test_threads_that_take_turns_are_compared_with_one() -> None:
    history = after(IN_TURNS, IN_TURNS)
    assert choose_strategy(PLAN, history, 2).alone
    assert choose_strategy(PLAN, history.after(Spent(0.8, 0.8, 1)), 2).alone
    assert not choose_strategy(PLAN, history.after(Spent(1.2, 1.2, 1)), 2).alone


def test_a_cheap_plan_is_tried_alone_however_busy_the_machine_is() -> None:
    busy = Spent(0.001, 0.004, 2)  # the threads waited for their turn, or for something else
    history = after(busy, busy)
    assert choose_strategy(PLAN, history, 2).alone
    assert choose_strategy(PLAN, history.after(Spent(0.001, 0.003, 1)), 2).alone
    assert not choose_strategy(PLAN, history.after(Spent(0.002, 0.008, 1)), 2).alone
    assert not choose_strategy(PLAN, after(*[Spent(0.001, 0.01, 2)] * 2), 2).alone  # they waited for something


@pytest.mark.parametrize("alone", [0.8, 1.2])
def test_a_slower_way_to_run_a_plan_is_tried_again_ever_more_seldom(alone: float) -> None:
    history, tried = History(), []
    for number in range(40 * TRY_AGAIN):
        road = choose_strategy(PLAN, history, 2)
        tried.append(road.alone)
        history = history.after(Spent(alone, alone, 1) if road.alone else IN_TURNS)
        if number > 2 * TRY_AGAIN:
            assert (road.alone == (alone < 1.0)) or tried[-2] != road.alone
    loser = [number for number, was_alone in enumerate(tried) if was_alone == (alone > 1.0) and number > 3]
    gaps = [later - earlier for earlier, later in itertools.pairwise(loser)]
    assert len(loser) >= 3
    assert gaps == sorted(gaps)


def test_a_way_to_run_a_plan_that_has_become_faster_is_found() -> None:
    history = after(IN_TURNS, IN_TURNS)
    for _ in range(2 * TRY_AGAIN):
        alone = choose_strategy(PLAN, history, 2).alone
        history = history.after(Spent(0.8, 0.8, 1) if alone else Spent(0.9, 0.5, 2))
    assert not choose_strategy(PLAN, history, 2).alone


def test_a_cheap_plan_never_starts_a_thread_again() -> None:
    cheap = WORTH_THREADS / 3
    history = after(Spent(cheap, cheap, 2))
    for _ in range(5 * TRY_AGAIN):
        assert choose_strategy(PLAN, history, 2).alone
        history = history.after(Spent(cheap, cheap, 1))


# Other processes


def test_a_cost_is_that_of_the_last_run() -> None:
    queued = Cost().after_graph(120.0, 120.0, in_vain=False)
    assert (queued.seconds, queued.longest) == (120.0, 120.0)
    assert queued.after_graph(3.0, 0.1, in_vain=False) == Cost(3.0, 0.1)
    assert queued.after_call(0.2, 0.3) == Cost(0.2, 0.2)


def test_a_hot_call_that_failed_is_tried_ever_more_seldom() -> None:
    cost, rests = Cost(), []
    for _ in range(3):
        cost = cost.after_graph(1.0, 1.0, in_vain=True)
        rests.append(cost.rest)
        while cost.rest:
            cost = cost.after_graph(1.0, 1.0, in_vain=False)
    assert rests == [TRY_AGAIN, 2 * TRY_AGAIN, 4 * TRY_AGAIN]
    assert cost.after_call(1.0, 1.0).refusals == 0


@pytest.mark.parametrize("n_chunks", [1, 64, 127, 128, 1000, 10**5])
@pytest.mark.parametrize("seconds", [0.0, 1e-3, 0.1, 10.0])
def test_a_task_of_several_chunks_is_a_subtree_and_leaves_enough_tasks(n_chunks: int, seconds: float) -> None:
    group = choose_group(n_chunks, Cost(seconds=seconds))
    assert group & (group - 1) == 0
    assert group == 1 or n_chunks // group >= TASKS_FOR_WORKERS
    assert choose_group(n_chunks, None) == 1
