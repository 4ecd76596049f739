"""Derivatives of any order in Shards of several leaves: are they those of autograd on the rows, whoever computes them?

Where a pullback is differentiated in turn, its seeds are Shards too, of those outputs that somebody used.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client

import dagad
from support.clusters import a_cluster, kill, pids_of
from support.waiting import PATIENCE

N = 6
RNG = np.random.default_rng(11)
ROWS: dict[str, tuple[Any, ...]] = {
    "two leaves beside one": ({"x": RNG.normal(size=N), "y": RNG.normal(size=N)}, {"z": RNG.normal(size=N)}),
    "one leaf beside two": ({"z": RNG.normal(size=N)}, {"x": RNG.normal(size=N), "y": RNG.normal(size=N)}),
    "constants among them": (
        {"n": np.arange(N), "x": RNG.normal(size=(N, 2)), "y": RNG.normal(size=N)},
        {"k": np.arange(N) % 2, "z": RNG.normal(size=N)},
    ),
    "three": ({"x": RNG.normal(size=N), "y": RNG.normal(size=N)}, {"z": RNG.normal(size=N)}, {"w": RNG.normal(size=N)}),
    "one": ({"x": RNG.normal(size=N), "y": RNG.normal(size=N)},),
}
Reduce = Callable[..., Any]


FLOATS = "xyzw"


def leaves_of(*rows: Any) -> list[Any]:
    """Return what can be differentiated of dictionaries, which may be autograd's."""
    return [one[name] for one in rows for name in FLOATS if name in one]


def mixed(rows: Any, t: Any) -> Any:
    """Return a sum in which each leaf meets each other one, with another weight."""
    leaves = [anp.sum(leaf, axis=1) if len(leaf.shape) == 2 else leaf for leaf in leaves_of(*rows)]
    pairs = itertools.combinations_with_replacement(range(len(leaves)), 2)
    terms = ((1.0 + i + 3.0 * j) * leaves[i] ** 2 * leaves[j] * t + anp.sin(leaves[i] * t) for i, j in pairs)
    return anp.sum(functools.reduce(anp.add, terms))


def squares(rows: Any, t: Any) -> Any:
    """Return a sum of squares, with another weight for each leaf."""
    terms = (anp.sum((1.0 + n) * leaf**2 * t) for n, leaf in enumerate(leaves_of(rows)))
    return functools.reduce(anp.add, terms)


def of_a_gradient(reduce: Reduce, grad: Any, some: Sequence[int]) -> Callable[..., Any]:
    """Return a sum over the gradient in some of the rows alone."""

    def run(*args: Any) -> Any:
        *rows, t = args
        total = lambda *args: reduce(mixed, tuple(args[:-1]), args[-1])  # noqa: E731  # of these rows
        found = [grad(total, one)(*rows, t) for one in some]
        return functools.reduce(lambda a, b: a + b, [reduce(squares, one, t) for one in found])

    return run


def slope_in_t(reduce: Reduce, grad: Any, some: Sequence[int]) -> Callable[..., Any]:
    """Return the derivative of that in the parameter: one order more."""
    run = of_a_gradient(reduce, grad, some)
    return lambda *args: grad(run, len(args) - 1)(*args)


def slope_of_slope(reduce: Reduce, grad: Any, some: Sequence[int]) -> Callable[..., Any]:
    """Return the square of a derivative in the parameter, and of that the derivative in it."""
    del some

    def run(*args: Any) -> Any:
        total = lambda *args: reduce(mixed, tuple(args[:-1]), args[-1])  # noqa: E731  # of these rows
        return grad(total, len(args) - 1)(*args) ** 2

    return lambda *args: grad(run, len(args) - 1)(*args)


PROGRAMS = {"second": of_a_gradient, "third": slope_in_t, "third in t": slope_of_slope}


def on_rows(fun: Any, rows: Any, t: Any) -> Any:
    return fun(rows, t)


@functools.cache
def expected(name: str, order: str, some: tuple[int, ...]) -> list[Any]:
    """Return the derivatives in all rows, by autograd."""
    rows = [{key: leaf for key, leaf in one.items() if key in FLOATS} for one in ROWS[name]]
    program = PROGRAMS[order](on_rows, autograd.grad, some)
    found = [autograd.grad(program, place)(*rows, 0.7) for place in range(len(rows))]
    return leaves_of(*found)


def found_on(scheduler: Any, name: str, order: str, some: tuple[int, ...]) -> list[Any]:
    shards = [dagad.shard(one, grainsize=2, scheduler=scheduler) for one in ROWS[name]]
    program = PROGRAMS[order](dagad.reduce_sum, dagad.grad, some)
    gradients = dagad.grad(lambda *rows: program(*rows, 0.7), tuple(range(len(shards))))(*shards)
    return leaves_of(*(one.gather() for one in gradients))


@functools.cache
def alone(name: str, order: str, some: tuple[int, ...]) -> list[bytes]:
    """Return the bits that all must have: those of one thread."""
    return [one.tobytes() for one in found_on("sync", name, order, some)]


CASES = [
    (name, order, some)
    for name, rows in ROWS.items()
    for order in PROGRAMS
    for some in [(0,), (len(rows) - 1,), tuple(range(len(rows)))][: 1 if order == "third in t" else 3]
    if (len(rows) > 1 or some == (0,))
]


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("place", ["sync", "threads", "cluster"])
@pytest.mark.parametrize(("name", "order", "some"), sorted(set(CASES)))
def test_derivatives_of_higher_order_in_shards_are_those_of_autograd(
    name: str, order: str, some: tuple[int, ...], place: str, cluster: Client
) -> None:
    found = found_on(cluster if place == "cluster" else place, name, order, some)
    for mine, theirs in zip(found, expected(name, order, some), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9)
    assert [one.tobytes() for one in found] == alone(name, order, some)


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_a_gradient_of_a_gradient_in_shards_whose_worker_dies_is_the_same() -> None:
    """What residents have left is gone then: the pullback runs anew, as an operation that others may differentiate."""
    rows = ROWS["two leaves beside one"]
    program = of_a_gradient(dagad.reduce_sum, dagad.grad, (0,))

    def pulled(scheduler: Any, between: Callable[[], None]) -> list[bytes]:
        shards = [dagad.shard(one, grainsize=2, scheduler=scheduler) for one in rows]
        _, pull = dagad.vjp(lambda *rows: program(*rows, 0.7), *shards)
        between()
        return [leaf.tobytes() for leaf in leaves_of(*(one.gather() for one in pull(1.0)))]

    expected = pulled("sync", lambda: None)
    with a_cluster(2) as client:
        assert pulled(client, lambda: None) == expected
        for _ in range(2):
            assert pulled(client, lambda: kill(next(iter(pids_of(client).values())))) == expected
            client.wait_for_workers(2, PATIENCE)
