"""Compare with an earlier commit: ``python tests/benchmarks/before.py CHECKOUT [--only W1,hot] [--rounds N]``.

CHECKOUT is a directory that holds the earlier sources, made by ``git worktree add``, say. Each side runs in a process
of its own and, for the workloads that end in ``@cluster``, on a cluster of two worker processes of its own. They take
turns in every round, and the side that begins changes from round to round. What is judged is the median over the rounds
of one side's time over the other's: a machine that slows down slows both sides of a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import report
from competitor_processes import Stamps, stopped, turn, workload
from competitors import COMPETITORS, dagad_early
from rich.table import Table
from sides import Side, checked_checkout, side
from workloads import Case, tiny_case

ALLOWED = 1.03
ROUNDS = 16
HOT_CALLS = 40

# name -> number of chunks; what stands behind the @ is where it runs
THREADS = {
    "W1-1e6": 8,
    "W1-1e5": 2,
    "W2": 8,
    "W3a": 20,
    "W3b": 2,
    "W4": 8,
    "W5": 2,
    "W6-autograd": 256,
    "W6-explicit": 256,
}
CLUSTER = {"W1-1e6": 16, "W2": 8, "W3a": 20, "W4": 16, "hot": 2, "hot-100": 200}
ITEMS = [
    *[f"{name}@threads" for name in THREADS],
    "W7-value@threads",
    "W7-gradient@threads",
    "W8@threads",
    *[f"{name}@cluster" for name in CLUSTER],
]
STAMP_OF = {"W7-value@threads": 0, "W7-gradient@threads": 1}
FEW = {"W3a": 4, "W7": 4, "W8": 3}  # rounds of what takes seconds

Sample = list[float]


def main() -> None:
    """Read the command line, let both sides take turns, print, and write the figures down if asked to."""
    options = arguments()
    chosen = [item for item in ITEMS if item.startswith(tuple(options.only.split(",")))]
    report.print_machine("the earlier commit")
    record: dict[str, Any] = {"machine": report.machine(), "ratios": {}}
    table = Table(title="now beside before (ms; W8: MB)", title_justify="left", title_style="bold")
    for name in (
        "workload",
        "before min",
        "median",
        "now min",
        "median",
        "ratio min",
        "median",
        "by rounds",
        "n",
        "bar",
    ):
        table.add_column(name, justify="left" if name in ("workload", "bar") else "right")
    here = Path(__file__).parents[2]
    with side(checked_checkout(options.checkout), Player) as before, side(here, Player) as now:
        for item in chosen:
            old, new = both(item, before, now, options.rounds or rounds_of(item))
            record["ratios"][item] = found = compared(old, new)
            table.add_row(item, *figures(old, new, found))
            report.console.print(f"{item}: {found['least']:.3f} / {found['median']:.3f} / {found['rounds']:.3f}")
            if options.json:
                Path(options.json).write_text(json.dumps(record, indent=1))
    report.console.print(table)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", help="the directory with the earlier sources")
    parser.add_argument("--only", default="", help="workloads by the beginnings of their names, with commas")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of every workload, in place of its own number")
    parser.add_argument("--json", default="", help="write all figures to this file")
    return parser.parse_args()


def rounds_of(item: str) -> int:
    """How often both sides take their turns."""
    return next((count for name, count in FEW.items() if item.startswith(name)), ROUNDS)


def both(item: str, before: Side, now: Side, n_rounds: int) -> tuple[list[Sample], list[Sample]]:
    """The samples of both sides by round, after one round that does not count; first they have to agree."""
    gap = difference(before("outcome", item), now("outcome", item))
    if gap > 1e-12:
        raise SystemExit(f"{item}: the two sides differ by {gap:.1e} (relative).")
    sides = (before, now)
    samples: tuple[list[Sample], list[Sample]] = ([], [])
    for number in range(n_rounds + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            times = sides[which]("turn", item)
            if number:
                samples[which].append(times)
    return samples


def difference(one: Any, other: Any) -> float:
    """The largest relative difference."""
    pairs = zip(one, other, strict=True)
    return max(float(np.linalg.norm(np.subtract(a, b)) / (np.linalg.norm(b) or 1.0)) for a, b in pairs)


def compared(old: list[Sample], new: list[Sample]) -> dict[str, float]:
    """Now over before: by minima, by medians, and by the median of the rounds' own ratios."""
    before, now = [t for some in old for t in some], [t for some in new for t in some]
    by_round = [statistics.median(b) / statistics.median(a) for a, b in zip(old, new, strict=True)]
    return {
        "least": min(now) / min(before),
        "median": statistics.median(now) / statistics.median(before),
        "rounds": statistics.median(by_round),
        "n": float(len(now)),
    }


def figures(old: list[Sample], new: list[Sample], found: dict[str, float]) -> list[str]:
    """The cells of one workload."""
    times = [[t for some in side for t in some] for side in (old, new)]
    cells = [f"{figure:.3f}" for side in times for figure in (min(side), statistics.median(side))]
    ratios = [found[name] for name in ("least", "median", "rounds")]
    met = "met" if found["rounds"] <= ALLOWED else "not met"
    return [*cells, *(f"{ratio:.3f}" for ratio in ratios), f"{found['n']:.0f}", f"at most {ALLOWED}: {met}"]


class Player:
    """The calls of one side, made when first asked for; one workload at a time."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self._item = stack, ""
        self._client: Any = None
        self._call: Callable[[], Any]
        self._stamps: Stamps
        self._case: Case

    def outcome(self, item: str) -> list[Any]:
        """Value and gradients."""
        self._prepare(item)
        value, gradients = self._call()
        return [float(value), *map(np.asarray, gradients)]

    def turn(self, item: str) -> Sample:
        """Times of a few calls, in milliseconds; MB for the workload that measures memory."""
        if item.startswith("W8"):
            return [self._peak()]
        if "hot" in item:
            self._stamps()
            return [1e3 * self._stamps()[0] for _ in range(HOT_CALLS)]
        return [1e3 * stamps[STAMP_OF.get(item, 0)] for stamps in turn(self._stamps)]

    def _prepare(self, item: str) -> None:
        name, _, where = item.partition("@")
        self._item, name = item, name.removesuffix("-value").removesuffix("-gradient")
        if where == "cluster":
            self._on_cluster(name)
            return
        work = workload(name)
        count = THREADS.get(name, work.counts[-1])
        self._case = work.build().first(count) if work.kind == "cost" else work.build()
        self._call = COMPETITORS["dagad"](self._case, count)
        self._stamps = dagad_early(self._case, count) if work.kind == "early" else stopped(self._call, 1)

    def _on_cluster(self, name: str) -> None:
        from cluster_competitors import dagad_shards

        case = tiny_case(CLUSTER[name], 100, explicit=True) if name.startswith("hot") else workload(name).build()
        self._case = case
        program = dagad_shards(self._workers(), case, CLUSTER[name])
        self._call = partial(program, *case.params)
        self._stamps = stopped(self._call, 1)

    def _workers(self) -> Any:
        from cluster_pairs import workers

        if self._client is None:
            self._client = self._stack.enter_context(workers(2))
        return self._client

    def _peak(self) -> float:
        from competitor_processes import peak_bytes, reset_peak

        rest = reset_peak()
        self._call()
        return (peak_bytes() - rest) / 1e6


if __name__ == "__main__":
    main()
