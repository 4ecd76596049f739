"""Solutions at some times, as functions of what they depend on, which somebody may trace: one node on his tape.

Traces are taken off one by one, the innermost first. Forward mode solves the extended equation, for all directions at
once. Reverse mode multiplies cotangents by the solution of the extended equation for all unit directions, or solves the
adjoint equation. Each of these is a solution again, of leaves that others may trace: so derivatives are of any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import autograd.numpy as anp
import numpy as np

from dagad._kernels.context import are_directions_divided, refuse_divided
from dagad._tracing.embedded import Trace, innermost, parts_of
from dagad._tracing.rules import shaped
from dagad._tracing.tape import pull, record_flat, traceable
from dagad._tracing.traced_array import with_value
from dagad._types import Array, Cotangent, Leaf, Tangents, Value
from dagad._values import pytree
from dagad._values.blocks import full
from dagad.solvers._adjoint import pulled_through_time
from dagad.solvers._equations import Equation, Extended
from dagad.solvers._integration import integrate, integrate_to

Y0, T0, MOVING, PARAMS = range(4)  # where they stand among the leaves; the parameters are the rest


class Moments(NamedTuple):
    """The times at which a solution is wanted.

    Attributes
    ----------
    times
        All of them.
    moving
        Which of them are leaves.
    span
        How long the user's own integration is: the scale of times.
    """

    times: np.ndarray
    moving: np.ndarray
    span: float


class Problem(NamedTuple):
    """A solution at some times, but for the leaves: ``[y0, t0, the times that move, *parameters]``.

    Attributes
    ----------
    equation
        What is solved.
    moments
        When it is wanted.
    sensitivity
        How it is pulled: "forward", "adjoint" or "auto".
    known
        The solution at these times, where it is known; None if it has to be computed.
    dense
        Returns the solution as a function of time, of plain numbers.
    """

    equation: Equation
    moments: Moments
    sensitivity: str
    known: Any = None
    dense: Callable[[], Any] | None = None


def solution(problem: Problem, leaves: Sequence[Any]) -> Any:
    """Return the solution at the times, a column for each: a differentiable function of the leaves."""
    trace = innermost(leaves)
    if trace is None:
        return _solved(problem, leaves) if problem.known is None else problem.known
    if trace.moves:
        refuse_divided(are_directions_divided())
        tangents, count = trace.tangents()
        value, tangents_out = jvp_of_solution(problem, trace.below, tangents, count)
        return trace.with_tangents(value, tangents_out)
    value = solution(problem, trace.below)
    return trace.pulled([value], _Pull(problem, trace))[0]


def _solved(problem: Problem, leaves: Sequence[Any]) -> Any:
    """Return the solution at plain leaves."""
    y0, t0, times = leaves[Y0], float(leaves[T0]), problem.moments.times
    wanted, positions = np.unique(times, return_inverse=True)
    if np.all(times == t0):
        return np.repeat(y0[:, None], len(times), axis=1)
    if wanted[0] < t0:
        wanted, positions = wanted[::-1], len(wanted) - 1 - positions
    return integrate_to(problem.equation, leaves[PARAMS:], y0, (t0, wanted[-1]), wanted)[:, positions]


# Forward


def jvp_of_solution(
    problem: Problem, leaves: Sequence[Any], tangents: dict[int, list[Any]], count: int
) -> tuple[Any, list[Any]]:
    """Return the solution and its tangents, from those of the leaves by their indices; None is zero."""
    if not len(problem.moments.times):
        return problem.known, [np.zeros_like(problem.known)] * count
    if set(tangents) == {MOVING}:
        value, tangents_out = solution(problem, leaves), [0.0] * count
    else:
        value, tangents_out = _flown(problem, leaves, tangents, count)
    if MOVING in tangents:
        slopes, matrix = _slopes(problem, leaves, value), spread(problem.moments)
        ends = [None if part is None else anp.dot(slopes * part, matrix) for part in tangents[MOVING]]
        tangents_out = [part if end is None else part + end for part, end in zip(tangents_out, ends, strict=True)]
    shape = np.shape(pytree.plain(value))
    return value, [part if np.shape(pytree.plain(part)) == shape else part + np.zeros(shape) for part in tangents_out]


def _flown(problem: Problem, leaves: Sequence[Any], tangents: dict[int, list[Any]], count: int) -> Any:
    """Solve the extended equation."""
    equation, y0, params = problem.equation, leaves[Y0], leaves[PARAMS:]
    dense = {
        position: [pytree.dense(part, leaves[position], "A tangent") for part in parts]
        for position, parts in tangents.items()
    }
    starts = list(dense.get(Y0, [np.zeros_like(pytree.plain(y0))] * count))
    if T0 in dense:
        slope = _slope_at(equation, leaves[T0], y0, params)
        starts = [start - slope * part for start, part in zip(starts, dense[T0], strict=True)]
    moving = [position for position in dense if position >= PARAMS]
    scales = [_scale(leaves, {p: parts[number] for p, parts in dense.items()}, problem) for number in range(count)]
    extended = Extended(equation, [position - PARAMS for position in moving], scales)
    directions = [dense[position][number] for number in range(count) for position in moving]
    start = anp.concatenate([y0, *starts])
    of_extended = problem._replace(equation=extended, known=None, dense=None)
    both = solution(of_extended, [start, leaves[T0], leaves[MOVING], *params, *directions])
    n = len(equation.atol)
    value, *tangents_out = (both[n * row : n * (row + 1)] for row in range(1 + count))
    return (value if problem.known is None else with_value(value, problem.known)), tangents_out  # with scipy's own bits


def _scale(leaves: Sequence[Any], direction: dict[int, Any], problem: Problem) -> float:
    """Return the size of a direction beside that of what moves along it: a tangent's absolute tolerance has it.

    Of the unit direction of a parameter p it is ``1 / |p|``, as in CVODES.
    """
    size = length = 0.0
    for position, part in direction.items():
        part = np.abs(np.ravel(pytree.plain(part)))
        leaf = np.abs(np.ravel(pytree.plain(leaves[position])))
        if position in (T0, MOVING):
            leaf = np.full(leaf.shape, problem.moments.span)
        size = max(size, np.max(part, initial=0.0))
        length = max(length, np.max(leaf[part > 0], initial=0.0))
    return float(size / (length or 1.0)) or 1.0


def _slope_at(equation: Equation, t: Array, y: Array, params: Sequence[Any]) -> Any:
    with equation.field(params) as field:
        return field(t, y)


def _slopes(problem: Problem, leaves: Sequence[Any], value: Value) -> Any:
    """Return the slopes of the solution at the times that move, a column for each."""
    with problem.equation.field(leaves[PARAMS:]) as field:
        columns = [
            field(leaves[MOVING][index], value[:, position]) for index, position in enumerate(problem.moments.moving)
        ]
    return anp.stack(columns, axis=1)


def spread(moments: Moments) -> np.ndarray:
    """Return the matrix that puts columns of the times that move among those of all times."""
    matrix: np.ndarray = np.eye(len(moments.times))[moments.moving]
    return matrix


# Reverse


class _Pull:
    """The pullback of a solution at leaves that others may trace; the sensitivities are found when it is first used."""

    def __init__(self, problem: Problem, trace: Trace) -> None:
        self._problem, self._leaves, self._indices = problem, trace.below, list(trace.nodes)
        self._found: Any = None
        self._divided = are_directions_divided()

    def __call__(self, cotangent: Cotangent) -> tuple[Any, ...]:
        return tuple(self._pulled(cotangent, 1))

    def many(self, cotangents: Sequence[Any]) -> list[list[Any]]:
        """Return for each parent its cotangents for many seeds, None for zero."""
        nothing = [None] * len(self._indices)
        count = sum(each is not None for each in cotangents)
        rows = [nothing if each is None else self._pulled(full(each), count) for each in cotangents]
        return [list(column) for column in zip(*rows, strict=True)]

    def _pulled(self, cotangent: Cotangent, count: int) -> list[Any]:
        problem, leaves = self._problem, self._leaves
        if not len(problem.moments.times):
            return [pytree.zeros_like(leaves[position]) for position in self._indices]
        # What "auto" takes is up to how many there are in all, and to what those before them have taken.
        is_up_to_others = self._divided and problem.sensitivity == "auto"
        if (self._found is None or is_up_to_others) and is_adjoint(problem, leaves, self._indices, cotangent, count):
            refuse_divided(is_up_to_others)
            return adjoint(problem, leaves, cotangent, self._indices)
        if self._found is None:
            self._found = _sensitivities(problem, leaves, self._indices)
        value, sensitivities = self._found
        return _contracted(problem, leaves, self._indices, value, sensitivities, cotangent)


# What an adjoint solution costs in directions of the extended equation, however large both are (measured by
# tests/benchmarks/solvers.py). Of few states and parameters a call of the right-hand side costs about as much for one
# direction as for many: for so many entries of the states, and more of parameters, which fewer operations touch.
# Implicit methods factor matrices of all these entries, and gain less.
DIRECTIONS, ENTRIES, IMPLICIT_DIRECTIONS, PARAMS_A_STATE = 3, 6000, 10, 25


def adjoint_in_directions(n_states: int, n_params: int, is_implicit: bool, n_stops: int) -> float:
    """Return for how many directions the extended equation costs what an adjoint solution does.

    `n_params` are the numbers that are differentiated in, which have tangents in each call of the right-hand side.
    This stops at each time for which it has a cotangent, which takes some calls of the right-hand side.
    """
    free = ENTRIES / max(n_states + n_params / PARAMS_A_STATE, 1)
    if is_implicit:
        free = min(free, IMPLICIT_DIRECTIONS)
    per_stop = 0.5 + 3.5 / (1.0 + n_states / 100.0) + free / 10.0
    return DIRECTIONS + free + per_stop * n_stops


def is_adjoint(
    problem: Problem, leaves: Sequence[Any], positions: Sequence[int], cotangent: Cotangent, n_cotangents: int
) -> bool:
    """Return whether so many cotangents like this one are pulled by the adjoint equation."""
    if problem.sensitivity != "auto":
        return problem.sensitivity == "adjoint"
    sizes = {position: np.size(pytree.plain(leaves[position])) for position in positions if position != MOVING}
    n_directions, n_params = sum(sizes.values()), sum(size for position, size in sizes.items() if position >= PARAMS)
    n_stops = np.count_nonzero(np.any(pytree.plain(cotangent), axis=0))
    equation = problem.equation
    return n_directions > n_cotangents * adjoint_in_directions(
        len(equation.atol), n_params, equation.settings.is_implicit, int(n_stops)
    )


def _sensitivities(problem: Problem, leaves: Sequence[Any], positions: Sequence[int]) -> tuple[Any, Any]:
    """Return the solution, and how it moves in all unit directions of the leaves at `positions`."""
    moving = [position for position in positions if position != MOVING]
    units = {position: _units(pytree.plain(leaves[position])) for position in moving}
    count = sum(map(len, units.values()))
    if not count:
        return solution(problem, leaves), ()
    tangents: dict[int, list[Any]] = {position: [] for position in moving}
    for position in moving:
        for each in moving:
            tangents[each] += units[position] if each == position else [None] * len(units[position])
    return jvp_of_solution(problem, leaves, tangents, count)


def _units(leaf: Leaf) -> list[Any]:
    """Return the unit directions of a leaf; of a complex one the imaginary ones too."""
    shape, size, dtype = np.shape(leaf), np.size(leaf), pytree.dtype_of(leaf)
    found = [unit.reshape(shape)[()] for unit in np.eye(size, dtype=dtype)]
    return [*found, *(1j * unit for unit in found)] if dtype.kind == "c" else found


def _contracted(
    problem: Problem,
    leaves: Sequence[Any],
    positions: Sequence[int],
    value: Value,
    sensitivities: Array,
    cotangent: Cotangent,
) -> list[Any]:
    """Return the cotangents of the leaves at `positions`, from how the solution moves in all their unit directions."""
    found, start = [], 0
    for position in positions:
        leaf = pytree.plain(leaves[position])
        if position == MOVING:
            found.append(_of_times(problem, leaves, value, cotangent))
            continue
        if not np.size(leaf):
            found.append(pytree.zeros_like(leaf))
            continue
        size = np.size(leaf) * (2 if np.iscomplexobj(leaf) else 1)
        parts = [_real(anp.sum(cotangent * part)) for part in sensitivities[start : start + size]]
        start += size
        if np.iscomplexobj(leaf):
            half = size // 2
            parts = [real - 1j * imaginary for real, imaginary in zip(parts[:half], parts[half:], strict=True)]
        found.append(anp.reshape(anp.stack(parts), np.shape(leaf)) if np.ndim(leaf) else parts[0])
    return found


def _of_times(problem: Problem, leaves: Sequence[Any], value: Value, cotangent: Cotangent) -> Any:
    slopes = _slopes(problem, leaves, value)
    return _real(anp.sum(cotangent[:, problem.moments.moving] * slopes, axis=0))


def _real(number: Array) -> Any:
    return anp.real(number) if np.iscomplexobj(pytree.plain(number)) else number


# The pullback by the adjoint equation, as a function of leaves and cotangent that somebody may trace


def adjoint(problem: Problem, leaves: Sequence[Any], cotangent: Cotangent, positions: Sequence[int]) -> list[Any]:
    """Return the cotangents of the leaves at `positions`, by the adjoint equation, differentiable in all it is given.

    What moves ``J(x)' w`` along dx and dw is the pullback, in x, of what the solution and its tangent along dx give,
    at the cotangents dw and w: the adjoint of the extended equation. What pulls c through it is ``J(x) c`` for w, and
    for x the same with dx = c and dw = 0.
    """
    trace = innermost([*leaves, cotangent])
    if trace is None:
        return _plain_adjoint(problem, leaves, cotangent, positions)
    *below, seed = trace.below
    if not trace.moves:
        values = adjoint(problem, below, seed, positions)
        return trace.pulled(values, _PullOfAdjoint(problem, trace, positions))
    tangents, count = trace.tangents()
    values = adjoint(problem, below, seed, positions)
    tangents_out = [
        _jvp_of_adjoint(
            problem, below, seed, {position: parts[number] for position, parts in tangents.items()}, positions
        )
        for number in range(count)
    ]
    return [
        trace.with_tangents(value, list(parts))
        for value, parts in zip(values, zip(*tangents_out, strict=True), strict=True)
    ]


def _jvp_of_adjoint(
    problem: Problem, leaves: Sequence[Any], seed: Cotangent, direction: dict[int, Any], positions: Sequence[int]
) -> list[Any]:
    along = {position: [part] for position, part in direction.items() if position < len(leaves) and part is not None}
    of_seed = direction.get(len(leaves))
    if not along:
        if of_seed is None:
            return [None] * len(positions)
        return adjoint(problem, leaves, of_seed, positions)
    return _vjp_of_jvp(problem, leaves, along, of_seed, seed, positions)


def _vjp_of_jvp(
    problem: Problem,
    leaves: Sequence[Any],
    along: dict[int, list[Any]],
    first: Tangents,
    second: Tangents,
    positions: Sequence[int],
) -> list[Any]:
    """Pull cotangents of the solution and of its tangent back to the leaves at `positions`."""

    def both(some: Sequence[Any]) -> list[Any]:
        at = dict(zip(positions, some, strict=True))
        value, tangents_out = jvp_of_solution(
            problem, [at.get(position, leaf) for position, leaf in enumerate(leaves)], along, 1
        )
        return [value, tangents_out[0]]

    some = [leaves[position] for position in positions]
    _, ends, roots = record_flat(both, some)
    return pytree.filled(pull(ends, [first, second], roots, some), some)


class _PullOfAdjoint:
    """The pullback of the adjoint's solution, at leaves and a cotangent that others may trace."""

    def __init__(self, problem: Problem, trace: Trace, positions: Sequence[int]) -> None:
        *self._leaves, self._seed = trace.below
        self._problem, self._asked, self._indices = problem, list(trace.nodes), positions

    def __call__(self, cotangent: Cotangent) -> tuple[Any, ...]:
        parts = zip(self._indices, parts_of(cotangent), strict=True)
        along = {position: [part] for position, part in parts if part is not None}
        problem, leaves, n = self._problem, self._leaves, len(self._leaves)
        asked = [position for position in self._asked if position < n]
        found = dict(zip(asked, _vjp_of_jvp(problem, leaves, along, None, self._seed, asked), strict=True))
        if n in self._asked:
            found[n] = jvp_of_solution(problem, leaves, along, 1)[1][0]
        return tuple(found[position] for position in self._asked)


def _plain_adjoint(
    problem: Problem, leaves: Sequence[Any], cotangent: Cotangent, positions: Sequence[int]
) -> list[Any]:
    leaves, cotangent = list(map(traceable, leaves)), np.asarray(cotangent)
    y0, t0, params = leaves[Y0], float(leaves[T0]), leaves[PARAMS:]
    value = solution(problem, leaves)
    dense = problem.dense() if problem.dense is not None else _dense_solution(problem, leaves)
    moving = [position - PARAMS for position in positions if position >= PARAMS]
    times = problem.moments.times
    of_state, of_params = pulled_through_time(problem.equation, params, moving, dense, t0, y0, times, cotangent)
    rest = dict(zip(moving, of_params, strict=True))
    found = []
    for position in positions:
        if position == Y0:
            found.append(shaped(of_state, y0))
        elif position == T0:
            found.append(-np.real(np.sum(of_state * _slope_at(problem.equation, t0, y0, params))))
        elif position == MOVING:
            found.append(_of_times(problem, leaves, value, cotangent))
        else:
            found.append(rest[position - PARAMS])
    return found


def _dense_solution(problem: Problem, leaves: Sequence[Any]) -> Any:
    t0, times = float(leaves[T0]), problem.moments.times
    last = times[np.argmax(np.abs(times - t0))]
    if last == t0:
        return lambda t: leaves[Y0]
    return integrate(problem.equation, leaves[PARAMS:], leaves[Y0], (t0, last), dense_output=True).sol
