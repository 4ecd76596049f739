"""Open connections to workers: a call takes one for its time, so that calls at the same time don't wait for each other.

State of `Connections`, touched by the client's event loop only:

=======  =========================================================================
`_idle`  connections that nobody uses, by the worker's address, the last used last
`_busy`  those that a call is using
=======  =========================================================================
"""

from __future__ import annotations

from typing import Any

from dagad_scheduler._types import Comm

MOST_IDLE = 4  # a worker; as many as evaluations whose tapes it keeps


class Connections:
    """The connections of one client to all workers."""

    def __init__(self) -> None:
        self._idle: dict[str, list[Any]] = {}
        self._busy: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        return sum(map(len, (*self._idle.values(), *self._busy.values())))

    def has_idle(self, address: str) -> bool:
        """Return whether there is one to take."""
        return bool(self._idle.get(address))

    def has_busy(self, address: str) -> bool:
        """Return whether there will be one to take, or none at all."""
        return bool(self._busy.get(address))

    def take(self, address: str) -> Any:
        """Return an open connection for a call; None if there is none."""
        if not self.has_idle(address):
            return None
        comm = self._idle[address].pop()
        self.add(address, comm)
        return comm

    def add(self, address: str, comm: Comm) -> None:
        """Note a connection that a call is using."""
        self._busy.setdefault(address, []).append(comm)

    def give_back(self, address: str, comm: Comm) -> None:
        """Have others use a connection whose call is answered."""
        if self._leave(address, comm):
            idle = self._idle.setdefault(address, [])
            idle.append(comm)
            while len(idle) > MOST_IDLE:
                idle.pop(0).abort()

    def hang_up(self, address: str, comm: Comm) -> None:
        """Close a connection whose call is given up: what comes over it is nobody's any more."""
        self._leave(address, comm)
        comm.abort()

    def hang_up_idle(self, address: str) -> None:
        """Close the others to a worker that did not answer: if it has died, they are of no more use."""
        for comm in self._idle.pop(address, ()):
            comm.abort()

    def hang_up_all(self) -> None:
        """Close every connection."""
        for some in (self._idle, self._busy):
            while some:
                for comm in some.popitem()[1]:
                    comm.abort()

    def _leave(self, address: str, comm: Comm) -> bool:
        """Return whether a connection was busy, and not closed meanwhile with all others."""
        busy = self._busy.get(address, [])
        if comm not in busy:
            return False
        busy.remove(comm)
        if not busy:
            del self._busy[address]
        return True
