"""Every operation on rows, of one number, written with any engine's numpy, with its derivatives by plain autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as onp

import dagad
from dagad.extend import CompensatedSum
from support.every_mode import derivatives

ROWS = onp.linspace(0.2, 1.3, 7)
LISTS = [ROWS[:2], ROWS[2:5], ROWS[5:], ROWS[:0]]
PAIRS = ROWS[:6].reshape(3, 2)


def wave(np: Any, rows: Any, t: Any) -> Any:
    return np.sum(np.sin(rows * t) * np.exp(-t * t))


class Written:
    """A function of rows and one number, written with the numpy of an engine."""

    def __init__(self, fun: Callable[..., Any], np: Any = onp) -> None:
        self.fun, self.np = fun, np

    def __call__(self, *args: Any) -> Any:
        return self.fun(self.np, *args)

    def __reduce__(self) -> Any:
        return type(self), (self.fun, self.np)


def parts(np: Any, rows: Any, t: Any) -> Any:
    return {"wave": wave(np, rows, t), "n": len(rows), "first": rows[:1] * t}


def outputs(np: Any, item: Any, t: Any) -> Any:
    return np.sin(item * t), np.cos(t) * item**2


def ragged(np: Any, item: Any, t: Any) -> Any:
    return np.sin(item * t)


def either(left: Any, right: Any) -> Any:
    return left + right - 0.1 * left * right


def weighed(np: Any, tree: Any) -> Any:
    """Return one number of all that an operation gave, which is not linear in it."""
    leaves = [tree[key] for key in sorted(tree)] if isinstance(tree, dict) else tree
    leaves = leaves if isinstance(leaves, tuple | list) else [leaves]
    return sum(np.sum(np.sin(leaf + 1.0)) for leaf in leaves)


def combined(np: Any, t: Any) -> Any:
    first, second, third, fourth = (wave(np, ROWS[start : start + 2], t) for start in range(0, 7, 2))
    return either(either(first, second), either(third, fourth))


# Each with the numpy of an engine, the options of the operation, and the whole before it was cut.
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "reduce_sum": (
        lambda np, t, **o: dagad.reduce_sum(Written(wave, np), ROWS, t, grainsize=2, **o),
        lambda t: wave(anp, ROWS, t),
    ),
    "of rows": (
        lambda np, t, **o: dagad.reduce_sum(Written(wave, np), ROWS * t, t, grainsize=2, **o),
        lambda t: wave(anp, ROWS * t, t),
    ),
    "of a tree": (
        lambda np, t, **o: weighed(anp, dagad.reduce_sum(Written(parts, np), ROWS, t, grainsize=2, **o)),
        lambda t: weighed(anp, {"a": anp.sum(ROWS[::2]) * t, "b": 7, "c": wave(anp, ROWS, t)}),
    ),
    "compensated": (
        lambda np, t, **o: dagad.reduce_sum(Written(wave, np), ROWS, t, grainsize=2, sum=CompensatedSum(), **o),
        lambda t: wave(anp, ROWS, t),
    ),
    "map_sum": (
        lambda np, t, **o: dagad.map_sum(Written(wave, np), LISTS, t, grainsize=2, **o),
        lambda t: sum(wave(anp, item, t) for item in LISTS),
    ),
    "map": (
        lambda np, t, **o: weighed(anp, dagad.map(Written(outputs, np), PAIRS * t, t, grainsize=2, **o)),
        lambda t: weighed(anp, outputs(anp, PAIRS * t, t)),
    ),
    "map_rect": (
        lambda np, t, **o: weighed(
            anp, dagad.map_rect(Written(ragged, np), [item * t for item in LISTS], t, grainsize=2, **o)
        ),
        lambda t: weighed(anp, [ragged(anp, item * t, t) for item in LISTS]),
    ),
    "map_reduce": (
        lambda np, t, **o: dagad.map_reduce(Written(wave, np), either, ROWS, t, grainsize=2, **o),
        lambda t: combined(anp, t),
    ),
}
RIGHT = {name: derivatives(whole) for name, (_, whole) in OPERATIONS.items()}
