"""Values that a chunk function carries along: found, and given back chunk by chunk as others, or refused by name.

A chunk task may not meet a value of somebody else's tape. What a function holds in closures, default arguments,
partials, bound instances and containers is taken out here and given back, chunk by chunk, as plain or newly traced
values. What it reaches through globals or attributes of classes and modules can't be given back without changing them
for everybody, and is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CellType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from dagad._errors import ClosureError
from dagad._types import Array
from dagad._values import pytree
from dagad._values.canonical import is_frozen
from dagad._values.contents import Making, set_attributes
from dagad._values.kinds import CELL, FUNCTION, PARTIAL, WRAPPER, kind_of
from dagad._values.partition import Partition
from dagad._values.reach import Contents, contents_of, held_by, is_rule, written_elsewhere
from dagad._values.walk import Walk, leading_to, leads_nowhere

# Arrays in anything else are data, and go as they are.
_LOOKED_INTO = frozenset({FUNCTION, CELL, PARTIAL, WRAPPER})
_CONTAINERS = frozenset({tuple, list, dict})
Make = Callable[[Sequence[Any]], Any]


def closure_convert(fun: object) -> tuple[list[Any], Make]:
    """Return the traced values that a function carries, and how to make the function with other values in their place.

    What it reaches in a way that can't be replaced is refused, by the name of that way.
    """
    if leads_nowhere(fun):  # often, and quickly seen
        return [], functools.partial(unchanged, fun)
    walk = Walk(fun)
    carriers = carriers_of(walk)
    return taken_out(fun, walk.boxes, carriers) if walk.boxes else ([], functools.partial(unchanged, fun))


def carriers_of(walk: Walk) -> set[int]:
    """Return the ids of what leads to traced values; what can't be made again with others in their place is refused."""
    carriers = walk.carriers()
    walk.refuse_names(carriers)
    if walk.boxes:
        walk.refuse_ids(carriers)
        walk.refuse_weak(carriers)
    return carriers


def taken_out(
    fun: object,
    known: Mapping[int, Any],
    carriers: set[int],
    contents: Mapping[int, Contents] | None = None,
    others: Sequence[int] = (),
) -> tuple[list[Any], Make]:
    """Return the traced values that are known to be in a function, and how to make it again: see `Template.of`.

    To make it, what is to be in the place of `others`, which are ids too, comes after these values.
    """
    boxes, template = list(known.values()), Template.of(fun, [*known, *others], carriers, contents)
    if not any(isinstance(pytree.plain(box), list | tuple | dict) for box in boxes):
        return boxes, template
    # Traced containers, as autograd's own transforms make them of pytrees, are taken apart into their leaves.
    partitions = [Partition.of(pytree.open_containers(box), pytree.is_traced) for box in boxes]
    return [leaf for p in partitions for leaf in p.taken], functools.partial(
        _merged, template, [p.bare() for p in partitions]
    )


def carries_traced(what: object) -> bool:
    """Return whether something traced is carried, or reached by name."""
    return not leads_nowhere(what) and Walk(what).finds


def unchanged(fun: object, values: Sequence[Any]) -> Any:
    """Return a function that carries nothing traced: itself."""
    del values
    return fun


def _merged(template: Template, partitions: Sequence[Partition], values: Sequence[Any]) -> Any:
    rest = iter(values)
    return template([*[p.merge(rest) for p in partitions], *rest])


def with_arrays(fun: Any, take: Callable[[Any], Any]) -> Any:
    """Return a function with `take(array)` for the arrays in its closures, defaults and partials, and in its helpers'.

    Those in tuples there are arrays of its closures, too.

    It is the function itself where `take` changes none of them. Functions that share a variable go on sharing it.
    """
    bare = fun.fun if kind_of(type(fun)) is WRAPPER else fun
    if type(bare) is FunctionType and not (bare.__closure__ or bare.__defaults__ or bare.__kwdefaults__):
        return fun  # nearly always
    if not _is_looked_into(fun):
        return fun
    # A decorated helper stays as it is: its identity may count, as that of autograd's primitives does. So do lists and
    # dicts, which a function may fill; a tuple is another one.
    parts, owners = held_by(
        fun, lambda part: type(part) is tuple or (_is_looked_into(part) and not _is_decorated(part))
    )
    arrays, changed = _taken_of(parts, take)
    for key in written_elsewhere(fun, arrays, owners):
        del changed[key]  # it would read what it had before, where it reads what it has written
    return Template.of(fun, changed, leading_to(changed, owners))(list(changed.values())) if changed else fun


def _taken_of(parts: dict[int, Any], take: Callable[[Any], Any]) -> tuple[dict[int, Array], dict[int, Any]]:
    """Take the arrays out of some parts, and return those for which there are others, and these."""
    arrays, changed = dict[int, Array](), dict[int, Any]()
    for key in [key for key, part in parts.items() if type(part) is np.ndarray]:
        array = parts.pop(key)  # or the parts would hold it, too
        new = take(array)
        if new is not array:
            arrays[key], changed[key] = array, new
    return arrays, changed


def as_now(fun: object) -> Any:
    """Return functions, in builtin containers too, whose variables stay as they are now: with cells of their own.

    What runs a function again, later, for a derivative, would see what a loop has put into its variables since. Arrays
    that somebody may write into are copied.
    """
    parts, owners = held_by(
        fun, lambda part: type(part) in _CONTAINERS or (_is_looked_into(part) and not is_rule(part))
    )
    cells = {key for key, part in parts.items() if type(part) is CellType}
    arrays = {key: part for key, part in parts.items() if type(part) is np.ndarray and not is_frozen(part)}
    if not (cells or arrays):
        return fun
    carriers = cells | leading_to([*cells, *arrays], owners)
    return Template.of(fun, arrays, carriers)([part.copy() for part in arrays.values()])


def _is_decorated(obj: object) -> bool:
    return type(obj) is FunctionType and bool(obj.__dict__)


def _is_looked_into(obj: object) -> bool:
    return kind_of(type(obj)) in _LOOKED_INTO


class Template:
    """A function with holes where it carried some values; called with others, it makes the function again."""

    __slots__ = ("_fun",)

    def __init__(self, fun: Stand) -> None:
        self._fun = fun

    @classmethod
    def of(
        cls,
        fun: object,
        values: Iterable[int],
        carriers: set[int],
        contents: Mapping[int, Contents] | None = None,
        makings: Mapping[int, Making] | None = None,
    ) -> Template:
        """Make the template, from the ids of the values and of all that leads to them.

        What is in `contents`, by ids, held that and no longer does; what is in `makings` is made in that way.
        """
        holes = {key: Hole(number) for number, key in enumerate(values)}
        return cls(_deeply(_Taken(holes, carriers, contents or {}, makings or {}), fun))

    def __call__(self, values: Sequence[Any]) -> Any:
        return _deeply(self._fun.made, _Making(values))

    def __reduce__(self) -> tuple[Any, ...]:
        return Template, (self._fun,)


def _deeply(work: Callable[[Any], Any], fun: object) -> Any:
    try:
        return work(fun)
    except RecursionError:
        raise ClosureError(
            "A value being differentiated is held by objects that are nested too deeply to be copied. Pass the value "
            "to the function as a shared argument."
        ) from None


class Hole(NamedTuple):
    """Stands where a value was."""

    number: int

    def made(self, making: _Making) -> Any:
        return making.values[self.number]


class Whole(NamedTuple):
    """Stands where something stood that leads to no hole: it stays as it is."""

    part: Any

    def made(self, making: _Making) -> Any:
        del making
        return self.part


class Carrier:
    """Stands where something stood that holds a hole; keeps how to make it again. It may lead back to itself."""

    __slots__ = ("attributes", "first", "making", "rest", "values")
    making: Any
    attributes: Sequence[Any]
    first: list[Stand]
    rest: list[Stand]
    values: list[Stand]

    def made(self, making: _Making) -> Any:
        found, key, (make, fill) = making.found, id(self), self.making
        if key not in found:
            first = making.all(self.first)
            if key in found:  # a part led back here, and has made it
                return found[key]
            made = found[key] = make(first)
            fill(made, making.all(self.rest))
            if self.values:
                set_attributes(made, self.attributes, making.all(self.values))
        return found[key]


Stand = Hole | Whole | Carrier


class _Taken:
    """Takes objects apart: holes for values, carriers for what holds them, all else whole."""

    def __init__(
        self,
        holes: Mapping[int, Hole],
        carriers: set[int],
        contents: Mapping[int, Contents],
        makings: Mapping[int, Making],
    ) -> None:
        self._holes, self._carriers, self._contents, self._makings = holes, carriers, contents, makings
        self._taken: dict[int, Carrier] = {}

    def __call__(self, obj: object) -> Stand:
        key = id(obj)
        if key in self._holes:
            return self._holes[key]
        if key not in self._carriers:
            return Whole(obj)
        if key not in self._taken:
            made = self._taken[key] = Carrier()  # before its parts, which may lead back to it
            made.making = self._makings.get(key) or kind_of(type(obj)).making(obj)
            first, rest, made.attributes, values = self._contents.get(key) or contents_of(obj)
            made.first, made.rest, made.values = (list(map(self, parts)) for parts in (first, rest, values))
        return self._taken[key]


class _Making:
    """What objects are made again with: values for the holes, and what has been made, each once."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values
        self.found: dict[int, Any] = {}

    def all(self, stands: Sequence[Stand]) -> list[Any]:
        return [stand.made(self) for stand in stands]
