"""Tests look at what runs: the calls of all evaluations that a thread starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dagad._executors.profile import Call, Profile
from dagad._watching.watching import watching


class Evaluations:
    """A watcher that keeps the profiles of evaluations."""

    def __init__(self) -> None:
        self.begun: list[Profile] = []
        self.over: list[Profile] = []

    def began(self, profile: Profile) -> None:
        self.begun.append(profile)

    def ended(self, profile: Profile) -> None:
        self.over.append(profile)

    @property
    def calls(self) -> list[Call]:
        """What ran: values and gradients, but not what was pulled of what they had left."""
        return [call for profile in self.begun for call in profile.calls if call.method != "pull"]


@contextlib.contextmanager
def evaluations_seen() -> Iterator[Evaluations]:
    """Keep the profiles of the evaluations that this thread starts."""
    seen = Evaluations()
    with watching(seen):
        yield seen
