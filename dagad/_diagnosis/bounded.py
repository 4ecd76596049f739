"""Calls that may hang: another thread makes them, and is left behind when they take too long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from dagad._errors import TimedOutError

Result = TypeVar("Result")


def bounded(patience: float, what: str, call: Callable[..., Result], *args: Any, **options: Any) -> Result:
    """Return what a call gives, or raise TimedOutError if that takes more seconds than there is patience."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args, **options))
        except BaseException as error:
            future.set_exception(error)

    # A daemon: nothing can end a thread that waits for what never comes, and nobody is to wait for it.
    threading.Thread(target=run, name="dagad-bounded", daemon=True).start()
    try:
        return future.result(patience)
    except TimeoutError as error:
        if future.done():
            raise
        raise TimedOutError(
            f"{what} took more than {patience:g} s. Look again when it is less busy, or with more patience."
        ) from error
