"""Each family of competitors in a process of its own, so that no allocator setting or patch of one reaches another.

The parent gives the word to one process after the other; the others wait on their pipes, so nothing runs side by side.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import resource
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from competitors import COMPETITORS, Call, Outcome, dagad_call, dagad_early
from threadpoolctl import threadpool_limits
from workloads import WORKLOADS, Case, Workload

TURN_S = 0.05
WARM_BELOW_S = 0.5
LEAST_CALLS = 3
N_PEAK_CALLS = 3

Stamps = Callable[[], tuple[float, ...]]


def workload(name: str) -> Workload:
    """The workload of that name."""
    return next(w for w in WORKLOADS if w.name == name)


class CompetitorProcess:
    """The parent's end: a family of competitors on one workload, spoken to through a pipe."""

    def __init__(self, work: Workload, family: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.family = family
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(work.name, family, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, *question: Any) -> Any:
        """Send a question, wait for the answer, raise here what was raised there."""
        self._pipe.send(question)
        return self.answer()

    def answer(self) -> Any:
        """Wait for the answer to the question sent before (the first one says that the data are ready)."""
        try:
            good, answer = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"The process of `{self.family}` died. See what it wrote above.") from None
        if not good:
            raise RuntimeError(f"`{self.family}` failed:\n{answer}")
        return answer

    def close(self) -> None:
        """Let the process end."""
        self._pipe.send(None)
        self._process.join(10)
        self._process.kill()


def serve(name: str, family: str, pipe: Connection) -> None:
    """The process's end: build the data, then answer until told to stop."""
    with threadpool_limits(1):
        player = Player(workload(name), family)
        pipe.send((True, "ready"))
        while (question := pipe.recv()) is not None:
            try:
                pipe.send((True, getattr(player, question[0])(*question[1:])))
            except Exception:
                pipe.send((False, traceback.format_exc()))


class Player:
    """The calls of one family, made when first asked for."""

    def __init__(self, work: Workload, family: str) -> None:
        self._work, self._family = work, family
        self._case = work.build()
        self._calls: dict[int, Call] = {}
        self._stamps: dict[int, Stamps] = {}

    def outcome(self, n_chunks: int) -> Outcome:
        """Value and gradient, to be compared with the others'."""
        value, gradients = self._call(n_chunks)()
        return float(value), tuple(np.asarray(g) for g in gradients)

    def turn(self, n_chunks: int) -> list[tuple[float, ...]]:
        """Time a few calls."""
        return turn(self._stamp(n_chunks))

    def peak(self, n_chunks: int) -> float:
        """MB above rest at the worst moment of a few calls. Rest: data in place, code warmed up on a few rows."""
        COMPETITORS[self._family](self._case.first(1000), min(n_chunks, 4))()
        call = self._call(n_chunks)
        rest = reset_peak()
        for _ in range(N_PEAK_CALLS):
            call()
        return (peak_bytes() - rest) / 1e6

    def _case_for(self, n_chunks: int) -> Case:
        return self._case.first(n_chunks) if self._work.kind == "cost" else self._case

    def _call(self, n_chunks: int) -> Call:
        if n_chunks not in self._calls:
            self._calls[n_chunks] = COMPETITORS[self._family](self._case_for(n_chunks), n_chunks)
        return self._calls[n_chunks]

    def _stamp(self, n_chunks: int) -> Stamps:
        if n_chunks not in self._stamps:
            early = self._work.kind == "early"
            if early and COMPETITORS[self._family] is dagad_call:
                self._stamps[n_chunks] = dagad_early(self._case, n_chunks)
            else:
                self._stamps[n_chunks] = stopped(self._call(n_chunks), 2 if early else 1)
        return self._stamps[n_chunks]


def turn(stamps: Stamps) -> list[tuple[float, ...]]:
    """Time a few calls, for a short while at least, after one that is not counted. Of long calls, one alone.

    The first call after the others' turns finds cold caches and pages that the system has to hand out anew.
    """
    first = stamps()
    if first[-1] > WARM_BELOW_S:
        return [first]
    end = time.perf_counter() + TURN_S
    times = [stamps() for _ in range(LEAST_CALLS)]
    while time.perf_counter() < end:
        times.append(stamps())
    return times


def stopped(call: Call, n_stamps: int) -> Stamps:
    """Seconds of one call; value and gradient come together, so each stamp is the same."""

    def stamps() -> tuple[float, ...]:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start,) * n_stamps

    return stamps


def reset_peak() -> float:
    """Forget the peak so far; give the bytes that are resident now. `ru_maxrss` cannot be set back, this can."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as switch:
        switch.write("5")
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def peak_bytes() -> float:
    """The most bytes that were resident since the last reset."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024.0
