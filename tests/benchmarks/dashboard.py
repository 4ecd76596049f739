"""What the dashboard costs: a transition of a task on the scheduler, and a hot loop while the page is open.

    python tests/benchmarks/dashboard.py [--only transitions|loop] [--rounds N]

Transitions are made up, as many of each kind as a graph has, and given to our plugin and to one that does nothing, in
turns. The hot loop runs in turns with the page open and closed, on two workers; client, scheduler and workers are a
process each. Whoever looks at the page is one more, which takes what the scheduler sends and draws nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import autograd.numpy as anp
import numpy as np
from distributed import Client, SchedulerPlugin

import dagad
from dagad_scheduler import Names
from dagad_scheduler.watching.board import Board
from dagad_scheduler.watching.plugin import DagadPlugin

N_CHUNKS, BLOCK = 1000, 4.0
LIFE = ["released", "waiting", "processing", "memory", "released", "forgotten"]
LOOKS = """
import sys
from bokeh.client import pull_session
session = pull_session(url=sys.argv[1])
print("open", flush=True)
session._loop_until_closed()
"""


class Bare(SchedulerPlugin):
    """Does nothing."""

    def transition(self, key: Any, start: Any, finish: Any, *args: Any, **kwargs: Any) -> None:
        pass


def ours() -> Callable[..., None]:
    plugin = DagadPlugin()
    plugin.board = Board()
    return plugin.board.transition


def lives(token: str, kind: str) -> Iterator[tuple[Any, str, str]]:
    """Yield the transitions of a graph's tasks, as they come: each step for all."""
    names = Names(token, "log-likelihood", gives_gradient=True)
    keys: list[Any] = [names("value", number) for number in range(N_CHUNKS)]
    keys += [names("sum", (1, number)) for number in range(N_CHUNKS // 4)]
    if kind == "others":
        keys = [(f"random-{token}", number) for number in range(N_CHUNKS)]
    for start, finish in itertools.pairwise(LIFE):
        yield from ((key, start, finish) for key in keys)


def seconds_of(transition: Callable[..., None], said: list[tuple[Any, str, str]]) -> float:
    told = {"worker": "tcp://10.0.0.1:1", "nbytes": 28, "typename": "float", "startstops": [], "thread": 1}
    began = time.perf_counter()
    for key, start, finish in said:
        if finish == "memory":
            transition(key, start, finish, stimulus_id="task-finished-1", **told)
        else:
            transition(key, start, finish, stimulus_id="task-finished-1")
    return time.perf_counter() - began


def transitions(rounds: int) -> None:
    bare, board = Bare().transition, ours()
    for kind in ("dagad's", "others"):
        found: dict[str, list[float]] = {"bare": [], "plugin": []}
        for number in range(rounds):
            said = list(lives(f"{number:032x}", kind))
            for name, transition in (("bare", bare), ("plugin", board)):
                found[name].append(1e6 * seconds_of(transition, said) / len(said))
        low = {name: min(times) for name, times in found.items()}
        mid = {name: statistics.median(times) for name, times in found.items()}
        print(
            f"a transition of {kind:8s} us, least (median): bare {low['bare']:.3f} ({mid['bare']:.3f}), "
            f"plugin {low['plugin']:.3f} ({mid['plugin']:.3f}), "
            f"more {low['plugin'] - low['bare']:.3f} ({mid['plugin'] - mid['bare']:.3f})"
        )


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.logaddexp(0.0, anp.dot(rows, theta)))


class Block(NamedTuple):
    """What an evaluation takes in ms, and how busy the scheduler is meanwhile, in percent of a processor."""

    wall: float
    scheduler: float


def loop(rounds: int) -> None:
    with a_cluster() as client:
        shards = dagad.shard(np.random.default_rng(0).standard_normal((20_000, 10)), grainsize=1000, scheduler=client)
        evaluate, theta = dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, shards, theta)), np.zeros(10)
        run = functools.partial(block, client, functools.partial(evaluate, theta))
        run()
        found: dict[str, list[Block]] = {"without": [run() for _ in range(rounds)], "closed": [], "open": []}
        link = dagad.dashboard(client)
        for number in range(2 * rounds):
            name = ("closed", "open", "open", "closed")[number % 4]
            if name == "closed":
                found[name].append(run())
                continue
            with subprocess.Popen([sys.executable, "-c", LOOKS, link], stdout=subprocess.PIPE) as looks:
                assert looks.stdout is not None
                looks.stdout.readline()
                found[name].append(run())
                looks.kill()
    for name, blocks in found.items():
        wall, busy = (statistics.median(times) for times in zip(*blocks, strict=True))
        print(f"hot loop, {name:8s}: {wall:.3f} ms an evaluation, scheduler {busy:.2f} % busy")
    pairs = [one.wall / other.wall for one, other in zip(found["open"], found["closed"], strict=True)]
    print(f"open / closed: median {statistics.median(pairs):.3f}, {[round(one, 3) for one in pairs]}")


def block(client: Client, evaluate: Callable[[], Any]) -> Block:
    """Evaluate for a while."""
    n, before, began = 0, client.run_on_scheduler(time.process_time), time.perf_counter()
    while (wall := time.perf_counter() - began) < BLOCK:
        evaluate()
        n += 1
    busy = client.run_on_scheduler(time.process_time) - before
    return Block(1e3 * wall / n, 100 * busy / wall)


@contextlib.contextmanager
def a_cluster() -> Iterator[Client]:
    """Start a scheduler and two workers, each a process of its own."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        where = ["--scheduler-file", f"{folder}/scheduler.json"]
        dask, quiet = [sys.executable, "-m", "dask"], {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        commands = [[*dask, "scheduler", "--port", "0", "--dashboard-address", ":0", *where]]
        commands += 2 * [[*dask, "worker", "--no-nanny", "--nthreads", "1", "--local-directory", folder, *where]]
        for command in commands:
            stack.callback(subprocess.Popen(command, **quiet).kill)  # type: ignore[call-overload]  # a dict of options
        while not os.path.exists(where[1]):
            time.sleep(0.1)
        with Client(scheduler_file=where[1], set_as_default=False) as client:
            client.wait_for_workers(2)
            yield client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["transitions", "loop"])
    parser.add_argument("--rounds", type=int, default=10)
    chosen = parser.parse_args()
    if chosen.only != "loop":
        transitions(chosen.rounds)
    if chosen.only != "transitions":
        loop(chosen.rounds)


if __name__ == "__main__":
    main()
