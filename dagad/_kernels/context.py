"""How reductions are to behave that run for somebody: which policy they take, and where it is written down.

State, in the context of the running thread: `_STACK`, the modes entered and not yet left; `_PROFILE`, the profile of
the evaluation that runs; `_SEEN`, where operations are written down while somebody looks; `_DIVIDED`, whether some of a
Jacobian's directions are computed elsewhere.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from dagad._graphs.policies import Keep, Preaccumulate

DefaultPolicy = type[Keep] | type[Preaccumulate]
# Value and gradient are wanted together: each gradient is computed while its chunk is in cache.
VALUE_AND_GRAD: DefaultPolicy = Preaccumulate
# No pullback is to run before it is asked for.
VALUES_FIRST: DefaultPolicy = Keep


class DividedDirectionsError(BaseException):
    """Raised by what computes directions jointly, where they are divided into groups; who divided them meets it.

    No exception that a user's function catches, who goes on with something else where a solver fails.
    """


class Mode:
    """What reductions do by default, while it is entered; `lasting`: their pullbacks may outlive the call."""

    __slots__ = ("lasting", "policy")

    def __init__(self, policy: DefaultPolicy, *, lasting: bool = False) -> None:
        self.policy, self.lasting = policy, lasting

    def __enter__(self) -> None:
        _STACK.set((*_STACK.get(), self))

    def __exit__(self, *_: object) -> None:
        _STACK.set(_STACK.get()[:-1])


_PROFILE: ContextVar[Callable[[], Any] | None] = ContextVar("dagad_profile", default=None)
_SEEN: ContextVar[list[Any] | None] = ContextVar("dagad_seen", default=None)
_DIVIDED: ContextVar[bool] = ContextVar("dagad_divided", default=False)
_STACK: ContextVar[tuple[Mode, ...]] = ContextVar("dagad_mode", default=())
_DEFAULT = Mode(VALUE_AND_GRAD)


def current_mode() -> Mode:
    """Return how reductions are to behave here."""
    stack = _STACK.get()
    return stack[-1] if stack else _DEFAULT


def is_in_a_transform() -> bool:
    """Return whether a transform of ours runs here, which sees to what is handed out in the end."""
    return bool(_STACK.get())


def like_here(policy: DefaultPolicy, *, lasting: bool = False) -> Mode:
    """Return a mode with this default policy, and lasting if that around it is."""
    return Mode(policy, lasting=lasting or current_mode().lasting)


@contextlib.contextmanager
def operations_seen() -> Iterator[list[Any]]:
    """Write down the reductions and maps that are differentiated in this thread, with their leaves."""
    seen: list[Any] = []
    token = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(token)


class recorded:
    """Have what runs in this thread written down in the profile of an evaluation; nowhere for None.

    A class, as loops of short evaluations come by here.
    """

    __slots__ = ("_found", "_token")

    def __init__(self, profile: object) -> None:
        # Weakly: contexts are copied by everything that schedules callbacks, and live as long as these.
        self._found = None if profile is None else weakref.ref(profile)

    def __enter__(self) -> None:
        self._token = _PROFILE.set(self._found)

    def __exit__(self, *_: object) -> None:
        _PROFILE.reset(self._token)


def current_profile() -> Any:
    """Return the profile of the evaluation that the caller is part of, or one of its chunks; None without one."""
    found = _PROFILE.get()
    return None if found is None else found()


def written_profile() -> Any:
    """Return the same where what runs is written down in it: what chunks run is theirs."""
    profile = current_profile()
    return profile if profile is not None and profile.is_here() else None


def note_operation(operation: object, leaves: object) -> None:
    """Write an operation down, if somebody looks."""
    seen = _SEEN.get()
    if seen is not None:
        seen.append((operation, leaves))


@contextlib.contextmanager
def directions_divided(are_divided: bool) -> Iterator[None]:
    """Have it known that what runs here has some directions of a Jacobian, if it is so; what is so around it stays."""
    token = _DIVIDED.set(_DIVIDED.get() or are_divided)
    try:
        yield
    finally:
        _DIVIDED.reset(token)


def are_directions_divided() -> bool:
    """Return whether what runs here has some directions of a Jacobian, and others have the rest."""
    return _DIVIDED.get()


def refuse_divided(is_divided: bool) -> None:
    """Refuse to go on with some directions of a Jacobian: what comes next is computed for all of them together."""
    if is_divided:
        raise DividedDirectionsError(
            "The directions of a Jacobian are computed in groups, and a solver in its function takes steps for all of "
            "them together. Leave out `scheduler=`."
        )
