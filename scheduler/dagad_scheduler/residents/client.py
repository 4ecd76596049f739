"""The client's end of a hot loop: open connections to every worker, or one message through the scheduler.

All Shards of a client share its `ResidentClient`, which ends with the last of them. A call has a connection to each of
its workers to itself, and closes it when it is given up: calls at the same time don't hear of that.

State of `ResidentClient`, touched by the client's event loop only:

==============  ===========================================================================================
`connections`  those that are open; one that failed is closed, and another one opened when needed
`_relayed`      until when calls go through the scheduler, since a worker could not be reached from here
`_reports`      what is told of calls to the scheduler's plugin
`keep_alive`     the tasks by which Dask sees that the workers work
==============  ===========================================================================================

`_let_go` is a queue: who lets go of something puts it there, from whatever thread; the loop tells the workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
import time
import uuid
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from dagad_scheduler._types import Client
from dagad_scheduler.annotations import annotated
from dagad_scheduler.residents.connections import Connections
from dagad_scheduler.residents.keep_alive import KeepAlive, keep_alive_of
from dagad_scheduler.residents.messages import all_packed, has_buffers, nbytes
from dagad_scheduler.residents.reports import TOPIC, OfClient
from dagad_scheduler.roles import Key
from dagad_scheduler.run import Account, Progress, Run
from dagad_scheduler.workers import workers_of

REACH_WITHIN, RELAY_FOR = 2.0, 60.0  # seconds
LOOK_EVERY = 1.0  # seconds
FEW = 16  # calls in one message, where each has words of its own
TELL_AFTER = 0.1  # seconds, in which more may be let go of: one message for all
Replies = dict[str, dict[str, Any]]


class _OutOfReach(Exception):
    """A worker can't be connected to from here."""


def resident_client_of(client: Client) -> ResidentClient:
    """Return the lines of a client; they stay for as long as somebody else refers to them."""
    extension: _Extension = client.extensions.setdefault("dagad-residents", _Extension())
    with extension.lock:
        found = extension.residents()
        if found is None:
            found = ResidentClient(client)
            extension.residents = weakref.ref(found)
    return found


def _call_later(client: Client, seconds: float, call: Callable[[], None]) -> None:
    client.loop.asyncio_loop.call_later(seconds, call, context=contextvars.Context())


def _report(client: Client, event: dict[str, Any]) -> None:
    task = asyncio.create_task(_send(client, event), name="dagad-report")
    extension: _Extension = client.extensions["dagad-residents"]
    extension.sending.add(task)
    task.add_done_callback(extension.sending.discard)


async def _send(client: Client, event: dict[str, Any]) -> None:
    if client.status == "running":
        with contextlib.suppress(OSError):
            await client.scheduler.log_event(topic=TOPIC, msg=event)


class _Extension:
    """Where a client's lines are found, which belong to those who call by them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.residents: Callable[[], ResidentClient | None] = _nothing
        self.sending = set[asyncio.Task[None]]()  # reports


def _nothing() -> None:
    return None


class ResidentClient:
    """Calls to the residents of a client's cluster."""

    def __init__(self, client: Client) -> None:
        self._client, self._name = client, uuid.uuid4().hex
        self._connections = Connections()
        self._relayed = 0.0
        self._installed = False
        self._keep_alive = keep_alive_of(client)
        self._reports = OfClient(functools.partial(_call_later, client), functools.partial(_report, client), client.id)
        self._let_go: deque[tuple[str, frozenset[str]]] = deque()
        self._telling: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        client.loop.add_callback(self._keep_alive.join)
        # Connections go with whoever made them, on the loop that they belong to.
        weakref.finalize(self, _hang_up_all, client.loop, self._connections, self._keep_alive)

    def fell_back(self, reason: str) -> None:
        """Take note of an evaluation that takes the graph; called by whatever thread evaluates."""
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._client.loop.asyncio_loop.call_soon_threadsafe(self._reports.fell_back, reason)

    def install(self) -> None:
        """Give the workers, and those that come later, the handlers that answer."""
        from dagad_scheduler.residents.plugin import Resident

        if not self._installed:
            workers_of(self._client).fit()  # one that can't open the plugin would go
            self._client.register_plugin(Resident())
            self._installed = True

    def homes(self, keys: Sequence[Key]) -> list[tuple[str, ...]]:
        """Return for each key the addresses of the workers that have it."""
        found = self._client.sync(self._client.scheduler.who_has, keys=list(keys))
        return [tuple(found.get(key, ())) for key in keys]

    def workers(self) -> list[str]:
        """Return the addresses of all workers."""
        return workers_of(self._client).addresses()

    def refusal(self) -> str:
        """Return why what is called here has to be a task; empty if it need not."""
        users = annotated()
        return f"{users} is for tasks" if users.needs_tasks else ""

    @property
    def is_relayed(self) -> bool:
        """Whether calls go through the scheduler now."""
        return time.monotonic() < self._relayed

    def call(self, calls: Mapping[str, dict[str, Any]], n_values: int, n_gradients: int, limit: float) -> ResidentRun:
        """Send each worker its call; there is an answer within `limit` seconds, or there is an error."""
        packed = all_packed(calls)
        future = asyncio.run_coroutine_threadsafe(
            self._timed(packed, n_values, n_gradients, limit), self._client.loop.asyncio_loop
        )
        return ResidentRun(future, n_values, n_gradients, packed)

    def lease(self) -> Lease:
        """Return what stands for something that is about to be left on workers."""
        return Lease(self)

    def let_go(self, number: str, addresses: frozenset[str]) -> None:
        """Have workers forget what was left there; called by whatever thread collects garbage."""
        self._let_go.append((number, addresses))
        with contextlib.suppress(RuntimeError):  # the loop has been closed, and with it the connections
            self._client.loop.asyncio_loop.call_soon_threadsafe(self._tell_later)

    def _tell_later(self) -> None:
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell(), name="dagad-let-go")

    async def _tell(self) -> None:
        while self._let_go:
            await asyncio.sleep(TELL_AFTER)
            numbers: dict[str, list[str]] = {}
            while self._let_go:
                number, addresses = self._let_go.popleft()
                for address in addresses:
                    numbers.setdefault(address, []).append(number)
            away: dict[str, dict[str, Any]] = {}
            for address, some in numbers.items():
                if self._connections.has_idle(address):
                    with contextlib.suppress(OSError):  # a worker that is gone has forgotten
                        await self._forget(address, some)
                elif self._connections.has_busy(address):  # until that call is over
                    self._let_go.extend((number, frozenset([address])) for number in some)
                else:  # hung up on, it has forgotten, unless it was called through the scheduler
                    away[address] = {"forget": some}
            if away and time.monotonic() < self._relayed:
                with contextlib.suppress(OSError):
                    await self._relay(away)

    async def _forget(self, address: str, numbers: list[str]) -> None:
        comm = self._connections.take(address)
        try:
            await comm.write({"forget": numbers})
        except BaseException:
            self._connections.hang_up(address, comm)
            raise
        self._connections.give_back(address, comm)

    async def _ask(self, calls: dict[str, dict[str, Any]], limit: float) -> Replies:
        forgotten = self._taken_along(frozenset(calls))
        calls = {
            address: call | {"forget": forgotten[address]} if address in forgotten else call
            for address, call in calls.items()
        }
        try:
            with self._keep_alive.during(calls, next(iter(calls.values())).get("function", "")):
                return await self._asked(calls, limit)
        except BaseException:
            if forgotten:  # perhaps it was never sent, and it does no harm to be told twice
                self._let_go.extend((number, frozenset([one])) for one, some in forgotten.items() for number in some)
                self._tell_later()
            raise

    async def _timed(self, calls: dict[str, dict[str, Any]], n_values: int, n_gradients: int, limit: float) -> Replies:
        """Ask, and take note of how long it took if somebody wants to know: workers say so."""
        began, first = time.perf_counter(), next(iter(calls.values()))
        replies = await self._ask(calls, limit)
        if "gather" in first:  # the second half of one that was noted
            return replies
        words = [one for one in replies.values() if isinstance(one, dict)]
        reports = [one.get("reports", False) for one in words if one.get("status") == "OK"]
        if reports:
            self._reports.is_wanted = all(reports)
        if len(reports) == len(calls) and self._reports.is_wanted:
            seconds, what = time.perf_counter() - began, (first.get("function", ""), first.get("role", ""))
            self._reports.evaluated(*what, seconds, n_values, n_gradients)
        return replies

    def _taken_along(self, addresses: frozenset[str]) -> dict[str, list[str]]:
        """Return by address what was let go of: who is called anyway need not wait to be told."""
        forgotten: dict[str, list[str]] = {}
        for _ in range(len(self._let_go)):
            number, left_at = self._let_go.popleft()
            for address in left_at & addresses:
                forgotten.setdefault(address, []).append(number)
            if elsewhere := left_at - addresses:
                self._let_go.append((number, elsewhere))
        return forgotten

    async def _asked(self, calls: dict[str, dict[str, Any]], limit: float) -> Replies:
        try:
            async with asyncio.timeout(limit):
                if time.monotonic() >= self._relayed:
                    try:
                        return await self._exchange(calls)
                    except _OutOfReach:
                        self._relayed = time.monotonic() + RELAY_FOR
                return await self._relay(calls)
        except OSError as error:
            self._installed = False  # the scheduler may be another one now
            if isinstance(error, TimeoutError):
                for address in calls:
                    self._connections.hang_up_idle(address)
            raise

    async def _exchange(self, calls: dict[str, dict[str, Any]]) -> Replies:
        """Write to all, then read from all: the workers work at the same time, and no task is needed for it."""
        comms, address = await self._take(calls), ""
        replies: Replies = {}
        try:
            for address, comm in comms.items():
                await comm.write(calls[address])
            for address, comm in comms.items():
                # Without pickle: what a worker sends is numbers.
                replies[address] = await comm.read(deserializers=["dask"])
        except BaseException as error:
            # Answers may be on their way: what comes over these connections is nobody's any more.
            for one, comm in comms.items():
                self._connections.hang_up(one, comm)
            if isinstance(error, OSError):
                self._connections.hang_up_idle(address)
            raise
        for address, comm in comms.items():
            self._connections.give_back(address, comm)
        return replies

    async def _take(self, addresses: Collection[str]) -> dict[str, Any]:
        """Return a connection to each worker that nobody else uses."""
        comms: dict[str, Any] = {}
        try:
            if not all(map(self._connections.has_idle, addresses)):
                await self._refuse_gone(addresses)
            for address in addresses:
                comms[address] = self._connections.take(address) or await self._open(address)
        except BaseException:
            for address, comm in comms.items():
                self._connections.give_back(address, comm)
            raise
        return comms

    async def _open(self, address: str) -> Any:
        from dagad_scheduler.private_distributed import connect

        try:
            comm = await connect(address, timeout=REACH_WITHIN, **self._client.rpc.connection_args)
        except (OSError, TimeoutError) as error:
            await self._refuse_gone([address])
            raise _OutOfReach(f"No connection to {address} within {REACH_WITHIN} seconds.") from error
        try:
            await comm.write({"op": "dagad_connection", "client": self._name})
            if (await comm.read() or {}).get("status") != "OK":
                raise OSError(f"The worker {address} has no desk of dagad's.")
        except BaseException:
            comm.abort()
            raise
        self._connections.add(address, comm)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(_hang_up_with(self._client, self._connections), name="dagad-hang-up")
        return comm

    async def _refuse_gone(self, addresses: Collection[str]) -> None:
        """Raise for workers that are gone, which is not out of reach: the graph knows where else to go."""
        there = await self._scheduler().ncores()
        if gone := set(addresses) - there.keys():
            raise OSError(f"There is no worker at {', '.join(sorted(gone))} any more.")

    def _scheduler(self) -> Any:
        if self._client.scheduler is None:  # the client was closed while something was still to be told
            raise OSError(f"The client {self._client.id} is {self._client.status}.")
        return self._client.scheduler

    async def _relay(self, calls: dict[str, dict[str, Any]]) -> Replies:
        await self._refuse_gone(calls)  # the scheduler itself would try to reach a dead one for half a minute
        replies: list[Replies] = await asyncio.gather(*map(self._relay_alike, _alike(calls)))
        return {address: reply for some in replies for address, reply in some.items()}

    async def _relay_alike(self, calls: dict[str, dict[str, Any]]) -> Replies:
        """Send what the calls have in common once: it is large, parameters and programs, and the workers are many."""
        first, common = next(iter(calls.values())), _common(calls)
        own = {address: {name: call[name] for name in call.keys() - common} for address, call in calls.items()}
        own = {address: words for address, words in own.items() if words}
        replies: Replies = await self._scheduler().broadcast(
            msg={"op": "dagad_relayed", "call": {name: first[name] for name in common}, "own": own}, workers=list(calls)
        )
        return replies


def _alike(calls: dict[str, dict[str, Any]]) -> list[dict[str, dict[str, Any]]]:
    """Return the calls by what they bring: some workers know the program, others are told, or have rows of their own.

    These are sent apart: together, each worker would get the rows of all. So would it get the words that tell others
    of their chunks, which therefore go to a few at a time: else they would grow with the square of the workers.
    """
    n_calls = Counter(id(part) for call in calls.values() for part in call.values())
    groups: dict[Any, dict[str, dict[str, Any]]] = {}
    for address, call in calls.items():
        has_own = any(n_calls[id(part)] == 1 and has_buffers(part) for part in call.values())
        groups.setdefault(address if has_own else frozenset(call), {})[address] = call
    return [some for group in groups.values() for some in _few_at_a_time(group)]


def _common(calls: dict[str, dict[str, Any]]) -> set[str]:
    """Return the names of the parts that some calls have in common."""
    first = next(iter(calls.values()))
    return {name for name, part in first.items() if all(call[name] is part for call in calls.values())}


def _few_at_a_time(calls: dict[str, dict[str, Any]]) -> list[dict[str, dict[str, Any]]]:
    """Return calls in groups that are small where each has words of its own."""
    pairs = list(calls.items())
    if len(_common(calls)) == len(pairs[0][1]):
        return [calls]
    return [dict(pairs[start : start + FEW]) for start in range(0, len(pairs), FEW)]


def _hang_up_all(loop: Any, connections: Connections, keep_alive: KeepAlive) -> None:
    def end() -> None:
        keep_alive.leave()
        connections.hang_up_all()

    with contextlib.suppress(RuntimeError):  # the loop has been closed, and with it the connections
        loop.add_callback(end)


async def _hang_up_with(client: Client, connections: Connections) -> None:
    """Hang up when the client is closed: workers then forget what it left there, whoever still refers to it here."""
    try:
        while connections and client.status not in ("closing", "closed"):
            await asyncio.sleep(LOOK_EVERY)
    finally:  # a loop that is stopped cancels its tasks
        connections.hang_up_all()


class Lease:
    """What was left on workers, a program or what a gradient needs: who drops this has them let go of it.

    ===========  ==================================================
    `number`     what it is called there
    `addresses`  of the workers that may still have something of it
    ===========  ==================================================
    """

    def __init__(self, residents: ResidentClient) -> None:
        self._residents, self.number = residents, uuid.uuid4().hex
        self.addresses: frozenset[str] = frozenset()

    def left_at(self, addresses: Collection[str]) -> None:
        """Note that workers are asked to keep something."""
        self.addresses |= frozenset(addresses)

    def taken_from(self, addresses: Collection[str]) -> None:
        """Note that workers have used up what they had."""
        self.addresses -= frozenset(addresses)

    def __del__(self) -> None:
        if self.addresses:
            self._residents.let_go(self.number, self.addresses)


class ResidentRun(Run):
    """One evaluation on the hot road; `replies` are there when `wait` returns."""

    def __init__(self, future: Future[Replies], n_values: int, n_gradients: int, calls: dict[str, Any]) -> None:
        self._future, self._totals, self._calls = future, (n_values, n_gradients), calls
        self.kept: dict[Key, Any] = {}
        self.replies: Replies = {}
        self.is_void = False  # whether what it did is done again by somebody else

    def wait(self, timeout: float | None = None) -> None:
        """Return when all workers have answered."""
        try:
            self.replies = self._future.result(timeout)
        except CancelledError as error:
            raise CancelledError("This run was cancelled.") from error
        except BaseException:
            self._future.cancel()
            raise

    def cancel(self) -> None:
        """Hang up; workers stop after the chunk that they are in."""
        self._future.cancel()

    def account(self, *, detailed: bool = False) -> Account:
        """Return what the workers say that it took, and how large the messages were."""
        del detailed  # all is known here
        answers = [reply for reply in self.replies.values() if isinstance(reply, dict)]
        seconds = sum(float(reply.get("seconds", 0.0)) for reply in answers)
        received = sum(memoryview(reply["data"]).nbytes for reply in answers if "data" in reply)
        return Account({"chunks": seconds}, sum(map(nbytes, self._calls.values())), received)

    def progress(self) -> Progress:
        """Return all or nothing: nobody is told of single chunks."""
        n_values, n_gradients = self._totals
        done = self._future.done()
        if self.is_void or (done and (self._future.cancelled() or self._future.exception() is not None)):
            return Progress()
        return Progress(n_values * done, n_values, n_gradients * done, n_gradients)
