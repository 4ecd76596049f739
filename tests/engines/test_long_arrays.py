"""Logarithms and gamma functions of long arrays in compiled functions: numbers and derivatives beside scipy's."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from scipy import special

import dagad

pytestmark = pytest.mark.needs("jax")
RNG = np.random.default_rng(0)
N = 2500  # of each kind: twice that is a long array
NEAR_ZERO, MANY_SIZES = 1e-5 * RNG.normal(size=N), 10.0 ** RNG.uniform(-290, 290, N)
POSITIVE = np.concatenate([10.0 ** RNG.uniform(-6, 6, N), RNG.uniform(0.0, 8.0, N), 1.0 + NEAR_ZERO, 2.0 + NEAR_ZERO])
NEGATIVE = -(10.0 ** RNG.uniform(-6, 2, 2 * N))
HARD = np.array([0.0, -0.0, -1.0, -2.0, -1.5, np.inf, -np.inf, np.nan, 1.0, 2.0, 6.5, 171.5, 1e300, 1e306, 3e-308])


@functools.cache
def compiled(name: str, of: str = "gamma") -> Any:
    """Return a function of arrays, compiled as the engine does."""
    import jax

    from dagad._engines.xla import vectors

    found = vectors.of_gamma(int(name)) if of == "gamma" else getattr(vectors, name)
    with jax.enable_x64(True):
        function = jax.jit(found)

    def call(*args: Any) -> Any:
        with jax.enable_x64(True):
            return np.asarray(function(*args))

    return call


def assert_nearly(found: Any, right: Any, tolerance: float) -> None:
    """Compare by the larger of one and the number: near a zero of a function its rounded argument shows."""
    finite = np.isfinite(right)
    np.testing.assert_array_equal(found[~finite], right[~finite])
    found, right = found[finite], right[finite]
    assert (np.abs(found - right) / np.maximum(1.0, np.abs(right))).max() <= tolerance


def test_logarithms_of_long_arrays_have_all_digits() -> None:
    x = np.concatenate([MANY_SIZES, 1.0 + NEAR_ZERO, np.tile(HARD, 20)])
    small = np.concatenate([NEAR_ZERO, MANY_SIZES, -1.0 + 10.0 ** RNG.uniform(-12, 0, N), np.tile(HARD, 20)])
    with np.errstate(all="ignore"):
        for name, at in (("log", x), ("log1p", small)):
            right = getattr(np, name)(at)
            np.testing.assert_allclose(compiled(name, "log")(at), right, rtol=5e-16, atol=0.0)


def test_sums_of_exponentials_of_long_arrays_have_all_digits() -> None:
    x, y = np.meshgrid([*HARD, 3.0, -800.0, 800.0], [*HARD, 2.9, -700.0, 800.0])
    x, y = (np.concatenate([np.tile(hard.ravel(), 10), drawn]) for hard, drawn in ((x, MANY_SIZES), (y, NEAR_ZERO)))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(compiled("logaddexp", "log")(x, y), np.logaddexp(x, y), rtol=5e-16, atol=5e-16)


@pytest.mark.parametrize("order", range(4))
def test_gamma_functions_of_long_arrays_have_all_digits(order: int) -> None:
    polygamma = functools.partial(special.polygamma, order - 1)
    right = special.gammaln if order == 0 else special.psi if order == 1 else polygamma
    tolerance = 4e-15 if order < 3 else 1e-12
    assert_nearly(compiled(str(order))(POSITIVE), right(POSITIVE), tolerance)
    np.testing.assert_allclose(compiled(str(order))(NEGATIVE), right(NEGATIVE), rtol=2e-11, atol=tolerance)
    if order < 2:
        hard = np.tile(HARD, 300)
        assert_nearly(compiled(str(order))(hard), right(hard), 1e-14)


def negative_binomial(rows: Any, theta: Any) -> Any:
    x, y = rows
    eta, size = x * theta[0], np.exp(theta[1])
    terms = special.gammaln(y + size) - special.gammaln(y - 40.5 + size) - (y + size) * np.log(size + np.exp(eta))
    return np.sum(terms + np.log1p(y * size) * np.logaddexp(theta[0], eta))


def test_models_of_long_arrays_have_the_derivatives_of_any_engine() -> None:
    rows = (RNG.normal(size=12_000), RNG.poisson(30.0, 12_000).astype(float))
    theta, dx = np.array([0.3, 0.4]), np.array([1.0, -0.5])

    def total(t: Any, **how: Any) -> Any:
        return dagad.reduce_sum(negative_binomial, rows, t, grainsize=6000, scheduler="sync", **how)

    for take in (
        lambda fun: dagad.value_and_grad(fun)(theta),
        lambda fun: dagad.hvp(fun, (theta,), (dx,)),
        lambda fun: dagad.vmap(dagad.grad(fun))(np.stack([theta, theta + 0.1])),
    ):
        ours, right = take(lambda t: total(t, engine="jax")), take(total)
        for one, other in zip(ours, right, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10)


def test_a_long_array_is_computed_as_alone_beside_other_members() -> None:
    rows = RNG.normal(size=12_000)

    def fun(t: Any) -> Any:
        return dagad.reduce_sum(
            lambda x, t: np.sum(special.gammaln(x * t) + np.log(x * x + t)),
            rows,
            t,
            grainsize=6000,
            scheduler="sync",
            engine="jax",
        )

    members = np.array([0.7, 1.3, 2.9])
    together = dagad.vmap(dagad.value_and_grad(fun))(members)
    alone = [dagad.value_and_grad(fun)(t) for t in members]
    for place in (0, 1):
        np.testing.assert_array_equal(together[place], [each[place] for each in alone])
