"""Threads and processes that tests leave behind: looked for once a module, and told with the test that left them."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from support.waiting import SOON

# Dask, asyncio and compiled libraries start threads of their own when they first need them, for the whole process.
FOREIGN = (
    "Dask-",
    "Dummy-",  # threads of compiled libraries that have called Python, which Python neither starts nor ends
    "IO loop",
    "Profile",
    "TCP-Exec",
    "asyncio_",
    "AsyncProc",
    "QueueFeeder",
    "ThreadPoolExecutor-",
    "zarr_",
)


class Leaks:
    """Knows the threads and processes that there may be, and after which test others were first seen."""

    def __init__(self) -> None:
        self.known_threads: set[threading.Thread] = set()
        self.known_processes: set[BaseProcess] = set()
        self.seen: dict[threading.Thread | BaseProcess, str] = {}

    def know(self) -> None:
        """Take what there is now for what there may be: a module begins, or a fixture of the session has started."""
        self.known_threads |= set(threading.enumerate())
        self.known_processes |= set(multiprocessing.active_children())

    def begin(self) -> None:
        self.known_threads.clear()
        self.known_processes.clear()
        self.seen.clear()
        self.know()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        now: list[threading.Thread | BaseProcess] = [*threading.enumerate(), *multiprocessing.active_children()]
        for one in now:
            self.seen.setdefault(one, nodeid)

    def left(self) -> list[str]:
        """Wait for what is on its way out; say what stays, and after which test it was first seen."""
        threads = [one for one in set(threading.enumerate()) - self.known_threads if not one.name.startswith(FOREIGN)]
        for thread in threads:
            starting: Any = thread
            starting._started.wait(SOON)  # one that somebody is starting right now can't be joined yet
            thread.join(SOON)
        alive: list[threading.Thread | BaseProcess] = [thread for thread in threads if thread.is_alive()]
        now = set(multiprocessing.active_children())
        fresh = now - self.known_processes
        if len(fresh) > len(self.known_processes - now):  # a nanny starts one anew where one has died
            alive += fresh
        return [f"{one.name}, first seen after {self.seen.get(one, 'the last test')}" for one in alive]


LEAKS = Leaks()


@pytest.fixture(scope="module", autouse=True)
def _no_leaks() -> Iterator[None]:
    LEAKS.begin()
    yield
    left = LEAKS.left()
    assert not left, f"left behind: {'; '.join(left)}"
