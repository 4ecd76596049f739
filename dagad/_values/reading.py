"""What a function reads when it is called, and whether it may read something else by now.

A pullback that a function brings along may run after that function was called again, which has filled what it reads:
a work array, an attribute, an entry of a dict, whatever holds it.

State: `TURNS`, for each thread how often functions were called whose pullbacks may read what the next call fills.
"""

from __future__ import annotations

import array
import operator
import threading
import zlib
from collections.abc import Mapping
from functools import partial
from sys import getrefcount
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from dagad._types import Array
from dagad._values.bytecode import globals_of, names_in
from dagad._values.canonical import is_written_elsewhere, library_of
from dagad._values.contents import attributes_of
from dagad._values.homes import is_closed, is_installed, root_of
from dagad._values.kinds import INSTANCE, SERIES, kind_of
from dagad._values.reachable import checksum
from dagad._values.work_arrays import IN_A_CONTAINER, is_own


class Turns(threading.local):
    """How often functions that bring their own pullbacks were called in a thread."""

    count = 0

    def next(self) -> tuple[int, int]:
        self.count += 1
        return threading.get_ident(), self.count

    def is_last(self, turn: tuple[int, int]) -> bool:
        """Return whether nobody was called since, as far as this thread knows."""
        return turn == (threading.get_ident(), self.count)


TURNS = Turns()
SMALL = 1 << 16  # bytes whose sum is compared; of more, the function rather runs again
LOOKED_INTO, MOST = 100, 2_000  # entries of a container; parts in all
_BYTES: Any = (bytearray, memoryview, array.array)
_CALLED: Any = (FunctionType, partial, MethodType)
_HOMES: Any = (ModuleType, type)
_NUMBERS = frozenset({float, int, bool, str, np.float64, type(None)})
_FIXED: Any = (int, float, complex, str, bytes, np.generic, np.dtype, np.ufunc, type(np.sum))
_HOLDERS = frozenset({"_thread", "queue", "collections", "types", "scipy"})  # whose objects are all attributes


class Reading:
    """What a function reads beside its arguments, as it is now: variables, attributes, entries, numbers in arrays.

    Of an object these are the attributes whose names the function mentions, and those that it does not bind itself: a
    count of its calls is none. Arrays that nobody else holds, and read-only ones, are what they were.
    """

    __slots__ = ("_fun", "_parts", "_picture")

    def __init__(self, fun: object) -> None:
        self._fun, self._parts, self._picture = fun, list[Any](), None
        if not _has_variables_only(fun, self._parts):  # as most do
            self._picture = _Picture(fun, None)

    def may_differ(self) -> bool:
        """Return whether the function may read something else by now."""
        if self._picture is not None:
            return self._picture.is_lent or _Picture(self._fun, self._picture).states != self._picture.states
        parts = list[Any]()
        is_alike = _has_variables_only(self._fun, parts, again=True) and len(parts) == len(self._parts)
        return not is_alike or not all(map(operator.is_, parts, self._parts))


def _has_variables_only(fun: object, found: list[Any], *, again: bool = False) -> bool:
    """Return whether a function reads numbers, and arrays of its own, that variables have around it; and find them.

    Helpers count as variables, and so do those of helpers. What was looked at before may have more holders by now.
    """
    if type(fun) is not FunctionType or fun.__defaults__ or fun.__kwdefaults__ or fun.__dict__:
        return False
    scope = fun.__globals__
    for name in globals_of(fun.__code__):
        each: Any = scope.get(name)
        kind = type(each)
        if kind is ModuleType:  # nearly always
            if not is_installed(each.__name__):
                return False
        elif kind in _NUMBERS:
            found.append(each)
        elif kind is FunctionType:
            if not any(each is one for one in found):
                found.append(each)
                if not _has_variables_only(each, found, again=again):
                    return False
        elif not _is_fixed(each):
            return False
    for cell in fun.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:
            return False
        if type(held) is np.ndarray:
            if not again and held.flags.writeable:
                if getrefcount(cell) > IN_A_CONTAINER or getrefcount(held) > IN_A_CONTAINER:
                    return False
            elif not again and held.base is not None and is_written_elsewhere(held):
                return False
        elif type(held) not in _NUMBERS:
            return False
        found.append(held)
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


class _Picture:
    """What a function reads, by the `id` of what holds it, and sums of numbers into which others may write.

    `before` is an earlier one of the same function: it knows into which arrays others could write then.
    """

    __slots__ = ("_before", "_bound", "_kept", "_own", "_read", "is_lent", "states")

    def __init__(self, fun: object, before: _Picture | None) -> None:
        self.states, self.is_lent, self._before = dict[int, tuple[int | None, tuple[int, ...]]](), False, before
        self._kept = list[Any]()  # or another object might come to stand at the same address
        self._read, self._bound, self._own = set[str](), set[str](), set[int]()
        functions, others = [fun], list[Any]()
        while functions or others:
            part = (functions or others).pop()  # functions first: they say which attributes are read
            if type(part) in _NUMBERS or id(part) in self.states or _is_fixed(part):
                continue
            try:
                numbers, inner = self._look(part)
            except Exception:  # by code of others', which must not stop a gradient
                self.is_lent = True
                return
            self.states[id(part)] = numbers, tuple(map(id, inner))
            self._kept += part, inner
            for each in inner[:LOOKED_INTO]:
                (functions if issubclass(type(each), _CALLED) else others).append(each)
            if len(self.states) > MOST:
                self.is_lent = True
                return

    def _look(self, part: Any) -> tuple[int | None, list[Any]]:
        """Return a sum of the numbers that others may write in a part, and what it holds that may be read."""
        cls: Any = type(part)
        if issubclass(cls, np.ndarray) and not part.dtype.hasobject:
            return self._sum_of(part), []
        if cls is FunctionType:
            return None, self._of_function(part)
        if issubclass(cls, _HOMES):
            return None, self._by_name(vars(part))
        if issubclass(cls, _BYTES):
            self.is_lent = self.is_lent or len(part) > SMALL
            return zlib.crc32(part.tobytes() if hasattr(part, "tobytes") else part), []
        kind = kind_of(cls)
        if kind is INSTANCE:
            return None, self._of_object(part)
        self.is_lent = self.is_lent or hasattr(cls, "__next__")  # where it stands can't be seen
        inner = list(kind.parts(part))
        if kind is SERIES:
            inner = [each for each in inner if type(each) is not str]  # a log
        return None, inner

    def _sum_of(self, array: Array) -> int | None:
        key = id(array)
        before = None if self._before is None else self._before.states.get(key)
        is_lent = (key not in self._own and _is_lent(array, 0)) if before is None else before[0] is not None
        if not is_lent:
            return None
        if array.nbytes > SMALL:
            self.is_lent = True
            return 0
        return checksum(array.view(np.ndarray))

    def _of_function(self, fun: FunctionType) -> list[Any]:
        if is_closed(str(fun.__module__).partition(".")[0]):
            return []
        self._add(fun.__code__)
        found = list[Any]()
        for cell in fun.__closure__ or ():
            try:
                held = cell.cell_contents
            except ValueError:  # a variable without a value
                continue
            found.append(held)
            # Functions that share a variable, as what is around them does, hold the same thing.
            if type(held) is np.ndarray and not _is_lent(held, 0 if getrefcount(cell) > IN_A_CONTAINER else _IN_A_CELL):
                self._own.add(id(held))
        for more in (fun.__defaults__, (fun.__kwdefaults__ or {}).values(), vars(fun).values()):
            found += more or ()
        scope = fun.__globals__
        return found + [scope[name] for name in globals_of(fun.__code__) if name in scope]

    def _of_object(self, part: Any) -> list[Any]:
        cls, root = type(part), root_of(type(part))
        if issubclass(cls, threading.local):
            return list(part.__dict__.values())  # of this thread
        if root in _HOLDERS:
            return list(attributes_of(part)[1])
        if is_closed(root):
            self.is_lent = self.is_lent or library_of(part) is not None
            return []
        for name in list(self._read):
            method = getattr(cls, name, None)
            method = getattr(method, "fget", method)
            if isinstance(method, FunctionType):
                self._add(method.__code__)
        return [*self._by_name(dict(zip(*_named(part), strict=True))), cls]

    def _add(self, code: CodeType) -> None:
        read, bound = names_in(code)
        self._read.update(read)
        self._bound.update(bound)

    def _by_name(self, members: Mapping[str, Any]) -> list[Any]:
        return [each for name, each in list(members.items()) if name in self._read and name not in self._bound]


def _named(part: object) -> tuple[list[str], list[Any]]:
    keys, values = attributes_of(part)
    return [key if isinstance(key, str) else key[1] for key in keys], values


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
        inner = [held]
        count(held)
        del inner
    return counts[0]


_IN_A_CELL = _holders_in_a_cell()
