"""Traced values that a chunk function carries along: found, and made shared arguments, or refused by name.

A chunk task may not meet a value of somebody else's tape. What a function holds in closures, default arguments,
partials, bound instances and containers is taken out here and given back, chunk by chunk, as plain or newly traced
values. What it reaches through globals or attributes of classes and modules can't be given back without changing them
for everybody, and is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from dagad._pytrees import pytree
from dagad._pytrees.partition import Partition
from dagad._pytrees.templates import Template
from dagad._pytrees.walk import Walk


def hoist(fun: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Return the traced values that a function carries, and how to make the function with other values in their place.

    Raises
    ------
    ClosureError
        If it reaches a traced value in a way that can't be replaced; the message names the way.
    """
    walk = Walk(fun)
    carriers = walk.carriers()
    walk.refuse_names(carriers)
    if not walk.boxes:
        return [], functools.partial(_unchanged, fun)
    walk.refuse_ids(carriers)
    walk.refuse_weak(carriers)
    return _flat(list(walk.boxes.values()), Template.of(fun, tuple(walk.boxes), carriers))


def _unchanged(fun: Any, values: Sequence[Any]) -> Any:
    del values
    return fun


def _flat(hoisted: list[Any], make: Any) -> tuple[list[Any], Any]:
    """Take traced containers, as autograd's own transforms make them of pytrees, apart into their leaves."""
    if not any(isinstance(pytree.plain(box), list | tuple | dict) for box in hoisted):
        return hoisted, make
    partitions = [Partition.of(pytree.open_containers(box), pytree.is_traced) for box in hoisted]
    return [leaf for p in partitions for leaf in p.taken], _Refilled(make, [p.bare() for p in partitions])


class _Refilled:
    """Puts leaves back into containers before a function is made with them."""

    __slots__ = ("_make", "_partitions")

    def __init__(self, make: Any, partitions: list[Partition]) -> None:
        self._make, self._partitions = make, partitions

    def __call__(self, values: Any) -> Any:
        rest = iter(values)
        return self._make([p.merge(rest) for p in self._partitions])

    def __reduce__(self) -> tuple[Any, ...]:
        return _Refilled, (self._make, self._partitions)
