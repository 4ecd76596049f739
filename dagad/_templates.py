"""Objects with holes: how a function that carries traced values is made again with others in their place."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np

from dagad._errors import ClosureError


def contents_of(cell: CellType) -> tuple[Any, ...]:
    """Return what a closure's cell holds, as a tuple of one; empty when the variable has no value yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def attributes_of(obj: Any) -> list[tuple[str, Any]]:
    """Return an instance's own attributes, those in slots too."""
    found = list(getattr(obj, "__dict__", {}).items())
    for cls in type(obj).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(obj, slot):
                found.append((slot, getattr(obj, slot)))
    return found


class Template:
    """A function with holes where traced values were. The holes are known by identity while the original lives."""

    __slots__ = ("_fun",)

    def __init__(self, fun: Any) -> None:
        self._fun = fun

    @classmethod
    def of(cls, fun: Any, holes: tuple[int, ...], carriers: frozenset[int]) -> Template:
        """Make the template of `fun`, where `holes` and `carriers` are ids of objects it carries."""
        return cls(_Rebuild({hole: place for place, hole in enumerate(holes)}, carriers, None)(fun))

    def __reduce__(self) -> tuple[Any, ...]:
        return Template, (self._fun,)

    def __call__(self, values: Sequence[Any]) -> Any:
        """Return the function with `values` in the holes."""
        return _Rebuild({}, frozenset(), values)(self._fun)


class Hole:
    """Stands where a traced value was."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return Hole, (self.place,)


class Carrier:
    """Stands where something stood that holds a hole; keeps how to make it again."""

    __slots__ = ("make", "parts")

    def __init__(self, make: Callable[[Any], Any], parts: Any) -> None:
        self.make, self.parts = make, parts

    def __reduce__(self) -> tuple[Any, ...]:
        return Carrier, (self.make, self.parts)


class _Rebuild:
    """Makes an object again: with holes for boxes (when `values` is None), or with `values` for holes."""

    def __init__(self, holes: dict[int, int], carriers: frozenset[int], values: Sequence[Any] | None) -> None:
        self._holes, self._carriers, self._values = holes, carriers, values
        self._made: dict[int, Any] = {}
        self._making: set[int] = set()

    def __call__(self, obj: Any) -> Any:
        if self._values is None:
            if id(obj) in self._holes:
                return Hole(self._holes[id(obj)])
            return self._once(obj, self._template_of) if id(obj) in self._carriers else obj
        if type(obj) is Hole:
            return self._values[obj.place]
        return self._once(obj, self._carried) if type(obj) is Carrier else obj

    def _once(self, obj: Any, make: Callable[[Any], Any]) -> Any:
        if id(obj) in self._making:
            raise ClosureError(
                f"`{getattr(obj, '__name__', type(obj).__name__)}` carries a value being differentiated and refers to "
                "itself, so dagad can't make it again. Pass the value to the function as a shared argument."
            )
        if id(obj) not in self._made:
            self._making.add(id(obj))
            self._made[id(obj)] = make(obj)
            self._making.discard(id(obj))
        return self._made[id(obj)]

    def _carried(self, carrier: Carrier) -> Any:
        return carrier.make([self(part) for part in carrier.parts])

    def _template_of(self, obj: Any) -> Carrier:
        if isinstance(obj, FunctionType):
            return self._function(obj)
        if isinstance(obj, functools.partial):
            keys = tuple(obj.keywords)
            make: Any = functools.partial(_make_partial, len(obj.args), keys)
            return Carrier(make, [self(part) for part in (obj.func, *obj.args, *obj.keywords.values())])
        if isinstance(obj, MethodType):
            return Carrier(_make_method, [self(obj.__func__), self(obj.__self__)])
        if isinstance(obj, dict):
            shell = copy.copy(obj)
            shell.clear()
            make = functools.partial(_make_dict, shell, tuple(obj))
            return Carrier(make, [self(item) for item in obj.values()])
        if isinstance(obj, list | tuple | set | frozenset):
            return Carrier(functools.partial(_make_sequence, type(obj)), [self(item) for item in obj])
        if isinstance(obj, np.ndarray):
            return Carrier(functools.partial(_make_object_array, obj.shape), [self(item) for item in obj.flat])
        attributes = attributes_of(obj)
        _empty(type(obj))  # refused here rather than in a chunk
        make = functools.partial(_make_instance, type(obj), tuple(key for key, _ in attributes))
        return Carrier(make, [self(item) for _, item in attributes])

    def _function(self, function: FunctionType) -> Carrier:
        cells = function.__closure__ or ()
        held = [(place, contents) for place, cell in enumerate(cells) for contents in contents_of(cell)]
        replaced = [(place, contents) for place, contents in held if self._concerns(contents)]
        defaults = function.__defaults__ or ()
        keywords = function.__kwdefaults__ or {}
        places = tuple(place for place, _ in replaced)
        # Without the traced values, or they would travel with it.
        bare = _make_function(function, places, 0, (), [None] * len(places))
        make = functools.partial(_make_function, bare, places, len(defaults), tuple(keywords))
        return Carrier(make, [self(part) for part in (*(v for _, v in replaced), *defaults, *keywords.values())])

    def _concerns(self, obj: Any) -> bool:
        return id(obj) in self._holes or id(obj) in self._carriers


def _make_function(original: FunctionType, places: tuple[int, ...], n_defaults: int, keys: Any, parts: Any) -> Any:
    cells = list(original.__closure__ or ())
    for place, part in zip(places, parts, strict=False):
        cells[place] = CellType(part)
    made = with_cells(original, cells)
    rest = parts[len(places) :]
    made.__defaults__ = tuple(rest[:n_defaults]) or None
    made.__kwdefaults__ = dict(zip(keys, rest[n_defaults:], strict=True)) or None
    return made


def with_cells(original: FunctionType, cells: list[CellType]) -> FunctionType:
    """Return the same function with another closure."""
    made = FunctionType(original.__code__, original.__globals__, original.__name__, original.__defaults__, tuple(cells))
    made.__kwdefaults__ = original.__kwdefaults__
    made.__qualname__, made.__module__, made.__doc__ = original.__qualname__, original.__module__, original.__doc__
    made.__dict__.update({key: value for key, value in original.__dict__.items() if key != "__wrapped__"})
    return made


def _make_partial(n_args: int, keys: tuple[str, ...], parts: Any) -> Any:
    return functools.partial(parts[0], *parts[1 : n_args + 1], **dict(zip(keys, parts[n_args + 1 :], strict=True)))


def _make_method(parts: Any) -> Any:
    return MethodType(parts[0], parts[1])


def _make_dict(shell: Any, keys: tuple[Any, ...], parts: Any) -> Any:
    made = copy.copy(shell)  # a defaultdict, say, keeps what it makes its defaults with
    made.update(zip(keys, parts, strict=True))
    return made


def _make_sequence(cls: Any, parts: Any) -> Any:
    return cls(*parts) if hasattr(cls, "_fields") else cls(parts)


def _make_object_array(shape: tuple[int, ...], parts: Any) -> Any:
    made = np.empty(len(parts), object)
    made[:] = parts
    return made.reshape(shape)


def _make_instance(cls: Any, keys: tuple[str, ...], parts: Any) -> Any:
    made = _empty(cls)
    for key, part in zip(keys, parts, strict=True):
        object.__setattr__(made, key, part)  # frozen records too
    return made


def _empty(cls: Any) -> Any:
    """Return an instance without attributes."""
    try:
        return cls.__new__(cls)
    except TypeError as error:
        raise ClosureError(
            f"A value being differentiated is held by a `{cls.__name__}`, which dagad can't copy. "
            "Pass the value to the function as a shared argument."
        ) from error
