"""Distances where points are one, far apart or close together; what is refused, and both engines alike."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist, chebyshev, cosine, euclidean, mahalanobis, minkowski, pdist, squareform

import dagad
from support.compiled_quickly import compiled_quickly as compiled_quickly

ENGINES = [None, pytest.param("jax", marks=pytest.mark.needs("jax"))]
RNG = np.random.default_rng(3)
POINTS = RNG.normal(size=(5, 3))
ALONG = RNG.normal(size=(5, 3))


def loss_of(fun: Any, engine: str | None = None) -> Any:
    """Return a function of an array, as that of one chunk."""

    def chunk(rows: Any, t: Any) -> Any:
        return np.sum(fun(t)) * np.sum(rows)

    return lambda t: dagad.reduce_sum(chunk, np.ones(1), t, grainsize=1, scheduler="sync", engine=engine)


def slopes(fun: Any, at: Any, engine: str | None = None) -> Any:
    return dagad.grad(loss_of(fun, engine))(np.asarray(at, float))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "kernel",
    [
        lambda d: np.exp(-(d**2) / 2),
        lambda d: np.exp(-d),
        lambda d: (1 + np.sqrt(3) * d) * np.exp(-np.sqrt(3) * d),
    ],
)
def test_functions_of_all_distances_have_the_derivatives_of_those_of_the_pairs(kernel: Any, engine: str | None) -> None:
    weights = np.cos(np.arange(25.0)).reshape(5, 5) + 1.5

    def on_all(x: Any) -> Any:
        return weights * kernel(cdist(x, x))

    def on_pairs(x: Any) -> Any:
        return (weights + weights.T)[np.triu_indices(5, 1)] * kernel(pdist(x))

    np.testing.assert_allclose(slopes(on_all, POINTS, engine), slopes(on_pairs, POINTS), rtol=1e-12, atol=1e-13)
    curved = dagad.hvp(loss_of(on_all, engine), POINTS, ALONG)
    np.testing.assert_allclose(curved, dagad.hvp(loss_of(on_pairs), POINTS, ALONG), rtol=1e-12, atol=1e-12)
    about = (slopes(on_pairs, POINTS + 1e-5 * ALONG) - slopes(on_pairs, POINTS - 1e-5 * ALONG)) / 2e-5
    np.testing.assert_allclose(curved, about, rtol=1e-6, atol=1e-8)


def test_gradients_of_distances_that_are_pulled_once_more_give_the_products_of_forward_mode() -> None:
    others = np.cos(np.arange(12.0)).reshape(4, 3)
    for fun in (
        lambda x: np.exp(-(cdist(x, x) ** 2)),
        lambda x: np.exp(-cdist(x, others, "sqeuclidean")),
        lambda x: np.exp(-cdist(others, x, "sqeuclidean")),
    ):
        loss = loss_of(fun)
        products = dagad.hvp(loss, POINTS, ALONG)
        again = dagad.grad(lambda x, loss=loss: np.sum(ALONG * dagad.grad(loss)(x)))(POINTS)
        np.testing.assert_allclose(again, products, rtol=1e-12, atol=1e-13)
        third = dagad.grad(lambda x, loss=loss: np.sum(ALONG * dagad.hvp(loss, x, ALONG)))(POINTS)
        ahead, behind = (dagad.hvp(loss, POINTS + step * ALONG, ALONG) for step in (1e-5, -1e-5))
        np.testing.assert_allclose(third, (ahead - behind) / 2e-5, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("metric", ["euclidean", "cityblock", "chebyshev", "minkowski", "seuclidean", "sqeuclidean"])
def test_a_distance_between_points_that_are_one_has_slope_zero(metric: str, engine: str | None) -> None:
    every: dict[str, Any] = {"seuclidean": {"V": np.ones(3)}, "minkowski": {"p": 1.5}}
    options = every.get(metric, {})

    def apart(x: Any) -> Any:
        return cdist(x, POINTS[:1], metric, **options)

    np.testing.assert_array_equal(slopes(apart, POINTS[:1], engine), 0.0)
    second = dagad.hvp(loss_of(apart, engine), POINTS[:1], np.ones((1, 3)))
    np.testing.assert_array_equal(second, 2.0 * (metric == "sqeuclidean"))


@pytest.mark.parametrize("engine", ENGINES)
def test_lengths_of_huge_and_tiny_differences_have_the_slope_of_a_direction(engine: str | None) -> None:
    for scale in (1e-300, 1e-170, 1e-8, 1e170, 1e300):
        with np.errstate(over="ignore"):  # the length itself is infinite from scipy 1.18 on
            found = slopes(lambda t, scale=scale: euclidean(t * scale, np.zeros(2)) / scale, [3.0, 4.0], engine)
        np.testing.assert_allclose(found, [0.6, 0.8], rtol=1e-14)
    far = 1e8
    near = slopes(lambda t: euclidean(far + t, [far, far]), [3 * 2.0**-20, 4 * 2.0**-20], engine)
    np.testing.assert_allclose(near, [0.6, 0.8], rtol=1e-14)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("p", [1, 1.5, 2, 3, 4, 7.5, np.inf])
def test_orders_of_minkowski_are_right_to_second_order_where_entries_agree(p: float, engine: str | None) -> None:
    u, v = np.array([0.4, 0.7, -0.3]), np.array([0.1, 0.7, 0.9])  # the second entries agree
    loss = loss_of(lambda t: minkowski(t, v, p), engine)
    gradient = dagad.grad(loss)(u)
    expected = [(minkowski(u + e, v, p) - minkowski(u - e, v, p)) / 2e-6 for e in 1e-6 * np.eye(3)]
    np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-8)
    along = np.array([0.5, 0.0, -1.0])
    curved = (dagad.grad(loss)(u + 1e-5 * along) - dagad.grad(loss)(u - 1e-5 * along)) / 2e-5
    np.testing.assert_allclose(dagad.hvp(loss, u, along), curved, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_variances_and_inverse_covariances_are_differentiated_too(engine: str | None) -> None:
    others = 2 * POINTS - 0.3
    cases: list[tuple[Any, Any]] = [
        (lambda w: cdist(POINTS, others, "minkowski", p=2.5, w=w), np.array([0.5, 1.0, 2.0])),
        (lambda v: pdist(POINTS, "seuclidean", V=v), np.array([0.5, 1.0, 2.0])),
        (lambda vi: cdist(POINTS, others, "mahalanobis", VI=vi), np.eye(3) + 0.1),
        (lambda vi: mahalanobis(POINTS[0], others[1], vi), np.eye(3) + 0.1),
        (lambda w: cosine(POINTS[0], others[1], w), np.array([0.5, 1.0, 2.0])),
    ]
    for fun, at in cases:
        gradient = slopes(fun, at, engine)
        along = np.cos(np.arange(at.size)).reshape(at.shape)
        about = (np.sum(fun(at + 1e-6 * along)) - np.sum(fun(at - 1e-6 * along))) / 2e-6
        assert np.sum(gradient * along) == pytest.approx(about, rel=1e-7)


@pytest.mark.parametrize("engine", ENGINES)
def test_metrics_without_a_derivative_are_refused_by_name(engine: str | None) -> None:
    cases: list[tuple[Any, str]] = [
        (lambda x: cdist(x, x, "canberra"), r"`scipy\.spatial\.distance\.cdist` was called with `metric='canberra'`"),
        (lambda x: pdist(x, lambda u, v: u[0] - v[0]), r"`scipy\.spatial\.distance\.pdist` was called with `metric="),
        (lambda x: cdist(x, x, out=np.zeros((5, 5))), r"cdist` was to write"),
        (lambda x: cdist(x, POINTS, "minkowski", p=x[0, 0]), r"called with `p`"),
        (lambda x: minkowski(x[0], x[1], 2.0 + 0 * x[0, 0]), r"called with `p`"),
        (lambda x: euclidean(x[0] + 1j, x[1]), "of complex numbers"),
    ]
    for fun, sentence in cases:
        with pytest.raises(dagad.NotDifferentiableError, match=sentence):
            slopes(fun, POINTS, engine)


@pytest.mark.filterwarnings("ignore::dagad.DagadWarning")  # which says so
@pytest.mark.parametrize("engine", ENGINES)
def test_distances_from_what_is_no_number_have_no_slope_that_is_one(engine: str | None) -> None:
    with np.errstate(all="ignore"):
        assert np.isnan(slopes(lambda x: cdist(x, POINTS[:1]), [[np.nan, 0.0, 1.0]], engine)).all()


def test_distances_of_close_points_far_from_the_origin_keep_their_digits() -> None:
    far, close = 1e6 + POINTS, 1e6 + POINTS + 1e-6 * ALONG
    steps = far[:, None, :] - close[None]  # exact
    lengths = np.sqrt(np.sum(steps**2, axis=-1))
    found = slopes(lambda x: np.exp(-1e6 * cdist(x, close)), far)
    right = np.sum(-1e6 * (np.exp(-1e6 * lengths) / lengths)[..., None] * steps, axis=1)
    np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-12 * abs(right).max())


def test_distances_between_rows_of_many_columns_take_no_memory_for_their_differences() -> None:
    x = RNG.normal(size=(150, 400))
    for fun in (lambda x: cdist(x, x), lambda x: pdist(x, "sqeuclidean")):
        tracemalloc.start()
        slopes(fun, x)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 8 * 150 * 150 * 40  # of 400 columns


@pytest.mark.parametrize("engine", ENGINES)
def test_no_pair_and_no_entry_have_no_slope(engine: str | None) -> None:
    np.testing.assert_array_equal(slopes(lambda x: pdist(x), POINTS[:1], engine), 0.0)
    np.testing.assert_array_equal(slopes(lambda x: cdist(x[:0], x), POINTS, engine), 0.0)
    np.testing.assert_array_equal(slopes(lambda x: squareform(x[:0]), [1.0], engine), 0.0)
    np.testing.assert_array_equal(slopes(lambda x: euclidean(x[:0], x[:0]), [1.0], engine), 0.0)
    equal = slopes(lambda x: chebyshev(x, [0.0, 0.0, 0.0]), [1.0, -1.0, 0.5], engine)
    np.testing.assert_array_equal(equal, [0.5, -0.5, 0.0])  # equal parts, as of `np.max`
