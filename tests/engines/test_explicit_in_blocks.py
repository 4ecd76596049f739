"""Functions that bring their own derivative, as functions of blocks: beside what autograd differentiates."""

from __future__ import annotations

import functools
from typing import Any

import autograd.numpy as anp
import dask.array as da
import numpy as np
import pytest
from autograd import grad
from dask.base import compute as dask_compute
from dask.delayed import delayed

import dagad
from dagad.extend import Recompute, explicit

X = np.linspace(0.2, 2.1, 12)
META = np.empty(0)
ARRAY = da.from_array(X, chunks=5)


def compute(where: Any, *collections: Any) -> Any:
    if isinstance(where, str):
        return dask_compute(*collections, scheduler=where)
    return where.compute(list(collections), sync=True)


@explicit
def cube(x: Any, factor: float = 1.0) -> Any:
    """Refuse all but numpy's arrays, as functions of a compiled library do."""
    assert type(x) is np.ndarray
    return factor * x**3, lambda seed: (3.0 * factor * seed * x**2, *([None] if factor != 1.0 else []))


of_a_pair: Any = cube


@explicit
def product(x: Any, y: Any) -> Any:
    assert type(x) is type(y) is np.ndarray
    return x * y, lambda seed: (seed * y, seed * x)


@explicit
def neighbours(x: Any) -> Any:
    """Give each entry the one before, which `map_overlap` has to have brought."""
    return x * np.roll(x, 1), lambda seed: (seed * np.roll(x, 1) + np.roll(seed * x, -1),)


PROGRAMS: dict[str, tuple[Any, Any]] = {
    "map_blocks": (lambda x: x.map_blocks(cube.value, meta=META).sum(), lambda x: anp.sum(x**3)),
    "before and behind": (
        lambda x: da.sin(da.exp(x).map_blocks(cube.value, meta=META) * x).mean(),
        lambda x: anp.mean(anp.sin(anp.exp(x) ** 3 * x)),
    ),
    "two blocks": (
        lambda x: da.map_blocks(product.value, x, da.sqrt(x), meta=META).sum(),
        lambda x: anp.sum(x * anp.sqrt(x)),
    ),
    "one block twice": (lambda x: da.map_blocks(product.value, x, x, meta=META).sum(), lambda x: anp.sum(x**2)),
    "an argument given": (
        lambda x: x.map_blocks(functools.partial(cube.value, factor=1.0), meta=META).sum(),
        lambda x: anp.sum(x**3),
    ),
    "a constant": (lambda x: x.map_blocks(cube.value, 2.0, meta=META).sum(), lambda x: anp.sum(2.0 * x**3)),
    "overlapping": (
        lambda x: da.map_overlap(neighbours.value, x, depth=1, boundary="periodic", meta=META).sum(),
        lambda x: anp.sum(x * anp.roll(x, 1)),
    ),
    "marked, of the pair": (
        lambda x: x.map_blocks(of_a_pair, meta=META).sum(),
        lambda x: anp.sum(x**3),
    ),
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_explicit_function_in_a_block_has_its_own_derivative(name: str, scheduler: Any) -> None:
    build, plain = PROGRAMS[name]
    value, slope = compute(scheduler, *dagad.value_and_gradient(build(ARRAY), ARRAY))
    assert value == pytest.approx(plain(X), rel=1e-13)
    np.testing.assert_allclose(slope, grad(plain)(X), rtol=1e-12)
    again = compute("sync", dagad.gradient(build(ARRAY), ARRAY, policy=Recompute()))[0]
    assert again.tobytes() == slope.tobytes()


def test_an_explicit_function_among_delayed_functions_has_its_own_derivative() -> None:
    x = delayed(X)
    y = delayed(np.sum)(delayed(product.value)(delayed(np.exp)(x), x))
    found = compute("threads", dagad.gradient(y, x))[0]
    np.testing.assert_allclose(found, np.exp(X) * (1.0 + X), rtol=1e-12)


def test_explicit_blocks_have_forward_mode_and_second_derivatives(scheduler: Any) -> None:
    y = ARRAY.map_blocks(cube.value, meta=META).sum()
    slope = dagad.gradient(y, ARRAY)
    tangent_out, twice = compute(scheduler, dagad.jvp(y, ARRAY, X)[1], dagad.gradient((slope**2).sum(), ARRAY))
    np.testing.assert_allclose(tangent_out, 3.0 * np.sum(X**3), rtol=1e-12)
    np.testing.assert_allclose(twice, 36.0 * X**3, rtol=1e-12)


def test_an_explicit_block_refuses_a_differentiated_argument_by_keyword() -> None:
    whole = ARRAY.rechunk(12)
    y = whole.map_blocks(product.value, y=whole, meta=META).sum()
    with pytest.raises(dagad.NotDifferentiableError, match="Pass it by position"):
        compute("sync", dagad.gradient(y, whole))
