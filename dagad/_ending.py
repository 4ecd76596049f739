"""When the program ends: no thread may be inside C++ that has let go of the interpreter's lock, or all is aborted.

optree lets go of the lock while it flattens. A daemon thread that wants it back after the interpreter has begun to end
is unwound by CPython (before 3.14), through C++ that does not allow it: ``terminate called without an active
exception``. A program that needs no derivative any more has then failed all the same.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import CodeType
from typing import Any

PATIENCE = 1.0  # seconds; to flatten takes microseconds


def end_other_threads(namespace: dict[str, Any], name: str) -> None:
    """Let no thread but this one call what a module knows by a name any more, and wait until all have left it."""
    function: Callable[..., Any] = namespace[name]
    main = threading.get_ident()

    def call_or_end(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != main:
            # A thread ends by this without a word.
            raise SystemExit('The program is ending: threads compute nothing any more. Use `scheduler="sync"`.')
        return function(*args, **kwargs)

    namespace[name] = call_or_end
    code, deadline = function.__code__, time.monotonic() + PATIENCE
    while time.monotonic() < deadline and _anybody_in(code, but=main):
        time.sleep(0.001)  # nobody is told when it is left: counting its calls would cost every one of them


def _anybody_in(code: CodeType, but: int) -> bool:
    """Return whether a thread is running a function."""
    for thread, frame in sys._current_frames().items():
        while thread != but and frame is not None:
            if frame.f_code is code:
                return True
            frame = frame.f_back  # type: ignore[assignment]  # None at the end
    return False
