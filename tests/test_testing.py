"""Testing: does `taylor_rate` tell right gradients from wrong ones?"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import autograd.numpy as np
import numpy as onp
import pytest

import dagad
from dagad.extend import explicit
from dagad.testing import taylor_rate

X = onp.random.default_rng(5).standard_normal((17, 3))
THETA = onp.array([0.4, -0.2, 0.9])


class Params(NamedTuple):
    slope: Any
    name: str
    rest: Any


def test_has_a_right_gradient_the_rate_two(scheduler: Any) -> None:
    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: np.sum(np.exp(rows @ t)), X, theta, grainsize=5, scheduler=scheduler)

    assert taylor_rate(loss, THETA) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("wrong", [0.9, 1.1, -1.0, 0.0])
def test_has_a_wrong_gradient_the_rate_one(wrong: float) -> None:
    @explicit
    def chunk(rows: Any, theta: Any) -> Any:
        grown = onp.exp(rows @ theta)
        return grown.sum(), lambda seed: (None, wrong * seed * (rows.T @ grown))

    assert taylor_rate(partial(dagad.reduce_sum, chunk, X), THETA) < 1.2


def test_is_one_wrong_entry_enough() -> None:
    @explicit
    def chunk(rows: Any, theta: Any) -> Any:
        grown = onp.exp(rows @ theta)
        return grown.sum(), lambda seed: (None, seed * (rows.T @ grown) + onp.array([0.0, 0.0, 1.0]))

    assert taylor_rate(partial(dagad.reduce_sum, chunk, X), THETA) < 1.2


def test_are_all_arguments_and_leaves_moved() -> None:
    def loss(params: Any, factor: Any, count: int) -> Any:
        return factor**2 * np.sum(np.exp(params.slope)) * np.sin(params.rest["a"][0]) * count

    params = Params(THETA, "name", {"a": [0.5, 3], "b": None})
    assert taylor_rate(loss, params, 1.5, 2) == pytest.approx(2.0, abs=0.1)

    @explicit
    def ignores_its_rows(rows: Any, theta: Any) -> Any:
        return onp.sum(onp.exp(rows) * theta), lambda seed: (0 * rows, seed * onp.exp(rows).sum())

    assert taylor_rate(partial(dagad.reduce_sum, ignores_its_rows), X, 0.5) < 1.2


def test_may_leaves_be_complex() -> None:
    def loss(z: Any) -> Any:
        return np.sum(np.abs(np.exp(z)) ** 2)

    def other(z: Any) -> Any:
        return np.sum(np.real(z) ** 3 * np.imag(z) ** 2)

    for fun in (loss, other):
        assert taylor_rate(fun, onp.array([0.3 + 0.7j, -0.2 + 0.1j])) == pytest.approx(2.0, abs=0.1)


def test_has_a_linear_function_no_rate() -> None:
    rate = taylor_rate(lambda x: 2.0 * x, 0.5)
    assert math.isnan(rate) or rate < 2.1  # nothing but rounding remains


def test_depends_the_rate_on_the_seed_alone() -> None:
    def loss(x: Any) -> Any:
        return np.sum(np.exp(x) * x[0])

    assert taylor_rate(loss, THETA, seed=3) == taylor_rate(loss, THETA, seed=3)
    assert taylor_rate(loss, THETA, seed=3) != taylor_rate(loss, THETA, seed=4)


def test_is_an_argument_without_floats_no_argument() -> None:
    with pytest.raises(dagad.DagadError):
        taylor_rate(lambda n: 1.0 * n, 3)
