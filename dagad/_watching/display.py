"""Evaluations on a screen: one thread looks now and then how far they are, and draws what has changed.

Those who evaluate only leave a note. The thread starts with the first evaluation and ends with the display, or when
nothing has run for a while. State of a `Display`, changed under its `_lock`:

=============  =================================================================================
`_ticker`      the thread that draws; None while there is none
`_is_closed`   whether no other is to start
=============  =================================================================================

`_fresh` holds what has no line yet, in order; all else belongs to the thread that draws.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from dagad._executors.profile import Profile
from dagad._html import seconds_of
from dagad._watching.evaluations import Evaluations, Iteration

# Seconds between two looks: as many times as long as one takes the processor, within limits.
TICK, RARELY, LONGEST_TICK = 0.1, 200, 0.4
REMOTE_TICK = 0.5  # the same where a look is a question to a cluster's scheduler
QUICK_LOOK = 0.5e-3  # and how long another one takes at most
LASTS = 0.2  # seconds after which an evaluation gets bars
MOST_BARRED = 4  # evaluations that have bars at the same time
MOST_PATIENCE = 10.0  # seconds to wait for the thread, which may ask a scheduler that is gone
MOST_SAID = 120  # letters about what ran, or why it failed
BURST = 10  # lines that may come at once

HEAD: tuple[str, ...] = ("#", "function", "value", "|gradient|", "time", "ran by")


class Bar(NamedTuple):
    """How far something is: `rate` a second, and how many seconds are left, as far as that is known."""

    name: str
    done: int
    total: int
    rate: float = 0.0
    left: float | None = None
    waits_for: str = ""

    @property
    def words(self) -> str:
        """What stands beside the bar."""
        said = f"{self.done:,}/{self.total:,}"
        if self.waits_for:
            return f"{said} waiting for {self.waits_for}"
        rate = (f" {self.rate:,.0f}/s" if self.rate >= 100 else f" {self.rate:.3g}/s") if self.rate else ""
        return said + rate + (f" {seconds_of(self.left)} left" if self.left else "")


class Frame(NamedTuple):
    """What there is to be seen: rows that were not seen before, how far is what runs, and a line on all."""

    rows: list[tuple[str, ...]]
    bars: list[Bar]
    status: str


class Screen(Protocol):
    """Something to draw on."""

    def open(self) -> bool:
        """Begin; return whether that can be now: there may be somebody else."""

    def draw(self, frame: Frame) -> None:
        """Show what has changed."""

    def close(self, frame: Frame) -> None:
        """Show the last of it, and leave it there."""


class Looked:
    """What looks at one evaluation have shown."""

    def __init__(self, profile: Profile) -> None:
        self.profile, self._again = profile, 0.0
        self._progress = profile.progress
        self._gradients_began = profile.began

    def look(self, now: float) -> list[Bar]:
        """Look how far it is, unless that was done just now and is dear."""
        if now >= self._again or self.profile.seconds is not None:
            began = time.perf_counter()
            found = self._progress = self.profile.progress
            quick = time.perf_counter() - began < QUICK_LOOK
            self._again = now + (0.0 if quick else REMOTE_TICK)
            if not found.gradients_done and found.values_done < found.values_total:
                self._gradients_began = time.time()
        found, until = self._progress, self.profile.began + (self.profile.seconds or time.time() - self.profile.began)
        number = f"#{self.profile.number} "
        ways = (
            ("values", found.values_done, found.values_total, self.profile.began),
            ("gradients", found.gradients_done, found.gradients_total, self._gradients_began),
        )
        return [
            _bar(number + name, done, total, until - since, "" if done == total else found.waits_for)
            for name, done, total, since in ways
            if total
        ]


def _bar(name: str, done: int, total: int, seconds: float, waits_for: str) -> Bar:
    rate = done / seconds if seconds > 0 else 0.0
    return Bar(name, done, total, rate, (total - done) / rate if rate and done < total else None, waits_for)


class Display:
    """Has evaluations drawn, and hands each one on when it is over.

    Parameters
    ----------
    screen
        What to draw on; None for nothing.
    every
        Seconds for a line: more evaluations than that are told by every so manieth.
    callback
        Called with the profile of each evaluation that is over, in the thread that has run it.
    lingers
        Seconds without an evaluation after which the thread ends; None: when the display is closed.
    """

    def __init__(
        self,
        screen: Screen | None,
        *,
        every: float = 1.0,
        callback: Callable[[Profile], Any] | None = None,
        lingers: float | None = None,
    ) -> None:
        self._screen, self._every, self._callback, self._lingers = screen, every, callback, lingers
        self._fresh: deque[Profile | Iteration] = deque(maxlen=None if not every else 2 * BURST)
        self.seen = Evaluations(None if screen is None else self._fresh.append)
        self._lock = threading.Lock()
        self._ticker: threading.Thread | None = None
        self._is_closed, self._pause = False, threading.Event()
        self._budget, self._is_open, self._has_head = float(BURST), False, False
        self._last_shown = time.monotonic()
        self._looked: dict[int, Looked] = {}
        self._drawn: tuple[list[Bar], str] = [], ""

    def began(self, profile: Profile) -> None:
        """Take note of an evaluation that begins."""
        self.seen.began(profile)
        if self._screen is not None and self._ticker is None:
            self._start()

    def ended(self, profile: Profile) -> None:
        """Take note that it is over."""
        self.seen.ended(profile)
        if self._callback is not None:
            self._callback(profile)

    def _start(self) -> None:
        with self._lock:
            if self._ticker is None and not self._is_closed:
                self._pause = threading.Event()
                # In the context of whoever evaluates: a notebook tells by it which cell is meant.
                run, args = contextvars.copy_context().run, (self._tick, self._pause)
                self._ticker = threading.Thread(target=run, args=args, name="dagad-progress", daemon=True)
                self._ticker.start()

    def pause(self) -> None:
        """Draw for the last time, until there is another evaluation."""
        with self._lock:
            ticker, pause = self._ticker, self._pause
        pause.set()
        if ticker is not None:
            ticker.join(MOST_PATIENCE)

    def close(self) -> None:
        """Draw for the last time."""
        with self._lock:
            self._is_closed = True
        self.pause()

    def _tick(self, pause: threading.Event) -> None:
        active, screen, spent = time.monotonic(), self._screen, 0.0
        try:
            while not pause.wait(min(max(TICK, RARELY * spent), LONGEST_TICK)):
                now, began, was_open = time.monotonic(), time.thread_time(), self._is_open
                active = now if self.seen.running or self._fresh else active
                self._draw()
                spent = 0.5 * (spent + time.thread_time() - began) if was_open else 0.0  # to open takes longer
                if self._lingers is not None and now - active > self._lingers:
                    break
            self._draw(last=True)
        except (OSError, ValueError):  # a terminal that was closed, a file that can't hold such letters
            self._screen = None
            with contextlib.suppress(OSError, ValueError):
                if self._is_open and screen is not None:
                    screen.close(Frame([], [], ""))
        with self._lock:
            self._ticker = None
        if self._screen is not None and self.seen.running and not pause.is_set():
            self._start()  # one began while this thread was on its way out

    def _draw(self, *, last: bool = False) -> None:
        screen = self._screen
        if screen is None or not (self._is_open or screen.open()):
            return
        self._is_open = not last
        frame = Frame(self._lines(last), self._bars(last), self.seen.summary())
        if last:
            screen.close(frame)
        elif frame.rows or frame[1:] != self._drawn:
            screen.draw(frame)
        self._drawn = frame.bars, frame.status

    def _lines(self, last: bool) -> list[tuple[str, ...]]:
        """Return the rows of what is fresh: as many as there is time to read."""
        now = time.monotonic()
        passed, self._last_shown = now - self._last_shown, now
        self._budget = min(self._budget + (passed / self._every if self._every else BURST), BURST)
        fresh = [self._fresh.popleft() for _ in range(len(self._fresh))]
        n_shown = len(fresh) if not self._every else min(len(fresh), int(self._budget))
        self._budget -= n_shown
        shown, rest = fresh[:n_shown], fresh[n_shown:]
        if last:
            shown += rest[-1:]
        elif rest and not self._fresh:
            self._fresh.append(rest[-1])  # the last one is told in any case
        head = [HEAD] if shown and not self._has_head else []
        self._has_head |= bool(shown)
        return [*head, *map(row_of, shown)]

    def _bars(self, last: bool) -> list[Bar]:
        """Return how far is what has run for a while; how far what came last was, where nothing does."""
        now, wall, newest = time.monotonic(), time.time(), self.seen.last
        shown = [one for one in list(self.seen.running) if last or wall - one.began > LASTS][:MOST_BARRED]
        if not shown and newest is not None and (last or (newest.seconds or 0.0) > LASTS):
            shown = [newest]
        self._looked = {one.number: self._looked.get(one.number) or Looked(one) for one in shown}
        return [bar for looked in self._looked.values() for bar in looked.look(now)]


def row_of(what: Profile | Iteration) -> tuple[str, ...]:
    """Return the cells of a line."""
    value, norm = (f"{one:.8g}" if one is not None else "" for one in (what.value, what.gradient_norm))
    remark = " ".join(what.remark.split())[:MOST_SAID]
    return f"{what.number:,}", what.name, value, norm, seconds_of(what.seconds), remark
