"""Every mode of a function that returns its value and its pullback: what follows from the pullback alone.

A pullback is linear in the cotangent, so forward mode is its transpose. A second derivative is a derivative of the
pullback, at arguments that somebody traces.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from sys import getrefcount
from typing import Any, NoReturn, cast

import numpy as np

from dagad._engines.captured import Captured, Values
from dagad._engines.differences import Compared
from dagad._errors import NotDifferentiableError, StructureError
from dagad._tracing import caught, equalities
from dagad._tracing.flat_functions import FlatFunction, LeafPullback, Leaves, refuse_count
from dagad._tracing.recalled import left_to_others
from dagad._tracing.refusals import explained
from dagad._tracing.tape import pull, record_flat, traceable
from dagad._types import Cotangent, Cotangents, Leaf, Value
from dagad._values import pytree
from dagad._values.canonical import as_given
from dagad._values.reading import TURNS, Reading
from dagad._values.work_arrays import IN_A_CONTAINER, is_own
from dagad._words import described

_BARE = frozenset({np.ndarray, np.float64, float})
# What is raised where something traced can't go; all else is the user's.
_OF_TRACED = NotDifferentiableError, TypeError, ValueError, AttributeError, NotImplementedError, AssertionError
LINEAR = 1e-6, 1e-3  # to which a pullback has to be linear: in double precision, and in single


class OwnPullback:
    """The pullback that a function brings along, on leaves; made at the first pull where somebody traces these."""

    __slots__ = ("_fun", "_late", "_leaves", "_outputs", "_pullback", "_values")

    def __init__(
        self,
        fun: FlatFunction,
        leaves: Leaves,
        outputs: Sequence[Any],
        pullback: Any,
        values: Values | None = None,
        is_next: bool = False,
    ) -> None:
        self._fun, self._leaves, self._outputs, self._pullback = fun, leaves, outputs, pullback
        self._values = values  # from leaves to outputs, by the function's own rule
        again = functools.partial(_called_again, fun, leaves)
        self._late = None if values is not None else LatePullback(outputs, pullback, again, is_next)

    def __call__(self, cotangents: Sequence[Any]) -> list[Any]:
        is_bare = len(cotangents) == 1 and type(cotangents[0]) in _BARE  # nearly always
        if not is_bare:
            if all(part is None for part in cotangents):
                return [None] * len(self._leaves)
            pairs = zip(cotangents, self._outputs, strict=True)
            cotangents = [pytree.zeros_like(output) if part is None else part for part, output in pairs]
        if self._values is None and (is_bare or not any(map(pytree.is_traced, cotangents))):
            return self._pulled(self._pullback, cotangents)
        if self._pullback is None:
            self._pullback = traced_pullback(self._fun, self._leaves, self._values)
        try:
            return self._pulled(self._pullback, cotangents)
        except StructureError:
            self._pull_plain(cotangents)  # what fails there too is the user's own, and is raised as it is
            raise
        except _OF_TRACED as error:
            self._pull_plain(cotangents)
            raise _leaves_numpy(error, self._fun.name) from error

    def _pull_plain(self, cotangents: Sequence[Any]) -> None:
        """Pull once more, with nothing traced."""
        pullback = self._pullback
        if self._values is not None:
            TURNS.begin()
            pullback = checked_pair(self._fun.run([_plain(leaf) for leaf in self._leaves]), self._fun.name)[1]
        self._pulled(pullback, list(map(_plain, cotangents)))

    def _pulled(self, pullback: Any, cotangents: Sequence[Any]) -> list[Any]:
        if self._late is not None:
            pullback = self._late.current()
        given = cotangents
        if len(given) != 1 or type(given[0]) is np.ndarray:  # it is a number, nearly always
            given = list(map(read_only_view, cotangents))
        return _checked(self._fun.extract(pullback(self._fun.merge(given))), self._leaves)

    def nbytes(self) -> int:
        """Return the bytes of what went in and came out; the rest is the function's secret."""
        return sum(getattr(leaf, "nbytes", 8) for leaf in (*self._leaves, *self._outputs))


def _called_again(fun: FlatFunction, leaves: Leaves) -> tuple[str, list[Any], Callable[[Any], Any]]:
    TURNS.begin()
    value, pullback = checked_pair(fun.run(list(map(read_only_view, leaves))), fun.name)
    return fun.name, fun.flatten(value), pullback


class LatePullback:
    """A pullback, or that of another call of its function, where it may read what calls since have filled.

    What it reads is noted when it is made; where it is pulled next, only if another function is called before that.
    """

    __slots__ = ("__weakref__", "_again", "_outputs", "_pullback", "_reading", "_turn")

    def __init__(
        self,
        outputs: Sequence[Any],
        pullback: Callable[[Any], Any],
        again: Callable[[], Any],
        is_next: bool = False,
    ) -> None:
        self._outputs, self._pullback, self._again = outputs, pullback, again
        self._turn = TURNS.next()
        self._reading: Reading | None = None
        if is_next:
            TURNS.unnoted = weakref.ref(self)
        else:
            self.note()

    def note(self) -> None:
        """Note what the pullback reads now."""
        self._reading = Reading(self._pullback)

    def current(self) -> Callable[[Any], Any]:
        if TURNS.is_last(self._turn) or (self._reading is not None and not self._reading.may_differ()):
            return self._pullback
        name, outputs, pullback = self._again()
        TURNS.next()  # what others read is filled now
        refuse_another_value(name, self._outputs, outputs)
        return cast(Callable[[Any], Any], pullback)

    def __call__(self, cotangent: Cotangent) -> Any:
        return self.current()(cotangent)


def refuse_another_value(name: str, values: Sequence[Any], again: Sequence[Any]) -> None:
    """Refuse a function that has given another value when it ran again: its pullback would be of another one, too."""
    if len(values) == len(again) and all(map(_are_same, values, again)):
        return
    raise NotDifferentiableError(
        f"The pullback of `{name}`, which is marked explicit, reads what later calls of the function write into. So it "
        "ran once more, and gave another value, as where it draws random numbers. Give the pullback memory of its own: "
        "copies of the arrays that it reads, in variables of the call."
    )


def _are_same(one: Leaf, other: Leaf) -> bool:
    if isinstance(one, np.ndarray | np.generic | float | complex):
        return np.shape(one) == np.shape(other) and np.asarray(one).tobytes() == np.asarray(other).tobytes()
    return True


def read_only_view(leaf: Leaf) -> Any:
    """Return what can't be written to, for an argument or a cotangent: other chunks have it too, and the caller."""
    return as_given(leaf) if type(leaf) is np.ndarray else leaf


def _plain(leaf: Leaf) -> Any:
    return traceable(pytree.plain(leaf))


def traced_pullback(fun: FlatFunction, leaves: Leaves, values: Any) -> Callable[[Any], Any]:
    """Return the pullback at leaves that somebody traces; the function has been called at their plain values."""
    before = equalities.count()
    try:
        with left_to_others():
            pullback = checked_pair(fun.run(leaves), fun.name)[1]
    except Exception as error:
        caught.forget(leaves)
        return Captured(fun, leaves, values, explained(error)).at(leaves)
    if equalities.count() != before:
        _refuse_remembered(fun, leaves)
    return pullback


def _refuse_remembered(fun: FlatFunction, leaves: Leaves) -> None:
    """Refuse a function that takes, for the traced arguments, what it has computed for plain ones that are equal."""

    def refuse() -> NoReturn:
        raise NotDifferentiableError(
            f"A derivative of a derivative was asked for, through `{fun.name}`, which is marked explicit. It compares "
            "a value being differentiated with another, which it is equal to, and its pullback has another derivative "
            "than a difference: it remembers what it has computed for that value before, without a derivative, or has "
            "a kink there. Compute in the pullback, from the arguments and the value, what it needs; or use first "
            "derivatives only."
        )

    Compared(lambda leaves: _pulled_by_ones(fun, leaves), 0, refuse).look(leaves)


def _pulled_by_ones(fun: FlatFunction, leaves: Leaves) -> list[Any]:
    value, pullback = checked_pair(fun.run(leaves), fun.name)
    outputs = [pytree.plain(part) for part in fun.flatten(value)]
    seeds = [np.ones_like(part) if pytree.is_differentiable(part) else pytree.zeros_like(part) for part in outputs]
    return [0.0 if part is None else part for part in fun.extract(pullback(fun.merge(seeds)))]


def transposed(
    pullback: LeafPullback, values: Sequence[Any], floats: Sequence[int], directions: Sequence[Mapping[int, Any]]
) -> list[list[Any]]:
    """Return the tangents of those outputs that are at `floats`, for each direction: tangents of leaves, by index."""
    starts = [_start(values[index]) for index in floats]

    def pulled(parts: Sequence[Any]) -> list[Any]:
        seeds: list[Any] = [None] * len(values)
        for index, part in zip(floats, parts, strict=True):
            seeds[index] = part
        return pullback(seeds)

    cotangents, ends, roots = record_flat(pulled, starts)
    tangents_out = []
    for direction in directions:
        tangents = [direction.get(index) for index in range(len(ends))]
        found = pytree.filled(pull(ends, tangents, roots, starts), starts)
        if not _is_linear(cotangents, tangents, starts, found):
            found = [part + np.nan for part in found]
        tangents_out.append(
            [pytree.fitted(part, values[index], "A tangent") for part, index in zip(found, floats, strict=True)]
        )
    return tangents_out


def _start(value: Value) -> Any:
    """Return a cotangent to record at: no zero, no two entries alike, so that what is not linear shows."""
    plain = pytree.plain(value)
    array = 1.0 + 0.25 * np.sin(1.0 + np.arange(np.size(plain))).reshape(np.shape(plain))
    if np.iscomplexobj(plain):
        array = array * (1.0 - 0.5j)
    return pytree.cast(array if isinstance(plain, np.ndarray) else array[()], plain)


def _is_linear(cotangents: Sequence[Any], tangents: Sequence[Any], starts: Sequence[Any], found: Cotangents) -> bool:
    """Refuse a pullback that is not linear: <P(c), dx> is <c, P'dx> for all others, whatever the cotangent c.

    Of complex numbers the real part counts: a cotangent du/dx - i du/dy and a tangent make ``Re(sum(c * dz))``.

    False is returned where that is nan or infinite, and the transpose does not say so: the pullback put it there.
    """
    pairs = [(part, tangent) for part, tangent in zip(cotangents, tangents, strict=True) if tangent is not None]
    with np.errstate(invalid="ignore"):
        ours = [np.sum(pytree.plain(a) * pytree.plain(b)) for a, b in pairs if a is not None]
        theirs = [np.sum(a * pytree.plain(b)) for a, b in zip(starts, found, strict=True)]
    if not np.isfinite(sum(ours)) and np.isfinite(sum(theirs)):
        return False
    gap, size = abs(np.real(sum(ours) - sum(theirs))), sum(map(abs, ours)) + sum(map(abs, theirs))
    single = any(pytree.dtype_of(start).itemsize < 8 for start in starts)
    if gap > LINEAR[single] * size:  # false for nan
        raise NotDifferentiableError(
            "Forward mode was asked for, through a function that is marked explicit. It is the transpose of the "
            "pullback, which is not linear: twice the cotangent does not give twice the result. Return what is linear "
            "in the cotangent, as every derivative is, or use reverse mode, `dagad.vjp` or `dagad.jacrev`."
        )
    return True


def _leaves_numpy(error: Exception, name: str) -> Exception:
    """Return what to say where a pullback can't be traced."""
    return NotDifferentiableError(
        f"A derivative of the pullback of `{name}` was asked for, which is marked explicit: forward mode is its "
        f"transpose, a second derivative is its derivative. It leaves numpy: {explained(error)} Write the pullback "
        "with numpy; or use first derivatives in reverse mode, by `dagad.grad`, `dagad.vjp` or `dagad.jacrev`."
    )


def checked_pair(pair: object, name: str) -> tuple[Any, Callable[[Any], Any]]:
    """Return what an explicit function returned, if it is a value and a pullback."""
    if not (isinstance(pair, tuple) and len(pair) == 2 and callable(pair[1])):
        raise StructureError(
            f"`{name}` is marked explicit, so it has to return `(value, pullback)`; it returned {described(pair)}."
        )
    return pair


def check_count(cotangents: Cotangents, n_arguments: int) -> Sequence[Any]:
    """Return what an explicit pullback returned, if it is one cotangent per argument."""
    if isinstance(cotangents, tuple | list) and len(cotangents) == n_arguments:
        return cotangents
    found = len(cotangents) if isinstance(cotangents, tuple | list) else described(cotangents)
    raise StructureError(
        f"An explicit pullback has to return one cotangent for each of {n_arguments} arguments, None for a constant "
        f"one; it returned {found}."
    )


def refuse_keywords() -> NoReturn:
    """Refuse to pull where what is differentiated was given by keyword: cotangents are of positional arguments."""
    raise NotDifferentiableError(
        "A function that is marked explicit was given by keyword what is being differentiated; its pullback returns "
        "cotangents of positional arguments only. Pass it by position."
    )


def _checked(cotangents: list[Any], leaves: Sequence[Any]) -> list[Any]:
    result = []
    if len(cotangents) != len(leaves):
        refuse_count("returned, as cotangents,", len(cotangents), len(leaves))
    for index, leaf in enumerate(leaves):
        cotangent = cotangents[index]  # not by `zip`, whose tuple would hold it too
        if type(cotangent) is type(leaf) is np.ndarray:  # nearly always
            is_a_view = cotangent.base is not None and not is_own(cotangent)
            if is_a_view or getrefcount(cotangent) > IN_A_CONTAINER:  # a function may fill it again
                cotangent = cotangent.copy("K")
            if cotangent.shape == leaf.shape and cotangent.dtype == leaf.dtype:
                result.append(cotangent)
                continue
        elif cotangent is None:
            raise NotDifferentiableError(
                "An explicit pullback returned None for an argument that is being differentiated. Return its "
                "cotangent, or don't ask for that argument's gradient."
            )
        result.append(fitted_cotangent(cotangent, leaf))
    return result


def fitted_cotangent(cotangent: Cotangent, leaf: Leaf) -> Any:
    """Return what an explicit pullback returned for a leaf, after checking its shape; somebody may trace it."""
    _check_numbers(pytree.plain(cotangent), pytree.plain(leaf))
    if not pytree.is_traced(cotangent):
        return pytree.cast_like(cotangent, pytree.plain(leaf), _WHAT)
    pytree.cast_like(pytree.plain(cotangent), pytree.plain(leaf), _WHAT)
    return cotangent


def _check_numbers(cotangent: Cotangent, leaf: Leaf) -> None:
    """Refuse what is no number or array of them, or is complex where the leaf is real."""
    try:
        array = cotangent if hasattr(cotangent, "dtype") else np.asarray(cotangent)
        kind = getattr(array.dtype, "kind", "f")  # another library's types are its own affair
    except ValueError:  # of lists of several lengths
        kind = "O"
    if kind in "OSUMmV":
        raise StructureError(
            f"{_WHAT} is {described(cotangent)}, where a number or an array is needed. Return the derivative as one, "
            "of the shape of the argument that it belongs to, or None for a constant argument."
        )
    if kind == "c" and not np.iscomplexobj(leaf):
        largest = np.max(np.abs(np.imag(array)), initial=0.0)
        if largest > 1e-8 * np.max(np.abs(array), initial=0.0):
            raise StructureError(
                f"{_WHAT} has an imaginary part, of up to {largest:.3g}, and belongs to a real argument, whose "
                "derivatives are real. If the real part is the derivative, return `np.real(cotangent)`."
            )


_WHAT = "A cotangent that an explicit pullback returned"
