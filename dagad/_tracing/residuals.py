"""Ordinary arrays that a tape holds on to: what they were when they met a traced value, whatever is written into later.

A pullback reads the constants of its operation again: of ``x * b`` it needs `b`. A function that fills one buffer in
each of its steps (``b[:] = ...``), or changes an array after it was used (``b *= 2``), would get derivatives of other
numbers than its value. So a tape has a copy of an array that can be written into. To copy a large one takes as long as
many an operation: it is done where a function that is running writes into arrays, which its bytecode tells. Of any
other large one some entries are remembered, and compared before the pullback reads it.

State: `_COPIES`, copies that tapes hold, by the address of what was copied: an array that meets many values, and is the
same each time, is held once.
"""

from __future__ import annotations

import array
import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import autograd.numpy as anp
import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._tracing import refusals
from dagad._tracing.private import isbox, numpy_wrapper, trace_primitives_map
from dagad._tracing.writing import is_written_meanwhile
from dagad._types import Argnums, Args, Array, Cotangent, Function, Kwargs
from dagad._values.canonical import is_written_elsewhere

_PLAIN = frozenset({float, int, bool, complex, str, bytes, type(None), slice, type, np.float64, type(...)})
TINY, SMALL = 1 << 8, 1 << 16  # bytes: a copy takes no longer than to look for one; than many an operation
QUICK, SAMPLE, LONG = 1 << 13, 64, 100  # bytes that are compared at once; entries; parts of a list
_WRITEABLE, _CONTIGUOUS = 0x0400, 0x0003  # flags of an array; to ask for the first by name may warn
_COPIES: WeakValueDictionary[Any, Any] = WeakValueDictionary()
# Of these the pullbacks read no constants; of those below, the first one only.
SHAPES_ONLY = frozenset({anp.add, anp.subtract, numpy_wrapper.concatenate_args, numpy_wrapper.array_from_args})
_FIRST_ONLY = frozenset({anp.select, trace_primitives_map.get(np.where, anp.where)})

Held = tuple[Any, Callable[[Any], Any] | None]  # an array, and what puts a look at it before a pullback


def may_change(given: Array) -> bool:
    """Return whether an array may be written into: itself, or the one that it is a view of, if that can't."""
    flags: int = given.flags.num
    if flags & _WRITEABLE:
        return True
    return given.base is not None and is_written_elsewhere(given)


def held(given: Array) -> Held:
    """Return what a tape holds of an array that met a traced value."""
    if not may_change(given):
        return given, None
    nbytes = given.nbytes
    if nbytes <= TINY:
        return given.copy("K"), None
    if nbytes <= SMALL or (not _is_spread(given) and is_written_meanwhile(sys._getframe(1))):
        return copy_of(given), None
    return given, _sampled(given)


def _is_spread(given: Array) -> bool:
    """Return whether an array is a view that says its entries several times: a copy would be larger."""
    return bool(given.nbytes > getattr(given.base, "nbytes", given.nbytes))


def held_arguments(
    fun: Function, args: Args, kwargs: Kwargs, argnums: Argnums
) -> tuple[Args, Kwargs, list[Callable[[Any], Any]]]:
    """Return the arguments of an operation as its tape holds them, and what to put before the pullback."""
    looks = list[Callable[[Any], Any]]()
    if fun in SHAPES_ONLY:
        return args, kwargs, looks
    if not _PLAIN.issuperset(map(type, args)):
        read = args[:1] if fun in _FIRST_ONLY else args
        found = [arg if at in argnums else _held_part(arg, looks) for at, arg in enumerate(read)]
        args = (*found, *args[len(found) :])
    if kwargs:
        kwargs = {name: _held_part(arg, looks) for name, arg in kwargs.items()}
    return args, kwargs, looks


def _held_part(part: Any, looks: list[Callable[[Any], Any]]) -> Any:
    """Return an argument, or a part of one that is a list or a tuple, as indices are."""
    kind = type(part)
    if kind is np.ndarray:
        kept, look = held(part)
        if look is not None:
            looks.append(look)
        return kept
    if kind in _PLAIN or isbox(part):
        return part
    if kind is list and len(part) > LONG and type(part[0]) is not list:
        return part.copy()
    if kind is list or kind is tuple:
        return kind([_held_part(one, looks) for one in part])
    return _held_other(part, looks)


def _held_other(part: Any, looks: list[Callable[[Any], Any]]) -> Any:
    """Return an array of another library's: a copy, or of a large one itself, with looks at its numbers."""
    buffers = _buffers_of(part)
    if buffers is None:  # rows of lists, or a dict
        return part.copy() if part.nnz * 16 <= SMALL else part
    if sum(buffer.nbytes for buffer in buffers) > SMALL:
        looks += [_sampled(buffer) for buffer in buffers if buffer.size]
        return part
    if not buffers:
        return part
    key = type(part), id(part), getattr(part, "shape", ())
    found = _COPIES.get(key)
    before = None if found is None else _buffers_of(found)
    if before is None or len(before) != len(buffers) or not all(map(_is_copy, before, buffers)):
        found = _COPIES[key] = copy.copy(part) if isinstance(part, array.array) else part.copy()
    return found


def _buffers_of(part: object) -> list[Any] | None:
    """Return the arrays in which something has its numbers: none for what is no array, None where they are in lists."""
    if isinstance(part, np.ndarray):
        return [part]
    if isinstance(part, array.array):
        return [np.frombuffer(part, part.typecode)] if part else []
    if not type(part).__module__.startswith("scipy.sparse.") or not hasattr(part, "nnz"):
        return []
    held = [each for value in vars(part).values() for each in (value if type(value) is tuple else (value,))]
    buffers = [each for each in held if type(each) is np.ndarray]  # coordinates are a tuple of them
    return buffers if buffers and all(each.dtype.kind in "biufc" for each in buffers) else None


def copy_of(given: Array) -> Any:
    """Return a copy of an array: the one that there is, if the array is what it was."""
    key = id(given) if given.base is None else given.__array_interface__["data"]
    found = _COPIES.get(key)
    if found is None or not _is_copy(found, given):
        found = _COPIES[key] = given.copy("K")
    return found


def _is_copy(found: Array, given: Array) -> bool:
    if (type(found), found.dtype, found.shape) != (type(given), given.dtype, given.shape):
        return False
    if (found.flags.num ^ given.flags.num) & _CONTIGUOUS and given.flags.num & _CONTIGUOUS:
        return False
    if given.nbytes <= QUICK or not given.flags.c_contiguous or given.dtype.kind not in "biufc" or given.nbytes % 8:
        return bool(found.tobytes() == given.tobytes())
    return bool((found.reshape(-1).view(np.int64) == given.reshape(-1).view(np.int64)).all())


def _sampled(given: Array) -> Callable[[Any], Any]:
    """Return what puts a look before a pullback: whether some entries of the array that it reads are what they were."""
    entries = _entries_of(given)

    def before(pullback: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def look_and_pull(cotangent: Cotangent) -> Any:
            if _entries_of(given) != entries:
                raise NotDifferentiableError(refusals.of_written(given.shape))
            return pullback(cotangent)

        return look_and_pull

    return before


def _entries_of(given: Array) -> bytes:
    """Return some entries of an array that is not empty, at equal distances, the last one too."""
    step = given.size // SAMPLE | 1
    flat = given.ravel("K") if given.flags.forc else given.flat
    found: bytes = flat[(given.size - 1) % step :: step].tobytes()
    return found


def looking(pullback: Function, looks: Sequence[Callable[[Any], Any]]) -> Any:
    """Return a pullback that takes these looks first."""
    for look in looks:
        pullback = look(pullback)
    return pullback
