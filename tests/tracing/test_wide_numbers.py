"""Constants of small types: values are right with them, so derivatives have to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from autograd.scipy import stats
from scipy import integrate, special

import dagad
from dagad._tracing.wide_numbers import wide, wide_entries

MU = np.array([0.34, 0.2, 0.5])
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "rel_entr": lambda t, c: special.rel_entr(c, MU * t),
    "arctan2": lambda t, c: np.arctan2(c, MU * t),
    "huber": lambda t, c: special.huber(c, 9 * MU * t),
    "interp": lambda t, c: np.interp(MU * t, [0.0, 0.3, 0.6], c[[1, 0, 2]]),
    "interp beyond": lambda t, c: np.interp(MU * t, [0.0, 0.3, 0.4], c, left=c[0], right=c[1]),
    "gradient": lambda t, c: np.gradient((MU * t) ** 2, c),
    "gdtrc": lambda t, c: special.gdtrc(MU * t, 3.0, c),
    "weighed logsumexp": lambda t, c: special.logsumexp(c, b=MU * t),
    "jv": lambda t, c: special.jv(c * np.uint8(0), MU * t),
    "kv": lambda t, c: special.kv(c * np.uint8(0), MU * t),
    "power": lambda t, c: (MU * t) ** c,
    "xlogy": lambda t, c: special.xlogy(MU * t, c),
    "average": lambda t, c: np.average(MU * t**2, weights=c),
    "roll": lambda t, c: np.roll(MU * t**2, c[0]) * MU,
    "autograd's gamma": lambda t, c: stats.gamma.logpdf(MU * t, c),
}
CONSTANTS = [np.array([2, 3, 1], f"u{size}") for size in (1, 2, 4, 8)]
CONSTANTS += [np.array([200, 30, 100], "u1"), np.array([127, 7, 1], "i1"), np.array([1, 1, 1], bool)]


@pytest.mark.each_value("constants and calls have nothing to do with each other")
@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda c: f"{c.dtype}-{c[0]}")
@pytest.mark.parametrize("call", CALLS)
def test_a_constant_has_the_derivatives_of_its_numbers_whatever_its_type(call: str, constant: Any) -> None:
    def loss(t: Any, c: Any) -> Any:
        return dagad.reduce_sum(lambda r, t: np.sum(CALLS[call](t, c)) * r[0], np.ones(1), t, scheduler="sync")

    if call == "roll":
        numbers = constant.astype(int)
        try:
            np.roll(MU, constant[0])
        except (RuntimeWarning, ValueError):
            pytest.skip("this numpy negates an unsigned shift, and rolls by another one")
    elif call in ("jv", "kv") and constant.dtype == bool:
        return  # times a whole number they are no truths
    else:
        numbers = constant.astype(float)
    if call == "gradient" and constant.dtype == bool:
        return  # where numbers are equal there is none
    value = loss(1.0, constant)
    own = (
        1e-7 if call == "autograd's gamma" else 1e-12
    )  # scipy's digits: from 1.18 on it has some bytes in floats of four
    assert value == pytest.approx(loss(1.0, numbers), rel=own)
    gradient = dagad.grad(lambda t: loss(t, numbers))(1.0)
    second = dagad.hvp(lambda t: loss(t, numbers), 1.0, 1.0)
    assert dagad.value_and_grad(lambda t: loss(t, constant))(1.0) == pytest.approx((value, gradient), rel=1e-11)
    assert dagad.jvp(lambda t: loss(t, constant), 1.0, 1.0)[1] == pytest.approx(gradient, rel=1e-11)
    assert dagad.hvp(lambda t: loss(t, constant), 1.0, 1.0) == pytest.approx(second, rel=1e-10, abs=1e-14)


def test_a_power_with_the_least_exponent_of_its_type_has_its_slope() -> None:
    least = np.int8(-128)
    for power in (lambda t: t**least, lambda t: np.power(t, least), lambda t: np.float_power(t, np.full(1, least))[0]):
        assert dagad.grad(power)(1.37) == pytest.approx(-128.0 * 1.37**-129.0)
        assert dagad.jvp(power, 1.37, 1.0)[1] == pytest.approx(-128.0 * 1.37**-129.0)
        assert dagad.hvp(power, 1.37, 1.0) == pytest.approx(128.0 * 129.0 * 1.37**-130.0)


@pytest.mark.parametrize("kind", ["u1", "u2", "u4", "u8", "i1", "i8"])
def test_groups_of_any_whole_type_may_be_summed_up_by(kind: str) -> None:
    group, weights = np.array([0, 2, 1, 2], kind), np.arange(1.0, 5.0)
    try:
        np.bincount(group)
    except TypeError:
        pytest.skip("this numpy counts no groups of this type")

    def loss(t: Any) -> Any:
        return np.sum(np.bincount(group, weights=weights * t, minlength=4) ** 2)

    assert dagad.grad(loss)(1.0) == 2.0 * (1.0 + 36.0 + 9.0)
    assert dagad.jvp(loss, 1.0, 1.0)[1] == 92.0


INTEGRALS: dict[str, Callable[[Any, Any], Any]] = {
    "numpy's trapezoid": lambda t, x: np.trapezoid(MU * t, x),
    "trapezoid": lambda t, x: integrate.trapezoid(MU * t, x),
    "cumulative trapezoid": lambda t, x: integrate.cumulative_trapezoid(MU * t, x=x),
    "simpson": lambda t, x: integrate.simpson(MU * t, x=x),
}


@pytest.mark.parametrize("x", [np.array([3, 2, 9], "u1"), np.array([True, False, True]), np.array([-100, 3, 90], "i1")])
@pytest.mark.parametrize("integral", INTEGRALS)
def test_an_integral_has_the_widths_that_numpy_takes_even_where_those_wrap_round(integral: str, x: Any) -> None:
    if integral == "trapezoid" and x.dtype == bool:
        return  # scipy has none

    def loss(t: Any) -> Any:  # linear in t
        return np.sum(INTEGRALS[integral](t, x))

    assert dagad.grad(loss)(1.3) == pytest.approx(loss(1.0))
    assert dagad.jvp(loss, 1.3, 1.0)[1] == pytest.approx(loss(1.0))


def test_a_rule_of_autograds_does_not_square_a_scale_in_its_own_type() -> None:
    scale, x = np.array([200, 17], "u1"), np.array([0.3, 0.7])
    np.testing.assert_allclose(dagad.grad(lambda x: np.sum(stats.norm.logpdf(x, 0.0, scale)))(x), -x / scale / scale)


def test_a_constant_becomes_as_wide_as_its_value_and_no_wider() -> None:
    cases: list[tuple[Any, Any, str]] = [
        (np.array([1, 2], "u1"), 0.5, "i8"),
        (np.array([True]), np.float64(0.5), "i8"),
        (np.array([2**63], "u8"), np.float64(0.5), "f8"),
        (np.uint8(200), None, "i8"),
        (np.array([0.5], "f2"), np.float64(0.5), "f8"),
        (np.array([0.5], "f4"), np.complex128(0.5), "f8"),
    ]
    for constant, value, kind in cases:
        assert wide(constant, value).dtype == kind
        assert np.all(wide(constant, value) == constant)
    kept: list[Any] = [np.array([1, 2]), np.ones(2), np.float32(0.5), "word", None, 3, True, [np.uint8(3)]]
    for constant in kept:
        assert wide(constant, np.float32(0.5)) is constant
    assert wide_entries(np.array([1], "u1"), np.ones(1, "f4")).dtype == "f4"
    assert wide_entries(np.array([1], "i4"), np.ones(1, "f4")).dtype == "i8"
