"""Bounds of minima: which of them hold an unknown, told by the slopes and by where a step of Newton's leads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import autograd.numpy as anp
import numpy as np
from scipy import optimize
from scipy.sparse.linalg import LinearOperator, gmres

from dagad._errors import NotDifferentiableError
from dagad._tracing.forward import push
from dagad._tracing.operands import joined
from dagad._types import Array
from dagad._values import pytree
from dagad.solvers._factors import FAR
from dagad.solvers._implicit import AT_ONCE, DENSE

NEAR = 1e-3  # how near to a bound, relative to it, an unknown may be held by it: interior-point methods stay inside
HELD = 10.0  # times what is zero: with how much of a gradient a bound has to hold an unknown
INSIDE = 0.5  # of its distance to a bound: how far a step of Newton's may move an unknown there that is free
BEYOND = 2.0  # of that distance: how far it moves one that is held
ROUGH = 1e-6  # to which the products of a large matrix are solved
CYCLE = 200  # products after which such iterations begin anew


class Sides(NamedTuple):
    """Which unknowns are held by their lower bounds, and by their upper ones; `in_doubt` where nobody can tell."""

    at_low: Any
    at_high: Any
    in_doubt: Any


class Held:
    """Which unknowns of a minimum bounds hold, and which are free.

    An unknown near to a bound, by its distance alone, may be held there or have its minimum there: what matters is the
    scale of the function. So its slope is compared with its curvature: it is free if Newton's step for it, and for all
    that are far from bounds, stays inside.

    Parameters
    ----------
    x
        The minimum, plain.
    low, high
        The bounds, plain: one for each unknown.
    slope
        The gradient as a function of x, at plain parameters.
    """

    def __init__(self, x: Array, low: Array, high: Array, slope: Callable[[Any], Any]) -> None:
        self._x, self._slope = np.asarray(x), slope
        # As they are now: a loop may write each round's into one array.
        self._low, self._high = (np.broadcast_to(np.array(each, float), self._x.shape) for each in (low, high))
        is_lower = self._x - self._low <= self._high - self._x
        # Of few unknowns all that a step may move to a bound which is short enough for a solution.
        radius = FAR * (float(np.linalg.norm(self._x)) + FAR) if self._x.size <= DENSE else 0.0
        near = [_is_near(self._x, bound, radius) for bound in (self._low, self._high)]
        self._near_low, self._near_high = near[0] & (is_lower | ~near[1]), near[1] & ~(near[0] & is_lower)

    @property
    def any(self) -> bool:
        """Whether an unknown is near to a bound."""
        return bool(np.any(self._near_low) or np.any(self._near_high))

    def equations(self, x: Array, slope: Array, low: Array, high: Array) -> Any:
        """Return what is zero: the slope of the free unknowns, and the distance of the others to their bounds."""
        at_low, at_high, _ = self._sides
        of_bounds = anp.where(at_low, x - anp.where(at_low, low, 0.0), x - anp.where(at_high, high, 0.0))
        return anp.where(at_low | at_high, of_bounds, slope)

    def refuse(self, zero: float, name: str) -> None:
        """Refuse where a bound does not hold an unknown, which is about to leave it: there is a kink."""
        slope, sides = np.asarray(self._slope(self._x)), self._sides
        doubtful = np.flatnonzero(sides.in_doubt)
        if doubtful.size:
            raise NotDifferentiableError(
                f"What `{name}` found lies so near to bounds that nobody can tell whether they hold it: a step of "
                f"Newton's moves unknown {doubtful[0]} about as far as its bound is. Ask for smaller tolerances, take "
                "a method that ends at bounds (`L-BFGS-B`, or `dogbox` for `least_squares`), or move the bound: where "
                "a minimum reaches it, it has a kink in the parameters."
            )
        sign = np.where(sides.at_low, 1.0, -1.0)
        pushing = np.where(sides.at_low | sides.at_high, sign * slope, np.inf)
        loose = np.flatnonzero(np.where(self._low == self._high, np.inf, pushing) <= HELD * zero)
        if loose.size:
            raise NotDifferentiableError(
                f"What `{name}` found lies at a bound that does not hold it: the slope of unknown {loose[0]} is "
                f"{slope[loose[0]]:.1e} there, where one of {sign[loose[0]] * HELD * zero:.0e} or more would hold it, "
                "so that the minimum has a kink in the parameters. Move the bound, or write the unknown as a function "
                "of one without bounds, `np.exp(z)` say; if all slopes are that small, multiply the function."
            )

    @functools.cached_property
    def _sides(self) -> Sides:
        """Which bounds hold; found where a derivative is asked for first."""
        slope, near = np.asarray(self._slope(self._x), float), self._near_low | self._near_high
        distance = np.where(self._near_low, self._x - self._low, self._high - self._x)
        free, in_doubt = np.zeros(near.shape, bool), np.zeros(near.shape, bool)
        some = np.flatnonzero(near & (distance > 0.0) & (self._low < self._high))
        if some.size:
            outwards = np.where(self._near_low, 1.0, -1.0)
            some, curvature, right = self._reduced(slope, some, np.flatnonzero(~near), outwards * distance)
            curvature, pushing = outwards[some, None] * curvature * outwards[some], outwards[some] * right
            step = _steps(pushing, np.diag(curvature)) / distance[some]
            is_free = step <= INSIDE
            together = _stay(curvature[np.ix_(is_free, is_free)], pushing[is_free], distance[some[is_free]])
            free[some] = is_free
            in_doubt[some] = np.where(is_free, not together, ~(step >= BEYOND))
        return Sides(self._near_low & ~free, self._near_high & ~free, in_doubt)

    def _reduced(self, slope: Array, some: Array, others: Array, way: Array) -> tuple[Any, Any, Any]:
        """Return curvature and slope in some unknowns, where those that are far from bounds follow; `way` is inwards.

        Of many unknowns those are left out that their own curvature does not hold inside: the others help them out.
        """
        if len(slope) <= DENSE:
            columns = self._columns(np.arange(len(slope)))
            right = np.column_stack([columns[np.ix_(others, some)], slope[others]])
            followed = _solved(columns[np.ix_(others, others)], right)
            columns = columns[:, some]
        else:
            columns = self._columns(some)
            own, inwards = columns[some, np.arange(len(some))], np.sign(way[some])
            left = ~(_steps(inwards * slope[some], own) >= BEYOND * np.abs(way[some]))
            some, columns = some[left], columns[:, left]
            right = np.column_stack([columns[others], slope[others]])
            followed = np.column_stack([self._by_products(others, each) for each in right.T]) if others.size else right
        across = columns[others].T
        return some, columns[some] - across @ followed[:, :-1], slope[some] - across @ followed[:, -1]

    def _columns(self, indices: Array) -> Any:
        """Return columns of the Hessian, some at a time."""
        columns: list[Any] = []
        for start in range(0, len(indices), AT_ONCE):
            units = [_unit(self._x, index) for index in indices[start : start + AT_ONCE]]
            _, tangents_out = push(lambda xs: [self._slope(xs[0])], [self._x], [[unit] for unit in units])
            columns += [
                np.zeros(self._x.shape) if part is None else np.asarray(part, float) for (part,) in tangents_out
            ]
        return np.stack(columns, axis=1)

    def _by_products(self, others: Array, right: Array) -> Any:
        def product(vector: Array) -> Any:
            direction = np.zeros(self._x.shape)
            direction[others] = np.ravel(vector)
            _, (((part,)),) = push(lambda xs: [self._slope(xs[0])], [self._x], [[direction]])
            return np.zeros(len(others)) if part is None else np.asarray(part, float)[others]

        operator = LinearOperator((len(others), len(others)), matvec=product, dtype=float)
        found, failed = gmres(operator, right, rtol=ROUGH, atol=0.0, restart=min(len(others), CYCLE))
        return np.full(len(others), np.nan) if failed else found


def _unit(x: Array, index: int) -> Any:
    unit = np.zeros(np.shape(x))
    unit[index] = 1.0
    return unit


def _solved(matrix: Array, right: Array) -> Any:
    try:
        return np.linalg.solve(matrix, right)
    except np.linalg.LinAlgError:  # the equations are singular too, and are refused as such
        return np.zeros(right.shape)


def _steps(pushing: Array, curvature: Array) -> Any:
    """Return how far Newton's step goes to the bound, of each alone; without end where there is no minimum inside."""
    steps = np.where(np.isnan(curvature), np.nan, np.inf)
    np.divide(pushing, curvature, out=steps, where=curvature > 0.0)
    return steps


def _stay(curvature: Array, pushing: Array, distance: Array) -> bool:
    """Return whether those that are free one by one are so together: at a minimum, from which none goes away."""
    if not len(pushing):
        return True
    if not np.linalg.eigvalsh(curvature)[0] > 0.0:
        return False
    return bool(np.all(np.linalg.solve(curvature, pushing) <= INSIDE * distance))


def _is_near(x: Array, bound: Array, radius: float) -> Any:
    finite = np.where(np.isfinite(bound), bound, 0.0)
    return np.isfinite(bound) & (np.abs(x - finite) <= np.maximum(radius, NEAR * (1.0 + np.abs(finite))))


def bounds_of_pairs(bounds: object) -> tuple[Any, Any]:
    """Return lower and upper bounds from what `minimize` takes: `Bounds`, or a pair for each unknown."""
    if isinstance(bounds, optimize.Bounds):
        return bounds.lb, bounds.ub
    pairs = [tuple(pair) for pair in pytree.open_containers(bounds)]
    return _vector([low for low, _ in pairs], -np.inf), _vector([high for _, high in pairs], np.inf)


def _vector(parts: Sequence[Any], none: float) -> Any:
    return joined([np.float64(none) if part is None else part for part in parts])


def pair_of_bounds(bounds: object) -> tuple[Any, Any]:
    """Return lower and upper bounds from what `least_squares` takes: `Bounds`, or a pair for all unknowns."""
    if isinstance(bounds, optimize.Bounds):
        return bounds.lb, bounds.ub
    low, high = (joined(part) if isinstance(part, list | tuple) else part for part in pytree.open_containers(bounds))
    return low, high
