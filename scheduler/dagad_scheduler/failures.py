"""What a worker says of tasks that fail: where it was, in a note, and one line in its log for each evaluation.

distributed logs seven lines for each failed task, and an evaluation whose function is wrong fails in all its chunks at
once. Whoever waits for it gets the error itself, so a line is enough.

State: `_ONE_LINE`, the filter that `log_one_line` puts on the log of distributed's worker when a task of ours failed
there. It looks at what is logged of keys of ours only, and holds the names of the evaluations that it has logged.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import deque

_BLOCK = "Compute Failed"  # so begins what distributed logs
_REMEMBERED = 64  # evaluations


def say_where(error: Exception) -> None:
    """Add the worker to the note that says which chunk it was; see to it that it logs a line only."""
    address = _worker()
    where = f", process {os.getpid()}" if address is None else f", worker {address}"
    notes = getattr(error, "__notes__", [])
    for place, note in enumerate(notes):
        if note.startswith("dagad: ") and ", worker " not in note and ", process " not in note:
            first, *others = note.split("\n")
            notes[place] = "\n".join([f"{first}{where}", *others])
    if address is not None:
        log_one_line(logging.getLogger("distributed.worker"))


def _worker() -> str | None:
    """Return the address of the worker that this thread runs a task for, if it does."""
    module = sys.modules.get("distributed.worker")
    state = getattr(getattr(module, "thread_state", None), "execution_state", None)
    return None if state is None else str(state["worker"].address)


def log_one_line(logger: logging.Logger) -> None:
    """Have what is logged of failed tasks of ours shortened."""
    logger.addFilter(_ONE_LINE)  # which it has once


class _OneLine(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self._told: deque[str] = deque(maxlen=_REMEMBERED)

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop the block of a task of ours; log a line in its place, at a level that a notebook does not show."""
        args = record.args
        if not (isinstance(args, tuple) and args and str(record.msg).startswith(_BLOCK)):
            return True
        key, error = args[0], args[-2]
        if not (isinstance(key, tuple) and str(key[0]).startswith("dagad-")):
            return True
        if key[0] not in self._told:
            self._told.append(key[0])
            logging.getLogger(record.name).info(
                "%r failed: %s. Its evaluation gets the error; its other chunks are not logged.", key, error
            )
        return False


_ONE_LINE = _OneLine()
