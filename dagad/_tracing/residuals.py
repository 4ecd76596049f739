"""Ordinary arrays that a tape holds on to: what they were when they met a traced value, whatever is written into later.

A pullback reads the constants of its operation again: of ``x * b`` it needs `b`. A function that fills one buffer in
each of its steps (``b[:] = ...``), or changes an array after it was used (``b *= 2``), would get derivatives of other
numbers than its value. So a tape has a copy of an array that can be written into. Small ones are copied at once. To
copy a large one takes as long as many an operation: it is done where a function that is running may write into arrays,
which its bytecode tells. Of any other large one a sample is remembered, and compared before the pullback reads it.

State: `_COPIES`, copies that tapes hold, by the address of what was copied: an array that meets many values, and is the
same each time, is held once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import autograd.numpy as anp
import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._tracing import refusals
from dagad._tracing.private import numpy_wrapper
from dagad._tracing.writing import is_written_meanwhile
from dagad._types import Argnums, Args, Array, Function, Kwargs
from dagad._values.work_arrays import entries_of

_MUTABLE = frozenset({np.ndarray, list, tuple})
SMALL = 1 << 10  # bytes: a copy takes no longer than a node of the tape
LONG = 100  # parts of a list that is no index
_COPIES: WeakValueDictionary[int, Any] = WeakValueDictionary()
# Of these the pullbacks read no constants.
SHAPES_ONLY = frozenset({anp.add, anp.subtract, numpy_wrapper.concatenate_args, numpy_wrapper.array_from_args})

Held = tuple[Any, Callable[[Any], Any] | None]  # an array, and what puts a look at it before a pullback


def held(array: Array) -> Held:
    """Return what a tape holds of an array that met a traced value."""
    if not array.flags.writeable:
        return array, None
    if array.nbytes <= SMALL:
        return array.copy("K"), None
    if is_written_meanwhile(array, sys._getframe(1)):
        return copy_of(array), None
    return array, _sampled(array)


def held_arguments(
    fun: Function, args: Args, kwargs: Kwargs, argnums: Argnums
) -> tuple[Args, Kwargs, list[Callable[[Any], Any]]]:
    """Return the arguments of an operation as its tape holds them, and what to put before the pullback."""
    looks = list[Callable[[Any], Any]]()
    if fun in SHAPES_ONLY:
        return args, kwargs, looks
    if any(type(arg) in _MUTABLE for arg in args):
        args = tuple([arg if at in argnums else _held_part(arg, looks) for at, arg in enumerate(args)])
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
    if kind is list and len(part) > LONG:
        return part.copy()
    if kind is list or (kind is tuple and any(type(one) in _MUTABLE for one in part)):
        return kind([_held_part(one, looks) for one in part])
    return part


def copy_of(array: Array) -> Any:
    """Return a copy of an array: the one that there is, if the array is what it was."""
    key = array.__array_interface__["data"][0]
    found = _COPIES.get(key)
    if found is None or not _is_copy(found, array):
        found = _COPIES[key] = array.copy("K")
    return found


def _is_copy(found: Array, array: Array) -> bool:
    is_like = (type(found), found.dtype, found.shape) == (type(array), array.dtype, array.shape)
    if not is_like or found.flags.c_contiguous != array.flags.c_contiguous:
        return False
    if array.flags.c_contiguous and array.dtype.kind in "biufc" and not array.nbytes % 8:
        return bool((found.reshape(-1).view(np.int64) == array.reshape(-1).view(np.int64)).all())
    return bool(found.tobytes() == array.tobytes())


def _sampled(array: Array) -> Callable[[Any], Any]:
    """Return what puts a look before a pullback: whether some entries of the array that it reads are what they were."""
    entries = entries_of(array)

    def before(pullback: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def look_and_pull(cotangent: Any) -> Any:
            if entries_of(array) != entries:
                raise NotDifferentiableError(refusals.of_written(array.shape))
            return pullback(cotangent)

        return look_and_pull

    return before


def looking(pullback: Any, looks: Sequence[Callable[[Any], Any]]) -> Any:
    """Return a pullback that takes these looks first."""
    for look in looks:
        pullback = look(pullback)
    return pullback
