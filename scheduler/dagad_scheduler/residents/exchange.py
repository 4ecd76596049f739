"""Sums that workers give each other, so that each sends one at most to a client that reaches the scheduler only.

What a run of chunks gives is a sum for each of the subtrees that it is, and several of these where it does not begin or
end where larger subtrees do. So a call is made in two: in the first every worker keeps its sums, in the second some ask
their neighbours for what belongs to a larger subtree of theirs, and answer with its sum. All that is asked for is there
then: nobody waits for anybody who might not come.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dagad_scheduler._types import Worker
from dagad_scheduler.residents.messages import blob
from dagad_scheduler.residents.store import Store

MOST, SHARE = 16, 0.2  # of calls that are half done, and of a worker's memory limit
KEEP = 60.0  # seconds

Part = tuple[int, int]  # a subtree of the tree of sums: first chunk, level


class Sums(Protocol):
    """What the subtrees of a call gave, each until it is asked for."""

    def __len__(self) -> int:
        """Return how many have not been asked for."""

    def give(self, parts: Sequence[Part]) -> tuple[dict[str, Any], Any]:
        """Return some of them, packed."""

    def total(self, blocks: Sequence[Part], given: Sequence[tuple[Sequence[Part], Any, Any]]) -> Any:
        """Return the sums of larger subtrees, packed, from those here and what others have given."""

    def nbytes(self) -> int:
        """Return how much memory they take."""


class Exchange:
    """The sums of one worker: in `_sums` by the numbers of their calls, touched by the event loop only."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._sums = worker, Store(worker, SHARE, MOST)

    def __len__(self) -> int:
        return len(self._sums)

    def keep(self, number: str, sums: Sums) -> None:
        """Hold on to what a call gave until it has been asked for."""
        self._sums.keep(number, sums)
        self._worker.loop.asyncio_loop.call_later(KEEP, self._sums.forget, [number])

    async def give(self, number: str, parts: Sequence[Part]) -> dict[str, Any]:
        """Give another worker what this one has of its subtrees: a handler."""
        sums: Sums | None = self._sums.get(number)
        if sums is None:
            return {"status": "missing"}
        return await self._answered(number, sums, functools.partial(sums.give, parts))

    async def total(self, number: str, blocks: Sequence[Part], sources: Mapping[str, Sequence[Part]]) -> dict[str, Any]:
        """Return the sums of larger subtrees, of which other workers have some parts."""
        sums: Sums | None = self._sums.get(number)
        if sums is None:
            return {"status": "missing"}
        asked = [self._worker.rpc(one).dagad_sums(number=number, parts=parts) for one, parts in sources.items()]
        replies = await asyncio.gather(*asked)
        if any(reply.get("status") != "OK" for reply in replies):
            return {"status": "missing"}
        given = [(parts, reply["head"], reply["data"]) for parts, reply in zip(sources.values(), replies, strict=True)]
        return await self._answered(number, sums, functools.partial(sums.total, blocks, given))

    async def _answered(self, number: str, sums: Sums, act: Callable[[], Any]) -> dict[str, Any]:
        """Answer with what is made of sums, in a thread, and forget them with the last."""
        pool = self._worker.executors["default"]
        head, buffer = await self._worker.loop.asyncio_loop.run_in_executor(pool, act)
        if not len(sums):
            self._sums.forget([number])
        return {"status": "OK", "seconds": 0.0, "threads": 1, **head, "data": blob(buffer)}
