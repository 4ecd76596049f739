"""Objects that are looked into and never made again: what carries a traced value in one of them is refused."""

from __future__ import annotations

import gc
import itertools
import operator
from contextvars import ContextVar
from types import GeneratorType
from typing import Any

from dagad._copies import Kind, no_copy


class Descriptor(Kind):
    """What a class wraps its functions in."""

    @staticmethod
    def rest(obj: Any) -> list[Any]:
        names = ("__func__", "fget", "fset", "fdel", "func", "args", "keywords", "dispatcher")
        return [getattr(obj, name) for name in names if hasattr(obj, name)]

    @staticmethod
    def label(obj: Any, index: int) -> str:
        return "{}"


class Opaque(Kind):
    """An iterator, a generator, an exception, a variable of the context: what it holds."""

    @staticmethod
    def rest(obj: Any) -> list[Any]:
        if isinstance(obj, BaseException):
            return [*obj.args, *obj.__dict__.values()]
        if isinstance(obj, GeneratorType):
            return list(obj.gi_frame.f_locals.values()) if obj.gi_frame else []
        if isinstance(obj, ContextVar):
            return [obj.get(None)]
        return gc.get_referents(obj)

    @staticmethod
    def fixed(obj: Any) -> Any:
        raise no_copy(type(obj), "can't copy")

    @staticmethod
    def label(obj: Any, index: int) -> str:
        return "what is held by {}"


_ITERATORS: tuple[Any, ...] = (map, filter, zip, enumerate, reversed, type(iter([])), type(iter(())), type(iter(set())))
_OF_DICTS: tuple[Any, ...] = (type(iter({})), type(iter({}.values())), type(iter({}.items())))
_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
OPAQUE: frozenset[type] = frozenset(
    {GeneratorType, ContextVar, *_ITERATORS, *_OF_DICTS, *_GETTERS}
    | {found for found in vars(itertools).values() if isinstance(found, type)}
)
