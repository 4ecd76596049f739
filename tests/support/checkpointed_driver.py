"""A program that is killed and runs again: an evaluation of many chunks, or a loop of evaluations; prints all bits.

python tests/support/checkpointed_driver.py evaluation --kills 20
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

import dagad

ROWS = np.random.default_rng(0).standard_normal((800, 3))
GRAINSIZES = {"evaluation": 4, "loop": 40}
MARK, PATIENCE = "x ", 240


def misfit(rows: Any, theta: Any) -> Any:
    """Take a few milliseconds, and write down that it ran."""
    time.sleep(0.003)
    if len(rows) in GRAINSIZES.values():  # and not the few that are looked at, whether they add up
        with open(os.environ["RUNS"], "a") as file:
            file.write(MARK)
    return np.sum((np.tanh(rows @ theta) - 0.3) ** 2)


def run(what: str, path: str) -> None:
    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(misfit, ROWS, theta, grainsize=GRAINSIZES[what], scheduler="threads")

    theta, both = np.array([0.3, -0.7, 1.1]), dagad.value_and_grad(loss)
    with dagad.checkpoint(path):
        if what == "evaluation":
            value, gradient = both(theta)
        else:
            found = minimize(both, theta, jac=True, method="L-BFGS-B", options={"maxiter": 8})
            value, gradient = found.fun, found.x
    print(float(value).hex(), *(float(part).hex() for part in gradient))


class Campaign(NamedTuple):
    """What came of killing a program: what it printed at last, and should have; how often chunks ran, and must."""

    expected: str
    after: str
    n_all: int
    n_runs: int
    n_kills: int
    n_workers: int


def as_a_program(what: str, path: Path, log: Path) -> None:
    """Run this file as Python would that is given it; what it prints goes to a file."""
    sys.argv, os.environ["RUNS"] = [__file__, what, "--path", str(path)], str(log)
    with path.with_suffix(".txt").open("w") as printed, contextlib.redirect_stdout(printed):
        runpy.run_path(__file__, run_name="__main__")


def killed(what: str, path: Path, n_kills: int, seed: int) -> Campaign:
    """Start a program, kill it at random moments of its work, and let it run to its end."""
    log, random = path / "runs", np.random.default_rng(seed)
    processes = multiprocessing.get_context("forkserver")  # which has imported what is installed

    def start(name: str) -> BaseProcess:
        driver = processes.Process(target=as_a_program, args=(what, path / name, log))
        driver.start()
        return driver

    def printed(name: str) -> str:
        driver = start(name)
        driver.join(PATIENCE)
        assert driver.exitcode == 0
        return (path / name).with_suffix(".txt").read_text()

    def n_runs() -> int:
        return log.stat().st_size // len(MARK) if log.exists() else 0

    expected, n_all = printed("whole"), n_runs()
    log.unlink()
    for _ in range(n_kills):
        driver, until = start("run"), n_runs() + int(random.integers(1, max(2, 2 * n_all // (n_kills + 1))))
        while driver.is_alive() and n_runs() < until:
            time.sleep(0.001)
        driver.kill()
        driver.join(PATIENCE)
    after = printed("run")
    return Campaign(expected, after, n_all, n_runs(), n_kills, os.cpu_count() or 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=GRAINSIZES)
    parser.add_argument("--path", help="where its checkpoint is; without it, the program is killed again and again")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.path:
        run(given.what, given.path)
    else:
        with tempfile.TemporaryDirectory() as directory:
            found = killed(given.what, Path(directory), given.kills, given.seed)
        bits, twice = "the same" if found.after == found.expected else "OTHERS", found.n_runs - found.n_all
        print(f"{found.n_kills} kills: the bits are {bits}; {twice} of {found.n_all} chunks ran twice,", end=" ")
        print(f"{found.n_workers * found.n_kills} may")
