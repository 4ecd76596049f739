"""Is this the function that was met before? By all that it consists of, or by its code, where it is defined again.

A function that is sent once and called often must be sent again when anything that it carries has changed. What can't
change is compared by identity; where a function carries anything that can, there is no fingerprint: pickle and compare.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence, Set as AbstractSet
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np

from dagad._values.bytecode import used_in
from dagad._values.code_by_name import References
from dagad._values.contents import contents_of
from dagad._values.homes import goes_by_name, is_installed, is_of_a_package, own, sent_by_value
from dagad._values.kinds import (
    CACHED,
    COMPILED,
    FUNCTION,
    HOMES,
    INSTANCE,
    MAPPING,
    METHOD,
    MODULE,
    PARTIAL,
    SERIES,
    SET,
    UFUNC,
    WRAPPER,
    Kind,
    is_exact,
    kind_of,
)
from dagad._values.names import Scopes
from dagad._values.partition import Partition
from dagad._values.pytree import TreeDef
from dagad._values.shipping import Portable

_VALUES = frozenset({int, float, complex, str, bytes, bool, np.float64, np.float32, np.int64, np.bool_})
_DESCRIPTORS = frozenset({GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType})
_ATOMS = _VALUES | _DESCRIPTORS | {type(None), type(Ellipsis), CodeType, np.dtype}
_BY_NAME = (BuiltinFunctionType, MethodWrapperType, MethodDescriptorType, np.ufunc, type(np.sum))
_NAMELESS = frozenset({functools.partial, TreeDef, Partition, CellType})
_LONG = (MAPPING, SERIES, SET)  # they may be: pickled and compared that is quicker
_THEMSELVES = HOMES | {COMPILED, UFUNC}  # what is in one says less than which one it is
_OF_FUNCTIONS = frozenset({FUNCTION, PARTIAL, WRAPPER, CACHED, COMPILED})
MOST = 32  # functions that an identity looks at, each once


class _MutableError(Exception):
    """Something was found that may change."""


def fingerprint(*parts: Any, here: bool = False) -> tuple[Any, ...] | None:
    """Return what parts consist of, to be compared by `same`; None if something in them can change.

    What another process finds under its name goes by its name; with `here` only what belongs to an installed package:
    what others would not see of the globals of a module may change in this process.
    """
    look = _Look(is_of_a_package if here else goes_by_name, Scopes() if here else None)
    try:
        look.take(parts)
        look.take_named()
    except (_MutableError, RecursionError):  # what can't change may lead back to itself, by an attribute of a partial
        return None
    return tuple(look.atoms)


def same(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> bool:
    """Return whether two fingerprints are of the same thing; what may have changed is not."""
    if one is None or other is None or len(one) != len(other):
        return False
    for a, b in zip(one, other, strict=True):
        # -0.0 equals 0.0 and is another number.
        if a is not b and (type(a) is not type(b) or type(a) not in _VALUES or a != b or repr(a) != repr(b)):
            return False
    return True


def has_same_parts(one: Any, other: Any) -> bool:
    """Return whether what is sent for two things refers to the same objects: at one moment they are alike then.

    That is seen without a look into these objects, whatever may change in them.
    """
    if one is other:
        return True
    cls = type(one)
    if cls is not type(other):
        return False
    if cls is tuple or cls is list:
        return len(one) == len(other) and all(map(has_same_parts, one, other))
    if isinstance(one, Portable):
        return has_same_parts(one.state(), other.state())
    if cls is functools.partial and not (one.__dict__ or other.__dict__):
        return one.func is other.func and not (one.keywords or other.keywords) and has_same_parts(one.args, other.args)
    if cls is Partition:
        is_alike = one.treedef is other.treedef and one.positions == other.positions
        return is_alike and has_same_parts(one.leaves, other.leaves)
    return one == other if cls is int or cls is bool else _holds_nothing(cls)


class _Look:
    """Notes what parts consist of. `by_name` says what goes by its name; `scopes` are modules that do not."""

    __slots__ = ("_by_name", "_by_value", "_referred", "_scopes", "_seen", "atoms")

    def __init__(self, by_name: Callable[[Any, AbstractSet[str]], bool], scopes: Scopes | None) -> None:
        self._by_name, self._by_value, self._scopes = by_name, sent_by_value(), scopes
        self._seen: dict[int, int] = {}
        self._referred = References(self._by_value)
        self.atoms: list[Any] = []

    def take(self, parts: Sequence[Any]) -> None:
        atoms = self.atoms
        for part in parts:
            cls = type(part)
            if cls in _ATOMS:
                atoms.append(part)
            elif cls is tuple:
                atoms += cls, len(part)  # or (1, (2,)) would be ((1,), 2)
                self.take(part)
            elif (inside := None if self._by_value else _parts_of_own(part, cls)) is not None:
                atoms += cls, len(inside)
                self.take(inside)
            elif cls not in _NAMELESS and self._by_name(part, self._by_value):
                atoms.append(part)
                if cls is ModuleType or not is_installed(part.__module__):
                    self._referred.by_name(part)
            else:
                self._open(part, cls, kind_of(cls))

    def take_named(self) -> None:
        """Note what any function may mean in a module that another one hands it."""
        while self._scopes is not None and (fresh := self._scopes.fresh()):
            self.take(fresh)
        self.atoms += self._referred.found() if self._scopes is None else []  # all is looked into where it stays here

    def _open(self, part: object, cls: Any, kind: Kind) -> None:
        atoms, key = self.atoms, id(part)
        if kind is FUNCTION or kind in HOMES:
            if key in self._seen:
                atoms += cls, self._seen[key]  # which one it is counts too
                return
            self._seen[key] = len(self._seen)
        if kind in _THEMSELVES:
            atoms.append(part)
        elif kind is INSTANCE and not is_installed(cls.__module__) and goes_by_name(cls, self._by_value):
            self._referred.by_name(cls)
        inside = self._inside(part, cls, kind)
        atoms += cls, len(inside)
        self.take(inside)

    def _inside(self, part: Any, cls: Any, kind: Kind) -> Sequence[Any]:
        if kind is INSTANCE and self._by_name(cls, self._by_value):
            if isinstance(part, Portable):
                return part.state()
            if _holds_nothing(cls):
                return ()
        elif kind is COMPILED:
            return kind.first(part)
        elif kind is MODULE:
            if self._scopes is None:
                raise _MutableError
            self._scopes.enter(part)
            return ()
        if not self._tells_all(part, cls, kind):
            raise _MutableError
        said, parts = kind.opened(part)
        if kind is FUNCTION:
            used = used_in(part.__code__)
            if self._scopes is not None:
                self._scopes.meet(used)
            named = kind.named(part, used)
            self._referred.by_value(part, used, named)
            return [*said, *parts, *named]
        return [*said, *parts, *kind.named(part, ())]

    def _tells_all(self, part: object, cls: Any, kind: Kind) -> bool:
        """Return whether all that may change of something is in its parts, and these are few."""
        if kind is FUNCTION:
            return not part.__dict__  # autograd's primitives, and whatever else has been decorated
        is_listed = kind.is_whole and kind not in _LONG
        if kind in HOMES or (is_listed and is_exact(cls, kind)):
            return True
        return (is_listed or _is_frozen(cls)) and self._by_name(cls, self._by_value)


def _parts_of_own(part: object, cls: type) -> Sequence[Any] | None:
    """Return the parts of what is of a class of dagad's that every process has under its name; None of others."""
    if isinstance(part, Portable):
        return part.state() if cls.__module__[:6] == "dagad." else None
    return () if getattr(cls, "travels_empty", False) is True and cls.__module__[:6] == "dagad." else None


def _holds_nothing(cls: type) -> bool:
    """Return whether instances of a class have room for nothing that travels: those of most engines."""
    if getattr(cls, "travels_empty", False):
        return True
    room = cls.__dictoffset__ or cls.__itemsize__ or cls.__basicsize__ > object.__basicsize__
    return not room and cls is not object


def _is_frozen(cls: type) -> bool:
    """Return whether instances are frozen dataclasses with room for their fields only: those of most policies."""
    own = vars(cls)
    return "__dataclass_fields__" in own and own["__dataclass_params__"].frozen and not cls.__dictoffset__


def identity_of(fun: Any) -> Hashable:
    """Return what stays the same when a function is defined again: its code, and that of the functions that it holds.

    What a decorator made of two functions differs by what it was made of; what two make of one, by their own code.
    Equal code is the same function, that of a cell that is run again for instance. Classes are referred to weakly, as
    what is remembered of a function outlives it.
    """
    if _is_bare(fun):
        code: Hashable = fun.__code__
        return code  # nearly always
    inner: Any = own(fun, "fun") if type(fun) is not FunctionType else None  # of what is marked explicit, say
    return (weakref.ref(type(fun)), inner.__code__) if _is_bare(inner) else _identity(fun, set())


def _is_bare(fun: object) -> bool:
    """Return whether something is a function that holds no other."""
    return type(fun) is FunctionType and not (fun.__closure__ or fun.__defaults__ or fun.__kwdefaults__ or fun.__dict__)


def _identity(fun: Any, seen: set[int]) -> Hashable:
    cls: Any = type(fun)
    kind, first = kind_of(cls), not seen
    if id(fun) in seen or len(seen) > MOST:
        return None
    seen.add(id(fun))
    if isinstance(fun, _BY_NAME):
        return cls, own(fun, "__module__"), own(fun, "__qualname__", own(fun, "__name__"))
    if kind is METHOD:
        return _identity(fun.__func__, seen), weakref.ref(type(fun.__self__))
    call = fun if kind is FUNCTION else getattr(cls, "__call__", None)  # noqa: B004  # the function is wanted
    code = call.__code__ if isinstance(call, FunctionType) else None
    # Anything else goes by its class, and by what it wraps.
    held = kind.parts(fun) if kind in _OF_FUNCTIONS else (own(fun, "__wrapped__"), own(fun, "fun"))
    found = [_identity(part, seen) for part in _out_of_cells(held) if callable(part)]
    mine: Hashable = code if kind is FUNCTION else (weakref.ref(cls), code)
    if found:
        return mine, *found
    return mine if code is not None or kind is PARTIAL else _itself(fun) if first else weakref.ref(cls)


def _out_of_cells(parts: Sequence[Any]) -> Iterator[Any]:
    for part in parts:
        yield from contents_of(part) if type(part) is CellType else (part,)


def _itself(fun: object) -> Hashable:
    """Return a weak reference to a function that has no code, else to its type."""
    kind: Any = weakref.ref(type(fun))
    try:
        hash(fun)
        return weakref.ref(fun)
    except TypeError:
        return kind  # type: ignore[no-any-return]  # a class is hashable
