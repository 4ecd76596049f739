"""Least squares on a store larger than a worker's memory: ``python tests/benchmarks/out_of_core.py [--json FILE]``.

`mean((X @ w - z) ** 2)` of dask arrays, X in a zarr store of 2 GB, on a worker of one process that may have 500 MB. Its
value alone, as Dask computes it, and value and gradient with each policy; each on a worker of its own, after a small
one that imports what is needed. The gradient has to be that of numpy, block by block.

peak     the most that the worker's process had resident at any time (VmHWM)
times    seconds, of the fastest of the rounds, which take turns; and how many times those of the value alone
deaths   workers that the nanny had to start again
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import zarr
from dask.base import compute
from distributed import Client, LocalCluster
from rich.console import Console
from rich.table import Table

import dagad
from dagad.extend import Keep, Recompute

COLUMNS = 100
ROWS_PER_CHUNK = 25_000  # 20 MB
MEMORY = "500MB"


@dataclass(frozen=True, slots=True)
class Figures:
    """What one way of computing took."""

    seconds: float
    peak_mb: float
    deaths: int
    worst: float  # the gradient's largest relative error


def store(folder: Path, gigabytes: float, w: Any) -> Any:
    """Write X and z, block by block; return the gradient in w."""
    n_rows = max(round(gigabytes * 1e9 / (8 * COLUMNS * ROWS_PER_CHUNK)), 1) * ROWS_PER_CHUNK
    stored: list[Any] = [
        zarr.create_array(
            str(folder / name), shape=shape, chunks=(ROWS_PER_CHUNK, *shape[1:]), dtype="f8", compressors=None
        )
        for name, shape in (("x", (n_rows, COLUMNS)), ("z", (n_rows,)))
    ]
    random, total = np.random.default_rng(3), np.zeros(COLUMNS)
    for start in range(0, n_rows, ROWS_PER_CHUNK):
        rows, z = random.normal(size=(ROWS_PER_CHUNK, COLUMNS)), random.normal(size=ROWS_PER_CHUNK)
        for one, block in zip(stored, (rows, z), strict=True):
            one[start : start + ROWS_PER_CHUNK] = block
        total += rows.T @ (rows @ w - z)
    return 2.0 * total / n_rows


def loss(folder: Path, w: Any) -> Any:
    x, z = (da.from_zarr(str(folder / name)) for name in "xz")
    return ((x @ w - z) ** 2).mean()


def peak_mb() -> float:
    """Return the most that this process ever had resident."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1000.0 for line in lines if line.startswith("VmHWM"))


def measured(way: Any, folder: Path, at: Any, slope: Any) -> Figures:
    w = da.from_array(at, chunks=COLUMNS)
    options: Any = {"n_workers": 1, "threads_per_worker": 2, "memory_limit": MEMORY, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        small = da.from_array(at, chunks=10)
        compute(dagad.gradient((small**2).mean(), small), scheduler=client.get)
        nannies = {nanny.pid for nanny in cluster.workers.values()}
        y = loss(folder, w)
        asked = (y,) if way is None else dagad.value_and_gradient(y, w, policy=way)
        start = time.perf_counter()
        found = compute(*asked, scheduler=client.get)
        seconds = time.perf_counter() - start
        worst = 0.0 if way is None else float(np.max(np.abs(found[1] - slope)) / np.max(np.abs(slope)))
        deaths = len({nanny.pid for nanny in cluster.workers.values()} - nannies)
        return Figures(seconds, max(client.run(peak_mb).values()), deaths, worst)


WAYS: dict[str, Any] = {"value alone": None, "Recompute": Recompute(), "Keep": Keep()}


def main() -> None:
    """Read the command line, run, print, and write the figures down if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    at = np.linspace(-1.0, 1.0, COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        slope = store(Path(folder), options.gigabytes, at)
        rounds = [
            {name: measured(way, Path(folder), at, slope) for name, way in WAYS.items()} for _ in range(options.rounds)
        ]
    best = {name: min((each[name] for each in rounds), key=lambda figures: figures.seconds) for name in WAYS}
    table = Table(title=f"Least squares on {options.gigabytes} GB in zarr, one worker of {MEMORY}")
    for column in ("", "seconds", "times", "peak MB", "deaths", "error"):
        table.add_column(column, justify="left" if not column else "right")
    for name, figures in best.items():
        times = figures.seconds / best["value alone"].seconds
        peak = max(each[name].peak_mb for each in rounds)
        cells = (f"{figures.seconds:.1f}", f"{times:.2f}", f"{peak:.0f}", f"{figures.deaths}", f"{figures.worst:.1e}")
        table.add_row(name, *cells)
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps({name: asdict(figures) for name, figures in best.items()}, indent=1))


if __name__ == "__main__":
    main()
