"""What a worker says of tasks that fail: where it was, in a note, and one line in its log for each evaluation.

distributed logs seven lines for each failed task, and an evaluation whose function is wrong fails in all its chunks at
once. Whoever waits for it gets the error itself, so a line is enough.

State: `_ONE_LINE`, the filter that `log_one_line` puts on the log of distributed's worker when a task of ours failed
there. It looks at what is logged of keys of ours only, and holds the names of the evaluations that it has logged.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections import deque
from typing import Any

import cloudpickle

_BLOCK = "Compute Failed"  # so begins what distributed logs
_REMEMBERED = 64  # evaluations


def say_where(error: BaseException) -> None:
    """Add the worker to the note that says which chunk it was; see to it that it logs a line only."""
    address = _worker()
    where = f", process {os.getpid()}" if address is None else f", worker {address}"
    notes = getattr(error, "__notes__", [])
    for index, note in enumerate(notes):
        if note.startswith("dagad: ") and ", worker " not in note and ", process " not in note:
            first, *others = note.split("\n")
            notes[index] = "\n".join([f"{first}{where}", *others])
    if address is not None:
        log_one_line(logging.getLogger("distributed.worker"))


def portable_error(error: Exception) -> Exception:
    """Return the error of a task as it is to leave for another process, with a note of where it was.

    It is the error itself where that can be pickled and unpickled. In the place of another, which holds a lock or a
    connection or whose class takes what it does not keep, distributed would send an `Exception` without notes, and a
    pool would send nothing and take the process for dead.
    """
    say_where(error)
    try:
        arrived = pickle.loads(pickle.dumps(error))  # not cloudpickle, which pools don't use
    except Exception:
        return Standin(error)
    return error if type(arrived) is type(error) else Standin(error)


class Standin(Exception):
    """Stands for an error that can't be pickled, and arrives as one of its class with all parts that can be."""

    def __init__(self, error: Exception) -> None:
        super().__init__(_words(error))
        self.error, self.__cause__ = error, error.__cause__ if _travels(error.__cause__) else None

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self.error)
        args = tuple(part if _travels(part) else _Words(repr(part)) for part in self.error.args)
        state = {name: part for name, part in vars(self.error).items() if _travels(part)}
        kind = kind if _travels(kind) else RuntimeError
        return _arrived, (cloudpickle.dumps((kind, args, state)), type(self.error).__name__, str(self))

    def __repr__(self) -> str:
        return f"{type(self.error).__name__}({str(self)!r})"


def _arrived(packed: bytes, name: str, words: str) -> Exception:
    """Make an error again without asking its class; one that says the same if that can't be."""
    kind, args, state = cloudpickle.loads(packed)
    try:
        made: Exception = kind.__new__(kind, *args)
        made.__dict__.update(state)
        alike = kind.__name__ == name and str(made) == words
    except Exception:
        alike = False
    if alike:
        return made
    made = RuntimeError(f"{name}: {words}")
    made.__dict__.update(__notes__=state.get("__notes__", []))
    return made


class _Words:
    """What is shown in the place of something that could not travel."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words


def _words(error: Exception) -> str:
    try:
        return str(error)
    except Exception as unsaid:
        return f"its `__str__` raises {type(unsaid).__name__}"


def _travels(part: object) -> bool:
    try:
        cloudpickle.loads(cloudpickle.dumps(part))
    except Exception:
        return False
    return True


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
        self._logged: deque[str] = deque(maxlen=_REMEMBERED)

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop the block of a task of ours; log a line in its place, at a level that a notebook does not show."""
        args = record.args
        if not (isinstance(args, tuple) and args and str(record.msg).startswith(_BLOCK)):
            return True
        key, error = args[0], args[-2]
        if not (isinstance(key, tuple) and str(key[0]).startswith("dagad-")):
            return True
        if key[0] not in self._logged:
            self._logged.append(key[0])
            logging.getLogger(record.name).info(
                "%r failed: %s. Its evaluation gets the error; its other chunks are not logged.", key, error
            )
        return False


_ONE_LINE = _OneLine()
