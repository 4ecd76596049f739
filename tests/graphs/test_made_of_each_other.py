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
    found, moved = compute(dagad.gradient(y, [x, a, b]), dagad.jvp(y, [x, a, b], given)[1], **where(scheduler))
    for part, expected in zip(found, right, strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(moved, sum(np.sum(g * v) for g, v in zip(right, directions, strict=True)), rtol=1e-10)


@pytest.mark.sampled(3)
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
        moved = dagad.jvp(y, [x, both], [0.5, direction])[1]
        slope, parts, tangent = compute(of_x, of_both, moved, **where(scheduler))
        given = {} if direction is None else {name: part for name, part in direction.items() if part is not None}
        assert slope == pytest.approx(5.0 * 2.0**4 + 1.0)
        assert tangent == pytest.approx(0.5 * slope + sum(parts[name] * part for name, part in given.items()))


def test_persisted_arrays_are_constants(scheduler: Any) -> None:
    x = da.from_array(AT, chunks=(3, 2))
    held: Any = (x**2).persist(**where(scheduler))
    found = compute(dagad.gradient((held * x).sum(), x), **where(scheduler))[0]
    np.testing.assert_allclose(found, AT**2)
