"""What a way to carry a value is: it puts it into something, and says how a chunk gets it out again.

A way takes what is carried and how it is read, and returns what carries it and how that is read; so ways can be nested.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Read = Callable[[Any], Any]
Way = Callable[[Any, Read], tuple[Any, Read]]


class Ways(dict[str, Way]):
    """Ways by their names, for which a module decorates them."""

    def __call__(self, build: Way) -> Way:
        return self.setdefault(build.__name__, build)


def kept(value: Any) -> Any:
    return value


def shown(holder: Any, get: Read) -> tuple[Any, Read]:
    return holder, lambda holder: get(holder())


class Holder:
    scale = 1.0

    def __init__(self, value: Any) -> None:
        self.value = value

    def read(self) -> Any:
        return self.value

    def __call__(self) -> Any:
        return self.value

    @property
    def shown(self) -> Any:
        return self.value

    @functools.cached_property
    def remembered(self) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class FrozenSlotted:
    value: Any
