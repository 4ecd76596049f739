"""Settings under which a member asks for a job: numpy's of errors, decimal's, and context variables of the user's.

A job of several members runs in the thread of the caller, who has others: so it runs under theirs, and members whose
settings differ run one by one, each in its own thread. Variables of dagad's own stay those of the caller.
"""

from __future__ import annotations

import contextvars
import decimal
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np

from dagad._executors.members_snapshot import CurrentState
from dagad._kernels.members import is_same

_CHECKPOINT = "dagad_checkpoint"  # a member that writes down what it runs does so alone


class Settings:
    """Those of the running thread, as they are now."""

    __slots__ = ("_context", "_numpy", "_others")

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._numpy = np.geterr(), np.geterrcall(), np.getbufsize()
        self._others = {
            variable: _settled(value)
            for variable, value in self._context.items()
            if variable.name != "numpy.ufunc.extobj" and (not _is_ours(variable) or variable.name == _CHECKPOINT)
        }

    def is_like(self, other: Settings) -> bool:
        """Return whether nothing that the user may have set differs."""
        if self._numpy != other._numpy or self._others.keys() != other._others.keys():
            return False
        return all(is_same(value, other._others[variable]) for variable, value in self._others.items())

    def look(self, act: Callable[..., Any], *args: Any) -> Any:
        """Return what a function returns where all variables are what they are here."""
        return self._context.run(act, *args)

    def run(self, act: Callable[..., Any], *args: Any) -> Any:
        """Return what a function returns under these settings, by whoever calls this."""
        context = contextvars.copy_context()
        for variable, value in self._context.items():
            if not _is_ours(variable):
                context.run(variable.set, value)
        return context.run(act, *args)


def _is_ours(variable: ContextVar[Any]) -> bool:
    return variable.name.startswith("dagad_")


def _settled(value: object) -> Any:
    """Return the value of a variable, to be compared; decimal's own changes with each rounding, by its flags."""
    if type(value) is not decimal.Context:
        return value
    own = value.prec, value.rounding, value.Emin, value.Emax, value.capitals, value.clamp
    return (*own, tuple([kind for kind, traps in value.traps.items() if traps]))


class CurrentStates:
    """What things are now, as seen under several settings: a context variable is another one for each."""

    def __init__(self) -> None:
        self._found: list[tuple[Settings, CurrentState]] = []

    def look(self, settings: Settings, act: Callable[[CurrentState], Any]) -> Any:
        """Return what a function makes of the states that are seen under some settings."""
        now = next((now for one, now in self._found if one.is_like(settings)), None)
        if now is None:
            now = CurrentState()
            self._found.append((settings, now))
        return settings.look(act, now)
