"""Schedules: is what a step needs always there, are limits kept, and are there as few runs as there can be?"""

from __future__ import annotations

import functools
import sys
import time
from collections import Counter
from collections.abc import Iterable
from math import comb
from typing import Any

import checkpoint_schedules as theirs
import pytest

import dagad
from dagad._graphs.schedules import Iterated, kind_of, schedule_of
from dagad.extend import Revolve, Schedule, Segment
from support.waiting import PATIENCE

pytestmark = pytest.mark.sampled(2)


def runs(actions: Iterable[Any], n_steps: int, n_states: int, n_tapes: int) -> Counter[int]:
    """Do what a schedule says, see that what is needed is there and no limit is exceeded; return each step's runs."""
    at, end, states, tapes, found = 0, n_steps, set[int](), set[int](), Counter[int]()
    recorded = Counter[int]()
    for action in actions:
        if kind_of(action) == "Forward":
            assert (at, end) >= (action.n0, action.n1)
            assert at == action.n0 < action.n1
            states |= {at} if action.write_ics else set()
            new = set(range(action.n0, action.n1))
            tapes |= new if action.write_adj_deps else set()
            recorded.update(new if action.write_adj_deps else ())
            found.update(new)
            at = action.n1
        elif kind_of(action) == "Reverse":
            assert action.n1 == end
            assert set(range(action.n0, action.n1)) <= tapes
            end = action.n0
            tapes, states = {step for step in tapes if step < end}, {step for step in states if step < end}
        elif kind_of(action) in ("Copy", "Move"):
            assert action.n in states | tapes
            at = action.n
        assert len(states) <= n_states
        assert len(tapes) <= n_tapes
    assert end == 0
    assert set(recorded.values()) <= {1}
    return found


@functools.cache
def least_runs(n_steps: int, slots: int) -> int:
    """The runs without a tape of the best schedule, by trying them all."""
    if n_steps == 1:
        return 0
    if slots == 1:
        return n_steps * (n_steps - 1) // 2
    tried = (ahead + least_runs(n_steps - ahead, slots - 1) + least_runs(ahead, slots) for ahead in range(1, n_steps))
    return min(tried)


@pytest.mark.parametrize(("n_steps", "slots", "expected"), [(10, 3, 25), (100, 3, 590), (500, 10, 2136)])
def test_revolve_runs_as_few_steps_as_is_known(n_steps: int, slots: int, expected: int) -> None:
    found = runs(Revolve(slots).actions(n_steps), n_steps, slots, 1)
    assert found.total() == expected
    r = next(r for r in range(n_steps) if comb(slots + r, slots) >= n_steps)
    assert expected == r * n_steps - comb(slots + r, slots + 1) + n_steps
    assert max(found.values()) == r + 1


def test_revolve_is_the_best_there_is() -> None:
    for n_steps in range(1, 31):
        for slots in (1, 2, 3, 4, 7, 29, 30, 31, 1000):
            found = runs(Revolve(slots).actions(n_steps), n_steps, slots, 1).total()
            assert found == n_steps + least_runs(n_steps, min(slots, 31))


@pytest.mark.whole("many rounds, workers or bytes: the same is seen of few here")
def test_revolve_does_what_checkpoint_schedules_does() -> None:
    for n_steps in range(2, 60):
        for slots in range(1, min(n_steps, 12)):
            ours = runs(Revolve(slots).actions(n_steps), n_steps, slots, 1)
            other = Iterated(theirs.MultistageCheckpointSchedule(n_steps, slots, 0))
            assert ours.total() == runs(other.actions(n_steps), n_steps, slots, 1).total()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("slots", [1, 2, 10, 1000, 10**6])
def test_revolve_takes_time_in_proportion_to_the_steps(slots: int) -> None:
    """Counted in lines that run, since the machine may be busy: the same for each step, up to 100,000."""

    def lines(n_steps: int) -> float:
        count = [0]

        def trace(frame: Any, event: str, arg: Any) -> Any:
            count[0] += event == "line"
            return trace if frame.f_code.co_filename.endswith("schedules.py") else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            n_actions = sum(1 for _ in Revolve(slots).actions(n_steps))
        finally:
            sys.settrace(before)
        assert n_actions <= 4 * n_steps
        return count[0] / n_steps

    assert lines(10_000) <= 1.5 * lines(1_000) + 1
    began = time.perf_counter()
    assert sum(1 for _ in Revolve(slots).actions(100_000)) <= 400_000
    assert time.perf_counter() - began < PATIENCE  # one second, on an idle machine


@pytest.mark.parametrize("k", [1, 2, 4, 5, 20, 21, 50])
def test_segment_runs_all_but_the_last_segment_twice(k: int) -> None:
    for n_steps in (1, 2, 7, 20, 40):
        last = (n_steps - 1) % k + 1
        found = runs(Segment(k).actions(n_steps), n_steps, -(-n_steps // k), k)
        assert found.total() == 2 * n_steps - last


THEIRS: dict[str, tuple[Any, int, int]] = {  # for 20 steps; the most states, the most tapes
    "Revolve": (lambda: theirs.Revolve(20, 3), 3, 1),
    "Multistage": (lambda: theirs.MultistageCheckpointSchedule(20, 2, 2), 4, 1),
    "Mixed": (lambda: theirs.MixedCheckpointSchedule(20, 3, storage=theirs.StorageType.RAM), 3, 4),
    "TwoLevel": (lambda: theirs.TwoLevelCheckpointSchedule(5, 2), 6, 1),
    "SingleMemory": (theirs.SingleMemoryStorageSchedule, 0, sys.maxsize),
    "HRevolve": (lambda: theirs.HRevolve(20, 2, 2), 4, 1),
    "DiskRevolve": (lambda: theirs.DiskRevolve(20, 2), 20, 1),
}


@pytest.mark.filterwarnings("ignore:Numba not available")
@pytest.mark.parametrize("name", [name for name in THEIRS if name not in ("TwoLevel", "SingleMemory")])
def test_schedules_of_checkpoint_schedules_are_read_by_their_actions(name: str) -> None:
    make, n_states, n_tapes = THEIRS[name]
    schedule: Schedule = schedule_of(make())
    assert min(runs(schedule.actions(20), 20, n_states, n_tapes).values()) >= 1


def test_a_schedule_of_checkpoint_schedules_is_for_one_use_and_its_number_of_steps() -> None:
    used = theirs.Revolve(20, 3)
    list(Iterated(used).actions(20))
    with pytest.raises(dagad.PlanError, match=r"has been used.*Make another one for each gradient"):
        list(Iterated(used).actions(20))
    with pytest.raises(dagad.PlanError, match=r"made for 20 steps, and the graph has 21. Make it for 21, or mark"):
        list(Iterated(theirs.Revolve(20, 3)).actions(21))


@pytest.mark.parametrize("make", [Segment, Revolve])
@pytest.mark.parametrize("count", [0, -1, 2.0, True, "auto", None])
def test_a_schedule_with_a_count_that_is_no_positive_int_is_refused(make: Any, count: Any) -> None:
    with pytest.raises(dagad.PlanError, match=f"{make.__name__}.*Give a positive int"):
        make(count)


def test_a_schedule_with_a_directory_that_is_none_is_refused() -> None:
    with pytest.raises(dagad.PlanError, match=r"no directory. Give a path, or True"):
        Revolve(3, disk=3)


def test_schedules_are_none_for_chunks() -> None:
    with pytest.raises(dagad.PlanError, match=r"`dagad.gradient` or `value_and_gradient`"):
        dagad.reduce_sum(lambda rows, t: t, [1.0], 1.0, policy=Segment(3))
    with pytest.raises(dagad.PlanError, match="Revolve"):
        dagad.reduce_sum(lambda rows, t: t, [1.0], 1.0, policy=Segment)


def test_schedules_count_and_are_equal_without_their_history() -> None:
    assert Segment(3) == Segment(3) != Segment(4)
    assert repr(Revolve(3)) == "Revolve(slots=3, disk=False)"
    assert (Segment(3).n_primal, Revolve(3).n_pullback, Segment(3).peak_linearizations) == (0, 0, 0)
