"""What an object consists of, held or reached by name, and how one like it is made: a kind for each class of objects.

All that looks into functions goes by this table: what is traced in them (`walk`), how it is taken out and arrays are
put in (`closures`), whether a function is the one met before in this process (`fingerprint`) or another (`digest`),
what has changed since it ran (`carried`), and how it travels (`shipping`). What is new to them all takes a line at the
end.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import itertools
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import numpy as np

from dagad._values import contents, names
from dagad._values.contents import Making, Parts, attribute_label, attributes_of, leave, made_by
from dagad._values.partition import Partition
from dagad._values.pytree import TreeDef, metadata_of


def _none(obj: object) -> Parts:
    del obj
    return ()


def _nothing(obj: object, names: Iterable[str]) -> Iterable[tuple[str, Any]]:
    del obj, names
    return ()


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What the objects of some classes consist of, and how one of them is made again.

    =============  ===================================================================================================
    `first`        object -> the parts that it can't be made without
    `rest`         object -> the parts that may lead back to it, and are put in when it is there
    `named`        object, names that code has -> what it leads to by name: each name, and what it means
    `making`       object -> how one like it is made of `first`, and how `rest` is put in: both travel
    `labels`       object -> how the user would call its parts, "{}" stands for the object; or one label for all
    `words`        object -> what it is made of beside its parts: names, mostly
    `attributes`   whether it has attributes of its own, which come after the rest
    `is_whole`     whether it is known again by its parts and words: nothing else is in it
    `is_ordered`   whether the order of its parts is the same in every process
    `needs_table`  whether pickle is to be told how it is made: it would not know, or leave something out
    =============  ===================================================================================================
    """

    first: Callable[[Any], Parts] = _none
    rest: Callable[[Any], Parts] = _none
    making: Callable[[Any], Making] = contents.refuse
    labels: Callable[[Any], Sequence[str]] | str = "{}"
    words: Callable[[Any], Sequence[Any]] = _none
    named: Callable[[Any, Iterable[str]], Iterable[tuple[str, Any]]] = _nothing
    attributes: bool = False
    is_whole: bool = False
    is_ordered: bool = True
    needs_table: bool = False

    def parts(self, obj: object) -> Parts:
        own = attributes_of(obj)[1] if self.attributes else ()
        return [*self.first(obj), *self.rest(obj), *own]

    def opened(self, obj: object) -> tuple[list[Any], list[Any]]:
        """Return what tells an object from others of the same parts, counts and names, and its parts."""
        first, rest, words = self.first(obj), self.rest(obj), self.words(obj)
        said, parts = [len(first), len(rest), len(words), *words], [*first, *rest]
        if self.attributes:
            keys, values = attributes_of(obj)
            said += [key if isinstance(key, str) else key[1] for key in keys]
            parts += values
        return said, parts

    def label(self, obj: object, index: int) -> str:
        """Return how the user would call one of the parts."""
        n_parts = len(self.first(obj)) + len(self.rest(obj))
        if index >= n_parts:
            return attribute_label(attributes_of(obj)[0][index - n_parts])
        return self.labels if isinstance(self.labels, str) else self.labels(obj)[index]

    def reduced(self, obj: object) -> tuple[Any, ...]:
        """Return how pickle makes an object again."""
        make, fill = self.making(obj)
        keys, values = attributes_of(obj) if self.attributes else ((), ())
        state = fill, list(self.rest(obj)), list(keys), list(values)
        return make, (list(self.first(obj)),), state, None, None, contents.fill_made


def _always(making: Making) -> Callable[[Any], Making]:
    return lambda obj: making


_ITEM = "an item of {}"
INSTANCE = Kind(making=contents.instance_like, attributes=True)
MAPPING = Kind(
    rest=contents.of_mapping,
    making=contents.mapping_like,
    labels=contents.labels_of_mapping,
    attributes=True,
    is_whole=True,
)
SERIES = Kind(
    rest=contents.items_of,
    making=contents.series_like,
    labels=_ITEM,
    words=lambda obj: (getattr(obj, "maxlen", None),),
    attributes=True,
    is_whole=True,
)
SET = dataclasses.replace(SERIES, is_ordered=False)
FIXED = Kind(contents.items_of, making=contents.fixed_like, labels=_ITEM, attributes=True, is_whole=True)
FROZEN_SET = dataclasses.replace(FIXED, is_ordered=False)
DESCRIPTOR = Kind(rest=contents.wrapped_in, is_whole=True)  # what a class wraps its functions in
CACHED = Kind(  # by `functools.lru_cache`; a copy begins with nothing remembered
    first=lambda obj: (obj.__wrapped__,), making=contents.cached_like, needs_table=True
)
FUNCTION = Kind(
    first=lambda obj: obj.__closure__ or (),
    rest=contents.held_by_function,
    named=names.of_function,
    making=contents.function_like,
    labels=contents.labels_of_function,
    words=contents.words_of_function,
    is_whole=True,
)
CELL = Kind(rest=contents.contents_of, making=_always((partial(made_by, CellType), contents.fill_cell)), is_whole=True)
CLASS = Kind(
    first=lambda obj: (type(obj), *obj.__bases__),
    named=names.of_class,
    words=lambda obj: (obj.__module__, obj.__qualname__, obj.__name__),
    is_whole=True,
)
MODULE = Kind(named=names.of_module, words=lambda obj: (obj.__name__,), is_whole=True)
WRAPPER = Kind(  # of ours: all that it holds is a function
    first=lambda obj: (obj.fun,), making=lambda obj: (partial(made_by, type(obj)), leave), is_whole=True
)
COMPILED = Kind(first=contents.compiled_by_jax, words=contents.how_jax_compiles, is_whole=True)
_CODE = Kind(first=lambda obj: obj.co_consts, words=contents.words_of_code, is_whole=True)
PARTIAL = Kind(
    first=lambda obj: (obj.func, *obj.args, *obj.keywords.values()),
    making=contents.partial_like,
    labels=lambda obj: ["{}", *["an argument of the partial {}"] * (len(obj.args) + len(obj.keywords))],
    words=lambda obj: tuple(obj.keywords),
    attributes=True,
    is_whole=True,
)
METHOD = Kind(  # its attributes are the function's
    first=lambda obj: (obj.__func__, obj.__self__),
    making=_always((partial(made_by, MethodType), leave)),
    labels=lambda obj: ("{}", "the instance that {} is bound to"),
    is_whole=True,
)
_METHOD_IN_C = Kind(  # such as ``{"a": t}.get``; or a function written in C
    first=lambda obj: () if isinstance(obj.__self__, ModuleType | type | None) else (obj.__self__,),
    making=contents.method_like,
    labels="the object that {} is bound to",
    words=lambda obj: (obj.__name__,),
)
UFUNC = Kind(first=contents.computed_by, is_whole=True)
_ARRAY = Kind(
    rest=lambda obj: list(obj.view(np.ndarray).flat) if obj.dtype.kind == "O" else (),
    making=contents.array_like,
    labels=_ITEM,
    words=lambda obj: (obj.shape, None if obj.dtype.kind == "O" else obj.view(np.ndarray)),
    attributes=True,
)
_WEAK = Kind(  # it refers to the copy of what it refers to, which others hold
    first=lambda obj: (obj(),), making=_always((partial(made_by, weakref.ref), leave)), labels="what {} refers to"
)
_WEAK_KEYS = Kind(
    rest=contents.of_weak_keys,
    making=_always((partial(made_by, weakref.WeakKeyDictionary), contents.fill_weak_keys)),
    labels=_ITEM,
)
_PROXY = Kind(  # of the mapping itself: others may hold it too
    first=gc.get_referents, making=_always((partial(made_by, MappingProxyType), leave)), is_whole=True
)
_OPAQUE = Kind(rest=contents.inside, labels="what is held by {}")
_VIEWS = {  # of a dict: what is in it shows in them
    type(getattr(cls(), name)()): Kind(
        first=gc.get_referents,
        making=_always((partial(contents.made_view, name), leave)),
        labels="the dict of {}",
        is_whole=True,
        needs_table=True,
    )
    for cls in (dict, collections.OrderedDict)
    for name in ("keys", "values", "items")
}
_STRUCTURE = Kind(first=metadata_of, labels="the metadata of {}", is_whole=True)
_STRUCTURE_OF_JAX = Kind(first=lambda obj: (obj.node_data(), obj.children()), is_whole=True)
_PARTITION = Kind(
    first=lambda obj: (obj.treedef, obj.positions, *obj.leaves),
    making=_always((contents.made_partition, leave)),
    labels=_ITEM,
    is_whole=True,
)

_OPAQUE_TYPES: list[Any] = [
    *(GeneratorType, ContextVar, operator.itemgetter, operator.attrgetter, operator.methodcaller),
    *(map, filter, zip, enumerate, reversed, type(iter([])), type(iter(())), type(iter(set()))),
    *(type(iter({})), type(iter({}.values())), type(iter({}.items()))),
    *(found for found in vars(itertools).values() if isinstance(found, type)),
]
_WRAPPERS: list[Any] = [property, staticmethod, classmethod, functools.cached_property]
_EXACT: dict[type, Kind] = {
    FunctionType: FUNCTION,
    CellType: CELL,
    CodeType: _CODE,
    MethodType: METHOD,
    **dict.fromkeys((BuiltinFunctionType, MethodWrapperType), _METHOD_IN_C),
    type(functools.lru_cache(abs)): CACHED,
    weakref.ref: _WEAK,
    weakref.WeakKeyDictionary: _WEAK_KEYS,
    MappingProxyType: _PROXY,
    **_VIEWS,
    TreeDef: _STRUCTURE,
    Partition: _PARTITION,
    **dict.fromkeys(_OPAQUE_TYPES, _OPAQUE),
    **dict.fromkeys((functools.partialmethod, functools.singledispatchmethod), DESCRIPTOR),
}
_BASES: dict[type, Kind] = {
    **dict.fromkeys(contents.DICTS, MAPPING),
    set: SET,
    **dict.fromkeys(contents.SERIES_TYPES, SERIES),
    frozenset: FROZEN_SET,
    tuple: FIXED,
    partial: PARTIAL,
    np.ufunc: UFUNC,
    np.ndarray: _ARRAY,
    BaseException: _OPAQUE,
    type: CLASS,
    ModuleType: MODULE,
    **dict.fromkeys(_WRAPPERS, DESCRIPTOR),
}
_EXACT |= _BASES
_ALL_BASES = tuple(_BASES)
CONTAINERS = frozenset({MAPPING, SERIES, SET, FIXED, FROZEN_SET})
HOMES = frozenset({CLASS, MODULE})  # they are reached into by name, and there is one of each
# Of packages that may not be there.
_OF_JAX = {"PjitFunction": COMPILED, "PyTreeDef": _STRUCTURE_OF_JAX}


def kind_of(cls: type) -> Kind:
    found = _EXACT.get(cls)
    if found is not None:
        return found
    if issubclass(cls, _ALL_BASES):
        return next(kind for base, kind in _BASES.items() if issubclass(cls, base))
    if getattr(cls, "__dagad_wraps__", False) is True:
        return WRAPPER
    found = _OF_JAX.get(cls.__name__)
    return found if found is not None and str(cls.__module__).startswith("jaxlib") else INSTANCE


def is_whole(cls: type) -> bool:
    """Return whether all that is in the objects of a class, and not of what derives from one, is in the table."""
    kind = kind_of(cls)
    return kind.is_whole and is_exact(cls, kind)


def is_exact(cls: type, kind: Kind) -> bool:
    """Return whether a class of a kind is in the table, and does not derive from one that is."""
    return cls in _EXACT or kind in _SEEN_BY_NAME


_SEEN_BY_NAME = (WRAPPER, *_OF_JAX.values())
