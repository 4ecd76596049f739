"""What a gradient through `x[index]` costs beside autograd's: ``python tests/benchmarks/indexing.py [--rounds N]``.

A stencil takes its neighbours by slices, effects of groups are rows that many observations take, and entries of a table
are taken by pairs of numbers. Both compute the same gradient, to the last bit, which is looked at; they take turns, by
the processor's clock, and printed are the shortest runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import autograd
import autograd.numpy as np
import numpy
import report

import dagad

RNG = numpy.random.default_rng(0)
FIELD = RNG.normal(size=(500, 500))
GROUPS = RNG.integers(0, 500, 100_000)
KINDS = RNG.integers(0, 10, 100_000)
EFFECTS = RNG.normal(size=(500, 10))
DESIGN = RNG.normal(size=(100_000, 10))


def stencil(u: Any) -> Any:
    """Take steps of the heat equation on a square, which loses its border."""
    for _ in range(5):
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        u = u[1:-1, 1:-1] + 0.1 * (around - 4.0 * u[1:-1, 1:-1])
    return np.sum(u**2)


def rows(effects: Any) -> Any:
    """Return what observations say of the effects of their groups."""
    return np.sum(np.sum(DESIGN * effects[GROUPS], axis=1) ** 2)


def pairs(effects: Any) -> Any:
    """Return what observations say of the effects of their groups and kinds."""
    return np.sum(effects[GROUPS, KINDS] ** 2)


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    cases: list[tuple[Callable[[Any], Any], Any]] = [(stencil, FIELD), (rows, EFFECTS), (pairs, EFFECTS)]
    for fun, x in cases:
        ours, theirs = dagad.grad(fun), autograd.grad(fun)
        assert ours(x).tobytes() == theirs(x).tobytes()
        of: dict[str, Callable[[Any], Any]] = {"value": fun, "dagad": ours, "autograd": theirs}
        ways = {name: partial(one, x) for name, one in of.items()}
        seconds = report.shortest(ways, options.rounds)
        figures = ", ".join(f"{name} {1e3 * each:.2f} ms" for name, each in seconds.items())
        print(f"{fun.__name__}: {figures}; autograd / dagad {seconds['autograd'] / seconds['dagad']:.2f}")


if __name__ == "__main__":
    main()
