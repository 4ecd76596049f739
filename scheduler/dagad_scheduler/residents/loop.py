"""Calls again and again of programs on rows that live on workers: who has which rows, and who knows which program.

State of a `Loop`, changed under its lock, which nobody holds while he calls, pickles or asks:

==========  ================================================================================================
`_sent`     programs by what they are of
`_homes`    which worker computes which chunks, and the subtrees that these are; None: look again
`_looked`   when that was found out
`_rebalanced`    when the chunks were last sent on another way so that they come to lie evenly
==========  ================================================================================================
"""

from __future__ import annotations

import bisect
import logging
import threading
import time
import uuid
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dagad_scheduler.residents.client import Lease, ResidentClient, ResidentRun
from dagad_scheduler.roles import Key

logger = logging.getLogger("dagad")

LOOK_AGAIN = 5.0  # seconds after which workers that have come are noticed
UNEVEN = 1.5
MOST_PROGRAMS = 32
Parts = list[tuple[int, int]]  # subtrees of the tree of sums: first chunk, level


class UnavailableError(Exception):
    """Raised where residents can't run a job this time; never seen by users. `by_chunks`: what a chunk did is why."""

    def __init__(self, reason: str, *, by_chunks: bool = False) -> None:
        super().__init__(reason)
        self.by_chunks = by_chunks


@dataclass(slots=True)
class KnownProgram:
    """A program, and which workers know it; they let go of it when this goes."""

    fingerprint: Any
    payload: list[bytes]  # of what may change, to see whether it has
    program: list[memoryview]  # what is sent: views of the payload, but for a few words
    lease: Lease  # by whose number workers call it
    earlier: str  # the number of what it stands in for; empty if it is the first
    known: set[tuple[str, str]] = field(default_factory=set)  # versions of homes, and addresses


@dataclass(frozen=True, slots=True)
class Homes:
    """Which worker computes what.

    Attributes
    ----------
    chunks, parts
        By worker its chunks, and the subtrees that they are.
    version
        What it is called.
    blocks, sources
        By worker the larger subtrees that it may add up, at most one where neighbours lie together, and what others
        have of them. Empty where these would not be fewer.
    """

    chunks: dict[str, list[int]]
    parts: dict[str, Parts]
    version: str
    blocks: dict[str, Parts] = field(default_factory=dict)
    sources: dict[str, dict[str, Parts]] = field(default_factory=dict)
    is_sample: bool = False
    _by_chunk: list[str] = field(default_factory=list)

    def of(self, sample: Sequence[int] | None, parts_of: Callable[[Sequence[int], int], Parts]) -> Homes:
        """Return which worker computes what of some chunks, by their indices among these; None for all."""
        if sample is None:
            return self
        if not self._by_chunk:  # two threads would find the same
            home = {chunk: address for address, some in self.chunks.items() for chunk in some}
            self._by_chunk[:] = [home[chunk] for chunk in range(len(home))]
        chunks: dict[str, list[int]] = {}
        for index, chunk in enumerate(sample):
            chunks.setdefault(self._by_chunk[chunk], []).append(index)
        parts = {address: parts_of(some, len(sample)) for address, some in chunks.items()}
        return Homes(chunks, parts, self.version, is_sample=True)

    def asked(self, address: str) -> dict[str, Any]:
        """Return what a worker is told of its part of a sample: it knows only that of the whole."""
        if not self.is_sample:  # nearly always
            return {}
        return {"asked": list(map(tuple, self.parts[address])), "n_asked": len(self.chunks[address])}


class Loop:
    """Calls to the workers that hold the rows of some chunks."""

    def __init__(
        self,
        residents: ResidentClient,
        keys: Sequence[Sequence[Key]],
        parts_of: Callable[[Sequence[int], int], Parts],
        blocks_of: Callable[[int, int], Parts],
        follow: Callable[[ResidentRun], None],
    ) -> None:
        self._residents, self._keys, self._follow = residents, keys, follow
        self._parts_of, self._blocks_of = parts_of, blocks_of
        self._lock = threading.Lock()
        self._sent: dict[Hashable, KnownProgram] = {}
        self._homes: Homes | None = None
        self._looked = self._rebalanced = -LOOK_AGAIN

    def lease(self) -> Lease:
        """Return what stands for something that a call leaves behind for later ones."""
        return self._residents.lease()

    def off(self, reason: str, *, by_chunks: bool = False) -> UnavailableError:
        """Return what to raise where residents can't do it this time; then it is looked again who has what."""
        self._homes = None
        return self._unavailable(reason, by_chunks=by_chunks)

    def _unavailable(self, reason: str, *, by_chunks: bool = False) -> UnavailableError:
        logger.info("dagad: this evaluation takes the graph: %s", reason)
        self._residents.fell_back(reason)
        return UnavailableError(reason, by_chunks=by_chunks)

    def program(
        self,
        what: Hashable,
        fingerprint: object,
        same: Callable[[Any, Any], bool],
        pack: Callable[[], list[bytes]],
        program_of: Callable[[list[bytes]], list[memoryview]],
    ) -> KnownProgram:
        """Return a program as workers know it, or are to know it: a new one if it has changed since it was sent."""
        with self._lock:
            sent = self._sent.get(what)
            if sent is not None and same(sent.fingerprint, fingerprint):
                return sent
        payload = pack()  # nobody else waits for it: pickling runs the user's own code
        with self._lock:
            sent = self._sent.get(what)
            if sent is None or payload != sent.payload:
                earlier = "" if sent is None else sent.lease.number
                sent = KnownProgram(fingerprint, payload, program_of(payload), self._residents.lease(), earlier)
                self._sent[what] = sent
            sent.fingerprint = fingerprint
            while len(self._sent) > MOST_PROGRAMS:
                del self._sent[next(iter(self._sent))]
            return sent

    def call(
        self,
        sent: KnownProgram,
        message: dict[str, Any],
        own: Callable[[Sequence[int]], dict[str, Any]],
        *,
        lease: Lease | None,
        left: Lease | None = None,
        n_values: int,
        n_gradients: int,
        limit: float,
        is_large: bool = False,
    ) -> tuple[Homes, dict[str, dict[str, Any]]]:
        """Call all workers that have rows; `own` returns what the message of those says who have some chunks.

        Where the message has a `sample`, it is about these chunks only, and speaks of them by indices among these.

        What they keep for later calls is under `lease` if the message says `keep`, rows of their own under `left`. Sums
        that are large don't all go through the scheduler: workers first give each other what belongs together.

        Raises
        ------
        UnavailableError
            If residents can't do it this time.
        """
        if reason := self._residents.refusal():
            raise self._unavailable(reason)
        whole, keep = self._find_homes(), message["keep"]
        homes = whole.of(message.get("sample"), self._parts_of)
        message = message | {"token": f"{sent.lease.number}-{homes.version}", "number": lease.number if lease else ""}
        message |= {} if left is None else {"left": left.number}
        is_gathered = is_large and bool(homes.blocks) and self._residents.is_relayed
        message |= {"later": uuid.uuid4().hex} if is_gathered else {}
        messages = {address: message | own(chunks) | homes.asked(address) for address, chunks in homes.chunks.items()}
        waiting = set(homes.parts)
        replies: dict[str, Any] = {}
        for _ in range(2):
            calls = {address: messages[address] | self._introduction(sent, whole, address) for address in waiting}
            for one in (lease if keep else None, left):
                if one is not None:
                    one.left_at(calls)
            run = self._ask(calls, n_values, n_gradients, limit)
            replies |= run.replies
            if lease is not None:
                lease.taken_from([one for one in waiting if not keep or not replies[one].get("kept", True)])
            waiting = {address for address in waiting if replies[address].get("status") == "unknown"}
            with self._lock:
                sent.known.update([(homes.version, address) for address in run.replies if address not in waiting])
                sent.known.difference_update([(homes.version, address) for address in waiting])
            if not waiting:
                break
            run.is_void = True  # others have done their part, but it is not told apart
        for address, reply in replies.items():
            if (status := reply.get("status")) != "OK":
                run.is_void = True
                raise self.off(f"{address} says: {status} {reply.get('reason', '')}", by_chunks=status == "failed")
        return self._gathered(homes, message, replies, limit) if is_gathered else (homes, replies)

    def _gathered(
        self, homes: Homes, message: dict[str, Any], replies: dict[str, Any], limit: float
    ) -> tuple[Homes, dict[str, dict[str, Any]]]:
        """Have workers give each other their sums, and return those of larger subtrees."""
        words = {name: message[name] for name in ("token", "function", "role")}
        words |= {"gather": message["later"], "number": "", "keep": False}
        found = self._ask(dict.fromkeys(homes.blocks, words), 0, 0, limit).replies
        for address, reply in found.items():
            if reply.get("status") != "OK":
                raise self.off(f"{address} says: {reply.get('status')} {reply.get('reason', '')}")
            found[address] = reply | {name: replies[address][name] for name in ("seconds", "threads")}
        parts: dict[str, Parts] = {address: homes.blocks.get(address, []) for address in homes.parts}
        return replace(homes, parts=parts), replies | found

    def _ask(self, calls: dict[str, Any], n_values: int, n_gradients: int, limit: float) -> ResidentRun:
        run = self._residents.call(calls, n_values, n_gradients, limit)
        try:
            self._follow(run)
        except (OSError, TimeoutError) as error:
            raise self.off(f"a worker did not answer ({type(error).__name__}: {error})") from error
        for address, reply in run.replies.items():
            if not isinstance(reply, dict):
                raise self.off(f"{address} sent a {type(reply).__name__}")
        return run

    def _introduction(self, sent: KnownProgram, homes: Homes, address: str) -> dict[str, Any]:
        """Return what a worker has to be told that does not know the program."""
        if (homes.version, address) in sent.known:
            return {}
        keys = [(chunk, list(self._keys[chunk])) for chunk in homes.chunks[address]]
        parts = [tuple(part) for part in homes.parts[address]]
        instead = [number for number in (sent.lease.number, sent.earlier) if number]
        with self._lock:
            sent.lease.left_at([address])
        found = {"program": sent.program, "keys": keys, "parts": parts, "instead": instead}
        if address in homes.blocks:
            found |= {"blocks": homes.blocks[address], "sources": homes.sources[address]}
        return found

    def _find_homes(self) -> Homes:
        """Look where the rows are now; several threads may look at the same time, and find the same."""
        now, homes = time.monotonic(), self._homes
        if homes is not None and now < self._looked + LOOK_AGAIN:
            return homes
        try:
            self._residents.install()
            workers, holders = self._residents.workers(), self._holders()
        except (OSError, TimeoutError, RuntimeError) as error:  # no scheduler: the graph will say so
            raise self.off(f"the scheduler did not answer ({error})") from error
        n_chunks = len(holders)
        chunks: dict[str, list[int]] = {}
        for chunk, here in enumerate(holders):
            if not here:
                raise self._unavailable(f"chunk {chunk} is on no worker")
            wanted = workers[chunk * len(workers) // n_chunks] if workers else ""
            chunks.setdefault(wanted if wanted in here else min(here), []).append(chunk)
        fair = max(n_chunks / max(len(workers), 1), 1.0)
        with self._lock:
            self._looked = now
            if max(map(len, chunks.values())) > UNEVEN * fair and now > self._rebalanced + LOOK_AGAIN:
                self._rebalanced, self._homes = now, None
                raise self._unavailable("the chunks lie unevenly; the graph moves them")
            if self._homes is None or self._homes.chunks != chunks:
                parts = {address: self._parts_of(some, n_chunks) for address, some in chunks.items()}
                self._homes = Homes(chunks, parts, uuid.uuid4().hex, *self._exchange(chunks, parts, n_chunks))
                for sent in self._sent.values():
                    sent.known.clear()  # what is where has changed, and nobody knows that
            return self._homes

    def _exchange(
        self, chunks: dict[str, list[int]], parts: dict[str, Parts], n_chunks: int
    ) -> tuple[dict[str, Parts], dict[str, dict[str, Parts]]]:
        """Return who adds up which larger subtrees, and who has what of them; nothing where these are not fewer."""
        blocks = self._blocks_of(max(map(len, chunks.values())), n_chunks)
        if len(blocks) >= sum(map(len, parts.values())):
            return {}, {}
        home = {chunk: address for address, some in chunks.items() for chunk in some}
        starts = [start for start, _ in blocks]
        owners = [home[start] for start in starts]
        own: dict[str, Parts] = {}
        for owner, block in zip(owners, blocks, strict=True):
            own.setdefault(owner, []).append(block)
        sources: dict[str, dict[str, Parts]] = {owner: {} for owner in own}
        for address, some in parts.items():
            for part in some:
                owner = owners[bisect.bisect_right(starts, part[0]) - 1]
                if owner != address:
                    sources[owner].setdefault(address, []).append(part)
        return own, sources

    def _holders(self) -> list[set[str]]:
        """Return for each chunk the workers that have all of its rows."""
        flat = [key for keys in self._keys for key in keys]
        where = iter(self._residents.homes(flat))
        return [set.intersection(*(set(next(where)) for _ in keys)) for keys in self._keys]
