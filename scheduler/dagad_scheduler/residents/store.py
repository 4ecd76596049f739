"""What calls leave on a worker for later ones, within bounds: it is a cache, and whatever goes is computed again.

State of a `Store`, touched by the worker's event loop; `get` may be called by any thread:

===========  ============================================================================
`_items`     what was left, by its number; the oldest goes first
`_sizes`     how many bytes that is, once it has been found out
`_weighing`  who finds that out
===========  ============================================================================
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection
from typing import Any, Protocol

from dagad_scheduler._types import Worker

USUAL_MEMORY = 2**30
WEIGH_AFTER = 0.1  # seconds after a call in which it may be asked for: most things need not be measured


class Item(Protocol):
    """Something that was left."""

    def nbytes(self) -> int:
        """Return how much memory it takes."""


class Store:
    """Things by their numbers: at most so many, and in a share of the worker's memory."""

    def __init__(self, worker: Worker, share: float, most: int | None = None) -> None:
        self._worker, self._share, self._most = worker, share, most
        self._items: OrderedDict[str, Any] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._weighing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def nbytes(self) -> int:
        """How much memory is known to be taken."""
        return sum(self._sizes.values())

    def get(self, number: str) -> Any:
        """Return what was left; None if it is not here."""
        return self._items.get(number)

    def take(self, number: str) -> Any:
        """Return what was left, and let go of it; None if it is not here."""
        self._sizes.pop(number, None)
        return self._items.pop(number, None)

    def forget(self, numbers: Collection[str]) -> None:
        """Let go of some of it."""
        for number in numbers:
            self.take(number)

    def keep(self, number: str, item: Item) -> None:
        """Hold on to something until it is asked for, or let go of."""
        self._items[number] = item
        if self._most is not None:
            self.forget(list(self._items)[: -self._most])
        # Later: whoever waits for a reply is not to wait for this, nor who asks for the rest at once.
        self._worker.loop.asyncio_loop.call_later(WEIGH_AFTER, self._weigh_later, number)

    def _weigh_later(self, number: str) -> None:
        if number in self._items:
            self._weighing.add(task := asyncio.create_task(self._weigh(number), name="dagad-weigh"))
            task.add_done_callback(self._weighing.discard)

    async def _weigh(self, number: str) -> None:
        """Find out once how large something is, in a thread, and let go of the oldest if all are too large."""
        if number not in self._items:  # it has been asked for since
            return
        item, pool = self._items[number], self._worker.executors["default"]
        try:
            nbytes = await self._worker.loop.asyncio_loop.run_in_executor(pool, item.nbytes)
        except Exception:  # it was used meanwhile; if not, it is no loss
            self.forget([number])
            return
        if number not in self._items:
            return
        self._sizes[number] = nbytes
        limit = (getattr(self._worker.memory_manager, "memory_limit", None) or USUAL_MEMORY) * self._share
        while self._items and sum(self._sizes.values()) > limit:
            self.forget([next(iter(self._items))])
