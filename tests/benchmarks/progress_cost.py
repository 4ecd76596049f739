"""What progress costs: the same evaluations with and without `dagad.progress`, drawn into a pseudo-terminal, in turns.

Three loops: an evaluation of 1,000 chunks in threads, one of 1,000 chunks in the calling thread, and small evaluations
one after the other, in the calling thread and over Shards on a cluster. And what an evaluation by itself costs that
nobody watches, that a block counts, and that is logged, in microseconds.

Ratios are those of what the processor's clock and the wall clock say for neighbouring rounds; their median is shown,
and between which values half of them lie.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import pty
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

import dagad

N_CHUNKS = 1000
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N_CHUNKS * 200, 5))
THETA = np.full(5, 0.1)
Act = Callable[[], Any]


def chunk(rows: Any, theta: Any) -> Any:
    return np.sum(np.log1p(np.exp(rows @ theta)))


def small(rows: Any, theta: Any) -> Any:
    return np.sum(rows @ theta)


@contextlib.contextmanager
def terminal() -> Iterator[Any]:
    """Give a terminal that somebody reads."""
    ours, theirs = pty.openpty()

    def read() -> None:
        with contextlib.suppress(OSError):
            while os.read(ours, 65536):
                pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with os.fdopen(theirs, "w") as file:
        yield file
    reader.join()
    os.close(ours)


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def lasting(act: Act, count: int) -> tuple[float, float]:
    """Return the seconds of so many evaluations, by the wall and by the processor."""
    began = clocks()
    for _ in range(count):
        act()
    return clocks()[0] - began[0], clocks()[1] - began[1]


def ratios(act: Act, count: int, rounds: int) -> None:
    """Print what is added to a loop by showing it."""
    with terminal() as file:

        def shown() -> tuple[float, float]:
            with dagad.progress(file=file):
                return lasting(act, count)

        def bare() -> tuple[float, float]:
            return lasting(act, count)

        for _ in range(2):
            bare(), shown()
        pairs = []
        for number in range(rounds):
            first, second = (bare, shown) if number % 2 else (shown, bare)
            found = first(), second()
            pairs.append(found if number % 2 else found[::-1])
    each = 1e3 * statistics.median(without[0] for without, _ in pairs) / count
    print(f"  {each:8.3f} ms each", end="")
    for clock, name in enumerate(("wall", "processor")):
        added = [100 * (shown[clock] / without[clock] - 1) for without, shown in pairs]
        low, middle, high = statistics.quantiles(added, n=4)
        whole = 100 * (sum(shown[clock] for _, shown in pairs) / sum(without[clock] for without, _ in pairs) - 1)
        print(f"   {name}: {middle:+.2f} % ({low:+.2f} to {high:+.2f}), in all {whole:+.2f} %", end="")
    print()


def microseconds(act: Act, count: int = 500, rounds: int = 15) -> dict[str, float]:
    """Return the shortest time of an evaluation, by who watches it."""
    logger, found = logging.getLogger("dagad"), dict[str, list[float]]()
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    for _ in range(rounds):
        found.setdefault("unwatched", []).append(lasting(act, count)[1])
        with dagad.progress(show=False):
            found.setdefault("counted", []).append(lasting(act, count)[1])
        with terminal() as file, dagad.progress(file=file):
            found.setdefault("shown", []).append(lasting(act, count)[1])
        logger.setLevel(logging.DEBUG)
        found.setdefault("logged", []).append(lasting(act, count)[1])
        logger.setLevel(logging.NOTSET)
    return {name: 1e6 * min(times) / count for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds

    def on(scheduler: Any) -> Act:
        evaluate = dagad.value_and_grad(
            lambda theta: dagad.reduce_sum(chunk, X, theta, grainsize=200, scheduler=scheduler)
        )
        return lambda: evaluate(THETA)

    rows = X[:1000]
    few = dagad.value_and_grad(lambda theta: dagad.reduce_sum(small, rows, theta, grainsize=1000, scheduler="sync"))
    print(f"{N_CHUNKS} chunks in threads")
    ratios(on("threads"), 5, rounds)
    print(f"{N_CHUNKS} chunks in the calling thread")
    ratios(on("sync"), 5, rounds)
    print("small evaluations in the calling thread")
    ratios(lambda: few(THETA), 5000, rounds)
    cluster: Any = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    with cluster, Client(cluster) as client:
        shards = dagad.shard(X, grainsize=200, scheduler=client)
        hot = dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, shards, theta))
        print(f"{N_CHUNKS} chunks on a cluster, called directly")
        lasting(lambda: hot(THETA), 20)
        ratios(lambda: hot(THETA), 20, rounds)
        cut = dagad.shard(rows, grainsize=125, scheduler=client)
        quick = dagad.value_and_grad(lambda theta: dagad.reduce_sum(small, cut, theta))
        print("a hot loop over 8 chunks on a cluster")
        lasting(lambda: quick(THETA), 200)
        ratios(lambda: quick(THETA), 500, rounds)
    print("microseconds of the processor for one small evaluation:")
    print("  " + ", ".join(f"{name} {found:.1f}" for name, found in microseconds(lambda: few(THETA)).items()))


if __name__ == "__main__":
    main()
