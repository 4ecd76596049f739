"""Distributions and sums of exponentials at points that the table of calls has not: limits, edges, tails, refusals."""

from __future__ import annotations

import copy
import itertools
import re
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

import dagad
from support.called import PLAIN, X, evaluated, total
from support.numpy_calls import calls, is_here
from support.scipy_calls import STATS

ENGINES = [None, pytest.param("jax", marks=pytest.mark.needs("jax"))]
NO_AXIS: Any = None
POINTS = np.random.default_rng(5).normal(size=(24, 2))


def slopes(fun: Any, at: Any, engine: str | None = None) -> Any:
    """Return the gradient of a function as that of one chunk."""

    def chunk(rows: Any, t: Any) -> Any:
        return fun(t) * np.sum(rows)

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(chunk, np.ones(1), t, grainsize=1, scheduler="sync", engine=engine)

    return dagad.grad(loss)(np.asarray(at, float))


def test_a_density_has_the_slope_of_the_exponential_of_its_logarithm() -> None:
    """Slopes of logarithms don't show whether a formula has its constants, those of densities do."""
    logarithm = re.compile(r"\.log(pdf|pmf|cdf|sf)\(")
    found = [call for call in calls(STATS) if logarithm.search(call) and is_here(call, PLAIN)]
    for call in found:
        raised = dagad.grad(total(evaluated(f"np.exp({call})", PLAIN)))(X)
        itself = dagad.grad(total(evaluated(logarithm.sub(r".\1(", call), PLAIN)))(X)
        np.testing.assert_allclose(itself, raised, rtol=1e-10, atol=1e-12, err_msg=call)
    assert len(found) > 100


@pytest.mark.parametrize("engine", ENGINES)
def test_a_distribution_of_angles_that_are_all_alike_has_the_slope_of_the_limit(engine: str | None) -> None:
    assert slopes(lambda t: scipy.stats.vonmises.logpdf(0.3, t[0]), [0.0], engine) == pytest.approx(np.cos(0.3))
    assert slopes(lambda t: scipy.stats.vonmises.logpdf(1e-4, t[0]), [1e6], engine) == pytest.approx(
        0.5e-6 - 0.5e-8, rel=1e-5
    )  # 1/2k less half of the square


def test_distributions_of_extremes_have_the_slope_of_the_limit_where_their_shape_is_zero() -> None:
    z = 2.0
    assert slopes(lambda t: scipy.stats.genpareto.logpdf(z, t[0]), [0.0]) == pytest.approx(z**2 / 2 - z, abs=1e-14)
    right = z - z**2 / 2 + z**2 / 2 * np.exp(-z)
    assert slopes(lambda t: scipy.stats.genextreme.logpdf(z, t[0]), [0.0]) == pytest.approx(right, abs=1e-14)
    around = [slopes(lambda t: scipy.stats.genextreme.logpdf(z, t[0]), [c])[0] for c in (0.0499, 0.0501)]  # 0.1 / z
    assert around[0] == pytest.approx(around[1], rel=1e-2)


def test_truncated_normals_have_their_slopes_far_out_at_an_edge_and_without_a_bound() -> None:
    def far(t: Any) -> Any:
        return scipy.stats.truncnorm.logpdf(40.5, t[0], np.inf)

    assert slopes(far, [40.0]) == pytest.approx(40.0249688, rel=1e-8)  # the hazard of a normal distribution
    mirrored = slopes(lambda t: scipy.stats.truncnorm.logpdf(-40.5, -np.inf, t[0]), [-40.0])
    assert mirrored == pytest.approx(-40.0249688, rel=1e-8)
    at_edge = slopes(lambda t: scipy.stats.truncnorm.logpdf(-1.0, t[0], t[1]), [-1.0, 2.0])
    mass, density = scipy.stats.norm.cdf(2.0) - scipy.stats.norm.cdf(-1.0), scipy.stats.norm.pdf([-1.0, 2.0])
    np.testing.assert_allclose(at_edge, [density[0] / mass, -density[1] / mass], rtol=1e-13)
    np.testing.assert_array_equal(slopes(lambda t: scipy.stats.truncnorm.pdf(3.0, t[0], t[1]), [-1.0, 2.0]), 0.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_quantile_at_an_end_of_the_support_moves_as_that_end_does(engine: str | None) -> None:
    def first(t: Any) -> Any:
        return np.sum(scipy.stats.expon.ppf([0.0, 0.5], t[0], t[1]))

    np.testing.assert_allclose(slopes(first, [0.2, 2.0], engine), [2.0, np.log(2.0)], rtol=1e-14)

    def infinite(t: Any) -> Any:
        return np.sum(np.where([True, False, True], 0.0, scipy.stats.norm.ppf([0.0, 0.5, 1.0], t[0], t[1])))

    np.testing.assert_array_equal(slopes(infinite, [0.2, 2.0], engine), [1.0, 0.0])
    assert slopes(lambda t: scipy.stats.pareto.isf(1e-300, t[0]), [300.0], engine) == pytest.approx(-np.log(10.0) / 30)


@pytest.mark.parametrize("engine", ENGINES)
def test_of_a_covariance_the_lower_triangle_counts_as_for_scipy(engine: str | None) -> None:
    found = slopes(
        lambda t: np.sum(scipy.stats.multivariate_normal.logpdf(POINTS, [0.0, 0.0], np.reshape(t, (2, 2)))),
        [2.0, 0.5, 0.5, 1.0],
        engine,
    )
    inverse = np.linalg.inv([[2.0, 0.5], [0.5, 1.0]])
    full = 0.5 * (inverse @ POINTS.T @ POINTS @ inverse - len(POINTS) * inverse)
    np.testing.assert_allclose(found, [full[0, 0], 0.0, 2.0 * full[1, 0], full[1, 1]], rtol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_counts_are_cut_off_and_have_no_slope_as_for_scipy(engine: str | None) -> None:
    def half(t: Any) -> Any:
        return scipy.stats.multinomial.pmf([1, 2], 3.5, np.concatenate([t, 1.0 - t]))

    assert slopes(half, [0.3], engine) == pytest.approx(3 * 0.7 * (0.7 - 2 * 0.3))
    np.testing.assert_array_equal(
        slopes(lambda t: scipy.stats.multinomial.logpmf([1, 2], t[0], [0.3, 0.7]), [3.0], engine), [0.0]
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_little_of_an_exponential_variable_and_quantiles_of_cauchy_keep_their_digits(engine: str | None) -> None:
    for k in (1e-3, 1e-4, 1e-6):  # the density is that of a normal variable moved by k, to second order
        found = slopes(lambda t: scipy.stats.exponnorm.logpdf(2.0, t[0]), [k], engine)
        assert found == pytest.approx(2.0 + 2.0 * k, rel=5e-6)
    near = slopes(lambda t: scipy.stats.cauchy.ppf(t[0]), [0.5 + 1e-8], engine)
    assert near == pytest.approx(np.pi, rel=1e-14)
    q = 1.0 - 1e-10
    above = slopes(lambda t: scipy.stats.cauchy.ppf(t[0]), [q], engine)
    assert above == pytest.approx(1.0 / (np.pi * (1.0 - q) ** 2), rel=1e-12)


@pytest.mark.needs("jax")
@pytest.mark.parametrize(
    ("fun", "at"),
    [
        (lambda t: np.sum(scipy.stats.dirichlet.pdf(np.full((2, 3, 4), 0.2), t)), [1.0, 2.0]),
        (lambda t: scipy.stats.multivariate_normal.logpdf([1.0, 2.0], [[0.0], [0.0]], np.eye(2) * t), [2.0]),
        (lambda t: scipy.stats.multinomial.pmf([6], 6, t), [0.5, 0.5]),
        (lambda t: np.sum(np.add.reduceat(t, [-1])), [1.0, 2.0]),
        (lambda t: np.sum(np.logaddexp.accumulate(np.ones((2, 2)) * t, axis=NO_AXIS)), [1.0, 2.0]),
        (lambda t: np.sum(np.add.reduceat(np.ones((2, 2)) * t, [0], axis=NO_AXIS)), [1.0, 2.0]),
    ],
)
def test_shapes_and_groups_that_scipy_and_numpy_refuse_are_their_errors_compiled(fun: Any, at: Any) -> None:
    with pytest.raises((ValueError, IndexError)) as theirs:
        fun(np.asarray(at))
    with pytest.raises((ValueError, IndexError)) as ours:
        slopes(fun, at, "jax")
    assert type(ours.value) is type(theirs.value)


def test_differences_of_counts_have_slopes_where_a_bessel_function_is_too_small() -> None:
    expected = {  # by besseli in 50 digits
        (961.0, 1000.0, 38.8): (-0.000228468590634, -0.000733726562728),
        (-2000.0, 1.0, 2100.0): (0.048925689104, -0.0471195591957),
        (150.0, 3.0, 2.0): (49.0132415725, -0.980137641313),
    }
    for (k, *means), right in expected.items():
        np.testing.assert_allclose(
            slopes(lambda t, k=k: scipy.stats.skellam.logpmf(k, t[0], t[1]), means), right, rtol=1e-9
        )
    with_hessian = dagad.hessian(lambda t: scipy.stats.skellam.logpmf(300.0, t[0], t[1]))(np.array([500.0, 0.5]))
    assert with_hessian[0, 0] == pytest.approx(-0.00120000903755, rel=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_rest_of_a_long_truncated_variable_keeps_its_slope(engine: str | None) -> None:
    found = slopes(lambda t: scipy.stats.truncexpon.logsf(t[0], 800.0), [1.0], engine)
    assert found == pytest.approx(-1.0, rel=1e-14)


def test_students_density_of_many_degrees_of_freedom_keeps_the_digits_of_its_slopes() -> None:
    many = slopes(lambda t: scipy.stats.t.logpdf(3.0, t[0]), [1e6], None)
    z, df = 3.0, 1e6  # in 1/df: ((z**4 - 2 z**2 - 1) / 4) / df, and what is left of second order
    assert many == pytest.approx(-(z**4 - 2 * z**2 - 1) / 4 / df**2, rel=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_methods_take_the_names_of_scipys_arguments(engine: str | None) -> None:
    counts = slopes(lambda t: np.sum(scipy.stats.poisson.logpmf(k=np.arange(3), mu=t[0])), [1.5], engine)
    assert counts == pytest.approx(3.0 / 1.5 - 3.0)
    assert slopes(lambda t: scipy.stats.expon.ppf(q=0.5, scale=t[0]), [1.5], engine) == pytest.approx(np.log(2.0))
    with pytest.raises(TypeError, match=r"gamma\.logpdf\(\) misses arguments: a"):
        slopes(lambda t: scipy.stats.gamma.logpdf(2.0, scale=t[0]), [1.5], engine)
    with pytest.raises(TypeError, match=r"norm\.logpdf\(\) got unexpected arguments"):
        slopes(lambda t: scipy.stats.norm.logpdf(2.0, t[0], x=1.0), [1.5], engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_of_zero_in_a_sum_of_exponentials_have_slopes(engine: str | None) -> None:
    found = slopes(lambda t: scipy.special.logsumexp([0.3, 0.1, 0.2], b=t), [1.0, 0.0, 0.5], engine)
    terms = np.exp([0.3, 0.1, 0.2])
    np.testing.assert_allclose(found, terms / (terms[0] + 0.5 * terms[2]), rtol=1e-13)
    above = slopes(
        lambda t: np.sum(scipy.special.logsumexp(np.reshape(t, (2, 2)), axis=0, b=[[1.0], [0.0]])),
        [1.0, 2.0, 800.0, 1.0],
        engine,
    )
    np.testing.assert_array_equal(above, [1.0, 1.0, 0.0, 0.0])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_power_of_zero_has_the_second_derivative_of_the_limit(engine: str | None) -> None:
    def total(t: Any) -> Any:
        def chunk(rows: Any, t: Any) -> Any:
            return np.sum(scipy.special.inv_boxcox(rows, t))

        return dagad.reduce_sum(chunk, np.array([0.5]), t, grainsize=1, scheduler="sync", engine=engine)

    y = 0.5
    assert dagad.hvp(total, 0.0, 1.0) == pytest.approx(np.exp(y) * (2 * y**3 / 3 + y**4 / 4), rel=1e-12)


REFUSED: dict[str, tuple[Any, str]] = {
    "singular": (
        lambda t: scipy.stats.multivariate_normal.logpdf(t, [0.0, 0.0], np.eye(2), allow_singular=True),
        r"multivariate_normal\.logpdf` with `allow_singular=True`",
    ),
    "covariance": (
        lambda t: scipy.stats.multivariate_normal.logpdf(t, [0.0, 0.0], scipy.stats.Covariance.from_diagonal([1, 2])),
        "Give it the matrix: its attribute `covariance`",
    ),
    "sample": (
        lambda t: scipy.stats.multivariate_normal(t, np.eye(2)).rvs(),
        r"no derivative .*multivariate_normal.rvs",
    ),
    "groups": (lambda t: np.sum(np.add.reduceat(t, [1, 0])), "reduceat` with indices that do not increase"),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", REFUSED)
def test_a_distribution_in_another_form_is_refused_with_what_to_write(case: str, engine: str | None) -> None:
    fun, sentence = REFUSED[case]
    with pytest.raises(dagad.NotDifferentiableError, match=sentence):
        slopes(fun, [0.2, 0.4], engine)


def test_a_distribution_with_traced_parameters_is_copied_like_any_object() -> None:
    def copied(t: Any) -> Any:
        made = copy.copy(scipy.stats.multivariate_normal(t, np.eye(2)))
        assert not hasattr(made, "__array__")
        return made.logpdf([1.0, 2.0])

    np.testing.assert_allclose(slopes(copied, [0.2, 0.4]), [0.8, 1.6], rtol=1e-14)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_small_sum_of_exponentials_before_a_large_one_keeps_its_slopes(engine: str | None) -> None:
    at = np.array([-900.0, -901.0, 0.0, 800.0])
    found = slopes(lambda t: np.logaddexp.accumulate(t)[1], at, engine)
    share = 1.0 / (1.0 + np.exp(-1.0))
    np.testing.assert_allclose(found, [share, 1.0 - share, 0.0, 0.0], rtol=1e-14)


OBSERVED = np.array([0, 1, 1, 0, 2, 1, 0, 0, 2, 1, 0, 1]).reshape(4, 3)  # four sequences of three


def forward(sequences: Any, t: Any) -> Any:
    """The logarithm of a likelihood of hidden states, as one would write it with numpy."""
    moves = np.reshape(t[:4], (2, 2)) - np.logaddexp.reduce(np.reshape(t[:4], (2, 2)), axis=1, keepdims=True)
    shown = np.reshape(t[4:], (2, 3)) - np.logaddexp.reduce(np.reshape(t[4:], (2, 3)), axis=1, keepdims=True)
    total = 0.0
    for sequence in sequences:
        alpha = shown[:, sequence[0]] - np.log(2.0)
        for seen in sequence[1:]:
            alpha = np.logaddexp.reduce(alpha[:, None] + moves, axis=0) + shown[:, seen]
        total = total + np.logaddexp.reduce(alpha)
    return total


def enumerated(t: Any) -> Any:
    """The same by all paths, without logarithms."""
    moves, shown = np.exp(np.reshape(t[:4], (2, 2))), np.exp(np.reshape(t[4:], (2, 3)))
    moves, shown = moves / np.sum(moves, axis=1, keepdims=True), shown / np.sum(shown, axis=1, keepdims=True)
    total: Any = 0.0
    for sequence in OBSERVED:
        likelihood: Any = 0.0
        for path in itertools.product(range(2), repeat=3):
            weight: Any = 0.5
            for before, now in itertools.pairwise(path):
                weight = weight * moves[before, now]
            for state, seen in zip(path, sequence, strict=True):
                weight = weight * shown[state, seen]
            likelihood = likelihood + weight
        total = total + np.log(likelihood)
    return total


def mixed(rows: Any, t: Any) -> Any:
    """A density of two variables whose covariance is made of parameters."""
    root = np.array([[1.0, 0.0], [0.4, 1.0]]) * t[0] + np.eye(2)
    return np.sum(scipy.stats.multivariate_normal(t[:2], root @ root.T).logpdf(rows))


def test_hidden_states_and_mixed_normals_are_right_on_every_scheduler(scheduler: Any) -> None:
    t = np.linspace(-0.5, 0.8, 10)

    def states(t: Any, where: Any = scheduler) -> Any:
        return dagad.reduce_sum(forward, OBSERVED, t, grainsize=2, scheduler=where)

    np.testing.assert_allclose(dagad.grad(states)(t), dagad.grad(enumerated)(t), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(dagad.hessian(states)(t), dagad.hessian(enumerated)(t), rtol=1e-11, atol=1e-13)
    for fun, rows in ((forward, OBSERVED), (mixed, POINTS)):
        found, here = (
            dagad.value_and_grad(
                lambda t, w=w, fun=fun, rows=rows: dagad.reduce_sum(fun, rows, t, grainsize=2, scheduler=w)
            )(t)
            for w in (scheduler, "sync")
        )
        assert found[0] == here[0]
        np.testing.assert_array_equal(found[1], here[1])
    whole = dagad.grad(lambda t: mixed(POINTS, t))(t)
    np.testing.assert_allclose(
        dagad.grad(lambda t: dagad.reduce_sum(mixed, POINTS, t, grainsize=7, scheduler=scheduler))(t), whole, rtol=1e-12
    )


def test_sums_of_exponentials_beyond_all_floats_have_the_shares_of_their_terms_as_slopes() -> None:
    at = np.array([0.3, -0.7, 1.1])
    shares = np.exp(at) / np.sum(np.exp(at))
    for far in (0.0, 1e3, -1e3):
        np.testing.assert_allclose(slopes(lambda t, far=far: np.logaddexp.reduce(far + t), at), shares, rtol=1e-11)
