"""Statistics of samples and densities by kernels: shapes as scipy's, what is refused, and sums over chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats

import dagad
from support.compiled_quickly import compiled_quickly as compiled_quickly

ENGINES = [None, pytest.param("jax", marks=pytest.mark.needs("jax"))]
RNG = np.random.default_rng(11)
DATA, POINTS = RNG.normal(size=(2, 30)), RNG.normal(size=(2, 7))


def in_a_chunk(fun: Any, at: Any, engine: str | None = None) -> Any:
    """Return value and gradient of the sum of what a function gives, as that of one chunk."""

    def chunk(rows: Any, t: Any) -> Any:
        return np.sum(fun(t)) * np.sum(rows)

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(chunk, np.ones(1), t, grainsize=1, scheduler="sync", engine=engine)

    return dagad.value_and_grad(loss)(np.asarray(at, float))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("axis", [0, 1, None, (0, 1)])
def test_axes_of_a_statistic_are_scipys(axis: Any, engine: str | None) -> None:
    at = RNG.uniform(0.5, 2.0, (3, 4))
    for fun in (scipy.stats.skew, scipy.stats.gmean, scipy.stats.sem):
        value, slope = in_a_chunk(lambda t, fun=fun: fun(t, axis=axis, keepdims=True), at, engine)
        assert value == pytest.approx(np.sum(fun(at, axis=axis)), rel=1e-12)
        moved = [np.sum(fun(at + step * np.cos(at), axis=axis)) for step in (1e-5, -1e-5)]
        assert np.sum(slope * np.cos(at)) == pytest.approx((moved[0] - moved[1]) / 2e-5, rel=1e-7)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_density_by_kernels_moves_with_its_points_in_several_dimensions(engine: str | None) -> None:
    kde = scipy.stats.gaussian_kde(DATA, weights=np.arange(1.0, 31.0))
    for fun in (kde, kde.pdf, kde.logpdf):
        for at in (POINTS, POINTS[:, 0]):
            value, slope = in_a_chunk(fun, at, engine)
            assert value == pytest.approx(np.sum(fun(at)), rel=1e-12)
            moved = [np.sum(fun(at + step * np.sin(at))) for step in (1e-5, -1e-5)]
            assert np.sum(slope * np.sin(at)) == pytest.approx((moved[0] - moved[1]) / 2e-5, rel=1e-7)
    far = in_a_chunk(kde.logpdf, [60.0, -60.0], engine)
    assert np.all(np.isfinite(far[1]))
    assert np.all(far[1] != 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_shares_of_two_shapes_have_the_sums_of_the_shape_that_they_have_together(engine: str | None) -> None:
    rows, weights = RNG.uniform(0.1, 1.0, (4, 3)), RNG.uniform(0.1, 1.0, 3)
    by_columns = in_a_chunk(lambda t: scipy.stats.entropy(rows, t), weights, engine)
    assert by_columns[0] == pytest.approx(np.sum(scipy.stats.entropy(rows, weights)), rel=1e-12)
    np.testing.assert_allclose(by_columns[1], 0.0, atol=1e-14)  # each column is uniform
    value, slope = in_a_chunk(lambda t: scipy.stats.entropy(t, rows, axis=1), weights, engine)
    assert value == pytest.approx(np.sum(scipy.stats.entropy(weights, rows, axis=1)), rel=1e-12)
    moved = [np.sum(scipy.stats.entropy(weights + step * weights**2, rows, axis=1)) for step in (1e-5, -1e-5)]
    assert np.sum(slope * weights**2) == pytest.approx((moved[0] - moved[1]) / 2e-5, rel=1e-7)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_point_in_a_row_is_one_point_of_a_density(engine: str | None) -> None:
    kde = scipy.stats.gaussian_kde(DATA)
    value, slope = in_a_chunk(kde, POINTS[:, :1].T, engine)
    assert (value, slope.shape) == (pytest.approx(kde(POINTS[:, 0])[0], rel=1e-12), (1, 2))


REFUSED: dict[str, tuple[Any, str]] = {
    "entries left out": (lambda t: scipy.stats.skew(t, nan_policy="omit"), r"scipy\.stats\.skew.*nan_policy='omit'"),
    "several orders": (lambda t: scipy.stats.moment(t, [1, 2]), r"scipy\.stats\.moment.*order="),
    "weights of an axis": (
        lambda t: scipy.stats.gmean(np.reshape(t, (2, 2)), weights=[1.0, 2.0]),
        r"scipy\.stats\.gmean.*weights.*np\.broadcast_to",
    ),
    "data": (lambda t: scipy.stats.gaussian_kde(t)(0.3), r"scipy\.stats\.gaussian_kde\.__init__"),
    "an integral": (lambda t: scipy.stats.gaussian_kde(DATA).integrate_box(t[:2], t[2:]), "gaussian_kde"),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", REFUSED)
def test_a_statistic_in_another_form_is_refused_by_name(case: str, engine: str | None) -> None:
    fun, sentence = REFUSED[case]
    with pytest.raises((dagad.NotDifferentiableError, ValueError), match=sentence):
        in_a_chunk(fun, [0.2, 0.4, 0.7, 0.9], engine)


def mixed(rows: Any, t: Any) -> Any:
    """A likelihood of transformed data, with a penalty on how skew they are."""
    return scipy.stats.boxcox_llf(t[0], rows) - np.sum(scipy.stats.zscore(rows * t[1]) ** 3)


def test_statistics_in_chunks_are_right_on_every_scheduler(scheduler: Any) -> None:
    rows, at = RNG.gamma(2.0, size=24), np.array([0.4, 1.3])

    def loss(t: Any, where: Any = scheduler) -> Any:
        return dagad.reduce_sum(mixed, rows, t, grainsize=8, scheduler=where)

    value, slope = dagad.value_and_grad(loss)(at)
    here = dagad.value_and_grad(lambda t: loss(t, "sync"))(at)
    assert value == here[0]
    np.testing.assert_array_equal(slope, here[1])
    ends = [(loss(at + step) - loss(at - step)) / 2e-5 for step in 1e-5 * np.eye(2)]
    np.testing.assert_allclose(slope, ends, rtol=1e-6, atol=1e-7)
