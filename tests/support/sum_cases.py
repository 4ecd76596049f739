"""Chunk functions that sum over their rows, their arguments, and what plain autograd makes of them uncut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import autograd
import autograd.numpy as np
import numpy as onp
import optree

import dagad

RNG = onp.random.default_rng(0)
N = 23
X, Y, W = RNG.standard_normal((N, 3)), RNG.standard_normal(N), RNG.uniform(0.5, 2.0, N)
THETA = onp.array([0.3, -0.7, 1.1])
RAGGED = [RNG.standard_normal(length) for length in (3, 1, 0, 5, 2, 2, 7)]


class Table(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Model:
    slope: Any
    offset: Any


register: Any = optree.register_pytree_node
register(Model, lambda model: ((model.slope, model.offset), None), lambda _, parts: Model(*parts), namespace="dagad")


@dataclass(frozen=True)
class Case:
    """A chunk function that sums over its rows, so that the uncut function is the function itself."""

    fun: Callable[..., Any]
    sliced: Any
    shared: tuple[Any, ...]


def logistic(rows: Any, theta: Any) -> Any:
    x, y = rows
    return np.sum(np.logaddexp(0.0, x @ theta) - y * (x @ theta))


def squares(rows: Any, center: Any) -> Any:
    return np.sum((rows - center) ** 2)


def weighted(rows: Any, params: Any, scale: Any) -> Any:
    residual = rows["y"] - rows["x"] @ params["beta"] - params["rest"][0]
    return np.sum(rows["w"] * residual**2) / scale + np.sum(params["rest"][1] ** 2) * len(rows["y"])


def line(rows: Any, model: Any) -> Any:
    return np.sum(np.tanh(rows.x @ model.slope + model.offset) * rows.y)


def ragged(rows: Any, rate: Any) -> Any:
    return sum([np.sum(np.exp(rate * row)) for row in rows], 0.0)


def visits(rows: Any, rate: Any) -> Any:
    return sum([row["n"] * np.sum(np.sin(rate * row["x"])) * row["deep"][0] for row in rows], 0.0)


def columns(rows: Any, offset: Any) -> Any:
    named = np.array([name == "a" for name in rows["name"]])
    return np.sum((rows["x"] * rows["count"] + offset) ** 2 * np.where(named, 1.0, 0.5))


def pairs(rows: Any, theta: Any) -> Any:
    lists, (array, nothing) = rows
    assert nothing is None
    return sum([item[0] * np.sum(item[1] * theta) for item in lists], 0.0) + np.sum(array**3)


def with_options(rows: Any, options: Any, numbers: Any) -> Any:
    assert options["name"] == "cubic"
    assert options["nothing"] is None
    return numbers[0] * options["factor"] * np.sum(rows ** options["power"]) + numbers[1]["a"] * len(rows)


CASES = {
    "tuple": Case(logistic, (X, (Y > 0).astype(float)), (THETA,)),
    "array": Case(squares, X, (THETA,)),
    "number": Case(squares, Y, (0.25,)),
    "fortran": Case(squares, onp.asfortranarray(X), (THETA,)),
    "dict": Case(weighted, {"x": X, "y": Y, "w": W}, ({"beta": THETA, "rest": (0.1, THETA[:2])}, 2.5)),
    "records": Case(line, Table(X, Y), (Model(THETA, 0.5),)),
    "ragged": Case(ragged, RAGGED, (0.3,)),
    "list of dicts": Case(
        visits, [{"n": i, "x": x, "id": "p", "deep": [0.5 + i]} for i, x in enumerate(RAGGED)], (onp.float64(1.5),)
    ),
    "mixed columns": Case(columns, {"x": Y, "count": onp.arange(N), "name": onp.array(["a", "b"] * N)[:N]}, (0.2,)),
    "lists in tuples": Case(pairs, ([(w, x) for w, x in zip(W, X, strict=True)], (Y, None)), (THETA,)),
    "constants": Case(
        with_options, W, ({"name": "cubic", "nothing": None, "factor": 2.0, "power": 3}, [1.5, {"a": onp.array(0.5)}])
    ),
}


def reference(fun: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """Return plain autograd's value and gradients, None for what is not floating point."""
    leaves, treedef = flatten(args, none_is_leaf=False)
    places = [place for place, leaf in enumerate(leaves) if onp.asarray(leaf).dtype.kind == "f"]

    def flat(taken: Any) -> Any:
        full = dict(enumerate(leaves)) | dict(zip(places, [taken[i] for i in range(len(places))], strict=True))
        return fun(*optree.tree_unflatten(treedef, full.values()))

    value, taken = autograd.value_and_grad(flat)([leaves[place] for place in places])
    full = dict.fromkeys(range(len(leaves))) | dict(zip(places, taken, strict=True))
    return value, optree.tree_unflatten(treedef, full.values())


def flatten(tree: Any, none_is_leaf: bool = True) -> tuple[list[Any], Any]:
    return optree.tree_flatten(tree, none_is_leaf=none_is_leaf, namespace="dagad")


def assert_close(actual: Any, expected: Any, rtol: float = 1e-12) -> None:
    leaves, treedef = flatten(actual)
    others, other_treedef = flatten(expected)
    assert treedef == other_treedef
    for leaf, other in zip(leaves, others, strict=True):
        assert (leaf is None) == (other is None)
        if leaf is not None:
            assert onp.shape(leaf) == onp.shape(other)
            gap = onp.max(onp.abs(onp.asarray(leaf) - other), initial=0.0)
            assert gap <= rtol * max(onp.max(onp.abs(other), initial=0.0), 1e-300)


def bits(tree: Any) -> list[Any]:
    """Return what has to be equal for two results to be bitwise equal."""
    leaves, treedef = flatten(tree)
    found = [None if leaf is None else (onp.asarray(leaf).dtype.str, onp.asarray(leaf).tobytes()) for leaf in leaves]
    return [treedef, *found]


def stacked(rows: Any, theta: Any) -> Any:
    return rows.T @ np.tanh(rows @ theta)


def structured(rows: Any, theta: Any) -> Any:
    return {"loss": np.sum((rows @ theta) ** 2), "by column": (np.sum(rows * theta, axis=0), [len(rows)])}


def cut_on(scheduler: Any) -> Callable[..., Any]:
    return partial(dagad.reduce_sum, grainsize=4, scheduler=scheduler)
