"""Tracebacks as users want to read them: at a public function, the frames between their own lines are taken out.

What a chunk raises has passed through fifty frames of dagad, Dask and autograd on its way. A traceback belongs to its
exception, so it can be shortened there without a hook that other programs would notice: scripts, IPython, notebooks and
debuggers then show the user's lines. The setting ``dagad.full-tracebacks`` leaves all frames in.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from dagad._config import setting
from dagad._errors import DagadError
from dagad._frames import is_hidden, module_of, warn as warn
from dagad._misuse import add_hint, explain, refuse_in_jax

F = TypeVar("F", bound=Callable[..., Any])

HANDED = ("autograd", "dagad._engines.", "dagad._sources.")  # what a user's line in a chunk may call
# Shown where users call them, hidden where the above do.
SERVANTS = sys.stdlib_module_names | {"numpy", "scipy", "tornado", "optree", "cloudpickle", "tblib"} - {"__main__"}


def public(fun: F) -> F:
    """Return a public function that explains calls that don't fit, and whose exceptions show the user's lines only."""

    @functools.wraps(fun)
    def door(*args: Any, **kwargs: Any) -> Any:
        try:
            return fun(*args, **kwargs)
        except Exception as error:
            try:
                if type(error) is TypeError and _is_ours(error):
                    explain(fun, args, kwargs)
                refuse_in_jax(error, sys._getframe(1))
                add_hint(error)
                raise
            except Exception as raised:
                shorten(raised)
                raise  # keeps the traceback as it is now, without this frame

    return door  # type: ignore[return-value]  # it has the type of what it wraps


def _is_ours(error: Exception) -> bool:
    """Return whether an exception was raised in a line of dagad's, as when a function is called that can't be."""
    return _module(_frames(error.__traceback__)[-1]).startswith("dagad")


def shorten(error: BaseException) -> None:
    """Take out of an exception's traceback, and of those that led to it, what is not the user's; see the setting."""
    if setting("full-tracebacks"):
        return
    chain: list[BaseException] = []
    before: BaseException | None = error
    while before is not None and before not in chain:
        chain.append(before)
        before = before.__cause__ or (None if before.__suppress_context__ else before.__context__)
    ours = [isinstance(one, DagadError) for one in chain]
    for one, is_ours, became_ours in zip(reversed(chain), reversed(ours), [*reversed(ours[:-1]), ours[0]], strict=True):
        one.__traceback__ = _shortened(one, is_ours or became_ours)
        led = one.__cause__ or one.__context__
        if is_ours and (led is None or led.__traceback__ is None):
            one.__cause__, one.__suppress_context__ = None, True


def _frames(traceback: TracebackType | None) -> list[TracebackType]:
    found = []
    while traceback is not None:
        found.append(traceback)
        traceback = traceback.tb_next
    return found


def _shortened(error: BaseException, is_known: bool) -> TracebackType | None:
    """Return the traceback of an error without what is not the user's; `is_known` by the words of one of ours."""
    frames = _frames(error.__traceback__)
    kept, last = [], -1
    for index, frame in enumerate(frames):
        served = index and last != index - 1 and _module(frame).partition(".")[0] in SERVANTS
        if not is_hidden(frame.tb_frame) and not served:
            kept.append(frame)
            last = index
    joined: TracebackType | None = None
    for frame in reversed([*kept, *([] if is_known else _telling(error, frames[last + 1 :]))]):
        joined = TracebackType(joined, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return joined


def _telling(error: BaseException, rest: list[TracebackType]) -> list[TracebackType]:
    """Return which of the frames after the user's last line are shown.

    None where the user's line called into numpy by way of autograd, or read a table. If a pullback failed, those of
    the rule that did. Anything else is a fault of dagad's: all of them.
    """
    if rest and _module(rest[0]).startswith(HANDED):
        return []
    first = next((at for at in range(len(rest), 0, -1) if _module(rest[at - 1]).startswith(("dagad", "dask"))), 0)
    in_chunk = any(note.startswith("dagad: ") for note in getattr(error, "__notes__", ()))
    return rest[first:] if in_chunk and rest[first:] else rest


def _module(frame: TracebackType) -> str:
    return module_of(frame.tb_frame)
