"""Incomplete gamma and beta functions in their shapes: in tails, for small and large shapes, of second order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

import dagad

# Slopes in a shape, by the integrals and sums that define them, in 60 digits: function, which argument, and slope.
SLOPES: list[tuple[str, int, tuple[float, ...], float]] = [
    ("gammainc", 0, (0.001, 2.0), -0.04905334583936488),
    ("gammainc", 0, (0.3, 1e-08), -0.08096140631762946),
    ("gammainc", 0, (2.5, 40.0), -2.526786070482876e-15),
    ("gammainc", 0, (10.0, 0.5), -5.21308870572998e-10),
    ("gammainc", 0, (77.0, 77.0), -0.04551294253866326),
    ("gammainc", 0, (500.0, 250.0), -2.831217679097603e-44),
    ("gammainc", 0, (5000.0, 5100.0), -0.002082263752376242),
    ("betainc", 0, (0.01, 0.02, 0.5), -22.22404759522624),
    ("betainc", 1, (0.01, 0.02, 0.5), 11.11720463769259),
    ("betainc", 0, (3.3, 2.2, 1e-05), -1.90676767589428e-15),
    ("betainc", 1, (3.3, 2.2, 1e-05), 1.809769968392371e-16),
    ("betainc", 0, (3.3, 2.2, 0.99999), -4.637173337546678e-11),
    ("betainc", 1, (3.3, 2.2, 0.99999), 8.771731568106388e-10),
    ("betainc", 0, (40.0, 900.0, 0.01), -9.542945923530295e-14),
    ("betainc", 1, (40.0, 900.0, 0.01), 2.195346219302726e-15),
    ("betainc", 0, (700.0, 55.0, 0.97), -1.38871384100702e-10),
    ("betainc", 1, (700.0, 55.0, 0.97), 2.734190102905396e-9),
    ("stdtr", 0, (0.3, -30.0), -0.5053527603335148),
    ("stdtr", 0, (2.5, -1.6), -0.02076206023378235),
    ("stdtr", 0, (2.5, -1.2), -0.01782051229680823),
    ("stdtr", 0, (7.0, -0.3), -0.0006067932222082209),
    ("stdtr", 0, (400.0, -4.0), -1.609696007862061e-8),
    ("stdtr", 0, (7.0, -1e-09), -1.944954659008771e-12),
]


def slope(name: str, place: int, args: tuple[float, ...]) -> Any:
    return dagad.grad(lambda t: getattr(scipy.special, name)(*args[:place], t, *args[place + 1 :]))(args[place])


@pytest.mark.parametrize(("name", "place", "args", "expected"), SLOPES)
def test_slopes_in_shapes_have_their_digits_where_little_is_below_or_above(
    name: str, place: int, args: tuple[float, ...], expected: float
) -> None:
    assert slope(name, place, args) == pytest.approx(expected, rel=1e-11)


def test_complements_and_inverses_move_as_the_functions_that_they_are_of() -> None:
    for name, args in (("gammainc", (2.5, 4.0)), ("betainc", (2.5, 0.7, 0.3)), ("fdtr", (3.0, 5.0, 1.5))):
        whole = {"gammainc": "gammaincc", "betainc": "betaincc", "fdtr": "fdtrc"}[name]
        for place in range(len(args)):
            assert slope(whole, place, args) == -slope(name, place, args)
    back = dagad.grad(lambda a: scipy.special.gammaincinv(a, scipy.special.gammainc(a, 1.7)))(2.5)
    assert back == pytest.approx(0.0, abs=1e-14)
    below = dagad.grad(lambda a: scipy.special.betaincinv(a, 1.3, scipy.special.betainc(a, 1.3, 0.2)))(2.5)
    assert below == pytest.approx(0.0, abs=1e-14)
    freedom = dagad.hessian(lambda v: scipy.special.stdtrit(v, scipy.special.stdtr(v, 1.2)))(3.5)
    assert freedom == pytest.approx(0.0, abs=1e-12)


def test_the_density_in_the_middle_moves_with_the_degrees_of_freedom() -> None:
    """There, the square root of a square would have no second derivative."""

    def density(v: Any) -> Any:
        return scipy.stats.t.pdf(0.0, v)

    def slope_in_middle(v: Any) -> Any:
        return dagad.grad(lambda t: scipy.special.stdtr(v, t))(0.0)

    mixed = dagad.grad(lambda t: dagad.grad(lambda v: scipy.special.stdtr(v, t))(2.5))(0.0)
    assert mixed == pytest.approx(dagad.grad(density)(2.5), rel=1e-13)
    assert mixed == pytest.approx(dagad.grad(slope_in_middle)(2.5), rel=1e-13)


def test_a_shape_that_would_take_thousands_of_terms_is_refused_with_what_to_write() -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"`scipy\.special\.gammaincc?` .*normal distribution"):
        slope("gammainc", 0, (1e9, 1e9))


def test_outside_of_their_domain_functions_do_not_move_and_are_nan_where_scipy_says_so() -> None:
    assert slope("gammainc", 0, (2.5, 0.0)) == 0.0
    assert slope("gammainc", 0, (2.5, np.inf)) == 0.0
    assert slope("betainc", 0, (2.5, 1.0, 1.0)) == 0.0
    assert np.isnan(slope("betainc", 1, (2.5, -1.0, 0.5)))


def censored(rows: Any, t: Any) -> Any:
    """A likelihood of survival times, of which some are only known to be longer."""
    time, seen = rows
    shape, scale = np.exp(t[0]), np.exp(t[1])
    dead = scipy.stats.gamma.logpdf(time, shape, scale=scale)
    return np.sum(np.where(seen, dead, scipy.stats.gamma.logsf(time, shape, scale=scale)))


def test_a_censored_likelihood_has_gradient_and_hessian_on_every_scheduler(scheduler: Any) -> None:
    rng = np.random.default_rng(3)
    rows, at = (rng.gamma(2.0, 1.5, 40), rng.uniform(size=40) < 0.7), np.array([0.5, 0.3])

    def loss(t: Any, where: Any = scheduler) -> Any:
        return dagad.reduce_sum(censored, rows, t, grainsize=9, scheduler=where)

    found, here = dagad.value_and_grad(loss)(at), dagad.value_and_grad(lambda t: loss(t, "sync"))(at)
    assert found[0] == here[0]
    np.testing.assert_array_equal(found[1], here[1])
    step = 1e-4 * np.eye(2)
    ends = [(8 * (loss(at + h) - loss(at - h)) - (loss(at + 2 * h) - loss(at - 2 * h))) / 12e-4 for h in step]
    np.testing.assert_allclose(found[1], ends, rtol=1e-8)
    curved = [(dagad.grad(loss)(at + h) - dagad.grad(loss)(at - h)) / 2e-4 for h in step]
    np.testing.assert_allclose(dagad.hessian(loss)(at), curved, rtol=1e-6)
