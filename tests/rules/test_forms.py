"""Functions in forms that autograd's rules don't know: other lengths, orders, axes, types, and numbers of Python's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.special as sp

import dagad

RNG = np.random.default_rng(3)
X, MATRIX = RNG.uniform(0.3, 0.9, 3), RNG.uniform(0.3, 0.9, (3, 3))
ALONG = np.array([0.7, -0.4, 1.1])


def weighed(found: Any) -> Any:
    parts = found if isinstance(found, list | tuple) else [found]
    return sum(np.sum((np.cos(np.arange(np.size(part))).reshape(np.shape(part)) + 0.3) * part) for part in parts)


def assert_right(fun: Callable[[Any], Any], at: Any = X, along: Any = ALONG) -> None:
    """Assert that the value has numpy's bits, and that both modes agree with differences along a direction."""

    def loss(x: Any) -> Any:
        return weighed(fun(x))

    steps = [loss(at + k * 1e-3 * along) for k in (-2, -1, 1, 2)]
    slope = (8 * (steps[2] - steps[1]) - (steps[3] - steps[0])) / 12e-3
    value, gradient = dagad.value_and_grad(loss)(at)
    assert value == loss(at)
    assert np.sum(gradient * along) == pytest.approx(slope, rel=1e-7, abs=1e-9)
    assert dagad.jvp(loss, at, along)[1] == pytest.approx(np.sum(gradient * along), rel=1e-12, abs=1e-12)


SIDE: Any = (np.ones((3, 1)), [0, 1])

# A rule that forgets what was broadcast is caught where its cotangent comes to an argument of another shape. Here the
# way there is a product, which takes it.
BROADCAST: dict[str, Callable[[Any], Any]] = {
    "jv": lambda x: sp.jv([0, 1, 2], np.linalg.norm(x)),
    "iv": lambda x: sp.iv([0, 1, 2], np.linalg.norm(x)),
    "yn": lambda x: sp.yn([0, 1, 2], np.linalg.norm(x)),
    "polygamma": lambda x: sp.polygamma([1, 2, 3], np.linalg.norm(x)),
    "einsum": lambda x: np.einsum("ij,ij->i", np.ones((3, 1)), np.cumsum(np.exp(np.outer(x, ALONG)), axis=1)),
    "einsum of numbers": lambda x: np.einsum(*SIDE, np.cumsum(np.exp(np.outer(x, ALONG)), axis=1), [0, 1], [0]),
    "tril": lambda x: np.tril(MATRIX @ x),
}


@pytest.mark.parametrize("name", BROADCAST)
def test_a_broadcast_argument_has_a_cotangent_of_its_own_shape(name: str) -> None:
    assert_right(BROADCAST[name])


@pytest.mark.filterwarnings("ignore:floating point number truncated", "ignore:non-integer arg n")
def test_a_function_of_whole_orders_has_the_slope_of_the_order_that_scipy_takes() -> None:
    for fun in (sp.kn, sp.yn, sp.expn):
        for order in (0.0, 0.5, 1.9, 2.0, 2.7):
            assert_right(partial(fun, order))
    for fun in (sp.bdtr, sp.bdtrc):
        assert_right(partial(fun, 1.6, 4.0))


def test_exponential_integrals_have_second_derivatives_from_order_zero_on() -> None:
    for order in (0, 1, [0, 1, 4]):

        def slope(x: Any, order: Any = order) -> Any:
            return dagad.grad(lambda x: np.sum(sp.expn(order, x)))(x)

        expected = (slope(X + 1e-5) - slope(X - 1e-5)) / 2e-5
        found = dagad.hvp(lambda x, order=order: np.sum(sp.expn(order, x)), X, np.ones(3))
        np.testing.assert_allclose(found, expected, rtol=1e-8)


def transformed(n: int, x: Any) -> Any:
    return [abs(np.fft.rfft(x, n=n)), abs(np.fft.rfft(np.outer(x, x), n=n, axis=0, norm="ortho"))]


def test_a_transform_of_real_numbers_has_its_slope_at_any_length_given_by_name() -> None:
    for n in (1, 2, 3, 4, 6, 8, 9):
        assert_right(partial(transformed, n))
        assert_right(partial(np.fft.irfft, n=n))


def spread(fun: Callable[..., Any], dtype: Any, x: Any) -> Any:
    return np.real(fun(x * (1.0 + 2j * x), dtype=dtype))


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_the_derivative_of_a_variance_of_complex_numbers_follows_its_dtype() -> None:
    for dtype in (float, complex):
        for fun in (np.var, np.std):
            assert_right(partial(spread, fun, dtype))
            assert dagad.vjp(partial(fun, dtype=dtype), X * 1j)[0].dtype == dtype


NUMBERS: list[Callable[[Any], Any]] = [
    lambda t: np.cumsum(t),
    lambda t: np.multiply.outer(t, X),
    lambda t: np.subtract.outer(X, t),
    lambda t: np.piecewise(t, [t > 0.2], [np.exp, np.cos]),
    lambda t: np.linalg.norm(t),
    lambda t: np.frexp(t)[0],
    lambda t: sp.softmax(t),
    lambda t: sp.log_softmax(t),
]


def test_a_function_of_arrays_takes_a_number_of_pythons() -> None:
    for fun in NUMBERS:
        assert_right(fun, 0.6, 1.0)
