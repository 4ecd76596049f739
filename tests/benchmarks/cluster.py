"""Measure a cluster of two: ``python tests/benchmarks/cluster.py [--only hot,W1] [--rounds N] [--json FILE]``.

hot      the hot loop (W5), two chunks and two hundred
W1 - W4  value and gradient beside plain autograd and a bare handler
W7       values early
wire     bytes that travel for ten megabytes of parameters
nb       two worker processes beside one, and two plain processes beside one
graph    what a chunk costs on the graph road

Competitors take turns in every round. Before anything is timed, each has to give the reference's value and gradient.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import report
from cluster_calls import COUNTS, calls, hot, hot_hundred
from cluster_costs import graph, wire
from cluster_pairs import early, speed_up
from cluster_report import Section, print_section
from distributed import Client, LocalCluster
from threadpoolctl import threadpool_limits

SECTIONS: dict[str, Callable[[Client, int], Section]] = {
    "hot": hot,
    "hot-100": hot_hundred,
    **{name: partial(calls, name) for name in COUNTS},
    "W7": early,
    "wire": wire,
    "nb": speed_up,
    "graph": graph,
}


def main() -> None:
    """Read the command line, run, print, and write the figures down if asked to."""
    options = arguments(__doc__)
    chosen = sections(options.only, SECTIONS)
    report.print_machine("the competitor named in the last column")
    record: dict[str, Any] = {"machine": report.machine(), "workloads": {}}
    with threadpool_limits(1), two_workers() as client:
        for name in chosen:
            record["workloads"][name] = print_section(SECTIONS[name](client, options.rounds))
            if options.json:
                with open(options.json, "w") as file:
                    json.dump(record, file, indent=1)
    report.print_summary(record["workloads"])


def arguments(about: str | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="sections by the beginnings of their names, with commas")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of every section, in place of its own number")
    parser.add_argument("--json", default="", help="write all figures to this file")
    return parser.parse_args()


def sections(only: str, names: Collection[str]) -> list[str]:
    """The sections whose names begin with one of the words; all if there are none."""
    words = tuple(word for word in only.split(",") if word)
    for word in words:
        if not any(name.startswith(word) for name in names):
            raise SystemExit(f"No section begins with `{word}`. Choose from {', '.join(names)}.")
    return [name for name in names if not words or name.startswith(words)]


@contextmanager
def two_workers() -> Iterator[Client]:
    """A client of the one cluster that all sections use; the default one, as Actors look for it."""
    options: Any = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        yield client


if __name__ == "__main__":
    main()
