"""What a function reads when it is called, and whether it may read something else by now.

A pullback that a function brings along may run after that function was called again, which has filled what it reads:
a work array, an attribute, a dict.

State: `TURNS`, for each thread how often functions were called whose pullbacks may read what the next call fills.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from functools import partial
from sys import getrefcount
from types import BuiltinFunctionType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from dagad._values.homes import is_closed
from dagad._values.names import globals_of, names_in
from dagad._values.work_arrays import IN_A_CALL, is_own


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
DEEPEST = 4  # functions in variables of functions, and so on
LONGEST = 100  # entries of a dict or a list
_CALLED: Any = FunctionType | partial | MethodType
_NUMERIC: Any = np.ndarray | dict | list | float | complex | np.inexact
_NUMBERS = frozenset({float, int, bool, str, np.float64, type(None)})
_FIXED = (
    int,
    float,
    complex,
    str,
    bytes,
    bool,
    type(None),
    np.generic,
    np.dtype,
    type,
    ModuleType,
    BuiltinFunctionType,
)


class Reading:
    """What a function reads beside its arguments, as it is now: variables, attributes, entries of dicts and lists.

    Whether something was bound to another object since is told exactly; in dicts and lists, where programs keep counts
    and texts too, of numbers that are no whole ones. Into arrays that others hold too, and that are not read-only,
    somebody may have written.
    """

    __slots__ = ("_fun", "_has_variables_only", "_parts", "is_lent")

    def __init__(self, fun: object) -> None:
        self._fun = fun
        variables = _variables_of(fun)
        self._has_variables_only = variables is not None
        self._parts, self.is_lent = _read_by(fun) if variables is None else (variables, False)

    def may_differ(self) -> bool:
        """Return whether the function may read something else by now."""
        if self.is_lent:
            return True
        fun: Any = self._fun
        if self._has_variables_only:
            parts = [cell.cell_contents for cell in fun.__closure__ or ()]
        else:
            parts = _read_by(fun)[0]
        return len(parts) != len(self._parts) or not all(map(operator.is_, parts, self._parts))


def _variables_of(fun: object) -> list[Any] | None:
    """Return what a function reads that has numbers and arrays of its own around it, as most do; None for any other."""
    if type(fun) is not FunctionType or fun.__defaults__:
        return None
    scope = fun.__globals__
    for name in globals_of(fun.__code__):
        if name in scope and not isinstance(scope[name], _FIXED):
            return None
    found = list[Any]()
    for cell in fun.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:
            return None
        kind = type(held)
        if kind is np.ndarray:
            if held.flags.writeable and (getrefcount(cell) > IN_A_CALL or getrefcount(held) > IN_A_CALL):
                return None
        elif kind not in _NUMBERS:
            return None
        found.append(held)
    return found


def _read_by(fun: object) -> tuple[list[Any], bool]:
    """Return what a function reads, and whether others may write into an array among it.

    Of an object these are the attributes whose names the function mentions, and those that it does not bind itself.
    """
    found, objects, names = list[Any](), list[tuple[Any, int]](), _Names(set(), set())
    is_lent = False
    functions: list[tuple[Any, int]] = [(fun, 0)]
    while functions or objects:
        part, depth = (functions or objects).pop()
        inner = list[Any]()
        if isinstance(part, FunctionType):
            names.add(part.__code__)
            for cell in part.__closure__ or ():
                try:
                    held = cell.cell_contents
                except ValueError:  # a variable without a value
                    continue
                inner.append(held)
                # Functions that share a variable, as what is around them does, hold the same thing.
                is_lent = is_lent or _is_lent(held, 0 if getrefcount(cell) > IN_A_CALL else _IN_A_CELL)
            scope = part.__globals__
            others = [scope[name] for name in globals_of(part.__code__) if name in scope]
            others += part.__defaults__ or ()
        else:
            others = _parts_of(part, names)
        inner += others
        is_lent = is_lent or any(_is_lent(each, 0) for each in others)
        found += [each for each in inner if not isinstance(each, dict | list)]
        for each in inner if depth < DEEPEST and not is_lent else ():
            if _is_read_through(each):
                (functions if isinstance(each, _CALLED) else objects).append((each, depth + 1))
    return found, is_lent


class _Names(NamedTuple):
    """The names that functions mention, and those of attributes that they bind."""

    read: set[str]
    bound: set[str]

    def add(self, code: CodeType) -> None:
        read, bound = names_in(code)
        self.read.update(read)
        self.bound.update(bound)

    def add_methods(self, kind: type[Any]) -> None:
        """Add those of the methods of a class that are mentioned."""
        for name in list(self.read):
            method = getattr(kind, name, None)
            if isinstance(method, FunctionType):
                self.add(method.__code__)


def _parts_of(part: object, names: _Names) -> list[Any]:
    """Return what a function may read of something: numbers of containers, and attributes."""
    if isinstance(part, dict | list):
        values = list(part.values() if isinstance(part, dict) else part)[:LONGEST]
        return [each for each in values if isinstance(each, _NUMERIC)]
    if isinstance(part, partial):
        return [part.func, *part.args, *part.keywords.values()]
    if isinstance(part, MethodType):
        return [part.__func__, part.__self__]
    names.add_methods(type(part))
    return [each for name, each in _attributes(part).items() if name in names.read and name not in names.bound]


def _attributes(part: object) -> dict[str, Any]:
    """Return the attributes of an object, those in slots too, and what its class has for all objects to fill."""
    found = dict[str, Any]()
    for cls in reversed(type(part).__mro__):
        for name, value in vars(cls).items():
            if isinstance(value, MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # without a value
                    found[name] = value.__get__(part)
            elif isinstance(value, _NUMERIC):
                found[name] = value
    return found | getattr(part, "__dict__", {})


def _is_lent(part: object, alone: int) -> bool:
    """Return whether others may write into an array that a function reads: not into what it holds alone, so often."""
    return type(part) is np.ndarray and part.flags.writeable and (getrefcount(part) > alone or not is_own(part))


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


def _is_read_through(part: object) -> bool:
    if isinstance(part, _FIXED) or isinstance(part, np.ndarray):
        return False
    if isinstance(part, dict | list):
        return True
    if isinstance(part, _CALLED):
        return not is_closed(str(getattr(part, "__module__", "")).partition(".")[0])
    return not is_closed(type(part).__module__.partition(".")[0])
