"""Functions that may take what they remember of a plain call: their derivative is compared with those beside.

A function that keeps its last argument, or a dict of those that it has met, finds there what it computed when it was
called without derivatives, as `minimize(f, x0, jac=dagad.grad(f))` does at every point. What it takes is plain then,
and a part of the derivative is missing. Nobody can tell from the comparison alone, as in `if power == 0.0:`. So where a
value being differentiated was found equal to a plain one, or rounded, or written as a text, the derivative is computed
a little to both sides of the point: where these two agree, and the one at the point is another, it is refused. So is a
formula for exactly one value, which is constant in that. At a kink the sides differ; where the value jumps, nothing is
said, as where a number is a label.

State: `SUSPECTED`, for each trace where in the user's code that was, until the trace is over; `_TIMES`, how often it
was so at an instruction: what agreed is looked at again the 2nd, 4th, 8th time; `_HERE`, what a thread looks at.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._frames import module_of
from dagad._tracing.in_place import OPEN
from dagad._types import Array, Function, Leaf, Value
from dagad._values import pytree

STEP = 1e-3  # how far arguments move, of their size: further than to what is usually taken for equal, or as a key
JUMP = 1e-3  # how far from the middle of both sides a value is, of its size, that belongs to neither
MISSING = 1e-3  # what a derivative has to lack, of its size
AGREE = 0.25  # how far the sides may be from each other, of what it lacks
TRIES = 3  # where the function fails beside the point
SMALLEST = 1e-5  # what a distance is compared with that is to be as good as none
_LIBRARIES = frozenset({"dagad", "numpy", "autograd"})
_TELLING = frozenset({"print", "debug", "info", "warning", "log", "write", "set_postfix", "set_description", "append"})

Where = tuple[CodeType, int]
SUSPECTED: dict[int, list[Where]] = {}
_TIMES: weakref.WeakKeyDictionary[CodeType, dict[int, int]] = weakref.WeakKeyDictionary()


class _Here(threading.local):
    looks, is_beside, count = False, False, 0


_HERE = _Here()


@contextlib.contextmanager
def left_to_others() -> Iterator[None]:
    """Suspect nothing meanwhile: solvers, and explicit functions, compare derivatives themselves."""
    before, _HERE.looks = _HERE.looks, True
    try:
        yield
    finally:
        _HERE.looks = before


@contextlib.contextmanager
def _beside() -> Iterator[None]:
    _HERE.is_beside = True
    try:
        yield
    finally:
        _HERE.is_beside = False


def is_beside() -> bool:
    """Return whether this thread runs a program for comparison only, which its next run may not do."""
    return _HERE.is_beside


def suspect(boxes: Sequence[Any], may_tell: bool = False) -> None:
    """Note that traced values may have been found among those that a function remembers, by the user's line."""
    if _HERE.looks:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and module_of(frame).partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    if frame is None or (may_tell and not _TELLING.isdisjoint(frame.f_code.co_names)):
        return
    for box in boxes:
        while type(box) in pytree.TRACED:
            if box._trace in OPEN:
                SUSPECTED.setdefault(box._trace, []).append((frame.f_code, frame.f_lasti))
            box = box._value


def suspect_nothing_left(distance: Any) -> None:
    """Do so where a distance is zero that is compared with something tiny."""
    value = pytree.plain(distance)
    if np.ndim(value) == 0 and value == 0.0:
        suspect([distance])


def refuse_remembered(fun: Function, boxes: Sequence[Any], output: Value, record: Function, pull: Function) -> None:
    """Refuse what a function has returned if it was suspected, and its derivative is another than on both sides.

    `record` and `pull` are those of `tape`, which asks for this.
    """
    level = max((box._trace for box in boxes if type(box) in pytree.TRACED), default=-1)
    asked = SUSPECTED.pop(level, None)
    if asked is None or _HERE.looks or not any([_is_due(where) for where in dict.fromkeys(asked)]):
        return

    lacks = False
    for _ in range(TRIES):
        try:
            with left_to_others(), _beside(), np.errstate(all="ignore"):  # nobody has asked for numbers there
                lacks = _differs_beside(fun, boxes, output, level, record, pull)
        except Exception:  # it may go by a value that it knows, and take no other; or know one of another comparison
            continue
        break
    if lacks:
        for code, at in asked:
            _TIMES[code][at] = 0
        raise NotDifferentiableError(
            "A value being differentiated was compared with another, which it is equal to, or rounded, or written as a "
            "text, and the derivative there is not what it is a little to both sides. So the function has taken what "
            "it remembers of a call without derivatives, which has none; or it has a formula for exactly this value, "
            "which is constant in that. Have it remember nothing where it is differentiated, or compute value and "
            "gradient at once, by `dagad.value_and_grad`; or write one formula that holds around that value, and pass "
            "what is not to be differentiated as an argument of its own."
        )


def _differs_beside(
    fun: Function, boxes: Sequence[Any], output: Value, level: int, record: Function, pull: Function
) -> bool:
    """Return whether the derivative of what was returned is another than those on both sides, which agree."""
    _HERE.count += 1
    step = STEP * (1.0 + _HERE.count * 0.618 % 1.0)  # another each time: what was found last time is remembered, too
    here = [pytree.plain(box) for box in boxes]

    def gradient(leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        value, ends, roots = record(fun, leaves)
        values = pytree.flatten(value)[0]
        return values, list(pull(ends, _ones(values, ends), roots, leaves))

    (above, first), (below, second) = (gradient([_displaced(leaf, way) for leaf in here]) for way in (step, -step))
    outputs = pytree.flatten(pytree.open_containers(output))[0]
    if any(map(_jumps, outputs, above, below)):
        return False
    return _lacking(boxes, outputs, level, pull, [first, second])


def _ones(values: Sequence[Any], ends: Sequence[Any]) -> list[Any]:
    pairs = zip(values, ends, strict=True)
    return [None if end is None else np.ones_like(pytree.plain(value)) for value, end in pairs]


def _lacking(
    boxes: Sequence[Any], outputs: Sequence[Any], level: int, pull: Function, sides: Sequence[Sequence[Any]]
) -> bool:
    """Return whether a derivative of what was returned lacks what it has on both sides."""
    ends = [part._node if type(part) in pytree.TRACED and part._trace == level else None for part in outputs]
    inner = [box if type(box) in pytree.TRACED and box._trace == level else None for box in boxes]
    nodes = [None if box is None else box._node for box in inner]
    inputs = [node for node in nodes if node is not None]
    if not inputs[0].moves:
        leaves = [box._value for box in inner if box is not None]
        found = pull(ends, _ones(outputs, ends), inputs, leaves)
        each = [[part for part, node in zip(side, nodes, strict=True) if node is not None] for side in sides]
        return any(map(_lacks, found, *each))
    for number in range(len(inputs[0].g)):
        found = sum(np.sum(_array(end.g[number])) for end in ends if end is not None)
        tangents = [None if node is None else node.g[number] for node in nodes]
        if _lacks(found, *(sum(map(_product, side, tangents)) for side in sides)):
            return True
    return False


def _jumps(here: Leaf, above: Leaf, below: Leaf) -> bool:
    """Return whether an output is another one than between the two on both sides: so a label chooses a formula."""
    if not all(pytree.is_differentiable(pytree.plain(each)) for each in (here, above, below)):
        return False
    middle, first, second = map(_array, (here, above, below))
    gap, size = np.linalg.norm(2.0 * middle - first - second), max(map(np.linalg.norm, (middle, first, second)))
    return bool(gap > JUMP * size + AGREE * np.linalg.norm(first - second))


def _product(cotangent: Value, tangent: Value) -> Any:
    return 0.0 if cotangent is None or tangent is None else np.sum(_array(cotangent) * _array(tangent))


def _is_due(where: Where) -> bool:
    code, at = where
    times = _TIMES.setdefault(code, {})
    times[at] = count = times.get(at, 0) + 1
    return count & (count - 1) == 0


def _displaced(leaf: Leaf, step: float) -> Any:
    """Return a leaf that differs by about so much of its size, each entry in its own way."""
    if not pytree.is_differentiable(leaf):
        return leaf
    array = np.asarray(leaf)
    steps = step * (1.0 + 0.5 * np.cos(1.0 + np.arange(array.size))).reshape(array.shape)
    found = array + steps * np.where(array == 0, 1.0, abs(array))
    return pytree.cast(found if isinstance(leaf, np.ndarray) else found[()], leaf)


def _lacks(found: Value, one: Value, other: Value) -> bool:
    """Return whether a cotangent of a leaf lacks what it has on both sides."""
    middle, first, second = map(_array, (found, one, other))
    size = max(map(np.linalg.norm, (middle, first, second)))
    lack = np.linalg.norm(first - middle)
    return bool(lack > MISSING * size and np.linalg.norm(first - second) < AGREE * lack)


def _array(cotangent: Value) -> Array:
    return np.zeros(()) if cotangent is None else np.ravel(np.asarray(pytree.plain(cotangent)))
