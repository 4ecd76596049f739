"""What was found out about functions, for as long as it is of use: so many entries, the one unused for longest goes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Entry = TypeVar("Entry")


class Remembered(Generic[Entry]):
    """Entries by key: in `_entries`, which change under `_lock`, the one used last stands last."""

    __slots__ = ("_entries", "_lock", "_most")

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: Hashable) -> Entry | None:
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def change(self, key: Hashable, change: Callable[[Entry | None], Entry]) -> Entry:
        """Replace an entry by what `change` makes of it at once, while others wait; of None it makes the first."""
        with self._lock:
            made = self._entries[key] = change(self._entries.get(key))
            self._entries.move_to_end(key)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)
            return made

    def made(self, key: Hashable, make: Callable[[], Entry]) -> Entry:
        """Return an entry; what `make` takes long for if there is none. Of two threads that do, one is believed."""
        found = self.find(key)
        if found is not None:
            return found
        new = make()  # without the lock: it may run a graph on a cluster, or ask for other entries
        return self.change(key, lambda found: new if found is None else found)
