"""What a job of several members left behind: each pulls its own part of it, together with others or alone.

Who pulls need not be the member that it belongs to: pullbacks are handed on, and called by other members, in threads,
or when all is over. So each part has a number, by which seeds and cotangents find their place, and those who don't pull
have no seeds.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from dagad._executors.member import held
from dagad._graphs.policies import Policy, may_run_again
from dagad._kernels.batch import Batched, refuse_another
from dagad._kernels.inputs import Targets
from dagad._kernels.job import Executor, Job, Land, Residuals, Results, Seeds
from dagad._kernels.members import NoSeeds, SeedsTogether, Together


class MemberPull(NamedTuple):
    """Some seeds of one member, and where their cotangents land."""

    shared: SharedResiduals
    number: int
    job: Job
    seeds: Sequence[Seeds]
    land: Land
    keep: bool  # whether somebody is to pull again

    def goes_with(self, other: MemberPull) -> bool:
        """Return whether both may be pulled at once: they are of two members of one job."""
        return self.shared is other.shared and self.number != other.number and len(self.seeds) == len(other.seeds)


class SharedResiduals:
    """What a job of several members left behind.

    ============  ===================================================================================================
    `_is_used`    whether all members have pulled, with nobody to pull again: the tapes are gone; changes under `_lock`
    `_lock`       held while something is pulled, but for while others are waited for: see `member.held`
    ============  ===================================================================================================
    """

    def __init__(self, together: Together, residuals: Residuals, policy: Policy, each: Sequence[Results]) -> None:
        self._together, self._residuals, self._policy = together, residuals, policy
        self._values = [(own.reduced, own.stacked) for own in each]
        self._runs_again = may_run_again(policy)
        self._is_used, self._lock = False, threading.Lock()

    def is_there(self, count: int) -> bool:
        """Return whether so many members can pull at once: those who don't are not to run again."""
        return count == len(self._values) or not (self._is_used or self._runs_again)

    def pull(self, some: Sequence[MemberPull]) -> bool:
        """Pull the seeds of some members, in any order; nothing lands before everything is there."""
        with held(self._lock):
            return self._pull({one.number: one for one in some})

    def pull_one(self, one: MemberPull, inner: Executor) -> bool:
        """Pull the seeds of one member; where all would have to run again, it runs again alone."""
        with held(self._lock):
            if self.is_there(1):
                return self._pull({one.number: one})
        results, residuals = inner.linearize(one.job, self._policy)
        monoid, (reduced, stacked) = one.job.monoid, self._values[one.number]
        before, now = (
            Batched(None if total is None else monoid.lower(total), own, [])
            for total, own in ((reduced, stacked), (results.reduced, results.stacked))
        )
        refuse_another(before, now, one.job.kernel.name)
        return residuals is not None and residuals.pull(one.job, one.seeds, one.land)

    def _pull(self, some: dict[int, MemberPull]) -> bool:
        first, count = next(iter(some.values())), len(self._values)
        many = [
            SeedsTogether([self._seeds(some, first, number, at) for number in range(count)])
            for at in range(len(first.seeds))
        ]
        keep = len(some) < count or any(one.keep for one in some.values())
        self._is_used = self._is_used or not keep
        landed: list[tuple[Targets, Sequence[Any] | None, range]] = []
        if not self._residuals.pull(self._together.job, many, lambda *what: landed.append(what), keep=keep):
            return False
        land = self._together.land([some[number].land if number in some else None for number in range(count)])
        for what in landed:
            land(*what)
        return True

    def _seeds(self, some: dict[int, MemberPull], first: MemberPull, number: int, at: int) -> Seeds:
        """Return a seed of a member; one of nothing where it does not pull, placed as those of the first one are."""
        if number in some:
            return some[number].seeds[at]
        reduced, stacked = self._values[number]
        return NoSeeds(self._together.n_reduced(number, reduced), list(map(len, stacked)), len(first.seeds[at].sharded))
