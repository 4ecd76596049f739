"""Members in this process: do they run together or one by one, as took less time, with the same bits?"""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest

import dagad
from dagad._executors.members_pace import LATEST, TRY_AGAIN, WARM, Pace
from support.gated_chunks import bits

X = np.linspace(-1.0, 1.0, 24).reshape(12, 2)
THETAS = np.linspace(0.1, 1.0, 6).reshape(3, 2)


def calls(pace: Pace, n: int, together: float, alone: float, n_members: int = 3, is_remote: bool = False) -> list[bool]:
    """Return how members of so many calls are run, where each way takes so long."""
    found = []
    for _ in range(n):
        found.append(pace.choose(n_members))
        pace.took(n_members, found[-1], together if found[-1] else alone, is_remote and found[-1])
    return found


def test_the_quicker_way_is_taken_when_both_are_warm() -> None:
    begun = [True] * WARM + [False] * WARM
    assert calls(Pace(), 12, together=1.0, alone=2.0) == begun + [True] * (12 - len(begun))
    assert calls(Pace(), 12, together=2.0, alone=1.0) == begun + [False] * (12 - len(begun))


def test_the_slower_way_is_tried_again_and_taken_once_it_is_quicker() -> None:
    pace = Pace()
    assert not any(calls(pace, TRY_AGAIN, together=2.0, alone=1.0)[2 * WARM :])
    assert calls(pace, 2, together=0.5, alone=3.0) == [True, True]
    assert len(pace._seconds[True]) <= LATEST


def test_another_number_of_members_begins_anew() -> None:
    pace = Pace()
    calls(pace, 12, together=2.0, alone=1.0)
    assert calls(pace, 1, together=2.0, alone=1.0, n_members=4) == [True]


def test_a_time_of_another_number_of_members_counts_for_nothing() -> None:
    """A thread that began earlier ends later."""
    pace = Pace()
    pace.choose(3)
    pace.choose(4)
    pace.took(3, True, 1e-9)
    assert not pace._seconds[True]


def test_members_whose_chunks_run_in_other_processes_stay_together() -> None:
    assert all(calls(Pace(), 200, together=2.0, alone=1.0, is_remote=True))


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows * theta) ** 2)


@pytest.mark.parametrize("slower", [True, False])
def test_members_have_the_same_bits_together_and_one_by_one(
    slower: bool, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    took, ways = Pace.took, list[bool]()

    def measured(self: Pace, n_members: int, is_together: bool, seconds: float, is_remote: bool = False) -> None:
        ways.append(is_together)
        took(self, n_members, is_together, 2.0 if is_together == slower else 1.0, is_remote)

    monkeypatch.setattr(Pace, "took", measured)
    shards = dagad.shard(X, grainsize=4, scheduler=scheduler)
    alone = dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, shards, theta))
    of_members = dagad.vmap(alone)
    expected = bits([np.stack(column) for column in zip(*map(alone, THETAS), strict=True)])
    for _ in range(8):
        assert bits(of_members(THETAS)) == expected
    is_remote = not isinstance(scheduler, str)
    assert ways == [True] * WARM + [is_remote] * WARM + [is_remote or not slower] * (8 - 2 * WARM)


def test_an_error_of_a_member_that_runs_by_itself_names_it() -> None:
    def failing(theta: Any) -> Any:
        if theta[0] > limit[0]:
            raise ValueError("too large")
        return dagad.reduce_sum(chunk, X, theta, grainsize=4, scheduler="sync")

    limit, of_members = [10.0], dagad.vmap(failing)
    for _ in range(WARM):
        of_members(THETAS)
    limit[0] = 0.7
    with pytest.raises(ValueError, match="too large") as raised:
        of_members(THETAS)
    assert raised.value.__notes__ == ["dagad: member 2 of a `dagad.vmap`"]
