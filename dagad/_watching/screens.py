"""What displays draw on: a terminal (by rich where it is installed), a cell of a notebook, and plain lines for a file.

State: `_TERMINAL`, held by the one who draws on the terminal; another one waits for his turn, and goes on evaluating.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from dagad._html import bar_row, element, table
from dagad._watching.display import HEAD, Bar, Frame, Screen

WIDTHS = (7, 14, 15, 11, 9)  # of the columns; the last one has what is left
BAR = 30
ROWS_IN_A_CELL = 20
BETWEEN_BARS = 10.0  # seconds, in lines, between two looks at an evaluation that lasts

_TERMINAL = threading.Lock()


def screen_for(show: bool | None, file: TextIO | None) -> Screen | None:
    """Return what to draw on: nothing where nobody looks, unless that is asked for."""
    if show is False:
        return None
    if file is None and _notebook() is not None:
        return Notebook()
    stream = sys.stderr if file is None else file
    if stream is not None and _is_terminal(stream):
        return Terminal(stream) if importlib.util.find_spec("rich") else PlainTerminal(stream)
    return Lines(stream) if show and stream is not None else None


def _is_terminal(stream: TextIO) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # no file, or a closed one
        return False


def _notebook() -> Any:
    """Return the shell of the kernel that runs this; None where it is not a kernel, or a shell in a terminal."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell if getattr(shell, "kernel", None) is not None else None


def at_end_of_cells(act: Callable[[], None]) -> None:
    """Have something done at the end of each cell of a notebook, while its output can still be written."""
    shell = _notebook()
    if shell is not None:
        shell.events.register("post_run_cell", lambda result: act())


def line_of(row: Sequence[str]) -> str:
    """Return a row as text in columns: numbers to the right, words to the left.

    Examples
    --------
    >>> line_of(("1", "loss", "-12.5", "0.25", "1.25 s", "graph"))
    '      1  loss                      -12.5         0.25     1.25 s  graph'
    """
    number, name, *numbers, ran_by = row
    cells = [cell.rjust(width) for cell, width in zip(numbers, WIDTHS[2:], strict=True)]
    return "  ".join([number.rjust(WIDTHS[0]), name[: WIDTHS[1]].ljust(WIDTHS[1]), *cells, ran_by]).rstrip()


def bar_of(bar: Bar) -> str:
    """Return a bar as text."""
    return f"{bar.name}: {bar.words}"


class Terminal:
    """A terminal, by rich: lines go up, bars stay below them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: Any = None

    def open(self) -> bool:
        """Begin, unless another display has the terminal."""
        if not _TERMINAL.acquire(blocking=False):
            return False
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._stream, highlight=False)
        vars(console)["on_broken_pipe"] = _gone  # rich would end the program
        # What the program prints goes above, if it goes to the same terminal.
        redirected = _is_terminal(sys.stdout), _is_terminal(sys.stderr)
        self._shown = Live(
            console=console, auto_refresh=False, redirect_stdout=redirected[0], redirect_stderr=redirected[1]
        )
        try:
            self._shown.start()
        except BaseException:
            self._stop()
            raise
        return True

    def draw(self, frame: Frame) -> None:
        """Print lines, and draw the rest anew."""
        from rich.text import Text

        console = self._shown.console
        full, empty = ("#", ".") if console.options.ascii_only else ("━", "─")
        if frame.rows:  # in one go: each time all is drawn anew
            lines = Text("\n").join(Text(line_of(row), "bold" if row is HEAD else "") for row in frame.rows)
            console.print(lines, overflow="fold")  # what an error says may be longer than the screen is wide
        text, width = Text(no_wrap=True, overflow="ellipsis"), max((len(bar.name) for bar in frame.bars), default=0)
        for bar in frame.bars:
            done = BAR * bar.done // bar.total
            text.append(f"{bar.name.ljust(width)} ")
            text.append(full * done, "green" if bar.done == bar.total else "cyan")
            text.append(f"{empty * (BAR - done)}", "bright_black").append(f" {bar.words}\n")
        self._shown.update(text.append(frame.status), refresh=True)

    def close(self, frame: Frame) -> None:
        """Draw for the last time, and give the terminal back as it was."""
        try:
            self.draw(frame)
        finally:
            self._stop()

    def _stop(self) -> None:
        try:
            self._shown.stop()
        finally:
            _TERMINAL.release()


def _gone() -> None:
    raise BrokenPipeError("The terminal is gone.")


class PlainTerminal:
    """A terminal without rich: lines go up, the last line is how far it is."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._length = stream, 0

    def open(self) -> bool:
        """Begin, unless another display has the terminal."""
        return _TERMINAL.acquire(blocking=False)

    def draw(self, frame: Frame, end: str = "") -> None:
        """Print lines, and write over the last one."""
        lines, last = list(map(line_of, frame.rows)), ", ".join([*map(bar_of, frame.bars), frame.status])
        text = "\n".join(line.ljust(self._length) for line in [*lines, last])
        self._length = len(last)
        self._stream.write(f"\r{text}{end}")
        self._stream.flush()

    def close(self, frame: Frame) -> None:
        """Draw for the last time."""
        try:
            self.draw(frame, "\n")
        finally:
            _TERMINAL.release()


class Lines:
    """A file: nothing in it is written twice."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._next_look = stream, 0.0

    def open(self) -> bool:
        """Begin."""
        self._next_look = time.monotonic() + BETWEEN_BARS
        return True

    def draw(self, frame: Frame) -> None:
        """Print lines, and now and then how far it is."""
        lines = list(map(line_of, frame.rows))
        if frame.bars and time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + BETWEEN_BARS
            lines += map(bar_of, frame.bars)
        self._write(lines)

    def close(self, frame: Frame) -> None:
        """Print what all of it was."""
        self._next_look = time.monotonic() + BETWEEN_BARS  # it has a line
        self.draw(frame)
        self._write([frame.status])

    def _write(self, lines: Sequence[str]) -> None:
        if lines:
            self._stream.write("".join(f"{line}\n" for line in lines))
            self._stream.flush()


class Notebook:
    """The output of a cell, which is replaced: what is there last is what the file keeps."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, ...]] = []
        self._update: Callable[..., Any] | None = None

    def open(self) -> bool:
        """Begin, in the cell that runs now."""
        self._rows, self._update = [], None
        return True

    def draw(self, frame: Frame) -> None:
        """Replace what is there."""
        from IPython import display

        self._rows = [*self._rows, *(row for row in frame.rows if row is not HEAD)][-ROWS_IN_A_CELL:]
        shown = {"text/html": html_of(self._rows, frame), "text/plain": text_of(self._rows, frame)}
        if self._update is None:
            self._update = display.display(shown, raw=True, display_id=True).update  # type: ignore[no-untyped-call]  # IPython's
        else:
            self._update(shown, raw=True)

    def close(self, frame: Frame) -> None:
        """Replace it for the last time."""
        self.draw(frame)


def html_of(rows: Sequence[tuple[str, ...]], frame: Frame) -> str:
    """Return rows, bars and status for a notebook."""
    bars = [bar_row(bar.name, bar.done, bar.total, bar.words) for bar in frame.bars]
    drawn = f"<table>{''.join(bars)}</table>" if bars else ""
    return f"<div>{table(HEAD, rows) if rows else ''}{drawn}{element('div', frame.status)}</div>"


def text_of(rows: Sequence[tuple[str, ...]], frame: Frame) -> str:
    """Return the same as text."""
    lines = [line_of(row) for row in [HEAD, *rows]] if rows else []
    return "\n".join([*lines, *map(bar_of, frame.bars), frame.status])
