"""More tapes than memory: ``python tests/benchmarks/spill.py [--json FILE]``.

Thirty chunks leave tapes of 60 MB each on one worker that may have 1 GB; `dagad.evaluate` gives the value, then the
gradient. Each policy has a worker of its own. Value and gradient have to have the bits of one thread.

peak     the most that a process of the worker had resident at any time (VmHWM)
calls    calls of the chunk function: 30 is once each
again    calls beyond what the policy needs by itself: 30 with Keep, 60 with Recompute
deaths   workers that the nanny had to start again
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np
import report
from distributed import Client, LocalCluster
from rich.table import Table
from threadpoolctl import threadpool_limits

import dagad
from dagad.extend import Keep, Recompute

N_CHUNKS = 30
N_STEPS, N_NUMBERS = 7, 2**20  # each step leaves 8 MB on the tape
THETA = 0.5
MEMORY = "1GB"
PATIENCE_S = 300.0
LOOK_EVERY_S = 0.02

POLICIES: dict[str, tuple[Any, int]] = {"Keep": (Keep(), N_CHUNKS), "Recompute": (Recompute(), 2 * N_CHUNKS)}


@dataclass(frozen=True, slots=True)
class Figures:
    """What one policy did; the times are from the start, infinite where nothing came."""

    completes: bool
    value_s: float
    gradient_s: float
    peak_mb: float
    calls: int
    again: int
    deaths: int


def main() -> None:
    """Read the command line, run, print, and write the figures down if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default="", help="write all figures to this file")
    options = parser.parse_args()
    report.console.print(" · ".join(f"{name} {value}" for name, value in report.machine().items()))
    with threadpool_limits(1), tempfile.TemporaryDirectory() as folder:
        expected = dagad.value_and_grad(loss_on("sync", None, f"{folder}/expected"))(THETA)
        found = {
            name: spilled(policy, needed, f"{folder}/{name}", expected) for name, (policy, needed) in POLICIES.items()
        }
    print_figures(found)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(
                {"machine": report.machine(), **{name: asdict(one) for name, one in found.items()}}, file, indent=1
            )


def loss_on(scheduler: Any, policy: Any, path: str) -> Callable[[Any], Any]:
    """A sum whose chunks leave much behind, and a line in a file for each of their calls."""

    def heavy(rows: Any, theta: Any) -> Any:
        with open(path, "a") as file:
            file.write("called\n")  # short appends are whole
        x = np.ones(N_NUMBERS) * rows[0] * theta
        for _ in range(N_STEPS):
            x = anp.sin(x)
        return anp.sum(x)

    rows = np.arange(float(N_CHUNKS))
    return lambda theta: dagad.reduce_sum(heavy, rows, theta, grainsize=1, policy=policy, scheduler=scheduler)


def spilled(policy: Any, needed: int, path: str, expected: tuple[Any, Any]) -> Figures:
    """Evaluate once on a worker of its own."""
    options: Any = {"n_workers": 1, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with LocalCluster(memory_limit=MEMORY, **options) as cluster, Client(cluster, set_as_default=False) as client:
        with Memory(cluster) as memory:
            began = time.perf_counter()
            evaluation = dagad.evaluate(loss_on(client, policy, path), THETA)
            stamps, parts = [], []
            with suppress(TimeoutError):
                for wait in (evaluation.value, evaluation.gradient):
                    parts.append(wait(PATIENCE_S))
                    stamps.append(time.perf_counter() - began)
            evaluation.cancel()
    for part, right in zip(parts, expected, strict=False):
        if np.asarray(part).tobytes() != np.asarray(right).tobytes():
            raise SystemExit(f"Off: {part} where {right} was expected.")
    n_calls = len(Path(path).read_text().split())
    value_s, gradient_s = [*stamps, float("inf"), float("inf")][:2]
    completes = len(stamps) == len(expected)
    return Figures(completes, value_s, gradient_s, memory.peak / 1e6, n_calls, n_calls - needed, memory.deaths)


class Memory:
    """Looks again and again at how much the worker's process has had at most; after a death there is another one."""

    def __init__(self, cluster: Any) -> None:
        self._cluster, self._over = cluster, threading.Event()
        self._peaks: dict[int, int] = {}
        self._thread = threading.Thread(target=self._work, name="memory", daemon=True)

    @property
    def peak(self) -> int:
        """Bytes."""
        return max(self._peaks.values())

    @property
    def deaths(self) -> int:
        """Processes that are no more."""
        return len(self._peaks) - 1

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        (nanny,) = self._cluster.workers.values()
        while not self._over.wait(LOOK_EVERY_S):
            pid = nanny.pid
            with suppress(OSError, StopIteration, TypeError):  # between two processes there is none
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                self._peaks[pid] = 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def print_figures(found: dict[str, Figures]) -> None:
    """The table."""
    table = Table(
        title=f"spill  {N_CHUNKS} tapes of 60 MB, one worker with {MEMORY}", title_justify="left", title_style="bold"
    )
    for name in ("policy", "completes", "value s", "gradient s", "peak MB", "calls", "again", "deaths"):
        table.add_column(name, justify="right")
    for name, one in found.items():
        times = f"{one.value_s:.2f}", f"{one.gradient_s:.2f}", f"{one.peak_mb:.0f}"
        table.add_row(name, "yes" if one.completes else "no", *times, str(one.calls), str(one.again), str(one.deaths))
    report.console.print(table)


if __name__ == "__main__":
    main()
