"""Run the benchmarks: ``python tests/benchmarks/run.py [--only W1,W4] [--rounds N] [--json FILE]``.

Competitors take turns in every round, so that a machine that slows down slows all of them. Before anything is timed,
each has to give the value and the gradient of the reference to 1e-10.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
import report
from competitor_processes import CompetitorProcess
from competitors import AUTO, COMPETITORS, ONE_SHOT, Outcome
from report import Row
from workloads import WORKLOADS, Workload

TOLERANCE = 1e-10

Times = list[tuple[float, ...]]
Samples = dict[tuple[str, int], Times]
Label = TypeVar("Label", bound=Hashable)
Best = dict[tuple[str, int], tuple[float, float]]


def main() -> None:
    """Read the command line, run, print, and write the figures down if asked to."""
    options = arguments()
    works, families = chosen(options.only), chosen_families(options.families)
    report.print_machine()
    record: dict[str, Any] = {"machine": report.machine(), "workloads": {}}
    for work in works:
        rows = measured(work, families, options.rounds or work.rounds)
        verdicts = report.print_workload(work, rows)
        record["workloads"][work.name] = report.recorded(rows, verdicts)
        if options.json:
            with open(options.json, "w") as file:
                json.dump(record, file, indent=1)
    report.print_summary(record["workloads"])


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="workloads by the beginning of their names: W1,W4")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of every workload, in place of its own number")
    parser.add_argument("--families", default="", help="competitors: plain,loop,dagad")
    parser.add_argument("--json", default="", help="write all figures to this file")
    return parser.parse_args()


def chosen(only: str) -> list[Workload]:
    """The workloads whose names begin with one of the words."""
    words = tuple(word for word in only.split(",") if word)
    for word in words:
        if not any(w.name.startswith(word) for w in WORKLOADS):
            raise SystemExit(f"No workload begins with `{word}`. Choose from {', '.join(w.name for w in WORKLOADS)}.")
    return [w for w in WORKLOADS if not words or w.name.startswith(words)]


def chosen_families(wanted: str) -> set[str] | None:
    """The families asked for; all of them if none is. Without dagad installed, all but dagad."""
    if not wanted:
        return None if find_spec("dagad") else {name for name in COMPETITORS if not name.startswith("dagad")}
    if unknown := set(wanted.split(",")) - set(COMPETITORS):
        raise SystemExit(f"No competitor is called {sorted(unknown)}. Choose from {', '.join(COMPETITORS)}.")
    return set(wanted.split(","))


def measured(work: Workload, wanted: set[str] | None, n_rounds: int) -> list[Row]:
    """All rows of one workload."""
    families = families_to_run(work, wanted)
    if work.kind == "memory":
        return memory_rows(work, families, n_rounds)
    with started(work, families) as processes:
        check(work, processes)
        samples = turns(work, processes, n_rounds)
    if work.kind == "cost":
        return cost_rows(work, samples)
    names = ("value", "gradient") if work.kind == "early" else ("",)
    return [
        Row(family, count, names[k] or "ms", *summary([1e3 * stamps[k] for stamps in times]), n=len(times))
        for k in range(len(names))
        for (family, count), times in samples.items()
    ]


def families_to_run(work: Workload, wanted: set[str] | None) -> list[str]:
    """The families that take part; costs are counted beyond the loop, so there it always does."""
    always = {"loop"} if work.kind == "cost" else set()
    return [f for f in work.families if wanted is None or f in wanted | always]


@contextmanager
def started(work: Workload, families: list[str]) -> Iterator[list[CompetitorProcess]]:
    """A process per family, all ready."""
    processes = [CompetitorProcess(work, family) for family in families]
    try:
        for process in processes:
            process.answer()
        yield processes
    finally:
        for process in processes:
            process.close()


def counts(work: Workload, family: str) -> tuple[int, ...]:
    """How many chunks a family is tried with; dagad chooses for itself as well."""
    if family in ONE_SHOT:
        return (1,)
    if family == "dagad pickled":
        return (AUTO,)
    return (*work.counts, AUTO) if family == "dagad" and work.auto else work.counts


def check(work: Workload, processes: list[CompetitorProcess]) -> None:
    """Raise unless all give what the first one gives (where rows follow the chunks: what it gives for as many)."""
    references: dict[int, Outcome] = {}
    for process in processes:
        for count in counts(work, process.family):
            outcome = process.ask("outcome", count)
            reference = references.setdefault(count if work.kind == "cost" else 0, outcome)
            gap = difference(outcome, reference)
            if not gap <= TOLERANCE:
                raise SystemExit(f"{work.name}: `{process.family}` with {count} chunks is off by {gap:.1e} (relative).")


def difference(one: Outcome, other: Outcome) -> float:
    """The largest relative difference, of the value or of a gradient as a whole."""
    pairs = [(np.asarray(one[0]), np.asarray(other[0])), *zip(one[1], other[1], strict=True)]
    if any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    return max(float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1.0)) for a, b in pairs)


def turns(work: Workload, processes: list[CompetitorProcess], n_rounds: int) -> Samples:
    """All samples of all processes."""
    order = [(process, count) for process in processes for count in counts(work, process.family)]
    return interleaved(
        {(process.family, count): partial(process.ask, "turn", count) for process, count in order}, n_rounds
    )


def interleaved(order: Mapping[Label, Callable[[], Times]], n_rounds: int) -> dict[Label, Times]:
    """Every competitor in every round; each round begins with another one."""
    labels, samples = list(order), {label: Times() for label in order}
    for k in range(n_rounds):
        start = k % len(labels)
        for label in labels[start:] + labels[:start]:
            samples[label] += order[label]()
    return samples


def summary(values: list[float]) -> tuple[float, float]:
    """Minimum and median."""
    return min(values), statistics.median(values)


def cost_rows(work: Workload, samples: Samples) -> list[Row]:
    """Beyond the bare loop: cost per chunk and fixed cost, fitted to the times at the different numbers of chunks."""
    best = {key: summary([1e3 * stamps[0] for stamps in times]) for key, times in samples.items()}
    rows = [Row(family, count, "ms", *best[family, count], n=len(times)) for (family, count), times in samples.items()]
    for family in dict.fromkeys(family for family, _ in samples):
        if family == "loop":
            continue
        slope, fixed = fitted(work, family, best, 0)
        slope_of_medians, fixed_of_medians = fitted(work, family, best, 1)
        n = len(work.counts)
        rows.append(Row(family, None, "us a chunk", 1e3 * slope, 1e3 * slope_of_medians, n))
        rows.append(Row(family, None, "fixed ms", fixed, fixed_of_medians, n))
    return rows


def fitted(work: Workload, family: str, best: Best, k: int) -> tuple[float, float]:
    """Slope and intercept of the difference to the loop (ms); each time is trusted to the same relative error."""
    beyond = [best[family, count][k] - best["loop", count][k] for count in work.counts]
    slope, fixed = np.polyfit(work.counts, beyond, 1, w=[1.0 / best[family, count][k] for count in work.counts])
    return float(slope), float(fixed)


def memory_rows(work: Workload, families: list[str], n_rounds: int) -> list[Row]:
    """A fresh process per competitor and round, one at a time."""
    samples: dict[tuple[str, int], list[float]] = {}
    for _ in range(n_rounds):
        for family in families:
            for count in counts(work, family):
                with started(work, [family]) as (process,):
                    samples.setdefault((family, count), []).append(process.ask("peak", count))
    return [Row(family, count, "MB", *summary(values), n=len(values)) for (family, count), values in samples.items()]


if __name__ == "__main__":
    main()
