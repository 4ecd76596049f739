"""What progress costs: the same evaluations with and without `dagad.progress`, drawn into a pseudo-terminal, in turns.

Loops of 1,000 chunks, in threads, in the calling thread and called directly on a cluster, and loops of small
evaluations, in the calling thread and on a cluster. And what a small evaluation costs that nobody watches, that a block
counts, that is shown, and that is logged, in microseconds of the processor.

Two figures a loop. Ratios of neighbouring rounds say what is added on a quiet machine; their median is shown, and
between which values half of them lie. On a busy one that is noise, so the cost is also added up from its parts: the
processor's time of the thread that draws, which is its own, and for each evaluation the difference of the shortest
times with and without a watcher.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import pty
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

import dagad
from dagad._watching.display import Display

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


def lasting(act: Act, count: int) -> Any:
    """Return the seconds of so many evaluations, by the wall and by the processor."""
    began = np.array([time.perf_counter(), time.process_time()])
    for _ in range(count):
        act()
    return np.array([time.perf_counter(), time.process_time()]) - began


@contextlib.contextmanager
def drawing_timed() -> Iterator[list[float]]:
    """Give the seconds of the processor that threads that draw have taken."""
    spent, tick = list[float](), Display._tick

    def timed(display: Display, pause: threading.Event) -> None:
        tick(display, pause)
        spent.append(time.thread_time())  # the thread's own clock, which began with it

    setattr(Display, "_tick", timed)  # noqa: B010  # mypy refuses to have a method assigned to
    try:
        yield spent
    finally:
        setattr(Display, "_tick", tick)  # noqa: B010  # the same


def costs(act: Act, count: int, rounds: int, added: float) -> None:
    """Print what showing adds to a loop, of which each evaluation costs `added` seconds more when it is watched."""
    with terminal() as file, drawing_timed() as drawing:

        def shown() -> Any:
            with dagad.progress(file=file):
                return lasting(act, count)

        def bare() -> Any:
            return lasting(act, count)

        for run in (bare, shown):
            run()
        drawing.clear()
        pairs = [(bare(), shown()) if number % 2 else (shown(), bare())[::-1] for number in range(rounds)]
    without, with_it = (np.array(times) for times in zip(*pairs, strict=True))
    low, middle, high = np.quantile(100 * (with_it / without - 1), (0.25, 0.5, 0.75), axis=0)
    watched = 100 * (sum(drawing) / without[:, 0].sum() + added / np.median(without[:, 0]) * count)
    each = 1e3 * np.median(without[:, 0]) / count
    print(f"  {each:8.3f} ms each, {count} evaluations a block: by parts +{watched:.2f} %")
    for clock, name in enumerate(("wall", "processor")):
        print(f"  ratios by the {name}: {middle[clock]:+.1f} % ({low[clock]:+.1f} to {high[clock]:+.1f})")


def microseconds(act: Act, count: int = 10, rounds: int = 300) -> dict[str, float]:
    """Return the shortest time of an evaluation, by who watches it."""
    logger, found = logging.getLogger("dagad"), dict[str, list[float]]()
    logger.addHandler(logging.NullHandler())
    logger.propagate = False

    def timed(name: str) -> None:
        found.setdefault(name, []).append(float(lasting(act, count)[1]))

    with terminal() as file:
        for _ in range(rounds):
            timed("unwatched")
            with dagad.progress(show=False):
                timed("counted")
            logger.setLevel(logging.DEBUG)
            timed("logged")
            logger.setLevel(logging.NOTSET)
            with dagad.progress(file=file):
                act()
                timed("shown")
    return {name: 1e6 * min(times) / count for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    rounds = parser.parse_args().rounds

    def on(scheduler: Any) -> Act:
        evaluate = dagad.value_and_grad(
            lambda theta: dagad.reduce_sum(chunk, X, theta, grainsize=200, scheduler=scheduler)
        )
        return lambda: evaluate(THETA)

    rows = X[:1000]
    few = dagad.value_and_grad(lambda theta: dagad.reduce_sum(small, rows, theta, grainsize=1000, scheduler="sync"))
    lasting(lambda: few(THETA), 100)
    each = microseconds(lambda: few(THETA))
    print("microseconds for one small evaluation: " + ", ".join(f"{name} {time:.1f}" for name, time in each.items()))
    added = 1e-6 * (each["shown"] - each["unwatched"])
    print(f"{N_CHUNKS} chunks in threads")
    costs(on("threads"), 20, rounds, added)
    print(f"{N_CHUNKS} chunks in the calling thread")
    costs(on("sync"), 20, rounds, added)
    print("small evaluations in the calling thread")
    costs(lambda: few(THETA), 5000, rounds, added)
    cluster: Any = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    with cluster, Client(cluster) as client:
        shards = dagad.shard(X, grainsize=200, scheduler=client)
        hot = dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, shards, theta))
        print(f"{N_CHUNKS} chunks on a cluster, called directly")
        lasting(lambda: hot(THETA), 20)
        costs(lambda: hot(THETA), 20, rounds, added)
        cut = dagad.shard(rows, grainsize=125, scheduler=client)
        quick = dagad.value_and_grad(lambda theta: dagad.reduce_sum(small, cut, theta))
        print("a hot loop over 8 chunks on a cluster")
        lasting(lambda: quick(THETA), 200)
        costs(lambda: quick(THETA), 1000, rounds, added)


if __name__ == "__main__":
    main()
