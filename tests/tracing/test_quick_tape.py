"""Arithmetic recorded past autograd's tracer: has it the bits of autograd's way, and goes all else that way?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from autograd.extend import defvjp

import dagad
from dagad._tracing import forward, quick_tangents, quick_tape
from dagad._tracing.private import primitive_vjps
from dagad._tracing.rules import learn_rules, stock_rules, vjp_rule
from dagad._tracing.tape import record, tape_nbytes

WIDE: Any = np.random.default_rng(5).normal(size=(5, 5))
UNARY: tuple[Callable[[Any], Any], ...] = (
    lambda a: np.exp(0.1 * a),
    lambda a: np.log(a * a + 1.5),
    np.sin,
    np.cos,
    np.tanh,
    lambda a: np.sqrt(a * a + 0.5),
    lambda a: -a,
    lambda a: np.log1p(a * a) - np.square(0.1 * a),
    lambda a: np.sinh(0.1 * a) + np.cosh(0.1 * a),
    lambda a: np.logaddexp(a, 0.0) - np.logaddexp(1, 3.0 * a),
    lambda a: a**2,
    lambda a: (a * a + 0.5) ** -1.5,
    lambda a: a**0 + 0.01 * a**3,
    lambda a: 0.1 * np.sum(a),
    lambda a: 0.1 * np.sum(a, axis=-1) if np.ndim(a) else a,
    lambda a: 0.1 * a.sum(0) if np.ndim(a) else a,
    lambda a: (0.1 * WIDE[:, : len(a)]) @ a if np.ndim(a) and len(a) < 6 else a,
    lambda a: a @ (0.1 * WIDE[: a.shape[-1], 0]) if np.ndim(a) and a.shape[-1] < 6 else a,
    lambda a: np.matmul(a, 0.1 * WIDE[: a.shape[-1]]) if np.ndim(a) and a.shape[-1] < 6 else a,
)
QUICK = "of_two", "of_ufunc", "entry_of", "sum_of", "power_of"
BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / (b * b + 1.0),
    lambda a, b: np.multiply(a, b) - np.subtract(b, a),
    lambda a, b: np.real(a * (1.0 + 2.0j) * (0.3 * b - 1.0j)),
    lambda a, b: np.logaddexp(a, b) + np.logaddexp(0.5 * b, a),
    lambda a, b: 0.1 * np.sum(a * b),
    lambda a, b: 0.1 * (a @ b) if np.ndim(a) and np.ndim(b) and a.shape[-1] == b.shape[0] else a * b,
    lambda a, b: 0.1 * (b.T @ a) if np.ndim(a) and np.ndim(b) and a.shape[0] == b.shape[0] else a * b,
)


def _go_together(a: Any, b: Any) -> bool:
    try:
        np.broadcast_shapes(np.shape(a), np.shape(b))
    except ValueError:
        return False
    return True


def a_program(seed: int) -> Callable[[Any, Any], Any]:
    """Return a random program of arithmetic: numbers, arrays of several shapes, parts of arrays, complex steps."""

    def run(x: Any, z: Any) -> Any:
        rng = np.random.default_rng(seed)
        found = [x, z, x[0], x[1:2], x[::-1], 2.0, 3, np.float64(1.5), np.arange(1.0, 5.0), np.ones((3, 4)), x[:, None]]
        for _ in range(rng.integers(3, 14)):
            a, b = (found[rng.integers(len(found))] for _ in range(2))
            if rng.random() < 0.7:
                b = a if rng.random() < 0.2 or not _go_together(a, b) else b
                made = BINARY[rng.integers(len(BINARY))](a, b)
            else:
                made = UNARY[rng.integers(len(UNARY))](a) if type(a) not in (int, float) else a
            found.append(made * np.float64(0.5))
        return sum(np.sum(one) * weight for one, weight in zip(found[-4:], (1.0, 2.0, 0.5, 1.5), strict=True))

    return run


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
def test_random_arithmetic_has_the_bits_of_autograd(rounds: Callable[[int], int]) -> None:
    rng = np.random.default_rng(3)
    for seed in range(rounds(800)):
        x, z, program = rng.normal(size=4), float(rng.normal()), a_program(seed)
        value, gradient = dagad.value_and_grad(program, (0, 1))(x, z)
        with pytest.MonkeyPatch.context() as patch:
            for name in QUICK:
                patch.setattr(quick_tape, name, lambda *args: None)
            expected, slopes = dagad.value_and_grad(program, (0, 1))(x, z)
        found = [np.asarray(one).tobytes() for one in (value, *gradient)]
        assert found == [np.asarray(one).tobytes() for one in (expected, *slopes)], seed


ZOO: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "numbers": (lambda x: (3.0 - x[0] * 2) / (1.0 + x[1] * x[1]) - x[2] / 4, np.array([0.5, 1.5, 2.0])),
    "arrays": (lambda x: anp.sum((2.0 / (x * x + 1.0) - x) * np.arange(3.0) / 7.0), np.array([0.5, 1.5, 2.0])),
    "one entry": (lambda x: anp.sum((x * np.ones((4, 1)) + x / 3.0) * (x * x)), np.array([0.7])),
    "single precision": (lambda x: anp.sum(x * x / 3.0 - x), np.array([0.5, 1.5], np.float32)),
    "complex steps": (lambda x: anp.real(anp.sum((x + x) * (1.0 + 1j) * (x - 2j))), np.array([0.5, 1.5])),
    "twice the same": (lambda x: anp.sum(x * x - x / x + (x - x)), np.array([0.5, 1.5])),
    "products": (lambda x: anp.sum((anp.ones((4, 3)) @ x) ** 2 * 0.1) + (x @ x) * x[0], np.array([0.5, 1.5, 2.0])),
    "matrices": (
        lambda x: anp.sum(anp.matmul(anp.outer(x, x), anp.outer(x, x)) @ x + anp.outer(x, x).sum(0) ** 3),
        np.array([0.5, 1.5, 2.0]),
    ),
    "powers": (lambda x: anp.sum(x**3 - x**0.5 + x**-1 + x**0 + x[0] ** 2), np.array([0.5, 1.5, 2.0])),
    "sums": (lambda x: anp.sum(anp.sum(anp.outer(x, x) ** 2, axis=1) * x) * anp.sum(x), np.array([0.5, 1.5, 2.0])),
    "a number beside arrays": (lambda x: anp.sum((x[0] * np.arange(2.0) + x * 2.0) * x), np.array([0.5, 1.5])),
}


@pytest.mark.parametrize(("fun", "x"), ZOO.values(), ids=ZOO.keys())
def test_every_derivative_of_arithmetic_agrees_with_autograd(fun: Any, x: Any) -> None:
    assert np.asarray(dagad.grad(fun)(x)).tobytes() == np.asarray(autograd.grad(fun)(x)).tobytes()
    direction = np.cos(x)
    second = autograd.grad(lambda x: anp.sum(autograd.grad(fun)(x) * direction))(x)
    tolerance = 1e-5 if x.dtype == np.float32 else 1e-12
    with pytest.MonkeyPatch.context() as patch:
        for name in QUICK:
            patch.setattr(quick_tape, name, lambda *args: None)
        usual = dagad.hvp(fun, (x,), (direction,))
    assert np.asarray(dagad.hvp(fun, (x,), (direction,))).tobytes() == np.asarray(usual).tobytes()
    for found in (
        dagad.hvp(fun, (x,), (direction,)),
        dagad.grad(lambda x: np.sum(dagad.grad(fun)(x) * direction))(x),
        dagad.jvp(dagad.grad(fun), (x,), (direction,))[1],
    ):
        assert np.allclose(found, second, rtol=tolerance, atol=tolerance)


def test_sums_of_exponentials_have_the_bits_of_their_rule_in_second_order() -> None:
    x, direction = np.array([0.5, -1.5, 2.0]), np.array([1.0, -0.3, 0.0])

    def fun(x: Any) -> Any:
        near = np.logaddexp(0.0, x * 40.0) * np.logaddexp(x, x[::-1] - 30.0)
        return np.sum(near) + np.logaddexp(x[0], 1.0) * np.logaddexp(x[1], x[2])

    def found() -> list[bytes]:
        each = dagad.grad(fun)(x), dagad.hvp(fun, (x,), (direction,)), dagad.hessian(fun)(x)
        return [np.asarray(one).tobytes() for one in each]

    quick = found()
    with pytest.MonkeyPatch.context() as patch:
        for name in QUICK:
            patch.setattr(quick_tape, name, lambda *args: None)
        assert found() == quick
        patch.setattr(forward, "quick_jvp", lambda *_: None)
        for name in ("of_two", "of_one", "entry_of", "sum_of", "power_of"):
            patch.setattr(quick_tangents, name, lambda *_: None)
        assert found() == quick
    slope = dagad.grad(fun)
    steps = [(slope(x + 1e-6 * unit) - slope(x - 1e-6 * unit)) / 2e-6 for unit in np.eye(3)]
    np.testing.assert_allclose(dagad.hessian(fun)(x), steps, rtol=1e-6, atol=1e-7)


def test_a_rule_of_the_users_own_counts() -> None:
    stock = primitive_vjps[anp.tanh]
    assert dagad.grad(np.tanh)(0.5) == autograd.grad(anp.tanh)(0.5)
    try:
        defvjp(anp.tanh, lambda ans, x: lambda g: 7.0 * g)
        assert dagad.grad(np.tanh)(0.5) == 7.0
    finally:
        primitive_vjps[anp.tanh] = stock


def test_no_rule_of_dagads_own_is_left_out() -> None:
    learn_rules()
    for fun in {*quick_tape.BINARY, *quick_tape.UNARY, anp.matmul} - {anp.tanh, anp.logaddexp}:
        assert vjp_rule(fun) is primitive_vjps[fun], fun
    x = np.linspace(-300.0, 300.0, 301)
    y = x[::-1] ** 2
    for argnums, quick in zip([(0, 1), (0,), (1,)], quick_tape.BINARY[anp.logaddexp], strict=True):
        usually = vjp_rule(anp.logaddexp)(argnums, np.logaddexp(x, y), (x, y), {})(x)
        assert [part.tobytes() for part in quick(x, y)(x)] == [part.tobytes() for part in usually]
    (usual,) = vjp_rule(anp.tanh)((0,), np.tanh(x), (x,), {})(x)  # dagad's own has another derivative, and these bits
    assert quick_tape.UNARY[anp.tanh](np.tanh(x), x)(x)[0].tobytes() == usual.tobytes()


def test_a_tape_of_arithmetic_holds_no_more_than_autograds_way(monkeypatch: pytest.MonkeyPatch) -> None:
    x, rows = np.ones(10_000), np.ones((10_000, 4))

    def run(leaves: Any) -> Any:
        apart = (leaves[0] + x - leaves[0]) * 2.0 - np.exp(leaves[0]) / 3.0
        return np.sum(apart**2) + np.sum((rows @ leaves[1]) ** 3) + leaves[1] @ leaves[1]

    quick = tape_nbytes(record(run, [x, x[:4]])[1])
    for name in QUICK:
        monkeypatch.setattr(quick_tape, name, lambda *args: None)
    assert quick <= tape_nbytes(record(run, [x, x[:4]])[1])


def test_arithmetic_of_one_shape_or_with_constants_goes_past_the_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[bool]()

    def of_two(*args: Any) -> Any:
        found = quick_tape_of_two(*args)
        asked.append(found is not None)
        return found

    quick_tape_of_two = quick_tape.of_two
    monkeypatch.setattr(quick_tape, "of_two", of_two)
    x = np.arange(1.0, 4.0)
    dagad.grad(lambda x: np.sum(x * x + x / x - x))(x)
    assert asked == [True] * 4
    asked.clear()
    dagad.grad(lambda x: np.sum(np.ones((2, 3)) * x - x[0] * np.ones(3)))(x)  # a constant may be larger
    assert asked == [True, True, False]
    asked.clear()
    dagad.grad(lambda x: np.sum(x + x.astype(complex)).real)(x)
    assert not any(asked)


PRODUCTS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda x, o: (x @ o) ** 2,
    lambda x, o: (o @ x) ** 2,
    lambda x, o: np.matmul(x, o) * anp.sum(x * o),
    lambda x, o: anp.sum((anp.outer(x, x) @ anp.outer(o, x)) * anp.outer(x, o)),
    lambda x, o: anp.sum(x**2 * o + anp.sum(x) * anp.tanh(o * x)),
)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("inner", [autograd.grad, lambda fun: lambda x: autograd.make_jvp(fun)(x)(np.cos(x))[1]])
def test_autograds_derivatives_inside_of_those_of_a_tape_are_right(product: Any, inner: Any) -> None:
    x, o = np.array([1.0, 2.0, 3.0]), np.array([0.5, -1.0, 2.0])

    def of(o: Any) -> Any:
        return anp.sum(inner(lambda x: product(x, o))(x))

    value, gradient = autograd.value_and_grad(of)(o)
    for found in (dagad.value_and_grad(of)(o), (of(o), dagad.jvp(of, (o,), (np.ones(3),))[1])):
        assert np.isclose(found[0], value, rtol=1e-13)
        assert np.allclose(np.sum(found[1]), np.sum(gradient), rtol=1e-12)
    assert np.allclose(dagad.grad(of)(o), gradient, rtol=1e-12)
    assert np.allclose(dagad.hvp(of, (o,), (np.sin(o),)), autograd.hessian(of)(o) @ np.sin(o), rtol=1e-11)


def test_a_rule_that_a_user_gave_before_is_not_taken_for_autograds() -> None:
    stock = primitive_vjps[anp.log1p]
    assert stock_rules(primitive_vjps, anp.log1p) == {anp.log1p: stock}
    try:
        defvjp(anp.log1p, lambda ans, x: lambda g: 7.0 * g)
        assert stock_rules(primitive_vjps, anp.log1p) == {anp.log1p: None}
    finally:
        primitive_vjps[anp.log1p] = stock


@pytest.mark.parametrize(
    "x", [np.array(1000.0), np.float64(1000.0), np.array([1000.0])], ids=["0-d", "number", "array"]
)
@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_an_overflow_is_reported_once(mode: str, x: Any) -> None:
    told = list[str]()
    with np.errstate(over="call", call=lambda kind, flag: told.append(kind)):
        if mode == "reverse":
            dagad.vjp(lambda x: np.exp(x), x)
        else:
            dagad.jvp(lambda x: np.exp(x) + 1.0, (x,), (1.0 + 0.0 * x,))
    assert told == ["overflow"]
