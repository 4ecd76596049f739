"""Is this the function that was met before? By all that it consists of, or by its code, where it is defined again.

A function that is sent once and called often must be sent again when anything that it carries has changed. What can't
change is compared by identity; where a function carries anything that can, there is no fingerprint: pickle and compare.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import numpy as np

from dagad._pytrees.digest import is_installed, is_jitted, jitted_parts
from dagad._pytrees.kinds import MAPPING, SERIES, WHOLE, contents_of, kind_of
from dagad._pytrees.partition import Partition
from dagad._pytrees.pytree import TreeDef, may_hold_metadata, metadata_of
from dagad._pytrees.shipping import NOT_STATE, Portable, is_importable, is_imported
from dagad._pytrees.walk import imports_of, is_wrapper, used_in

_VALUES = frozenset({int, float, complex, str, bytes, bool, np.float64, np.float32, np.int64, np.bool_})
_ATOMS = _VALUES | {type(None), type(Ellipsis), CodeType, np.ufunc, np.dtype}
# Bound ones are made anew whenever they are looked up.
_HAVE_A_NAME = (type, FunctionType, type(np.sum))
_BY_NAME = (BuiltinFunctionType, MethodWrapperType, MethodDescriptorType, np.ufunc, type(np.sum))
_LONG = (MAPPING, SERIES)  # they may be: pickled and compared that is quicker
MOST = 32  # functions that an identity looks at, each once


class _MutableError(Exception):
    """Something was found that may change."""


def fingerprint(*parts: Any, here: bool = False) -> tuple[Any, ...] | None:
    """Return what parts consist of, to be compared by `same`; None if something in them can change.

    What another process finds under its name goes by its name; with `here` only what belongs to an installed package:
    what others would not see of the globals of a module may change in this process.
    """
    atoms: list[Any] = []
    look = _is_of_a_package if here else _goes_by_name
    try:
        for part in parts:
            _take((part,), atoms, {}, look)
    except _MutableError:
        return None
    return tuple(atoms)


def same(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> bool:
    """Return whether two fingerprints are of the same thing; what may have changed is not."""
    if one is None or other is None or len(one) != len(other):
        return False
    for a, b in zip(one, other, strict=True):
        if a is not b and (type(a) is not type(b) or not _equal(a, b)):
            return False
    return True


def _equal(a: Any, b: Any) -> bool:
    if type(a) in _VALUES:
        return bool(a == b) and repr(a) == repr(b)  # -0.0 equals 0.0 and is another number
    try:
        return isinstance(a, TreeDef) and bool(a == b)
    except Exception:  # of what a record's metadata say of themselves
        return False


def _take(parts: Sequence[Any], atoms: list[Any], seen: dict[int, int], by_name: Callable[[Any], bool]) -> None:
    for part in parts:
        kind = type(part)
        if kind in _ATOMS:
            atoms.append(part)
        elif kind is tuple:
            atoms += kind, len(part)  # or (1, (2,)) would be ((1,), 2)
            _take(part, atoms, seen, by_name)
        elif kind is functools.partial:
            atoms += kind, len(part.keywords), len(part.__dict__)
            _take((part.func, part.args, *part.keywords.items(), *part.__dict__.items()), atoms, seen, by_name)
        elif kind is TreeDef:
            atoms.append(part)
            if may_hold_metadata(part):
                _take(metadata_of(part), atoms, seen, by_name)
        elif kind is Partition:
            atoms += kind, len(part.leaves)
            _take((part.treedef, part.positions, *part.leaves), atoms, seen, by_name)
        elif (kind is type or kind is FunctionType) and by_name(part):
            atoms.append(part)
        else:
            _take_one(part, kind, atoms, seen, by_name)


def _take_one(part: Any, kind: Any, atoms: list[Any], seen: dict[int, int], by_name: Callable[[Any], bool]) -> None:
    if isinstance(part, Portable) and by_name(kind):
        atoms.append(kind)
        _take((part.state(),), atoms, seen, by_name)
    elif kind is not FunctionType and by_name(part):
        atoms.append(part)
    elif _holds_nothing(kind) and by_name(kind):
        atoms.append(kind)
    elif is_jitted(part):  # how it is compiled is part of it
        atoms.append(part)
        _take(jitted_parts(part)[:1], atoms, seen, by_name)
    elif id(part) in seen:
        atoms += kind, seen[id(part)]  # which one it is counts too
    else:
        if kind is FunctionType or isinstance(part, type):
            seen[id(part)] = len(seen)
        inside = _inside(part, kind, by_name)
        atoms += kind, len(inside)
        _take(inside, atoms, seen, by_name)


def _holds_nothing(kind: type) -> bool:
    """Return whether instances of a class have room for nothing that travels: those of most engines."""
    if getattr(kind, "travels_empty", False):
        return True
    room = kind.__dictoffset__ or kind.__itemsize__ or kind.__basicsize__ > object.__basicsize__
    return not room and kind is not object


def _inside(part: Any, kind: Any, by_name: Callable[[Any], bool]) -> Sequence[Any]:
    if is_wrapper(kind):
        return (part.fun,)
    held = kind_of(kind)
    if held.is_whole and held not in _LONG and (kind in WHOLE or by_name(kind)):
        return [held.said(part), *held.parts(part)]
    if _is_frozen(kind) and by_name(kind):
        return [getattr(part, field.name) for field in dataclasses.fields(part)]
    if isinstance(part, type):
        return _of_class(part)
    if kind is not FunctionType or part.__dict__:  # autograd's primitives, and whatever else has been decorated
        raise _MutableError
    used = used_in(part.__code__)
    return [
        part.__code__,
        part.__defaults__,
        tuple((part.__kwdefaults__ or {}).items()),
        *(contents_of(cell) for cell in part.__closure__ or ()),
        *(_named if by_name is _goes_by_name else _named_here)(part, used),
    ]


def _of_class(cls: type) -> Sequence[Any]:
    """Return what a class that goes by value consists of."""
    own = [(name, value) for name, value in vars(cls).items() if _counts(name, value)]
    return [cls, type(cls), cls.__bases__, *own]


def _counts(name: str, value: Any) -> bool:
    made = name in NOT_STATE or name == "__doc__" or name.startswith("__dataclass_")
    return not made and not isinstance(value, GetSetDescriptorType | MemberDescriptorType)


def _named(function: FunctionType, used: Iterable[str]) -> Iterator[tuple[str, Any]]:
    scope = function.__globals__
    return ((name, scope[name]) for name in used if name in scope)


def _named_here(function: FunctionType, used: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield what a function means by some names, and what these mean in modules that are nobody's package."""
    scope, seen = function.__globals__, set[int]()
    names_of_modules = imports_of(function.__code__, scope.get("__package__"))
    imported = [sys.modules[name] for name in names_of_modules if name in sys.modules and not is_installed(name)]
    scopes = [scope, *map(vars, imported)]
    for names in scopes:
        seen.add(id(names))
        for name in used:
            found = names.get(name) if name in names else sys.modules.get(name)  # it may be imported in the function
            if not isinstance(found, ModuleType) or is_installed(found.__name__):
                if name in names:
                    yield name, found
            elif id(vars(found)) not in seen:
                scopes.append(vars(found))


def _is_frozen(kind: type) -> bool:
    """Return whether instances are frozen dataclasses with room for their fields only: those of most policies."""
    own = vars(kind)
    return "__dataclass_fields__" in own and own["__dataclass_params__"].frozen and not kind.__dictoffset__


def _goes_by_name(part: Any) -> bool:
    """Return whether another process finds a thing under its name, so that pickling it would not show any change."""
    if isinstance(part, _HAVE_A_NAME):
        return is_importable(part)
    if isinstance(part, BuiltinFunctionType):
        return part.__self__ is None or isinstance(part.__self__, ModuleType)
    return isinstance(part, ModuleType) and is_imported(part.__name__) and sys.modules[part.__name__] is part


def _is_of_a_package(part: Any) -> bool:
    """Return whether a thing goes by its name and belongs to an installed package, so that nobody changes it."""
    if isinstance(part, ModuleType):
        return is_installed(part.__name__)
    if isinstance(part, BuiltinFunctionType):
        return _goes_by_name(part)
    named = isinstance(part, _HAVE_A_NAME) or hasattr(part, "__wrapped__")  # jitted, say
    return named and is_installed(getattr(part, "__module__", None)) and is_importable(part)


def identity_of(fun: Any) -> Hashable:
    """Return what stays the same when a function is defined again: its code, and that of the functions that it holds.

    What a decorator made of two functions differs by what it was made of; what two make of one, by their own code.
    Equal code is the same function, that of a cell that is run again for instance.
    """
    if _is_bare(fun):
        code: Hashable = fun.__code__
        return code  # nearly always
    inner: Any = getattr(fun, "fun", None) if type(fun) is not FunctionType else None  # of what is marked explicit, say
    return (type(fun), inner.__code__) if _is_bare(inner) else _identity(fun, set())


def _is_bare(fun: Any) -> bool:
    """Return whether something is a function that holds no other."""
    return type(fun) is FunctionType and not (fun.__closure__ or fun.__defaults__ or fun.__kwdefaults__ or fun.__dict__)


def _identity(fun: Any, seen: set[int]) -> Hashable:
    kind: Any = type(fun)
    first = not seen
    if id(fun) in seen or len(seen) > MOST:
        return None
    seen.add(id(fun))
    if kind is FunctionType:
        return _with_held(fun.__code__, _held_by(fun), seen)
    if isinstance(fun, _BY_NAME):
        return kind, getattr(fun, "__module__", None), getattr(fun, "__qualname__", getattr(fun, "__name__", None))
    if isinstance(fun, functools.partial):
        return _with_held(kind, (fun.func, *fun.args, *fun.keywords.values()), seen)
    if isinstance(fun, MethodType):
        return _identity(fun.__func__, seen), type(fun.__self__)
    call = getattr(kind, "__call__", None)  # noqa: B004  # the function is wanted, not whether there is one
    code = call.__code__ if isinstance(call, FunctionType) else None
    held = _wrapped_by(fun)
    if code is not None or any(map(callable, held)):
        return _with_held((kind, code), held, seen)
    return _itself(fun) if first else kind


def _held_by(function: FunctionType) -> Sequence[Any]:
    held = [contents for cell in function.__closure__ or () for contents in contents_of(cell)]
    held.extend((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()))
    return [*held, *_wrapped_by(function)] if function.__dict__ else held


def _wrapped_by(fun: Any) -> Sequence[Any]:
    return getattr(fun, "__wrapped__", None), getattr(fun, "fun", None)


def _with_held(own: Hashable, held: Sequence[Any], seen: set[int]) -> Hashable:
    found = [_identity(part, seen) for part in held if callable(part)]
    return (own, *found) if found else own


def _itself(fun: Any) -> Hashable:
    """Return a weak reference to a function that has no code, else its type."""
    kind: Any = type(fun)
    try:
        hash(fun)
        return weakref.ref(fun)
    except TypeError:
        return kind  # type: ignore[no-any-return]  # a class is hashable
