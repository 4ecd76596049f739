"""What goes by value and exists once a process, classes and primitives: whether it is what a program came with."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

from dagad._values import arriving_classes
from dagad._values.names import of_class
from dagad._values.shipping import Pickler, as_primitive

_ABSENT = object()


class Singletons:
    """Classes and primitives of one program, with the state that they had when it was opened.

    Classes of `__main__` and primitives go by value, but every pickle that brings one fills the same object again: an
    instance from one pickle has to be an instance for all others. So a program that was opened earlier runs with
    whatever state came last, with another program, in a task of the user's own, or with rows that moved. No bytes on
    the sending side can tell; whoever opened the program has to look.
    """

    __slots__ = ("_found", "_parts")

    def __init__(self, parts: Iterable[Any]) -> None:
        self._parts = tuple(parts)
        self._found = [_state(part) for part in self._parts]

    def are_as_found(self) -> bool:
        """Return whether all have the state that they had; equal parts that came with another pickle are the same."""
        for number, part in enumerate(self._parts):
            found, now = self._found[number], _state(part)
            if len(found) != len(now):
                return False
            if not all(self._is_same(value, now.get(name, _ABSENT)) for name, value in found.items()):
                return False
            self._found[number] = now  # the next look compares by identity again
        return True

    def _is_same(self, one: object, other: object) -> bool:
        if one is other:
            return True
        if type(one) is not type(other):
            return False
        try:
            return self._content(one) == self._content(other)
        except Exception:  # what can't be pickled can't have arrived by pickle: somebody here has put it there
            return False

    def _content(self, value: object) -> list[bytes]:
        buffers: list[pickle.PickleBuffer] = []
        file = io.BytesIO()
        _Content(self._parts, file, protocol=5, buffer_callback=buffers.append).dump(value)
        return [file.getvalue(), *(bytes(buffer.raw()) for buffer in buffers)]


class _Content(Pickler):
    """Writes what something consists of, up to the classes and primitives: these are looked at one by one."""

    def __init__(self, parts: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._numbers = {id(part): number for number, part in enumerate(parts)}

    def persistent_id(self, obj: object) -> int | None:
        return self._numbers.get(id(obj))


def _state(part: object) -> dict[Any, Any]:
    if isinstance(part, type):
        return dict(of_class(part)) | arriving_classes.of_type(part)
    how = as_primitive(part)
    return dict(enumerate(how.state(part) if how else ()))
