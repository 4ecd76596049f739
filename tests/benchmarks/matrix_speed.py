"""Measure modes against gradients where chunks are cheap: ``python tests/benchmarks/matrix_speed.py [--only hot]``.

hot       on a cluster of two processes, rows in Shards: hvp and jvp, in gradients of the same program
map_rect  there too: a gradient through the curves of 1,000 small subjects, at 63 chunks beside 4
inline    64 cheap chunks on threads: gradient, jvp and hvp beside a bare loop with plain autograd over the same chunks

The two sides of a ratio take turns call by call. What is judged is the median, over the rounds, of one side's median
time over the other's. Before anything is timed, both have to give what plain autograd gives on the whole function.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import autograd
import autograd.numpy as anp
import numpy as np
import report
from cluster_pairs import workers
from models import Array
from rich.table import Table
from threadpoolctl import threadpool_limits

import dagad

ROUNDS, CALLS, WARM_UP = 8, 20, 6
RNG = np.random.default_rng(9)
THETA = RNG.standard_normal(8) * 0.3
VECTOR = RNG.standard_normal(8)
TOLERANCE = 1e-10

N_SUBJECTS = 1000
SUBJECTS = [np.sort(RNG.uniform(0.0, 4.0, 2 + n % 5)) for n in range(N_SUBJECTS)]
OBSERVED = np.concatenate([np.exp(-0.7 * times) for times in SUBJECTS])
RATES = np.array([0.5, 0.2, -0.1])

Call = Callable[[], Any]


class Pair(NamedTuple):
    """What is measured, against what, and how many times as long it may take."""

    name: str
    call: Call
    other_name: str
    other: Call
    bar: float


def main() -> None:
    """Read the command line, run, print, and write the figures down if asked to."""
    options = arguments()
    report.print_machine("the other side")
    record: dict[str, Any] = {"machine": report.machine(), "ratios": {}}
    table = Table(title="modes and executors", title_justify="left", title_style="bold")
    for name in ("what", "ms", "beside", "ms", "ratio", "rounds from", "to", "by minima", "bar"):
        table.add_column(name, justify="left" if name in ("what", "beside", "bar") else "right")
    with threadpool_limits(1):
        for section in SECTIONS if not options.only else options.only.split(","):
            with ExitStack() as stack:
                for pair in SECTIONS[section](stack):
                    times = turns(pair, options.rounds)
                    record["ratios"][f"{section}: {pair.name}"] = found = compared(times)
                    table.add_row(f"{section}: {pair.name}", *cells(pair, found))
                    report.console.print(f"{section}: {pair.name}: {found['ratio']:.2f} (bar {pair.bar})")
    report.console.print(table)
    if options.json:
        Path(options.json).write_text(json.dumps(record, indent=1))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"some of {', '.join(SECTIONS)}, with commas")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of every pair")
    parser.add_argument("--json", default="", help="write all figures to this file")
    return parser.parse_args()


# Pairs


def logistic(rows: Any, theta: Any) -> Any:
    """A log likelihood that is cheap, of two derivatives, in plain numpy."""
    return np.sum(np.logaddexp(0.0, rows @ theta))


# The same text for autograd alone, which has a numpy of its own.
autograds = FunctionType(logistic.__code__, globals() | {"np": anp})


def hot(stack: ExitStack) -> Iterator[Pair]:
    """Modes in gradients, where next to nothing is computed, and where the chunks take their time."""
    client = stack.enter_context(workers(2))
    for n_rows, n_chunks in ((1_600, 16), (160_000, 16)):
        data = RNG.standard_normal((n_rows, len(THETA)))
        loss = loss_on(dagad.shard(data, grainsize=n_rows // n_chunks, scheduler=client))
        whole = partial(autograds, data)
        gradient = partial(dagad.value_and_grad(loss), THETA)
        slope, curved = autograd.grad(whole)(THETA), autograd.hessian(whole)(THETA) @ VECTOR
        right(gradient()[1], slope)
        title = f"of {n_rows:,} rows, {n_chunks} chunks"
        for name, call, expected, bar in (
            ("jvp", partial(tangent, loss), slope @ VECTOR, 1.5),
            ("hvp", partial(dagad.hvp, loss, THETA, VECTOR), curved, 2.5),
        ):
            right(call(), expected)
            yield Pair(f"{name} {title}", call, "gradient", gradient, bar)


def loss_on(rows: Any, **options: Any) -> Callable[[Any], Any]:
    """A reduction of these rows, as a function of its parameters."""
    return lambda theta: dagad.reduce_sum(logistic, rows, theta, **options)


def tangent(loss: Callable[[Any], Any]) -> Any:
    """Its derivative in one direction."""
    return dagad.jvp(loss, (THETA,), (VECTOR,))[1]


def curve(times: Any, rates: Any) -> Any:
    """A subject's concentrations at its own times."""
    return anp.exp(-rates[0] * times) * (1.0 + rates[1] * times) + rates[2]


def errors(predicted: Any) -> Any:
    """What is minimised."""
    return anp.sum((predicted - OBSERVED) ** 2)


def map_rect(stack: ExitStack) -> Iterator[Pair]:
    """A gradient through many small curves, in many chunks and in few."""
    client = stack.enter_context(workers(2))
    expected = autograd.grad(lambda rates: errors(anp.concatenate([curve(t, rates) for t in SUBJECTS])))(RATES)
    calls = {}
    for n_chunks in (4, 63):
        rows = dagad.shard(SUBJECTS, grainsize=-(-N_SUBJECTS // n_chunks), scheduler=client)
        if len(rows.plan) != n_chunks:
            raise SystemExit(f"{N_SUBJECTS} subjects can't be cut into {n_chunks} chunks.")
        program = dagad.value_and_grad(lambda rates, rows=rows: errors(dagad.map_rect(curve, rows, rates)))
        calls[n_chunks] = partial(program, RATES)
        right(calls[n_chunks]()[1], expected)
    yield Pair("gradient at 63 chunks", calls[63], "at 4 chunks", calls[4], 1.2)


def inline(stack: ExitStack) -> Iterator[Pair]:
    """64 cheap chunks, beside a loop that a user would write."""
    del stack
    data = RNG.standard_normal((64 * 20, len(THETA)))
    loss = loss_on(data, grainsize=20, scheduler="threads")
    parts = [data[start : start + 20] for start in range(0, len(data), 20)]
    whole = partial(autograds, data)
    slope, curved = autograd.grad(whole)(THETA), autograd.hessian(whole)(THETA) @ VECTOR
    pairs: list[tuple[str, Call, Call, Any]] = [
        (
            "gradient",
            lambda: dagad.value_and_grad(loss)(THETA)[1],
            lambda: sum(autograd.value_and_grad(partial(autograds, part))(THETA)[1] for part in parts),
            slope,
        ),
        (
            "jvp",
            partial(tangent, loss),
            lambda: sum(autograd.make_jvp(partial(autograds, part))(THETA)(VECTOR)[1] for part in parts),
            slope @ VECTOR,
        ),
        (
            "hvp",
            partial(dagad.hvp, loss, THETA, VECTOR),
            lambda: sum(autograd.make_jvp(autograd.grad(partial(autograds, part)))(THETA)(VECTOR)[1] for part in parts),
            curved,
        ),
    ]
    for name, call, other, expected in pairs:
        right(call(), expected)
        right(other(), expected)
        yield Pair(name, call, "a loop with plain autograd", other, 1.2)


SECTIONS: dict[str, Callable[[ExitStack], Iterator[Pair]]] = {"hot": hot, "map_rect": map_rect, "inline": inline}


def right(found: Any, expected: Array) -> None:
    """Raise unless these are the same numbers."""
    gap = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    if not gap <= TOLERANCE:
        raise SystemExit(f"A result is off by {gap:.1e} (relative).")


# Figures


def turns(pair: Pair, n_rounds: int) -> list[tuple[list[float], list[float]]]:
    """The times of both sides, round by round; the side that begins changes from call to call."""
    for _ in range(WARM_UP):
        pair.call()
        pair.other()
    return [one_round(pair) for _ in range(n_rounds)]


def one_round(pair: Pair) -> tuple[list[float], list[float]]:
    """The times of a few calls of both sides."""
    times: tuple[list[float], list[float]] = ([], [])
    sides = (pair.call, pair.other)
    for number in range(CALLS):
        for which in (0, 1) if number % 2 else (1, 0):
            began = time.perf_counter()
            sides[which]()
            times[which].append(1e3 * (time.perf_counter() - began))
    return times


def compared(times: list[tuple[list[float], list[float]]]) -> dict[str, float]:
    """Medians of both sides in milliseconds; the ratio: the median of the rounds, its ends, and that of the minima."""
    ratios = [statistics.median(ours) / statistics.median(theirs) for ours, theirs in times]
    both = [[t for one in times for t in one[side]] for side in (0, 1)]
    return {
        "ms": statistics.median(both[0]),
        "other ms": statistics.median(both[1]),
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "largest": max(ratios),
        "minima": min(both[0]) / min(both[1]),
    }


def cells(pair: Pair, found: dict[str, float]) -> list[str]:
    """The cells of one pair."""
    ms = [f"{found[name]:.2f}" for name in ("ms", "other ms")]
    ratios = [f"{found[name]:.2f}" for name in ("ratio", "least", "largest", "minima")]
    met = "met" if found["ratio"] <= pair.bar else "not met"
    return [ms[0], pair.other_name, ms[1], *ratios, f"at most {pair.bar}: {met}"]


if __name__ == "__main__":
    main()
