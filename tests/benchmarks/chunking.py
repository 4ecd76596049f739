"""What cutting costs: ``python tests/benchmarks/chunking.py [--rows N] [--groups N] [--rounds N]``.

The model of brms' vignette on threading: Poisson counts, an intercept, two slopes and an intercept per group. It is cut
into 1, 2, 4, ... chunks, in one thread, in threads, with a function that brings its own derivative, and in a plain loop
of autograd. All of them take turns, so that a machine that slows down slows all. Printed are times relative to one
chunk in one thread: those of the shortest runs, and the median over the rounds. One thread is timed by the processor's
clock, which stands still while others use it; threads by the wall's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import autograd
import autograd.numpy as anp
import dask
import numpy as np
import report

import dagad
from dagad.extend import explicit

COUNTS = tuple(2**k for k in range(9))
SPREAD = 0.5
LOOP = "autograd in a loop"
Times = dict[tuple[str, int], list[tuple[float, float]]]


class Data(NamedTuple):
    """Rows of the data."""

    covariates: Any
    group: Any
    counts: Any


def simulate(n_rows: int, n_groups: int) -> Data:
    """Shuffled rows, as in the vignette, so that chunks cost alike."""
    rng = np.random.default_rng(647)
    covariates = np.column_stack([np.ones(n_rows), rng.normal(size=(n_rows, 2))])
    group = rng.integers(n_groups, size=n_rows)
    eta = covariates @ [0.5, 0.2, -0.3] + rng.normal(scale=SPREAD, size=n_groups)[group]
    return Data(covariates, group, rng.poisson(np.exp(eta)).astype(float))


def log_likelihood(rows: Data, beta: Any, intercepts: Any) -> Any:
    """Poisson regression, as a user writes it."""
    eta = anp.dot(rows.covariates, beta) + intercepts[rows.group]
    return anp.sum(rows.counts * eta - anp.exp(eta))


def with_derivative(rows: Data, beta: Any, intercepts: Any) -> Any:
    """The same with its derivative: what Stan's `poisson_log_glm` is to a sum over terms."""
    eta = rows.covariates @ beta + intercepts[rows.group]
    mean = np.exp(eta)
    left = rows.counts - mean

    def pullback(seed: Any) -> Any:
        into_groups = np.bincount(rows.group, left, minlength=len(intercepts))
        return None, seed * (left @ rows.covariates), seed * into_groups

    return np.sum(rows.counts * eta - mean), pullback


FORMS = (
    ("one thread", log_likelihood, "sync"),
    ("one thread, own derivative", explicit(with_derivative), "sync"),
    ("threads (by the wall's clock)", log_likelihood, "threads"),
)


def log_posterior(function: Any, data: Data, n_chunks: int, scheduler: str, theta: Any) -> Any:
    """Likelihood in chunks, priors around them."""
    intercepts = np.exp(theta["log_sd"]) * theta["z"]
    grainsize = -(-len(data.counts) // n_chunks)
    total = dagad.reduce_sum(function, data, theta["beta"], intercepts, grainsize=grainsize, scheduler=scheduler)
    return total - 0.5 * np.sum(theta["z"] ** 2) - 0.5 * np.sum(theta["beta"] ** 2) - 0.5 * theta["log_sd"] ** 2


def loop(data: Data, n_chunks: int, theta: Any) -> Any:
    """Plain autograd, chunk by chunk: what of the cost is not dagad's."""
    intercepts = np.exp(theta["log_sd"]) * theta["z"]
    size = -(-len(data.counts) // n_chunks)
    both = autograd.value_and_grad(lambda pair, rows: log_likelihood(rows, *pair))
    cuts = [slice(start, start + size) for start in range(0, len(data.counts), size)]
    parts = [both((theta["beta"], intercepts), Data(*(column[cut] for column in data))) for cut in cuts]
    return sum(value for value, _ in parts), [sum(one) for one in zip(*(part for _, part in parts), strict=True)]


def timed(run: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Seconds of this thread's processor, and of the wall's clock, of one run: the shortest of several."""
    times = []
    for _ in range(repeats):
        began = time.thread_time(), time.perf_counter()
        run()
        times.append((time.thread_time() - began[0], time.perf_counter() - began[1]))
    cpu, wall = zip(*times, strict=True)
    return min(cpu), min(wall)


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    data = simulate(options.rows, options.groups)
    theta = {"beta": np.zeros(3), "log_sd": np.log(SPREAD), "z": np.zeros(options.groups)}
    runs: dict[tuple[str, int], Callable[[], Any]] = {}
    for count in COUNTS:
        for form, f, where in FORMS:
            fun = partial(log_posterior, f, data, count, where)
            runs[form, count] = partial(dagad.value_and_grad(fun), theta)
        runs[LOOP, count] = partial(loop, data, count, theta)
    times: Times = {key: [] for key in runs}
    with dask.config.set(num_workers=len(os.sched_getaffinity(0))):
        for run in runs.values():
            run(), run(), run()  # where the chunks run best is found out
        for k in range(options.rounds):
            order = list(runs)
            for key in order[k % len(order) :] + order[: k % len(order)]:
                times[key].append(timed(runs[key], max(1, 100_000 // options.rows)))
    show(times, options)


def show(times: Times, options: argparse.Namespace) -> None:
    """Print ratios to one chunk of the same function in one thread, and what that takes."""
    load = ", ".join(f"{one:.0f}" for one in os.getloadavg())
    facts = report.machine()
    print(", ".join(f"{name} {facts[name]}" for name in ("cpu", "python", "numpy", "autograd")))
    print(f"load average {load}; {options.rows:,} rows, {options.groups:,} groups, {options.rounds} rounds")
    print(f"{'':34}{'ms':>8}" + "".join(f"{count:>15}" for count in COUNTS))
    for form in dict.fromkeys(form for form, _ in times):
        clock = int("threads" in form)
        base = [pair[clock] for pair in times["one thread" if clock else form, 1]]
        cells = []
        for count in COUNTS:
            found = [pair[clock] for pair in times[form, count]]
            ratios = [one / other for one, other in zip(found, base, strict=True)]
            cells.append(f"{min(found) / min(base):.2f} / {statistics.median(ratios):.2f}")
        print(f"{form:34}{1e3 * min(base):8.3f}" + "".join(f"{cell:>15}" for cell in cells))


if __name__ == "__main__":
    main()
