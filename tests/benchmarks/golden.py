"""Compare bits with an earlier commit: ``python tests/benchmarks/golden.py CHECKOUT [--only map,rows] [--on hot]``.

CHECKOUT is a directory that holds the earlier sources, made by ``git worktree add``, say. Every feature is run in every
mode on every executor, a few times each, by both sides at the same time, each in a process of its own with a cluster of
two worker processes of its own. What differs by a single bit, between the sides or now between the executors, is
printed, and the exit code is 1. Where the earlier sources refuse, anything is right.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sides import checked_checkout, side

EXECUTORS = ("sync", "threads", "shards", "cluster", "hot")
# Beginnings of cells whose bits were changed on purpose.
DELIBERATE = tuple(
    # The policy shows no longer: these are the bits of "reduce_sum" now, and the chunks run once.
    f"{policy} / {mode}"
    for policy in ("keep", "recompute", "own policy")
    for mode in ("hvp", "hessian", "grad of grad")
)

Bits = list[list[tuple[str, tuple[int, ...], bytes]]]
Found = dict[str, Bits | str]  # by cell: what each evaluation gave, or what was raised


def main() -> None:
    """Run both sides, print what differs."""
    options = arguments()
    only, chosen = tuple(options.only.split(",")), options.on.split(",") if options.on else EXECUTORS
    began = time.perf_counter()
    checkouts = [checked_checkout(options.checkout), Path(__file__).parents[2]]
    with ExitStack() as stack:
        sides = [stack.enter_context(side(checkout, Player)) for checkout in checkouts]
        for each in sides:
            each.send("play", chosen, only)
        before, now = [each.receive() for each in sides]
    different = [*between_sides(before, now), *between_executors(before, now)]
    refused = [f"{cell}: {bits}" for cell, bits in now.items() if isinstance(bits, str)]
    for text in [*(refused if options.refused else ()), *different]:
        print(text)
    n_numbers = sum(not isinstance(bits, str) for bits in now.values())
    newly = [cell for cell in now if isinstance(before[cell], str) and not isinstance(now[cell], str)]
    print(f"{len(now)} cells, {n_numbers} give numbers, {len(newly)} of these are new; ", end="")
    print(f"{len(different)} differ; {time.perf_counter() - began:.0f} s")
    raise SystemExit(1 if different else 0)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", help="the directory with the earlier sources")
    parser.add_argument("--only", default="", help="cells by the beginnings of their names, with commas")
    parser.add_argument("--on", default="", help=f"executors, with commas: {', '.join(EXECUTORS)}")
    parser.add_argument("--refused", action="store_true", help="print also what is refused now")
    return parser.parse_args()


def between_sides(before: Found, now: Found) -> list[str]:
    """What was other bits before, or numbers before and is refused now."""
    return [
        f"{cell}: {difference(old, now[cell])}"
        for cell, old in before.items()
        if not isinstance(old, str) and old != now[cell] and not cell.startswith(DELIBERATE)
    ]


def between_executors(before: Found, now: Found) -> list[str]:
    """What differs now between executors, and did not before."""
    texts = []
    for cell, bits in now.items():
        name = cell.rpartition(" @ ")[0]
        first = next(other for other in now if other.startswith(f"{name} @ "))
        as_ever = before[first] != before[cell] and not isinstance(before[cell], str)
        if bits != now[first] and not isinstance(bits, str) and not as_ever:
            texts.append(f"{cell}: not as on {first.rpartition(' @ ')[2]}: {difference(now[first], bits)}")
    return texts


def difference(old: Bits | str, new: Bits | str) -> str:
    """In words."""
    if isinstance(old, str) or isinstance(new, str):
        return new if isinstance(new, str) else str(old)
    for number, (one, other) in enumerate(zip(old, new, strict=True)):
        looks = [[(dtype, shape) for dtype, shape, _ in side] for side in (one, other)]
        if looks[0] != looks[1]:
            return f"evaluation {number}: {looks[0]} became {looks[1]}"
        gaps = [_gap(a, b) for a, b in zip(one, other, strict=True)]
        if one != other:
            return f"evaluation {number}: relative differences {', '.join(f'{gap:.1e}' for gap in gaps)}"
    return "the same"


def _gap(one: Any, other: Any) -> float:
    a, b = (np.frombuffer(bits, dtype) for dtype, _, bits in (one, other))
    return float(np.linalg.norm(a - b) / (np.linalg.norm(a) or 1.0))


class Player:
    """What one side runs."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self._client = stack, None

    def play(self, executors: Sequence[str], only: tuple[str, ...]) -> Found:
        """Every cell of some executors."""
        return {cell: bits for executor in executors for cell, bits in self._cells(executor, only)}

    def _cells(self, executor: str, only: tuple[str, ...]) -> Iterator[tuple[str, Bits | str]]:
        sys.path.append(str(Path(__file__).parents[1]))  # the tests, which the cases share something with
        import golden_cases as cases

        away, resident = executor in ("cluster", "hot"), executor in ("shards", "hot")
        scheduler = self._workers() if away else "threads" if resident else executor
        place = cases.ChunkContext(scheduler, resident)
        runs: dict[str, Callable[[], Any]] = {
            f"{name} / {mode}": partial(cases.results, case, mode, place)
            for name, case in cases.CASES.items()
            for mode in (case.away if away else case.here)
        }
        if not resident:
            runs |= {name: partial(cases.computed, make, scheduler) for name, make in cases.COLLECTIONS.items()}
        for name, run in runs.items():
            if name.startswith(only):
                yield f"{name} @ {executor}", _attempt(run)

    def _workers(self) -> Any:
        from distributed import Client, LocalCluster

        if self._client is None:
            options: Any = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
            cluster = self._stack.enter_context(LocalCluster(**options))
            self._client = self._stack.enter_context(Client(cluster, set_as_default=False))
        return self._client


def _attempt(run: Callable[[], Any]) -> Bits | str:
    """The bits of what something gives, or what it raises."""
    try:
        return [[(leaf.dtype.str, leaf.shape, leaf.tobytes()) for leaf in leaves] for leaves in run()]
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


if __name__ == "__main__":
    main()
