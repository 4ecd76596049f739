"""Whether threads of members wait for a lock: one that another member may hold, who waits for them.

Nothing says who holds a lock, nor that somebody waits for it. What can be seen is where a thread stands: at a call of
`acquire`, or where a ``with`` block begins. One that stands there for long is taken to wait.
"""

from __future__ import annotations

import dis
import itertools
import sys
import threading
from types import CodeType, FrameType

from dagad._frames import OURS, module_of

LOOK = 0.25  # seconds between two looks at members that run
LOOKS = 4  # after as many that found the same it waits for a lock

Stack = list[tuple[CodeType, int]]  # where a thread stands, from the innermost function to the outermost


def stack_of(thread: threading.Thread) -> Stack:
    """Return where a thread stands."""
    frame, found = sys._current_frames().get(thread.ident or 0), Stack()
    while frame is not None:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return found


def waits_for_lock(thread: threading.Thread) -> bool:
    """Return whether a thread stands where it takes a lock that somebody may hold who waits himself.

    Not at those of ours, which nobody holds who waits; nor in `threading.Condition.wait`, in which it waits for others
    that are at work.
    """
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None or module_of(frame).partition(".")[0] in OURS:
        return False
    if module_of(frame) == threading.__name__ and frame.f_code.co_name != "__enter__":
        return False
    return _takes_lock(frame)


def _takes_lock(frame: FrameType) -> bool:
    at = frame.f_lasti
    before = list(itertools.takewhile(lambda one: one.offset <= at, dis.get_instructions(frame.f_code)))
    if not before or before[-1].opname == "BEFORE_WITH":
        return bool(before)
    *others, call = before
    if not call.opname.startswith("CALL") or call.positions is None:
        return False
    start = call.positions[0], call.positions[2]  # line and column: those of what is called, too
    called = [one for one in others if one.positions is not None and (one.positions[0], one.positions[2]) == start]
    # From Python 3.14 on the beginning of a ``with`` block is a call.
    return any(one.argval in _TAKING or one.opname == "LOAD_SPECIAL" for one in called)


_TAKING = ("acquire", "__enter__")
