"""What a function remembers of a run: told from what it carried before, where it is going to be run again.

A run that traces nothing leaves plain numbers in the caches of a function. A run that is recorded later would take them
for constants, and the gradient would be wrong without a word. (A recorded run leaves traced values, which are refused.)
A list that the function only appends to is a log: it never reads what it wrote there. Arrays that can be written to are
compared by their numbers, long ones by samples. A function that brings its own derivative is never recorded, and may
remember what it likes.
"""

from __future__ import annotations

import array
import collections
import dis
import functools
import itertools
import numbers
from collections.abc import Iterable, Iterator, Sequence
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from dagad._errors import ClosureError
from dagad._pytrees.kinds import contents_of, kind_of
from dagad._pytrees.pytree import TRACED
from dagad._pytrees.walk import Walk, codes, may_be_walked, names_of
from dagad._words import a

SAMPLE, MOST_BUFFERS = 1024, 1024  # numbers of an array that are looked at, and arrays
MOST_PARTS = 10_000  # of a value that is new; one of more is taken to hold numbers
_NOTHING = object()
_APPENDS = frozenset({"append", "appendleft", "extend"})
_LOADS = frozenset({"LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF"})


class Memory:
    """What a function carries, and what it reaches by name."""

    def __init__(self, fun: Any) -> None:
        walk = Walk(fun)
        # Held until they are compared, or an id could come again.
        carried = [(obj, _parts_of(obj)) for obj in walk.carried()]
        held = {id(part) for obj, parts in carried if type(obj) is not CellType for part in parts}
        held.update(id(part) for space, names in walk.scopes() for part in _named(space, names))
        logs = _logs(obj for obj, _ in carried if type(obj) is FunctionType) - held
        self._objects = [(obj, parts) for obj, parts in carried if id(obj) not in logs]
        self._objects.extend((obj, _parts_of(obj)) for obj in walk.standard())
        self._spaces = [(space, names, _named(space, names)) for space, names in walk.spaces()]
        everything = (parts for held in (self._objects, self._spaces) for *_, parts in held)
        found = {id(part): part for parts in everything for part in parts if _is_buffer(part)}
        self._buffers = [(part, _numbers_in(part)) for part in itertools.islice(found.values(), MOST_BUFFERS)]

    def refuse_changes(self) -> None:
        """Raise if numbers were put anywhere since."""
        for obj, before in self._objects:
            self._refuse(before, _parts_of(obj), a(type(obj).__name__))
        for space, names, before in self._spaces:
            self._refuse(before, _named(space, names), "a variable or attribute of a module or a class")
        for buffer, before in self._buffers:
            if _numbers_in(buffer) != before:
                raise _kept(f"the memory of {a(type(buffer).__name__)}")

    def _refuse(self, before: Sequence[Any], after: Sequence[Any], where: str) -> None:
        if len(before) == len(after) and all(a is b for a, b in zip(before, after, strict=True)):
            return
        known = set(map(id, before))
        if any(id(part) not in known and _holds_numbers(part) for part in after):
            raise _kept(where)


def _kept(where: str) -> ClosureError:
    return ClosureError(
        f"A chunk function keeps numbers from one run for the next, in {where}, and a gradient by `Recompute()` runs "
        "it again: they would be constants then. Let it keep nothing and pass values as shared arguments, or take "
        "`policy=dagad.extend.Keep()`."
    )


def _is_buffer(part: Any) -> bool:
    """Return whether something is a piece of memory that numbers can be written into."""
    if isinstance(part, np.ndarray):
        return part.flags.writeable and part.dtype.kind in "fc"
    return isinstance(part, array.array | memoryview) and not memoryview(part).readonly


def _numbers_in(buffer: Any) -> bytes:
    """Return the numbers in a buffer; of a long one every so many, and the last."""
    held = np.asarray(buffer)
    step = -(-held.size // SAMPLE) or 1
    return held.flat[::step].tobytes() + held.flat[-1:].tobytes()


def _logs(functions: Iterable[FunctionType]) -> set[int]:
    """Return the ids of lists that functions append to, each by a variable of its own, and never read."""
    appended, read = set[int](), set[int]()
    for function in functions:
        for name, value in _variables(function):
            if type(value) in (list, collections.deque):
                (appended if _only_appends(function.__code__, name) else read).add(id(value))
    return appended - read


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        for contents in contents_of(cell):
            yield name, contents
    for name in names_of(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


@functools.lru_cache(maxsize=1024)
def _only_appends(code: CodeType, name: str) -> bool:
    """Return whether a function appends to a variable, and does nothing else with what may be called so."""
    appends = False
    for each in codes(code):
        if name in each.co_consts:  # `globals()["name"]`, say
            return False
        for load, use in itertools.pairwise(dis.get_instructions(each)):
            if load.argval == name and load.opname in _LOADS:
                appends = use.opname in ("LOAD_METHOD", "LOAD_ATTR") and use.argval in _APPENDS
                if not appends:
                    return False
    return appends


def _named(space: Any, names: Sequence[str]) -> list[Any]:
    return [space.get(name, _NOTHING) for name in names]


def _parts_of(obj: Any) -> Sequence[Any]:
    """Return what an object holds; of one of the standard library, such as a `threading.local`, what that holds too."""
    parts = kind_of(type(obj)).parts(obj)
    return parts if may_be_walked(type(obj)) else [*parts, *itertools.chain(*map(_inner, parts))]


def _inner(part: Any) -> Sequence[Any]:
    return kind_of(type(part)).parts(part) if isinstance(part, dict | list | collections.deque) else ()


def _holds_numbers(value: Any) -> bool:
    """Return whether there is something in a value that may depend on others; counts and words may be kept."""
    stack, seen = [value], set[int]()
    while stack:
        part = stack.pop()
        if isinstance(part, numbers.Number) and not isinstance(part, numbers.Integral):
            return True
        if type(part) in TRACED or len(seen) > MOST_PARTS:
            return True
        if isinstance(part, np.ndarray) and part.dtype.kind != "O":
            if part.dtype.kind in "fc":
                return True
        elif id(part) not in seen and not isinstance(part, type | ModuleType) and may_be_walked(type(part)):
            seen.add(id(part))
            stack.extend(kind_of(type(part)).parts(part))
    return False


def value_to_run_again(function: Any, args: Sequence[Any]) -> Any:
    """Return the value of a function that will be recorded later, if it keeps nothing."""
    if getattr(getattr(function, "engine", None), "may_remember", False):
        return function.value(*args)
    memory = Memory(function)
    value = function.value(*args)
    memory.refuse_changes()
    return value
