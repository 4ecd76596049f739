"""What a pullback that a function brings along has captured of the point where the function was called.

A second derivative is one of the pullback with respect to that point. Where the value is written with numpy, the
function is called at traced arguments, and its pullback captures what is traced. Where it is not, as where compiled
code computes it, the function is called with plain ones, and what its pullback holds is looked through: an argument,
or what the function returned, is put in traced; what stays the same when all arguments move a little is constant;
anything else depends on them in a way that nobody knows, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from dagad._engines.differences import differs
from dagad._errors import NotDifferentiableError
from dagad._tracing.flat_functions import FlatFunction, Leaves
from dagad._tracing.forward import push
from dagad._types import Function, Leaf
from dagad._values import pytree
from dagad._values.closures import Template
from dagad._values.homes import is_closed, root_of
from dagad._values.kinds import HOMES, INSTANCE, UFUNC, kind_of
from dagad._values.walk import leading_to

STEP = 1e-5  # how far arguments move, of their size, to see what depends on them
_CONSTANT = (int, str, bytes, type(None), range, slice, np.dtype, np.integer, np.bool_, CodeType)  # bool is an int
Values = Callable[[Leaves], list[Any]]


class _Held(NamedTuple):
    """What a pullback holds: numbers and closed objects, each with how the user calls it; and what has each part."""

    parts: list[tuple[str, Any]]
    owners: dict[int, list[int]]

    def frozen(self) -> list[Any]:
        """Return the numbers as they are now: somebody may write into them."""
        return [_bits(part) for _, part in self.parts]


def _bits(part: Leaf) -> Any:
    if isinstance(part, np.ndarray | np.inexact | float | complex):
        array = np.asarray(part)
        return array.dtype.str, array.shape, array.tobytes()
    return id(part)


def _held(pullback: Function) -> _Held:
    found = _Held([], {})
    seen: dict[int, Any] = {id(pullback): pullback}
    stack: list[tuple[str, Any]] = [("the pullback", pullback)]
    while stack:
        label, obj = stack.pop()
        kind = kind_of(type(obj))
        for index, part in enumerate(kind.parts(obj)):
            if isinstance(part, _CONSTANT) or kind_of(type(part)) in (*HOMES, UFUNC):
                continue
            if type(part) is np.ndarray and part.dtype.kind not in "fcO":
                continue
            found.owners.setdefault(id(part), []).append(id(obj))
            if id(part) in seen:
                continue
            seen[id(part)] = part
            name = label.join(kind.label(obj, index).rpartition("{}")[::2])
            if isinstance(part, np.ndarray | np.inexact | float | complex) or _is_closed(part):
                found.parts.append((name, part))
            else:
                stack.append((name, part))
    return found


def _is_closed(part: object) -> bool:
    """Return whether nobody can look into an object: it may hold anything."""
    cls = type(part)
    has_attributes = bool(cls.__dictoffset__) or hasattr(cls, "__slots__")
    return kind_of(cls) is INSTANCE and (is_closed(root_of(cls)) or not has_attributes)


class Captured:
    """The pullback of a function at plain leaves, to be made again with traced ones in their place.

    Parameters
    ----------
    fun
        The function, which returned a value and a pullback at `leaves`.
    leaves
        Where somebody traces it.
    values
        From leaves to the function's outputs, by its own rule.
    why
        What the function said when it was called at traced leaves.
    """

    def __init__(self, fun: FlatFunction, leaves: Leaves, values: Values, why: Exception) -> None:
        self._fun, self._values, self._why = fun, values, why
        self._plain = [_fresh(pytree.plain(leaf), 0.0) for leaf in leaves]
        self._near = [_fresh(leaf, STEP) for leaf in self._plain]
        near, outputs = self._called(self._near)
        held_near = _held(near)
        frozen, marks_near = held_near.frozen(), self._marks(held_near, self._near, outputs)
        pulled_near = self._pulled(near, outputs)
        self._pullback, outputs = self._called(self._plain)
        held = _held(self._pullback)
        marks = self._marks(held, self._plain, outputs)
        self._refuse_unknown(held, frozen, marks, marks_near)
        self._indices = [mark for mark in marks if mark is not None]
        ids = dict.fromkeys(id(part) for (_, part), mark in zip(held.parts, marks, strict=True) if mark is not None)
        self._template = Template.of(self._pullback, ids, leading_to(ids, held.owners))
        self._check(pulled_near, outputs)

    def at(self, leaves: Leaves) -> Callable[[Any], Any]:
        """Return the pullback at leaves that somebody traces."""
        parts = [*leaves, *(self._values(leaves) if any(mark >= len(leaves) for mark in self._indices) else ())]
        made: Callable[[Any], Any] = self._template([parts[mark] for mark in self._indices])
        return made

    def _called(self, leaves: Leaves) -> tuple[Any, list[Any]]:
        value, pullback = self._fun.run(leaves)
        return pullback, self._fun.flatten(value)

    def _marks(self, held: _Held, leaves: Leaves, outputs: Sequence[Any]) -> list[int | None]:
        """Return for what a pullback holds which of the leaves and outputs it is; None for what is neither."""
        numbers = {id(part): number for number, part in enumerate([*leaves, *outputs])}
        numbers |= {id(leaf): number for number, leaf in enumerate(leaves)}  # one that was returned as it is
        return [numbers.get(id(part)) for _, part in held.parts]

    def _refuse_unknown(
        self, held: _Held, near: list[Any], marks: list[int | None], marks_near: list[int | None]
    ) -> None:
        if marks != marks_near:
            raise self._refused("what its pullback holds is not the same where the arguments are a little different")
        for (label, _), bits, before, mark in zip(held.parts, held.frozen(), near, marks, strict=True):
            if mark is None and bits != before:
                raise self._refused(f"its pullback reads {label}, which was computed there")

    def _pulled(self, pullback: Function, outputs: Sequence[Any]) -> list[Any]:
        seeds = [np.ones_like(part) if pytree.is_differentiable(part) else pytree.zeros_like(part) for part in outputs]
        return self._fun.extract(pullback(self._fun.merge(seeds)))

    def _check(self, near: list[Any], outputs: Sequence[Any]) -> None:
        """Compare with a difference: what a library keeps between two calls is held by no pullback."""
        delta = [there - here for there, here in zip(self._near, self._plain, strict=True)]
        here, (tangents_out,) = push(lambda leaves: self._pulled(self.at(leaves), outputs), self._plain, [delta])
        for there, value, tangent in zip(near, here, tangents_out, strict=True):
            if differs(there, value, tangent):
                raise self._refused("its pullback depends on the arguments in another way than by what it holds")

    def _refused(self, how: str) -> NotDifferentiableError:
        return NotDifferentiableError(
            f"A derivative of a derivative was asked for, through `{self._fun.name}`, which is marked explicit. What "
            f"it does before it returns leaves numpy ({self._why}), and {how}: its own derivative is not known. "
            "Compute in the pullback, from the arguments and the value, what it needs; or call what leaves numpy by "
            "the `value` of an explicit function of its own; or use first derivatives only."
        )


def _fresh(leaf: Leaf, step: float) -> Any:
    """Return a leaf as an object of its own, moved by about `step` of its size, each entry in its own way."""
    array = np.array(leaf)
    if step:
        ways = np.cos(1.0 + np.arange(array.size)).reshape(array.shape)
        array = np.array(array + step * (1.0 + abs(array)) * (ways + np.sign(ways)), array.dtype)
    array.flags.writeable = False  # a task would see a view of it, which is another object
    return array if isinstance(leaf, np.ndarray) else array[()]
