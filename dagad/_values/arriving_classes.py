"""How a class that goes by value arrives: as it is where it comes from, though an earlier state of it is here already.

cloudpickle puts what is in such a class into the one that a process has of it. It takes out nothing, leaves bases and
names as they were first, and brings a class that was made here back as somebody else had it.

State: `_arrived`, for each class the names that came in it the last time; `_made_here`, in which process others were
made, which may be forked. Both for as long as there is the class.
"""

from __future__ import annotations

import contextlib
import enum
import os
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from dagad._errors import PortabilityError
from dagad._values.homes import is_found
from dagad._values.names import is_of_python, of_class

_ABSENT = object()
_OF_TYPE: dict[str, Any] = {
    "__class__": vars(object)["__class__"],
    **{name: vars(type)[name] for name in ("__bases__", "__name__", "__qualname__")},
}
_arrived: weakref.WeakKeyDictionary[type, frozenset[str]] = weakref.WeakKeyDictionary()
_made_here: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()


class _ClassState(NamedTuple):
    """What is in a class, as cloudpickle takes and sets it, and what else it is there."""

    fill: Callable[[type, Any], Any]
    state: tuple[dict[str, Any], Any]
    names: Collection[str]
    of_type: dict[str, Any]


def reduced(cls: type, by_cloudpickle: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return how a class is made again, and brought to what it is here where it is known already."""
    make, args, state, *_, fill = by_cloudpickle
    if cls not in _arrived and _is_from_here(cls):
        _made_here[cls] = os.getpid()
    if not issubclass(cls, enum.Enum):  # what makes an enumeration has its members
        state[0].update(_left_out(cls, state[0]))
    return make, args, tuple(_ClassState(fill, state, tuple(sorted(vars(cls))), of_type(cls))), None, None, _arrive


def of_type(cls: type) -> dict[str, Any]:
    """Return the class, the bases and the names of a class, past what its own class makes of them."""
    return {name: slot.__get__(cls) for name, slot in _OF_TYPE.items()}


def _is_from_here(cls: type) -> bool:
    """Return whether a class that dagad did not bring was made here: others may have brought it by cloudpickle."""
    return is_found(cls) or ("<locals>" in cls.__qualname__ and not issubclass(cls, enum.Enum))


def _left_out(cls: type, state: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what cloudpickle leaves out, as one of the bases has the same, though another base comes before that."""
    for name, value in of_class(cls):
        if name not in state:
            holders = (vars(base) for base in cls.__mro__[1:])
            if next((held[name] for held in holders if name in held), _ABSENT) is not value:
                yield name, value


def _arrive(cls: type, sent: tuple[Any, ...]) -> None:
    """Bring a class to the state in which it was sent; one that was made here is what it is."""
    fill, state, names, others = sent
    if _made_here.get(cls) == os.getpid():
        return
    _set_type(cls, others)
    for name in _gone(cls, state[0].keys(), names):
        with contextlib.suppress(AttributeError):  # another thread was quicker
            type.__delattr__(cls, name)
    fill(cls, state)
    _arrived[cls] = frozenset(state[0])


def _gone(cls: type, state: Collection[str], names: Collection[str]) -> list[str]:
    """Return the names in a class that it no longer has where it comes from.

    What code of the class has put there since, a table that is made once for instance, did not come with it, and stays.
    """
    own, before = vars(cls), _arrived.get(cls)
    if before is None:  # it is new, or came without dagad
        return [] if issubclass(cls, enum.Enum) else [name for name, _ in of_class(cls) if name not in names]
    return [name for name in before.difference(state) if name in own and not is_of_python(name, own[name])]


def _set_type(cls: type, others: dict[str, Any]) -> None:
    for name, value in others.items():
        if not _is_same(_OF_TYPE[name].__get__(cls), value):
            try:
                _OF_TYPE[name].__set__(cls, value)
            except TypeError as error:
                raise PortabilityError(
                    f"The class `{others['__qualname__']}` has other bases, or another metaclass, than when it first "
                    f"came to this process, and can't be changed here ({error}). Restart the workers, or define the "
                    "class again."
                ) from error


def _is_same(now: Any, sent: Any) -> bool:
    if isinstance(now, tuple):  # by identity: a metaclass may say what equals its classes
        return list(map(id, now)) == list(map(id, sent))
    return now == sent if isinstance(now, str) else now is sent
