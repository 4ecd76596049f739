"""The adjoint equation: cotangents of a solution, carried backwards in time along what is known of the solution.

``dl/dt = -(df/dy)' l`` from the last time to the first, with the cotangent of the solution added at each time at which
it is wanted; the cotangents of the parameters are integrated along the way. Numbers are plain here.

What a state does that has no cotangent does not show in an error of these equations: a step might go across a short
dose, and find nothing of it. So no step goes across more than two of those that the solution took: where it had to go
slowly, this looks too.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._tracing.flat_functions import Leaves
from dagad._tracing.patches import patches
from dagad._tracing.private import isbox
from dagad._tracing.rules import learn_rules
from dagad._tracing.tape import TapeNode, pull, traceable, traced
from dagad._tracing.traced_array import new_box
from dagad._types import Array, Cotangent, Function, Value
from dagad._values import pytree
from dagad.solvers._equations import Equation, Field, is_kind_of, not_finite
from dagad.solvers._integration import FiniteSlope, check_solved, solved
from dagad.solvers._stepping import quick


class InTime(Protocol):
    """A solution as a function of time, as scipy returns it: `ts` are the ends of the steps that it took."""

    ts: np.ndarray

    def __call__(self, t: float) -> Any:
        """Return the solution at a time."""


def pulled_through_time(
    equation: Equation,
    params: Sequence[Any],
    moving: Sequence[int],
    dense: InTime,
    t0: float,
    y0: Array,
    times: np.ndarray,
    cotangent: np.ndarray,
) -> tuple[Any, list[Any]]:
    """Return the cotangents of the initial state, and of the parameters at `moving`.

    Parameters
    ----------
    equation, params
        What was solved; `moving` are the indices of those parameters that are asked for.
    dense
        The solution as a function of time.
    t0, y0
        Where it began.
    times, cotangent
        When it is wanted, and its cotangent then, a column for each time.
    """
    sizes = [np.size(params[number]) for number in moving]
    n, dtype = len(equation.atol), np.result_type(y0, cotangent, *(params[number] for number in moving), float)
    state = np.zeros(n + sum(sizes), dtype)
    wanted, where = np.unique(times, return_inverse=True)
    columns = np.zeros((n, len(wanted)), dtype)
    np.add.at(columns.T, where, cotangent.T)
    stops = np.flatnonzero(np.any(columns, axis=0))
    order = stops[np.argsort(-np.abs(wanted[stops] - t0), kind="stable")]
    if len(order):
        atol = _tolerances(equation, params, moving, dense, wanted, columns)
        backward = _Backward(equation, params, moving, dense, atol)
        for position, index in enumerate(order):
            state[:n] += columns[:, index]
            until = wanted[order[position + 1]] if position + 1 < len(order) else t0
            if wanted[index] != until and np.any(state[:n]):
                state = backward(state, wanted[index], until)
    return state[:n], _parted(state[n:], [params[number] for number in moving], sizes)


def _parted(flat: Array, leaves: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    ends = np.cumsum([0, *sizes])
    return [
        pytree.cast(flat[start:stop].reshape(np.shape(leaf))[()], leaf)
        for start, stop, leaf in zip(ends[:-1], ends[1:], leaves, strict=True)
    ]


def _tolerances(
    equation: Equation, params: Sequence[Any], moving: Sequence[int], dense: InTime, times: np.ndarray, columns: Array
) -> np.ndarray:
    """Return absolute tolerances: what is allowed of the cotangents' product with the states, by what they belong to.

    So a cotangent of a parameter is as exact as the product of cotangents and sensitivities would be.
    """
    allowed = float(np.max(np.max(np.abs(columns), axis=1) * equation.atol))
    sizes = np.max(np.abs(np.stack([dense(t) for t in times])), axis=0)
    lengths = [np.where(sizes > 0, sizes, 1.0)]
    for number in moving:
        length = np.abs(np.ravel(params[number]))
        lengths.append(np.where(length > 0, length, 1.0))
    return allowed / np.concatenate(lengths)


class _Backward:
    """Carries cotangents of the state, and what is gathered for the parameters, from one time to an earlier one."""

    def __init__(
        self, equation: Equation, params: Sequence[Any], moving: Sequence[int], dense: InTime, atol: np.ndarray
    ) -> None:
        self._equation, self._params, self._moving = equation, list(params), moving
        self._dense, self._atol = dense, atol

    def __call__(self, state: Array, start: float, stop: float) -> Any:
        learn_rules()
        params, leaves = list(self._params), [traceable(self._params[number]) for number in self._moving]
        with patches.new_trace() as level:
            roots = [TapeNode.new_root() for _ in leaves]
            for number, leaf, root in zip(self._moving, leaves, roots, strict=True):
                params[number] = new_box(leaf, level, root)
            with self._equation.field(params) as field:
                slope = functools.partial(self._slope, field, level, leaves, roots)
                options = self._options(abs(stop - start))
                if self._equation.settings.is_implicit:
                    options["jac"] = functools.partial(self._jacobian, slope)
                options |= _along(options, self._dense.ts)
                found = solved(FiniteSlope(slope, start, stop), (start, stop), state, t_eval=[stop], **options)
        check_solved(found, "the adjoint of its equations")
        return found.y[:, -1]

    def _slope(self, field: Field, level: int, leaves: Leaves, roots: Leaves, t: float, state: Array) -> Any:
        y = self._dense(t)
        n, root = len(y), TapeNode.new_root()
        slope = traced(functools.partial(field, t), new_box(y, level, root))
        if not (isbox(slope) and slope._trace == level):
            return np.zeros_like(state)
        parts = pull([slope._node], [_like(state[:n], slope._value)], [root, *roots], [y, *leaves])
        found = np.zeros_like(state)
        if parts[0] is not None:
            found[:n] = -parts[0]
        start = n
        for part, leaf in zip(parts[1:], leaves, strict=True):
            stop = start + np.size(leaf)
            if part is not None:
                found[start:stop] = -np.ravel(part)
            start = stop
        return found

    def _jacobian(self, slope: Function, t: float, state: Array) -> Any:
        """Return the Jacobian, whose columns are slopes: they are linear in the cotangents of the state."""
        found = np.zeros((len(state), len(state)), state.dtype)
        for column, unit in enumerate(np.eye(len(self._equation.atol), len(state))):
            found[:, column] = slope(t, unit)
        if not self._equation.settings.is_lsoda and not np.isfinite(found).all():  # that one makes smaller steps
            raise NotDifferentiableError(not_finite(t))
        if self._equation.settings.is_lsoda:
            return found
        from scipy import sparse

        return sparse.csc_matrix(found)

    def _options(self, span: float) -> dict[str, Any]:
        settings = self._equation.settings
        rtol = settings.rtol if np.ndim(settings.rtol) == 0 else float(np.min(settings.rtol))
        options = {**settings.for_span(span), "rtol": rtol, "atol": self._atol, "method": settings.method}
        return options


MOST_STEPS = 2  # of the solution's, in one


class _AlongSteps:
    """For a class of scipy's solvers: no step goes across more than `MOST_STEPS` of some, whose `ends` ascend."""

    ends: np.ndarray
    t: float
    direction: float
    max_step = np.inf

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._longest = self.max_step  # which the user asked for

    def _step_impl(self) -> Any:
        number = int(np.searchsorted(self.ends, self.t, side="left" if self.direction < 0 else "right"))
        last = number - MOST_STEPS if self.direction < 0 else number + MOST_STEPS - 1
        self.max_step = min(self._longest, abs(self.t - self.ends[min(max(last, 0), len(self.ends) - 1)]) or np.inf)
        impl: Any = super()
        return impl._step_impl()


def _along(options: dict[str, Any], times: np.ndarray) -> dict[str, Any]:
    """Return the options that keep an integration's steps to those that end at some times."""
    from scipy import integrate

    method, ends = options["method"], np.sort(times)
    if is_kind_of(method, "LSODA"):  # which knows one limit only
        usual = (ends[-1] - ends[0]) / (len(ends) - 1)
        return {"max_step": min(options.get("max_step", np.inf), usual)}
    method = quick(method)
    base = getattr(integrate, method) if isinstance(method, str) else method
    return {"method": type(base.__name__, (_AlongSteps, base), {"ends": ends})}


def _like(seed: Cotangent, value: Value) -> Any:
    return np.real(seed) if np.iscomplexobj(seed) and not np.iscomplexobj(value) else seed
