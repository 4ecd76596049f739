"""Right-hand sides of differential equations for tests: those that are recorded, and those that are followed.

With them stand their solutions, what has every call followed by the tracer, and a count of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dagad.solvers import CubicSpline, PchipInterpolator, _equations, _recorded, interp1d, solve_ivp

THETA = np.array([0.7, 0.4, 1.3])
TIMES, SOON = [0.3, 1.0, 2.5], [0.1, 0.4, 0.6]
Field = Callable[[Any, Any, Any], Any]


def oscillator(t: Any, y: Any, p: Any) -> Any:
    return [y[1], p[0] * (1.0 - y[0] ** 2) * y[1] - p[1] * y[0]]


def forced(t: Any, y: Any, p: Any) -> Any:
    return [
        y[1] + np.exp(-p[2] * t) * np.sin(2 * t),
        t * y[1] - np.multiply(t, y[1]) - p[0] * y[0] - np.interp(t, [0.0, 1.0, 3.0], [0.0, 1.0, 0.5]) / 3,
    ]


def with_functions(t: Any, y: Any, p: Any) -> Any:
    first, second = y
    rate = np.tanh(first) + np.log(2.0 + second**2) - np.cos(p[0]) + np.log1p(p[1] ** 2) * np.sqrt(p[2])
    return -rate * first / (1.0 + second / p[2]), 1 / (2.0 + np.square(first)) - np.negative(-second) * p[1]


def decided_by_time(t: Any, y: Any, p: Any) -> Any:
    rate = p[0] if t < 0.8 else p[1]
    return [-rate * y[0], rate * y[0] - p[2] * y[1]]


def decided_by_states(t: Any, y: Any, p: Any) -> Any:
    flow = max(0.0, y[0] - 0.4) * p[0] if y[1] <= p[2] else p[1] * y[0]
    return [-flow, flow - min(y[1], 0.5)]


def parts_of_states(t: Any, y: Any, p: Any) -> Any:
    a, b = y[:2]
    total = a + b
    total *= p[0]
    total += 0.1
    return [total - len(y) * a, p[-1] * y[-1] - y.size * a * p[1:][0]]


def in_a_stack(t: Any, y: Any, p: Any) -> Any:
    return np.stack([-p[0] * y[0], p[1] * y[0] - p[2] * y[1]])


def in_an_array(t: Any, y: Any, p: Any) -> Any:
    return 2.0 * np.stack([-p[0] * y[0], p[1] * y[0] - p[2] * y[1]])


COUPLING = np.array([[0.3, -1.1], [0.7, 0.2]])
SHAPES = np.array([[1.0, 0.2, 0.1], [0.4, -0.3, 0.6]])


def of_entries(t: Any, y: Any, p: Any) -> Any:
    return p[0] * y * (1.0 - y / p[2]) + np.array([0.1, -0.2]) * p[1] + (3.0 - p[:2]) * t / 9.0 + (p[0] - y)


def of_functions(t: Any, y: Any, p: Any) -> Any:
    rates = np.exp(-(y**2)) + np.sqrt(1.0 + np.square(y)) - np.log1p(y**2) / (2.0 + np.cos(y))
    return -rates * y + p[1:] * np.sin(t * y) + np.tanh(y) ** 3 * np.exp(-p[:2])


def of_neighbours(t: Any, y: Any, p: Any) -> Any:
    around = np.concatenate([y[1:], y[:1]]) + np.concatenate([y[:1], np.zeros(1)]) - 2.0 * y
    return around + (SHAPES @ p) * y * (1.0 - y)


def of_matrices(t: Any, y: Any, p: Any) -> Any:
    return np.stack([p[:2], -p[1:]]) @ y + COUPLING @ np.tanh(COUPLING @ y) - np.dot(y, COUPLING) * p[2]


def of_sums(t: Any, y: Any, p: Any) -> Any:
    return [np.sum(y * p[:2]) - np.dot(y, p[1:]) * y[0], y @ y - np.sum(p) * y[1]]


def of_parts_alone(t: Any, y: Any, p: Any) -> Any:
    return np.stack([p[0] - y[0], y[1] * 0.0 - p[1]]) + p[2] + np.array([0.5]) * y[:1]


def written_into(t: Any, y: Any, p: Any) -> Any:
    slope = p[:2] * y
    slope *= 0.5
    return slope - y


def by_a_number(t: Any, y: Any, p: Any) -> Any:
    return [-p[0] * y[0] * math.cos(t), p[1] * y[0]]


def of_constants(t: Any, y: Any, p: Any) -> Any:
    return [1.0, t]


NODES = np.array([0.0, 0.5, 1.4, 2.5])
WIDE = np.array([-1.0, 0.5, 1.4, 4.0])


def of_lines(t: Any, y: Any, p: Any) -> Any:
    late = np.interp(t - 1.0, NODES[:3], p) + np.interp(3.0 * t, NODES, -NODES)
    return [-np.interp(y[0], NODES[:3], p) * y[0], late * y[1] * np.interp(y[1], NODES[1:], p)]


def of_splines(t: Any, y: Any, p: Any) -> Any:
    smooth, known = CubicSpline(NODES, np.stack([p[0], 1.0, p[1], p[2]])), CubicSpline(NODES, [0.1, 0.5, 0.3, 0.2])
    return [-smooth(t) * y[0] + known(y[1]), smooth(y[0], 1) * known(t) - 0.1 * y[1]]


def of_curves(t: Any, y: Any, p: Any) -> Any:
    smooth, line = CubicSpline(NODES[:3], p), interp1d(NODES[:3], p**2)
    monotone = PchipInterpolator(WIDE[:3], np.sin(p))
    return [-smooth(y[0]) * y[0] + monotone(t, 1), line(0.9) * y[1] + monotone(y[1]) * smooth(t, 2)]


RECORDED = [
    oscillator,
    forced,
    with_functions,
    decided_by_time,
    decided_by_states,
    parts_of_states,
    of_constants,
    in_a_stack,
]
IN_ARRAYS = [
    in_an_array,
    of_entries,
    of_functions,
    of_neighbours,
    of_matrices,
    of_sums,
    of_parts_alone,
    of_lines,
    of_curves,
]
FOLLOWED = [by_a_number, written_into, of_splines]
OF_CURVES = [of_curves, of_splines]


def states(field: Field, theta: Any, method: str = "RK45", is_short: bool = False, **options: Any) -> Any:
    """Return states at three times, the last of which is beyond all nodes, or beyond the first one within."""
    start = np.stack([theta[0] * 2.0, 0.1 + 0.0 * theta[1]])
    times = SOON if is_short else TIMES
    found = solve_ivp(field, (0.0, times[-1]), start, method, times, args=(theta,), sensitivity="forward", **options)
    return found.y


def roughly(field: Field, theta: Any, method: str) -> Any:
    """Return states after few steps: bits are asked for, not how accurate they are. Curves made in each take long."""
    return states(field, theta, method, field in OF_CURVES, rtol=0.1, atol=0.1)


def followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every call of a right-hand side followed by the tracer."""
    monkeypatch.setattr(_equations, "MOST_STATES", 0)


class Calls:
    """How often the tracer has followed a right-hand side, and a program has given slopes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.followed = self.by_program = 0
        stock, again = _recorded.RecordedSlopes._record, _recorded.RecordedSlopes._by_program
        checked = _recorded.RecordedSlopes._checked

        def record(slopes: Any, *args: Any) -> None:
            self.followed += 1
            stock(slopes, *args)

        def counted(slopes: Any, *args: Any) -> Any:
            found = again(slopes, *args)
            self.by_program += found is not None
            return found

        def checked_and_counted(slopes: Any, *args: Any) -> Any:
            program: Any = checked(slopes, *args)

            def run(t: Any, y: Any) -> Any:
                found = program(t, y)
                self.by_program += found is not None
                return found

            return None if program is None else run

        monkeypatch.setattr(_recorded.RecordedSlopes, "_record", record)
        monkeypatch.setattr(_recorded.RecordedSlopes, "_by_program", counted)
        monkeypatch.setattr(_recorded.RecordedSlopes, "_checked", checked_and_counted)
