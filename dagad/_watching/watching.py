"""Evaluations and who watches them: watchers are told when one begins and when it ends, and look at its profile.

State: `_WATCHERS`, in the context of the running thread, those who watch what it evaluates; `_DISPLAYS`, the one
display of this process that the setting ``dagad.progress`` asks for, by what it asks; `_COUNT`, how many evaluations
have been logged.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import math
from collections.abc import Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from dagad._config import setting
from dagad._errors import ArgumentsError
from dagad._executors.evaluation import is_inside_any_task
from dagad._executors.profile import Profile
from dagad._kernels.context import current_profile, recorded
from dagad._types import Tree, Value
from dagad._values import pytree
from dagad._watching.display import Display
from dagad._watching.screens import at_end_of_cells, screen_for

LINGERS = 1.0  # seconds that the thread of the setting's display waits for a next evaluation
logger = logging.getLogger("dagad")


class Watcher(Protocol):
    """Somebody who watches evaluations; told by the threads that evaluate."""

    def began(self, profile: Profile) -> None:
        """Take note of an evaluation that begins."""

    def ended(self, profile: Profile) -> None:
        """Take note that it is over."""


_WATCHERS: ContextVar[tuple[Watcher, ...]] = ContextVar("dagad_watchers", default=())
_DISPLAYS: dict[Any, Display] = {}
_COUNT = itertools.count(1)


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Have somebody told of the evaluations that this thread starts."""
    token = _WATCHERS.set((*_WATCHERS.get(), watcher))
    try:
        yield
    finally:
        _WATCHERS.reset(token)


def _watchers() -> tuple[Watcher, ...]:
    """Return who watches here: those who do so by a ``with`` block, or as the setting says, and the log."""
    found, asked = _WATCHERS.get(), setting("progress")
    if asked and not found:
        found = (_DISPLAYS.get(asked) or _configured(asked),)
    return (*found, Logged()) if logger.isEnabledFor(logging.DEBUG) else found


def _configured(asked: object) -> Display:
    """Return the display that the setting asks for."""
    if asked is not True and asked != "always":
        raise ArgumentsError(
            f"The setting `dagad.progress` is {asked!r}. Choose false for none, true to see progress in terminals and "
            'notebooks, or "always" to have it printed elsewhere too.'
        )
    show = True if asked == "always" else None
    made = Display(screen_for(show, None), lingers=LINGERS)
    if _DISPLAYS.setdefault(asked, made) is made:
        atexit.register(made.close)
        at_end_of_cells(made.pause)
    return _DISPLAYS[asked]


class Logged:
    """Has an evaluation logged when it is over; its record carries what happened as ``record.dagad``."""

    def began(self, profile: Profile) -> None:
        """Take note of an evaluation that begins."""
        profile.number = profile.number or next(_COUNT)

    def ended(self, profile: Profile) -> None:
        """Take note that it is over."""
        account, failed = profile.account, f" failed: {profile.error}" if profile.error else ""
        facts = {
            "number": profile.number,
            "name": profile.name,
            "seconds": profile.seconds,
            "value": profile.value,
            "gradient_norm": profile.gradient_norm,
            "error": profile.error,
            "executors": profile.executors,
            "fallbacks": profile.fallbacks,
            "seconds_by_role": account.seconds,
            "sent": account.sent,
            "received": account.received,
        }
        logger.debug(
            "dagad: evaluation %d of %s%s, %.6f s, by %s",
            profile.number,
            profile.name,
            failed,
            profile.seconds,
            ", ".join(profile.executors) or "no executor",
            extra={"dagad": facts},
        )


class watched:
    """One evaluation, while it is entered: the outermost call of a transform or a reduction.

    A class, and nothing but a look at who watches where nobody does: hot loops come by here.
    """

    __slots__ = ("_exit", "_watchers", "profile")

    def __init__(self, name: str) -> None:
        self._watchers = _watchers()
        self._exit: Any = None
        self.profile: Profile | None = None
        if self._watchers and current_profile() is None and not is_inside_any_task():
            self.profile = Profile(name)

    @classmethod
    def by_chunk(cls, name: str) -> watched:
        """Return an evaluation that is seen chunk by chunk, whoever watches."""
        found = cls(name)
        found.profile = Profile(name, by_chunk=True)
        if current_profile() is not None or is_inside_any_task():
            found._watchers = ()
        return found

    def __enter__(self) -> watched:
        if self.profile is not None:
            self.begin()
            self._exit = recorded(self.profile)
            self._exit.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._exit is not None:
            self._exit.__exit__(kind, error, traceback)
            self.end(error)

    def begin(self) -> None:
        """Tell watchers that it begins."""
        if self.profile is not None:
            for watcher in self._watchers:
                watcher.began(self.profile)

    def gave(self, value: Value) -> None:
        """Write down the value."""
        if self.profile is not None:
            plain = pytree.plain(value)
            is_number = isinstance(plain, float | np.floating) or (isinstance(plain, np.ndarray) and plain.size == 1)
            self.profile.value = float(plain.item() if isinstance(plain, np.ndarray) else plain) if is_number else None

    def gave_gradient(self, gradient: Tree) -> None:
        """Write down how long the gradient is."""
        if self.profile is not None:
            self.profile.gradient_norm = _norm(gradient)

    def end(self, error: BaseException | None = None) -> None:
        """Tell watchers that it is over."""
        if self.profile is not None and self.profile.seconds is None:
            self.profile.finish(error)
            for watcher in self._watchers:
                watcher.ended(self.profile)


def _norm(gradient: Tree) -> float | None:
    """Return the Euclidean norm of a gradient; None where some of it lives elsewhere."""
    if type(gradient) is np.ndarray and gradient.dtype == np.float64:  # nearly always
        flat = gradient.ravel()
        return math.sqrt(flat.dot(flat))
    leaves = [pytree.plain(leaf) for leaf in pytree.flatten(gradient)[0]]
    if any(map(pytree.is_sharded, leaves)):
        return None
    floats = [np.asarray(leaf).ravel() for leaf in leaves if pytree.is_differentiable(leaf)]
    return math.hypot(*(float(np.linalg.norm(leaf)) for leaf in floats))
