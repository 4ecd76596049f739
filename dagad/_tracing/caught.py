"""Refusals that a function catches, going another way from there: what it gives is compared with what it gives plainly.

Python's number of a traced value is refused, and so is an ordinary array. `try: n = float(x)` with an `except` goes on:
often to the same number, in another way, as where a function asks whether it has a number or an array; sometimes to
another one, whose derivative is of a function that nobody calls.

State: `CAUGHT`, for each trace the first refusal, until the trace is over; a refusal that nobody catches ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._tracing.in_place import OPEN
from dagad._tracing.private import box_types
from dagad._types import Array, Value
from dagad._values import pytree

CAUGHT: dict[int, str] = {}


def refused(box: Any, error: NotDifferentiableError) -> NotDifferentiableError:
    """Return a refusal of a traced value, which its traces remember."""
    while type(box) in box_types:
        if box._trace in OPEN:
            CAUGHT.setdefault(box._trace, str(error))
        box = box._value
    return error


def forget(boxes: Sequence[Any]) -> None:
    """Forget what was refused of some values: dagad itself has caught it, and follows the function in another way."""
    for box in boxes:
        while CAUGHT and type(box) in box_types:
            CAUGHT.pop(box._trace, None)
            box = box._value


def refuse_another_way(fun: Callable[[Any], Any], boxes: Sequence[Any], output: Value) -> None:
    """Refuse what a function has given after a refusal that it caught, if it gives something else without derivatives.

    Each trace compares for itself, with no traces at all below: those further out may have caused another refusal.
    """
    level = max((box._trace for box in boxes if type(box) in box_types), default=-1)
    sentence = CAUGHT.pop(level, None)
    if sentence is None:
        return
    try:
        usual = fun([pytree.plain(box) for box in boxes])
    except Exception:  # then nobody has a value to differentiate
        return
    if not _agree(usual, output):
        raise NotDifferentiableError(
            f"{sentence} The function has caught this error, and what it gives then is not what it gives without "
            "derivatives."
        )


def _agree(usual: Value, output: Value) -> bool:
    """Return whether two outputs are the same in half of their digits: two ways to one number round otherwise."""
    (ours, treedef), (others, other) = (pytree.flatten(pytree.open_containers(each)) for each in (usual, output))
    if treedef != other:
        return False
    return all(_are_close(pytree.plain(one), pytree.plain(two)) for one, two in zip(ours, others, strict=True))


def _are_close(one: Array, two: Array) -> bool:
    if not (_is_of_numbers(one) and _is_of_numbers(two)):
        return True  # words, and what else has no derivative
    first, second = np.asarray(one), np.asarray(two)
    if first.shape != second.shape:
        return False
    kinds = [array.dtype for array in (first, second) if array.dtype.kind in "fc"] or [np.dtype(float)]
    tolerance = max(float(np.sqrt(np.finfo(kind).eps)) for kind in kinds)
    largest = float(np.max(np.abs(first), initial=0.0, where=np.isfinite(first)))
    return bool(np.allclose(first, second, rtol=tolerance, atol=tolerance * largest, equal_nan=True))


def _is_of_numbers(leaf: Any) -> bool:
    return (
        isinstance(leaf, bool | int | float | complex) or getattr(getattr(leaf, "dtype", None), "kind", "O") in "biufc"
    )
