"""What an object holds, and how one like it is made with other things in it: a kind for each class, listed at the end.

Objects are made again as `copy` would, but never by code of the user's: neither ``__new__`` nor ``__init__`` nor
``__setattr__`` runs.
"""

from __future__ import annotations

import collections
import enum
import functools
import gc
import itertools
import operator
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import numpy as np

from dagad._errors import ClosureError
from dagad._pytrees.pytree import TreeDef, metadata_of

Parts = Sequence[Any]
Making = tuple[Callable[[Parts], Any], Callable[[Any, Parts], None]]
# An attribute's name; with the class that has the slot, where it is kept in one.
Attribute = str | tuple[type, str]


def _none(obj: Any) -> Parts:
    del obj
    return ()


def _refuse(obj: Any) -> Making:
    raise _no_copy(type(obj), "can't copy")


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What the objects of some classes hold, and how one of them is made again.

    ============  ====================================================================================================
    `first`       object -> the parts that it can't be made without
    `rest`        object -> the parts that may lead back to it, and are put in when it is there
    `making`      object -> how one like it is made of `first`, and how `rest` is put in: both travel
    `labels`      object -> how the user would call them, "{}" stands for the object; or one label for all
    `words`       object -> what it is made of beside its parts: names, mostly
    `attributes`  whether it has attributes of its own, which come after the rest
    `is_whole`    whether it is known again by its parts and words: nothing else is in it
    ============  ====================================================================================================
    """

    first: Callable[[Any], Parts] = _none
    rest: Callable[[Any], Parts] = _none
    making: Callable[[Any], Making] = _refuse
    labels: Callable[[Any], Sequence[str]] | str = "{}"
    words: Callable[[Any], Sequence[Any]] = _none
    attributes: bool = False
    is_whole: bool = False

    def parts(self, obj: Any) -> Parts:
        own = attributes_of(obj)[1] if self.attributes else ()
        return [*self.first(obj), *self.rest(obj), *own]

    def said(self, obj: Any) -> tuple[Any, ...]:
        """Return what tells an object from others of the same parts: how many there are, and what they are called."""
        first, rest = len(self.first(obj)), len(self.rest(obj))
        return first, rest, *self.words(obj), *(attributes_of(obj)[0] if self.attributes else ())

    def label(self, obj: Any, index: int) -> str:
        """Return how the user would call one of the parts."""
        n_parts = len(self.first(obj)) + len(self.rest(obj))
        if index >= n_parts:
            return _attribute_label(attributes_of(obj)[0][index - n_parts])
        return self.labels if isinstance(self.labels, str) else self.labels(obj)[index]


def _no_copy(cls: type, why: str) -> ClosureError:
    return ClosureError(
        f"A value being differentiated is held by a `{cls.__name__}`, which dagad {why}. Pass the value to the "
        "function as a shared argument."
    )


def _made_by(make: Callable[..., Any], parts: Parts) -> Any:
    return make(*parts)


def _made_cached(parameters: dict[str, Any], parts: Parts) -> Any:
    return functools.lru_cache(**parameters)(parts[0])


def _leave(made: Any, parts: Parts) -> None:
    """Put nothing in."""


# Attributes


def attributes_of(obj: Any) -> tuple[list[Attribute], list[Any]]:
    """Return an instance's own attributes, those in slots too: how they are called, and their values."""
    own = getattr(obj, "__dict__", None)
    keys: list[Attribute] = list(own) if own else []
    values: list[Any] = list(own.values()) if own else []
    for cls in type(obj).__mro__:
        if "__slots__" in cls.__dict__:
            for key, slot in cls.__dict__.items():
                if type(slot) is MemberDescriptorType:  # names that begin with two underscores are mangled here
                    try:
                        values.append(slot.__get__(obj))
                    except AttributeError:  # not set
                        continue
                    keys.append((cls, key))
    return keys, values


def set_attributes(made: Any, keys: Sequence[Attribute], values: Sequence[Any]) -> None:
    """Give a new instance its attributes, past descriptors and ``__setattr__``: frozen records too."""
    for key, value in zip(keys, values, strict=True):
        if isinstance(key, str):
            made.__dict__[key] = value
        else:
            key[0].__dict__[key[1]].__set__(made, value)


def _attribute_label(key: Attribute) -> str:
    name = key if isinstance(key, str) else key[1]
    return "{}" if name == "__wrapped__" else f"`{name}` of {{}}"


def _instance_like(obj: Any) -> Making:
    cls = type(obj)
    if issubclass(cls, enum.Enum):
        raise _no_copy(cls, "doesn't copy: there is one only")
    if hasattr(cls, "__del__"):
        raise _no_copy(cls, "doesn't copy: its `__del__` would run for every copy")
    _blank(cls, ())  # refused here rather than in a chunk
    return partial(_blank, cls), _leave


def _blank(cls: type, parts: Parts) -> Any:
    del parts
    try:
        return (SimpleNamespace if issubclass(cls, SimpleNamespace) else object).__new__(cls)
    except TypeError as error:
        raise _no_copy(cls, "can't copy") from error


# Functions, and the variables of their closures; functions that share one go on sharing it


def contents_of(cell: CellType) -> tuple[Any, ...]:
    """Return what a closure's cell holds, as a tuple of one; empty when the variable has no value yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _fill_cell(made: CellType, contents: Parts) -> None:
    for part in contents:
        made.cell_contents = part


def _of_function(obj: FunctionType) -> Parts:
    if not (obj.__defaults__ or obj.__kwdefaults__ or obj.__dict__):
        return ()
    return [*(obj.__defaults__ or ()), *(obj.__kwdefaults__ or {}).values(), *obj.__dict__.values()]


def _labels_of_function(obj: FunctionType) -> list[str]:
    return [
        *(f"`{name}` in {{}}" for name in obj.__code__.co_freevars),
        *("a default argument of {}" for _ in obj.__defaults__ or ()),
        *(f"the default of `{name}` of {{}}" for name in obj.__kwdefaults__ or {}),
        *map(_attribute_label, obj.__dict__),
    ]


def _function_like(obj: FunctionType) -> Making:
    bare = _with_cells(obj, [CellType() for _ in obj.__closure__ or ()])  # or what is carried would travel along
    names = len(obj.__defaults__ or ()), tuple(obj.__kwdefaults__ or ()), tuple(obj.__dict__)
    return partial(_with_cells, bare), partial(_fill_function, *names)


def _with_cells(original: FunctionType, cells: Parts) -> FunctionType:
    """Return the same function with another closure, without defaults and attributes."""
    made = FunctionType(original.__code__, original.__globals__, original.__name__, None, tuple(cells))
    made.__qualname__, made.__module__, made.__doc__ = original.__qualname__, original.__module__, original.__doc__
    made.__annotations__ = original.__annotations__
    return made


def _fill_function(n_defaults: int, keywords: Parts, keys: Parts, made: FunctionType, parts: Parts) -> None:
    if parts:
        made.__defaults__ = tuple(parts[:n_defaults]) or None
        n_given = n_defaults + len(keywords)
        made.__kwdefaults__ = dict(zip(keywords, parts[n_defaults:n_given], strict=True)) or None
        made.__dict__.update(zip(keys, parts[n_given:], strict=True))


def _made_partial(cls: Any, n_first: int, keys: Parts, parts: Parts) -> Any:
    return partial.__new__(cls, *parts[:n_first], **dict(zip(keys, parts[n_first:], strict=True)))


def _bound_method(name: str, parts: Parts) -> Any:
    return getattr(parts[0], name)


# Containers, and what derives from them: filled by the methods of the type written in C, which do as told


_DICTS = (collections.OrderedDict, collections.defaultdict, dict)
_SERIES = (list, collections.deque, set)
_FIXED = (tuple, frozenset)


def _base_of(obj: Any) -> Any:
    kind = type(obj)
    bases: Any = (*_DICTS, *_SERIES, *_FIXED)
    return kind if kind in bases else next(base for base in bases if issubclass(kind, base))


def _of_mapping(obj: Any) -> Parts:
    base = _base_of(obj)
    factory = [obj.default_factory] if base is collections.defaultdict else []
    return [*base.keys(obj), *base.values(obj), *factory]  # keys may carry something too


def _labels_of_mapping(obj: Any) -> list[str]:
    keys = list(_base_of(obj).keys(obj))
    return [*["a key of {}"] * len(keys), *(f"[{key!r}] of {{}}" for key in keys), "the default of {}"]


def _empty(base: Any, cls: type, longest: int | None, parts: Parts) -> Any:
    del parts
    made = base.__new__(cls)
    if base is collections.deque:
        base.__init__(made, (), longest)
    return made


def _fill_mapping(base: Any, made: Any, parts: Parts) -> None:
    size = len(parts) // 2
    for key, value in zip(parts[:size], parts[size : 2 * size], strict=True):
        base.__setitem__(made, key, value)  # not `update`: a Counter's adds
    if base is collections.defaultdict:
        made.default_factory = parts[-1]


def _items_of(obj: Any) -> Parts:
    return list(_base_of(obj).__iter__(obj))


def _series_like(obj: Any) -> Making:
    base = _base_of(obj)
    return partial(_empty, base, type(obj), getattr(obj, "maxlen", None)), partial(_fill_series, base)


def _fill_series(base: Any, made: Any, parts: Parts) -> None:
    (base.update if base is set else base.extend)(made, parts)


def _made_fixed(base: Any, cls: type, parts: Parts) -> Any:
    return base.__new__(cls, parts)


def _array_like(obj: Any) -> Making:
    numbers = None if obj.dtype.kind == "O" else obj.view(np.ndarray)
    return partial(_made_array, type(obj), obj.shape, numbers), _fill_array


def _made_array(cls: type, shape: tuple[int, ...], numbers: Any, parts: Parts) -> Any:
    del parts
    made = np.empty(shape, object) if numbers is None else numbers
    return made if cls is np.ndarray else made.view(cls)


def _fill_array(made: Any, parts: Parts) -> None:
    plain = made.view(np.ndarray)
    for index, part in enumerate(parts):
        plain.flat[index] = part


def _of_weak_keys(obj: Any) -> Parts:
    items = list(obj.items())
    return [*(key for key, _ in items), *(item for _, item in items)]


def _fill_weak_keys(made: Any, parts: Parts) -> None:
    half = len(parts) // 2
    made.update(zip(parts[:half], parts[half:], strict=True))


# What is looked into, and never made again


def _inside(obj: Any) -> Parts:
    if isinstance(obj, BaseException):
        return [*obj.args, *obj.__dict__.values()]
    if isinstance(obj, GeneratorType):
        return list(obj.gi_frame.f_locals.values()) if obj.gi_frame else []
    return [obj.get(None)] if isinstance(obj, ContextVar) else gc.get_referents(obj)


def _wrapped_in(obj: Any) -> Parts:
    names = ("__func__", "fget", "fset", "fdel", "func", "args", "keywords", "dispatcher")
    return [getattr(obj, name) for name in names if hasattr(obj, name)]


# The kinds


def _always(making: Making) -> Callable[[Any], Making]:
    return lambda obj: making


_ITEM = "an item of {}"
INSTANCE = Kind(making=_instance_like, attributes=True)
MAPPING = Kind(
    rest=_of_mapping,
    making=lambda obj: (partial(_empty, _base_of(obj), type(obj), None), partial(_fill_mapping, _base_of(obj))),
    labels=_labels_of_mapping,
    attributes=True,
    is_whole=True,
)
SERIES = Kind(
    rest=_items_of,
    making=_series_like,
    labels=_ITEM,
    words=lambda obj: (getattr(obj, "maxlen", None),),
    attributes=True,
    is_whole=True,
)
FIXED = Kind(
    first=_items_of,
    making=lambda obj: (partial(_made_fixed, _base_of(obj), type(obj)), _leave),
    labels=_ITEM,
    attributes=True,
    is_whole=True,
)
DESCRIPTOR = Kind(rest=_wrapped_in, is_whole=True)  # what a class wraps its functions in
CACHED = Kind(  # by `functools.lru_cache`; a copy begins with nothing remembered
    first=lambda obj: (obj.__wrapped__,),
    making=lambda obj: (partial(_made_cached, obj.cache_parameters()), _leave),
)
_FUNCTION = Kind(lambda obj: obj.__closure__ or (), _of_function, _function_like, _labels_of_function)
_CELL = Kind(  # its function names it
    rest=contents_of, making=_always((partial(_made_by, CellType), _fill_cell)), is_whole=True
)
_PARTIAL = Kind(
    first=lambda obj: (obj.func, *obj.args, *obj.keywords.values()),
    making=lambda obj: (partial(_made_partial, type(obj), 1 + len(obj.args), tuple(obj.keywords)), _leave),
    labels=lambda obj: ["{}", *["an argument of the partial {}"] * (len(obj.args) + len(obj.keywords))],
    words=lambda obj: tuple(obj.keywords),
    attributes=True,
    is_whole=True,
)
_METHOD = Kind(  # its attributes are the function's
    first=lambda obj: (obj.__func__, obj.__self__),
    making=_always((partial(_made_by, MethodType), _leave)),
    labels=lambda obj: ("{}", "the instance that {} is bound to"),
    is_whole=True,
)
_METHOD_IN_C = Kind(  # such as ``{"a": t}.get``; or a function written in C
    first=lambda obj: () if isinstance(obj.__self__, ModuleType | type | None) else (obj.__self__,),
    making=lambda obj: (partial(_bound_method, obj.__name__), _leave),
    labels="the object that {} is bound to",
)
_ARRAY = Kind(
    rest=lambda obj: list(obj.view(np.ndarray).flat) if obj.dtype.kind == "O" else (),
    making=_array_like,
    labels=_ITEM,
    attributes=True,
)
_WEAK = Kind(  # it refers to the copy of what it refers to, which others hold
    first=lambda obj: (obj(),),
    making=_always((partial(_made_by, weakref.ref), _leave)),
    labels="what {} refers to",
)
_WEAK_KEYS = Kind(
    rest=_of_weak_keys, making=_always((partial(_made_by, weakref.WeakKeyDictionary), _fill_weak_keys)), labels=_ITEM
)
_PROXY = Kind(  # of the mapping itself: others may hold it too
    first=gc.get_referents, making=_always((partial(_made_by, MappingProxyType), _leave)), is_whole=True
)
_OPAQUE = Kind(rest=_inside, labels="what is held by {}")
_STRUCTURE = Kind(first=metadata_of, labels="the metadata of {}", is_whole=True)

_OPAQUE_TYPES: list[Any] = [
    *(GeneratorType, ContextVar, operator.itemgetter, operator.attrgetter, operator.methodcaller),
    *(map, filter, zip, enumerate, reversed, type(iter([])), type(iter(())), type(iter(set()))),
    *(type(iter({})), type(iter({}.values())), type(iter({}.items()))),
    *(found for found in vars(itertools).values() if isinstance(found, type)),
]
_WRAPPERS: list[Any] = [property, staticmethod, classmethod, functools.cached_property]
_EXACT: dict[type, Kind] = {
    FunctionType: _FUNCTION,
    CellType: _CELL,
    MethodType: _METHOD,
    **dict.fromkeys((BuiltinFunctionType, MethodWrapperType), _METHOD_IN_C),
    type(functools.lru_cache(abs)): CACHED,
    weakref.ref: _WEAK,
    weakref.WeakKeyDictionary: _WEAK_KEYS,
    MappingProxyType: _PROXY,
    TreeDef: _STRUCTURE,
    **dict.fromkeys(_OPAQUE_TYPES, _OPAQUE),
    **dict.fromkeys((functools.partialmethod, functools.singledispatchmethod), DESCRIPTOR),
}
_BASES: dict[type, Kind] = {
    **dict.fromkeys(_DICTS, MAPPING),
    **dict.fromkeys(_SERIES, SERIES),
    **dict.fromkeys(_FIXED, FIXED),
    partial: _PARTIAL,
    np.ndarray: _ARRAY,
    BaseException: _OPAQUE,
    **dict.fromkeys(_WRAPPERS, DESCRIPTOR),
}
_EXACT |= _BASES
_ALL_BASES = tuple(_BASES)


def kind_of(cls: type) -> Kind:
    found = _EXACT.get(cls)
    if found is None and issubclass(cls, _ALL_BASES):
        return next(kind for base, kind in _BASES.items() if issubclass(cls, base))
    return found or INSTANCE


WHOLE = frozenset(cls for cls, kind in _EXACT.items() if kind.is_whole)
