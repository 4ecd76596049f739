"""Memory that is chosen: ``python tests/benchmarks/schedules.py [--size 256] [--steps 400] [--blocks 2] [--json F]``.

Shallow water by `map_overlap`, the gradient of its mass for the state at the start: 1 exactly for the surface, 0 for
the rest. Each policy has a process of its own, on two threads. Under schedules the bits have to be those of Keep.

peak     the most that the process had resident (VmHWM), with all that is imported, and over what that alone takes
cpu      seconds of the processor, which other programs on the machine don't show in much; wall: seconds on the clock
runs     of tasks, without a tape or with one
tapes    the most that were alive at the same time
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import report
from dask.base import compute as dask_compute
from rich.table import Table
from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what it shares with the tests
from dagad.extend import Keep, Revolve, Segment
from support.time_stepping import by_overlap, derivatives, shallow  # found by the line above

compute: Any = dask_compute  # Dask has few types
POLICIES: dict[str, Any] = {
    "Keep()": Keep(),
    "Segment(20)": Segment(20),
    "Revolve(40)": Revolve(40),
    "Segment(20, disk=True)": Segment(20, disk=True),
    "Revolve(40, disk=True)": Revolve(40, disk=True),
}
MOST_MEMORY, MOST_TIME = 1 / 8, 2.0  # of Keep's


def main() -> None:
    """Read the command line, run each policy, print, and write the figures down if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256, help="cells along each axis")
    parser.add_argument("--steps", type=int, default=400, help="how often they are stepped")
    parser.add_argument("--blocks", type=int, default=2, help="into how many blocks they are cut")
    parser.add_argument("--json", default="", help="write all figures to this file")
    parser.add_argument("--policy", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.policy is not None:
        print(json.dumps(measured(options)))
        return
    report.console.print(" · ".join(f"{name} {value}" for name, value in report.machine().items()))
    found = {name: in_a_process(options, name) for name in ("value alone", *POLICIES)}
    print_figures(found)
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": report.machine(), **found}, indent=1))


def in_a_process(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Run one policy alone."""
    given = ["--size", options.size, "--steps", options.steps, "--blocks", options.blocks, "--policy", name]
    done = subprocess.run([sys.executable, __file__, *map(str, given)], stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Build and run the graph of one policy, and look at what that took."""
    policy, before = POLICIES.get(options.policy), resident()
    began, clock = time.perf_counter(), time.process_time()
    stepped = by_overlap(shallow(options.size), options.steps, options.blocks)
    wanted = stepped.y if policy is None else derivatives(stepped, policy)
    with threadpool_limits(1):
        found = compute(wanted, scheduler="threads", num_workers=2)[0]
    figures = {"wall": time.perf_counter() - began, "cpu": time.process_time() - clock, "peak": resident()}
    figures["over"] = figures["peak"] - before
    if policy is None:
        return figures
    of_start, of_gravity = found[1]
    if not (of_start[0] == 1.0).all() or of_start[1:].any() or of_gravity != 0.0:
        raise SystemExit(f"{options.policy}: the gradient of the mass is off.")
    counts = {"runs": policy.n_primal, "tapes": policy.peak_linearizations}
    return figures | counts | {"bits": hashlib.sha256(of_start.tobytes() + found[0].tobytes()).hexdigest()}


def resident() -> float:
    """The most that this process has had resident, in MB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1e3


def print_figures(found: dict[str, dict[str, Any]]) -> None:
    """Print one line for each policy, and who kept to the limits."""
    table = Table("", *(f"{name}" for name in ("peak MB", "over imports MB", "of Keep", "cpu s", "of Keep", "wall s")))
    for name in ("runs", "tapes"):
        table.add_column(name)
    keep = found["Keep()"]
    for name, one in found.items():
        ratios = one["peak"] / keep["peak"], one["cpu"] / keep["cpu"]
        row = [one["peak"], one["over"], ratios[0], one["cpu"], ratios[1], one["wall"]]
        formats = ["{:,.0f}", "{:,.0f}", "{:.3f}", "{:.1f}", "{:.2f}", "{:.1f}"]
        shown = [form.format(number) for form, number in zip(formats, row, strict=True)]
        table.add_row(name, *shown, *(f"{one.get(count, 0):,}" for count in ("runs", "tapes")))
    report.console.print(table)
    for name, one in found.items():
        if "bits" in one and name != "Keep()":
            met = one["peak"] <= MOST_MEMORY * keep["peak"] and one["cpu"] <= MOST_TIME * keep["cpu"]
            same = "the same bits" if one["bits"] == keep["bits"] else "OTHER BITS"
            words = "met" if met else "not met"
            report.console.print(f"{name}: at most 1/8 of the memory and twice the time of Keep: {words}; {same}")


if __name__ == "__main__":
    main()
