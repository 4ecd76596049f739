"""Has a function changed since it was sent? Told without pickling it, where nothing in it can change.

A function that is sent once and called often must be sent again when anything that it carries has changed. What can't
change is compared by identity; where a function carries anything that can, the answer is `None`: pickle and compare.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import numpy as np

from dagad._pytrees import pytree
from dagad._pytrees.kinds import contents_of
from dagad._pytrees.partition import Partition
from dagad._pytrees.walk import codes, is_wrapper

_VALUES = frozenset({int, float, complex, str, bytes, bool, np.float64, np.float32, np.int64, np.bool_})
_ATOMS = frozenset({type(None), type(Ellipsis), CodeType, np.ufunc, np.dtype})


class _MutableError(Exception):
    """Something was found that may change."""


def snapshot(*parts: Any) -> tuple[Any, ...] | None:
    """Return what parts consist of, to be compared by `same`; None if something in them can change."""
    atoms: list[Any] = []
    try:
        for part in parts:
            _take(part, atoms, {})
    except _MutableError:
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
    return isinstance(a, pytree.TreeDef) and a == b


def _take(part: Any, atoms: list[Any], seen: dict[int, int]) -> None:
    kind = type(part)
    if kind in _VALUES or kind in _ATOMS or _goes_by_name(part):
        atoms.append(part)
    elif _holds_nothing(kind) and _goes_by_name(kind):
        atoms.append(kind)
    elif kind is Partition:
        atoms.extend((kind, part.treedef))
        _take((part.positions, tuple(part.leaves)), atoms, seen)
    elif kind is FunctionType and id(part) in seen:
        atoms.extend((kind, seen[id(part)]))  # which one it is counts too
    elif kind is FunctionType:
        seen[id(part)] = len(seen)
        _take_all(kind, _carried(part), atoms, seen)
    else:
        _take_all(kind, _inside(part), atoms, seen)


def _holds_nothing(kind: type) -> bool:
    """Return whether instances of a class have no room for anything: those of most engines."""
    room = kind.__dictoffset__ or kind.__itemsize__ or kind.__basicsize__ > object.__basicsize__
    return not room and kind is not object


def _take_all(kind: type, parts: Sequence[Any], atoms: list[Any], seen: dict[int, int]) -> None:
    atoms.extend((kind, len(parts)))  # or (1, (2,)) would be ((1,), 2)
    for part in parts:
        _take(part, atoms, seen)


def _inside(part: Any) -> Sequence[Any]:
    kind = type(part)
    if kind is tuple or kind is frozenset:
        return tuple(part)
    if kind is functools.partial:
        return part.func, part.args, *part.keywords.items()
    if is_wrapper(kind):
        return (part.fun,)
    raise _MutableError


def _goes_by_name(part: Any) -> bool:
    """Return whether another process finds a thing under its name, so that pickling it would not show any change."""
    if isinstance(part, ModuleType):
        return _is_imported(part.__name__) and sys.modules[part.__name__] is part
    if isinstance(part, BuiltinFunctionType):
        return part.__self__ is None or isinstance(part.__self__, ModuleType)
    if not isinstance(part, type | FunctionType | type(np.sum)) or not _is_imported(part.__module__ or ""):
        return False
    return _found(sys.modules[part.__module__], part.__qualname__) is part


def _is_imported(name: str) -> bool:
    by_value = cloudpickle.list_registry_pickle_by_value()
    return name != "__main__" and name in sys.modules and not any(f"{name}.".startswith(f"{one}.") for one in by_value)


def _found(home: Any, path: str) -> Any:
    for name in path.split("."):
        home = getattr(home, name, None)
    return home


def _carried(function: FunctionType) -> list[Any]:
    if function.__dict__:  # autograd's primitives, and whatever else has been decorated
        raise _MutableError
    scope = function.__globals__
    used = {name: None for code in codes(function.__code__) for name in code.co_names}
    return [
        function.__code__,
        function.__defaults__,
        tuple((function.__kwdefaults__ or {}).items()),
        *(contents_of(cell) for cell in function.__closure__ or ()),
        *((name, scope[name]) for name in used if name in scope),
    ]
