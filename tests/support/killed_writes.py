"""A loop with a checkpoint that is killed at each call by which it changes its directory, and then goes on.

python tests/support/killed_writes.py
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dagad

ROWS, THETA = np.random.default_rng(0).standard_normal((9, 3)), np.array([0.3, -0.7, 1.1])
CALLS = ("write", "ftruncate", "fsync", "replace", "link", "unlink", "mkdir", "utime")
KILLED = 9


def chunk(rows: Any, theta: Any) -> Any:
    return np.sum(np.tanh(rows @ theta))


def fit(path: Path) -> bytes:
    """Take four steps of a descent, and save the state after each second."""
    both = dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, ROWS, theta, grainsize=3, scheduler="sync"))
    with dagad.checkpoint(path, sync_every=0) as run:
        state = run.state or {"theta": THETA, "values": np.zeros(4), "step": 0}
        while (step := state["step"]) < 4:
            value, gradient = both(state["theta"])
            values = np.where(np.arange(4) == step, value, state["values"])
            state = {"theta": state["theta"] - 0.1 * gradient, "values": values, "step": step + 1}
            if step % 2:
                run.save(state)
    return bytes(state["theta"].tobytes() + state["values"].tobytes())


def die_at(number: int) -> None:
    """Have this process end at a call: before it, and of what is to be written, after half of it."""
    counted = itertools.count()

    def deadly(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def dying(*args: Any, **kwargs: Any) -> Any:
            if next(counted) == number:
                if name == "write":
                    call(args[0], args[1][: len(args[1]) // 2])
                os._exit(KILLED)
            return call(*args, **kwargs)

        return dying

    for name in CALLS:
        setattr(os, name, deadly(name, getattr(os, name)))


def in_child(run: Callable[[], bytes]) -> tuple[int, bytes]:
    """Return how a child process ends, and what it gives."""
    reading, writing = os.pipe()
    child, write = os.fork(), os.write
    if not child:
        try:
            found = run()
            write(writing, found)
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
    os.close(writing)
    with open(reading, "rb") as file:
        given = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), given


def killed_and_resumed(path: Path, number: int) -> tuple[int, int, bytes]:
    def dying() -> bytes:
        die_at(number)
        return fit(path)

    return in_child(dying)[0], *in_child(lambda: fit(path))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        _, expected = in_child(lambda: fit(Path(directory) / "whole"))
        for number in itertools.count():
            path = Path(directory) / str(number)
            died, ended, found = killed_and_resumed(path, number)
            if (ended, found) != (0, expected):
                print(f"killed at call {number}, it ended with {ended}, {'OTHER BITS' if found else 'without result'}")
                sys.exit(1)
            left = sorted(one.name for one in path.iterdir() if one.name.startswith("lock") or one.suffix == ".new")
            if left:
                print(f"killed at call {number}, it left {left}")
                sys.exit(1)
            if not died:
                break
    print(f"killed at each of {number} calls, it goes on to the same bits")


if __name__ == "__main__":
    main()
