"""The worker's end of a hot loop: handlers that run a program on the rows that live here, one call per evaluation.

A program was sent once; a call brings its arguments, and the reply is one buffer. Dask's tasks are by-passed: what a
call costs is two messages and a turn in the worker's own executor. The rows are results of ordinary tasks.

State of a `ResidentService`, touched by the worker's event loop only:

===========  ================================================================================================
`_clients`   those that call over connections of their own, by their names
`_programs`  the programs that were sent, by their tokens; the one unused for longest goes first
`_held`      what an evaluation left behind for its gradient, by its number
`_rows`      rows that calls have left, cotangents of Shards, by their numbers
`exchange`   what calls gave, where that is first added up with what other workers have
`_n_calls`   how many calls came
`_now`       what those that are being answered will leave here, by its names, unless it is let go of before
`_last`      when the last of them was
`reports`    what is told of them to the scheduler's plugin
`_is_known`  whether it was said that there is such a desk
===========  ================================================================================================

What a client left behind goes when it says so, or with the last of its connections. One that calls through the
scheduler can't hang up, so what it has not asked for within a minute goes: programs are sent again then, values and
rows computed again.
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

from dagad_scheduler._types import Comm, Worker
from dagad_scheduler.process import process_settings
from dagad_scheduler.residents.exchange import Exchange, Part, Sums
from dagad_scheduler.residents.messages import blob
from dagad_scheduler.residents.reports import SERVICES, TOPIC, OfWorker
from dagad_scheduler.residents.store import Store
from dagad_scheduler.residents.task_context import as_task
from dagad_scheduler.roles import Key, Names, Role
from dagad_scheduler.run import inside_task

MOST_PROGRAMS, MOST_HELD, LOOKS_EVERY = 64, 4, 32
SHARE_OF_HELD, SHARE_OF_ROWS = 0.2, 0.3  # of a worker's memory limit
KEEP_RELAYED = 60.0  # seconds


class ServedJob(Protocol):
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

    @property
    def left(self) -> Left:
        """The rows that it leaves."""

    @property
    def sums(self) -> Sums | None:
        """What it gave, where that is not its reply: the message says `later`."""

    def nbytes(self) -> int:
        """Return how much memory it holds on to until a later call."""


class Left(Protocol):
    """Rows that a call has left."""

    def rows(self, chunk: int, index: int) -> Any:
        """Return some of those of a chunk; None if there are none."""

    def nbytes(self) -> int:
        """Return how much memory they take."""


class ServedProgram(Protocol):
    """What runs on workers; opened from what the client sent."""

    def is_current(self) -> bool:
        """Return whether it still is what was sent; else it has to be sent again."""

    def job(self, message: dict[str, Any], held: object) -> ServedJob:
        """Return one call, with what an earlier one left behind; if the message says `keep`, it may do so itself."""


class _MissingError(Exception):
    """Rows that were here have moved."""


class _StaleError(Exception):
    """What a program shares with others has changed since it was opened."""


@dataclass(slots=True)
class Known:
    """A program, the rows of its chunks here, the subtrees to be added up, and when it was last called.

    `blocks` are larger subtrees that are added up here if calls say so, `sources` what others have of them.
    """

    program: ServedProgram
    keys: dict[int, list[Key]]
    parts: list[Part]
    last: float
    blocks: Sequence[Part] = ()
    sources: Mapping[str, Sequence[Part]] = field(default_factory=dict)

    def parts_for(self, message: dict[str, Any]) -> list[Part]:
        """Return the subtrees that a call asks for: these, or those of a sample."""
        return [(start, level) for start, level in message["asked"]] if "asked" in message else self.parts

    def n_for(self, message: dict[str, Any]) -> int:
        """Return how many chunks a call is about."""
        return int(message.get("n_asked", len(self.keys)))


@dataclass(slots=True)
class Guest:
    """A client, by how many connections it calls, and what it has left here."""

    n_connections: int = 0
    left: set[str] = field(default_factory=set)


class ResidentService:
    """Takes calls on one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._clients: dict[str, Guest] = {}
        self._programs: OrderedDict[str, Known] = OrderedDict()
        self._held = Store(worker, SHARE_OF_HELD, MOST_HELD)
        self._rows = Store(worker, SHARE_OF_ROWS)
        self.exchange = Exchange(worker)
        self._n_calls = 0
        self._now = list[set[str]]()
        self._last = -math.inf
        self.reports = OfWorker(self._call_later, self._report, lambda: (len(self._held), self._held.nbytes))
        self._is_known = False

    def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self._worker.loop.asyncio_loop.call_later(seconds, call)

    def _report(self, event: dict[str, Any]) -> None:
        delay = self._worker.scheduler_delay
        event["samples"] = [(key, began + delay, end + delay, thread) for key, (began, end, thread) in event["samples"]]
        self._worker.log_event(TOPIC, event)

    def wanted(self, is_wanted: bool) -> None:
        """Tell the scheduler from now on what is done here, or stop: its plugin says so."""
        self.reports.is_wanted = is_wanted

    def is_at_work(self, patience: float) -> bool:
        """Return whether a call is being answered, or one was within so many seconds."""
        return bool(self._now) or time.monotonic() < self._last + patience

    async def connection(self, comm: Comm, client: str = "") -> Any:
        """Serve a client that keeps its connection open; what runs is told to stop when it hangs up."""
        from dagad_scheduler.private_distributed import Status

        hung_up, last, guest = asyncio.Event(), set[str](), self._clients.setdefault(client, Guest())
        guest.n_connections += 1
        calls: set[asyncio.Task[None]] = set()
        with contextlib.suppress(OSError):
            try:
                await comm.write({"status": "OK"})
                while True:
                    message = await comm.read()
                    forget = message.get("forget", ())
                    self._forget(forget)
                    guest.left.difference_update(forget)
                    if "token" not in message:
                        continue
                    last = {message["left"]} if "left" in message else set()
                    last |= {message["number"]} if message["keep"] else set()
                    guest.left.discard(message["number"])
                    if "program" in message:
                        last.add(_name_of(message["token"]))
                    guest.left |= last
                    call = asyncio.create_task(self._answer(comm, message, hung_up.is_set))
                    calls.add(call)
                    call.add_done_callback(calls.discard)
            finally:
                hung_up.set()
                guest.n_connections -= 1
                if not guest.n_connections:
                    last |= self._clients.pop(client).left
                self._forget(last)  # the client may never have read the last reply, and does not ask for what it left
                guest.left -= last
        return Status.dont_reply

    async def _answer(self, comm: Comm, message: dict[str, Any], stopped: Callable[[], bool]) -> None:
        reply = await self.call(message, stopped)
        with contextlib.suppress(OSError):
            await comm.write(reply)

    async def relayed(self, call: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
        """Serve a client that reaches only the scheduler: one message for all workers, with a few words for each."""
        message = call | own.get(self._worker.address, {})
        self._forget(message.get("forget", ()))
        if "token" not in message:
            return {"status": "OK"}
        reply = await self.call(message, bool)
        later = self._worker.loop.asyncio_loop.call_later
        if "left" in message:
            later(KEEP_RELAYED, self._forget, [message["left"]])
        if message["keep"]:
            later(KEEP_RELAYED, self._forget, [message["number"]])
        if "program" in message:
            later(KEEP_RELAYED, self._forget_unused, message["token"])
        return reply

    def _forget(self, names: Collection[str]) -> None:
        """Let go of programs, and of what evaluations left behind."""
        self._held.forget(names)
        self._rows.forget(names)
        for leaves in self._now:  # who gave a call up says so before it is over
            leaves.difference_update(names)
        if names:
            self.reports.soon()  # it holds less
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
        leaves = {message[name] for name in ("number", "left") if name in message}
        self._now.append(leaves)
        self._say_there_is_one()
        try:
            if "gather" in message:
                return await self._gathered(message)
            return await self._call(message, stopped, leaves)
        except _MissingError:
            return {"status": "missing"}
        except _StaleError:
            return {"status": "unknown"}
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the client then takes the graph, which raises what there is to raise
            reason = f"{type(error).__name__}: {error}"[:2000]
            if not stopped():  # what nobody waits for any more was given up
                self.reports.failed(message.get("function", ""), message.get("role", Role.LOOP), reason)
            return {"status": "failed", "reason": reason}
        finally:
            self._now[:] = [some for some in self._now if some is not leaves]
            self._last = time.monotonic()

    def _say_there_is_one(self) -> None:
        if not self._is_known:
            self._is_known = True
            self._worker.log_event(SERVICES, {})

    async def _call(self, message: dict[str, Any], stopped: Callable[[], bool], leaves: set[str]) -> dict[str, Any]:
        if "program" in message:
            await self._learn(message, stopped)
        if (token := message["token"]) not in self._programs:
            return {"status": "unknown"}
        known, rows = self._programs[token], self._rows_of(token, message.get("taken", ()), message.get("sample"))
        program, parts, worker = known.program, known.parts_for(message), self._worker
        held, called, spans = self._held.take(message["number"]), _called(message), self.reports.spans()

        def begin() -> tuple[ServedJob, list[list[Part]]]:
            if not program.is_current():
                raise _StaleError
            job = program.job(message, held)
            return job, job.split(parts, worker.state.nthreads)

        def compute(job: ServedJob, some: Sequence[Part]) -> dict[Part, Any]:
            with as_task(worker, called, spans), process_settings, inside_task:
                return {part: job.part(part, rows, stopped) for part in some}

        def alone() -> tuple[ServedJob, dict[str, Any], Any]:
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
            if held is not None and not stopped() and message["number"] in leaves:  # the same call comes again
                self._held.keep(message["number"], held)
            raise
        if not stopped():
            self._leave(message, job, leaves)
        seconds = (time.perf_counter() - began) * n_shares
        if spans is not None:
            self.reports.answered(known.n_for(message), seconds, called, spans, has_held=held is not None)
        words = {"status": "OK", "seconds": seconds, "threads": n_shares, "reports": spans is not None}
        return {**words, **head, "data": blob(buffer)}

    def _leave(self, message: dict[str, Any], job: ServedJob, leaves: Collection[str]) -> None:
        """Hold on to what a call leaves for later ones."""
        if job.holds and message["number"] in leaves:
            self._held.keep(message["number"], job)
        if message.get("left") in leaves:
            self._rows.keep(message["left"], job.left)
        if "later" in message and job.sums is not None:
            self.exchange.keep(message["later"], job.sums)

    async def _gathered(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer with the sums of larger subtrees than this worker has alone."""
        known = self._programs.get(message["token"])
        if known is None:
            raise _MissingError
        return await self.exchange.total(message["gather"], known.blocks, known.sources)

    def _rows_of(
        self, token: str, taken: Sequence[tuple[str, int]], sample: Sequence[int] | None
    ) -> Callable[[int], list[Any]]:
        """Return what finds the rows of a program's chunks, and those that calls have left; the program was called.

        Of a sample they are found by the place of their chunk in it.
        """
        self._programs.move_to_end(token)
        known = self._programs[token]
        keys, known.last = known.keys, time.monotonic()
        data, near = self._worker.data, self._near()

        def rows(chunk: int) -> list[Any]:
            try:
                own = keys[chunk if sample is None else sample[chunk]]
                found = [near[key] if key in near else data[key] for key in own]
            except KeyError as error:
                raise _MissingError from error
            for number, index in taken:
                found.append(self.left_rows(number, chunk, index))
                if found[-1] is None:
                    raise _MissingError
            return found

        return rows

    def left_rows(self, number: str, chunk: int, index: int) -> Any:
        """Return rows that a call has left; None if they are not here."""
        left: Left | None = self._rows.get(number)
        return None if left is None else left.rows(chunk, index)

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
        blocks, sources = message.get("blocks", []), message.get("sources", {})
        self._programs[message["token"]] = Known(program, keys, parts, time.monotonic(), blocks, sources)
        while len(self._programs) > MOST_PROGRAMS:
            self._programs.popitem(last=False)


def rows_left_here(number: str, chunk: int, index: int) -> Any:
    """Return, in a task, rows that a call has left on the task's worker; None if they are not here."""
    from distributed import get_worker

    try:
        plugin: Any = get_worker().plugins.get("dagad-resident")
    except ValueError:  # no worker's task
        return None
    return None if plugin is None or plugin.service is None else plugin.service.left_rows(number, chunk, index)


def _opened(payload: Sequence[Any]) -> ServedProgram:
    head, *buffers = payload
    program: ServedProgram = pickle.loads(bytes(head), buffers=buffers)
    return program


def _called(message: dict[str, Any]) -> Key:
    """Return what a call would be called if it were a task."""
    return Names(message["token"], message.get("function", ""))(message.get("role", Role.LOOP), message["number"])


def _name_of(token: str) -> str:
    """Return what a program is called, whatever chunks of it live here."""
    return token.partition("-")[0]


def _key(key: object) -> Key:
    return tuple(key) if isinstance(key, list) else key
