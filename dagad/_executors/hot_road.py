"""The same reduction again and again on resident rows: one call per worker; when anything is amiss, the graph.

State of a `HotRoad`, changed under its lock, which nobody holds while he calls, pickles or asks:

============  ==============================================================================================
`_sent`       programs by what they are of: the chunk function's code and the looks of what is differentiated
`placement`      which worker computes which chunks, and the subtrees that these are; None: look again
`_looked`     when that was found out
`_moved`      when the chunks were last sent on another road so that they come to lie evenly
============  ==============================================================================================
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dagad._errors import StructureError
from dagad._executors.evaluation import follow, new_names
from dagad._executors.hot_chunks import GRADIENT, program_of, reply_layout
from dagad._graphs.sums import Subtree, assembled, subtrees
from dagad._operations.chunks import ChunkFunction
from dagad._pytrees.buffers import Layout, Spec, as_bytes
from dagad._pytrees.fingerprint import fingerprint, same
from dagad._pytrees.shipping import pack
from dagad._sources.plan import AnyPlan
from dagad._sources.rows import Rows

logger = logging.getLogger("dagad")

LOOK_AGAIN = 5.0  # seconds after which workers that have come are noticed
LEAST_PATIENCE, PATIENCE = 10.0, 20.0  # seconds, and times as long as it took before
UNEVEN = 1.5
MOST_PROGRAMS = 32


class OffRoadError(Exception):
    """Raised where an evaluation has to take the graph; never seen by users. `by_chunks`: what a chunk did is why."""

    def __init__(self, reason: str, *, by_chunks: bool = False) -> None:
        super().__init__(reason)
        self.by_chunks = by_chunks


@dataclass(slots=True)
class Sent:
    """A program, and which workers know it; they let go of it when this goes."""

    layout: Layout
    frozen: tuple[Any, ...] | None
    program: list[memoryview]  # views of the payload, but for a few words
    payload: list[bytes]  # of what may change, to see whether it has
    lease: Any  # by whose number workers call it
    earlier: str  # the number of what it stands in for; empty if it is the first
    known: set[tuple[str, str]] = field(default_factory=set)  # versions of homes, and addresses


@dataclass(frozen=True, slots=True)
class Homes:
    """Which worker computes what."""

    chunks: dict[str, list[int]]
    parts: dict[str, list[Subtree]]
    version: str


class HotRoad:
    """Calls to the workers that hold some Shards."""

    def __init__(self, lines: Any, plan: AnyPlan, keys: Sequence[Sequence[Any]]) -> None:
        self._lines, self._plan, self._keys = lines, plan, keys
        self._lock = threading.Lock()
        self._sent: dict[Any, Sent] = {}
        self._homes: Homes | None = None
        self._looked = self._moved = -LOOK_AGAIN

    def call(
        self,
        function: ChunkFunction,
        template: Rows | None,
        theta: Sequence[Any],
        role: str,
        *,
        owner: Any,
        lease: Any = None,
        keep: bool = False,
        expected: float = 0.0,
    ) -> tuple[list[Any], float]:
        """Return the total, with the cotangents of theta for the role "gradient", and the seconds it took all workers.

        Raises
        ------
        OffRoadError
            If this evaluation has to take the graph.
        """
        if reason := self._lines.refusal():
            raise OffRoadError(reason)
        homes = self._find_homes()
        sent = self._program(owner, function, template, theta)
        arguments = bytearray(sent.layout.nbytes)
        sent.layout.write(theta, as_bytes(arguments, len(arguments)))
        message = {"token": f"{sent.lease.number}-{homes.version}", "role": role, "keep": keep}
        message |= {"number": "" if lease is None else lease.number, "arguments": memoryview(arguments)}
        waiting, replies = set(homes.parts), dict[str, Any]()
        for _ in range(2):
            calls = {address: message | self._introduction(sent, homes, address) for address in waiting}
            if keep:
                lease.left_at(calls)
            run = self._ask(calls, role, bool(message["number"]), LEAST_PATIENCE + PATIENCE * expected)
            replies |= run.replies
            if lease is not None and not keep:
                lease.taken_from([address for address in waiting if replies[address].get("status") == "OK"])
            waiting = {address for address in waiting if replies[address].get("status") == "unknown"}
            with self._lock:
                sent.known.update((homes.version, address) for address in run.replies.keys() - waiting)
                sent.known.difference_update((homes.version, address) for address in waiting)
            if not waiting:
                break
            run.is_void = True  # others have done their part, but it is not told apart
        self._check(replies, run)
        sums: dict[Subtree, Any] = {}
        try:
            for address, parts in homes.parts.items():
                sums.update(zip(parts, _read(replies[address], sent.layout, len(parts), role), strict=True))
            seconds = sum(float(reply["seconds"]) for reply in replies.values())
        except (StructureError, KeyError, TypeError, ValueError) as error:
            raise self._off(f"a worker sent something else than was asked for ({error})") from error
        return assembled(sums, len(self._plan)), seconds

    def lease(self) -> Any:
        """Return what stands for something that a value leaves behind for its gradient."""
        return self._lines.lease()

    def _ask(self, calls: dict[str, Any], role: str, is_second: bool, limit: float) -> Any:
        """Return the run that has all replies; the second call of an evaluation computes no values anew."""
        n_chunks = len(self._plan)
        n_values = 0 if is_second and role == GRADIENT else n_chunks
        run = self._lines.call(calls, n_values, n_chunks * (role == GRADIENT), limit)
        try:
            follow(run)
        except (OSError, TimeoutError) as error:
            raise self._off(f"a worker did not answer ({type(error).__name__}: {error})") from error
        for address, reply in run.replies.items():
            if not isinstance(reply, dict):
                raise self._off(f"{address} sent a {type(reply).__name__}")
        return run

    def _check(self, replies: dict[str, Any], run: Any) -> None:
        for address, reply in replies.items():
            if reply.get("status") != "OK":
                run.is_void = True
                failed = reply.get("status") == "failed"
                raise self._off(f"{address} says: {reply.get('status')} {reply.get('reason', '')}", by_chunks=failed)

    def _off(self, reason: str, *, by_chunks: bool = False) -> OffRoadError:
        logger.info("dagad: this evaluation takes the graph: %s", reason)
        self._homes = None
        return OffRoadError(reason, by_chunks=by_chunks)

    def _introduction(self, sent: Sent, homes: Homes, address: str) -> dict[str, Any]:
        """Return what a worker has to be told that does not know the program."""
        if (homes.version, address) in sent.known:
            return {}
        keys = [(chunk, list(self._keys[chunk])) for chunk in homes.chunks[address]]
        parts = [tuple(part) for part in homes.parts[address]]
        instead = [number for number in (sent.lease.number, sent.earlier) if number]
        with self._lock:
            sent.lease.left_at([address])
        return {"program": sent.program, "keys": keys, "parts": parts, "instead": instead}

    def _program(self, owner: Any, function: ChunkFunction, template: Rows | None, theta: Sequence[Any]) -> Sent:
        specs = tuple(map(Spec.of, theta))
        looks = owner, specs, None if template is None else template.state()[0]
        frozen = fingerprint(*function.state())
        with self._lock:
            sent = self._sent.get(looks)
            if sent is not None and same(sent.frozen, frozen):
                return sent
        # A copy: what is pickled may point into arrays that change before the next evaluation. Nobody else waits for
        # it: pickling runs the user's own code.
        payload = [bytes(part) for part in pack((function, template)).payload]
        with self._lock:
            sent = self._sent.get(looks)
            if sent is None or payload != sent.payload:
                program = program_of(payload, self._plan, specs, new_names())
                earlier, lease = "" if sent is None else sent.lease.number, self._lines.lease()
                sent = self._sent[looks] = Sent(Layout(specs), frozen, program, payload, lease, earlier)
            sent.frozen = frozen
            while len(self._sent) > MOST_PROGRAMS:
                del self._sent[next(iter(self._sent))]
            return sent

    def _find_homes(self) -> Homes:
        """Look where the rows are now; several threads may look at the same time, and find the same."""
        now, homes = time.monotonic(), self._homes
        if homes is not None and now < self._looked + LOOK_AGAIN:
            return homes
        try:
            self._lines.install()
            workers, holders = self._lines.workers(), self._holders()
        except (OSError, TimeoutError, RuntimeError) as error:  # no scheduler: the graph will say so
            raise self._off(f"the scheduler did not answer ({error})") from error
        n_chunks = len(holders)
        chosen = []
        for chunk, here in enumerate(holders):
            if not here:
                raise OffRoadError(f"chunk {chunk} is on no worker")
            wanted = workers[chunk * len(workers) // n_chunks] if workers else ""
            chosen.append(wanted if wanted in here else min(here))
        chunks: dict[str, list[int]] = {}
        for chunk, address in enumerate(chosen):
            chunks.setdefault(address, []).append(chunk)
        fair = max(n_chunks / max(len(workers), 1), 1.0)
        with self._lock:
            self._looked = now
            if max(map(len, chunks.values())) > UNEVEN * fair and now > self._moved + LOOK_AGAIN:
                self._moved, self._homes = now, None
                raise OffRoadError("the chunks lie unevenly; the graph moves them")
            parts = {address: _parts(some, n_chunks) for address, some in chunks.items()}
            if self._homes is None or self._homes.chunks != chunks:
                self._homes = Homes(chunks, parts, uuid.uuid4().hex)
                for sent in self._sent.values():
                    sent.known.clear()  # what is where has changed, and nobody knows that
            return self._homes

    def _holders(self) -> list[set[str]]:
        """Return for each chunk the workers that have all of its rows."""
        flat = [key for keys in self._keys for key in keys]
        where = iter(self._lines.homes(flat))
        return [set.intersection(*(set(next(where)) for _ in keys)) for keys in self._keys]


def _parts(chunks: Sequence[int], n_chunks: int) -> list[Subtree]:
    """Return the subtrees that are exactly these chunks."""
    runs = itertools.groupby(enumerate(chunks), lambda pair: pair[1] - pair[0])
    bounds = [(run[0][1], run[-1][1] + 1) for run in (list(group) for _, group in runs)]
    return [part for start, stop in bounds for part in subtrees(start, stop, n_chunks)]


def _read(reply: dict[str, Any], theta: Layout, n_parts: int, role: str) -> list[list[Any]]:
    """Return the sums in a reply, after checking that they are what was asked for."""
    dtype, gaps = str(reply["dtype"]), reply["gaps"]
    if dtype.lstrip("<>=|") not in ("f8", "f4", "f2", "f16"):
        raise StructureError(f"A worker sent a value of dtype {dtype}, where a real number was expected.")
    layout = reply_layout(theta.specs, dtype, role == GRADIENT)
    if any(0 in gap for gap in gaps):
        raise StructureError("A worker sent sums without a value.")
    buffer = as_bytes(reply["data"], layout.nbytes * n_parts).reshape(n_parts, layout.nbytes)
    return [layout.read(row, gap) for row, gap in zip(buffer, gaps, strict=True)]
