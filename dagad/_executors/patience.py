"""How long whoever asks for a result waits for it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from dagad._errors import ArgumentsError, TimedOutError
from dagad._words import described


def result_of(future: Future[Any], timeout: float | None, what: str) -> Any:
    """Return what a future gives within some seconds."""
    try:
        return future.result(_seconds(timeout))
    except TimeoutError:
        if future.done():  # the function's own
            raise
        raise TimedOutError(
            f"The {what} was not there after {timeout} seconds. The evaluation goes on: ask for it again, or end it by "
            "`.cancel()`."
        ) from None


def _seconds(timeout: str | float | None) -> float | None:
    """Return the seconds that Python can wait; None where these are more than it counts."""
    try:
        seconds = None if timeout is None else float(timeout)
    except (TypeError, ValueError):
        seconds = float("nan")
    if isinstance(timeout, str) or seconds != seconds:
        raise ArgumentsError(
            f"`timeout` says for how many seconds to wait, and is {described(timeout)}. Give a number, or None to wait "
            "until the result is there."
        )
    return None if seconds is None or seconds > threading.TIMEOUT_MAX else seconds
