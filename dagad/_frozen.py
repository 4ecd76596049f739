"""Has a function changed since it was sent? Told without pickling it, where nothing in it can change.

A function that is sent once and called often must be sent again when anything that it carries has changed. What can't
change is compared by identity; where a function carries anything that can, the answer is `None`: pickle and compare.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from dagad import _tree
from dagad._closures import codes
from dagad._engines.autograd import AutogradEngine
from dagad._engines.explicit import Explicit, ExplicitEngine
from dagad._items import ExplicitItemSum, ItemSum
from dagad._templates import contents_of

_VALUES = frozenset({int, float, complex, str, bytes, bool, np.float64, np.float32, np.int64, np.bool_})
_ATOMS = frozenset(
    {type(None), type, ModuleType, BuiltinFunctionType, np.ufunc, np.dtype, type(np.sum), type(Ellipsis)}
)


class _Mutable(Exception):
    """Something was found that may change."""


def snapshot(*parts: Any) -> tuple[Any, ...] | None:
    """Return what parts consist of, to be compared by `same`; None if something in them can change."""
    atoms: list[Any] = []
    try:
        for part in parts:
            _take(part, atoms, set())
    except _Mutable:
        return None
    return tuple(atoms)


def same(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> bool:
    """Return whether two snapshots are of the same thing; what may have changed is not."""
    if one is None or other is None or len(one) != len(other):
        return False
    return all(a is b or (type(a) is type(b) and _equal(a, b)) for a, b in zip(one, other, strict=True))


def _equal(a: Any, b: Any) -> bool:
    if type(a) in _VALUES:
        return bool(a == b) and repr(a) == repr(b)  # -0.0 equals 0.0 and is another number
    return isinstance(a, _tree.TreeDef) and a == b


def _take(part: Any, atoms: list[Any], seen: set[int]) -> None:
    kind = type(part)
    if kind in _VALUES or kind in _ATOMS or isinstance(part, type):
        atoms.append(part)
    elif kind in (AutogradEngine, ExplicitEngine):
        atoms.append(kind)
    elif kind is tuple or kind is frozenset:
        atoms.append(len(part))
        for item in part:
            _take(item, atoms, seen)
    elif kind is FunctionType:
        if id(part) not in seen:
            seen.add(id(part))
            _take_function(part, atoms, seen)
    elif kind is functools.partial:
        for item in (part.func, part.args, tuple(part.keywords), tuple(part.keywords.values())):
            _take(item, atoms, seen)
    elif kind is _tree.Form:
        atoms.append(part.treedef)
        _take(part.positions, atoms, seen)
        _take(tuple(part.leaves), atoms, seen)
    elif kind in (Explicit, ItemSum, ExplicitItemSum):
        atoms.append(kind)
        _take(part.fun, atoms, seen)
    else:
        raise _Mutable


def _take_function(function: FunctionType, atoms: list[Any], seen: set[int]) -> None:
    home = sys.modules.get(function.__module__ or "")
    if function.__module__ != "__main__" and _found(home, function.__qualname__) is function:
        atoms.append(function)  # travels by its name
        return
    if function.__dict__:  # autograd's primitives, and whatever else has been decorated
        raise _Mutable
    atoms.append(function.__code__)
    for item in _carried(function):
        _take(item, atoms, seen)


def _found(home: Any, path: str) -> Any:
    for name in path.split("."):
        home = getattr(home, name, None)
    return home


def _carried(function: FunctionType) -> Iterator[Any]:
    yield function.__defaults__ or ()
    yield tuple((function.__kwdefaults__ or {}).items())
    for cell in function.__closure__ or ():
        yield tuple(contents_of(cell))
    scope = function.__globals__
    used = {name: None for code in codes(function.__code__) for name in code.co_names}
    yield tuple((name, scope[name]) for name in used if name in scope)
