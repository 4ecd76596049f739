"""Programs of reductions and maps for the tests of the modes, cut in chunks or whole and in plain autograd."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import autograd
import autograd.numpy as np
import numpy as onp

import dagad
from dagad.extend import CompensatedSum

RNG = onp.random.default_rng(2)
X, THETA = RNG.standard_normal((11, 3)), onp.array([0.4, -0.2, 0.9])
DX, DTHETA = RNG.standard_normal((11, 3)), onp.array([1.0, -0.5, 0.3])
RAGGED = [RNG.uniform(0.5, 1.5, length) for length in (3, 1, 0, 5, 2, 2)]


class Point(NamedTuple):
    x: Any
    y: Any


def cut_on(scheduler: Any, grainsize: Any = 3, **options: Any) -> Any:
    """Return dagad's reductions and maps, cut."""
    names = ("reduce_sum", "map_sum", "map", "map_rect", "map_reduce")
    options = {"grainsize": grainsize, "scheduler": scheduler, **options}
    return SimpleNamespace(**{name: partial(getattr(dagad, name), **options) for name in names})


def items(rows: Any) -> Any:
    if isinstance(rows, tuple):
        return zip(*rows, strict=True)
    return rows if isinstance(rows, list) else [rows[number] for number in range(len(rows))]


# What they mean, uncut and in plain autograd.
WHOLE = SimpleNamespace(
    reduce_sum=lambda f, rows, *shared, **_: f(rows, *shared),
    map_sum=lambda f, rows, *shared: sum([f(item, *shared) for item in items(rows)], 0.0),
    map=lambda f, rows, *shared: np.stack([f(item, *shared) for item in items(rows)]),
    map_rect=lambda f, rows, *shared: np.concatenate([f(item, *shared) for item in items(rows)]),
    map_reduce=lambda f, combine, rows, *shared: f(rows, *shared),
)


def logistic(rows: Any, theta: Any) -> Any:
    return np.sum(np.logaddexp(0.0, rows @ theta) + 0.1 * (rows @ theta) ** 3)


def columns(rows: Any, theta: Any) -> Any:
    return np.sum(np.tanh(rows * theta) * rows, axis=0)


def several(ops: Any, x: Any, theta: Any) -> Any:
    first = ops.reduce_sum(columns, x, theta)
    second = ops.reduce_sum(lambda rows: np.sum(np.sin(rows @ first)), x[1:] * 2.0)  # `first` in its closure
    return np.exp(0.1 * second) * np.sum(first**2) + ops.map_sum(lambda row, t: np.prod(row - t), x, theta)


def ragged(ops: Any, x: Any, theta: Any) -> Any:
    jobs = [*RAGGED[:3], x[0] * theta, *RAGGED[3:], x[4, :2]]
    out = ops.map_rect(lambda job, t: np.exp(-t[0] * job) * t[1] + np.sum(job) * t[2] ** 2, jobs, theta)
    return np.sum(out**2 * onp.linspace(0.5, 1.5, len(out)))


def combined(ops: Any, x: Any, theta: Any) -> Any:
    def largest(rows: Any, t: Any) -> Any:
        top = np.max(rows @ t)
        return top + np.log(np.sum(np.exp(rows @ t - top)))

    return ops.map_reduce(largest, np.logaddexp, x, theta) ** 2


def nested(ops: Any, x: Any, theta: Any) -> Any:
    inside = WHOLE if ops is WHOLE else cut_on(None, 1)  # what runs in a chunk says nothing of schedulers

    def inner(rows: Any, t: Any, offset: Any) -> Any:
        return np.sum(np.cos(rows @ t + offset))

    def outer(rows: Any, t: Any) -> Any:
        spread = inside.reduce_sum(columns, rows, t * 0.5)
        return inside.reduce_sum(inner, rows, t, np.sum(rows)) * np.sum(spread * t)

    return ops.map_sum(lambda row, t: outer(row[None] * onp.ones((2, 1)), t), x, theta)


def pytrees(ops: Any, x: Any, theta: Any) -> Any:
    def parts(rows: Any, params: Any, data: Any) -> Any:
        named, (count, _) = rows
        moved = named.x * params["b"][0] + named.y[:, None] * data.x
        return {"sum": np.sum(moved**3) * params["a"], "by column": (np.sum(moved**2, axis=0), len(count))}

    rows = (Point(x, x[:, 0] ** 2), (onp.arange(len(x)), onp.arange(len(x)) * 0.5))
    out = ops.reduce_sum(parts, rows, {"a": theta[0], "b": [theta, 3]}, Point(2, theta[1]))
    return out["sum"] * out["by column"][1] + np.sum(out["by column"][0] ** 2)


PROGRAMS: dict[str, Any] = {
    "a sum": lambda ops, x, theta: ops.reduce_sum(logistic, x, theta),
    "a sum of arrays": lambda ops, x, theta: np.sum(ops.reduce_sum(columns, x, theta) ** 3),
    "a compensated sum": lambda ops, x, theta: ops.reduce_sum(logistic, x, theta, sum=CompensatedSum()) ** 2,
    "several": several,
    "a map": lambda ops, x, theta: np.sum(np.prod(ops.map(lambda row, t: np.sin(row * t), x, theta), axis=1)),
    "ragged jobs": ragged,
    "combined": combined,
    "nested": nested,
    "pytrees": pytrees,
}


def close(actual: Any, expected: Any, rtol: float = 1e-12) -> bool:
    gap = onp.max(onp.abs(onp.asarray(actual) - onp.asarray(expected)), initial=0.0)
    return bool(gap <= rtol * onp.max(onp.abs(expected), initial=1e-300)) and onp.shape(actual) == onp.shape(expected)


def bits(*results: Any) -> list[bytes]:
    return [onp.asarray(result).tobytes() for result in results]


def expected_hvp(fun: Any, primals: Any, tangents: Any) -> Any:
    def slope(primals: Any) -> Any:
        parts = autograd.grad(lambda both: fun(both[0], both[1]))(primals)
        return np.sum(parts[0] * tangents[0]) + np.sum(parts[1] * tangents[1])

    return autograd.grad(slope)(primals)
