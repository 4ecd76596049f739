"""Chunks in plain numpy beside chunks in `autograd.numpy`: ``python tests/benchmarks/plain_numpy.py``.

Prints how many times as much processor time value and gradient take, the median of interleaved pairs: of three models,
and of every function of the guide's table that autograd has too, on 12 numbers, where only the overhead shows.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np

import dagad

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))
import test_numpy_protocols as table

from support import called

ROWS = np.random.default_rng(0).normal(size=(20_000, 5))
PAIRS = 41


def least_squares(xp: Any) -> Callable[..., Any]:
    return lambda rows, t: xp.sum((rows[:, 0] - xp.dot(rows[:, 1:], t)) ** 2)


def logistic(xp: Any) -> Callable[..., Any]:
    return lambda rows, t: xp.sum(xp.logaddexp(0.0, xp.dot(rows[:, 1:], t))) - xp.mean(rows[:, 0])


def mixture(xp: Any) -> Callable[..., Any]:
    def chunk(rows: Any, t: Any) -> Any:
        parts = xp.stack([xp.exp(-((rows[:, 0] - t[k]) ** 2)) for k in range(4)], axis=1)
        return xp.sum(xp.log(xp.sum(parts, axis=1)))

    return chunk


def ratio(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float]:
    """Return how many times as long one takes as the other, and how many milliseconds the other takes."""
    found: list[float] = []
    seconds: list[float] = []
    for _ in range(PAIRS):
        times = []
        for call in (ours, theirs, ours, theirs):
            began = time.thread_time()
            call()
            times.append(time.thread_time() - began)
        found.append((times[0] + times[2]) / (times[1] + times[3]))
        seconds.append(min(times[1], times[3]))
    return statistics.median(found), 1e3 * statistics.median(seconds)


def of_models() -> None:
    """Compare whole models."""
    theta = np.full(4, 0.3)
    for model in (least_squares, logistic, mixture):
        calls = []
        for xp in (np, anp):
            chunk = model(xp)
            evaluate = dagad.value_and_grad(
                lambda t, f=chunk: dagad.reduce_sum(f, ROWS, t, grainsize=5_000, scheduler="sync")
            )
            calls.append(lambda f=evaluate: f(theta))
        print("{:40} {:6.3f} of {:8.3f} ms".format(model.__name__, *ratio(*calls)))


def of_functions(copies: int) -> None:
    """Compare functions one by one, each called `copies` times on 12 numbers, or once on so many rows."""
    found = []
    for call in table.CALLS:
        if table.by_autograd(call) is None:
            continue
        pair = []
        for names in (called.PLAIN, table.TRACED):
            chunk = called.evaluated(call, names)
            loss = dagad.value_and_grad(
                lambda x, f=chunk: dagad.reduce_sum(
                    lambda rows, x: sum([f(rows, x) for _ in range(copies)]), np.ones(1), x, scheduler="sync"
                )
            )
            pair.append(lambda loss=loss: loss(called.X))
        found.append((ratio(*pair)[0], call))
    found.sort()
    ratios = [each for each, _ in found]
    tenth = ratios[int(0.9 * len(found))]
    print(f"{len(found)} functions: median {statistics.median(ratios):.3f}, 90 % below {tenth:.3f}")
    for each, call in found[-10:]:
        print(f"    {each:6.3f} {call}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    of_models()
    PAIRS = 5
    of_functions(20)
