"""Many workers: ``python tests/benchmarks/scale.py [--workers 10,60,100] [--costs] [--plot FILE] [--json FILE]``.

Real worker processes of one thread each, on this machine: a hot loop over Shards by a client that calls the workers,
by one that reaches the scheduler only, and the same as a graph with a task for each worker. Parameters of 100 kB, one
chunk a worker. Each outcome has to have the bits of one thread. What one evaluation sends is counted where it is sent
and where it is read, by messages and bytes:

client      all connections of the client        in, out      kB received and sent
sched       all of the scheduler's               msgs         messages received and sent
across      kB from worker to worker             ms           of the processor's clock, for a process alone
a worker    kB that leave the scheduler          work ms      the same, of all workers together
            for each worker                      share        of parameters and gradient, that a worker has of them

Through the scheduler go at most parameters and gradient for each worker; this is asserted.

--costs     measure what messages and tasks cost, the constants of `dagad/_executors/routes.py`
--model     print what the model says, from ten to ten thousand workers; needs no workers
--plot      draw it
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import autograd.numpy as anp
import numpy as np
import report
from distributed import Client
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what it shares with the tests
import dagad
from dagad._executors import routes
from dagad._executors.routes import ROUTES, Site, Work, crossing
from support.many_workers import Traffic, Wire, many_workers, out_of_reach, traffic_here  # found by the line above

N_PARAMETERS = 12_500
ROADS = ("direct", "relayed", "tree")
WARM_S, LOOP_S, FEWEST = 2.0, 4.0, 5
WORDS = 5_000  # bytes of words that may come with the parameters and the gradient of a worker
NUMBERS = (10, 30, 60, 100, 300, 1000, 3000, 10_000)
THETAS = (1e3, 1e4, 1e5, 1e6, 1e7)
console = Console(width=160, highlight=False)
SITES = {
    "1 Gbit/s": Site(bandwidth=0.125e9, client_bandwidth=0.125e9),
    "10 Gbit/s": Site(),
    "100 Gbit/s": Site(bandwidth=12.5e9, client_bandwidth=12.5e9),
    "10 Gbit/s, 100 Mbit/s to the client": Site(client_bandwidth=0.0125e9),
}
COMPUTING = 0.01  # seconds of a worker for its chunks: a station that is busy for longer keeps workers waiting


def main() -> None:
    """Read the command line, measure, print, and write the figures down if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="10,60,100", help="how many, with commas")
    parser.add_argument("--chunks", type=int, default=1, help="for each worker")
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--plot", default="", metavar="FILE")
    parser.add_argument("--json", default="", help="write all figures to this file")
    options = parser.parse_args()
    if options.model or options.plot:
        print_model()
        if options.plot:
            draw(options.plot)
        return
    console.print(" · ".join(f"{name} {value}" for name, value in report.machine().items()))
    counts = [int(word) for word in options.workers.split(",")]
    sizes = (8, N_PARAMETERS) if options.costs else (N_PARAMETERS,)
    with threadpool_limits(1):
        found = [one for count in counts for one in measured(count, sizes, options.chunks)]
    print_traffic(found)
    if options.costs:
        print_costs(found)
    print_beside_model([one for one in found if one.theta == sizes[-1] * 8])
    if options.json:
        with open(options.json, "w") as file:
            json.dump([one._asdict() for one in found], file, indent=1)


class Sample(NamedTuple):
    """One evaluation, on average over a loop."""

    n_workers: int
    road: str
    theta: int
    wall: float
    client: Traffic
    scheduler: Traffic
    workers: Traffic
    to_scheduler: Traffic  # the client's part of it

    @property
    def across(self) -> float:
        """Bytes from worker to worker: what workers send that neither the scheduler nor the client receives."""
        to_client = self.client.bytes_in - self.to_scheduler.bytes_in
        to_scheduler = self.scheduler.bytes_in - self.to_scheduler.bytes_out
        return self.workers.bytes_out - to_scheduler - to_client


def chunk(rows: Any, theta: Any) -> Any:
    """Next to no work."""
    return anp.sum(rows[:, 0]) * anp.sum(theta**2)


def loss_on(rows: Any, **options: Any) -> Callable[[Any], Any]:
    """Value and gradient in the parameters."""
    loss: Callable[[Any], Any] = dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, rows, theta, **options))
    return loss


def measured(n_workers: int, sizes: tuple[int, ...], n_chunks: int) -> Iterator[Sample]:
    """Measure all roads on so many workers."""
    rows = np.random.default_rng(0).standard_normal((2 * n_chunks * n_workers, 1))
    with many_workers(n_workers) as client, Wire().counting() as wire:
        there = loss_on(dagad.shard(rows, grainsize=2, scheduler=client))
        here = loss_on(rows, grainsize=2, scheduler="sync")
        for size in sizes:
            theta = np.linspace(-1.0, 1.0, size)
            for road in ROADS:
                with taking(road, client):
                    found = sample(client, wire, n_workers, road, there, theta)
                    value, gradient = there(theta)
                right, expected = here(theta)
                if (value, gradient.tobytes()) != (right, expected.tobytes()):
                    raise SystemExit(f"{road} on {n_workers} workers: other bits than on one thread.")
                bound(found)
                yield found


@contextmanager
def taking(road: str, client: Client) -> Iterator[None]:
    """Have evaluations take a road, for a while."""
    with patch.object(routes.Trips, "prefer_tree", road == "tree"):
        with out_of_reach(client) if road == "relayed" else nullcontext():
            yield


def sample(
    client: Client, wire: Wire, n_workers: int, road: str, act: Callable[[Any], Any], theta: np.ndarray[Any, Any]
) -> Sample:
    """Count what a loop sends, after it has been going on for a while."""
    looped(act, theta, WARM_S)
    address = client.scheduler_info()["address"]

    def now() -> list[Traffic]:
        workers = np.sum(list(client.run(traffic_here).values()), axis=0)
        return [wire.traffic(), client.run_on_scheduler(traffic_here), Traffic(*workers), wire.traffic(address)]

    first, before = now(), now()
    asking = [then.since(one) for one, then in zip(first, before, strict=True)]
    began = time.perf_counter()
    count = looped(act, theta, LOOP_S)
    wall = (time.perf_counter() - began) / count
    after = now()
    found = [then.since(one).since(ask, count) for one, then, ask in zip(before, after, asking, strict=True)]
    return Sample(n_workers, road, theta.nbytes, wall, *found)


def looped(act: Callable[[Any], Any], theta: np.ndarray[Any, Any], seconds: float) -> int:
    """Evaluate for so many seconds, at parameters that are new each time; return how often."""
    began, count = time.perf_counter(), 0
    while count < FEWEST or time.perf_counter() < began + seconds:
        count += 1
        act(theta * (1.0 + 0.01 * count))
    return count


def bound(one: Sample) -> None:
    """Raise where more goes through the scheduler than parameters and gradient for each worker."""
    most = one.n_workers * (2 * one.theta + WORDS)
    if max(one.scheduler.bytes_in, one.scheduler.bytes_out) > most:
        raise SystemExit(f"{one.road} on {one.n_workers} workers: more than {most:,} bytes through the scheduler.")


def print_traffic(found: list[Sample]) -> None:
    """What was counted."""
    table = Table(title="one evaluation; kB, messages, milliseconds of processors", title_justify="left")
    for name in ("workers", "road", "theta", "client in", "out", "ms", "sched in", "out", "msgs in", "msgs out", "ms"):
        table.add_column(name, justify="right")
    for name in ("a worker", "share", "across", "work ms", "wall ms"):
        table.add_column(name, justify="right")
    for one in found:
        client, scheduler = one.client, one.scheduler
        cells = [one.n_workers, one.road, f"{one.theta / 1e3:g}", *kilo(client), milli(client), *kilo(scheduler)]
        cells += [f"{scheduler.received:.1f}", f"{scheduler.sent:.1f}", milli(scheduler)]
        share = scheduler.bytes_out / one.n_workers
        cells += [f"{share / 1e3:.1f}", f"{share / (2 * one.theta):.1%}", f"{one.across / 1e3:.1f}"]
        table.add_row(*map(str, cells), f"{1e3 * one.workers.seconds:.0f}", f"{1e3 * one.wall:.0f}")
    console.print(table)


def kilo(one: Traffic) -> tuple[str, str]:
    """Bytes in and out."""
    return f"{one.bytes_in / 1e3:,.1f}", f"{one.bytes_out / 1e3:,.1f}"


def milli(one: Traffic) -> str:
    """Processor's time."""
    return f"{1e3 * one.seconds:.1f}"


def print_costs(found: list[Sample]) -> None:
    """The constants: slopes from the fewest workers to the most, and of bytes from small parameters to large ones."""
    few, most = min(one.n_workers for one in found), max(one.n_workers for one in found)
    small, large = min(one.theta for one in found), max(one.theta for one in found)
    at = {(one.n_workers, one.road, one.theta): one for one in found}

    def slope(road: str, who: str, field: str = "seconds") -> float:
        high, low = (getattr(getattr(at[n, road, small], who), field) for n in (most, few))
        return float(high - low) / (most - few)

    def byte(road: str, who: str, n_times: float) -> float:
        high, low = (getattr(at[most, road, theta], who).seconds for theta in (large, small))
        return float(high - low) / (n_times * most * (large - small))

    costs = {
        "client, a worker called directly: CLIENT_CALL + CLIENT_REPLY": slope("direct", "client"),
        "client, a worker called by the scheduler: CLIENT_REPLY": slope("relayed", "client"),
        "scheduler, a worker called by it: RELAYED_CALL": slope("relayed", "scheduler"),
        "client, a task: CLIENT_TASK": slope("tree", "client"),
        "scheduler, a task or a sum: SCHEDULER_TASK": slope("tree", "scheduler") / SUMS,
        "bytes of a task at the scheduler, out: TASK_BYTES": slope("tree", "scheduler", "bytes_out") / SUMS,
        "client, a byte, here: Site.byte": byte("direct", "client", 2),
        "scheduler, a byte, here: Site.byte": byte("relayed", "scheduler", 3),
    }
    table = Table("what costs", "seconds of a processor, or bytes", title=f"from {few} workers to {most}")
    for name, cost in costs.items():
        table.add_row(name, f"{cost:.3g}")
    console.print(table)


SUMS = 8 / 7  # tasks and sums for each task, as a sum is of eight terms


def print_beside_model(found: list[Sample]) -> None:
    """What the model says of the same evaluations."""
    table = Table(title="milliseconds of processors: measured / by the model", title_justify="left")
    for name in ("workers", "road", "client", "scheduler"):
        table.add_column(name, justify="right")
    for one in found:
        work = Work(one.n_workers, one.theta, one.theta)
        busy = ROUTES[one.road](work, Site()).busy
        cells = [f"{milli(getattr(one, who))} / {1e3 * busy.get(who, 0.0):.1f}" for who in ("client", "scheduler")]
        table.add_row(str(one.n_workers), one.road, *cells)
    console.print(table)


def print_model() -> None:
    """Times, what is busy longest, and from how many workers on the tree is faster."""
    title = (
        f"milliseconds of an evaluation, and what is busy longest; theta and gradient of 100 kB, 10 Gbit/s, "
        f"{1e3 * COMPUTING:g} ms of each worker"
    )
    table = Table("workers", *ROUTES, title=title, title_justify="left")
    for n in NUMBERS:
        found = [route(Work(n, 1e5, 1e5, n_chunks=4 * n, seconds=COMPUTING / 4), Site()) for route in ROUTES.values()]
        table.add_row(f"{n:,}", *[f"{1e3 * one.seconds:,.1f} {one.saturated}" for one in found])
    console.print(table)
    table = Table(
        "station", title=f"workers from which a station is busy longer than they are ({1e3 * COMPUTING:g} ms)"
    )
    for theta in THETAS:
        table.add_column(size_of(theta), justify="right")
    for name, route in ROUTES.items():
        for station in route(Work(1, 1.0, 1.0), Site()).busy:
            if station != "workers":
                numbers = [saturation(route, station, theta) for theta in THETAS]
                table.add_row(f"{name}: {station}", *map(number, numbers))
    console.print(table)
    table = Table("links", "called", title="workers from which the graph is faster")
    for theta in THETAS:
        table.add_column(size_of(theta), justify="right")
    for links, site in SITES.items():
        for name in ("direct", "relayed"):
            crossings = [crossing(Work(1, theta, theta), site, ROUTES[name]) for theta in THETAS]
            table.add_row(links, name, *map(number, crossings))
    console.print(table)


def size_of(theta: float) -> str:
    """Bytes, in words."""
    return f"{theta / 1e6:g} MB" if theta >= 1e6 else f"{theta / 1e3:g} kB"


def number(count: int | None) -> str:
    """A number of workers."""
    return "never" if count is None else f"{count:,}"


def saturation(route: Callable[[Work, Site], Any], station: str, theta: float) -> int | None:
    """The fewest workers, in steps of a twentieth, at which a station is busy longer than they are."""
    n = 1
    while n <= routes.MOST_WORKERS:
        if route(Work(n, theta, theta), Site()).busy[station] > COMPUTING:
            return n
        n = max(n + 1, n * 21 // 20)
    return None


# What the page with the picture calls them.
SHOWN = {"direct": "hot loop", "relayed": "by the scheduler", "tree": "graph"}


def draw(path: str) -> None:
    """Times by workers, and the crossing by size of the parameters."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12.0, 4.0), constrained_layout=True)
    numbers = np.unique(np.geomspace(10, 10_000, 60).astype(int))
    for theta, style in ((1e5, "-"), (1e6, ":")):
        for (name, route), colour in zip(ROUTES.items(), ("C0", "C1", "0.6", "C2"), strict=True):
            if name == "graph":  # differs from the tree by its tasks only
                continue
            times = [1e3 * route(Work(int(n), theta, theta, seconds=COMPUTING), Site()).seconds for n in numbers]
            left.loglog(numbers, times, style, color=colour, label=f"{SHOWN[name]}, {size_of(theta)}")
    left.set(xlabel="workers", ylabel="ms of an evaluation", title="links of 10 Gbit/s, workers compute 10 ms")
    left.legend(fontsize=7)
    sizes = np.geomspace(1e4, 1e8, 80)
    for (links, site), colour in zip(SITES.items(), ("C3", "C4", "C5", "C6"), strict=True):
        for name, style in (("direct", "-"), ("relayed", "--")):
            found = [crossing(Work(1, t, t), site, ROUTES[name]) or np.nan for t in sizes]
            right.loglog(sizes / 1e3, found, style, color=colour, label=f"{links}, {SHOWN[name]}")
    right.set(
        xlabel="kB of parameters, and of the gradient", title="workers from which the graph is faster", ylim=(5, 1e5)
    )
    right.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main()
