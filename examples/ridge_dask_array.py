"""Ridge regression written with dask arrays, on a zarr store larger than the memory that its worker may use."""

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr
from dask.distributed import Client, LocalCluster
from dask.utils import parse_bytes
from distributed.diagnostics import MemorySampler
from matplotlib.figure import Figure
from scipy.optimize import minimize

import dagad
from dagad.extend import Recompute

COLUMNS = 100
ROWS = 12_500  # of a chunk: 10 MB
NOISE = 2.0
PENALTY = 0.05


def truth() -> np.ndarray:
    """An echo that fades."""
    delay = np.arange(COLUMNS)
    return np.exp(-delay / 30.0) * np.sin(delay / 6.0)


def write(folder: Path, n_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Write X and z chunk by chunk; return what the normal equations are made of, to compare with."""
    n_rows = max(n_bytes // (8 * COLUMNS * ROWS), 1) * ROWS
    shapes: dict[str, tuple[int, ...]] = {"x": (n_rows, COLUMNS), "z": (n_rows,)}
    stored: dict[str, Any] = {
        name: zarr.create_array(str(folder / name), shape=shape, chunks=(ROWS, *shape[1:]), dtype="f8")
        for name, shape in shapes.items()
    }
    rng = np.random.default_rng(1)
    gram, moment = np.zeros((COLUMNS, COLUMNS)), np.zeros(COLUMNS)
    for start in range(0, n_rows, ROWS):
        x = rng.integers(-9, 10, (ROWS, COLUMNS + 1)) / 9.0
        x = x[:, 1:] + 0.3 * x[:, :-1]  # neighbours are alike
        z = x @ truth() + NOISE * rng.standard_normal(ROWS)
        for name, block in (("x", x), ("z", z)):
            stored[name][start : start + ROWS] = block
        gram += x.T @ x
        moment += x.T @ z
    return gram / n_rows, moment / n_rows


def loss(folder: Path, w: Any) -> Any:
    """The whole program, as for arrays in memory."""
    x, z = (da.from_zarr(str(folder / name)) for name in ("x", "z"))
    return ((x @ w - z) ** 2).mean() / 2.0 + PENALTY / 2.0 * (w**2).sum()


def fit(folder: Path, client: Client, note: Callable[[str], None]) -> tuple[np.ndarray, int]:
    """Go downhill; blocks are read where they are needed, and again for their gradient, and never kept."""

    def both(at: np.ndarray) -> tuple[float, np.ndarray]:
        w = da.from_array(at, chunks=COLUMNS)
        graphs = dagad.value_and_gradient(loss(folder, w), w, policy=Recompute())
        value, slope = dask.compute(*graphs, scheduler=client.get)
        note(f"loss {float(value):.6f}, slope {float(np.max(np.abs(slope))):.1e}")
        return float(value), slope

    how: dict[str, Any] = {"method": "L-BFGS-B", "options": {"gtol": 1e-7, "ftol": 0.0, "maxiter": 60}}
    found = minimize(both, np.zeros(COLUMNS), jac=True, **how)
    return found.x, found.nfev


def draw(found: np.ndarray, memory: Any, n_bytes: int, limit: int, path: str) -> None:
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(truth(), color="0.6", linewidth=4, label="truth")
    left.plot(found, color="C0", linewidth=1.2, label="found")
    left.set_xlabel("delay")
    left.set_title("an echo, from noise")
    left.legend(frameon=False)
    seconds = (memory.index - memory.index[0]) / np.timedelta64(1, "s")
    right.fill_between(seconds, memory / 1e6, color="C0", alpha=0.4)
    for what, amount, colour in (("the data", n_bytes, "C3"), ("what the worker may use", limit, "0.3")):
        right.axhline(amount / 1e6, color=colour, linestyle="--")
        right.text(0.0, amount / 1e6, f" {what}: {amount / 1e6:.0f} MB", color=colour, va="bottom")
    right.set_xlabel("seconds")
    right.set_title("memory of the worker in MB")
    right.set_ylim(0.0, 1.15 * max(n_bytes, limit) / 1e6)
    figure.savefig(path, dpi=110)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=parse_bytes, default="1GB", help="how much there is")
    parser.add_argument("--memory", type=parse_bytes, default="400MB", help="how much a worker may use")
    parser.add_argument("--folder", type=Path, help="where the store is made (default: gone afterwards)")
    parser.add_argument("--picture", default="ridge_dask_array.png", help="where the picture goes")
    parser.add_argument("--check", action="store_true", help="fail unless the normal equations say the same")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        gram, moment = write(folder, options.data)
        how: dict[str, Any] = {"n_workers": 1, "threads_per_worker": 2, "memory_limit": options.memory}
        cluster = stack.enter_context(LocalCluster(dashboard_address=None, **how))
        client = stack.enter_context(Client(cluster))
        sampler, began = MemorySampler(), time.perf_counter()
        with sampler.sample("worker", client=client, measure="process", interval=0.1):
            found, n_evaluations = fit(folder, client, print)
        seconds, memory = time.perf_counter() - began, sampler.to_pandas()["worker"]
    expected = np.linalg.solve(gram + PENALTY * np.eye(COLUMNS), moment)
    gap = float(np.max(np.abs(found - expected)))
    print(f"{n_evaluations} values and gradients in {seconds:.1f} s; the worker used {memory.max() / 1e6:.0f} MB")
    print(f"of {options.data / 1e6:.0f} MB; off from the normal equations by {gap:.1e}")
    draw(found, memory, options.data, options.memory, options.picture)
    print(f"drawn: {options.picture}")
    return int(options.check and gap > 1e-6)


if __name__ == "__main__":
    raise SystemExit(main())
