"""Whose a line of a running program is: the user's, where warnings stand, or one of those that are not shown."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

from dagad._errors import DagadWarning

OURS = frozenset({"dagad", "dagad_scheduler", "dask", "distributed"})
_HIDDEN = OURS | {"autograd"}


def warn(message: str) -> None:
    """Warn, at the user's line that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and is_hidden(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, DagadWarning, stacklevel=level)


def is_hidden(frame: FrameType) -> bool:
    """Return whether a frame is none of the user's."""
    return module_of(frame).partition(".")[0] in _HIDDEN


def module_of(frame: FrameType) -> str:
    """Return the name of the module whose line it is."""
    return frame.f_globals.get("__name__") or ""
