"""A thousand steps on samples: have they the same bits with one worker and two, when one is killed, and when resumed?

    python tests/benchmarks/sampled_steps.py [--steps 1000] [--kills 2]

Each run is a program of its own, this one with `--run`: a descent on samples of Shards. A worker is killed in the
middle of one of them; another one, in `dagad.checkpoint`, is itself killed, by signal 9, and begun again. Printed is
for each whether all bits of its parameters are those of the first, with how long it took. With `--chunks` the
checkpoint has each chunk, too.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np
from distributed import Client, LocalCluster

import dagad

N_PARAMETERS, N_ROWS, GRAINSIZE, N_SAMPLED = 50, 16_000, 500, 8
TOLD = 50  # steps, after each of which a run says how far it is


def chunk(rows: Any, theta: Any) -> Any:
    x, y = rows[:, :-1], rows[:, -1]
    return anp.sum((anp.tanh(x @ theta) - y) ** 2)


def data() -> Any:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N_ROWS, N_PARAMETERS))
    y = np.tanh(x @ rng.standard_normal(N_PARAMETERS)) + 0.1 * rng.standard_normal(N_ROWS)
    return np.column_stack([x, y])


def descend(shards: Any, n_steps: int, kill_at: int | None, client: Any) -> Any:
    """Take steps on samples, with momentum; at one of them a worker is killed."""
    theta, moved = np.zeros(N_PARAMETERS), np.zeros(N_PARAMETERS)
    for step in range(n_steps):
        if step == kill_at:
            os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        some = shards.sample(N_SAMPLED, seed=7, step=step)
        _, gradient = dagad.value_and_grad(lambda t, some=some: dagad.reduce_sum(chunk, some, t))(theta)
        moved = 0.9 * moved - 2e-3 / some.n_rows * gradient
        theta = theta + moved
        if not (step + 1) % TOLD:
            print(f"step {step + 1}", flush=True)
    return theta


def run(n_workers: int, n_steps: int, kill_at: int | None, checkpoint: str | None, chunks: bool) -> None:
    with contextlib.ExitStack() as stack:
        client: Any = None
        if n_workers:
            cluster = LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=None)
            client = stack.enter_context(Client(stack.enter_context(cluster)))
        shards = dagad.shard(data(), grainsize=GRAINSIZE, scheduler=client or "sync")
        if checkpoint is not None:
            stack.enter_context(dagad.checkpoint(checkpoint, chunks=chunks))
        theta = descend(shards, n_steps, kill_at, client)
        print(f"bits {hashlib.sha256(theta.tobytes()).hexdigest()}", flush=True)
        del shards


def begun(options: Sequence[str]) -> subprocess.Popen[str]:
    """Begin a run in a process, and a session, of its own."""
    program = [sys.executable, __file__, "--run", *options]
    return subprocess.Popen(program, stdout=subprocess.PIPE, text=True, start_new_session=True)


def finished(process: subprocess.Popen[str]) -> str:
    """Return the bits that a run ends with."""
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"A run failed with {process.returncode}.")
    return out.split()[-1]


def killed(process: subprocess.Popen[str], step: int) -> None:
    """Kill a run and its workers when it has come to a step."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == f"step {step}":
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=2, help="how often the run with a checkpoint is killed")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--checkpoint")
    parser.add_argument("--chunks", action="store_true", help="have the checkpoint written chunk by chunk")
    options = parser.parse_args()
    if options.run:
        run(options.workers, options.steps, options.kill_at, options.checkpoint, options.chunks)
        return
    steps, expected = ["--steps", str(options.steps)], ""
    half = str(options.steps // 2)
    for name, own in (
        ("in one process", []),
        ("1 worker", ["--workers", "1"]),
        ("2 workers", ["--workers", "2"]),
        (f"2 workers, one killed at step {half}", ["--workers", "2", "--kill-at", half]),
    ):
        began = time.perf_counter()
        found = finished(begun([*steps, *own]))
        expected = expected or found
        print(f"{name}: same bits {found == expected}, {time.perf_counter() - began:.1f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        own = [*steps, "--workers", "2", *["--chunks"] * options.chunks, "--checkpoint"]
        began = time.perf_counter()
        found = finished(begun([*own, str(Path(folder) / "whole")]))
        print(f"in a checkpoint: same bits {found == expected}, {time.perf_counter() - began:.1f} s", flush=True)
        own.append(str(Path(folder) / "run"))
        for number in range(options.kills):
            at = (number + 1) * options.steps // (options.kills + 1) // TOLD * TOLD
            began = time.perf_counter()
            killed(begun(own), max(at, TOLD))
            print(f"2 workers, all killed by signal 9 at step {at}: {time.perf_counter() - began:.1f} s", flush=True)
        began = time.perf_counter()
        found = finished(begun(own))
        print(f"resumed: same bits {found == expected}, {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
