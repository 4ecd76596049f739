"""Modes: are `jvp`, `hvp` and gradients of gradients, to any order, those of the uncut function?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest
from hypothesis import given, settings, strategies as st

import dagad
from dagad.testing import taylor_rate
from support.cut_and_whole_programs import DTHETA, DX, PROGRAMS, THETA, WHOLE, X, bits, close, cut_on, expected_hvp
from support.examples import examples

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")


@pytest.mark.sampled(15)
@pytest.mark.parametrize("name", PROGRAMS)
def test_value_tangent_and_hvp_are_those_of_the_uncut_function(name: str, scheduler: Any) -> None:
    cut, whole = partial(PROGRAMS[name], cut_on(scheduler)), partial(PROGRAMS[name], WHOLE)
    value, tangent = dagad.jvp(cut, (X, THETA), (DX, DTHETA))
    of_x, of_theta = (autograd.grad(whole, place)(X, THETA) for place in (0, 1))
    assert close(value, whole(X, THETA))
    assert close(tangent, onp.sum(of_x * DX) + onp.sum(of_theta * DTHETA))
    products = dagad.hvp(cut, (X, THETA), (DX, DTHETA))
    for product, expected in zip(products, expected_hvp(whole, (X, THETA), (DX, DTHETA)), strict=True):
        assert close(product, expected, 1e-10)
    if scheduler != "sync":
        again = partial(PROGRAMS[name], cut_on("sync"))
        assert bits(value, tangent) == bits(*dagad.jvp(again, (X, THETA), (DX, DTHETA)))
        assert bits(*products) == bits(*dagad.hvp(again, (X, THETA), (DX, DTHETA)))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("grainsize", [1, 4, 50])
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_ways_to_second_order_agree(name: str, grainsize: int) -> None:
    fun = partial(PROGRAMS[name], cut_on("sync", grainsize), X)
    whole = partial(PROGRAMS[name], WHOLE, X)
    expected = autograd.hessian_vector_product(whole)(THETA, DTHETA)
    ways: dict[str, Callable[[], Any]] = {
        "forward over reverse": lambda: dagad.hvp(fun, THETA, DTHETA),
        "reverse over forward": lambda: dagad.grad(lambda t: dagad.jvp(fun, t, DTHETA)[1])(THETA),
        "reverse over reverse": lambda: dagad.grad(lambda t: np.sum(dagad.grad(fun)(t) * DTHETA))(THETA),
        "a pullback of the gradient": lambda: dagad.vjp(dagad.grad(fun), THETA)[1](DTHETA)[0],
        "the user's own": lambda: autograd.hessian_vector_product(fun)(THETA, DTHETA),
        "the user's own forward mode": lambda: autograd.make_jvp(dagad.grad(fun))(THETA)(DTHETA)[1],
        "over the user's own": lambda: dagad.jvp(autograd.grad(fun), (THETA,), (DTHETA,))[1],
    }
    for way, product in ways.items():
        assert close(product(), expected, 1e-10), way
    forward = dagad.jvp(lambda t: dagad.jvp(fun, t, DTHETA)[1], THETA, THETA)[1]
    assert close(forward, onp.sum(expected * THETA), 1e-10)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name", ["a sum", "several", "a map", "ragged jobs", "combined", "nested", "a compensated sum"]
)
def test_a_third_derivative_is_that_of_the_uncut_function(name: str) -> None:
    fun, whole = partial(PROGRAMS[name], cut_on("sync", 5), X), partial(PROGRAMS[name], WHOLE, X)

    def third(grad: Any, f: Any) -> Any:
        """Differentiate along DTHETA thrice, then in theta."""
        for _ in range(2):
            f = partial(lambda f, t: np.sum(grad(f)(t) * DTHETA), f)
        return grad(f)(THETA)

    expected = third(autograd.grad, whole)
    assert close(third(dagad.grad, fun), expected, 1e-9)
    slope = partial(dagad.jvp, fun, tangents=DTHETA)
    mixed = dagad.hvp(lambda t: slope(t)[1], THETA, DTHETA)
    assert close(mixed, expected, 1e-9)


def test_a_third_derivative_is_right_on_every_scheduler(scheduler: Any) -> None:
    def cubes(t: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: np.sum(rows * t**3), X[:, 0], t, grainsize=4, scheduler=scheduler)

    third = dagad.grad(dagad.grad(dagad.grad(cubes)))(2.0)
    assert close(third, 6.0 * onp.sum(X[:, 0]))


@pytest.mark.sampled(10)
def test_the_taylor_rate_of_a_tangent_is_two(scheduler: Any) -> None:
    def slope(theta: Any) -> Any:
        return dagad.jvp(partial(PROGRAMS["a sum"], cut_on(scheduler, 4), X), theta, DTHETA)[1]

    assert taylor_rate(slope, THETA) == pytest.approx(2.0, abs=0.1)


ROAD = settings(max_examples=examples(25), deadline=None, derandomize=True)


@ROAD
@given(st.integers(1, 9), st.integers(1, 10), st.sampled_from(sorted(PROGRAMS)), st.integers(0, 2**32 - 1))
def test_forward_and_reverse_agree_on_any_rows(n_rows: int, grainsize: int, name: str, seed: int) -> None:
    if name in ("ragged jobs", "several"):
        n_rows += 5
    rng = onp.random.default_rng(seed)
    x, dx, theta, dtheta = (rng.standard_normal(shape) for shape in ((n_rows, 3), (n_rows, 3), 3, 3))
    fun = partial(PROGRAMS[name], cut_on("sync", grainsize))
    tangent = dagad.jvp(fun, (x, theta), (dx, dtheta))[1]
    of_x, of_theta = dagad.grad(fun, (0, 1))(x, theta)
    scale = onp.sum(onp.abs(of_x * dx)) + onp.sum(onp.abs(of_theta * dtheta))
    assert abs(tangent - onp.sum(of_x * dx) - onp.sum(of_theta * dtheta)) <= 1e-12 * max(scale, 1e-300)
