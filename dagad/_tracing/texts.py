"""Texts of traced values, which may be the key of what a function remembers: of each time another one.

What it remembers for another value that is equal, or for plain numbers, has another derivative.

State: `_NUMBERS`, how many texts of this process have one.
"""

from __future__ import annotations

import itertools
from typing import Any, NoReturn

from dagad._errors import NotDifferentiableError
from dagad._tracing import refusals

_NUMBERS = itertools.count(1)


def numbered(words: str) -> str:
    """Return a text that nobody else has, also where it becomes a part of a longer one."""
    return f"<{words}, text {next(_NUMBERS)}>"


class Digits(str):
    """The digits of a traced value, as one asks for them by `f"{x:.3f}"`: those digits, and the key of nothing else.

    No number is read from them, as it would have no derivative.
    """

    __slots__ = ()
    __eq__ = str.__eq__
    __hash__ = object.__hash__  # so no dict finds it by the same digits

    def __float__(self) -> NoReturn:
        raise NotDifferentiableError(refusals.of_number())

    __int__ = __float__

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)
