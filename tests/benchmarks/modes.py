"""Measure what goes beyond a gradient: ``python tests/benchmarks/modes.py [--only hvp,map] [--rounds N]``.

jacrev   64 cotangents of a function of 64 outputs, on two workers beside one; each chunk is recorded once
hvp      Hessian-vector products and a Hessian of W2, in gradients
jvp      forward mode: one direction beside a gradient, sixteen at once beside one after the other
map_rect W3a as a map: two workers beside one, beside two plain processes, and beside plain autograd
bytes    what workers send for each evaluation of a map, beside values and gradients packed

Competitors take turns in every round. Before anything is timed, each has to give the reference's values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import dask
import report
from cluster import arguments, sections
from cluster_report import Section, print_section
from competitors import N_THREADS
from modes_bytes import map_bytes
from modes_jacobian import jacrev
from modes_map import map_rect
from modes_threads import hvp, jvp
from threadpoolctl import threadpool_limits

SECTIONS: dict[str, Callable[[int], Section]] = {
    "jacrev": jacrev,
    "hvp": hvp,
    "jvp": jvp,
    "map_rect": map_rect,
    "bytes": map_bytes,
}


def main() -> None:
    """Read the command line, run, print, and write the figures down if asked to."""
    options = arguments(__doc__)
    chosen = sections(options.only, SECTIONS)
    report.print_machine("the competitor named in the last column")
    record: dict[str, Any] = {"machine": report.machine(), "workloads": {}}
    with threadpool_limits(1), dask.config.set(num_workers=N_THREADS):
        for name in chosen:
            report.console.print(f"load {os.getloadavg()[0]:.1f}")
            record["workloads"][name] = print_section(SECTIONS[name](options.rounds))
            if options.json:
                with open(options.json, "w") as file:
                    json.dump(record, file, indent=1)
    report.print_summary(record["workloads"])


if __name__ == "__main__":
    main()
