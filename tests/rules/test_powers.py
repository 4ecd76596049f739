"""Powers: are their values and derivatives what autograd makes of them, in chunks and traced too?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest
from autograd import core, grad
from autograd.extend import defvjp

import dagad
from support.plain_tracers import DATA

RNG = onp.random.default_rng(3)


@pytest.mark.parametrize("exponent", [0.5, -1, 2, 3, 2.0, onp.float64(1.5), onp.array(2.0)], ids=repr)
def test_the_derivative_of_a_power_is_right(exponent: Any) -> None:
    x = onp.array([0.5, 1.5, 2.0])
    assert onp.allclose(
        grad(lambda x: np.sum(x**exponent))(x), onp.asarray(exponent) * x ** (onp.asarray(exponent) - 1.0)
    )
    assert (autograd.make_vjp(lambda x: x**exponent)(x)[1] == x**exponent).all()
    power = onp.asarray(exponent, float)
    assert grad(lambda p: np.sum(x**p))(power) == pytest.approx(onp.sum(x**power * onp.log(x)))
    assert onp.allclose(grad(lambda p: np.sum(2.0**p))(x), 2.0**x * onp.log(2.0))
    jvp = autograd.make_jvp(lambda x: np.sum(x**exponent))(x)(onp.ones(3))[1]
    assert float(jvp) == pytest.approx(onp.sum(power * x ** (power - 1)))


BEYOND = [
    (lambda x: x**2, 1e200),
    (lambda x: 2**x, 2000.0),
    (lambda x: x ** (1 / 3), -8.0),
    (lambda x: (-2) ** x, 0.5),
    (lambda x: (x + 0j) ** 2 + 0 * x, 1e200),
    (lambda x: x**0.5, -1.0),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::dagad.DagadWarning")  # nan on purpose
@pytest.mark.parametrize(("fun", "x"), BEYOND)
def test_powers_of_numbers_are_inf_and_nan_where_they_are_for_autograd(fun: Any, x: float) -> None:
    expected = autograd.value_and_grad(lambda x: np.real(fun(x)))(x)
    for of in (autograd.value_and_grad, dagad.value_and_grad):
        assert onp.array_equal(of(lambda x: np.real(fun(x)))(x), expected, equal_nan=True)
    value, gradient = dagad.value_and_grad(
        lambda x: dagad.reduce_sum(lambda r, x: np.real(fun(x)) * np.sum(r), onp.ones(1), x, scheduler="sync")
    )(x)
    assert onp.array_equal((value, gradient), expected, equal_nan=True)
    found_jvp = dagad.jvp(lambda x: np.real(fun(x)), x, 1.0)
    assert onp.array_equal(found_jvp[0], expected[0], equal_nan=True)


POWERS: dict[str, Callable[[Any, Any], Any]] = {
    "numbers": lambda row, t: row[0] ** 2 + row[1] ** 3 + row[2] ** 1.5 + row[0] ** -1 + t[0] ** 2.7,
    "bases": lambda row, t: 2 ** row[0] + 1.5 ** row[1] + 0.3 ** t[0] + row[0] ** row[1] + t[0] ** row[2],
    "arrays": lambda row, t: np.sum(row**0.5 + row**2 + row**-1 + row**1.5 + 2**row + t**row),
    "complex": lambda row, t: np.real((1 + 2j * row[0]) ** 2 + np.sum((row + 1j) ** 0.5) + (t[0] + 1j) ** row[1]),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", POWERS)
def test_a_chunk_with_powers_has_the_same_bits_traced_and_untraced(name: str, scheduler: Any) -> None:
    rows, t = RNG.uniform(0.2, 3.0, (40, 3)), RNG.uniform(0.2, 3.0, 2)[:1]

    def chunk(rows: Any, t: Any) -> Any:
        return sum([POWERS[name](row, t) for row in rows])

    loss = partial(dagad.reduce_sum, chunk, grainsize=10, scheduler=scheduler)
    value = loss(rows, t)
    for argnums in (0, 1, (0, 1)):
        assert dagad.value_and_grad(loss, argnums)(rows, t)[0] == value
    assert dagad.jvp(loss, (rows, t), (rows, t))[0] == value
    scalar = partial(dagad.map_sum, lambda row, t: row**2.7 + 1.3**row + t**row, rows[:, 0].tolist(), scheduler="sync")
    assert dagad.value_and_grad(scalar)(1.7)[0] == scalar(1.7)  # Python's own numbers


def test_a_users_own_rule_for_powers_is_used(monkeypatch: pytest.MonkeyPatch, scheduler: Any) -> None:
    defined = core.primitive_vjps[np.power]
    try:
        defvjp(np.power, lambda ans, x, y: lambda g: g * 100.0, lambda ans, x, y: lambda g: g * 1000.0)
        assert dagad.grad(lambda x: x**2)(3.0) == 100.0
        assert dagad.grad(lambda x: 2**x)(3.0) == 1000.0
        if scheduler in ("sync", "threads"):
            loss = partial(dagad.reduce_sum, lambda rows, t: np.sum(rows) * t**2, DATA, scheduler=scheduler)
            assert dagad.grad(loss)(3.0) == pytest.approx(400.0)
    finally:
        core.primitive_vjps[np.power] = defined
    assert dagad.grad(lambda x: x**2)(3.0) == 6.0


@pytest.mark.parametrize("place", [None, "sync"])
def test_the_second_derivative_of_a_power_is_right_where_the_exponent_is_zero(place: str | None) -> None:
    """For autograd the slope in the base is `x` times the exponent there, whose derivative in the exponent is `x`."""

    def power(v: Any) -> Any:
        if place is None:
            return v[0] ** v[1]
        return dagad.reduce_sum(lambda r, v: v[0] ** v[1] + np.sum(r), onp.zeros(1), v, scheduler=place)

    at, logarithm = onp.array([1.5, 0.0]), onp.log(1.5)
    expected = onp.array([[0.0, 1 / 1.5], [1 / 1.5, logarithm**2]])
    for found in (
        dagad.hessian(power)(at),
        dagad.jacfwd(dagad.grad(power))(at),
        dagad.jacrev(dagad.grad(power))(at),
        onp.stack([dagad.hvp(power, at, unit) for unit in onp.eye(2)]),
    ):
        assert onp.allclose(found, expected, rtol=1e-14)
    assert dagad.grad(dagad.grad(lambda t: (t + 1.5) ** t))(0.0) == pytest.approx(logarithm**2 + 2 / 1.5, rel=1e-14)
    for nowhere in ([0.0, 0.0], [0.0, 2.0], [0.0, 1.0]):  # as for autograd: no nan
        assert onp.array_equal(dagad.grad(power)(onp.array(nowhere)), grad(lambda v: v[0] ** v[1])(onp.array(nowhere)))
