"""Whose a line of a running program is: the user's, where warnings stand, or one of those that are not shown."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from dagad._errors import DagadWarning

T = TypeVar("T")
OURS = frozenset({"dagad", "dagad_scheduler", "dask", "distributed"})
_HIDDEN = OURS | {"autograd"}


class Line(NamedTuple):
    """A line of the user's, and the globals of its module."""

    path: str
    number: int
    names: dict[str, Any]


# In the context of a thread of ours, the line that it runs for.
_LED_HERE: ContextVar[Line | None] = ContextVar("dagad_led_here", default=None)
_OF_THREADS = frozenset({"threading", "concurrent.futures.thread"})


def warn(message: str) -> None:
    """Warn, at the user's line that led here: in a thread of ours at the one that it runs for."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and is_hidden(frame):
        level, frame = level + 1, frame.f_back
    line = _LED_HERE.get() if module_of(frame) in _OF_THREADS else None
    if line is None:
        warnings.warn(message, DagadWarning, stacklevel=level)
        return
    path, number, names = line
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, DagadWarning, path, number, names.get("__name__"), registry)


def users_line() -> Line | None:
    """Return the user's line that led here, for a thread that is started for it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_hidden(frame):
        frame = frame.f_back
    if module_of(frame) in _OF_THREADS:
        return _LED_HERE.get()
    return Line(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)


def run_for(line: Line | None, act: Callable[..., T], *args: Any) -> T:
    """Return what a function returns that runs in a thread for a line of the user's."""
    token = _LED_HERE.set(line)
    try:
        return act(*args)
    finally:
        _LED_HERE.reset(token)


def is_hidden(frame: FrameType) -> bool:
    """Return whether a frame is none of the user's."""
    return module_of(frame).partition(".")[0] in _HIDDEN


def module_of(frame: FrameType) -> str:
    """Return the name of the module whose line it is."""
    return frame.f_globals.get("__name__") or ""


def ended_in(error: BaseException, package: str) -> bool:
    """Return whether an error comes from a line of some package."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return step is not None and module_of(step.tb_frame).partition(".")[0] == package
