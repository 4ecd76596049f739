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
from dagad._graphs.policies import Policy
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

    def goes_with(self, other: MemberPull) -> bool:
        """Return whether both may be pulled at once: they are of two members of one job."""
        return self.shared is other.shared and self.number != other.number and len(self.seeds) == len(other.seeds)


class SharedResiduals:
    """What a job of several members left behind.

    ============  ===================================================================================================
    `_is_used`    whether all members have pulled one seed each, with which tapes go; changes under `_lock`
    `_lock`       held while something is pulled, but for while others are waited for: see `member.held`
    ============  ===================================================================================================
    """

    def __init__(self, together: Together, residuals: Residuals, policy: Policy, each: Sequence[Results]) -> None:
        self._together, self._residuals, self._policy = together, residuals, policy
        self._values = [(own.reduced, own.stacked) for own in each]
        self._runs_again = bool(getattr(policy, "runs_again", False))
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
        n_seeds = len(first.seeds)
        many = [
            SeedsTogether([self._seeds(some, first, number, at) for number in range(count)]) for at in range(n_seeds)
        ]
        if len(some) == count:
            self._is_used = self._is_used or n_seeds == 1
        elif n_seeds == 1:  # one more, of nothing: what is pulled with several seeds stays, and others are to pull yet
            many.append(SeedsTogether([self._no_seeds(first, 0, number) for number in range(count)]))
        landed: list[tuple[Targets, Sequence[Any] | None, int]] = []
        if not self._residuals.pull(self._together.job, many, lambda *what: landed.append(what)):
            return False
        land = self._together.land([some[number].land if number in some else None for number in range(count)])
        for targets, cotangents, at in landed:
            if at < n_seeds:
                land(targets, None if cotangents is None else cotangents[: (n_seeds - at) * len(targets)], at)
        return True

    def _seeds(self, some: dict[int, MemberPull], first: MemberPull, number: int, at: int) -> Seeds:
        return some[number].seeds[at] if number in some else self._no_seeds(first, at, number)

    def _no_seeds(self, like: MemberPull, at: int, number: int) -> Seeds:
        reduced, stacked = self._values[number]
        return NoSeeds(self._together.n_reduced(number, reduced), list(map(len, stacked)), len(like.seeds[at].placed))
