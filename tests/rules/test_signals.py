"""Filters and convolutions of any shape, from any state, along any axis: by complex steps, which round nothing off."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.signal

import dagad
from support.compiled_quickly import compiled_quickly as compiled_quickly

ENGINES = [None, pytest.param("jax", marks=pytest.mark.needs("jax"))]
RNG = np.random.default_rng(8)
SIGNAL = RNG.normal(size=40)


def weighed(out: Any) -> Any:
    parts = out if isinstance(out, tuple) else (out,)
    return sum(np.sum(part * np.cos(np.arange(np.size(part))).reshape(np.shape(part))) for part in parts)


def slopes(fun: Any, at: Any, engine: str | None = None) -> Any:
    def chunk(rows: Any, t: Any) -> Any:
        return weighed(fun(t)) * np.sum(rows)

    return dagad.grad(lambda t: dagad.reduce_sum(chunk, np.ones(1), t, grainsize=1, scheduler="sync", engine=engine))(
        at
    )


def by_steps(fun: Any, at: Any) -> Any:
    """Return the gradient by steps in imaginary direction: of what is analytic, exact to rounding."""
    found = np.zeros(at.size)
    for index in range(at.size):
        step = np.zeros(at.size, complex)
        step[index] = 1e-30j
        found[index] = np.imag(weighed(fun(at + step.reshape(at.shape)))) / 1e-30
    return found.reshape(at.shape)


def of_a_quadratic(fun: Any, at: Any) -> Any:
    """Return the gradient of a quadratic function by differences, of any width."""
    return [(weighed(fun(at + unit)) - weighed(fun(at - unit))) / 2.0 for unit in np.eye(at.size)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("n_b", "n_a", "n"), [(3, 3, 20), (1, 3, 20), (4, 2, 20), (3, 1, 9), (4, 3, 2), (2, 5, 1)])
def test_a_filter_has_slopes_in_its_coefficients_its_state_and_its_input(
    n_b: int, n_a: int, n: int, engine: str | None
) -> None:
    count = max(n_a, n_b) - 1
    sizes = np.cumsum([n_b, n_a, n])
    at = RNG.normal(size=sizes[-1] + count) * 0.3
    at[n_b] = 1.7

    def filtered(t: Any) -> Any:
        b, a, x, zi = t[:n_b], t[n_b : sizes[1]], t[sizes[1] : sizes[2]], t[sizes[2] :]
        return (*scipy.signal.lfilter(b, a, x, zi=zi), scipy.signal.lfilter(b, a, x) * 0.5)

    np.testing.assert_allclose(slopes(filtered, at, engine), by_steps(filtered, at), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_filters_near_the_edge_of_stability_keep_their_digits(engine: str | None) -> None:
    x = RNG.normal(size=400)
    for b, a in (scipy.signal.butter(2, 0.02), ([0.01], [1.0, -1.98, 0.9805])):
        coefficients = np.concatenate([b, a])

        def filtered(t: Any, n: int = len(b)) -> Any:
            return scipy.signal.lfilter(t[:n], t[n:], x)

        found, right = slopes(filtered, coefficients, engine), by_steps(filtered, coefficients)
        np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-9 * abs(right).max())


@pytest.mark.parametrize("engine", ENGINES)
def test_filters_along_an_axis_have_the_second_derivatives_of_differences(engine: str | None) -> None:
    def chunk(rows: Any, t: Any) -> Any:
        found = scipy.signal.lfilter(t[:2], t[2:5], t[5:].reshape(3, 5, 2), axis=1)
        return np.sum(found**2 * np.cos(np.arange(30)).reshape(3, 5, 2)) * np.sum(rows)

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(chunk, np.ones(1), t, grainsize=1, scheduler="sync", engine=engine)

    at, along = RNG.normal(size=35) * 0.3, RNG.normal(size=35)
    at[2] = 1.5
    about = (dagad.grad(loss)(at + 1e-6 * along) - dagad.grad(loss)(at - 1e-6 * along)) / 2e-6
    np.testing.assert_allclose(dagad.hvp(loss, at, along), about, rtol=1e-6, atol=1e-7 * abs(about).max())


@pytest.mark.parametrize("engine", ENGINES)
def test_convolutions_of_every_mode_and_shape_have_the_slopes_of_differences(engine: str | None) -> None:
    shapes = [((7,), (4,)), ((3,), (6,)), ((4, 5), (2, 3)), ((2, 3), (4, 4)), ((3, 4, 2), (2, 2, 2))]
    names = ["convolve", "correlate", "fftconvolve", "oaconvolve"]
    for (first, second), mode in itertools.product(shapes[:: 2 if engine else 1], ("full", "same", "valid")):
        n = int(np.prod(first))
        at = RNG.normal(size=n + int(np.prod(second)))

        def every(t: Any, mode: str = mode, first: Any = first, second: Any = second, n: int = n) -> Any:
            a, b = t[:n].reshape(first), t[n:].reshape(second)
            return tuple(getattr(scipy.signal, name)(a, b, mode) for name in names)

        np.testing.assert_allclose(slopes(every, at, engine), of_a_quadratic(every, at), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("engine", ENGINES)
def test_convolutions_beyond_an_edge_have_the_slopes_of_differences(engine: str | None) -> None:
    at = RNG.normal(size=18)
    for mode, boundary in itertools.product(("full", "same", "valid"), ("fill", "wrap", "symm")):

        def both(t: Any, mode: str = mode, boundary: str = boundary) -> Any:
            a, b = t[:12].reshape(4, 3), t[12:].reshape(2, 3)
            one = scipy.signal.convolve2d(a, b, mode, boundary, 0.7)
            return one, scipy.signal.correlate2d(a, b, mode, boundary, 0.7)

        np.testing.assert_allclose(slopes(both, at, engine), of_a_quadratic(both, at), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("engine", ENGINES)
def test_linear_maps_of_a_signal_have_the_slopes_of_their_matrices(engine: str | None) -> None:
    b, a = scipy.signal.butter(3, 0.2)
    maps: list[Any] = [
        lambda x: scipy.signal.filtfilt(b, a, x),
        lambda x: scipy.signal.sosfilt(scipy.signal.butter(4, 0.2, output="sos"), x),
        lambda x: scipy.signal.detrend(x, bp=[7, 20]),
        lambda x: scipy.signal.savgol_filter(x, 9, 3, 1),
        lambda x: np.imag(scipy.signal.hilbert(x)),
    ]
    for fun in maps:
        right = np.array([weighed(fun(unit)) for unit in np.eye(40)])
        np.testing.assert_allclose(slopes(fun, SIGNAL, engine), right, rtol=1e-10, atol=1e-12 * abs(right).max())


@pytest.mark.parametrize("engine", ENGINES)
def test_forms_of_filters_without_a_derivative_are_refused_by_name(engine: str | None) -> None:
    with pytest.raises(
        dagad.NotDifferentiableError, match=r"`scipy\.signal\.filtfilt` was called with `method='gust'`"
    ):
        slopes(lambda x: scipy.signal.filtfilt([0.2, 0.3], [1.0, -0.5], x, method="gust"), SIGNAL, engine)
    with pytest.raises(dagad.NotDifferentiableError, match=r"scipy\.signal\.medfilt|ordinary array"):
        slopes(lambda x: scipy.signal.medfilt(x, 3), SIGNAL, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_options_and_shapes_that_scipy_refuses_are_refused(engine: str | None) -> None:
    cases: list[Any] = [
        lambda x: scipy.signal.convolve(x, SIGNAL, "none"),
        lambda x: scipy.signal.convolve(x.reshape(4, 10), np.ones((5, 3)), "valid"),
        lambda x: scipy.signal.convolve2d(x.reshape(4, 10), np.ones((2, 2)), boundary="none"),
        lambda x: scipy.signal.lfilter([1.0, 0.5], [1.0, 0.2], x, zi=np.zeros(2))[0],
        lambda x: scipy.signal.filtfilt([0.2, 0.3], [1.0, -0.5], x, padlen=40),
        lambda x: scipy.signal.savgol_filter(x, 41, 2),
        lambda x: scipy.signal.detrend(x, type="none"),
        lambda x: scipy.signal.sosfilt(np.ones((2, 5)), x),
    ]
    for fun in cases:
        with pytest.raises(ValueError):  # noqa: PT011  # whose words are scipy's in one engine
            slopes(fun, SIGNAL, engine)


ONLY_STATS = """
import sys
import scipy.stats
import dagad

def parts():
    return {name for name in sys.modules if name.startswith("scipy.") and name.count(".") == 1 and "._" not in name}

before = parts()
dagad.grad(lambda t: scipy.stats.norm.logpdf(t))(0.1)
assert "scipy.ndimage" in before
assert parts() == before, parts() - before
"""


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_gradient_imports_no_part_of_scipy_that_nobody_asked_for() -> None:
    subprocess.run([sys.executable, "-c", ONLY_STATS], check=True)
