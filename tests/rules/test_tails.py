"""Slopes in the tails of functions: right to nearly all digits where the formula of the textbook has lost them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import autograd.scipy.stats
import numpy as np
import pytest
import scipy.special as sp
import scipy.stats

import dagad

Function = Callable[[Any], Any]


def derivatives(function: Function, at: Any) -> list[Any]:
    """Return first and second derivatives at some numbers, the first by both modes."""

    def total(x: Any) -> Any:
        return np.sum(function(x))

    at, ones = np.asarray(at, float), np.ones(len(at))
    gradient = dagad.grad(total)(at)
    np.testing.assert_allclose(dagad.jvp(function, at, ones)[1], gradient, rtol=1e-14)
    return [gradient, dagad.hvp(total, at, ones)]


def by_series(terms: list[tuple[float, float]], x: float, order: int) -> float:
    """Return a derivative of a sum of c x^-p, as far as its terms fall."""
    found = list[float]()
    for factor, power in terms:
        slope = (-1) ** order * math.prod(power + k for k in range(order))
        found.append(factor * slope * x ** -(power + order))
        if len(found) > 1 and abs(found[-1]) > abs(found[-2]):
            break
    return math.fsum(found)


def odd(k: int) -> int:
    """Return 1 3 5 ... (2 k - 1)."""
    return math.prod(range(1, 2 * k, 2))


def of_bessel(order: float, sign: int) -> list[tuple[float, float]]:
    factor = 1.0 / math.sqrt(2.0 * math.pi) if sign < 0 else math.sqrt(math.pi / 2.0)
    found = [(factor, 0.5)]
    for k in range(1, 25):
        last = found[-1][0] * sign * (4.0 * order**2 - (2 * k - 1) ** 2) / (8.0 * k)
        found.append((last, k + 0.5))
    return found


SERIES: dict[str, tuple[Function, list[tuple[float, float]], float]] = {  # with where it begins to be good
    "erfcx": (sp.erfcx, [((-1) ** k * odd(k) / 2**k / math.sqrt(math.pi), 2 * k + 1) for k in range(40)], 7.0),
    "dawsn": (sp.dawsn, [(odd(k) / 2 ** (k + 1), 2 * k + 1) for k in range(40)], 8.0),
    "i0e": (sp.i0e, of_bessel(0, -1), 30.0),
    "i1e": (sp.i1e, of_bessel(1, -1), 30.0),
    "ive": (lambda x: sp.ive(1.5, x), of_bessel(1.5, -1), 30.0),
    "k0e": (sp.k0e, of_bessel(0, 1), 30.0),
    "k1e": (sp.k1e, of_bessel(1, 1), 30.0),
    "kve": (lambda x: sp.kve(2.5, x), of_bessel(2.5, 1), 30.0),
}


@pytest.mark.parametrize("case", SERIES)
def test_a_slope_in_a_tail_is_that_of_the_asymptotic_series(case: str) -> None:
    function, terms, start = SERIES[case]
    at = np.array([start, 1.4 * start, 1.6 * start, 2.0 * start, 1e3, 1e4, 1e6, 1e8, 1e12])
    for order, found in enumerate(derivatives(function, at), 1):
        expected = np.array([by_series(terms, x, order) for x in at])
        rounding = 3e-16 * start ** (4 if case in ("erfcx", "dawsn") else 2)  # near, where the formula is used
        np.testing.assert_allclose(found, expected, rtol=max(40 * rounding, 1e-13))
        np.testing.assert_allclose(found[4:], expected[4:], rtol=1e-13)


def test_even_and_odd_functions_have_their_slopes_at_both_ends() -> None:
    at = np.array([12.0, 60.0, 1e7])
    for function, parity in ((sp.dawsn, 1), (sp.i0e, -1), (sp.i1e, 1)):
        right, left = derivatives(function, at), derivatives(function, -at)
        np.testing.assert_array_equal(left[0], parity * right[0])
        np.testing.assert_array_equal(left[1], -parity * right[1])
    assert np.all(np.isfinite(derivatives(sp.dawsn, [-1e200, 1e200, 3.0])))


def mills(t: float) -> tuple[float, float]:
    """Return phi(t) / Phi(-t) by its continued fraction, and what it has more than t."""
    rest = 0.0
    for k in range(400, 0, -1):
        rest = k / (t + rest)
    return t + rest, rest


def test_the_logarithm_of_a_normal_distribution_is_right_far_below() -> None:
    at = np.array([-4.0, -9.9, -10.1, -30.0, -1e2, -1e4, -1e5, -1e8, -1e200])
    first, second = derivatives(sp.log_ndtr, at)
    slopes = [mills(-x) for x in at]
    np.testing.assert_allclose(first, [slope for slope, _ in slopes], rtol=1e-13)
    np.testing.assert_allclose(second, [-slope * rest for slope, rest in slopes], rtol=1e-11)
    np.testing.assert_allclose(second[3:], [-slope * rest for slope, rest in slopes[3:]], rtol=1e-13)
    third = dagad.grad(lambda x: dagad.hvp(sp.log_ndtr, x, 1.0))(-1e4)
    assert third == pytest.approx(2e-12, rel=1e-6)  # 2 / t^3
    above = np.array([0.0, 3.0, 40.0, 1e3])
    np.testing.assert_allclose(derivatives(sp.log_ndtr, above)[0], scipy.stats.norm.pdf(above) / sp.ndtr(above))
    loss = dagad.grad(lambda mean: np.sum(scipy.stats.norm.logsf(1e6, mean, 1.0)))
    assert loss(0.0) == pytest.approx(1e6, rel=1e-11)


def test_the_normal_distribution_of_autograds_has_these_slopes_too() -> None:
    normal, x, loc = autograd.scipy.stats.norm, np.array([-1e8, -30.0, -1.0, 2.0]), 0.25
    expected, _ = derivatives(lambda x: sp.log_ndtr((x - loc) / 2.0), x)
    np.testing.assert_allclose(derivatives(lambda x: normal.logcdf(x, loc, 2.0), x)[0], expected, rtol=1e-14)
    mirrored = derivatives(lambda x: normal.logsf(2 * loc - x, loc, scale=2.0), x)[0]
    np.testing.assert_allclose(mirrored, expected, rtol=1e-14)
    by_location = dagad.grad(lambda loc: np.sum(normal.logcdf(x, loc, 2.0)))(loc)
    assert by_location == pytest.approx(-np.sum(expected))


def test_the_inverse_of_that_logarithm_is_right_far_below() -> None:
    at = np.array([-1e-3, -2.0, -60.0, -1e6, -1e12])
    expected = [1.0 / mills(-y)[0] if y < -4.0 else sp.ndtr(y) / scipy.stats.norm.pdf(y) for y in sp.ndtri_exp(at)]
    np.testing.assert_allclose(derivatives(sp.ndtri_exp, at)[0], expected, rtol=1e-12)


def shares(d: Any) -> Any:
    small = np.exp(-np.abs(d))
    return small / (1.0 + small) ** 2


def test_slopes_of_what_is_nearly_one_are_as_small_as_they_are() -> None:
    d = np.array([-700.0, -60.0, -37.0, -1.0, 0.0, 2.0, 37.0, 40.0, 700.0])
    for function, expected in ((sp.expit, shares(d)), (np.expm1, np.exp(d)), (sp.expm1, np.exp(d))):
        np.testing.assert_allclose(derivatives(function, d)[0], expected, rtol=1e-14)
    for function, sign in (
        (sp.log_expit, -1.0),
        (lambda x: np.logaddexp(x, 0.0), 1.0),
        (lambda x: np.logaddexp(3.0, x + 3.0), 1.0),
        (lambda x: np.logaddexp2(x / np.log(2.0), 0.0) * np.log(2.0), 1.0),
        (lambda x: scipy.stats.logistic.logcdf(x), -1.0),
    ):
        np.testing.assert_allclose(derivatives(function, d)[1], sign * shares(d), rtol=3e-13)
    third = dagad.grad(lambda x: np.sum(dagad.hvp(lambda x: np.sum(np.logaddexp(x, 0.0)), x, np.ones(9))))(d)
    np.testing.assert_allclose(third, -shares(d) * np.tanh(d / 2.0), rtol=1e-12, atol=1e-320)


def test_both_arguments_of_a_sum_of_exponentials_share_the_slope() -> None:
    x, y = np.array([[1.0], [800.0], [-np.inf]]), np.array([2.0, -750.0])
    for function in (np.logaddexp, np.logaddexp2):
        parts = dagad.grad(lambda xy, function=function: np.sum(function(xy[0], xy[1])))((x, y))
        assert [part.shape for part in parts] == [(3, 1), (2,)]
        np.testing.assert_allclose(np.sum(parts[0]) + np.sum(parts[1]), 6.0)
        assert parts[0][2] == 0.0
    assert dagad.grad(lambda x: np.logaddexp(x, x))(np.float32(2.0)).dtype == np.float32


def test_distributions_of_large_shapes_have_their_densities_for_slopes() -> None:
    x = np.array([180.0, 200.0, 230.0])
    density = scipy.stats.gamma.pdf(x, 200.0)
    np.testing.assert_allclose(derivatives(lambda x: sp.gammainc(200.0, x), x)[0], density, rtol=1e-11)
    first, second = derivatives(lambda x: sp.gammaincc(200.0, x), x)
    np.testing.assert_allclose(first, -density, rtol=1e-11)
    np.testing.assert_allclose(second, -density * (199.0 / x - 1.0), rtol=1e-10, atol=1e-15)
    p = np.array([0.45, 0.5, 0.53])
    density = scipy.stats.beta.pdf(p, 600.0, 700.0)
    np.testing.assert_allclose(derivatives(lambda p: sp.betainc(600.0, 700.0, p), p)[0], density, rtol=1e-10)
    np.testing.assert_allclose(dagad.grad(lambda x: sp.gammainc(1.0, x))(0.0), 1.0)
    np.testing.assert_allclose(dagad.grad(lambda x: sp.chdtr(2.0, x))(0.0), 0.5)
    np.testing.assert_allclose(dagad.grad(lambda x: sp.betainc(1.0, 3.0, x))(0.0), 3.0)


def test_the_width_of_a_soft_corner_counts_however_small_the_rest_is() -> None:
    r, width = np.array([1e-9, 1e-6, 1e-3, 1.0, 50.0]), np.full(5, 1.5)
    soft = np.sqrt(1.0 + (r / width) ** 2)
    expected = width * ((r / width) ** 2 / (1.0 + soft)) ** 2 / soft
    assert expected[0] == pytest.approx(1e-36 / (4 * 1.5**3))
    first, _ = derivatives(lambda width: sp.pseudo_huber(width, r), width)
    np.testing.assert_allclose(first, expected, rtol=1e-13)
    step = 1e-5
    ends = [dagad.grad(lambda w: np.sum(sp.pseudo_huber(w, r)))(width + sign * step) for sign in (1, -1)]
    curved = derivatives(lambda width: sp.pseudo_huber(width, r), width)[1]
    np.testing.assert_allclose(curved, (ends[0] - ends[1]) / (2 * step), rtol=1e-8)


def test_an_angle_has_a_slope_however_long_its_sides_are() -> None:
    for size in (1e-200, 1.0, 1e200):
        slope = dagad.grad(lambda xy, size=size: np.arctan2(size * xy[0], size * xy[1]))((3.0, 4.0))
        np.testing.assert_allclose(slope, [4.0 / 25.0, -3.0 / 25.0])
    assert dagad.grad(lambda y: np.arctan2(y, 1e200))(1e200) == pytest.approx(5e-201)


def test_a_hyperbolic_tangent_has_derivatives_of_any_order_however_far_out() -> None:
    far = np.array([-1e3, -400.0, 356.0, 711.0, 1e308])  # the square of the cosine overflows, the cosine too
    with np.errstate(over="ignore"):
        third = dagad.grad(lambda x: np.sum(dagad.hvp(lambda x: np.sum(np.tanh(x)), x, np.ones(5))))(far)
        gradient, curved = derivatives(np.tanh, far)
    assert (np.abs([*gradient, *curved, *third]) < 1e-300).all()
    at = np.array([-2.0, -0.3, 0.0, 0.7, 20.0])
    gradient, curved = derivatives(np.tanh, at)
    np.testing.assert_allclose(gradient, 1.0 / np.cosh(at) ** 2, rtol=1e-14)
    np.testing.assert_allclose(curved, -2.0 * np.tanh(at) / np.cosh(at) ** 2, rtol=1e-14)


def test_inverse_functions_are_right_next_to_their_poles() -> None:
    apart = 2.0 ** -np.arange(20.0, 53.0, 4.0)  # such that 1 - apart is a number
    one = 1.0 / np.sqrt(apart * (2.0 - apart))
    expected: dict[Function, Any] = {np.arcsin: one, np.arccos: -one, np.arctanh: one**2}
    for function, slopes in expected.items():
        np.testing.assert_allclose(derivatives(function, 1.0 - apart)[0], slopes, rtol=1e-14)
    np.testing.assert_allclose(
        derivatives(np.arccosh, 1.0 + apart)[0], 1.0 / np.sqrt(apart * (2.0 + apart)), rtol=1e-14
    )


@pytest.mark.parametrize("z", [-1e17, -1e10, -3.0, 0.0, 2.0, 1e12])
def test_tails_of_a_cauchy_distribution_keep_their_digits(z: float) -> None:
    density = 1.0 / (np.pi * (1.0 + z**2))
    assert dagad.grad(scipy.stats.cauchy.cdf)(z) == pytest.approx(density, rel=1e-12)
    assert dagad.grad(scipy.stats.cauchy.sf)(z) == pytest.approx(-density, rel=1e-12)
    assert dagad.grad(scipy.stats.cauchy.logcdf)(z) == pytest.approx(density / scipy.stats.cauchy.cdf(z), rel=1e-12)
