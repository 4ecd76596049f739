"""What a function reads when it is called, and whether it may read something else by now.

A pullback that a function brings along may run after that function was called again, which has filled what it reads:
a work array, an attribute, an entry of a dict, whatever holds it.

State: `TURNS`, for each thread how often functions were called whose pullbacks may read what the next call fills; the
pullback of the last one, where it is pulled next; and when that of the function is pulled that is called now.
"""

from __future__ import annotations

import functools
import operator
import threading
import weakref
from collections.abc import Container
from sys import getrefcount
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Protocol

import numpy as np

from dagad._types import Array
from dagad._values.baseline import Detail, checksum, numbers_in
from dagad._values.bytecode import globals_of
from dagad._values.canonical import is_written_elsewhere, library_of
from dagad._values.homes import is_installed, root_of
from dagad._values.kinds import INSTANCE, SERIES, kind_of
from dagad._values.picture import ByName, Picture
from dagad._values.reach import WHOLE, Key, is_closed_to_us, opened_in_full
from dagad._values.work_arrays import IN_A_CONTAINER, is_own

# When a pullback is pulled: some time; for the seed 1, before anything else is called; not at all.
LATER, NEXT, NEVER = "later", "next", "never"


class Notes(Protocol):
    """A pullback that may note what it reads, before somebody else may fill it."""

    def note(self) -> None:
        """Note what it reads now."""


class Turns(threading.local):
    """How often functions that bring their own pullbacks were called in a thread."""

    count = 0
    unnoted: weakref.ref[Notes] | None = None
    pulled = LATER

    def begin(self, pulled: str = LATER) -> None:
        """Note what the last pullback reads, if it was to be pulled before anything else is called, and is there."""
        self.pulled = pulled
        if self.unnoted is not None:
            last, self.unnoted = self.unnoted(), None
            if last is not None:
                last.note()

    def next(self) -> tuple[int, int]:
        self.count += 1
        return threading.get_ident(), self.count

    def is_last(self, turn: tuple[int, int]) -> bool:
        """Return whether nobody was called since, as far as this thread knows."""
        return turn == (threading.get_ident(), self.count)


TURNS = Turns()
SMALL = 1 << 16  # bytes whose sum is compared; of more, the function rather runs again
MOST = 2_000  # parts in all
_HOMES: Any = (ModuleType, type)
_NUMBERS = frozenset({float, int, bool, str, np.float64, type(None)})
_FIXED: Any = (int, float, complex, str, bytes, np.generic, np.dtype, np.ufunc, type(np.sum))


class Reading:
    """What a function reads beside its arguments, as it is now: variables, attributes, entries, numbers in arrays.

    Of an object these are the attributes whose names the function mentions, and those that it does not bind itself: a
    count of its calls is none. Arrays that nobody else holds, and read-only ones, are what they were.
    """

    __slots__ = ("_fun", "_picture", "_variables")

    def __init__(self, fun: object) -> None:
        self._fun, self._variables, self._picture = fun, _Variables(), None
        if not self._variables.are_all_of(fun):  # as they are of most
            self._variables.clear()  # what is in it would have one more holder
            self._picture = _look_at(fun)

    def may_differ(self) -> bool:
        """Return whether the function may read something else by now."""
        if self._picture is not None:
            picture = self._picture
            return any(picture.may_be_read(key) and not _is_a_log(picture, key) for key in picture.changes())
        now = _Variables()
        return not now.are_all_of(self._fun, self._variables) or now.differ(self._variables)


class _Variables:
    """Numbers, arrays and helpers that variables around a function have, and sums of arrays that others may write."""

    __slots__ = ("_parts", "_sums")

    def __init__(self) -> None:
        self._parts, self._sums = list[Any](), dict[int, int]()

    def clear(self) -> None:
        self._parts.clear()

    def differ(self, before: _Variables) -> bool:
        """Return whether one has another value than before, or an array other numbers."""
        parts = before._parts
        is_alike = len(self._parts) == len(parts) and all(map(operator.is_, self._parts, parts))
        return not is_alike or self._sums != before._sums

    def are_all_of(self, fun: object, before: _Variables | None = None) -> bool:
        """Return whether a function and its helpers read nothing else; find what they read.

        What was looked at before may have more holders by now.
        """
        if type(fun) is not FunctionType or fun.__defaults__ or fun.__kwdefaults__ or fun.__dict__:
            return False
        if root_of(fun) == "dagad":  # of items, each of which has its own
            return True
        scope, parts, sums = fun.__globals__, self._parts, None if before is None else before._sums
        for name in globals_of(fun.__code__):
            each: Any = scope.get(name)
            kind = type(each)
            if kind is ModuleType:  # nearly always
                if not is_installed(each.__name__):
                    return False
            elif kind in _NUMBERS:
                parts.append(each)
            elif kind is FunctionType:
                if not any(each is one for one in parts):
                    parts.append(each)
                    if not self.are_all_of(each, before):
                        return False
            elif kind is np.ndarray:
                if not self._has_array(each, _is_lent(each, 0) if sums is None else id(each) in sums):
                    return False
            elif not _is_fixed(each):
                return False
        for cell in fun.__closure__ or ():
            try:
                held = cell.cell_contents
            except ValueError:
                return False
            if type(held) is np.ndarray:
                alone = 0 if getrefcount(cell) > IN_A_CONTAINER else _IN_A_CELL
                if not self._has_array(held, _is_lent(held, alone) if sums is None else id(held) in sums):
                    return False
            elif type(held) in _NUMBERS:
                parts.append(held)
            else:
                return False
        return True

    def _has_array(self, held: Array, is_lent: bool) -> bool:
        """Add an array, with a sum of it where others may write into it; return whether it is small then."""
        if is_lent:
            if held.dtype.hasobject or held.nbytes > SMALL:
                return False
            self._sums[id(held)] = checksum(held)
        self._parts.append(held)
        return True


def _is_fixed(part: Any) -> bool:
    """Return whether something is what it always is: a number, a module or a class of others, a function in C."""
    cls: Any = type(part)  # not `isinstance`, which asks the object for its class, too
    if cls in _NUMBERS or issubclass(cls, _FIXED):
        return True
    if issubclass(cls, ModuleType):
        return is_installed(part.__name__)
    if issubclass(cls, type):
        return is_installed(part.__module__)
    return cls is BuiltinFunctionType and (part.__self__ is None or isinstance(part.__self__, _HOMES))


def _look_at(fun: object) -> Picture | None:
    """Return what a function reads, as it is now; None where that is too much to be looked at."""
    own = set[int]()
    _note_own(fun, own, set())
    inside = ByName(opened_in_full)
    reach = inside.reach(fun, MOST)
    if reach.is_full:
        return None
    picture = Picture(reach, Detail(inside, functools.partial(_numbers_in, own)))
    picture.add(reach.held | reach.named)
    return picture


def _is_a_log(picture: Picture, key: Key) -> bool:
    """Return whether what has changed is a list into which only texts came since."""
    number, name = key
    if name is not WHOLE or kind_of(type(picture.known[number].part)) is not SERIES:
        return False
    noted = picture.known[number]
    before, now = ([each for each in held.rest if type(each) is not str] for held in (noted.held, noted.now()))
    return len(before) == len(now) and all(map(operator.is_, before, now))


def _note_own(fun: object, own: set[int], seen: set[int]) -> None:
    """Note the arrays that variables of a function alone hold, and of functions in these."""
    if type(fun) is not FunctionType or id(fun) in seen:
        return
    seen.add(id(fun))
    for cell in fun.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # a variable without a value
            continue
        if type(held) is not np.ndarray:
            _note_own(held, own, seen)
        # Functions that share a variable, as what is around them does, hold the same thing.
        elif not _is_lent(held, 0 if getrefcount(cell) > IN_A_CONTAINER else _IN_A_CELL):
            own.add(id(held))


def _numbers_in(own: Container[int], part: Any) -> object:
    """Return what others may change in a part that is no part of it; of what is large nothing is like it."""
    cls = type(part)
    if issubclass(cls, np.ndarray) and not part.dtype.hasobject:
        if id(part) in own or not _is_lent(part, 0):
            return None
        return object() if part.nbytes > SMALL else checksum(np.ndarray.view(part, np.ndarray))
    return object() if kind_of(cls) is INSTANCE and is_closed_to_us(cls) and _is_large(part) else numbers_in(part)


def _is_large(part: object) -> bool:
    """Return whether to look at all that is in a table or a buffer takes longer than most functions."""
    if issubclass(type(part), bytearray | memoryview):
        return _length(part) > SMALL
    return library_of(part) is not None and not getattr(part, "size", SMALL) <= SMALL // 8


def _length(part: Any) -> int:
    try:
        return len(part)
    except ValueError:  # of a view of memory that was released
        return 0


def _is_lent(part: Array, alone: int) -> bool:
    """Return whether others may write into an array that a function reads: not into what it holds alone, so often."""
    if not part.flags.writeable:
        return part.base is not None and is_written_elsewhere(part)
    return getrefcount(part) > alone or not is_own(part)


def _holders_in_a_cell() -> int:
    """Return what Python counts there for an array that one variable of one function has."""
    counts = list[int]()

    def count(part: object) -> None:
        counts.append(getrefcount(part))

    def made() -> Any:
        alone = np.empty(0)
        return lambda: alone

    for cell in made().__closure__:
        held = cell.cell_contents
        count(held)
    return counts[0]


_IN_A_CELL = _holders_in_a_cell()
