"""The worker's end of a hot loop: does it let go of what it was told to forget, whenever that is said?"""

from __future__ import annotations

import asyncio
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from dagad_scheduler.residents.service import ResidentService

MAY_OPEN = threading.Event()


class Stale:
    """A program that is opened when it may be, and would be sent again."""

    def is_current(self) -> bool:
        return False

    def __reduce__(self) -> Any:
        return opened, ()


def opened() -> Stale:
    MAY_OPEN.wait()
    return Stale()


class Comm:
    """A connection to a client that sends messages, and hangs up after None."""

    def __init__(self) -> None:
        self.sent, self.replies = asyncio.Queue[Any](), asyncio.Queue[Any]()

    async def read(self) -> Any:
        message = await self.sent.get()
        if message is None:
            raise OSError
        return message

    async def write(self, reply: Any) -> None:
        await self.replies.put(reply)


async def left_by_a_client() -> list[Any]:
    """Return the programs that stay of a client who calls one, has it forgotten while it is opened, and hangs up."""
    with ThreadPoolExecutor(1) as pool:
        loop = SimpleNamespace(asyncio_loop=asyncio.get_running_loop())
        state = SimpleNamespace(nthreads=1)
        worker = SimpleNamespace(loop=loop, executors={"default": pool}, state=state, data={}, log_event=print)
        service, comm = ResidentService(worker), Comm()
        line = asyncio.create_task(service.connection(comm, "client"))
        assert await comm.replies.get() == {"status": "OK"}
        call = {"token": "program-1", "number": "1", "keep": False, "program": [pickle.dumps(Stale())]}
        await comm.sent.put(call | {"instead": (), "keys": [], "parts": []})
        await comm.sent.put({"forget": ["program"]})
        while not comm.sent.empty():
            await asyncio.sleep(0)
        MAY_OPEN.set()
        assert (await comm.replies.get())["status"] == "unknown"
        assert list(service._programs) == ["program-1"]
        await comm.sent.put(None)
        await line
        return list(service._programs)


def test_a_program_that_was_forgotten_while_it_was_opened_goes_with_its_client() -> None:
    assert asyncio.run(left_by_a_client()) == []
