"""Arrays that were changed in place while they were traced: others that share their memory are not used any more.

In numpy `y *= 2` changes all that shares memory with `y`: what it is a view of, its views, and `y` under other names. A
traced value has operations behind it, and stays as it is: `y` is another one afterwards. So the others are stale, and
using one is refused. Values are numpy's own arrays, and it is these that share memory.

State: `CHANGED`, for each trace in which that has happened the regions of memory, until the trace is over; `OPEN`, the
numbers of traces that are not, kept by `patches`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import EllipsisType
from typing import Any

import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._tracing import refusals
from dagad._tracing.private import box_types
from dagad._types import Array, Index
from dagad._values import pytree

_BASIC = int | np.integer | slice | EllipsisType | None
OPEN: dict[int, int] = {}
CHANGED: dict[int, dict[int, list[_Region]]] = {}
_LONGEST = 10_000  # steps in which numpy finds out whether two arrays share memory; else they do
_share: Any = np.shares_memory  # whose types leave out that there may be so many steps


class _Here(threading.local):
    takes_part = False  # whether this thread takes a part out of an array that was looked at


_HERE = _Here()


class _Region:
    """Memory of an array, without the array: it may go when nobody else has it."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, array: Array, owner: object, gone: Callable[[Any], Any]) -> None:
        self.__array_interface__ = array.__array_interface__
        self.owner = weakref.ref(owner, gone)

    def is_in(self, array: Array, owner: object) -> bool:
        if self.owner() is not owner:  # the memory has gone, and what is there now is another array
            return False
        return share_memory(np.asarray(self), array)


def share_memory(one: Array, other: Array) -> bool:
    """Return whether two arrays have memory in common, or may have: where to find out would take long."""
    try:
        return bool(_share(one, other, max_work=_LONGEST))
    except np.exceptions.TooHardError:
        return True


def is_view(where: Index) -> bool:
    """Return whether what numpy returns for an index shares the array's memory."""
    return all(isinstance(part, _BASIC) for part in (where if isinstance(where, tuple) else (where,)))


def _owner_of(array: Array) -> Any:
    """Return the array whose memory it is; between the two there may be what numpy makes strides with."""
    while True:
        base = array.base
        if not isinstance(base, np.ndarray):
            base = getattr(base, "base", None)
        if not isinstance(base, np.ndarray):
            return array
        array = base


def changed(box: Array, found: Array, name: str) -> Any:
    """Return what a traced array becomes by an operation in place; numbers are no arrays, and share no memory."""
    array = pytree.plain(box)
    if not isinstance(array, np.ndarray) or found is NotImplemented:
        return found
    new = pytree.plain(found)
    if np.shape(new) != array.shape:
        raise ValueError(
            f"non-broadcastable output operand with shape {array.shape} doesn't match the broadcast shape "
            f"{np.shape(new)}. An array that is changed in place keeps its shape: write `x = x + y`."
        )
    if new.dtype != array.dtype:
        if not np.can_cast(new.dtype, array.dtype, "same_kind"):
            raise TypeError(
                f"Cannot cast ufunc '{name}' output from {new.dtype!r} to {array.dtype!r} with casting rule "
                "'same_kind'. An array that is changed in place keeps its dtype: write `x = x + y`."
            )
        found = found.astype(array.dtype)
    if box._trace in OPEN:
        owner = _owner_of(array)
        regions, key = CHANGED.setdefault(box._trace, {}), id(owner)
        # They go with the memory: in a long loop there would be more and more of them.
        gone = functools.partial(_forget, regions, key)
        regions.setdefault(key, []).append(_Region(array, owner, gone))
    return found


def _forget(regions: dict[int, list[_Region]], key: int, reference: weakref.ref[Any]) -> None:
    del reference
    regions.pop(key, None)


def refuse_stale_memory(values: Iterable[Any]) -> None:
    """Refuse traced values that are used, of which the memory was changed in place under another name."""
    if _HERE.takes_part:
        return
    for box in values:
        if type(box) in box_types and box._trace in CHANGED:
            array = pytree.plain(box)
            if isinstance(array, np.ndarray):
                _refuse_overlap(CHANGED[box._trace], array)


def _refuse_overlap(regions: dict[int, list[_Region]], array: Array) -> None:
    owner = _owner_of(array)
    if any(region.is_in(array, owner) for region in regions.get(id(owner), ())):
        raise NotDifferentiableError(refusals.of_view())


@contextlib.contextmanager
def as_part(box: Array, where: Index) -> Iterator[None]:
    """Look at the part of a traced array alone that is taken out of it: others may have been changed."""
    array = pytree.plain(box)
    part = _view(array, where) if isinstance(array, np.ndarray) else None
    if part is None:
        yield
        return
    while type(box) in box_types:
        _refuse_overlap(CHANGED.get(box._trace, {}), part)
        box = box._value
    _HERE.takes_part = True
    try:
        yield
    finally:
        _HERE.takes_part = False


def _view(array: Array, where: Index) -> Any:
    """Return a view of a part of an array; None if such an index gives a copy, or fails."""
    index = where if isinstance(where, tuple) else (where,)
    if not is_view(where) or any(isinstance(each, bool) for each in index):
        return None
    try:
        return array[index if any(each is ... for each in index) else (*index, ...)]
    except IndexError:
        return None
