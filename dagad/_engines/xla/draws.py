"""Whether random numbers are drawn while a function is traced: compiled, they would be the same for ever."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from os import urandom  # the system's own, also while another stands there; see `patches`
from types import FrameType
from typing import Any

import numpy as np

from dagad._values.walk import Walk

_OF_NUMPY = (np.random.Generator, np.random.RandomState, np.random.BitGenerator)


class _Generators:
    """The classes of generators, for a walk that looks for them: numpy's, Python's, and those made of them."""

    def __contains__(self, cls: Any) -> bool:
        return issubclass(cls, (*_OF_NUMPY, random.Random))


class Draws:
    """The states of numpy's and Python's own generators, and of all that a function reaches, before it is traced.

    Other threads draw from Python's own all the time, a worker's for instance. With `listens` it is seen who calls it.

    Attributes
    ----------
    reaches_the_systems
        Whether the function names the system's generator itself, of which nobody sees the calls.
    """

    __slots__ = ("_before", "_generators", "_heard", "_listens", "_own", "reaches_the_systems")

    def __init__(self, fun: object, arguments: list[Any], listens: bool) -> None:
        shared: Any = random.random  # a method of the generator that Python's functions share
        self._own, self._listens, self._heard = shared.__self__, listens, False
        self._generators: dict[int, tuple[str, Any]] = {
            0: ("numpy's own generator, `np.random`", np.random),
            id(self._own): ("Python's own generator, `random`", self._own),
        }
        kinds = _Generators()
        walk = Walk(fun, kinds)
        carried, self.reaches_the_systems = walk.ways(), walk.reaches(urandom)
        for found, way in [*carried, *((one, "an argument") for one, _ in Walk(arguments, kinds).ways())]:
            whose = "numpy's" if isinstance(found, _OF_NUMPY) else "Python's"
            self._generators.setdefault(id(found), (f"a generator of {whose} that is in {way}", found))
        self._before = {key: _state(found) for key, (_, found) in self._generators.items()}

    def drawn(self) -> str | None:
        """Return which generator is another than before, as sentences name it."""
        for key, (where, one) in self._generators.items():
            if _state(one) != self._before[key] and (one is not self._own or self._heard or not self._listens):
                return where
        return None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Listen to the calling thread, if at all: what is called then, is slower.

        Where a profiler listens it is left alone, as one written in C can't be put back: then any draw counts as heard.
        """
        self._heard = sys.getprofile() is not None
        if self._heard or not self._listens:
            yield
            return
        sys.setprofile(self._hear)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _hear(self, frame: FrameType, event: str, what: object) -> None:
        if event == "c_call" and getattr(what, "__self__", None) is self._own:
            self._heard = True


def _state(generator: Any) -> str:
    if isinstance(generator, random.SystemRandom):  # it has none, and each number is another
        return ""
    if isinstance(generator, random.Random):
        return repr(generator.getstate())
    if generator is np.random or isinstance(generator, np.random.RandomState):
        kind, keys, *rest = generator.get_state()
        return f"{kind}{np.asarray(keys).tobytes().hex()}{rest}"
    bits = getattr(generator, "bit_generator", generator)
    return repr((bits.state, getattr(getattr(bits, "seed_seq", None), "n_children_spawned", 0)))
