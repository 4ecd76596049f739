"""States that wait in files, rather than in memory, until a schedule takes them up again."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import weakref
from typing import Any

import dask
import numpy as np

from dagad._errors import add_note_once
from dagad._types import Leaf, Value
from dagad._values import pytree


def write_state(directory: object, value: Value) -> WrittenState | HeldState:
    """Put the arrays of a value into a file: a task of a scheduled graph."""
    leaves, treedef = pytree.flatten_with_none(value)
    numbers = [leaf for leaf in leaves if _goes_to_file(leaf)]
    if not numbers:
        return HeldState(value)
    where, path = _directory(directory), ""
    try:
        os.makedirs(where, exist_ok=True)
        handle, path = tempfile.mkstemp(".npy", "dagad-state-", where)
        with open(handle, "wb") as file:
            for array in numbers:
                np.save(file, array, allow_pickle=False)
    except OSError as error:
        _remove(path, os.getpid())
        add_note_once(error, f"dagad: while a state was written to {str(where)!r}; `disk=` may name another directory")
        raise
    rest = [None if _goes_to_file(leaf) else leaf for leaf in leaves]
    return WrittenState(path, rest, list(map(_goes_to_file, leaves)), treedef)


def read_state(written: WrittenState | HeldState, gate: object) -> Any:
    """Return the value that is in a file: a task of a scheduled graph, which waits for a gate."""
    del gate
    return written.value()


class WrittenState:
    """A value whose arrays are in a file, which lives as long as this does.

    On a journey it takes the value along, since another machine may not have the file.
    """

    __slots__ = ("__weakref__", "_in_file", "_path", "_rest", "_treedef")

    def __init__(self, path: str, rest: list[Any], in_file: list[bool], treedef: pytree.TreeDef) -> None:
        self._path, self._rest, self._in_file, self._treedef = path, rest, in_file, treedef
        weakref.finalize(self, _remove, path, os.getpid())

    def value(self) -> Any:
        with open(self._path, "rb") as file:
            pairs = zip(self._rest, self._in_file, strict=True)
            leaves = [np.load(file, allow_pickle=False) if written else leaf for leaf, written in pairs]
        return pytree.unflatten(self._treedef, leaves)

    def __reduce__(self) -> tuple[Any, ...]:
        return HeldState, (self.value(),)


class HeldState:
    """What a written state is after a journey, or where it has no arrays."""

    __slots__ = ("_value",)

    def __init__(self, value: Value) -> None:
        self._value = value

    def value(self) -> Any:
        return self._value

    def __reduce__(self) -> tuple[Any, ...]:
        return HeldState, (self._value,)


def _goes_to_file(leaf: Leaf) -> bool:
    return type(leaf) is np.ndarray and not leaf.dtype.hasobject


def _directory(given: object) -> Any:
    """Return where files go: the directory that was given, or that of this worker, or Dask's."""
    if given is not True:
        return given
    if "distributed" in sys.modules:
        from distributed import get_worker

        with contextlib.suppress(ValueError):  # this is not a worker
            return get_worker().local_directory
    return dask.config.get("temporary-directory", None) or tempfile.gettempdir()


def _remove(path: str, pid: int) -> None:
    if os.getpid() == pid:  # a process that was forked has it too, and no right to it
        with contextlib.suppress(OSError):  # its directory may have gone before, with the worker
            os.unlink(path)
