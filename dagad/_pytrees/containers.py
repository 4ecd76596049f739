"""Containers, weak ones and views too: what they carry, and how one like it is made; and the kind of each class."""

from __future__ import annotations

import collections
import functools
import gc
import weakref
from types import BuiltinFunctionType, CellType, FunctionType, MappingProxyType, MethodType, MethodWrapperType
from typing import Any

import numpy as np

from dagad._pytrees.copies import (
    OPAQUE,
    BuiltinMethod,
    Cell,
    Descriptor,
    Function,
    Instance,
    Kind,
    Method,
    Opaque,
    Partial,
    attributes_of,
    set_attributes,
)

_DICTS = (collections.OrderedDict, collections.defaultdict, dict)
_SERIES = (list, collections.deque, set, tuple, frozenset)


def _base_of(obj: Any, bases: tuple[type, ...]) -> Any:
    """Return the type written in C that a container derives from: its methods do as told."""
    kind = type(obj)
    return kind if kind in bases else next(base for base in bases if issubclass(kind, base))


class Mapping(Kind):
    """A dict or what derives from it: keys, which may carry something too, then values."""

    @staticmethod
    def rest(obj: Any) -> list[Any]:
        base = _base_of(obj, _DICTS)
        factory = [obj.default_factory] if base is collections.defaultdict else []
        return [*base.keys(obj), *base.values(obj), *factory, *attributes_of(obj)[1]]

    @staticmethod
    def fixed(obj: Any) -> Any:
        base = _base_of(obj, _DICTS)
        return type(obj), attributes_of(obj)[0], base.__len__(obj), base

    @staticmethod
    def make(fixed: Any, first: list[Any]) -> Any:
        return fixed[3].__new__(fixed[0])

    @staticmethod
    def finish(made: Any, fixed: Any, rest: list[Any]) -> None:
        _, keys, size, base = fixed
        for key, value in zip(rest[:size], rest[size : 2 * size], strict=True):
            base.__setitem__(made, key, value)  # not `update`: a Counter's adds
        end = 2 * size
        if base is collections.defaultdict:
            made.default_factory = rest[end]
            end += 1
        set_attributes(made, keys, rest[end:])

    @staticmethod
    def label(obj: Any, index: int) -> str:
        size = len(obj)
        if index < size:
            return "a key of {}"
        if index < 2 * size:
            return f"[{list(_base_of(obj, _DICTS).keys(obj))[index - size]!r}] of {{}}"
        index -= 2 * size
        if isinstance(obj, collections.defaultdict):
            index -= 1
        return "the default of {}" if index < 0 else Kind.label(obj, index)


class Series(Kind):
    """A list, deque or set, or what derives from them."""

    @staticmethod
    def rest(obj: Any) -> list[Any]:
        return [*_base_of(obj, _SERIES).__iter__(obj), *attributes_of(obj)[1]]

    @staticmethod
    def fixed(obj: Any) -> Any:
        base = _base_of(obj, _SERIES)
        return type(obj), attributes_of(obj)[0], base.__len__(obj), base, getattr(obj, "maxlen", None)

    @staticmethod
    def make(fixed: Any, first: list[Any]) -> Any:
        cls, _, _, base, longest = fixed
        made = base.__new__(cls)
        if base is collections.deque:
            base.__init__(made, (), longest)
        return made

    @staticmethod
    def finish(made: Any, fixed: Any, rest: list[Any]) -> None:
        _, keys, size, base, _ = fixed
        (base.update if base is set else base.extend)(made, rest[:size])
        set_attributes(made, keys, rest[size:])

    @staticmethod
    def label(obj: Any, index: int) -> str:
        return "an item of {}" if index < len(obj) else Kind.label(obj, index - len(obj))


class Fixed(Kind):
    """A tuple or frozenset, or what derives from them: made of its items, and given attributes afterwards."""

    @staticmethod
    def first(obj: Any) -> list[Any]:
        return list(_base_of(obj, _SERIES).__iter__(obj))

    @staticmethod
    def fixed(obj: Any) -> Any:
        return type(obj), attributes_of(obj)[0], _base_of(obj, _SERIES)

    @staticmethod
    def make(fixed: Any, first: list[Any]) -> Any:
        return fixed[2].__new__(fixed[0], first)

    @staticmethod
    def label(obj: Any, index: int) -> str:
        return Series.label(obj, index)


class Array(Kind):
    """An array of objects; of a subclass of arrays, the attributes."""

    @staticmethod
    def rest(obj: Any) -> list[Any]:
        items = list(obj.view(np.ndarray).flat) if obj.dtype.kind == "O" else []
        return [*items, *attributes_of(obj)[1]]

    @staticmethod
    def fixed(obj: Any) -> Any:
        numbers = None if obj.dtype.kind == "O" else obj.view(np.ndarray)
        return type(obj), attributes_of(obj)[0], obj.shape, numbers

    @staticmethod
    def make(fixed: Any, first: list[Any]) -> Any:
        cls, _, shape, numbers = fixed
        made = np.empty(shape, object) if numbers is None else numbers
        return made if cls is np.ndarray else made.view(cls)

    @staticmethod
    def finish(made: Any, fixed: Any, rest: list[Any]) -> None:
        plain = made.view(np.ndarray)
        size = plain.size if fixed[3] is None else 0
        for place in range(size):
            plain.flat[place] = rest[place]
        set_attributes(made, fixed[1], rest[size:])

    @staticmethod
    def label(obj: Any, index: int) -> str:
        size = obj.size if obj.dtype.kind == "O" else 0
        return "an item of {}" if index < size else Kind.label(obj, index - size)


class Weak(Kind):
    """A `weakref.ref`: to the copy of what it refers to, which others hold."""

    @staticmethod
    def first(obj: Any) -> list[Any]:
        return [obj()]

    @staticmethod
    def rest(obj: Any) -> list[Any]:
        return []

    @staticmethod
    def fixed(obj: Any) -> Any:
        return weakref.ref, ()

    @staticmethod
    def make(fixed: Any, first: list[Any]) -> Any:
        return weakref.ref(first[0])

    @staticmethod
    def label(obj: Any, index: int) -> str:
        return "what {} refers to"


class WeakKeys(Kind):
    """A `weakref.WeakKeyDictionary`."""

    @staticmethod
    def rest(obj: Any) -> list[Any]:
        items = list(obj.items())
        return [*(key for key, _ in items), *(item for _, item in items)]

    @staticmethod
    def fixed(obj: Any) -> Any:
        return weakref.WeakKeyDictionary, ()

    @staticmethod
    def make(fixed: Any, first: list[Any]) -> Any:
        return weakref.WeakKeyDictionary()

    @staticmethod
    def finish(made: Any, fixed: Any, rest: list[Any]) -> None:
        half = len(rest) // 2
        made.update(zip(rest[:half], rest[half:], strict=True))

    @staticmethod
    def label(obj: Any, index: int) -> str:
        return "an item of {}"


class Proxy(Kind):
    """A `types.MappingProxyType`."""

    @staticmethod
    def first(obj: Any) -> list[Any]:
        return gc.get_referents(obj)  # the mapping itself: others may hold it too

    @staticmethod
    def rest(obj: Any) -> list[Any]:
        return []

    @staticmethod
    def fixed(obj: Any) -> Any:
        return MappingProxyType, ()

    @staticmethod
    def make(fixed: Any, first: list[Any]) -> Any:
        return MappingProxyType(*first)

    @staticmethod
    def label(obj: Any, index: int) -> str:
        return "{}"


class Cached(Kind):
    """A function with a `functools.lru_cache`; its copy begins with nothing remembered."""

    @staticmethod
    def first(obj: Any) -> list[Any]:
        return [obj.__wrapped__]

    @staticmethod
    def rest(obj: Any) -> list[Any]:
        return []

    @staticmethod
    def fixed(obj: Any) -> Any:
        return obj.cache_parameters(), ()

    @staticmethod
    def make(fixed: Any, first: list[Any]) -> Any:
        return functools.lru_cache(**fixed[0])(first[0])

    @staticmethod
    def label(obj: Any, index: int) -> str:
        return "{}"


_EXACT: dict[type, type[Kind]] = {
    FunctionType: Function,
    CellType: Cell,
    functools.partial: Partial,
    MethodType: Method,
    BuiltinFunctionType: BuiltinMethod,
    MethodWrapperType: BuiltinMethod,
    type(functools.lru_cache(abs)): Cached,
    weakref.WeakKeyDictionary: WeakKeys,
    MappingProxyType: Proxy,
    weakref.ref: Weak,
    **dict.fromkeys(OPAQUE, Opaque),
    np.ndarray: Array,
    **dict.fromkeys((*_DICTS, collections.Counter), Mapping),
    **dict.fromkeys(_SERIES[:3], Series),
    **dict.fromkeys(_SERIES[3:], Fixed),
    **dict.fromkeys(
        (
            property,
            staticmethod,
            classmethod,
            functools.cached_property,
            functools.partialmethod,
            functools.singledispatchmethod,
        ),
        Descriptor,
    ),
}
_BASES: tuple[tuple[Any, type[Kind]], ...] = (
    (_DICTS, Mapping),
    (_SERIES[:3], Series),
    (_SERIES[3:], Fixed),
    (functools.partial, Partial),
    (np.ndarray, Array),
    (BaseException, Opaque),
    ((property, staticmethod, classmethod, functools.cached_property), Descriptor),
)

_ALL_BASES = tuple(base for bases, _ in _BASES for base in (bases if isinstance(bases, tuple) else (bases,)))


def kind_of(cls: type) -> type[Kind]:
    """Return the kind of the instances of a class."""
    found = _EXACT.get(cls)
    if found is None and issubclass(cls, _ALL_BASES):
        return next(kind for bases, kind in _BASES if issubclass(cls, bases))
    return found or Instance
