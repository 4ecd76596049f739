"""What the setting `dagad.check-finite` costs: evaluations with it and without take turns, thousands of times.

    python tests/benchmarks/check_finite.py [--pairs N] [--only inline]

A chunk is some rows of a logistic regression: value and gradient of about 100 us to 1 ms, and one with a long gradient.
An evaluation is short, so that those beside each other find the machine alike; the median says what a look costs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster

import dagad


def log_likelihood(rows: Any, theta: Any) -> Any:
    x, y = rows
    logits = np.dot(x, theta)
    return np.sum(y * logits - np.logaddexp(0.0, logits))


def data(n_chunks: int, n_rows: int, n_columns: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n_chunks * n_rows, n_columns))
    return x, (rng.random(len(x)) < 0.5) * 1.0


def seconds(call: Callable[[], Any], clock: Callable[[], float], *, on: bool) -> float:
    with dask.config.set({"dagad.check-finite": on}):
        began = clock()
        call()
        return clock() - began


def ratios(calls: dict[bool, Callable[[], Any]], clock: Callable[[], float], pairs: int) -> tuple[float, ...]:
    """Return the best tenth of seconds without the setting, then ratios: of the best tenths, medians, neighbours."""
    turns = [(False, True), (True, False)]
    found = [{on: seconds(calls[on], clock, on=on) for on in turns[number % 2]} for number in range(pairs + 20)]
    off, on = (sorted(one[which] for one in found[20:]) for which in (False, True))
    tenth, middle = len(off) // 10, len(off) // 2
    by_pairs = statistics.median(one[True] / one[False] for one in found[20:])
    return off[tenth], on[tenth] / off[tenth], on[middle] / off[middle], by_pairs


N_CHUNKS = 20
CASES = {"100 us": (200, 10), "1 ms": (4000, 20), "long gradient": (40, 5000)}  # rows of a chunk, columns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--only", choices=["inline", "threads", "hot loop"], default=None)
    options = parser.parse_args()
    print("case           where      us/chunk  best tenth    medians neighbours")

    def report(name: str, where: str, sources: list[Any], scheduler: Any) -> None:
        n_rows, n_columns = CASES[name]
        theta = np.zeros(n_columns)
        clock = time.perf_counter if where == "hot loop" else time.process_time  # which others' work does not move

        def evaluated(source: Any) -> Callable[[], Any]:
            fun = partial(dagad.reduce_sum, log_likelihood, source, grainsize=n_rows, scheduler=scheduler)
            return lambda: dagad.value_and_grad(fun)(theta)

        # Each has Shards of its own, so that none has to make workers forget the program of the other.
        off, *by = ratios({on: evaluated(sources[on]) for on in (False, True)}, clock, options.pairs)
        print(f"{name:14} {where:9} {1e6 * off / N_CHUNKS:9.0f} {by[0]:10.4f} {by[1]:10.4f} {by[2]:10.4f}", flush=True)

    for name, (n_rows, n_columns) in CASES.items():
        rows = data(N_CHUNKS, n_rows, n_columns)
        for where, scheduler in (("inline", "sync"), ("threads", "threads")):
            if options.only in (None, where):
                report(name, where, [rows, rows], scheduler)
        if options.only in (None, "hot loop"):
            with (
                LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as made,
                Client(made) as client,
            ):
                shards = [dagad.shard(rows, grainsize=n_rows, scheduler=client) for _ in range(2)]
                report(name, "hot loop", shards, None)


if __name__ == "__main__":
    main()
