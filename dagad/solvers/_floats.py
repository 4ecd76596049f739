"""Sensitivities at some times by steps of floats, without what scipy does around a step: that takes longer than these.

`scipy.integrate.solve_ivp` makes arrays of a step's numbers, and an object that interpolates between its ends. Here a
step stays a list of floats, and what is wanted at a time comes from the same polynomial. The first step is scipy's too.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np

from dagad.solvers._stepping import EXPLICIT, LEAST_RTOL, MOST_NUMBERS, ByNumbers, of_floats, sum_of


@functools.cache
def _solver_of(name: str) -> Any:
    """Return a class of scipy's solvers that begins without its preparations, with a polynomial for within a step."""
    base = of_floats(name)
    own: dict[str, Any] = {"__init__": _begin, "_between": None}
    if isinstance(base.P, np.ndarray):
        names = dict[str, Any]()
        exec("\n".join(_polynomial(base.P)), names)  # nothing but scipy's coefficients, and operators
        own["_between"] = staticmethod(names["between"])
    return type(base.__name__, (base,), own)


def _polynomial(coefficients: np.ndarray) -> list[str]:
    """Return the function `between`, from which the numbers come at a part `x` of a step."""
    _, numbers, stages = sum_of(range(1, len(coefficients) + 1))
    every = ", ".join(f"k{stage}" for stage in range(len(coefficients)))
    lines = ["def between(x, h, y, stages):", f"    {every}, = stages"]
    for stage, row in enumerate(coefficients.tolist()):
        lines.append(f"    w{stage} = h * x * ({' + x * ('.join(map(repr, row))}{')' * len(row)}")
    total = " + ".join(f"w{stage} * p{stage}" for stage in range(len(coefficients)))
    return [*lines, f"    return [v + {total} for v, {numbers} in zip(y, {stages})]"]


def _begin(solver: Any, field: ByNumbers, y0: np.ndarray, span: tuple[float, float], options: dict[str, Any]) -> None:
    """Have all that steps are made of, at the beginning."""
    solver.t, solver.t_bound = span
    solver.direction = 1.0 if span[1] > span[0] else -1.0
    solver.n, solver.max_step, solver.nfev = len(y0), options.get("max_step", np.inf), 0
    solver.rtol, solver.atol = options["rtol"], options["atol"]
    solver.error_exponent = -1 / (solver.error_estimator_order + 1)
    n_stages = solver.n_stages + 1
    solver.K_extended = np.empty((n_stages + len(getattr(solver, "A_EXTRA", ())), solver.n))
    solver.K, solver.fun = solver.K_extended[:n_stages], field
    solver.y, solver.f = y0, field(np.float64(solver.t), y0)
    solver.begin(field)
    first = options.get("first_step")
    solver.h_abs = _first_step(solver) if first is None else first


def _first_step(solver: Any) -> float:
    """Return how long scipy's first step is."""
    y, slope, direction = solver._state, solver._slope, solver.direction
    length = abs(solver.t_bound - solver.t)
    scale = [a + abs(v) * r for v, a, r in zip(y, *solver._tolerances, strict=True)]
    size, speed = _norm(y, scale), _norm(slope, scale)
    trial = min(1e-6 if size < 1e-5 or speed < 1e-5 else 0.01 * size / speed, length)
    there = np.array([v + trial * direction * k for v, k in zip(y, slope, strict=True)])
    slope_there = solver.fun(np.float64(solver.t + trial * direction), there).tolist()
    bend = _norm([new - old for new, old in zip(slope_there, slope, strict=True)], scale) / trial
    if speed <= 1e-15 and bend <= 1e-15:
        found = max(1e-6, trial * 1e-3)
    else:
        found = (0.01 / max(speed, bend)) ** (1 / (solver.error_estimator_order + 1))
    return float(min(100 * trial, found, length, solver.max_step))


def _norm(numbers: Sequence[float], scale: Sequence[float]) -> float:
    return sqrt(sum([(v / s) * (v / s) for v, s in zip(numbers, scale, strict=True)]) / len(scale))


def at_times(
    field: ByNumbers, y0: np.ndarray, span: tuple[float, float], times: np.ndarray, options: dict[str, Any]
) -> Any:
    """Return the numbers at times along the span, a column for each; None where that is left to scipy.

    `options` are those that scipy takes: tolerances, lengths of steps, the method.
    """
    method = options["method"]
    is_small = method in EXPLICIT and 0 < len(y0) <= MOST_NUMBERS and y0.dtype == float
    if not is_small or not np.min(options["rtol"]) >= LEAST_RTOL or not np.min(options["atol"]) > 0.0:
        return None
    try:
        solver = _solver_of(str(method))(field, y0, span, options)
    except ArithmeticError:  # of numbers so large, or so small, that numpy warns and goes on
        return None
    wanted, found, is_last = times.tolist(), list[Any](), False
    while not is_last:
        before, t_old = solver._state, float(solver.t)
        is_done, _ = solver._step_impl()
        if not is_done:
            return None  # scipy says what is to be said
        t, solver.t_old = float(solver.t), t_old
        is_last = t == solver.t_bound
        start = number = len(found)
        while number < len(wanted) and (is_last or solver.direction * (wanted[number] - t) <= 0):
            number += 1
        if number > start:
            found += _within(solver, wanted[start:number], t_old, t, before)
    return np.array(found).T


def _within(solver: Any, times: Sequence[float], t_old: float, t: float, before: Sequence[float]) -> list[Any]:
    """Return the numbers at some times within the last step."""
    if times == [t]:  # often
        return [solver._state]
    if solver._between is None:
        return list(solver._dense_output_impl()(np.array(times)).T)
    h, stages = t - t_old, solver._stages
    return [solver._between((time - t_old) / h, h, before, stages) for time in times]
