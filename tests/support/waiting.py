"""Waiting for what another thread or process is to do: by polling for it, with a limit that only a hang reaches."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any


def canary() -> float:
    """Return how many seconds it takes now to count to ten million, from a part of it."""
    start = time.perf_counter()
    for _ in range(1_000_000):
        pass
    return 10.0 * (time.perf_counter() - start)


# All limits are multiples of how fast this process runs now, with other processes beside it: only a hang reaches them.
CANARY = sorted(canary() for _ in range(3))[1]
PATIENCE = max(60.0, 100.0 * CANARY)  # seconds; a machine that is alone and good has canaries of half a second
SOON = max(10.0, 20.0 * CANARY)  # within which whoever waits is to be told of a fault: far less than Dask waits


def until(condition: Callable[[], Any], patience: float = PATIENCE) -> None:
    """Poll until something is true."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def in_background(call: Callable[..., Any], *args: Any) -> Future[Any]:
    """Call something in a thread of its own, for which nobody has to wait should it hang."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="waiting", daemon=True).start()
    return future


@contextlib.contextmanager
def interrupted_when(condition: Callable[[], Any]) -> Iterator[None]:
    """Have Control-C pressed as soon as something is true."""

    def interrupt() -> None:
        until(condition)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    found = signal.signal(signal.SIGINT, signal.default_int_handler)  # in a background job it would be ignored
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, found)
