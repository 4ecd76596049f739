"""Interpolated data within recorded right-hand sides: a program looks the interval up, and computes in floats.

What belongs to an interval (coefficients, or data at its ends) is a row of a table with a row of tangents beside it, of
parameters alone. Values have scipy's and numpy's bits, and tangents those of the tracer, by the same steps.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dagad._tracing.stacked_tangents import FLOAT
from dagad._types import Array, Leaf
from dagad.solvers._recording import Number, Recording, is_recorded, level_of


def is_written_down(*operands: Any) -> bool:
    """Return whether any of these is recorded."""
    return any(level_of(operand) >= 0 for operand in operands)


def _row(columns: Sequence[Any], where: str, index: int, at: Number) -> list[Number]:
    """Return the entries of columns in the interval whose index has a name in the program, and has been `index`.

    A column is an array, or a recorded one of parameters alone, which moves.
    """
    recording = at.recording
    held = [column.still if is_recorded(column) else (column, None) for column in columns]
    table = np.stack([leaf for leaf, _ in held], axis=1)
    found = recording.several(f"{recording.constant(table.tolist())}[{where}]", table[index], [at])
    stacks = [stack for _, stack in held if stack is not None]
    if not stacks:
        return found
    recording.is_portable = False
    rows = np.stack(stacks, axis=2).transpose(1, 0, 2).tolist()
    return recording.with_tangents(found, f"{recording.constant(rows)}[{where}]", [at])


def _interval(find: Callable[..., int], nodes: list[float], at: Number) -> tuple[str, int]:
    """Write down which interval a number is in; return what it is called, and which it has been."""
    recording, last = at.recording, len(nodes) - 2
    names = f"{recording.constant(find)}({recording.constant(nodes)}, {at.term})"
    where = recording.named(f"min(max({names} - 1, 0), {last})", [at])
    return where, min(max(find(nodes, at.recorded_number) - 1, 0), last)


def _are_plain(nodes: Array, *columns: Any) -> bool:
    """Return whether these are nodes, and columns that depend on parameters alone, all of doubles."""
    parts = [nodes, *(column for column in columns if level_of(column) < 0)]
    still = [column for column in columns if level_of(column) >= 0]
    return all(type(part) is np.ndarray and part.dtype == FLOAT for part in parts) and all(
        is_recorded(each) and each.still is not None for each in still
    )


def _still(number: Number) -> Number:
    """Return a number as one that does not move."""
    return Number(number.recording, number.term, number.recorded_number, False, number.is_varying)


# Piecewise polynomials


def value_at(c: Any, x: Any, point: Leaf, nu: int, extrapolate: object, axis: int) -> Any:
    """Return the values of piecewise polynomials, or of a derivative, at a number."""
    recording: Recording = next(each.recording for each in (point, c) if level_of(each) >= 0)
    if np.ndim(x) != 1 or c.ndim != 2 or axis or extrapolate not in (True, False) or not _are_plain(x, c):
        recording.give_up()
    at, nodes = recording.number(point), x.tolist()
    if not extrapolate and not (nodes[0] <= at <= nodes[-1]):  # compared in the program, too
        recording.give_up()
    where, index = _interval(bisect.bisect_right, nodes, at)
    row = _row([c[power] for power in range(len(c))], where, index, at)
    (left,) = _row([x[:-1]], where, index, at)
    beyond = _still(at) - left
    found = _polynomial(row, beyond, nu)
    if not at.is_moving:
        return found
    slope = _polynomial(list(map(_still, row)), beyond, nu + 1)
    return recording.with_tangent_of(found, "{dv} + {dx} * {f}" if found.is_moving else "{dx} * {f}", at, slope.term)


def _polynomial(row: Sequence[Number], beyond: Number, nu: int) -> Number:
    """Return the sum as scipy adds it up, from the lowest power on; `nu` times differentiated."""
    recording = beyond.recording
    found: Any = recording.number(0.0)
    found = recording.moving(found) if row[0].is_moving else found
    power: Any = None
    for order, coefficient in list(enumerate(reversed(row)))[nu:]:
        term: Any = coefficient if power is None else coefficient * power
        factor = float(np.prod(np.arange(order, order - nu, -1.0)))
        found = found + (term if factor == 1.0 else term * factor)
        power = beyond if power is None else power * beyond
    return recording.number(found)


# Straight lines between data


def line_at(point: Leaf, x: Any, y: Any, is_from_left: bool = False) -> Any:
    """Return what `numpy.interp` does at a number, with the slope from the right, or else from the left, at a node."""
    recording: Recording = next(each.recording for each in (point, y) if level_of(each) >= 0)
    if not _are_plain(x, y) or np.ndim(x) != 1 or y.ndim != 1 or len(x) < 2 or len(x) != len(y):
        recording.give_up()
    at, nodes, last = recording.number(point), x.tolist(), len(x) - 1
    if at < nodes[0] or at > nodes[-1]:
        return recording.give_up() if is_from_left else y[0 if at < nodes[0] else last]
    value = recording.number(y[last]) if at >= nodes[-1] else _line(bisect.bisect_right, x, y, at, False)
    return _with_tangents(
        value, _line(bisect.bisect_left if is_from_left else bisect.bisect_right, x, y, at, is_from_left)
    )


def _line(find: Callable[..., int], x: Any, y: Any, at: Number, is_by_share: bool) -> Any:
    where, index = _interval(find, x.tolist(), at)
    left, right = _row([x[:-1], x[1:]], where, index, at)
    low, high = _row([y[:-1], y[1:]], where, index, at)
    if is_by_share:
        return low + (at - left) / (right - left) * (high - low)
    return low + (high - low) / (right - left) * (at - left)


def _with_tangents(value: Number, other: Number) -> Number:
    """Return a number with the tangents of another."""
    recording = value.recording
    (name,) = recording.names_of(f"[{value.term}]", 1, [value, other])
    found = Number(recording, name, value.recorded_number, False, value.is_varying or other.is_varying)
    return recording.with_tangent_of(found, "{dx}", other) if other.is_moving else found
