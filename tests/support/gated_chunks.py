"""Chunks that write down where they run, wait at gates and get into trouble; and losses that are made of them.

Workers import it. What is watched is an identity in a chunk, so the bits are those of the same chunk unwatched.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive

import dagad
from support.waiting import PATIENCE, in_background, until

THETA = np.array([0.3, -0.7, 1.1])

X = np.random.default_rng(0).standard_normal((24, 3))

BOTH = (0, 1)  # differentiate in theta, which is shared, and in x, which is sliced


class Visit(NamedTuple):
    """That a chunk has come to a gate: its first row, and the process it runs in."""

    row: int
    pid: int


class Watch:
    """What chunks have written down, and the gates that hold them up: one for values, one for pullbacks."""

    def __init__(self, folder: Path, *gates: str) -> None:
        self.folder = str(folder)
        self.open(*gates)

    def open(self, *gates: str) -> None:
        """Let all chunks pass."""
        for gate in gates:
            Path(self.folder, f"{gate}-gate").touch()

    @contextlib.contextmanager
    def waiting(self, call: Callable[..., Any], *args: Any) -> Iterator[Future[Any]]:
        """Have another thread wait for something; in the end everybody may pass."""
        future = in_background(call, *args)
        try:
            yield future
        finally:
            self.open("value", "pullback")
        future.exception(PATIENCE)

    def close(self, *gates: str) -> None:
        """Forget who has come to these gates, and hold up who comes from now on."""
        for gate in gates:
            for name in (gate, f"{gate}-gate"):
                Path(self.folder, name).unlink(missing_ok=True)

    def visits(self, gate: str) -> list[Visit]:
        """Return who has come to a gate, first come first."""
        path = Path(self.folder, gate)
        lines = path.read_text().splitlines() if path.exists() else []
        return [Visit(*map(int, line.split())) for line in lines]

    def pids(self, gate: str) -> set[int]:
        """Return the processes that have come to a gate."""
        return {visit.pid for visit in self.visits(gate)}

    def wait(self, gate: str, waiting: Future[Any] | None = None, processes: int = 1) -> int:
        """Wait until chunks have come to a gate in as many processes; return the process of the first.

        Who waits for them meanwhile may give up; what they raise is raised here.
        """
        until(lambda: len(self.pids(gate)) >= processes or (waiting and waiting.done()))
        if waiting and waiting.done():
            waiting.result()
        return self.visits(gate)[0].pid

    def again(self, gate: str, pid: int) -> bool:
        """Return whether what had come to a gate in one process came again in another."""
        visits = self.visits(gate)
        others = {visit.row for visit in visits if visit.pid != pid}
        return {visit.row for visit in visits if visit.pid == pid} <= others


def _visit(folder: str, gate: str, row: int) -> None:
    with open(f"{folder}/{gate}", "a") as file:  # short appends are whole
        file.write(f"{row} {os.getpid()}\n")
    until(Path(folder, f"{gate}-gate").exists)


@primitive  # type: ignore[untyped-decorator]  # autograd has no types
def watched(theta: Any, row: int, folder: str) -> Any:
    """Return theta; come to one gate on the way to the value, to the other on the way to the gradient."""
    _visit(folder, "value", row)
    return theta * 1.0


def _watched_pullback(ans: Any, theta: Any, row: int, folder: str) -> Callable[[Any], Any]:
    def pullback(cotangent: Any) -> Any:
        _visit(folder, "pullback", row)
        return cotangent

    return pullback


defvjp(watched, _watched_pullback, None, None)


class Refusal(Exception):
    """What a user's own code raises."""


TROUBLING = 2.0 * THETA  # elsewhere all is well


@primitive  # type: ignore[untyped-decorator]  # autograd has no types
def troubled(theta: Any, row: int, trouble: str) -> Any:
    """Return theta, but have some trouble with row 8 where theta, or a cotangent, is large."""
    if row == 8 and theta[0] > THETA[0]:
        if trouble == "death":
            os._exit(1)
        if trouble == "value":
            raise Refusal(row, os.getpid())
    return theta * 1.0


def _troubled_pullback(ans: Any, theta: Any, row: int, trouble: str) -> Callable[[Any], Any]:
    def pullback(cotangent: Any) -> Any:
        large = {"pullback": theta, "cotangent": cotangent}.get(trouble, THETA)
        if row == 8 and large[0] > THETA[0]:
            raise Refusal(row, os.getpid())
        return cotangent

    return pullback


defvjp(troubled, _troubled_pullback, None, None)


def first_of(rows: Any) -> int:
    """Return the number of the first row of a chunk, or of an item."""
    return int(np.ravel(rows["row"])[0])


def chunk(rows: Any, theta: Any, folder: str = "", trouble: str = "") -> Any:
    """Return the partial sum of a chunk, or the term of an item; watched where there is a folder."""
    if folder and first_of(rows) % 4 == 0:
        theta = watched(theta, first_of(rows), folder)
    if trouble:
        theta = troubled(theta, first_of(rows), trouble)
    return anp.sum(anp.logaddexp(0.0, anp.dot(rows["x"], theta)))


def moments(rows: Any, theta: Any, folder: str = "", trouble: str = "") -> Any:
    """Return a sum of arrays, whose pullback is not a multiple of one gradient; it may refuse a cotangent."""
    if folder:
        theta = watched(theta, first_of(rows), folder)
    if trouble:
        return troubled(anp.sum(anp.tanh(rows["x"] * theta), axis=0), first_of(rows), trouble)
    return anp.sum(anp.tanh(rows["x"] * theta), axis=0)


def fresh(fun: Any) -> Any:
    """Return the same function with code of its own, of which nobody knows yet how long it takes."""
    code = fun.__code__.replace(co_firstlineno=next(_LINES))
    return FunctionType(code, fun.__globals__, fun.__name__, fun.__defaults__, fun.__closure__)


_LINES = itertools.count(10_000)


def loss_on(
    scheduler: Any, *shared: Any, fun: Any = chunk, reduction: Any = dagad.reduce_sum, grainsize: int = 4, **more: Any
) -> Callable[..., Any]:
    """Return a function of theta and x that is cut into chunks."""

    def loss(theta: Any, x: Any) -> Any:
        rows = {"row": np.arange(len(X)), "x": x}
        return reduction(fun, rows, theta, *shared, grainsize=grainsize, scheduler=scheduler, **more)

    return loss


def bits(parts: Iterable[Any]) -> list[bytes]:
    """Return what has to agree: every bit of some arrays and numbers."""
    return [np.asarray(part).tobytes() for part in parts]


def outcome(loss: Any) -> list[bytes]:
    """Return the bits of value and gradients."""
    value, gradients = dagad.value_and_grad(loss, BOTH)(THETA, X)
    return bits([value, *gradients])


def expected(**options: Any) -> list[bytes]:
    """Return what they are on one thread."""
    return outcome(loss_on("sync", **options))
