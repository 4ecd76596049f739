"""Objects with holes: how a function that carries traced values is made again with others in their place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dagad._errors import ClosureError
from dagad._pytrees.containers import kind_of
from dagad._pytrees.copies import Kind

TOO_DEEP = (
    "A value being differentiated is held by objects that are nested too deeply to be copied. Pass the value to the "
    "function as a shared argument."
)


class Template:
    """A function with holes where traced values were. The holes are known by identity while the original lives."""

    __slots__ = ("_fun",)

    def __init__(self, fun: Any) -> None:
        self._fun = fun

    @classmethod
    def of(cls, fun: Any, holes: tuple[int, ...], carriers: set[int]) -> Template:
        """Make the template of `fun`, where `holes` and `carriers` are ids of objects it carries."""
        try:
            return cls(_Taken({hole: place for place, hole in enumerate(holes)}, carriers)(fun))
        except RecursionError:
            raise ClosureError(TOO_DEEP) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return Template, (self._fun,)

    def __call__(self, values: Sequence[Any]) -> Any:
        """Return the function with `values` in the holes."""
        try:
            return _Made(values)(self._fun)
        except RecursionError:
            raise ClosureError(TOO_DEEP) from None


class Hole:
    """Stands where a traced value was."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return Hole, (self.place,)


class Carrier:
    """Stands where something stood that holds a hole; keeps how to make it again. It may lead back to itself."""

    __slots__ = ("first", "fixed", "kind", "rest")
    kind: type[Kind]
    fixed: Any
    first: list[Any]
    rest: list[Any]


class _Taken:
    """Takes objects apart: holes for traced values, carriers for what holds them, all else as it is."""

    def __init__(self, holes: dict[int, int], carriers: set[int]) -> None:
        self._holes, self._carriers = holes, carriers
        self._taken: dict[int, Carrier] = {}

    def __call__(self, obj: Any) -> Any:
        key = id(obj)
        if key in self._holes:
            return Hole(self._holes[key])
        if key not in self._carriers:
            return obj
        if key not in self._taken:
            made = self._taken[key] = Carrier()  # before its parts, which may lead back to it
            made.kind = kind_of(type(obj))
            made.fixed = made.kind.fixed(obj)
            made.first, made.rest = list(map(self, made.kind.first(obj))), list(map(self, made.kind.rest(obj)))
        return self._taken[key]


class _Made:
    """Makes objects again, each once, with values in the holes."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values
        self._made: dict[int, Any] = {}

    def __call__(self, part: Any) -> Any:
        if type(part) is Hole:
            return self._values[part.place]
        if type(part) is not Carrier:
            return part
        key, kind = id(part), part.kind
        if key not in self._made:
            first = list(map(self, part.first))
            if key in self._made:  # a part led back here, and has made it
                return self._made[key]
            made = self._made[key] = kind.make(part.fixed, first)
            kind.finish(made, part.fixed, list(map(self, part.rest)))
        return self._made[key]
