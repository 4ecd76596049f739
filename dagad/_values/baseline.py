"""What parts hold, and the numbers in them, as they are now: so that it can be said later which have changed.

Whoever asks goes by this: solvers, whose derivatives run functions later (`before`, `named`), members of `dagad.vmap`
(`members_process`), and pullbacks that functions bring along (`reading`).
"""

from __future__ import annotations

import array
import copy
import ctypes
import functools
import io
import itertools
import mmap
import operator
import random
import sys
import zlib
from collections.abc import Callable, Sequence
from types import CellType, FunctionType, GeneratorType
from typing import Any, NamedTuple

import numpy as np

from dagad._types import Array
from dagad._values.canonical import is_frozen, library_of, library_of_class
from dagad._values.contents import contents_of as inside_of, held_by_function
from dagad._values.digest import States
from dagad._values.homes import is_closed, root_of
from dagad._values.kinds import CACHED, CELL, FIXED, FROZEN_SET, FUNCTION, HOMES, INSTANCE, METHOD, WRAPPER, kind_of
from dagad._values.reach import (
    NOTHING,
    SMALL,
    Contents,
    is_closed_to_us,
    is_drawn_from,
    is_long,
    opened,
    opened_in_full,
)

_BYTES: Any = (bytearray, memoryview, array.array, mmap.mmap)
_OF_C: Any = ctypes.Structure.__base__  # of its arrays and numbers, too
GENERATORS: Any = (np.random.Generator, np.random.RandomState, random.Random)
# What is in one stays there; what is remembered may come and go, and is like what would be computed.
_FIXED = HOMES | {CACHED, FIXED, FROZEN_SET, METHOD, WRAPPER}
BLOCK = 2**20  # bytes that are laid out at a time


class Detail(NamedTuple):
    """What of a part is noted: what it holds, and what else may change in it, None where nothing may."""

    held: Callable[[Any], Contents]
    numbers: Callable[[Any], object]


class Noted(NamedTuple):
    """A part, what it held, what else was in it, and its class, or the code of a function."""

    part: Any
    held: Contents
    numbers: object
    detail: Detail
    made_of: object

    @classmethod
    def of(cls, part: object, detail: Detail, held: Contents | None = None) -> Noted | None:
        """Note what may change in a part, of which it may be known what it holds; None if nothing may."""
        kind = kind_of(type(part))
        if kind in _FIXED:
            return None
        held = detail.held(part) if held is None else held
        numbers = None if kind is CELL or kind is FUNCTION else detail.numbers(part)
        return None if held is NOTHING and numbers is None else cls(part, held, numbers, detail, _made_of(part))

    def now(self) -> Contents:
        """Return what it holds now."""
        return self.detail.held(self.part)

    @property
    def is_made_otherwise(self) -> bool:
        """Whether somebody has given it another class or another code, as what loads a module anew does."""
        return _made_of(self.part) is not self.made_of

    def has_changed(self) -> bool:
        """Return whether other objects are in it than before, or other numbers, or it is of another class or code."""
        part, before = self.part, self.held
        cls = type(part)
        if cls is FunctionType:  # this and the next two: only to be quick
            return part.__code__ is not self.made_of or not _are_same(held_by_function(part), before.rest)
        if cls is CellType:
            return not _are_same(inside_of(part), before.rest)
        if cls is list and self.numbers is None:
            return not _are_same(part.copy(), before.rest)
        if cls is not self.made_of or (self.numbers is not None and self.detail.numbers(part) != self.numbers):
            return True
        return before is not NOTHING and differ(before, self.now())

    def has_grown(self) -> bool:
        """Return whether all is there that was: a list, say, may have become longer."""
        if self.detail.numbers(self.part) != self.numbers:
            return False
        return set(map(id, self.held.parts)) <= set(map(id, self.now().parts))


def _made_of(part: Any) -> object:
    return part.__code__ if type(part) is FunctionType else type(part)


def some_of(part: Any) -> Contents:
    """Return what a part holds; of a long container the first entries."""
    if not is_long(part):
        return opened(part)
    items = dict.values(part) if isinstance(part, dict) else part
    return Contents((), list(itertools.islice(items, SMALL)), (), ())


def differ(before: Contents, now: Contents) -> bool:
    """Return whether something holds other objects than before."""
    return not all(map(_are_same, before, now))


def _are_same(ones: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(ones) == len(others) and all(map(operator.is_, ones, others))


def numbers_in(part: Any) -> object:
    """Return what may change in a part that is no part of it, to be compared; None where nothing may.

    These are the bits of arrays and buffers, of which large ones go by a sum over them, what is in tables, and where
    generators stand; of what else gives another thing each time nothing is like it.
    """
    cls: Any = type(part)
    if issubclass(cls, np.ndarray):
        return None if part.dtype.hasobject or is_frozen(part) else bits_of(_bare(part))
    if cls is GeneratorType:  # what is in its variables is among its parts
        return None if part.gi_frame is None else part.gi_frame.f_lasti
    if kind_of(cls) is not INSTANCE:
        return object() if is_drawn_from(cls) else None
    is_of_c = issubclass(cls, _OF_C)
    read = bytes if is_of_c else _numbers_of_class(cls) if is_closed_to_us(cls) else None
    if read is None:
        return None
    try:
        return read(part)
    except Exception:  # of a buffer that is closed, say
        return object()


def some_numbers_in(part: Any) -> object:
    """Return the same, of a large array in some places, and of a long container how long it is."""
    cls: Any = type(part)
    if issubclass(cls, np.ndarray):
        return None if part.dtype.hasobject or is_frozen(part) else some_bits_of(_bare(part))
    if is_long(part):
        return len(part)
    return _of_tensor(part, some_bits_of) if is_tensor(cls) else numbers_in(part)


EXACT, SOME = Detail(opened_in_full, numbers_in), Detail(some_of, some_numbers_in)


@functools.lru_cache(maxsize=1024)
def _numbers_of_class(cls: Any) -> Callable[[Any], object] | None:
    """Return what says what is in an object of a library's, for its class; no class of a user's is kept here."""
    if issubclass(cls, _BYTES):
        return _bytes_in
    if is_tensor(cls):
        return functools.partial(_of_tensor, bits=bits_of)
    if issubclass(cls, io.BytesIO):
        return _bytes_in_a_file
    if issubclass(cls, GENERATORS):
        return _position_of
    if library_of_class(cls) is not None:
        return _digest_of
    return _nothing_like_it if is_drawn_from(cls) else None


def is_tensor(cls: Any) -> bool:
    """Return whether a class is one of torch's arrays, or derives from one."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and issubclass(cls, tensor)


def _of_tensor(part: Any, bits: Callable[[Array], object]) -> object:
    """Return the bits of a tensor; of one that numpy can't show how often it was written into."""
    try:
        return bits(part.detach().cpu().numpy())
    except Exception:  # of a kind that numpy has not, or one that is traced
        return part._version


def _nothing_like_it(part: object) -> object:
    del part
    return object()


def _digest_of(part: object) -> str:
    return States().of(part, ())


def _bytes_in_a_file(part: io.BytesIO) -> tuple[int, int]:
    return zlib.crc32(part.getbuffer()), part.tell()


def _bytes_in(part: Any) -> int:
    return zlib.crc32(part.tobytes() if hasattr(part, "tobytes") else part)


def _position_of(generator: Any) -> str:
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    return repr(generator.get_state() if isinstance(generator, np.random.RandomState) else generator.getstate())


def _bare(part: Any) -> Array:
    """Return an array as numpy's own class, whatever a class of the user's makes of views."""
    return np.ndarray.view(part, np.ndarray)


def bits_of(part: Array) -> object:
    """Return the bits of an array; of a large one a sum over them."""
    return part.shape, part.dtype, part.tobytes() if part.size <= SMALL else checksum(part)


def some_bits_of(part: Array) -> object:
    """Return the bits of an array; of a large one those of numbers in some places."""
    return part.shape, part.dtype, part.flat[:: -(-part.size // SMALL or 1)].tobytes()


def checksum(part: Array) -> int:
    """Return a sum over all bits of an array, and of where they stand."""
    if not part.ndim or not part.nbytes:
        return zlib.crc32(part.tobytes())
    if part.flags.c_contiguous:
        return zlib.crc32(part.reshape(-1).view(np.uint8).data)
    found, step = 0, max(BLOCK * len(part) // part.nbytes, 1)
    for start in range(0, len(part), step):
        found = zlib.crc32(part[start : start + step].tobytes(), found)
    return found


def copied(part: Any) -> Any:
    """Return a copy of a small array, buffer or table, which can be put in its place; None of anything else."""
    cls: Any = type(part)
    if issubclass(cls, np.ndarray):
        return None if part.dtype.hasobject or part.size > SMALL else _copied(part)
    if issubclass(cls, bytearray | array.array):
        return copy.copy(part) if len(part) <= SMALL else None
    is_table = kind_of(cls) is INSTANCE and is_closed(root_of(cls)) and library_of(part) == "pandas"
    return _copied(part) if is_table and part.size <= SMALL else None


def _copied(part: Any) -> Any:
    try:
        return part.copy()
    except Exception:  # of a class of the user's that can't be made so
        return None
