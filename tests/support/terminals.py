"""A program run in a pseudo-terminal, and what a person would have seen there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from typing import NamedTuple

import pyte

WIDTH, HEIGHT = 120, 40


class Seen(NamedTuple):
    """What the terminal showed each time something was written to it, and how it was left."""

    frames: list[str]
    is_cursor_hidden: bool
    returned: int

    @property
    def last(self) -> str:
        return self.frames[-1]


def run_in_terminal(script: str, *args: str, env: Mapping[str, str] | None = None) -> Seen:
    """Run a Python script with a pseudo-terminal for input, output and errors."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    screen = pyte.Screen(WIDTH, HEIGHT)
    stream, frames = pyte.ByteStream(screen), list[str]()
    process = subprocess.Popen(
        [sys.executable, "-c", script, *args],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=os.environ | {"TERM": "xterm-256color"} | dict(env or {}),
    )
    os.close(theirs)
    with contextlib.suppress(OSError):  # the terminal is gone when the program is
        while data := os.read(ours, 65536):
            stream.feed(data)
            frames.append("\n".join(line.rstrip() for line in screen.display).rstrip())
    os.close(ours)
    return Seen(frames, bool(screen.cursor.hidden), process.wait())
