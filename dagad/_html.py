"""What notebooks show of an object: escaped text in tables and bars, without anything from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

LEFT, RIGHT = ' style="text-align: left"', ' style="text-align: right"'


def element(tag: str, text: object, attributes: str = "") -> str:
    """Return an element that holds a text.

    Examples
    --------
    >>> element("b", "a < b")
    '<b>a &lt; b</b>'
    """
    return f"<{tag}{attributes}>{html.escape(str(text))}</{tag}>"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> str:
    """Return a table: numbers to the right, words to the left."""
    lines = ["<table>"]
    if title:
        lines.append(element("caption", title, LEFT))
    if head:
        lines.append(f"<tr>{''.join(element('th', name, LEFT) for name in head)}</tr>")
    for row in rows:
        cells = (element("td", text_of(cell), RIGHT if isinstance(cell, int | float) else LEFT) for cell in row)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</table>"])


def listing(title: str, facts: Iterable[tuple[str, Any]]) -> str:
    """Return a table of what is known about one thing."""
    rows = (f"<tr>{element('th', name, LEFT)}{element('td', text_of(fact), LEFT)}</tr>" for name, fact in facts)
    return "\n".join(["<table>", element("caption", title, LEFT), *rows, "</table>"])


def bars(progress: Any) -> str:
    """Return how many values and gradients are done, as bars."""
    ways = (
        ("values", progress.values_done, progress.values_total),
        ("gradients", progress.gradients_done, progress.gradients_total),
    )
    rows = [bar_row(name, done, total, f"{done:,}/{total:,}") for name, done, total in ways if total]
    waits = element("div", f"waiting for {progress.waits_for}") if progress.waits_for else ""
    return f"<table>{''.join(rows)}</table>{waits}" if rows else waits


def bar_row(name: str, done: int, total: int, words: str) -> str:
    """Return a row of a table of bars."""
    bar = f'<td><progress value="{done}" max="{total}"></progress></td>'
    return f"<tr>{element('td', name, LEFT)}{bar}{element('td', words, LEFT)}</tr>"


def text_of(fact: object) -> str:
    """Return a number as people read it; nothing for None."""
    if fact is None:
        return ""
    if isinstance(fact, bool) or not isinstance(fact, int | float):
        return str(fact)
    return f"{fact:,}" if isinstance(fact, int) else f"{fact:.6g}"


def seconds_of(seconds: float | None) -> str:
    """Return a duration in the unit in which it is a short number.

    Examples
    --------
    >>> seconds_of(0.00123), seconds_of(1.5), seconds_of(75.0), seconds_of(7201.0), seconds_of(None)
    ('1.23 ms', '1.50 s', '1:15 min', '2:00:01 h', '')
    """
    if seconds is None:
        return ""
    if seconds < 60.0:
        return f"{seconds:.2f} s" if seconds >= 0.9995 else f"{1e3 * seconds:.3g} ms"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} h"


def bytes_of(nbytes: int) -> str:
    """Return a number of bytes in the unit in which it is short; nothing for none.

    Examples
    --------
    >>> bytes_of(800), bytes_of(24_000_000), bytes_of(0)
    ('800 B', '24.0 MB', '')
    """
    size, units = float(nbytes), ["B", "kB", "MB", "GB", "TB", "PB"]
    while size >= 999.5 and len(units) > 1:
        size, units = size / 1000, units[1:]
    if not nbytes:
        return ""
    return f"{size:.3g} {units[0]}" if units[0] == "B" or size >= 100 else f"{size:#.3g} {units[0]}"
