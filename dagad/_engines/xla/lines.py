"""Which line of the user's a traced value is asked something at, and the loop that it stands in: for refusals."""

from __future__ import annotations

import ast
import linecache
import os
import sys
from collections.abc import Iterator
from types import CodeType, FrameType

from dagad._frames import is_hidden, module_of
from dagad._values import bytecode

_LIBRARIES = frozenset({"jax", "jaxlib", "numpy", "scipy", "pandas", "autograd", "optree", "contextlib", "functools"})


def users_frames() -> Iterator[FrameType]:
    """Yield the frames of the user's that led here, the innermost first, up to where dagad called them."""
    frame: FrameType | None = sys._getframe(1)
    inside = False
    while frame is not None:
        if is_hidden(frame):
            if inside and module_of(frame).startswith("dagad"):
                return
        elif is_users(frame):
            inside = True
            yield frame
        frame = frame.f_back


def is_users(frame: FrameType) -> bool:
    """Return whether a frame is the user's, and not a library's that the user's code calls."""
    return not is_hidden(frame) and module_of(frame).partition(".")[0] not in _LIBRARIES


def is_of_user(frame: FrameType) -> bool:
    """Return whether a frame is the user's, or autograd's, which stands between the user and numpy."""
    return is_users(frame) or module_of(frame).startswith("autograd.")


def of_error(error: BaseException) -> str:
    """Return the user's last line that led to an exception."""
    found, at = "A line", error.__traceback__
    while at is not None:
        if is_users(at.tb_frame):
            found = _named(at.tb_frame.f_code, at.tb_lineno)
        at = at.tb_next
    return found


def here() -> str:
    """Return the user's line that led here, as sentences name it."""
    frame = next(users_frames(), None)
    return "A line" if frame is None else _named(frame.f_code, frame.f_lineno)


def is_storing() -> bool:
    """Return whether the user's line is storing into entries of something."""
    frame = next(users_frames(), None)
    return frame is not None and bytecode.is_storing(frame)


def loop() -> str:
    """Return the line of the innermost loop that the user's lines stand in; without one, the line itself."""
    for frame in users_frames():
        line = _loop_around(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_firstlineno)
        if line is not None:
            return _named(frame.f_code, line)
    return here()


def _named(code: CodeType, line: int) -> str:
    text = linecache.getline(code.co_filename, line).strip()
    return f"Line {line} of {os.path.basename(code.co_filename)}" + (f", `{text}`," if text else "")


def _loop_around(file: str, line: int, first: int) -> int | None:
    """Return the first line of the innermost loop around a line, in the function that begins at another."""
    found = [begin for begin, end in _loops(file) if first <= begin <= line <= end]
    return max(found, default=None)


def _loops(file: str) -> tuple[tuple[int, int], ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.While):
            found.append((node.lineno, node.end_lineno or node.lineno))
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            found.append((node.lineno, node.end_lineno or node.lineno))
    return tuple(found)
