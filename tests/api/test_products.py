"""Hessian-vector products of what is no single number: are they right, and do chunks run no more than twice?"""

from __future__ import annotations

from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest

import dagad
from dagad.extend import Keep, Preaccumulate, Recompute

ROWS = np.linspace(0.1, 2.0, 24).reshape(12, 2)
THETA, DIRECTION = np.array([0.3, -0.7]), np.array([1.0, 0.5])


def sums(rows: Any, t: Any) -> Any:
    return {"total": anp.sum(anp.sin(rows * t), axis=0), "rows": len(rows), "exp": anp.sum(anp.exp(rows @ t))}


def item(row: Any, t: Any) -> Any:
    return anp.sin(row * t)


def ragged(row: Any, t: Any) -> Any:
    return anp.sin(row * t)[: 1 + (row[0] > 1.0)]


def wave(rows: Any, t: Any) -> Any:
    return anp.sum(anp.exp(1j * (rows @ t)) * rows.T, axis=1)


def of_sums(x: Any, t: Any, **options: Any) -> Any:
    found = dagad.reduce_sum(counted(sums), x, t, grainsize=3, **options)
    return anp.sum(found["total"] ** 3) * found["exp"] + found["rows"]


def of_items(x: Any, t: Any, **options: Any) -> Any:
    return anp.sum(dagad.map(counted(item), x, t, grainsize=3, **options) ** 3)


def of_ragged(x: Any, t: Any, **options: Any) -> Any:
    return anp.sum(dagad.map_rect(counted(ragged), x, t, grainsize=3, **options) ** 3)


def of_waves(x: Any, t: Any, **options: Any) -> Any:
    found = dagad.reduce_sum(counted(wave), x, t, grainsize=3, **options)
    return anp.sum(anp.real(found * anp.conj(found)))


PROGRAMS = {"sums": (of_sums, 4), "items": (of_items, 12), "ragged": (of_ragged, 12), "complex": (of_waves, 4)}
RUNS: list[str] = []


class counted:
    """A function that notes that it ran, on threads of this process."""

    def __init__(self, fun: Any) -> None:
        self.fun = fun

    def __call__(self, *args: Any) -> Any:
        RUNS.append(self.fun.__name__)
        return self.fun(*args)


def plain(name: str) -> Any:
    """Return the same function of rows and theta without dagad."""

    def of(x: Any, t: Any) -> Any:
        if name == "sums":
            found = sums(x, t)
            return anp.sum(found["total"] ** 3) * found["exp"] + found["rows"]
        if name == "complex":
            whole = wave(x, t)
            return anp.sum(anp.real(whole * anp.conj(whole)))
        if name == "items":
            return anp.sum(item(x, t) ** 3)
        kept = 1.0 * np.stack([np.ones(len(ROWS)), ROWS[:, 0] > 1.0], axis=1)
        return anp.sum(kept * item(x, t) ** 3)

    return of


def expected(name: str, dx: Any, dt: Any) -> tuple[Any, Any]:
    """Return the Hessian at rows and theta, times a direction."""
    flat = np.concatenate([ROWS.ravel(), THETA])

    def whole(z: Any) -> Any:
        return plain(name)(z[:-2].reshape(ROWS.shape), z[-2:])

    product = autograd.hessian(whole)(flat) @ np.concatenate([dx.ravel(), dt])
    return product[:-2].reshape(ROWS.shape), product[-2:]


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("policy", [Keep(), Recompute(), Preaccumulate()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_product_of_what_is_no_number_is_right_and_runs_each_chunk_twice(
    name: str, scheduler: str, policy: Any
) -> None:
    program, n_runs = PROGRAMS[name]

    def fun(x: Any, t: Any) -> Any:
        return program(x, t, scheduler=scheduler, policy=policy)

    dx = np.cos(ROWS)
    for tangents in ((dx, DIRECTION), (0 * dx, DIRECTION), (dx, 0 * DIRECTION)):
        dagad.hvp(fun, (ROWS, THETA), tangents)  # by now nobody looks whether chunks add up
        RUNS.clear()
        found = dagad.hvp(fun, (ROWS, THETA), tangents)
        assert len(RUNS) == 2 * n_runs  # for the value, and for the pullback, whose seeds the rest of the program makes
        for part, right in zip(found, expected(name, *tangents), strict=True):
            np.testing.assert_allclose(part, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", PROGRAMS)
def test_only_theta_may_move(name: str) -> None:
    program, _ = PROGRAMS[name]
    product = dagad.hvp(lambda t: program(ROWS, t, scheduler="sync"), THETA, DIRECTION)
    again = dagad.hvp(lambda t: program(ROWS, t, scheduler="sync"), THETA, DIRECTION)
    np.testing.assert_allclose(product, expected(name, 0 * ROWS, DIRECTION)[1], rtol=1e-10)
    assert product.tobytes() == again.tobytes()


def test_the_value_and_the_gradient_that_come_with_a_product_are_those_without_it() -> None:
    def fun(t: Any) -> Any:
        return of_sums(ROWS, t, scheduler="sync")

    (value, gradient), (slope, product) = dagad.jvp(dagad.value_and_grad(fun), (THETA,), (DIRECTION,))
    alone, plainly = dagad.value_and_grad(fun)(THETA)
    assert value == alone
    np.testing.assert_allclose(gradient, plainly, rtol=1e-12)
    np.testing.assert_allclose(slope, plainly @ DIRECTION, rtol=1e-12)
    np.testing.assert_allclose(product, dagad.hvp(fun, THETA, DIRECTION), rtol=1e-12)


def test_functions_of_one_code_that_give_a_number_or_several_have_bits_of_their_own() -> None:
    def made(axis: Any) -> Any:
        return lambda rows, t: np.sum(np.exp(rows * t), axis=axis)

    def product(axis: Any) -> Any:
        f = made(axis)
        return dagad.hvp(
            lambda t: anp.sum(dagad.reduce_sum(f, ROWS, t, grainsize=3, scheduler="sync")), THETA, DIRECTION
        )

    numbers, several = product(None), product(0)
    assert product(None).tobytes() == numbers.tobytes()
    assert product(0).tobytes() == several.tobytes()
    np.testing.assert_allclose(numbers, several, rtol=1e-12)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_gradient_of_a_product_is_that_of_plain_autograd(name: str) -> None:
    program, _ = PROGRAMS[name]

    def curvature(t: Any) -> Any:
        return anp.sum(dagad.hvp(lambda s: program(ROWS, s, scheduler="sync"), t, DIRECTION) ** 2)

    def plainly(t: Any) -> Any:
        hessian = autograd.hessian(lambda s: plain(name)(ROWS, s))
        return anp.sum(anp.dot(hessian(t), DIRECTION) ** 2)

    np.testing.assert_allclose(dagad.grad(curvature)(THETA), autograd.grad(plainly)(THETA), rtol=1e-8)


def steep(rows: Any, a: Any, b: Any) -> Any:
    return {"u": anp.sum(rows) * a**1.5 * b, "n": len(rows)}


def steep_item(row: Any, b: Any) -> Any:
    return row[0] ** 1.5 * b


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_a_leaf_that_does_not_move_has_no_part_in_a_product_where_its_second_derivative_is_infinite(
    scheduler: str,
) -> None:
    a, b = np.zeros(2), np.ones(2)

    def fun(a: Any, b: Any) -> Any:
        return anp.sum(dagad.reduce_sum(steep, ROWS, a, b, grainsize=3, scheduler=scheduler)["u"])

    def of_items(x: Any, b: Any) -> Any:
        return anp.sum(dagad.map(steep_item, x, b, grainsize=3, scheduler=scheduler))

    for found in (
        dagad.hvp(fun, (a, b), (0 * a, b)),
        dagad.jvp(lambda b: dagad.grad(fun, (0, 1))(a, b), (b,), (b,))[1],
    ):
        np.testing.assert_array_equal(found, np.zeros((2, 2)))
    rows = np.where(np.arange(12)[:, None] < 3, 0.0, ROWS)  # of one chunk, which does not move
    moving = dagad.hvp(of_items, (rows, 2.0), (1.0 * (rows > 0), 1.0))[0]
    np.testing.assert_allclose(moving[:3], 0.0)
    np.testing.assert_allclose(moving[3:, 0], 1.5 * rows[3:, 0] ** 0.5 + 1.5 * rows[3:, 0] ** -0.5, rtol=1e-12)
