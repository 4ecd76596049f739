"""What Dask sees of a hot loop: ``python tests/benchmarks/hot_loop_at_work.py [--seconds S] [--only NAME]``.

A client in a process of its own evaluates value and gradient over Shards again and again, in turns on the cluster under
test and on a plain one, half a second each. Each outcome has to have the bits of one thread.

adapt     ``cluster.adapt(minimum=0, maximum=2)``: no worker is retired while the loop runs; afterwards they go, all but
          one while the client still has its Shards (Dask keeps what it needs for the data), then the last
idle      a scheduler with ``--idle-timeout 5s``: it is there when the loop ends, and goes afterwards
lifetime  workers with ``--lifetime 20s --lifetime-restart``: they do go; nothing is lost

Then each once more with a client that is killed in the middle (SIGKILL).

evaluations  on the cluster under test            wrong     whose bits were others
errors       that raised                          gone      workers that left while the loop ran
ratio        of median times, test to plain       tasks     sent to show that work goes on
p99          of the times on the cluster under test
ended        seconds from the end of the loop until Dask has taken note of it, killed likewise
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np
import report
from distributed import Client, LocalCluster, SchedulerPlugin
from rich.table import Table
from threadpoolctl import threadpool_limits

import dagad

N_ROWS, N_COLUMNS, GRAINSIZE, N_POINTS = 160_000, 20, 10_000, 8
TURN_S, PATIENCE_S, KILLED_AFTER_S = 0.5, 120.0, 10.0
IDLE_TIMEOUT, LIFETIME = "5s", "20s"


def main() -> None:
    """Read the command line, run, print, and write the figures down if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each loop")
    parser.add_argument("--only", choices=list(TRIALS), action="append", help="may be given several times")
    parser.add_argument("--json", default="", help="write all figures to this file")
    parser.add_argument("--client", nargs=2, metavar=("TEST", "PLAIN"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        test, plain = options.client
        loop(test, plain, options.seconds)
        return
    report.console.print(" · ".join(f"{name} {value}" for name, value in report.machine().items()))
    found = {}
    for name in options.only or TRIALS:
        found[name] = TRIALS[name](options.seconds)
        print_figures({name: found[name]})
    if options.json:
        figures = {name: asdict(one) for name, one in found.items()}
        with open(options.json, "w") as file:
            json.dump({"machine": report.machine(), **figures}, file, indent=1)
    if any(one.wrong or one.errors or not one.is_alive or (one.gone and not one.may_go) for one in found.values()):
        raise SystemExit("Evaluations were lost or wrong, or workers retired while they worked.")


@dataclass(slots=True)
class Figures:
    """What became of one loop, and what Dask did afterwards."""

    evaluations: int = 0
    wrong: int = 0
    errors: int = 0
    tasks: int | None = None  # not counted where nobody may watch the scheduler, lest it be busy with that
    median_s: float = 0.0
    ratio: float = 0.0
    p99_s: float = 0.0
    gone: int | None = None
    may_go: bool = False
    is_alive: bool = True
    ended_s: dict[str, float] = field(default_factory=dict)


# The client


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.logaddexp(0.0, anp.dot(rows, theta)))


def bits(found: Any) -> list[bytes]:
    return [np.asarray(part).tobytes() for part in found]


class Contender:
    """The loop on one cluster."""

    def __init__(self, address: str, data: Any, expected: list[list[bytes]], points: list[Any]) -> None:
        self.client = Client(address, set_as_default=False)
        self._expected, self._points = expected, points
        self.shards: Any = dagad.shard(data, grainsize=GRAINSIZE, scheduler=self.client)
        self._evaluate = dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, self.shards, theta))
        self._number, self.wrong, self.errors = 0, 0, 0
        self.turns: list[list[float]] = []

    def take_turn(self, seconds: float = TURN_S) -> None:
        """Evaluate for some time."""
        times, until = list[float](), time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            number = self._number = (self._number + 1) % N_POINTS
            try:
                self.wrong += bits(self._evaluate(self._points[number])) != self._expected[number]
            except Exception as error:
                self.errors += 1
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
                time.sleep(0.1)
                continue
            times.append(time.perf_counter() - began)
        self.turns.append(times)


def loop(test: str, plain: str, seconds: float) -> None:
    """Run the loop, say how it went, and wait for the word to let go, then for the word to go."""
    random = np.random.default_rng(0)
    data = random.standard_normal((N_ROWS, N_COLUMNS))
    points = [random.standard_normal(N_COLUMNS) * 0.1 for _ in range(N_POINTS)]
    with threadpool_limits(1):
        here = dagad.value_and_grad(
            lambda theta: dagad.reduce_sum(chunk, data, theta, grainsize=GRAINSIZE, scheduler="sync")
        )
        expected = [bits(here(point)) for point in points]
        tested, other = [Contender(address, data, expected, points) for address in (test, plain)]
        other.shards.scheduler.residents()._keep_alive._look = int  # no task stands for it: Dask sees nothing
        for one in (tested, other):
            one.take_turn(1.0)
            one.turns.clear()
        tell({"is": "hot"})
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            tested.take_turn()
            other.take_turn()
    tell({"is": "done", **figures_of(tested, other)})
    for word in map(str.strip, sys.stdin):
        if word == "let go":
            tested.shards = None
        else:
            break
    os._exit(0)  # as it is, without good-byes


def figures_of(tested: Contender, other: Contender) -> dict[str, Any]:
    pairs = [(one, two) for one, two in zip(tested.turns, other.turns, strict=True) if one and two]
    times = sorted(itertools.chain(*tested.turns))
    return {
        "evaluations": len(times),
        "wrong": tested.wrong + other.wrong,
        "errors": tested.errors + other.errors,
        "median_s": statistics.median(times),
        "p99_s": times[len(times) * 99 // 100],
        "ratio": statistics.median(statistics.median(one) / statistics.median(two) for one, two in pairs),
    }


def tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


# Clusters


class Loops(SchedulerPlugin):
    """Counts the tasks that stand for a loop, and the workers that leave."""

    name = "dagad-benchmarks-loops"

    def __init__(self) -> None:
        self.tasks = self.gone = 0

    def transition(self, key: Any, start: Any, finish: Any, *args: Any, **kwargs: Any) -> None:
        """Count."""
        is_new = start == "released" and finish == "waiting"
        self.tasks += is_new and isinstance(key, tuple) and str(key[0]).startswith("dagad-loop-")

    def remove_worker(self, *args: Any, **kwargs: Any) -> None:
        """Count."""
        self.gone += 1


def counts(dask_scheduler: Any) -> dict[str, int]:
    plugin = dask_scheduler.plugins[Loops.name]
    return {"tasks": plugin.tasks, "gone": plugin.gone}


@contextlib.contextmanager
def a_client_of(test: str, plain: str, seconds: float) -> Iterator[tuple[subprocess.Popen[str], Callable[[], Any]]]:
    """Start the loop; yield the process, and what reads a line from it."""
    command = [sys.executable, __file__, "--client", test, plain, "--seconds", str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, lambda: json.loads(process.stdout.readline())  # type: ignore[union-attr]  # asserted above
        finally:
            process.kill()


def say(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()


@contextlib.contextmanager
def a_plain_cluster() -> Iterator[LocalCluster]:
    options: Any = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(silence_logs=logging.ERROR, **options) as cluster:
        yield cluster


@contextlib.contextmanager
def a_program(name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a scheduler or a worker as one does from a shell."""
    command = [sys.executable, "-m", f"distributed.cli.dask_{name}", *arguments, "--dashboard-address", ":0"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextlib.contextmanager
def programs(scheduler: list[str], worker: list[str]) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start a scheduler and two workers; yield the scheduler's address and process."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        file = Path(folder, "address")
        where = "--scheduler-file", str(file)
        process = stack.enter_context(a_program("scheduler", *where, "--host", "127.0.0.1", "--port", "0", *scheduler))
        for _ in range(2):
            stack.enter_context(a_program("worker", *where, "--nthreads", "1", "--local-directory", folder, *worker))
        seconds_until(lambda: file.exists() and file.read_text().endswith("}"))
        yield json.loads(file.read_text())["address"], process


def seconds_until(condition: Callable[[], Any]) -> float:
    """Return the seconds until something is true, infinite if it does not come true."""
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() > began + PATIENCE_S:
            return float("inf")
        time.sleep(0.05)
    return time.perf_counter() - began


# Trials


def adapt(seconds: float) -> Figures:
    """Run a loop under adaptive scaling."""
    figures = Figures()
    for is_killed in (False, True):
        with a_plain_cluster() as plain, a_plain_cluster() as cluster, Client(cluster, set_as_default=False) as watcher:
            watcher.register_plugin(Loops())
            addresses = cluster.scheduler_address, plain.scheduler_address
            with a_client_of(*addresses, seconds) as (process, read):
                read()
                cluster.adapt(minimum=0, maximum=2, interval="1s")
                if is_killed:
                    time.sleep(min(KILLED_AFTER_S, seconds))
                    process.kill()
                else:
                    found = read()
                    figures = Figures(**found_without(found), **watcher.run_on_scheduler(counts))
                    figures.ended_s["to one worker"] = seconds_until(lambda: len(workers_of(cluster)) <= 1)
                    say(process, "let go")
                name = "killed, to none" if is_killed else "let go, to none"
                figures.ended_s[name] = seconds_until(lambda: not workers_of(cluster))
    return figures


def workers_of(cluster: Any) -> Any:
    return cluster.scheduler.workers


def idle(seconds: float) -> Figures:
    """Run a loop on a cluster that shuts down when it is idle."""
    figures = Figures()
    for is_killed in (False, True):
        with a_plain_cluster() as plain, programs(["--idle-timeout", IDLE_TIMEOUT], []) as (address, scheduler):
            with a_client_of(address, plain.scheduler_address, seconds) as (process, read):
                read()
                with Client(address, set_as_default=False) as watcher:
                    watcher.register_plugin(Loops())
                if is_killed:
                    time.sleep(min(KILLED_AFTER_S, seconds))
                    process.kill()
                else:
                    found = read()
                    figures = Figures(**found_without(found), is_alive=scheduler.poll() is None)
                name = "killed, to shutdown" if is_killed else "to shutdown"
                figures.ended_s[name] = seconds_until(lambda scheduler=scheduler: scheduler.poll() is not None)  # type: ignore[misc]  # defaults
    return figures


def lifetime(seconds: float) -> Figures:
    """Run a loop on workers that go, and come again."""
    figures = Figures()
    options = ["--lifetime", LIFETIME, "--lifetime-stagger", "4s", "--lifetime-restart"]
    for is_killed in (False, True):
        with a_plain_cluster() as plain, programs([], options) as (address, _), Client(address) as watcher:
            watcher.register_plugin(Loops())
            with a_client_of(address, plain.scheduler_address, seconds) as (process, read):
                read()
                if is_killed:
                    time.sleep(min(KILLED_AFTER_S, seconds))
                    process.kill()
                else:
                    found = read()
                    figures = Figures(**found_without(found), **watcher.run_on_scheduler(counts), may_go=True)
                    say(process, "let go")
                name = "killed, to no tasks" if is_killed else "let go, to no tasks"
                figures.ended_s[name] = seconds_until(lambda watcher=watcher: not watcher.run_on_scheduler(n_tasks))  # type: ignore[misc]  # defaults
    return figures


def n_tasks(dask_scheduler: Any) -> int:
    return len(dask_scheduler.tasks)


def found_without(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "is"}


TRIALS: dict[str, Callable[[float], Figures]] = {"adapt": adapt, "idle": idle, "lifetime": lifetime}


def print_figures(found: dict[str, Figures]) -> None:
    """Print a row per trial."""
    table = Table("", "evaluations", "wrong", "errors", "gone", "alive", "tasks", "median", "p99", "ratio", "ended, s")
    for name, one in found.items():
        ended = "\n".join(f"{what} {seconds:.1f}" for what, seconds in one.ended_s.items())
        counted = ("-" if number is None else number for number in (one.gone, one.is_alive, one.tasks))
        numbers = one.evaluations, one.wrong, one.errors, *counted
        times = f"{one.median_s * 1e3:.2f} ms", f"{one.p99_s * 1e3:.1f} ms", f"{one.ratio:.3f}"
        table.add_row(name, *map(str, numbers), *times, ended)
    report.console.print(table)


if __name__ == "__main__":
    main()
