"""Whether random numbers are drawn while a function is traced: compiled, they would be the same for ever."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from dagad._values.carried import parts_of

_DEEPEST = 4


class Draws:
    """The states of numpy's own generator, and of all that a function carries, before it is traced."""

    __slots__ = ("_before", "_generators")

    def __init__(self, fun: Any) -> None:
        self._generators: dict[int, tuple[str, Any]] = {0: ("numpy's own generator, `np.random`", np.random)}
        for where, part, _ in parts_of(fun):
            for found in _generators_in(part, _DEEPEST):
                self._generators.setdefault(id(found), (f"a generator of numpy's that is in {where}", found))
        self._before = {key: _state(found) for key, (_, found) in self._generators.items()}

    def drawn(self) -> str | None:
        """Return which generator is another than before, as sentences name it."""
        found = (where for key, (where, one) in self._generators.items() if _state(one) != self._before[key])
        return next(found, None)


def _state(generator: Any) -> str:
    if generator is np.random or isinstance(generator, np.random.RandomState):
        kind, keys, *rest = generator.get_state()
        return f"{kind}{np.asarray(keys).tobytes().hex()}{rest}"
    return repr(getattr(generator, "bit_generator", generator).state)


def _generators_in(part: Any, depth: int) -> Iterator[Any]:
    if isinstance(part, np.random.Generator | np.random.RandomState | np.random.BitGenerator):
        yield part
    elif not depth:
        return
    elif isinstance(part, FunctionType | MethodType):
        for _, inner, _ in parts_of(part):
            yield from _generators_in(inner, depth - 1)
        yield from _generators_in(getattr(part, "__self__", None), depth - 1)
    else:
        inside = part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ()
        for inner in (*inside, *_attributes(part)):
            yield from _generators_in(inner, depth - 1)


def _attributes(part: Any) -> Iterator[Any]:
    if type(part).__module__.partition(".")[0] in ("builtins", "numpy", "types"):
        return
    with contextlib.suppress(TypeError):
        yield from vars(part).values()
