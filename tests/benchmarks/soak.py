"""Kill workers under a hot loop: ``python tests/benchmarks/soak.py [--evaluations N] [--every S] [--json FILE]``.

Two worker processes with nannies hold the rows of a mixed Poisson regression; value and gradient are evaluated again
and again at a cycle of parameters, first undisturbed, then while one of the workers is killed (SIGKILL) every few
seconds. Each outcome has to have the bits of one thread.

lost     evaluations that raised
wrong    evaluations whose bits were others
hung     evaluations that had not come back after a minute; the loop ends with the first
hot      evaluations for which no graph was sent to the scheduler

The time lost per kill is the difference of the two loops; beyond medians, that of what is not explained by the median
evaluation, where other programs made one of the loops slower.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import queue
import signal
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import dask
import numpy as np
import report
from cluster_competitors import dagad_call, dagad_program, dagad_shards
from competitors import Outcome
from distributed import Client, LocalCluster, Scheduler, SchedulerPlugin
from rich.table import Table
from threadpoolctl import threadpool_limits
from workloads import Case, poisson_case

N_ROWS, N_CHUNKS = 200_000, 16
N_POINTS = 20
STEP = 1e-3
HUNG_S = 60.0
WARM_UP = 5

Params = tuple[Any, ...]
Evaluate = Callable[..., Outcome]


def main() -> None:
    """Read the command line, run the loop twice, print, and write the figures down if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evaluations", type=int, default=2000, help="of each of the two loops")
    parser.add_argument("--every", type=float, default=5.0, help="seconds from one death to the next")
    parser.add_argument("--json", default="", help="write all figures to this file")
    options = parser.parse_args()
    report.console.print(" · ".join(f"{name} {value}" for name, value in report.machine().items()))
    with threadpool_limits(1):
        calm, rough = run(options.evaluations, options.every)
    print_tallies(calm, rough)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": report.machine(), "without": asdict(calm), "with": asdict(rough)}, file, indent=1)
    if any((tally.lost, tally.wrong, tally.hung) != (0, 0, 0) for tally in (calm, rough)):
        raise SystemExit("Evaluations were lost, wrong or hung.")


@dataclass(slots=True)
class Tally:
    """What became of one loop."""

    evaluations: int = 0
    kills: int = 0
    lost: int = 0
    wrong: int = 0
    hung: int = 0
    hot: int = 0
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds of the median evaluation."""
        return statistics.median(self.times or [0.0])

    @property
    def beyond_median(self) -> float:
        """Seconds that the loop took beyond what it would have if all evaluations had been like the median one."""
        return self.seconds - self.evaluations * self.median


@dataclass(frozen=True, slots=True)
class Trip:
    """One evaluation: when it was done, how long it took, whether it was hot, and what it gave or raised."""

    seconds: float
    hot: bool
    outcome: Outcome | BaseException


def run(n_evaluations: int, every: float) -> tuple[Tally, Tally]:
    """Both loops, each on a cluster of its own."""
    case = poisson_case(N_ROWS)
    points = [tuple(param + STEP * k for param in case.params) for k in range(N_POINTS)]
    right = dagad_call(dagad_program("sync", case, N_CHUNKS, on_shards=True), case)  # type: ignore[arg-type]  # no client
    expected = [bits(right(*point)) for point in points]
    tallies = []
    for period in (0.0, every):
        with ExitStack() as stack:
            # LocalCluster gives up a worker for good that is away 15 seconds after a death, be it for another one.
            stack.enter_context(dask.config.set({"distributed.deploy.lost-worker-timeout": "1 day"}))
            options: Any = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
            cluster = stack.enter_context(LocalCluster(silence_logs=logging.ERROR, **options))  # deaths are no news
            client = stack.enter_context(Client(cluster, set_as_default=False))
            tallies.append(soak(cluster, client, case, points, expected, n_evaluations, period))
    return tallies[0], tallies[1]


def soak(
    cluster: Any,
    client: Client,
    case: Case,
    points: list[Params],
    expected: list[list[bytes]],
    n_evaluations: int,
    every: float,
) -> Tally:
    """One loop; with deaths if `every` is a number of seconds."""
    tally, graphs = Tally(), Graphs()
    cluster.scheduler.add_plugin(graphs)
    evaluate = dagad_shards(client, case, N_CHUNKS)
    for point in points[:WARM_UP]:
        evaluate(*point)
    with Killer(cluster, every) as killer:
        began = time.perf_counter()
        trips = started(evaluate, points, n_evaluations, graphs)
        for right in itertools.islice(itertools.cycle(expected), n_evaluations):
            try:
                trip = trips.get(timeout=HUNG_S)
            except queue.Empty:
                tally.hung += 1
                break
            count(tally, trip, right)
        tally.seconds = time.perf_counter() - began
    tally.kills = killer.kills
    return tally


def started(evaluate: Evaluate, points: list[Params], n_evaluations: int, graphs: Graphs) -> queue.SimpleQueue[Trip]:
    """Start the loop in a thread that nobody has to wait for if it hangs; what it does arrives in a queue."""
    trips: queue.SimpleQueue[Trip] = queue.SimpleQueue()

    def loop() -> None:
        for point in itertools.islice(itertools.cycle(points), n_evaluations):
            outcome: Outcome | BaseException
            n_graphs, began = graphs.n, time.perf_counter()
            try:
                outcome = evaluate(*point)
            except Exception as error:
                outcome = error
            trips.put(Trip(time.perf_counter() - began, graphs.n == n_graphs, outcome))

    threading.Thread(target=loop, name="soak", daemon=True).start()
    return trips


def count(tally: Tally, trip: Trip, right: list[bytes]) -> None:
    """Count one evaluation."""
    tally.evaluations += 1
    tally.times.append(trip.seconds)
    if isinstance(trip.outcome, BaseException):
        tally.lost += 1
        tally.errors.append(f"evaluation {tally.evaluations}: {type(trip.outcome).__name__}: {trip.outcome}")
    else:
        tally.hot += trip.hot
        tally.wrong += bits(trip.outcome) != right


def bits(outcome: Outcome) -> list[bytes]:
    """What has to agree."""
    value, gradients = outcome
    return [np.asarray(part).tobytes() for part in (value, *gradients)]


class Graphs(SchedulerPlugin):
    """Counts the graphs that are sent to the scheduler, which lives in this process."""

    name = "soak-graphs"

    def __init__(self) -> None:
        self.n = 0

    def update_graph(self, scheduler: Scheduler, **more: Any) -> None:
        """Count one."""
        self.n += 1


class Killer:
    """Kills one of the workers every few seconds, the next one each time; one that has yet to come up is spared."""

    def __init__(self, cluster: Any, every: float) -> None:
        self._cluster, self._every, self.kills = cluster, every, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="killer", daemon=True)

    def __enter__(self) -> Killer:
        if self._every:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._every:
            self._thread.join()

    def _work(self) -> None:
        nannies = itertools.cycle(list(self._cluster.workers.values()))
        while not self._over.wait(self._every):
            nanny = next(nannies)
            if nanny.worker_address in self._cluster.scheduler.workers and nanny.pid:
                os.kill(nanny.pid, signal.SIGKILL)
                self.kills += 1


def print_tallies(calm: Tally, rough: Tally) -> None:
    """The table, and what a death costs."""
    table = Table(title="soak  a hot loop on two workers", title_justify="left", title_style="bold")
    for name in ("workers", "evaluations", "kills", "lost", "wrong", "hung", "hot", "s", "median ms", "longest s"):
        table.add_column(name, justify="right")
    for name, tally in {"left alone": calm, "killed": rough}.items():
        figures = (tally.evaluations, tally.kills, tally.lost, tally.wrong, tally.hung)
        hot, longest = f"{tally.hot / max(tally.evaluations, 1):.1%}", f"{max(tally.times, default=0.0):.2f}"
        table.add_row(name, *map(str, figures), hot, f"{tally.seconds:.1f}", f"{1e3 * tally.median:.1f}", longest)
    report.console.print(table)
    if rough.kills:
        totals, beyond = rough.seconds - calm.seconds, rough.beyond_median - calm.beyond_median
        report.console.print(
            f"time lost per kill: {totals / rough.kills:.2f} s; beyond medians {beyond / rough.kills:.2f} s"
        )
    for text in (*calm.errors, *rough.errors)[:10]:
        report.console.print(text)


if __name__ == "__main__":
    main()
