"""What leads to objects without holding them: weak references and their dictionaries, views of mappings."""

from __future__ import annotations

import gc
import weakref
from types import MappingProxyType
from typing import Any

from dagad._copies import Kind


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
