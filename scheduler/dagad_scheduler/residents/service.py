"""The worker's end of a hot loop: handlers that run a program on the rows that live here, one call per evaluation.

A program was sent once; a call brings its arguments, and the reply is one buffer. Dask's tasks are by-passed: what a
call costs is two messages and a turn in the worker's own executor. The rows are results of ordinary tasks.

State of a `Desk`, touched by the worker's event loop only:

===========  ================================================================================================
`_clients`   those that call over connections of their own, by their names
`_programs`  the programs that were sent, by their tokens; the one unused for longest goes first
`_held`      what an evaluation left behind for its gradient, by its number; the oldest goes first
`sizes`     how many bytes that is, once it has been found out
`_weighing`  who finds that out
`_n_calls`   how many calls came
`_n_now`     how many of them are being answered
`_last`      when the last of them was
===========  ================================================================================================

What a client left behind goes when it says so, or with the last of its connections. One that calls through the
scheduler can't hang up, so what it has not asked for within a minute goes: programs are sent again then, and values
computed again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dagad_scheduler.process import calm_process
from dagad_scheduler.residents.messages import blob
from dagad_scheduler.residents.seat import as_task
from dagad_scheduler.roles import Key, Names, Role
from dagad_scheduler.run import inside_task

MOST_PROGRAMS, MOST_HELD, LOOKS_EVERY = 64, 4, 32
SHARE_OF_MEMORY = 0.2  # of a worker's limit, for what evaluations leave behind
USUAL_MEMORY = 2**30
WEIGH_AFTER = 0.1  # seconds after a value in which its gradient may be asked for: most tapes need not be measured
KEEP_RELAYED = 60.0  # seconds

Part = tuple[int, int]  # a subtree of the tree of sums: first chunk, level


class Job(Protocol):
    """One call of a program on one worker."""

    def split(self, parts: Sequence[Part], n_threads: int) -> list[list[Part]]:
        """Return what each of so many threads is to compute."""

    def part(self, part: Part, rows: Callable[[int], list[Any]], stopped: Callable[[], bool]) -> Any:
        """Run the chunks of a subtree, and return their sum."""

    def reply(self, parts: Sequence[Part], sums: dict[Part, Any]) -> tuple[dict[str, Any], Any]:
        """Return a few words and one buffer: the sums of the subtrees asked for, packed."""

    @property
    def holds(self) -> bool:
        """Whether something is left for a later call."""

    def nbytes(self) -> int:
        """Return how much memory it holds on to until a later call."""


class Program(Protocol):
    """What runs on workers; opened from what the client sent."""

    def is_current(self) -> bool:
        """Return whether it still is what was sent; else it has to be sent again."""

    def job(self, message: dict[str, Any], held: Any) -> Job:
        """Return one call, with what an earlier one left behind; if the message says `keep`, it may do so itself."""


class _MissingError(Exception):
    """Rows that were here have moved."""


class _StaleError(Exception):
    """What a program shares with others has changed since it was opened."""


@dataclass(slots=True)
class Known:
    """A program, the rows of its chunks here, the subtrees to be added up, and when it was last called."""

    program: Program
    keys: dict[int, list[Key]]
    parts: list[Part]
    last: float


@dataclass(slots=True)
class Guest:
    """A client, by how many connections it calls, and what it has left here."""

    n_lines: int = 0
    left: set[str] = field(default_factory=set)


class Desk:
    """Takes calls on one worker."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._clients: dict[str, Guest] = {}
        self._programs: OrderedDict[str, Known] = OrderedDict()
        self._held: OrderedDict[str, Job] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._weighing: set[asyncio.Task[None]] = set()
        self._n_calls = self._n_now = 0
        self._last = -math.inf

    def is_at_work(self, patience: float) -> bool:
        """Return whether a call is being answered, or one was within so many seconds."""
        return self._n_now > 0 or time.monotonic() < self._last + patience

    async def line(self, comm: Any, client: str = "") -> Any:
        """Serve a client that keeps its connection open; what runs is told to stop when it hangs up."""
        from dagad_scheduler.private_distributed import Status

        hung_up, last, guest = asyncio.Event(), set[str](), self._clients.setdefault(client, Guest())
        guest.n_lines += 1
        calls: set[asyncio.Task[None]] = set()
        with contextlib.suppress(OSError):
            try:
                await comm.write({"status": "OK"})
                while True:
                    message = await comm.read()
                    if "forget" in message:
                        self._forget(message["forget"])
                        guest.left.difference_update(message["forget"])
                        continue
                    last = {message["number"]} if message["keep"] else set()
                    guest.left.discard(message["number"])
                    if "program" in message:
                        last.add(_name_of(message["token"]))
                    guest.left |= last
                    call = asyncio.create_task(self._answer(comm, message, hung_up.is_set))
                    calls.add(call)
                    call.add_done_callback(calls.discard)
            finally:
                hung_up.set()
                guest.n_lines -= 1
                if not guest.n_lines:
                    self._forget(self._clients.pop(client).left)
                else:  # the client may never have read the last reply, and does not ask for what it left
                    self._forget(last)
                    guest.left -= last
        return Status.dont_reply

    async def _answer(self, comm: Any, message: dict[str, Any], stopped: Callable[[], bool]) -> None:
        reply = await self.call(message, stopped)
        with contextlib.suppress(OSError):
            await comm.write(reply)

    async def relayed(self, call: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
        """Serve a client that reaches only the scheduler: one message for all workers, with a few words for each."""
        message = call | own.get(self._worker.address, {})
        if "forget" in message:
            self._forget(message["forget"])
            return {"status": "OK"}
        reply = await self.call(message, bool)
        later = self._worker.loop.asyncio_loop.call_later
        if message["keep"]:
            later(KEEP_RELAYED, self._forget, [message["number"]])
        if "program" in message:
            later(KEEP_RELAYED, self._forget_unused, message["token"])
        return reply

    def _forget(self, names: Collection[str]) -> None:
        """Let go of programs, and of what evaluations left behind."""
        for name in names:
            self._held.pop(name, None)
            self._sizes.pop(name, None)
        for token in [one for one in self._programs if _name_of(one) in names] if names else ():
            del self._programs[token]

    def _forget_unused(self, token: str) -> None:
        """Let go of a program that nobody calls any more."""
        known = self._programs.get(token)
        if known is None:
            return
        left = known.last + KEEP_RELAYED - time.monotonic()
        if left <= 0.0:
            del self._programs[token]
        else:
            self._worker.loop.asyncio_loop.call_later(left, self._forget_unused, token)

    async def call(self, message: dict[str, Any], stopped: Callable[[], bool]) -> dict[str, Any]:
        """Answer one call; whatever goes wrong is an answer too."""
        self._n_now += 1
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
        finally:
            self._n_now -= 1
            self._last = time.monotonic()

    async def _call(self, message: dict[str, Any], stopped: Callable[[], bool]) -> dict[str, Any]:
        if "program" in message:
            await self._learn(message, stopped)
        token, number = message["token"], message["number"]
        if token not in self._programs:
            return {"status": "unknown"}
        known, rows = self._programs[token], self._rows_of(token)
        program, parts, worker = known.program, known.parts, self._worker
        held, called = self._held.pop(number, None), Names(token)(Role.LOOP, number)
        self._sizes.pop(number, None)

        def begin() -> tuple[Job, list[list[Part]]]:
            if not program.is_current():
                raise _StaleError
            job = program.job(message, held)
            return job, job.split(parts, worker.state.nthreads)

        def compute(job: Job, some: Sequence[Part]) -> dict[Part, Any]:
            with calm_process, inside_task, as_task(worker, called):
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
            if held is not None and not stopped():  # the same call comes again
                self._keep(number, held)
            raise
        if job.holds and not stopped():
            self._keep(number, job)
        seconds = (time.perf_counter() - began) * n_shares
        return {"status": "OK", "seconds": seconds, **head, "data": blob(buffer)}

    def _rows_of(self, token: str) -> Callable[[int], list[Any]]:
        """Return what finds the rows of a program's chunks; the program has been called."""
        self._programs.move_to_end(token)
        known = self._programs[token]
        keys, known.last = known.keys, time.monotonic()
        data, near = self._worker.data, self._near()

        def rows(chunk: int) -> list[Any]:
            try:
                return [near[key] if key in near else data[key] for key in keys[chunk]]
            except KeyError as error:
                raise _MissingError from error

        return rows

    def _near(self) -> Mapping[Key, Any]:
        """Return what lies in memory: a look into Dask's buffer costs 10 us, as much as a small chunk.

        Now and then there is nothing near: looks into the buffer keep what is in use from being spilled first.
        """
        self._n_calls += 1
        near: Mapping[Key, Any] = getattr(getattr(self._worker.data, "fast", None), "d", {})
        return near if self._n_calls % LOOKS_EVERY else {}

    async def _learn(self, message: dict[str, Any], stopped: Callable[[], bool]) -> None:
        """Open a program; in a thread, since that may import modules."""
        pool = self._worker.executors["default"]
        program = await self._worker.loop.asyncio_loop.run_in_executor(pool, _opened, message["program"])
        self._forget(message["instead"])
        if stopped():  # nobody would have it forgotten
            return
        keys = {chunk: [_key(key) for key in some] for chunk, some in message["keys"]}
        parts = [(start, level) for start, level in message["parts"]]
        self._programs[message["token"]] = Known(program, keys, parts, time.monotonic())
        while len(self._programs) > MOST_PROGRAMS:
            self._programs.popitem(last=False)

    def _keep(self, number: str, job: Job) -> None:
        """Hold on to a job until its gradient is asked for, within bounds: whatever goes is computed again."""
        self._held[number] = job
        self._forget(list(self._held)[:-MOST_HELD])
        # Later: whoever waits for the value is not to wait for this, nor who asks for the gradient at once.
        self._worker.loop.asyncio_loop.call_later(WEIGH_AFTER, self._weigh_later, number)

    def _weigh_later(self, number: str) -> None:
        if number in self._held:
            self._weighing.add(task := asyncio.create_task(self._weigh(number), name="dagad-weigh"))
            task.add_done_callback(self._weighing.discard)

    async def _weigh(self, number: str) -> None:
        """Find out once how large a job is, in a thread, and let go of the oldest if all together are too large."""
        if number not in self._held:  # it has been asked for since
            return
        job, pool = self._held[number], self._worker.executors["default"]
        try:
            nbytes = await self._worker.loop.asyncio_loop.run_in_executor(pool, job.nbytes)
        except Exception:  # it was pulled meanwhile; if not, it is no loss
            self._forget([number])
            return
        if number not in self._held:
            return
        self._sizes[number] = nbytes
        limit = (getattr(self._worker.memory_manager, "memory_limit", None) or USUAL_MEMORY) * SHARE_OF_MEMORY
        while self._held and sum(self._sizes.values()) > limit:
            self._forget([next(iter(self._held))])


def _opened(payload: Sequence[Any]) -> Program:
    head, *buffers = payload
    program: Program = pickle.loads(bytes(head), buffers=buffers)
    return program


def _name_of(token: str) -> str:
    """Return what a program is called, whatever chunks of it live here."""
    return token.partition("-")[0]


def _key(key: Any) -> Key:
    return tuple(key) if isinstance(key, list) else key
