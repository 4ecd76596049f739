"""What was evaluated while somebody watched: how much of all, in full what came last.

State of an `Evaluations`, all of it changed under its `_lock`:

==================================  ================================================================================
`count`, `n_failed`, `seconds`      of the evaluations that are over: how many, how many that raised, how long in all
`executors`, `fallbacks`            how often each executor ran an operation, how often and why one was passed over
`running`, `recent`, `iterations`   what has begun, the last that are over, and the steps of an optimiser, all in order
==================================  ================================================================================
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from dagad._executors.profile import Profile
from dagad._html import seconds_of

MOST_KEPT = 256  # profiles, iterations and reasons


class Iteration(NamedTuple):
    """A step of an optimiser: where it stands, and what it took to get there."""

    number: int
    value: float | None
    gradient_norm: float | None
    n_evaluations: int
    seconds: float

    @property
    def name(self) -> str:
        """What its line calls it."""
        return "iteration"

    @property
    def remark(self) -> str:
        """What its line ends with."""
        return f"{self.n_evaluations} evaluation{'s' * (self.n_evaluations != 1)}"


class Evaluations:
    """What was evaluated in a ``with dagad.progress()`` block.

    Attributes
    ----------
    count, n_failed, seconds
        How many evaluations are over, how many of them raised an error, and how long all took together.
    executors
        How many operations each executor has run.
    fallbacks
        How often an executor was passed over, by the reason.
    running, recent
        The profiles of those that run, and of the last that are over.
    iterations
        The last steps of the optimiser whose `callback=` is `iterated`.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> with dagad.progress() as seen:
    ...     gradient = dagad.grad(lambda x: np.sum(x**2))(np.array([3.0, 4.0]))
    >>> seen.count, seen.last.value, seen.last.gradient_norm
    (1, 25.0, 10.0)
    """

    def __init__(self, tell: Callable[[Profile | Iteration], Any] | None = None) -> None:
        self.count, self.n_failed, self.seconds = 0, 0, 0.0
        self.executors, self.fallbacks = Counter[str](), Counter[str]()
        self.running: list[Profile] = []
        self.recent: deque[Profile] = deque(maxlen=MOST_KEPT)
        self.iterations: deque[Iteration] = deque(maxlen=MOST_KEPT)
        self._tell, self._n_begun, self._at_last_iteration = tell, 0, (0, 0.0)
        self._lock = threading.Lock()

    @property
    def last(self) -> Profile | None:
        """The profile of the evaluation that was over last; None before the first."""
        return self.recent[-1] if self.recent else None

    @property
    def seconds_each(self) -> float:
        """How long an evaluation takes on average."""
        return self.seconds / self.count if self.count else 0.0

    def iterated(self, xk: object = None, *state: Any, intermediate_result: object = None, **more: Any) -> None:
        """Take note of a step of an optimiser; it is what scipy calls a ``callback``.

        Parameters
        ----------
        xk, *state, intermediate_result, **more
            Where the optimiser stands, as it tells its callback. The value is read from what has a ``fun``; without
            that it is the value of the last evaluation.
        """
        del xk, more
        reported = next((one for one in (intermediate_result, *state) if hasattr(one, "fun")), None)
        with self._lock:
            last, (count, seconds) = self.last, self._at_last_iteration
            value = None if last is None else last.value
            step = Iteration(
                self.iterations[-1].number + 1 if self.iterations else 1,
                value if reported is None else float(reported.fun),
                None if last is None else last.gradient_norm,
                self.count - count,
                self.seconds - seconds,
            )
            self.iterations.append(step)
            self._at_last_iteration = self.count, self.seconds
        if self._tell is not None:
            self._tell(step)

    def began(self, profile: Profile) -> None:
        """Take note of an evaluation that begins."""
        with self._lock:
            self._n_begun += 1
            profile.number = profile.number or self._n_begun
            self.running.append(profile)

    def ended(self, profile: Profile) -> None:
        """Take note that it is over."""
        with self._lock:
            self.running.remove(profile)
            self.recent.append(profile)
            self.count += 1
            self.n_failed += bool(profile.error)
            self.seconds += profile.seconds or 0.0
            for call in profile.calls:
                if call.executor:
                    self.executors[call.executor] += 1
                for reason in call.refusals:
                    if reason in self.fallbacks or len(self.fallbacks) < MOST_KEPT:
                        self.fallbacks[reason] += 1
        if self._tell is not None and not self.iterations:  # of which each has a line
            self._tell(profile)

    def summary(self) -> str:
        """Return in a line how many there were, how long they took, and what ran them."""
        said = [f"{self.count:,} evaluation{'' if self.count == 1 else 's'}"]
        if self.count:
            said[0] += f", {seconds_of(self.seconds_each)} each"
        if self.n_failed:
            said.append(f"{self.n_failed:,} failed")
        if self.executors:
            said.append("ran by " + ", ".join(f"{name} {count:,}" for name, count in self.executors.most_common()))
        if self.fallbacks:
            reason, _ = self.fallbacks.most_common(1)[0]
            said.append(f"{self.fallbacks.total():,} fell back ({reason})")
        return "; ".join(said)

    def __repr__(self) -> str:
        return f"<Evaluations: {self.summary()}>"
