"""Two checkouts beside each other: each side is a process of its own with the sources of one, asked through a pipe."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits


class Side:
    """A process with the sources of one checkout."""

    def __init__(self, checkout: Path, pipe: Any) -> None:
        self._checkout, self._pipe = checkout, pipe

    def __call__(self, *question: Any) -> Any:
        """Have a method of the player called there; return what it returns."""
        self.send(*question)
        return self.receive()

    def send(self, *question: Any) -> None:
        """Ask, and go on."""
        self._pipe.send(question)

    def receive(self) -> Any:
        """Wait for the answer."""
        good, answer = self._pipe.recv()
        if not good:
            raise RuntimeError(f"{self._checkout} failed:\n{answer}")
        return answer


@contextmanager
def side(checkout: Path, player: Callable[[ExitStack], Any]) -> Iterator[Side]:
    """Start a process with the sources of a checkout, and let `player` answer there.

    The main program must not import `dagad` at its top: the process imports it before it knows of the checkout.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(str(checkout.resolve()), theirs, player))
    process.start()
    theirs.close()
    try:
        yield Side(checkout, ours)
    finally:
        ours.send(None)
        process.join(30)
        process.kill()


def serve(checkout: str, pipe: Connection, player: Callable[[ExitStack], Any]) -> None:
    """One side: take the sources of `checkout`, then answer until told to stop."""
    sources = [checkout, f"{checkout}/scheduler"]
    sys.path[:0] = sources
    os.environ["PYTHONPATH"] = os.pathsep.join(sources)  # for its workers
    with threadpool_limits(1), ExitStack() as stack:
        import dagad

        if not str(dagad.__file__).startswith(checkout):
            raise RuntimeError(f"`dagad` came from {dagad.__file__}, not from {checkout}.")
        playing = player(stack)
        while (question := pipe.recv()) is not None:
            try:
                pipe.send((True, getattr(playing, question[0])(*question[1:])))
            except Exception:
                pipe.send((False, traceback.format_exc()))


def checked_checkout(path: str) -> Path:
    """Return the directory of an earlier commit, if it is one."""
    if not (Path(path) / "dagad" / "__init__.py").exists():
        raise SystemExit(f"`{path}` holds no `dagad`. Give a checkout of an earlier commit.")
    return Path(path)
