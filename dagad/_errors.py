"""All errors raised on purpose, and the one warning. Each is ours and a builtin, so that either can be caught."""

from __future__ import annotations

from collections.abc import Callable as _Callable
from concurrent.futures import CancelledError as _CancelledError
from typing import Any as _Any


class DagadError(Exception):
    """Base of all errors that dagad raises on purpose."""


class PlanError(DagadError, ValueError):
    """The rows can't be cut as asked."""


class StructureError(DagadError, ValueError):
    """Shapes or structures that should agree do not."""


class ClosureError(DagadError, ValueError):
    """What a function carries can't be used: a value being differentiated, or one that has changed meanwhile."""


class NotDifferentiableError(DagadError, TypeError):
    """A derivative was asked for that does not exist or has no rule."""


class NonFiniteError(DagadError, FloatingPointError):
    """A chunk gave nan or infinity, and the setting ``dagad.check-finite`` asked for it: its `chunk` and `argument`."""

    chunk: int
    rows: tuple[int, int]  # the first, and the one after the last
    argument: str  # "the value", or in what the gradient is not finite


class GradientError(DagadError, AssertionError):
    """A check found a derivative that finite differences contradict, or a sum that depends on the chunks."""


class PortabilityError(DagadError, TypeError):
    """Something can't travel to another process."""


class WorkerLostError(DagadError, RuntimeError):
    """Workers died again and again on the same chunk: one of `suspects`, as far as Dask knows."""

    suspects: tuple[str, ...] = ()
    experiment: _Callable[[float | None], str | None] | None = None  # for `find_deadly_chunk`; it does not travel

    def __reduce__(self) -> tuple[_Any, ...]:
        return type(self), self.args, self.__dict__ | {"experiment": None}


class SchedulerLostError(DagadError, ConnectionError):
    """The scheduler of a cluster is gone, and everything on it."""


class DataLostError(DagadError, LookupError):
    """What was placed or left on a cluster is there no more."""


class CheckpointError(DagadError, RuntimeError):
    """A checkpoint can't be used: it is another run's, another process writes it, or it is damaged."""


class CheckpointDiskError(CheckpointError, OSError):
    """The disk of a checkpoint refuses it: it is full, read-only, or has a file where the directory is to be."""

    def __reduce__(self) -> tuple[_Any, ...]:
        return type(self), self.args, self.__dict__ | {"errno": self.errno}


class ArgumentsError(DagadError, TypeError):
    """A function was called with arguments that don't fit it."""


class MissingNameError(DagadError, AttributeError):
    """A name was asked for that dagad does not have."""


class TimedOutError(DagadError, TimeoutError):
    """What an evaluation is asked for was not there in time; it goes on."""


class CancelledError(DagadError, _CancelledError):
    """The evaluation was cancelled."""


class DagadWarning(UserWarning):
    """What was asked for was done, and is most likely not what was meant."""


def add_note_to_others(error: BaseException, note: str) -> None:
    """Add a note that says what to write instead, once, unless the error is ours: those say so themselves."""
    if not isinstance(error, DagadError):
        add_note_once(error, note)


def add_note_once(error: BaseException, note: str) -> None:
    """Add a note unless the error has one of ours from an inner chunk or an earlier try."""
    _end_causes(error)
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def _end_causes(error: BaseException) -> None:
    """Take an error out of its own causes, where ``raise error from error`` has put it.

    Dask follows the causes to their end before an error leaves a worker, and would never arrive.
    """
    one, seen = error, {id(error)}
    while one.__cause__ is not None and id(one.__cause__) not in seen:
        one = one.__cause__
        seen.add(id(one))
    if one.__cause__ is not None:
        one.__cause__ = None


for _error in [found for found in vars().values() if isinstance(found, type)]:
    if _error.__module__ == __name__:
        _error.__module__ = "dagad"  # what tracebacks call it is what users import
