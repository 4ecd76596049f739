"""Programs that step in time, whose derivatives are known, on blocks with halos: by hand and by dask arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import autograd.numpy as np
import dask.array as da
import numpy as onp
from dask.base import annotate as dask_annotate
from dask.delayed import delayed

import dagad

Array = onp.ndarray[Any, Any]
annotate: Any = dask_annotate  # Dask has few types


class Problem(NamedTuple):
    """What is stepped, and what is known of it.

    `step` takes a state with a halo of one cell on each side of its last axes, and a parameter; outside there is
    `boundary`. `measure` makes a number of blocks of the last state, each with its own weights.
    """

    start: Array
    parameter: float
    step: Callable[[Any, Any], Any]
    measure: Callable[[Any, Any], Any]
    weights: Array
    boundary: Any
    n_axes: int = 1


def half_of_squares(block: Any, weights: Any) -> Any:
    del weights
    return 0.5 * np.sum(block**2)


def weighted(block: Any, weights: Any) -> Any:
    return np.sum(block * weights)


# Heat in one dimension, zero outside. A sine is an eigenvector: all is known.

N_HEAT, MODE, KAPPA = 35, 3, 0.4


def heat_step(u: Any, r: Any) -> Any:
    return u[1:-1] + r * (u[2:] - 2.0 * u[1:-1] + u[:-2])


def heat() -> Problem:
    start = onp.sin(MODE * onp.pi * onp.arange(1, N_HEAT + 1) / (N_HEAT + 1))
    return Problem(start, KAPPA, heat_step, half_of_squares, start, 0.0)


def heat_gradients(n_steps: int) -> tuple[Array, float]:
    rate = -4.0 * onp.sin(MODE * onp.pi / (2 * (N_HEAT + 1))) ** 2
    start, factor = heat().start, 1.0 + KAPPA * rate
    of_start = factor ** (2 * n_steps) * start
    return of_start, n_steps * factor ** (2 * n_steps - 1) * rate * float(start @ start)


# Upwind in one dimension, periodic, a cell a step: what was rolled one way is rolled back, to the last bit.


def upwind_step(u: Any, c: Any) -> Any:
    return u[1:-1] - c * (u[1:-1] - u[:-2])


def upwind() -> Problem:
    n = 24
    start = onp.random.default_rng(3).standard_normal(n)
    return Problem(start, 1.0, upwind_step, weighted, onp.arange(1.0, n + 1.0), "periodic")


# Burgers' equation in one dimension, viscous, periodic: smooth in all arguments, so complex steps give derivatives.


def burgers_step(u: Any, nu: Any) -> Any:
    left, own, right = u[:-2], u[1:-1], u[2:]
    return own - 0.032 * (right**2 - left**2) + nu * (right - 2.0 * own + left)


def burgers() -> Problem:
    x = onp.arange(28) / 28
    start = onp.sin(2 * onp.pi * x) + 0.3 * onp.cos(6 * onp.pi * x)
    return Problem(start, 0.2, burgers_step, half_of_squares, start, "periodic")


# Shallow water in two dimensions, periodic, Lax and Friedrichs: its mass does not depend on anything but itself.


def shallow_step(u: Any, g: Any, c: float = 0.05) -> Any:
    h, p, q = u[0], u[1], u[2]
    along = np.stack([p, p**2 / h + 0.5 * g * h**2, p * q / h])
    across = np.stack([q, p * q / h, q**2 / h + 0.5 * g * h**2])
    east, west = (slice(None), slice(2, None), slice(1, -1)), (slice(None), slice(None, -2), slice(1, -1))
    south, north = (slice(None), slice(1, -1), slice(2, None)), (slice(None), slice(1, -1), slice(None, -2))
    mean = (u[east] + u[west] + u[south] + u[north]) / 4.0
    return mean - 0.5 * c * (along[east] - along[west] + across[south] - across[north])


def mass(block: Any, weights: Any) -> Any:
    del weights
    return np.sum(block[0])


def shallow(n: int = 14) -> Problem:
    x, y = onp.meshgrid(onp.arange(n) / n, onp.arange(n) / n, indexing="ij")
    h = 1.0 + 0.3 * onp.exp(-((x - 0.4) ** 2 + (y - 0.6) ** 2) / 0.02)
    start = onp.stack([h, 0.2 * onp.sin(2 * onp.pi * y), -0.1 * onp.cos(2 * onp.pi * x)])
    return Problem(start, 9.81, shallow_step, mass, start, "periodic", 2)


PROBLEMS = {"heat": heat, "upwind": upwind, "burgers": burgers, "shallow": shallow}


# The same in one piece


def with_halo(problem: Problem, state: Any) -> Any:
    for axis in range(-problem.n_axes, 0):
        edge = np.take(state, [0], axis)
        ends = [np.take(state, [-1], axis), edge] if problem.boundary == "periodic" else [0.0 * edge] * 2
        state = np.concatenate([ends[0], state, ends[1]], axis)
    return state


def in_one_piece(problem: Problem, n_steps: int, start: Any, parameter: Any) -> Any:
    for _ in range(n_steps):
        start = problem.step(with_halo(problem, start), parameter)
    assert onp.max(onp.abs(start)) < 10.0, "an unstable scheme would make every check void"
    return problem.measure(start, problem.weights)


# In blocks, cut along the first of their last axes: by Delayed, with halos by hand, and by `map_overlap`, where steps
# are marked for schedules


class Stepped(NamedTuple):
    """A number at the end, what it depends on, and what puts the parts of a gradient together."""

    y: Any
    start: Any
    parameter: Any
    whole: Callable[[Any], Any]


def cuts(problem: Problem, n_blocks: int) -> list[Array]:
    return onp.array_split(problem.start, n_blocks, axis=-problem.n_axes)


def joined(axis: int, left: Any, own: Any, right: Any) -> Any:
    return np.concatenate([left, own, right], axis)


def by_hand(problem: Problem, n_steps: int, n_blocks: int) -> Stepped:
    axis = -problem.n_axes
    parts, parameter = cuts(problem, n_blocks), delayed(problem.parameter)
    weights = onp.array_split(problem.weights, n_blocks, axis=axis)
    start: list[Any] = [delayed(part) for part in parts]
    outside = delayed(onp.zeros(1)) if problem.boundary == 0.0 else None
    rest = (slice(None),) * (problem.n_axes - 1)
    blocks, step = start, delayed(functools.partial(by_block, problem))
    for _ in range(n_steps):
        first = [block[(..., slice(None, 1), *rest)] for block in blocks]
        last = [block[(..., slice(-1, None), *rest)] for block in blocks]
        before = [last[i - 1] if i or outside is None else outside for i in range(n_blocks)]
        after = [first[(i + 1) % n_blocks] if i + 1 < n_blocks or outside is None else outside for i in range(n_blocks)]
        halo = [delayed(joined)(axis, *three) for three in zip(before, blocks, after, strict=True)]
        blocks = [step(block, parameter) for block in halo]
    ends = [delayed(problem.measure)(block, part) for block, part in zip(blocks, weights, strict=True)]
    return Stepped(delayed(total)(ends), start, parameter, lambda found: onp.concatenate(found, axis))


def by_block(problem: Problem, block: Any, parameter: Any) -> Any:
    """Step a block whose halo along the first axis is there; along the others it is its own neighbour."""
    for axis in range(1 - problem.n_axes, 0):
        block = np.concatenate([np.take(block, [-1], axis), block, np.take(block, [0], axis)], axis)
    return problem.step(block, parameter)


def total(ends: Sequence[Any]) -> Any:
    return sum(ends)


def by_overlap(problem: Problem, n_steps: int, n_blocks: int) -> Stepped:
    axis = problem.start.ndim - problem.n_axes
    sizes = tuple(part.shape[axis] for part in cuts(problem, n_blocks))
    chunks = tuple(sizes if place == axis else (length,) for place, length in enumerate(problem.start.shape))
    start = state = da.from_array(problem.start, chunks)
    weights = da.from_array(problem.weights, chunks)
    parameter = delayed(problem.parameter)
    depth = {place: int(place >= axis) for place in range(problem.start.ndim)}
    how: dict[str, Any] = {"depth": depth, "boundary": dict.fromkeys(depth, problem.boundary), "dtype": float}
    fill = functools.partial(within, problem)
    for step in range(n_steps):
        with annotate(dagad_step=step):
            state = da.map_overlap(fill, state, parameter=parameter, meta=problem.start[:0], **how)
    keep = functools.partial(as_block, problem)
    y = da.map_blocks(keep, state, weights, dtype=float, chunks=tuple((1,) * len(each) for each in chunks)).sum()
    return Stepped(y, start, parameter, lambda found: found)


def within(problem: Problem, block: Any, parameter: Any) -> Any:
    """Step a block with its halo; `map_overlap` cuts off what stands in the place of the halo afterwards."""
    inner = problem.step(block, parameter)
    for axis in range(-problem.n_axes, 0):
        edge = np.take(inner, [0], axis)
        inner = np.concatenate([edge, inner, edge], axis)
    return inner


def as_block(problem: Problem, block: Any, weights: Any) -> Any:
    return np.reshape(problem.measure(block, weights), (1,) * problem.start.ndim)


FORMS: dict[str, Callable[[Problem, int, int], Stepped]] = {"by hand": by_hand, "by overlap": by_overlap}


def derivatives(stepped: Stepped, policy: Any = None) -> tuple[Any, Any]:
    """Return a number and its gradients for the start and the parameter, as collections."""
    return dagad.value_and_gradient(stepped.y, [stepped.start, stepped.parameter], policy=policy)
