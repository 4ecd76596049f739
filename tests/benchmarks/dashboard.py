"""What the dashboard costs: a transition of a task on the scheduler, and a hot loop while the page is open.

    python tests/benchmarks/dashboard.py [--only transitions|loop] [--rounds N]

Transitions are made up, as many of each kind as a graph has, and given to our plugin and to one that does nothing, in
turns. The hot loop runs in turns with the page open and closed, on two workers that are processes; whoever looks at the
page is a third one, which takes what the scheduler sends and draws nothing.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import autograd.numpy as anp
import numpy as np
from distributed import Client, LocalCluster, SchedulerPlugin

import dagad
from dagad_scheduler import Names
from dagad_scheduler.board import Board
from dagad_scheduler.plugin import DagadPlugin

N_CHUNKS, BLOCK = 1000, 2.0
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
    names = Names(token, "log-likelihood", together=True)
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


def loop(rounds: int) -> None:
    options: Any = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        shards = dagad.shard(np.random.default_rng(0).standard_normal((20_000, 10)), grainsize=1000)
        evaluate, theta = dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, shards, theta)), np.zeros(10)
        for_seconds(evaluate, theta, 3.0)
        without = [for_seconds(evaluate, theta, BLOCK) for _ in range(rounds)]
        link = dagad.dashboard(client)
        for_seconds(evaluate, theta, 3.0)
        found: dict[str, list[float]] = {"closed": [], "open": []}
        for number in range(2 * rounds):
            name = ("closed", "open", "open", "closed")[number % 4]
            if name == "closed":
                found[name].append(for_seconds(evaluate, theta, BLOCK))
                continue
            with subprocess.Popen([sys.executable, "-c", LOOKS, link], stdout=subprocess.PIPE) as looks:
                assert looks.stdout is not None
                looks.stdout.readline()
                for_seconds(evaluate, theta, 0.5)
                found[name].append(for_seconds(evaluate, theta, BLOCK))
                looks.kill()
        print(f"hot loop before there is a plugin: {statistics.median(without):.3f} ms an evaluation")
        for name, times in found.items():
            print(f"hot loop, page {name:6s}: median {statistics.median(times):.3f} ms, least {min(times):.3f} ms")
        pairs = [opened / closed for opened, closed in zip(found["open"], found["closed"], strict=True)]
        print(f"open / closed, pair by pair: median {statistics.median(pairs):.3f}, {[round(one, 3) for one in pairs]}")


def for_seconds(evaluate: Callable[[Any], Any], theta: Any, seconds: float) -> float:
    """Evaluate for a while; return the median time of an evaluation in ms."""
    times, ends = list[float](), time.perf_counter() + seconds
    while (began := time.perf_counter()) < ends:
        evaluate(theta)
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


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
