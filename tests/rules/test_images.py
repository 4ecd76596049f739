"""Filters of images beyond every kind of edge: their slopes are those of the matrices that they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.ndimage

import dagad
from support.compiled_quickly import compiled_quickly as compiled_quickly

ENGINES = [None, pytest.param("jax", marks=pytest.mark.needs("jax"))]
RNG = np.random.default_rng(9)
IMAGE = RNG.normal(size=(5, 4))
MODES = ["reflect", "grid-mirror", "constant", "grid-constant", "nearest", "mirror", "wrap", "grid-wrap"]


def weighed(out: Any) -> Any:
    return np.sum(out * np.cos(np.arange(np.size(out))).reshape(np.shape(out)))


def loss_of(fun: Any, engine: str | None = None) -> Any:
    def chunk(rows: Any, t: Any) -> Any:
        return weighed(fun(t)) * np.sum(rows)

    return lambda t: dagad.reduce_sum(chunk, np.ones(1), t, grainsize=1, scheduler="sync", engine=engine)


def slopes(fun: Any, at: Any, engine: str | None = None) -> Any:
    return dagad.grad(loss_of(fun, engine))(at)


def of_a_quadratic(fun: Any, at: Any) -> Any:
    """Return the gradient of a quadratic function by differences, of any width."""
    units = np.eye(at.size).reshape(-1, *at.shape)
    return np.reshape([(weighed(fun(at + unit)) - weighed(fun(at - unit))) / 2.0 for unit in units], at.shape)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", MODES)
def test_filters_have_the_slopes_of_differences_beyond_every_kind_of_edge(mode: str, engine: str | None) -> None:
    weights = RNG.normal(size=(4, 3))
    filters: list[Any] = [
        lambda x: scipy.ndimage.correlate(x, weights, mode=mode, cval=0.7, origin=(-1, 1)),
        lambda w: scipy.ndimage.convolve(IMAGE, w, mode=mode, cval=0.7),
        lambda x: scipy.ndimage.correlate(x, x[:3, :2], mode=mode, cval=0.7),
        lambda x: scipy.ndimage.gaussian_filter(x, (2.0, 0.8), (1, 0), mode=mode, cval=0.7),
        lambda x: scipy.ndimage.uniform_filter(x, 4, mode=mode, cval=0.7),
        lambda x: scipy.ndimage.convolve1d(x, x[:, 1], 1, mode=mode, cval=0.7),  # longer than the row
    ]
    for fun in filters[:: 2 if engine else 1]:
        found = slopes(fun, IMAGE, engine)
        np.testing.assert_allclose(found, of_a_quadratic(fun, IMAGE), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", ["constant", "nearest", "reflect", "grid-mirror", "mirror", "grid-wrap"])
def test_places_between_pixels_and_beyond_edges_have_the_slopes_of_lines(mode: str, engine: str | None) -> None:
    at = np.concatenate([IMAGE.ravel(), RNG.uniform(-7, 9, size=24)])

    def mapped(t: Any) -> Any:
        image, places = t[:20].reshape(5, 4), t[20:].reshape(2, 12)
        return scipy.ndimage.map_coordinates(image, places, order=1, mode=mode, cval=0.7) ** 2

    about = [(weighed(mapped(at + e)) - weighed(mapped(at - e))) / 2e-6 for e in 1e-6 * np.eye(44)]
    np.testing.assert_allclose(slopes(mapped, at, engine), about, rtol=1e-7, atol=1e-8)
    along = RNG.normal(size=44)
    curved = (slopes(mapped, at + 1e-6 * along) - slopes(mapped, at - 1e-6 * along)) / 2e-6
    np.testing.assert_allclose(dagad.hvp(loss_of(mapped, engine), at, along), curved, rtol=1e-6, atol=1e-7)
    on_pixels = np.array([0.0, 2.0, 4.0])
    found = slopes(lambda c: scipy.ndimage.map_coordinates(IMAGE[:, 0], c[None], order=1), on_pixels, engine)
    rises = np.diff(IMAGE[:, 0])[[0, 2, 3]]  # of the line behind, at the end of that before
    np.testing.assert_allclose(found, rises * np.cos(np.arange(3)), rtol=1e-12)


def test_the_width_of_a_gaussian_has_a_slope_where_the_number_of_neighbours_stays() -> None:
    for order, at in ((0, np.array([1.1, 0.7])), (2, np.array([2.2, 0.9]))):

        def blurred(sigma: Any, order: int = order) -> Any:
            return scipy.ndimage.gaussian_filter(IMAGE, sigma, order)

        about = [(weighed(blurred(at + e)) - weighed(blurred(at - e))) / 2e-6 for e in 1e-6 * np.eye(2)]
        np.testing.assert_allclose(slopes(blurred, at), about, rtol=1e-7, atol=1e-9)
        curved = (slopes(blurred, at + 1e-5) - slopes(blurred, at - 1e-5)) / 2e-5
        np.testing.assert_allclose(dagad.hvp(loss_of(blurred), at, np.ones(2)), curved, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("engine", ENGINES)
def test_images_in_single_precision_stay_so(engine: str | None) -> None:
    found = slopes(lambda x: scipy.ndimage.gaussian_filter(x, 1.0), IMAGE.astype(np.float32), engine)
    assert found.dtype == np.float32
    right = slopes(lambda x: scipy.ndimage.gaussian_filter(x, 1.0), IMAGE)
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_filters_that_round_or_write_into_an_array_are_refused_by_name(engine: str | None) -> None:
    whole = np.arange(12).reshape(3, 4)
    cases: list[tuple[Any, str]] = [
        (
            lambda x: scipy.ndimage.correlate(whole, x[:2]),
            r"`scipy\.ndimage\.correlate` of whole numbers.*astype\(float",
        ),
        (lambda x: scipy.ndimage.gaussian_filter(x, 1.0, output=np.zeros((5, 4))), r"gaussian_filter` was to write"),
        (lambda x: scipy.ndimage.uniform_filter(x, 3, output=np.float32), r"uniform_filter` was called with `output`"),
        (lambda x: scipy.ndimage.correlate1d(x, [1.0, 2.0], mode="constant", cval=x[0, 0]), r"with `cval`"),
        (lambda x: scipy.ndimage.map_coordinates(x, x[:2]), r"map_coordinates` was called with `order=3`"),
        (lambda x: scipy.ndimage.map_coordinates(x, x[:2], order=1, mode="wrap"), r"with `mode='wrap'`"),
        (lambda x: scipy.ndimage.median_filter(x, 3), r"scipy\.ndimage\.median_filter|ordinary array"),
    ]
    if engine:
        cases.append((lambda x: scipy.ndimage.gaussian_filter(IMAGE, x[0, 0] + 3.0), r"called with `sigma`"))
    for fun, sentence in cases:
        with pytest.raises(dagad.NotDifferentiableError, match=sentence):
            slopes(fun, IMAGE, engine)


def test_an_array_to_write_into_is_refused_before_it_is_written() -> None:
    out = np.zeros((5, 4))

    def written(x: Any) -> Any:
        scipy.ndimage.gaussian_filter(x, 1.0, output=out)
        return out

    with pytest.raises(dagad.NotDifferentiableError, match="was to write"):
        slopes(written, IMAGE)
    np.testing.assert_array_equal(out, 0.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_options_that_scipy_refuses_are_refused(engine: str | None) -> None:
    cases: list[Any] = [
        lambda x: scipy.ndimage.correlate1d(x, [1.0, 2.0], mode="none"),
        lambda x: scipy.ndimage.correlate1d(x, [1.0, 2.0], origin=1),
        lambda x: scipy.ndimage.correlate(x, np.ones((2, 2)), origin=(0, 3)),
        lambda x: scipy.ndimage.correlate(x, np.ones(2)),
    ]
    for fun in cases:
        with pytest.raises((ValueError, RuntimeError)):  # whose words are scipy's in one engine
            slopes(fun, IMAGE, engine)
