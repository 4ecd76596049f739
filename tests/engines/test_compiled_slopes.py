"""Plain numpy compiled by jax, where a function has several slopes, or none: what autograd and the reference say.

Also values there: at the edges of what a function is defined for, at infinity, of whole numbers that are too large.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

import dagad
from support.beside_numpy import SAME, compared
from support.views import parts

NAMES = {"np": np, "special": scipy.special, "stats": scipy.stats}
AT = np.array([0.0, 1.0, -1.0, 2.0])
WEIGHTS, ALONG = np.array([0.7, 1.3, 0.9, 1.1]), np.array([0.8, 1.2, 0.6, 1.4])


def found(text: str, engine: str | None, at: Any) -> list[Any]:
    """Return value, gradient, and products with a direction in forward mode, of first and of second order."""
    code = compile(text, "<text>", "eval")

    def chunk(rows: Any, t: Any) -> Any:
        out = eval(code, {**NAMES, "t": t})
        return np.sum(rows) * np.sum(out * WEIGHTS[: np.size(out)])

    def total(t: Any) -> Any:
        return dagad.reduce_sum(chunk, np.ones(1), t, grainsize=1, scheduler="sync", engine=engine)

    along = ALONG[: np.size(at)]
    value, slope = dagad.value_and_grad(total)(at)
    return [value, slope, dagad.jvp(total, (at,), (along,))[1], dagad.hvp(total, (at,), (along,))[0]]


def check(text: str, at: Any = AT) -> None:
    with np.errstate(all="ignore"):
        theirs, ours = found(text, None, at), found(text, "jax", at)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-12, err_msg=text)
    for one, other in zip(ours[1:], theirs[1:], strict=True):
        if np.all(np.isfinite(other)) or one is not ours[-1]:  # of second derivatives that there are
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-15, err_msg=text)


# --- corners ----------------------------------------------------------------------------------------------------------

CORNERS = """
np.abs(t); np.fabs(t); abs(t); np.fmax(t, 1.0); np.fmin(1.0, t); np.fmax(t, 2 * t); np.maximum(t, 1.0)
np.clip(t, 0.0, 1.0); t.clip(0, 1); np.clip(t, None, 1.0); np.clip(t, 0.0, None); np.clip(0.5, t - 0.5, 2.0)
np.clip(t, t[0], 1.0); np.copysign(t, -1.0); np.copysign(1.0, t); np.ldexp(t, 2); np.average(t, weights=np.abs(t))
np.maximum.accumulate(np.abs(t)); np.minimum.accumulate(-np.abs(t)); np.unwrap(np.pi * t); np.unwrap(t, period=2.0)
np.linalg.norm(t, 1); np.linalg.norm(t, -np.inf); np.linalg.norm(t.reshape(2, 2), 1); np.linalg.vector_norm(t, ord=1)
np.linalg.matrix_norm(t.reshape(2, 2), ord=np.inf); np.logaddexp(t, np.inf); np.logaddexp(-np.inf, t)
np.logaddexp2(t, np.inf); np.logaddexp(t, t); special.huber(1.0, t); special.huber(abs(t) + 1.0, 2 * t)
special.log_expit(40 * t); special.expit(37 * t); special.xlogy(0.0, t); special.xlogy(np.zeros(4), abs(t))
special.xlog1py(0.0, t); stats.laplace.logpdf(t); stats.laplace.pdf(1.0, t); np.modf(t)[0]; np.sort(np.abs(t))
np.max(np.abs(t)) + np.min(np.abs(t)); np.remainder(1.7, t / 10 - 0.2)
np.fmod(1.7, t / 10 - 0.2); np.divmod(1.7, t / 10 - 0.2)[1]; np.hypot(t, 1.0); np.trapezoid(t, np.abs(t))
"""


@pytest.mark.filterwarnings("ignore:.*gave nan")
@pytest.mark.parametrize("text", parts(CORNERS))
def test_slopes_at_corners_are_those_of_autograd(text: str) -> None:
    check(text)


def test_powers_of_numbers_that_are_both_differentiated_have_slopes_at_zero() -> None:
    for text in ("t**t", "np.power(t, t)", "np.float_power(t, 2.0 * t)", "t[0] ** t"):
        check(text, np.array([0.0, 1.0, 0.5, 2.0]))


@pytest.mark.filterwarnings("ignore:.*a gradient that is nan")  # which says so
def test_the_length_of_no_vector_has_no_slope() -> None:
    for engine in (None, "jax"):
        with np.errstate(all="ignore"):
            slope = dagad.grad(lambda t, on=engine: dagad.reduce_sum(lengths, np.ones(1), t, engine=on))(0.0)
        assert np.isnan(slope)


def lengths(rows: Any, t: Any) -> Any:
    return np.sum(np.hypot(rows * t, 0.0))


# --- special functions and distributions ------------------------------------------------------------------------------

EDGES = """
special.binom(0.9, t + 0.3); special.binom(t + 0.3, 2.5); special.binom(-0.5, t + 0.3)
special.poch(t + 0.3, 2.5); special.poch(0.5, t)
stats.lognorm.pdf(t, 1.3); stats.lognorm.logpdf(t, 1.3); stats.invgamma.pdf(t, 1.3); stats.invgamma.logpdf(t, 1.3)
stats.invgauss.pdf(t, 1.3); stats.expon.pdf(t); stats.gamma.pdf(t, 2.0); stats.gamma.pdf(t, 1.0); stats.uniform.pdf(t)
stats.beta.pdf(t, 2.0, 1.0); stats.halfnorm.pdf(t); stats.rayleigh.pdf(t); stats.weibull_min.pdf(t, 1.0)
stats.chi2.pdf(t, 2.0); stats.pareto.pdf(t, 2.0); stats.expon.cdf(t); stats.uniform.sf(t); stats.gamma.cdf(t, 2.0)
stats.pareto.sf(t, 2.0); stats.norm.logsf(9 * t); stats.logistic.logpdf(40 * t); stats.cauchy.pdf(t)
stats.truncnorm.logpdf(t + 29.0, 30.0, 40.0); stats.truncnorm.sf(t, -np.inf, 1.0); stats.genpareto.pdf(t, -0.5)
stats.genpareto.logsf(t, -1.0); stats.genextreme.pdf(t, 0.5); stats.genextreme.cdf(t, -1.0); stats.triang.pdf(t, 0.4)
stats.loguniform.pdf(t, 1.0, 1.5); stats.truncexpon.sf(t, 1.0); stats.truncpareto.pdf(t, 2.0, 1.5)
stats.weibull_max.cdf(t - 1.0, 1.5); stats.cosine.logpdf(np.pi * t); stats.arcsine.pdf(t); stats.levy_l.pdf(t - 1.0)
stats.gompertz.sf(t, 1.3); stats.kappa3.pdf(t, 1.5); stats.laplace_asymmetric.logcdf(t, 1.5); stats.rice.logpdf(t, 1.3)
"""


@pytest.mark.parametrize("text", parts(EDGES))
def test_functions_of_scipys_have_their_values_and_slopes_at_edges(text: str) -> None:
    check(text)


SHARES = np.array([0.3, 1.0, 0.6, 0.2])
OF_COUNTS = """
stats.bernoulli.pmf([-1, 2, 0, 1], t / 2); stats.bernoulli.logpmf([0, 1, 1, 0], t / 2)
stats.binom.pmf([-1, 2, 3, 20], 12, t / 2); stats.geom.pmf([-1, 2, 0, 5], t / 2); stats.poisson.pmf([-1, 2, 3, 2.5], t)
stats.nbinom.logpmf([0, 2, 3, 5], 2.5, t / 2); stats.poisson.logpmf([0, 1, 2, 3], t, 1); special.powm1(2.0, t - 0.3)
stats.poisson.cdf([-1, 2.5, 3, 0], t); stats.binom.sf([-1, 2, 3.5, 5], 5, t / 2); stats.geom.logsf([0, 1, 2, 3.5], t)
stats.boltzmann.pmf([-1, 2, 4, 5], t, 5); stats.dlaplace.pmf([-3, 0, 2.5, 4], t); stats.logser.pmf([0, 1, 2, 9], t / 2)
special.boxcox([0.5, 1.0, 2.0, 3.0], t - 0.3); special.boxcox1p([0.5, 0.0, 2.0, 3.0], t - 1.0); special.boxcox(t, 0.0)
special.ndtri(t / 2); special.erfcinv(t); special.erfcx(99 * t); special.hyp1f1(0.5, 1.5, -99 * t); special.loggamma(t)
special.digamma(-t - 0.05); special.rgamma(t - 1.4); special.pseudo_huber(t, t - 0.3)
"""


@pytest.mark.parametrize("text", parts(OF_COUNTS))
def test_masses_and_special_functions_have_their_values_and_slopes(text: str) -> None:
    check(text, SHARES)


PARAMETERS = """
stats.gamma.logpdf(1.5, t); stats.norm.pdf(1.5, 0.0, t); stats.t.logpdf(1.5, t); stats.skewnorm.logpdf(1.5, t)
stats.bernoulli.logpmf([0, 1, 1, 0], t); stats.geom.pmf(2, t); stats.nbinom.pmf(3, 2.5, t); stats.poisson.pmf(2, t)
stats.binom.logpmf(2, 12, t); stats.betabinom.logpmf(2, 12, t, 1.5); special.beta(t, 1.5); special.beta(t, t + 2)
special.digamma(t); special.loggamma(t); special.rgamma(t); special.binom(t, 1.0); special.pseudo_huber(t, 1.5)
special.huber(t, 1.5); special.erfcx(30 * t); np.nextafter(t, 9.0); special.gamma(t + 1); special.powm1(t, 2.0)
"""


@pytest.mark.parametrize("text", parts(PARAMETERS))
def test_parameters_that_a_function_has_not_give_what_scipy_gives(text: str) -> None:
    at = AT[1:] if "nextafter" in text else AT  # of zero it is so small that XLA takes it for zero
    how, theirs, ours = compared(lambda t: eval(text, {**NAMES, "t": t}), (at,))
    assert how == SAME, f"{text}: scipy gives {theirs!r}, and compiled it is {ours!r}"


MASKED = (
    "np.isfinite(t) * t; (t > 1.5) * t; t * ~np.isnan(t); np.where(t > 1.5, 1.0, 0.0) * t; (t > 1.5).astype(float) * t"
)


@pytest.mark.filterwarnings("ignore:.*gave (nan|inf)")
@pytest.mark.parametrize("text", parts(MASKED))
def test_truths_times_what_is_not_finite_are_nan_as_in_numpy(text: str) -> None:
    at = np.array([1.0, np.inf, -np.inf, np.nan, 2.0])

    def chunk(rows: Any, t: Any) -> Any:
        return eval(text, {**NAMES, "t": t}) * rows[0]

    with np.errstate(all="ignore"):
        ours = dagad.reduce_sum(chunk, np.ones(1), at, grainsize=1, scheduler="sync", engine="jax")
        np.testing.assert_array_equal(ours, chunk(np.ones(1), at))


def test_pochhammers_symbol_of_whole_numbers_below_zero_is_scipys() -> None:
    whole = np.array([-2.0, -1.0, 0.0, 3.0])
    for text in ("special.poch(t, 2)", "special.poch(t, -1)", "special.poch(-3.0, t)", "special.poch(0.5, t - 0.5)"):
        how, theirs, ours = compared(lambda t, text=text: eval(text, {**NAMES, "t": t}), (whole,))
        assert how == SAME, f"{text}: scipy gives {theirs!r}, and compiled it is {ours!r}"


@pytest.mark.parametrize(
    "text", ["stats.pearson3.logpdf(t, 1.5)", "stats.trapezoid.pdf(t, 0.3, 0.6)", "stats.nct.logpdf(t, 3.0, 1.5)"]
)
def test_distributions_that_dagad_has_not_are_refused_by_name(text: str) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"scipy\.stats\.\w+\.\w+.*leave out `engine="):
        found(text, "jax", AT)


# --- values that jax has otherwise ------------------------------------------------------------------------------------

BEYOND = np.array([1e10, -3e9, 300.7, -300.7, np.inf, -np.inf, np.nan, 2.0**63, -1.5])
SINGLE = np.array([300.5, -300.5, 3e9, np.inf], np.float32)
CASTS = """
t.astype(np.int8); t.astype(np.uint8); t.astype(np.int16); t.astype(np.uint16); t.astype(np.int32); t.astype(np.int64)
t.astype(np.uint64); t.astype(bool); np.astype(t, np.int8); np.array(t, dtype=np.int16); np.asarray(t, np.uint8)
np.full_like(t, t[2], dtype=np.int8)
"""
VALUES = """
np.modf(t); np.sort(t, kind="stable"); np.argsort(t, kind="mergesort"); np.triu(t); np.tril(t, -1); np.triu(t, 1)
np.histogram(t[2:4], 3)[0]; np.histogram(t[2:4], 3, weights=[1, 2])[0]; np.histogram(t[2:4], 2, density=True)[0]
np.histogram(t[2:4], 2, weights=t[2:4])[0]; np.histogram(t[2:4], [0.0, 1.0, 999.0])[0]; np.maximum.accumulate(t)
np.minimum.accumulate(t); np.fmax(t, 0.0); np.logaddexp(t, t); np.percentile(t[2:4], 30.0, method="lower")
np.quantile(t[2:4], 0.5, method="weibull"); np.percentile(t[2:4], 50.0, method="hazen")
np.clip(t, -1.0, 1.0); np.copysign(t, -1.0); np.linalg.norm(t[2:4], 1)
"""
REFUSED = """
np.argpartition(t, 1); t.argpartition(1); np.nanpercentile(t, 50.0, method="hazen")
np.array_str(t); np.array_repr(t); np.array2string(t)
"""


@pytest.mark.parametrize("text", parts(CASTS))
def test_numbers_too_large_for_a_dtype_of_whole_ones_become_those_of_numpy(text: str) -> None:
    for at in (BEYOND, SINGLE):
        how, theirs, ours = compared(lambda t: eval(text, {**NAMES, "t": t}), (at,))
        assert how == SAME, f"{text}: numpy gives {theirs!r}, and compiled it is {ours!r}"


@pytest.mark.parametrize("text", parts(VALUES))
def test_values_that_jax_has_otherwise_are_numpys(text: str) -> None:
    how, theirs, ours = compared(lambda t: eval(text, {**NAMES, "t": t}), (BEYOND,))
    assert how == SAME, f"{text}: numpy gives {theirs!r}, and compiled it is {ours!r}"


WHOLE, COMPLEX = np.array([2, -3, 5, 250, 0]), np.array([0.5 + 1j, -1.0, 2j])
POWERS = """
t ** np.array([250, 3, 70, 2, 0], np.uint8); t**200; np.power(t, [3, 4, 5, 64, 65]); t.astype(np.int8) ** 3
abs(t).astype(np.uint64) ** abs(t).astype(np.uint64); t[:0] ** 3; True ** abs(t).astype(np.uint8); t ** np.int8(3)
np.float_power(0, t); np.float_power(2, t % 9); np.float_power(t, -1); 0.0**t
"""
OF_COMPLEX = (
    "t.all(); np.any(t * 1j); np.any(0 * t + 1j); np.all(t[None], axis=1, keepdims=True); np.select([t], [1.0])"
)


@pytest.mark.parametrize("text", parts(POWERS))
def test_powers_of_whole_numbers_are_wrapped_as_numpys(text: str) -> None:
    how, theirs, ours = compared(lambda t: eval(text, {**NAMES, "t": t}), (WHOLE,))
    assert how == SAME, f"{text}: numpy gives {theirs!r}, and compiled it is {ours!r}"


@pytest.mark.parametrize("text", parts(OF_COMPLEX))
def test_complex_numbers_are_true_where_either_part_is_not_zero(text: str) -> None:
    how, theirs, ours = compared(lambda t: eval(text, {**NAMES, "t": t}), (COMPLEX,))
    assert how == SAME, f"{text}: numpy gives {theirs!r}, and compiled it is {ours!r}"


OF_A_NUMBER = """
np.sum(t[0], axis=0); np.max(t[0], axis=-1); t[0].min(axis=0); np.nanmax(t[0], axis=0); np.ptp(t[0], axis=0)
np.cumsum(t[0], axis=0); np.argmax(t[0], axis=0); np.any(t[0], axis=0); np.mean(t[0], axis=0); np.sort(t[0], axis=0)
np.sum(t[0], axis=1); special.logsumexp(t[0], axis=-1); np.prod(t[0], axis=0, keepdims=True)
"""


@pytest.mark.parametrize("text", parts(OF_A_NUMBER))
def test_a_number_has_an_axis_where_it_has_one_in_numpy(text: str) -> None:
    how, theirs, ours = compared(lambda t: eval(text, {**NAMES, "t": t}), (AT,))
    assert how == SAME or (isinstance(ours, ValueError) and isinstance(theirs, ValueError)), (theirs, ours)


@pytest.mark.parametrize("text", parts("np.argmax(t); t.argmin(); np.nanargmax(t)"))
def test_places_of_the_largest_of_complex_numbers_are_refused(text: str) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"of complex numbers.*leave out `engine="):
        raise compared(lambda t: eval(text, {**NAMES, "t": t}), (COMPLEX,))[2]


@pytest.mark.parametrize("at", [np.array([0.0, np.inf]), np.array([np.nan, 1.0])])
def test_histograms_of_a_range_that_is_not_finite_have_no_numbers(at: Any) -> None:
    for text in ("np.histogram(t, 2)[0]", "np.histogram2d(t, t, 2)[0]", "np.histogramdd([t], 2, weights=t)[0]"):
        ours = compared(lambda t, text=text: eval(text, {**NAMES, "t": t}), (at,))[2]
        assert np.all((ours < -1e9) if ours.dtype == int else np.isnan(ours)), text


@pytest.mark.parametrize("text", parts(REFUSED))
def test_functions_that_jax_has_in_another_order_or_not_at_all_are_refused(text: str) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"calls `np\.\w+`.*leave out `engine="):
        raise compared(lambda t: eval(text, {**NAMES, "t": t}), (AT,))[2]
