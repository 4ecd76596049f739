"""What an evaluation on many workers takes by each route, and what is busy longest: a model, without I/O.

=========  ============================================================================================================
`direct`   the client calls every worker; parameters go to each, partial results come from each
`relayed`  the same by one message through the scheduler, for a client that reaches nothing else
`graph`    tasks: parameters travel as a result of Dask's from worker to worker, and sums up a tree of tasks
`tree`     the same with one task for each thread of a worker, however many chunks there are
=========  ============================================================================================================

Of the first two, bytes and messages at one process grow with the workers; of the others only messages do, which cost
Dask's scheduler more. So there are a size of parameters and a number of workers from which the tree is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from dagad._graphs.sum_trees import FAN_IN

FEWEST_WORKERS = 4  # of fewer, a tree saves too little to be looked for
FEWEST_BYTES = 2**20  # below, it is not the bytes that take long
MOST_RECEIVED = 2**30  # bytes that the client may have to hold, of which it needs the sum
FAIR_TRIPS, FAIR_TREES = 3, 2  # the first also paid for what is only done once
PROMISE = 1.5  # how many times as fast a tree has to look before it is tried

# Seconds of a processor for an evaluation, calls and tasks, and bytes of a task: measured by `python
# tests/benchmarks/scale.py --workers 10,30 --costs`, whose clock counts what a process had of it, busy as it may be.
CLIENT_ITSELF, CLIENT_CALL, CLIENT_REPLY, RELAYED_CALL = 2.6e-3, 0.08e-3, 0.035e-3, 0.15e-3
CLIENT_GRAPH, CLIENT_TASK, SCHEDULER_GRAPH, SCHEDULER_TASK, TASK_BYTES = 6e-3, 0.17e-3, 4e-3, 1.55e-3, 2500.0
# For so long Dask gathers messages before it sends them: from the client and back; to the workers and from them.
SUBMITTING, LEVEL = 0.012, 0.007
SPREAD = 10  # transfers of a worker at the same time: Dask's setting `distributed.worker.connections.incoming`


@dataclass(frozen=True, slots=True)
class Site:
    """What the machines and the links between them can do.

    Attributes
    ----------
    latency
        Seconds from one process to another.
    bandwidth
        Bytes a second of the scheduler's link and of each worker's, in each direction.
    client_bandwidth
        Those of the client's, which may be far away.
    byte
        Seconds that the client's or the scheduler's processor spends on a byte: measured as the constants above are.
    """

    latency: float = 50e-6
    bandwidth: float = 1.25e9
    client_bandwidth: float = 1.25e9
    byte: float = 1e-9


@dataclass(frozen=True, slots=True)
class Work:
    """One evaluation.

    Attributes
    ----------
    n_workers, n_threads
        How many there are, and threads of each.
    theta, result
        Bytes of the parameters, and of one partial result.
    n_partials
        How many partial results a worker has: one, where its chunks are one subtree of the tree of sums.
    constants
        Bytes of what a graph sends each time beside the parameters: the function, with what it holds.
    n_chunks, seconds
        How many chunks there are (0: one for each thread), and seconds of one.
    """

    n_workers: int
    theta: float
    result: float
    n_partials: float = 1.0
    constants: float = 0.0
    n_threads: int = 1
    n_chunks: int = 0
    seconds: float = 0.0

    @property
    def computing(self) -> float:
        """Seconds until the last worker has done its chunks."""
        n_at_once = self.n_workers * self.n_threads
        return -(-self.n_chunks // n_at_once) * self.seconds if self.n_chunks else self.seconds


class Estimate(NamedTuple):
    """How long an evaluation takes, and of that: how long each station is busy, and what is waited for besides."""

    seconds: float
    busy: dict[str, float]
    waiting: float

    @property
    def saturated(self) -> str:
        """The station that is busy longest."""
        return max(self.busy, key=self.busy.__getitem__)


def direct(work: Work, site: Site) -> Estimate:
    """Estimate calls of every worker by the client."""
    n, back = work.n_workers, work.result * work.n_partials
    busy = {
        "client": CLIENT_ITSELF + n * (CLIENT_CALL + CLIENT_REPLY + site.byte * (work.theta + back)),
        "client's link": n * max(work.theta, back) / site.client_bandwidth,
    }
    return _estimate(work, busy, 2 * site.latency)


def relayed(work: Work, site: Site) -> Estimate:
    """Estimate the same by the scheduler; workers first give each other their partial results, so that each has one."""
    n, back = work.n_workers, work.result
    busy = {
        "client": CLIENT_ITSELF + n * CLIENT_REPLY + site.byte * (work.theta + n * back),
        "client's link": max(work.theta, n * back) / site.client_bandwidth,
        "scheduler": n * (RELAYED_CALL + site.byte * (work.theta + 2 * back)),
        "scheduler's link": n * (work.theta + back) / site.bandwidth,
    }
    return _estimate(work, busy, 4 * site.latency)


def graph(work: Work, site: Site) -> Estimate:
    """Estimate a graph with a task for each chunk."""
    return _graph(work, site, max(work.n_chunks, work.n_workers * work.n_threads))


def tree(work: Work, site: Site) -> Estimate:
    """Estimate a graph with a task for each thread."""
    return _graph(work, site, work.n_workers * work.n_threads)


def _graph(work: Work, site: Site, n_tasks: int) -> Estimate:
    n_sums, levels = math.ceil((n_tasks - 1) / (FAN_IN - 1)), math.ceil(math.log(max(n_tasks, 2), FAN_IN))
    sent = work.theta + work.constants
    busy = {
        "client": CLIENT_GRAPH + CLIENT_TASK * n_tasks + site.byte * (sent + work.result),
        "client's link": (sent + work.result) / site.client_bandwidth,
        "scheduler": SCHEDULER_GRAPH + SCHEDULER_TASK * (n_tasks + n_sums) + site.byte * 2 * (sent + work.result),
        "scheduler's link": ((n_tasks + n_sums) * TASK_BYTES + sent + work.result) / site.bandwidth,
    }
    # Who has the parameters gives them to a few at a time, who have them then, and so on. What adds up waits for terms.
    rounds = math.ceil(math.log(max(work.n_workers, 2), SPREAD + 1)) * SPREAD
    travelling = rounds * sent + levels * (FAN_IN - 1) * work.result
    waiting = SUBMITTING + (2 + levels) * (LEVEL + 2 * site.latency) + travelling / site.bandwidth
    return _estimate(work, busy, waiting)


def _estimate(work: Work, busy: dict[str, float], waiting: float) -> Estimate:
    # Stations work at the same time, one message after the other, so the one that is busy longest says how long it
    # takes.
    busy |= {"workers": work.computing}
    others = max(seconds for station, seconds in busy.items() if station != "workers")
    return Estimate(waiting + work.computing + others, busy, waiting)


Route = Callable[[Work, Site], Estimate]
ROUTES: dict[str, Route] = {"direct": direct, "relayed": relayed, "graph": graph, "tree": tree}
MOST_WORKERS = 10**6


def crossing(work: Work, site: Site, route: Route = direct) -> int | None:
    """Return from how many workers on the tree is faster than a route, None if it never is.

    >>> crossing(Work(1, theta=1e5, result=1e5), Site()) is None
    True
    >>> crossing(Work(1, theta=1e7, result=1e7), Site()) < 100
    True
    """

    def is_faster(n_workers: int) -> bool:
        some = replace(work, n_workers=n_workers)
        return tree(some, site).seconds < route(some, site).seconds

    below, above = 1, 2
    while not is_faster(above):
        below, above = above, 2 * above
        if above > MOST_WORKERS:
            return None
    while above > below + 1:
        middle = (below + above) // 2
        below, above = (below, middle) if is_faster(middle) else (middle, above)
    return above


class Trip(NamedTuple):
    """One evaluation by calls of every worker, as it went.

    ===================  =====================================================================================
    `n_workers`          how many were called
    `n_threads`          how many threads each of them has
    `theta`              bytes of the parameters, as each was sent them
    `received`           bytes of all answers together
    `constants`          bytes of the function, which was sent once
    `computing`, `wall`  seconds until the slowest worker had its answer, of its own clock; and of all until the end
    ===================  =====================================================================================
    """

    n_workers: int
    n_threads: int
    theta: int
    received: int
    constants: int
    computing: float
    wall: float

    @property
    def n_bytes(self) -> int:
        """Bytes that went through the client's link."""
        return self.n_workers * self.theta + self.received

    def by_tree(self) -> Estimate:
        """Estimate the same evaluation by a tree: what calls did not take was the way of the bytes."""
        n = self.n_workers
        way = self.wall - self.computing - CLIENT_ITSELF - n * (CLIENT_CALL + CLIENT_REPLY)
        link = self.n_bytes / max(way, 1e-9)
        work = Work(n, self.theta, self.received / n, 1.0, self.constants, self.n_threads, seconds=self.computing)
        # Links between workers are not known: they may be better than the client's. If not, the clock will tell.
        return tree(work, Site(client_bandwidth=link, bandwidth=max(link, Site().bandwidth)))


class Trips(NamedTuple):
    """How evaluations of one kind went: the shortest by calls of every worker and by trees, and how many there were."""

    star: Trip | None = None
    n_stars: int = 0
    tree: float = math.inf
    n_trees: int = 0

    def after_star(self, trip: Trip) -> Trips:
        """Return them after one more by calls; of other numbers of workers nothing is known."""
        star = self.star
        if star is None or star.n_workers != trip.n_workers:
            return Trips(trip, 1)
        return self._replace(star=min(star, trip, key=lambda one: one.wall), n_stars=self.n_stars + 1)

    def after_tree(self, wall: float) -> Trips:
        """Return them after one more by a tree."""
        return self._replace(tree=min(self.tree, wall), n_trees=self.n_trees + 1)

    @property
    def prefer_tree(self) -> bool:
        """Whether the next one is to be a tree: the model says when to try it, and the clock whether to stay.

        What would fill the memory of the client, or of the scheduler that relays, is one at once.
        """
        star = self.star
        if star is None or star.n_workers < FEWEST_WORKERS or star.n_bytes < FEWEST_BYTES:
            return False
        if star.received > MOST_RECEIVED:
            return True
        if self.n_stars < FAIR_TRIPS:
            return False
        if self.n_trees >= FAIR_TREES:
            return self.tree < star.wall
        return PROMISE * star.by_tree().seconds < star.wall
