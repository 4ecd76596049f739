"""What both ends of a hot loop tell the scheduler's plugin: a few words every half second, while there is work.

Nobody tells anything before the plugin asks workers to: a worker says once, by an event, that it could. A client hears
of it by workers' replies.

State, touched by the event loop of a worker or of a client only:

============  =====================================================================================
`is_wanted`   whether somebody wants to be told
`_is_due`     whether a report is going to be sent
`_calls`      calls, chunks and seconds since the last report
`_again`      chunks that were recorded again since then
`_failures`   what was raised since then: function, role and what it was
`_samples`    some of the calls since then: key, beginning, end, thread
`_sampled`    when the last sample was taken
`_loops`      evaluations since then, by function and role
`_fallbacks`  evaluations since then that took the graph since residents could not, by the reason
============  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dagad_scheduler.roles import Key, Role, role_of

TOPIC, SERVICES = "dagad", "dagad-services"  # Dask's events: reports, and workers that could send them
WANTED = "dagad-wanted"  # the message by which the plugin asks workers
EVERY = 0.5  # seconds
SAMPLE_EVERY = 0.05  # seconds: no more calls than that are shown in Dask's task stream
MOST_FAILURES, MOST_REASONS, MOST_LETTERS = 5, 10, 300
Span = tuple[float, float, int]  # beginning, end, thread


class Reports:
    """Sends what `_event` returns, by `send`, some time after somebody has called `soon` on the event loop."""

    def __init__(self, later: Callable[[float, Callable[[], None]], Any], send: Callable[[dict[str, Any]], Any]):
        self._later, self._send = later, send
        self.is_wanted = self._is_due = False

    def soon(self) -> None:
        """Send a report in a while, if somebody wants it."""
        if self.is_wanted and not self._is_due:
            self._is_due = True
            self._later(EVERY, self._tell)

    def _tell(self) -> None:
        self._is_due = False
        if self.is_wanted:
            self._send(self._event())

    def _event(self) -> dict[str, Any]:
        raise NotImplementedError(f"`{type(self).__name__}._told` has to say what there is to tell.")


class OfWorker(Reports):
    """What a worker tells; `held` returns how many linearizations it holds, and their bytes."""

    def __init__(
        self,
        later: Callable[[float, Callable[[], None]], Any],
        send: Callable[[dict[str, Any]], Any],
        held: Callable[[], tuple[int, int]],
    ) -> None:
        super().__init__(later, send)
        self._held, self._sampled = held, 0.0
        self._clear()

    def _clear(self) -> None:
        self._calls, self._again = [0, 0, 0.0], 0
        self._failures: list[tuple[str, str, str]] = []
        self._samples: list[tuple[Key, Span]] = []

    def spans(self) -> list[Span] | None:
        """Return where the threads of a call write down what they did; None if nobody wants to know."""
        return [] if self.is_wanted else None

    def answered(self, n_chunks: int, seconds: float, key: Key, spans: list[Span], *, has_held: bool) -> None:
        """Take note of a call, whether there was something held for it, and what its threads did."""
        calls = self._calls
        calls[0], calls[1], calls[2] = calls[0] + 1, calls[1] + n_chunks, calls[2] + seconds
        if role_of(key) is Role.PULLBACK and not has_held:
            self._again += n_chunks
        if spans and spans[0][0] > self._sampled + SAMPLE_EVERY:
            self._sampled = spans[0][0]
            self._samples += [(key, span) for span in spans]
        self.soon()

    def failed(self, function: str, role: str, reason: str) -> None:
        """Take note of a call that failed."""
        if self.is_wanted and len(self._failures) < MOST_FAILURES:
            self._failures.append((function, role, reason[:MOST_LETTERS]))
            self.soon()

    def _event(self) -> dict[str, Any]:
        event = {
            "held": self._held(),
            "calls": self._calls,
            "again": self._again,
            "failures": self._failures,
            "samples": self._samples,
        }
        self._clear()
        return event


class OfClient(Reports):
    """What a client tells, whose name is `client`."""

    def __init__(
        self, later: Callable[[float, Callable[[], None]], Any], send: Callable[[dict[str, Any]], Any], client: str
    ) -> None:
        super().__init__(later, send)
        self._client = client
        self._loops: dict[tuple[str, str], list[Any]] = {}
        self._fallbacks: dict[str, int] = {}

    def evaluated(self, function: str, role: str, seconds: float, n_values: int, n_gradients: int) -> None:
        """Take note of an evaluation."""
        loop = self._loops.setdefault((function, role), [0, 0.0, 0.0, n_values, n_gradients])
        loop[0], loop[1] = loop[0] + 1, loop[1] + seconds
        loop[2:] = max(loop[2], seconds), n_values, n_gradients
        self.soon()

    def fell_back(self, reason: str) -> None:
        """Take note of an evaluation that takes the graph; also before anybody wants to know."""
        reason = reason[:MOST_LETTERS]
        if reason in self._fallbacks or len(self._fallbacks) < MOST_REASONS:
            self._fallbacks[reason] = self._fallbacks.get(reason, 0) + 1
        self.soon()

    def _event(self) -> dict[str, Any]:
        loops, fallbacks = self._loops, self._fallbacks
        self._loops, self._fallbacks = {}, {}
        return {
            "client": self._client,
            "loops": [[*at, *loop] for at, loop in loops.items()],
            "fallbacks": list(fallbacks.items()),
        }
