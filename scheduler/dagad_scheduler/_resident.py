"""The worker's end of a hot loop: handlers that run a program on the rows that live here, one call per evaluation.

A program was sent once; a call brings its arguments, and the reply is one buffer. Dask's tasks are by-passed: what a
call costs is two messages and a turn in the worker's own executor. The rows are results of ordinary tasks.

State of a `Desk`, touched by the worker's event loop only:

===========  ================================================================================================
`_programs`  the programs that were sent, by their tokens; the one unused for longest goes first
`_held`      what an evaluation left behind for its gradient, by its number; the oldest goes first
`_n_calls`   how many calls came
===========  ================================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dagad_scheduler._messages import blob
from dagad_scheduler._process import calm_process
from dagad_scheduler._roles import Key
from dagad_scheduler._run import inside_task

MOST_PROGRAMS, MOST_HELD, LOOKS_EVERY = 64, 4, 32
SHARE_OF_MEMORY = 0.2  # of a worker's limit, for what evaluations leave behind
USUAL_MEMORY = 2**30

Part = tuple[int, int]  # a subtree of the tree of sums: first chunk, level


class Job(Protocol):
    """One call of a program on one worker."""

    def split(self, parts: Sequence[Part], n_threads: int) -> list[list[Part]]:
        """Return what each of so many threads is to compute."""

    def part(self, part: Part, rows: Callable[[int], list[Any]], stopped: Callable[[], bool]) -> Any:
        """Run the chunks of a subtree, and return their sum."""

    def reply(self, parts: Sequence[Part], sums: dict[Part, Any]) -> tuple[dict[str, Any], Any]:
        """Return a few words and one buffer: the sums of the subtrees asked for, packed."""

    def nbytes(self) -> int:
        """Return how much memory it holds on to until its gradient is asked for."""


class Program(Protocol):
    """What runs on workers; opened from what the client sent."""

    def is_current(self) -> bool:
        """Return whether it still is what was sent; else it has to be sent again."""

    def job(self, role: str, arguments: Any, held: Any, *, keep: bool) -> Job:
        """Return one call: for the role "value" or "gradient", with what an earlier value left behind.

        With `keep` it is to leave something behind itself.
        """


class _MissingError(Exception):
    """Rows that were here have moved."""


class _StaleError(Exception):
    """What a program shares with others has changed since it was opened."""


class Desk:
    """Takes calls on one worker."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._programs: OrderedDict[str, tuple[Program, dict[int, list[Key]], list[Part]]] = OrderedDict()
        self._held: OrderedDict[str, Job] = OrderedDict()
        self._n_calls = 0

    async def line(self, comm: Any) -> Any:
        """Serve a client that keeps its connection open; what runs is told to stop when it hangs up."""
        from distributed.core import Status

        hung_up, learned = asyncio.Event(), set[str]()
        with contextlib.suppress(OSError):
            await comm.write({"status": "OK"})
            calls: set[asyncio.Task[None]] = set()
            try:
                while True:
                    message = await comm.read()
                    if "program" in message:
                        learned.add(message["token"])
                    call = asyncio.create_task(self._answer(comm, message, hung_up.is_set))
                    calls.add(call)
                    call.add_done_callback(calls.discard)
            finally:
                hung_up.set()
                for token in learned:  # nobody else calls them
                    self._programs.pop(token, None)
        return Status.dont_reply

    async def _answer(self, comm: Any, message: dict[str, Any], stopped: Callable[[], bool]) -> None:
        reply = await self.call(message, stopped)
        with contextlib.suppress(OSError):
            await comm.write(reply)

    async def relayed(self, calls: dict[str, Any]) -> dict[str, Any]:
        """Serve a client that reaches only the scheduler: one message for all workers, each with its own call."""
        return await self.call(calls[self._worker.address], bool)

    async def call(self, message: dict[str, Any], stopped: Callable[[], bool]) -> dict[str, Any]:
        """Answer one call; whatever goes wrong is an answer too."""
        try:
            return await self._call(message, stopped)
        except _MissingError:
            return {"status": "missing"}
        except _StaleError:
            return {"status": "unknown"}
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the client then takes the graph, which raises what there is to raise
            return {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:2000]}

    async def _call(self, message: dict[str, Any], stopped: Callable[[], bool]) -> dict[str, Any]:
        if "program" in message:
            await self._learn(message)
        token, number, role = message["token"], message["number"], message["role"]
        if token not in self._programs:
            return {"status": "unknown"}
        self._programs.move_to_end(token)
        program, keys, parts = self._programs[token]
        worker, data, near = self._worker, self._worker.data, self._near()
        held = self._held.pop(number, None)

        def rows(chunk: int) -> list[Any]:
            try:
                return [near[key] if key in near else data[key] for key in keys[chunk]]
            except KeyError as error:
                raise _MissingError from error

        def begin() -> tuple[Job, list[list[Part]]]:
            if not program.is_current():
                raise _StaleError
            job = program.job(role, message["arguments"], held, keep=message["keep"])
            return job, job.split(parts, worker.state.nthreads)

        def compute(job: Job, some: Sequence[Part]) -> dict[Part, Any]:
            with calm_process, inside_task:
                return {part: job.part(part, rows, stopped) for part in some}

        def alone() -> tuple[Job, dict[str, Any], Any]:
            job, shares = begin()
            return job, *job.reply(parts, compute(job, shares[0]))

        run = functools.partial(worker.loop.asyncio_loop.run_in_executor, worker.executors["default"])
        began, n_shares = time.perf_counter(), 1
        try:
            if worker.state.nthreads == 1:
                job, head, buffer = await run(alone)
            else:
                job, shares = begin()
                n_shares = len(shares)
                found = await asyncio.gather(*[run(compute, job, share) for share in shares])
                sums = {part: total for some in found for part, total in some.items()}
                head, buffer = await run(job.reply, parts, sums)
        except _StaleError:
            if held is not None:  # the same call comes again
                self._held[number] = held
            raise
        if message["keep"]:
            self._keep(number, job)
        seconds = (time.perf_counter() - began) * n_shares
        return {"status": "OK", "seconds": seconds, **head, "data": blob(buffer)}

    def _near(self) -> Mapping[Key, Any]:
        """Return what lies in memory: a look into Dask's buffer costs 10 us, as much as a small chunk.

        Now and then there is nothing near: looks into the buffer keep what is in use from being spilled first.
        """
        self._n_calls += 1
        near: Mapping[Key, Any] = getattr(getattr(self._worker.data, "fast", None), "d", {})
        return near if self._n_calls % LOOKS_EVERY else {}

    async def _learn(self, message: dict[str, Any]) -> None:
        """Open a program; in a thread, since that may import modules."""
        pool = self._worker.executors["default"]
        program = await self._worker.loop.asyncio_loop.run_in_executor(pool, _opened, message["program"])
        for token in [old for old in self._programs if old.startswith(tuple(message["instead"]))]:
            del self._programs[token]
        keys = {chunk: [_key(key) for key in some] for chunk, some in message["keys"]}
        self._programs[message["token"]] = program, keys, [(start, level) for start, level in message["parts"]]
        while len(self._programs) > MOST_PROGRAMS:
            self._programs.popitem(last=False)

    def _keep(self, number: str, job: Job) -> None:
        """Hold on to a job until its gradient is asked for, within bounds: whatever goes is computed again."""
        self._held[number] = job
        limit = (getattr(self._worker.memory_manager, "memory_limit", None) or USUAL_MEMORY) * SHARE_OF_MEMORY
        while self._held and (
            len(self._held) > MOST_HELD or sum(held.nbytes() for held in self._held.values()) > limit
        ):
            self._held.popitem(last=False)


def _opened(payload: Sequence[Any]) -> Program:
    head, *buffers = payload
    program: Program = pickle.loads(bytes(head), buffers=buffers)
    return program


def _key(key: Any) -> Key:
    return tuple(key) if isinstance(key, list) else key
