"""Rows in Shards, differentiated in by every mode that stays where they are: the bits of the same rows as arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest

import dagad
from dagad._executors import choose
from dagad._values import pytree
from dagad.extend import CompensatedSum
from support.waiting import PATIENCE

pytestmark = [
    pytest.mark.each_value("all combinations of parameters: each value of each is in this tier"),
]

RNG = np.random.default_rng(0)
ROWS: dict[str, Any] = {"x": RNG.standard_normal((10, 3)), "y": RNG.standard_normal(10), "n": np.arange(10)}
MOVE: dict[str, Any] = {"x": RNG.standard_normal((10, 3)), "y": RNG.standard_normal(10), "n": np.zeros(10)}
THETA, ALONG = np.array([0.3, -0.2, 0.5]), np.ones(3)

Program = Callable[..., Any]


def number(rows: Any, t: Any) -> Any:
    return anp.sum(anp.sin(rows["x"] @ t) * rows["y"])


def vector(rows: Any, t: Any) -> Any:
    return anp.sin(rows["x"] @ t) @ rows["x"]


def item(row: Any, t: Any) -> Any:
    return anp.sin(row["x"] * t) * row["y"]


def log_sum(rows: Any, t: Any) -> Any:
    return anp.log(anp.sum(anp.exp(rows["x"] @ t) * rows["y"] ** 2))


PROGRAMS: dict[str, Program] = {
    "sum": lambda x, t, **k: dagad.reduce_sum(number, x, t, **k),
    "exp": lambda x, t, **k: anp.exp(0.1 * dagad.reduce_sum(number, x, t, **k)),
    "compensated": lambda x, t, **k: dagad.reduce_sum(number, x, t, sum=CompensatedSum(), **k),
    "vector": lambda x, t, **k: anp.sum(dagad.reduce_sum(vector, x, t, **k) ** 2),
    "map": lambda x, t, **k: anp.sum(dagad.map(item, x, t, **k) ** 2),
    "map_rect": lambda x, t, **k: anp.sum(dagad.map_rect(item, x, t, **k) ** 3),
    "map_reduce": lambda x, t, **k: dagad.map_reduce(log_sum, anp.logaddexp, x, t, **k),
}


def by_evaluation(f: Program, x: Any) -> Any:
    evaluation = dagad.evaluate(f, x, THETA, argnums=(0, 1))
    return evaluation.value(PATIENCE), evaluation.gradient(PATIENCE)


def of_a_gradient(f: Program, x: Any) -> Any:
    return dagad.grad(lambda x: anp.sum(dagad.grad(f, argnums=1)(x, THETA) ** 2))(x)


MODES: dict[str, Callable[[Program, Any, Any], Any]] = {
    "grad": lambda f, x, v: dagad.value_and_grad(f, argnums=(0, 1))(x, THETA),
    "evaluate": lambda f, x, v: by_evaluation(f, x),
    "jvp": lambda f, x, v: dagad.jvp(f, (x, THETA), (v, ALONG)),
    "hvp": lambda f, x, v: dagad.hvp(f, (x, THETA), (v, ALONG)),
    "grad of grad": lambda f, x, v: of_a_gradient(f, x),
}


def bits(tree: Any) -> list[bytes]:
    leaves = [leaf.gather() if hasattr(leaf, "gather") else leaf for leaf in pytree.flatten(tree)[0]]
    return [np.asarray(leaf).tobytes() for leaf in pytree.flatten(leaves)[0]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_mode_in_rows_of_shards_has_the_bits_of_arrays(name: str, mode: str, scheduler: Any) -> None:
    shards, along = (dagad.shard(data, grainsize=4, scheduler=scheduler) for data in (ROWS, MOVE))

    def cut(x: Any, t: Any) -> Any:
        return PROGRAMS[name](x, t, grainsize=4, scheduler="sync")

    expected = MODES[mode](cut, ROWS, {**MOVE, "n": None})
    assert bits(MODES[mode](PROGRAMS[name], shards, along)) == bits(expected)


def test_a_tangent_of_another_shape_is_refused() -> None:
    shards, along = (dagad.shard(data, grainsize=4, scheduler="sync") for data in (ROWS, {**MOVE, "y": MOVE["x"]}))
    with pytest.raises(dagad.StructureError, match="tangent or cotangent of Shards"):
        dagad.jvp(PROGRAMS["sum"], (shards, THETA), (along, ALONG))


@pytest.mark.parametrize("mode", [dagad.jacrev, dagad.jacfwd, dagad.hessian])
def test_a_jacobian_in_shards_is_refused_with_the_remedy(mode: Any) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"gather\(\)"):
        mode(PROGRAMS["sum"])(dagad.shard(ROWS, grainsize=4, scheduler="sync"), THETA)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("many", [False, True], ids=["a seed", "many seeds"])
def test_a_chunk_without_seeds_among_others_has_zeros(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """A cotangent that stays on a worker is rows there, also where its chunk shares a task with one that is pulled."""
    monkeypatch.setattr(choose, "choose_group", lambda n_chunks, cost: 2)
    data = np.arange(8.0).reshape(8, 1)
    rows = dagad.shard(data, grainsize=1, scheduler=cluster)
    seeds = np.ones((8, 1))
    seeds[[3, 4, 5]] = 0.0

    def sines(rows: Any) -> Any:
        return dagad.map(anp.sin, rows)

    def curved(rows: Any) -> Any:
        return anp.sum(anp.stack([anp.sum(sines(rows) ** power * seeds) for power in (2, 3)]))

    gradient: Any = dagad.grad(curved)(rows) if many else dagad.vjp(sines, rows)[1](seeds)[0]
    value, slope = np.sin(data), np.cos(data)
    expected = ((2 * value + 3 * value**2) if many else 1.0) * slope * seeds
    np.testing.assert_allclose(gradient.gather(), expected, rtol=1e-13, atol=1e-15)
