"""All ways to carry a value into a chunk, and how the chunk function has what carries it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import autograd.numpy as np

from support.carrying import (
    by_name as ways_by_name,
    in_containers as ways_by_containers,
    in_functions as ways_by_functions,
    in_instances as ways_by_instances,
    state as carried_state,
)
from support.carrying.by_name import GLOBAL, Registry
from support.carrying.in_instances import Member, Single
from support.carrying.way import Read, Way, kept

BY_NAME: dict[str, Way] = ways_by_instances.by_name | ways_by_name.by_name
WAYS: dict[str, Way] = (
    ways_by_functions.way | ways_by_instances.way | ways_by_containers.way | ways_by_name.way | BY_NAME
)
ENDS: dict[str, Callable[[Any, Read], Callable[[Any], Any]]] = {}


def end(build: Any) -> Any:
    return ENDS.setdefault(build.__name__, build)


def wave(rows: Any, t: Any) -> Any:
    return np.sum(np.sin(rows * t) * t)


@end
def in_its_closure(x: Any, get: Read) -> Any:
    return lambda rows: wave(rows, get(x))


@end
def in_a_default(x: Any, get: Read) -> Any:
    def chunk(rows: Any, held: Any = x) -> Any:
        return wave(rows, get(held))

    return chunk


@end
def in_a_partial(x: Any, get: Read) -> Any:
    return functools.partial(lambda held, rows: wave(rows, get(held)), x)


class Model:
    def __init__(self, held: Any, get: Read) -> None:
        self.held, self.get = held, get

    def chunk(self, rows: Any) -> Any:
        return wave(rows, self.get(self.held))

    def __call__(self, rows: Any) -> Any:
        return self.chunk(rows)


@end
def in_the_instance_it_is_bound_to(x: Any, get: Read) -> Any:
    return Model(x, get).chunk


@end
def in_itself(x: Any, get: Read) -> Any:
    return Model(x, get)


def carried(t: Any, ways: tuple[str, ...], how: str) -> Callable[[Any], Any]:
    """Return a chunk function that carries a value in the ways named, the first innermost."""
    held: Any = t
    get: Read = kept
    for name in ways:
        held, get = WAYS[name](held, get)
    return ENDS[how](held, get)


def clean() -> None:
    """Take the value out of what lives on."""
    GLOBAL.clear()
    Registry.instances.clear()
    Single.only = None
    vars(Member.ONE).pop("held", None)
    carried_state.reset()
