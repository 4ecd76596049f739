"""Collections that are made of each other, all of them in `wrt`: do gradients and tangents belong together?"""

from __future__ import annotations

from typing import Any

import autograd
import autograd.numpy as anp
import dask.array as da
import numpy as np
import pytest
from dask.base import compute as dask_compute
from dask.delayed import delayed

import dagad
from dagad.extend import Revolve, Segment

compute: Any = dask_compute  # Dask has few types
AT = np.random.default_rng(0).standard_normal((6, 4))


def where(scheduler: Any) -> dict[str, Any]:
    return {"scheduler": scheduler} if isinstance(scheduler, str) else {"scheduler": scheduler.get}


# From an array to one made of it, and whether the keys of its blocks are aliases of those of the array.
MADE: dict[str, Any] = {
    "cosines": lambda x: np.cos(x) if hasattr(x, "chunks") else anp.cos(x),
    "rows": lambda x: x[:3],
    "a block": lambda x: x[0:3, 0:2],
    "rows and columns": lambda x: x[1:5, 1:3],
    "another cut": lambda x: x.rechunk((2, 4)) if hasattr(x, "rechunk") else x,
    "transposed": lambda x: x.T,
    "reshaped": lambda x: x.ravel(),
    "joined": lambda x: (da if hasattr(x, "chunks") else anp).concatenate([x, x[:2]]),
    "sums": lambda x: x.sum(axis=0),
}


def check(first: str, second: str, scheduler: Any) -> None:
    """Compare gradients and a tangent in x, a made of x and b made of a, each of which `y` reads."""
    x = da.from_array(AT, chunks=(3, 2))
    a, plain_a = MADE[first](x), MADE[first](AT)

    def made_of(a: Any) -> Any:
        return MADE[second](a) if np.ndim(plain_a) == 2 else a * 2.0

    b, factor = made_of(a), 1.0
    if b.name == a.name:  # all of it
        b, factor = b * 2.0, 2.0

    def of_b(a: Any, b: Any) -> Any:
        return (a**2).sum() * b.sum() + (b**3).sum()

    def of_a(a: Any) -> Any:
        return of_b(a, factor * made_of(a))

    y = (x**3).sum() + of_b(a, b)
    right = [
        autograd.grad(lambda x: anp.sum(x**3) + of_a(MADE[first](x)))(AT),
        autograd.grad(of_a)(plain_a),
        autograd.grad(of_b, 1)(plain_a, factor * made_of(plain_a)),
    ]
    directions = [np.random.default_rng(3).standard_normal(part.shape) for part in right]
    given = [da.from_array(part, chunks=one.chunks) for part, one in zip(directions, (x, a, b), strict=True)]
    found, tangent_out = compute(dagad.gradient(y, [x, a, b]), dagad.jvp(y, [x, a, b], given)[1], **where(scheduler))
    for part, expected in zip(found, right, strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(
        tangent_out, sum(np.sum(g * v) for g, v in zip(right, directions, strict=True)), rtol=1e-10
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("first", MADE)
def test_gradients_and_tangents_of_arrays_made_of_each_other_belong_together(first: str) -> None:
    for second in MADE:
        check(first, second, "sync")


@pytest.mark.parametrize("second", ["rows", "another cut"])
def test_arrays_made_of_each_other_have_these_derivatives_on_each_scheduler(second: str, scheduler: Any) -> None:
    check("joined", second, scheduler)


def test_tangents_of_records_made_of_each_other_add_up_leaf_by_leaf(scheduler: Any) -> None:
    x = delayed(float)(2.0)
    both = delayed(lambda x: {"square": x**2, "cube": x**3, "name": "x", "one": 1.0})(x)
    y = delayed(lambda x, both: both["square"] * both["cube"] * both["one"] + x)(x, both)
    of_x, of_both = dagad.gradient(y, [x, both])
    for direction in ({"square": 1.0, "cube": None, "name": None, "one": 2.0}, None):
        tangent_out = dagad.jvp(y, [x, both], [0.5, direction])[1]
        slope, parts, tangent = compute(of_x, of_both, tangent_out, **where(scheduler))
        given = {} if direction is None else {name: part for name, part in direction.items() if part is not None}
        assert slope == pytest.approx(5.0 * 2.0**4 + 1.0)
        assert tangent == pytest.approx(0.5 * slope + sum(parts[name] * part for name, part in given.items()))


def test_persisted_arrays_are_constants(scheduler: Any) -> None:
    x = da.from_array(AT, chunks=(3, 2))
    held: Any = (x**2).persist(**where(scheduler))
    found = compute(dagad.gradient((held * x).sum(), x), **where(scheduler))[0]
    np.testing.assert_allclose(found, AT**2)


def by_blocks(x: Any) -> Any:
    """Return an array of the blocks of another one, by way of Delayed, of which Dask makes other tasks."""
    rows = [[da.from_delayed(part, (3, 2), float) for part in row] for row in x.to_delayed().tolist()]
    return da.block(rows)


# Blocks of these are in part or all of them other names of blocks of the array, or of those that it is made of.
NAMED: dict[str, Any] = {
    **MADE,
    "sums so far": lambda x: (da if hasattr(x, "chunks") else anp).cumsum(x, axis=0),
    "padded": lambda x: da.pad(x, 1) if hasattr(x, "chunks") else anp.pad(x, 1, "constant"),
    "some entries": lambda x: x[x > 0.0] if hasattr(x, "chunks") else x[AT > 0.0],
    "blocks": lambda x: x.blocks[0] if hasattr(x, "chunks") else x[:3],
    "by blocks": lambda x: by_blocks(x) if hasattr(x, "chunks") else x,
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("policy", [None, Segment(1), Revolve(2)], ids=["keep", "segment", "revolve"])
def test_higher_derivatives_in_arrays_made_of_another_are_whole(policy: Any, name: str) -> None:
    x, make = da.from_array(AT, chunks=(3, 2)), NAMED[name]
    a, plain = make(x), make(AT)
    slope, of_x = dagad.gradient((a**3).sum() + (x**2).sum(), [a, x], policy=policy)
    second = dagad.gradient((slope**2).sum(), [a, x], policy=policy)
    third = dagad.gradient((second[0] * a).sum(), a, policy=policy)
    both = dagad.gradient((of_x * x).sum(), a)  # the derivative of a stays
    tangent_out = dagad.gradient((dagad.jvp(a * 1.0, x, AT)[0] ** 2).sum(), a)
    value = dagad.gradient((dagad.jvp(a, x, AT)[0] ** 2).sum(), a)
    along = autograd.grad(lambda x: anp.sum(9.0 * make(x) ** 4))(AT)
    stays = 6.0 * plain * dagad.jvp(make, AT, AT)[1]
    right = [36.0 * plain**3, along, 144.0 * plain**3, stays, 2.0 * plain, 2.0 * plain]
    found = compute([*second, third, both, tangent_out, value], scheduler="sync")[0]
    for number, (part, expected) in enumerate(zip(found, right, strict=True)):
        np.testing.assert_allclose(part, expected, rtol=1e-10, atol=1e-10, err_msg=str(number))


def test_second_derivatives_in_arrays_made_of_another_are_these_on_each_scheduler(scheduler: Any) -> None:
    x = da.from_array(AT, chunks=(3, 2))
    padded = da.pad(x, 1)
    slope = dagad.gradient((padded**3).sum(), x)
    found = compute(dagad.gradient((slope**2).sum(), [padded, x]), **where(scheduler))[0]
    np.testing.assert_allclose(found[0], np.pad(36.0 * AT**3, 1), rtol=1e-12)
    np.testing.assert_allclose(found[1], 36.0 * AT**3, rtol=1e-12)
