"""What functions of the user's give, in memory that they don't write to when they are called again.

A compiled kernel fills a buffer that it has allocated once, and returns that for every chunk: what is added up later
would be the last chunk's, as many times. Such an array is known by who holds it: one that was made for this call is
held by nobody but the result. That costs no copy. Any other one is copied, before the function is called again.

What a function reads later, and others hold too, is compared then with what it was: all of a small array, of a large
one some entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from sys import getrefcount
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from dagad._types import Array, Tree
from dagad._values import pytree


def _holders_of_one() -> int:
    alone = np.empty(0)
    return getrefcount(alone)


ALONE = _holders_of_one()  # what Python counts for an array that one local variable, or one container, holds
IN_A_CALL = ALONE + 1  # and for one that is in a container and in a variable, or in those of two functions
_KINDS: frozenset[Any] = frozenset({tuple, list})
_NO_HOLDERS = (type, ModuleType, np.generic, int, float, complex, str, bytes)


def is_own(array: Array) -> bool:
    """Return whether an array has memory of its own, or is the only view of some that nobody else holds."""
    base = array.base
    return base is None or (type(base) is np.ndarray and base.base is None and getrefcount(base) <= IN_A_CALL)


def kept(given: Any) -> Any:
    """Return what a function gave, with copies of the arrays that others hold too; a variable of the caller has it."""
    kind = type(given)
    if kind is np.ndarray:
        return given if getrefcount(given) <= IN_A_CALL and is_own(given) else given.copy("K")
    if kind in _KINDS and getrefcount(given) <= IN_A_CALL and not any(map(_is_deep, given)):
        found = []
        for part in given:
            theirs = type(part) is np.ndarray and (getrefcount(part) > IN_A_CALL or not is_own(part))
            found.append(part.copy("K") if theirs else part)
        return kind(found)
    return copied(given)


def copied(tree: Tree) -> Any:
    """Return a pytree with copies of its arrays."""
    if type(tree) is np.ndarray:
        return tree.copy("K")
    leaves, treedef = pytree.flatten(tree)
    if np.ndarray not in map(type, leaves):
        return tree
    return pytree.unflatten(treedef, [leaf.copy("K") if type(leaf) is np.ndarray else leaf for leaf in leaves])


def _is_deep(part: Any) -> bool:
    return type(part) is not np.ndarray and not pytree.is_leaf(part)


SAMPLE = 16  # entries of an array
SMALL = 1 << 15  # bytes that are compared in less time than most functions take
DEEPEST = 3  # functions in variables of functions, and so on
LONGEST = 20  # parts of a list


def entries_of(array: Array, n_entries: int = SAMPLE) -> bytes:
    """Return some entries of an array that is not empty, at equal distances, the last one too."""
    step = array.size // n_entries | 1
    flat = array.ravel("K") if array.flags.forc else array.flat
    found: bytes = flat[(array.size - 1) % step :: step].tobytes()
    return found


class Lent:
    """Arrays that a function reads when it is called, and others may write into before; and what they are now."""

    __slots__ = ("_arrays",)

    def __init__(self, fun: object) -> None:
        self._arrays = [(array, _contents(array)) for array in _of_others(fun, 0)]

    def __bool__(self) -> bool:
        return bool(self._arrays)

    def have_changed(self) -> bool:
        return any(_contents(array) != before for array, before in self._arrays)


def _contents(array: Array) -> bytes:
    return array.tobytes() if array.nbytes <= SMALL else entries_of(array, 4 * SAMPLE)


def _of_others(fun: object, depth: int) -> Iterator[Any]:
    if depth == DEEPEST:
        return
    if isinstance(fun, FunctionType):
        for cell in fun.__closure__ or ():
            try:
                part = cell.cell_contents
            except ValueError:  # a variable without a value
                continue
            if type(part) is not np.ndarray:
                yield from _of_others(part, depth + 1)
            elif getrefcount(part) > IN_A_CALL or not is_own(part):
                yield from _writeable(part)
        parts = [fun.__globals__.get(name) for name in fun.__code__.co_names] + list(fun.__defaults__ or ())
    elif isinstance(fun, partial):
        parts = [fun.func, *fun.args, *fun.keywords.values()]
    elif isinstance(fun, MethodType):
        parts = [fun.__func__, fun.__self__]
    elif isinstance(fun, list | tuple):
        parts = list(fun[:LONGEST])
    else:
        parts = list(getattr(fun, "__dict__", {}).values()) if not isinstance(fun, _NO_HOLDERS) else []
    for part in parts:
        yield from _writeable(part) if type(part) is np.ndarray else _of_others(part, depth + 1)


def _writeable(array: Array) -> Iterator[Any]:
    if array.flags.writeable and array.size:
        yield array
