"""What a chunk function carries and somebody changes between two evaluations: contents, ways to hold them, ends.

The product of the three is the fuzz of tests/values/test_changed_contents.py. A content is changed in place, so that
what holds it stays the same object.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import autograd.numpy as np
import numpy as onp

from support.carrying.all_ways import WAYS
from support.carrying.way import Holder, Read


@dataclass(frozen=True, slots=True)
class Content:
    """Something that can change: how it is made, read as a number, and changed from 1 to 2."""

    make: Callable[[], Any]
    read: Callable[[Any], Any]
    change: Callable[[Any], None]


def _number_of_type(held: Any) -> float:
    return 2.0 if type(held[0]) is int else 1.0


def _first_value(held: Any) -> float:
    return float(next(iter(held.values())))


def _number_of_identity(held: Any) -> float:
    return 1.0 if held[0] is held[1] else 2.0


def _reorder(held: Any) -> None:
    held["a"] = held.pop("a")


def _two_of_one() -> list[Any]:
    one = [0.5]
    return [one, one]


CONTENTS: dict[str, Content] = {
    "a value in a list": Content(lambda: [1.0], lambda held: held[0], lambda held: held.__setitem__(0, 2.0)),
    "a value in an array": Content(
        lambda: onp.ones(1), lambda held: float(held[0]), lambda held: held.__setitem__(0, 2.0)
    ),
    "an attribute": Content(lambda: Holder(1.0), lambda held: held.value, lambda held: setattr(held, "value", 2.0)),
    "a type": Content(lambda: [1.0], _number_of_type, lambda held: held.__setitem__(0, 1)),
    "an order": Content(lambda: {"a": 1.0, "b": 2.0}, _first_value, _reorder),
    "an identity": Content(_two_of_one, _number_of_identity, lambda held: held.__setitem__(1, [0.5])),
}


def weighed(rows: Any, factor: Any, t: Any) -> Any:
    return np.sum(rows) * factor * t**2


ENDS: dict[str, Callable[[Any, Read], Callable[..., Any]]] = {}


def end(build: Any) -> Any:
    return ENDS.setdefault(build.__name__, build)


@end
def in_its_closure(x: Any, get: Read) -> Any:
    return lambda rows, t: weighed(rows, get(x), t)


@end
def in_the_closure_of_a_helper(x: Any, get: Read) -> Any:
    def helper() -> Any:
        return get(x)

    return lambda rows, t: weighed(rows, helper(), t)


@end
def in_a_default(x: Any, get: Read) -> Any:
    def chunk(rows: Any, t: Any, held: Any = x) -> Any:
        return weighed(rows, get(held), t)

    return chunk


@end
def in_a_keyword_default(x: Any, get: Read) -> Any:
    def chunk(rows: Any, t: Any, *, held: Any = x) -> Any:
        return weighed(rows, get(held), t)

    return chunk


@end
def in_an_attribute_of_a_function(x: Any, get: Read) -> Any:
    def chunk(rows: Any, t: Any) -> Any:
        return weighed(rows, get(vars(chunk)["held"]), t)

    vars(chunk)["held"] = x
    return chunk


@end
def in_a_partial(x: Any, get: Read) -> Any:
    return functools.partial(lambda held, rows, t: weighed(rows, get(held), t), x)


@end
def in_an_attribute_of_a_partial(x: Any, get: Read) -> Any:
    made = functools.partial(max, 1.0)
    vars(made)["held"] = x
    return lambda rows, t: weighed(rows, get(vars(made)["held"]), t)


class Model:
    def __init__(self, held: Any, get: Read) -> None:
        self.held, self.get = held, get

    def chunk(self, rows: Any, t: Any) -> Any:
        return weighed(rows, self.get(self.held), t)

    def __call__(self, rows: Any, t: Any) -> Any:
        return self.chunk(rows, t)


@end
def in_the_instance_it_is_bound_to(x: Any, get: Read) -> Any:
    return Model(x, get).chunk


@end
def in_itself(x: Any, get: Read) -> Any:
    return Model(x, get)


Cell = tuple[str, tuple[str, ...], str]


def cells(share: int = 1, seed: int = 0) -> list[Cell]:
    """Return every combination of a content, a way to hold it and an end; or one in so many of them, at random."""
    every = [(content, (way,), how) for content in CONTENTS for way in WAYS for how in ENDS]
    return random.Random(seed).sample(every, len(every) // share)


def made(content: str, ways: tuple[str, ...], how: str) -> tuple[Callable[..., Any], Callable[[], None]]:
    """Return a chunk function of rows and t that carries a content in the ways named, and what changes the content."""
    kind = CONTENTS[content]
    here = kind.make()
    held, get = here, kind.read
    for name in ways:
        held, get = WAYS[name](held, get)
    return ENDS[how](held, get), functools.partial(kind.change, here)
