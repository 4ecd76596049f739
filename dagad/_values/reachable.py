"""What a program of the user's can reach, as it is now, and whether it may change that, as its bytecode says.

A function that runs between others of its kind may leave something for itself where they reach it too: in an array, an
attribute, a dict, a variable of the function around it, a random generator. What is looked into is what the table of
`kinds` says, held or reached by name; not what libraries hold.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Container, Mapping
from sys import getrefcount
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from dagad._types import Array
from dagad._values.bytecode import changes_others, names_of
from dagad._values.canonical import is_frozen
from dagad._values.homes import is_closed, is_installed, root_of
from dagad._values.kinds import FUNCTION, HOMES, INSTANCE, kind_of
from dagad._values.names import Scopes
from dagad._values.work_arrays import IN_A_CONTAINER, is_own

_FIXED = frozenset({type(None), bool, int, float, complex, str, bytes, range, slice})
_GENERATORS: tuple[type, ...] = (np.random.Generator, np.random.RandomState, random.Random)
LOOKED_INTO, MOST = 1_000, 20_000  # entries of one container, and parts in all, that are looked into
BLOCK = 2**20  # bytes that are laid out at a time


class Reachable:
    """What a program can reach, as it is now: one that is like an earlier one of the same program has not changed.

    Examples
    --------
    >>> seen = []
    >>> append = seen.append
    >>> before = Reachable(append)
    >>> append(1.0)
    >>> now = Reachable(append)
    >>> now.is_like(before), now.only_adds_to(before), before.may_change
    (False, True, False)
    """

    __slots__ = ("_kept", "_reads_numbers", "_scopes", "_states", "may_change")

    def __init__(self, fun: object, *, reads_numbers: bool = True) -> None:
        self.may_change, self._reads_numbers = False, reads_numbers
        self._kept = list[Any]()  # or another object might come to stand at the same address
        self._states, self._scopes = dict[Any, tuple[object, tuple[int, ...]]](), Scopes(_all_of_a_class)
        rest = [fun]
        while rest and len(self._states) < MOST:
            part = rest.pop()
            if type(part) not in _FIXED and id(part) not in self._states:
                try:
                    numbers, inner = self._look(part)
                except Exception:  # by code of others', which must not stop a value
                    numbers, inner = None, []
                self._note(id(part), numbers, inner)
                self._kept.append(part)
                rest += inner[:LOOKED_INTO]
            if not rest:
                rest = [each for _, _, each in self._scopes.fresh()]
                self._note(("by name", len(self._states)), None, rest)

    def _note(self, key: object, numbers: object, inner: list[Any]) -> None:
        self._states[key] = numbers, tuple(map(id, inner))
        self._kept.append(inner)

    def is_like(self, other: Reachable) -> bool:
        """Return whether this has the same parts as another one, and the same numbers in them."""
        return self._states == other._states

    def only_adds_to(self, other: Reachable) -> bool:
        """Return whether all that another one has is here as it is there: a list, say, may have become longer."""
        for key, (numbers, inner) in other._states.items():
            state = self._states.get(key)
            if state is None or state[0] != numbers or not set(inner) <= set(state[1]):
                return False
        return True

    def shares(self, array: Array, besides: Container[int]) -> bool:
        """Return whether the memory of an array is held by something else than what is listed by its ids."""
        found = {id(part) for part in self._kept if isinstance(part, np.ndarray) and np.may_share_memory(part, array)}
        return any(not found.isdisjoint(inner) for key, (_, inner) in self._states.items() if key not in besides)

    def _look(self, part: Any) -> tuple[object, list[Any]]:
        """Return what numbers are in a part, and what it holds; note what leads on by name."""
        cls: Any = type(part)  # not `isinstance`, which asks the object for its class, too
        kind = kind_of(cls)
        if kind in HOMES:
            if not is_installed(part.__name__ if issubclass(cls, ModuleType) else part.__module__):
                self._scopes.enter(part)
            return None, []
        if issubclass(cls, _GENERATORS) or hasattr(cls, "__next__"):
            self.may_change = True
            return _position_of(part), []
        if kind is INSTANCE and is_closed(root_of(cls)):
            return None, []
        inner = list(kind.parts(part))
        if issubclass(cls, np.ndarray) and not part.dtype.hasobject:
            is_read = self._reads_numbers and not is_frozen(part)
            return checksum(part.view(np.ndarray)) if is_read else None, inner
        if kind is FUNCTION:
            inner += self._named_by(part)
        elif kind is INSTANCE:
            inner.append(cls)
        return None, inner

    def _named_by(self, fun: FunctionType) -> list[Any]:
        """Return what a function of the user's reaches by name."""
        if is_installed(fun.__module__):
            return []
        self.may_change = self.may_change or changes_others(fun.__code__)
        used = names_of(fun.__code__)
        self._scopes.meet(used)
        return [each for _, each in FUNCTION.named(fun, used)]


def _all_of_a_class(*_: object) -> bool:
    return True


def _position_of(generator: Any) -> object:
    """Return where a generator of random numbers stands; of other ones nothing says so, and nothing is like it."""
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return repr(generator.get_state())
    return repr(generator.getstate()) if isinstance(generator, random.Random) else object()


def checksum(array: Array) -> int:
    """Return a sum over all bits of an array, and of where they stand."""
    if not array.ndim or not array.nbytes:
        return zlib.crc32(array.tobytes())
    if array.flags.c_contiguous:
        return zlib.crc32(array.reshape(-1).view(np.uint8).data)
    found, step = 0, max(BLOCK * len(array) // array.nbytes, 1)
    for start in range(0, len(array), step):
        found = zlib.crc32(array[start : start + step].tobytes(), found)
    return found


def written_elsewhere(fun: object, arrays: Mapping[int, Array], owners: Mapping[int, list[int]]) -> set[int]:
    """Return the ids of arrays that a function may write into, past their owners, as bytecode says.

    Such a function means one array by two names, as that of a variable and that of an attribute.
    """
    suspects = {}
    for key in arrays:
        array = arrays[key]  # not by `items`, whose tuple would hold it too
        if array.flags.writeable and (not is_own(array) or getrefcount(array) > IN_A_CONTAINER + len(owners[key])):
            suspects[key] = array
    if not suspects:
        return set()
    picture, through = Reachable(fun, reads_numbers=False), {each for key in suspects for each in owners[key]}
    return {key for key, array in suspects.items() if picture.may_change and picture.shares(array, through)}
