"""Whole numbers and truths that functions make of what is being differentiated: constants, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad

X = np.array([0.3, 1.7, -0.4, 2.5, 0.9])
V = np.cos(np.arange(5.0)) + 0.1

CONSTANT: dict[str, Callable[[Any], Any]] = {
    "signbit": lambda x: np.where(np.signbit(x), -1.0, 2.0),
    "spacing": lambda x: np.spacing(x) * 1e16,
    "frexp": lambda x: np.frexp(x)[1] + np.array([1.0, 2.0, 3.0, 4.0, 5.0])[abs(np.frexp(x)[1])],
    "histogram": lambda x: np.histogram(x, bins=[-1.0, 0.0, 1.0, 2.0, 3.0])[0].sum() + np.zeros(5),
    "histogram by keyword": lambda x: np.histogram(np.arange(3.0), bins=2)[0][0] * np.ones(5) + 0 * x,
    "tril_indices_from": lambda x: np.ones((5, 5))[np.tril_indices_from(np.outer(x, x))][:5],
}


def difference(fun: Callable[[Any], Any], step: float = 1e-5) -> Any:
    ahead, behind = (fun(X + k * step * V) - fun(X - k * step * V) for k in (1, 2))
    return (8 * ahead - behind) / (12 * step)


def assert_right(loss: Callable[[Any], Any]) -> None:
    value, gradient = dagad.value_and_grad(loss)(X)
    assert value == loss(X)
    assert gradient @ V == pytest.approx(difference(loss), rel=1e-8, abs=1e-9)
    assert dagad.jvp(loss, X, V)[1] == pytest.approx(gradient @ V, rel=1e-12)
    np.testing.assert_allclose(dagad.hvp(loss, X, V), difference(dagad.grad(loss)), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("case", CONSTANT)
def test_a_factor_that_is_constant_between_jumps_has_no_slope(case: str) -> None:
    factor = CONSTANT[case]
    assert_right(lambda x: np.sum(factor(x) * x**2))
    np.testing.assert_array_equal(dagad.grad(lambda x: np.sum(x**2 * factor(x)))(X), 2 * X * factor(X))


HISTOGRAMS: dict[str, Callable[[Any], Any]] = {
    "counts": lambda x: np.histogram(x, bins=3)[0] * x[:3],
    "edges between extremes": lambda x: np.histogram(x, bins=3)[1] ** 2,
    "edges by a rule": lambda x: np.histogram(x, bins="sturges")[1] ** 2,
    "edges of a range": lambda x: np.histogram(x, bins=3, range=(-1.0, 3.0))[1] * x[0],
    "edges of one number": lambda x: np.histogram(x[:1], bins=2)[1] ** 2,
    "edges alone": lambda x: np.histogram_bin_edges(x, bins=4) ** 2,
    "density": lambda x: np.histogram(x, bins=3, density=True)[0] ** 2,
    "density between fixed edges": lambda x: np.histogram(x, bins=[-1.0, 0.0, 3.0], density=True)[0] * x[:2],
    "weights": lambda x: np.histogram(np.arange(5.0), bins=3, weights=x**2)[0],
    "weights of traced numbers": lambda x: np.histogram(x, bins=3, weights=x**2)[0] * np.histogram(x, 3)[1][1:],
    "weights, density": lambda x: np.histogram(x, bins=3, density=True, weights=2.0 + x**2)[0] ** 2,
    "traced edges": lambda x: np.histogram([0.1, 0.5], bins=x[[2, 0, 1]])[1] ** 2,
}


@pytest.mark.parametrize("case", HISTOGRAMS)
def test_a_histogram_has_constant_counts_and_edges_that_move(case: str) -> None:
    function = HISTOGRAMS[case]
    assert_right(lambda x: np.sum(np.cos(np.arange(len(function(x)))) * function(x)))


def test_counts_of_a_histogram_are_an_ordinary_array() -> None:
    seen = []

    def loss(x: Any) -> Any:
        counts, edges = np.histogram(x, bins=2)
        seen.append(counts)
        return np.sum(edges) + sum(range(counts[0]))

    assert dagad.grad(loss)(X).shape == X.shape
    assert type(seen[0]) is np.ndarray
    np.testing.assert_array_equal(seen[0], np.histogram(X, bins=2)[0])


def test_the_path_of_an_einsum_is_found_for_traced_arrays() -> None:
    def loss(x: Any) -> Any:
        path = np.einsum_path("ij,jk,k", np.outer(x, x), np.outer(x, x), x)[0]
        return np.sum(np.einsum("ij,jk,k", np.outer(x, x), np.outer(x, x), x, optimize=path))

    assert_right(loss)


def test_a_size_at_infinity_has_the_slope_of_its_sign() -> None:
    at = np.array([np.inf, -np.inf, 0.0, -0.0, 2.0, -3.0])
    expected = np.array([1.0, -1.0, 0.0, 0.0, 1.0, -1.0])
    for function in (np.abs, np.absolute, np.fabs, abs, lambda x: dagad.reduce_sum(lambda r, x: abs(x), V[:1], x)):
        np.testing.assert_array_equal(dagad.grad(lambda x, function=function: np.sum(function(x)))(at), expected)
        np.testing.assert_array_equal(dagad.jvp(function, at, np.ones(6))[1], expected)
        second = dagad.hvp(lambda x, function=function: np.sum(function(x)), at, np.ones(6))
        np.testing.assert_array_equal(second, np.zeros(6))
    z = np.array([3.0, 4.0])
    np.testing.assert_allclose(dagad.grad(lambda z: np.abs(z[0] + 1j * z[1]))(z), [0.6, 0.8])
