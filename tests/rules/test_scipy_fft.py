"""Transforms of scipy.fft of every length, type and norm: their slopes are those of the matrices that they are."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.fft

import dagad
from support.compiled_quickly import compiled_quickly as compiled_quickly

ENGINES = [None, pytest.param("jax", marks=pytest.mark.needs("jax"))]
RNG = np.random.default_rng(4)
WAVES = [f"{inverse}{kind}" for inverse in ("", "i") for kind in ("dct", "dst")]


def slopes(fun: Any, at: Any, engine: str | None = None) -> Any:
    """Return the gradient of a function of an array as that of one chunk."""

    def chunk(rows: Any, t: Any) -> Any:
        return np.sum(fun(t)) * np.sum(rows)

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(chunk, np.ones(1), t, grainsize=1, scheduler="sync", engine=engine)

    return dagad.grad(loss)(at)


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("name", WAVES)
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_transforms_by_cosines_and_sines_have_the_slopes_of_their_matrices(name: str, n: int) -> None:
    transform = getattr(scipy.fft, name)
    weights = RNG.normal(size=n)
    for type, norm, orthogonal in itertools.product((1, 2, 3, 4), (None, "ortho", "forward"), (None, True, False)):
        if (name, type, n) in {("dct", 1, 1), ("idct", 1, 1)}:
            continue  # which scipy refuses
        options: dict[str, Any] = {"type": type, "norm": norm, "orthogonalize": orthogonal}
        matrix = transform(np.eye(n), axis=0, **options)
        found = slopes(lambda x, options=options: weights * transform(x, **options), RNG.normal(size=n))
        np.testing.assert_allclose(found, weights @ matrix, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("engine", ENGINES)
def test_transforms_keep_numbers_in_single_precision(engine: str | None) -> None:
    x = RNG.normal(size=7).astype(np.float32)
    for fun in (scipy.fft.rfft, lambda x: scipy.fft.dst(x, 3, norm="ortho"), scipy.fft.ihfftn):
        assert slopes(lambda x, fun=fun: np.real(fun(x)), x, engine).dtype == np.float32


@pytest.mark.parametrize("engine", ENGINES)
def test_a_convolution_by_transforms_has_the_derivatives_of_the_convolution(engine: str | None) -> None:
    kernel, x = RNG.normal(size=4), RNG.normal(size=9)
    weights = np.cos(np.arange(12))

    def by_transforms(x: Any) -> Any:
        return weights * scipy.fft.irfft(scipy.fft.rfft(x, 12) * scipy.fft.rfft(kernel, 12), 12) ** 2

    def direct(x: Any) -> Any:
        return weights * np.convolve(x, kernel) ** 2

    np.testing.assert_allclose(slopes(by_transforms, x, engine), slopes(direct, x), rtol=1e-12, atol=1e-12)

    def loss(fun: Any, engine: str | None = None) -> Any:
        def chunk(rows: Any, t: Any) -> Any:
            return np.sum(fun(t)) * np.sum(rows)

        return lambda t: dagad.reduce_sum(chunk, np.ones(1), t, grainsize=1, scheduler="sync", engine=engine)

    along = RNG.normal(size=9)
    second = [dagad.hvp(loss(fun, each), x, along) for fun, each in ((by_transforms, engine), (direct, None))]
    np.testing.assert_allclose(second[0], second[1], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_complex_numbers_have_no_choice_of_an_orthogonal_form(engine: str | None) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"`scipy\.fft\.dct` was called with `orthogonalize`"):
        slopes(lambda x: np.real(scipy.fft.dct(x + 1j, orthogonalize=True)), np.ones(4), engine)


def test_errors_are_those_of_scipy() -> None:
    with pytest.raises(ValueError, match="Invalid norm value"):
        slopes(lambda x: np.real(scipy.fft.fft(x, norm="none")), np.ones(4))
    with pytest.raises(TypeError, match="real sequence"):
        slopes(lambda x: np.real(scipy.fft.rfft(x + 1j)), np.ones(4))
    with pytest.raises(ValueError, match="invalid number of data points"):
        slopes(lambda x: scipy.fft.dct(x, n=0), np.ones(4))
