"""Stacks of tangents: do they say what tangents say one by one, and are others' rules the ones that count?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from autograd.extend import defjvp

import dagad
from dagad._tracing.forward import TangentNode, push
from dagad._tracing.patches import patches
from dagad._tracing.private import primitive_jvps
from dagad._tracing.tape import untraced
from dagad._tracing.traced_array import new_box
from dagad._values import pytree
from support.called import PLAIN, X as A, evaluated
from support.numpy_calls import FAMILIES, calls, is_here

X = np.array([0.3, -1.7, 2.9])
M = np.arange(9.0).reshape(3, 3) / 7.0
WHOLE = np.array([1, 2, 3])
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "products": lambda x: x * x + x * 3.0 + 2 * x + x * WHOLE + WHOLE * x + True * x,
    "products of numbers": lambda x: x[0] * x[1] * x[0] * 1.7 * np.float64(0.3) * 10**20,
    "differences": lambda x: x - x[::-1] - (1.0 - x) - (x[0] - x) + (x[1] - 2.0),
    "quotients": lambda x: x / (x * x) + 1.0 / x + x / 3.0 + M[0] / x + x[0] / x[1],
    "powers": lambda x: x**2 + x**-1 + x**0 + x[2] ** 0.5 + x[0] ** 3 + 2.0**x + x[2] ** x + np.power(x, 2),
    "functions": lambda x: np.sin(x) * np.cos(x) + np.tanh(x) + np.log(x * x) + np.sqrt(2.0 + x * x) + np.exp(-x[0]),
    "other functions": lambda x: np.where(x > 0.0, x, 2.0 * x) + np.maximum(x, 0.1) + np.abs(x) + np.arctan(x) + abs(x),
    "ufuncs with numbers": lambda x: np.float64(2.0) * x[0] + np.multiply(x, 2.0) + np.subtract(1.0, x) + X / x[0],
    "broadcast": lambda x: x[:, None] * x + x[0] - x / x[1] + M * x[2],
    "the smaller one moves": lambda x: (x[0] + M) * x[1] - M / x[2] + x[0] * np.ones((2, 1, 1)),
    "both are smaller": lambda x: x[:, None] * (x[None, :] - 2.0),
    "entries": lambda x: x[[2, 0]] * x[1:] + x[x > 0.0] + x[..., 1] + x[-1:][0] + x[np.int64(1)] + x[1:, None][0, 0],
    "entries of a matrix": lambda x: (x[:, None] * M)[1] + (x[:, None] * M)[:, 2] + (x[:, None] * M)[::2, 1:][1, 0],
    "unpacked": lambda x: (lambda a, b, c: a * b - c)(*x),
    "a loop": lambda x: sum(each * each for each in x),
    "entries by an array": lambda x: (
        x[np.array([[0, 2], [1, 1]])].ravel()[:3] + (x[:, None] * M)[M > 0.5][:3] * x[np.int64(2)]
    ),
    "chosen": lambda x: np.where(X > 0.0, x, 2.0) + np.where(M > 0.5, 1.0, x) + np.where(x[0] > 0.0, x[0] * x, x[1]),
    "picked": lambda x: np.take(x, [2, 0, 0]) * np.repeat(x[:1], 3) + np.tile(x[1:2], 3) + np.flip(x),
    "between data": lambda x: np.interp(x[0], X[[1, 0, 2]], x) + np.interp(X, [-2.0, 0.0, 3.0], x) * x,
    "made of numbers": lambda x: np.stack([x[0], 2.0, x[2] * x[1], -x[1]]),
    "made of a list": lambda x: anp.array([x[0], 0.0, x[2] * x[1]]) * anp.array([[x[0]], [x[1]]]),
    "made of arrays": lambda x: np.stack([x, X, x * x], axis=1),
    "end to end": lambda x: np.concatenate([x, np.ones(2), x[:1] * x[1:2]]) * np.concatenate([np.zeros(3), x]),
    "side by side": lambda x: np.concatenate([x[:, None], M], axis=-1) @ np.ones(4) + np.roll(x, 1),
    "shapes": lambda x: (x.reshape(3, 1) * M).reshape(-1)[2:5] + np.reshape(x, (1, 3))[0] + np.transpose(x[:, None])[0],
    "sums": lambda x: np.sum(x * x) + (x[:, None] * M).sum() + np.sum(x[:, None] * M, axis=0) + np.mean(x),
    "products of matrices": lambda x: (x[:, None] * M) @ x + M @ x + np.dot(x, M) + x @ x + np.dot(M, x[:, None])[:, 0],
    "more products": lambda x: (x[:, None] * M) @ M[1] + X @ (x * M) + (x * M) @ (M * x[0]) @ X + np.dot(x[0], M) @ X,
    "a product of stacks": lambda x: (x[:, None, None] * np.ones((3, 2, 2)) @ np.ones((2, 2)))[:, 0, 0],
    "complex": lambda x: np.real(np.exp(1j * x)) + np.imag(x[0] * (1.0 + 2.0j) * x),
    "single precision": lambda x: x.astype(np.float32).astype(float) * x,
    "what does not move": lambda x: np.sign(x) * X + np.floor(x),
    "a derivative inside": lambda x: dagad.grad(lambda z: np.sum(z * z * x))(X) + dagad.jvp(np.sin, (x,), (X,))[1],
    "a reduction inside": lambda x: dagad.reduce_sum(
        lambda rows, x: np.sum(rows @ x), M, x, scheduler="sync", grainsize=2
    ),
}


def jvp_along(program: Callable[[Any], Any], x: np.ndarray, stack: np.ndarray) -> tuple[Any, Any]:
    """Return a value, and its tangents from a stack of them."""
    with patches.new_trace() as level:
        value, node = untraced(program(new_box(x, level, TangentNode.new_root(stack))), level)
    return value, [0.0 * value] * len(stack) if node is None else node.g


@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_stack_says_what_tangents_say_one_by_one(program: str, count: int) -> None:
    stack, fun = np.random.default_rng(count).normal(size=(count, 3)), PROGRAMS[program]
    value, tangents = jvp_along(fun, X, stack)
    known, each = push(lambda leaves: fun(leaves[0]), [X], [[tangent] for tangent in stack])
    np.testing.assert_array_equal(value, known)
    assert (type(value), value.dtype) == (type(known), known.dtype)
    assert len(tangents) == count
    for found, (right,) in zip(tangents, each, strict=True):
        right = np.zeros_like(known) if right is None else right
        found = np.zeros_like(known) if found is None else found
        assert np.shape(found) == np.shape(known)
        np.testing.assert_allclose(found, right, rtol=1e-13, atol=1e-13 * np.max(np.abs(right)))


@pytest.mark.parametrize("family", FAMILIES)
def test_functions_of_numpy_and_scipy_move_by_stacks_as_one_by_one(
    family: str, one_in: Callable[[int, str], bool]
) -> None:
    stack = np.cos(np.arange(3.0 * A.size)).reshape(3, -1)
    for call in calls(FAMILIES[family]):
        if not is_here(call, PLAIN) or not one_in(4, call):
            continue
        fun = functools.partial(evaluated(call, PLAIN), np.ones(1))
        value, tangents = jvp_along(fun, A, stack)
        for found, direction in zip(tangents, stack, strict=True):
            known, right = dagad.jvp(fun, (A,), (direction,))
            assert value == known, call
            assert found == pytest.approx(right, rel=1e-10, abs=1e-12), call


STAYING = sorted(set(PROGRAMS) - {"complex", "what does not move", "a reduction inside", "a derivative inside"})


@pytest.mark.parametrize("program", STAYING)
def test_a_stack_stays_one_through_operations_of_any_kind(program: str) -> None:
    value, tangents = jvp_along(PROGRAMS[program], X, np.eye(3))
    assert type(tangents) is np.ndarray
    assert tangents.shape == (3, *np.shape(value))


def along(program: Callable[[Any], Any], x: Any, tangents: Any) -> Any:
    """Return how a value moves along some tangents of x, from a stack of them or from a list."""
    with patches.new_trace() as level:
        value, node = untraced(program(new_box(x, level, TangentNode.new_root(tangents))), level)
    nothing = np.zeros(np.shape(pytree.plain(value)))
    return np.stack(
        [nothing if part is None else part for part in ([None] * len(tangents) if node is None else node.g)]
    )


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("outer", ["a stack", "a list", "a tape"])
@pytest.mark.parametrize("program", sorted(set(PROGRAMS) - {"what does not move"}))
def test_a_stack_is_differentiated_in_turn(program: str, outer: str) -> None:
    fun, rng = PROGRAMS[program], np.random.default_rng(1)
    directions, more = rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    constant = list(directions)

    def program_of(x: Any, is_stack: bool) -> Any:
        tangents = [x * each for each in constant]
        return along(fun, x, np.stack(tangents) if is_stack else tangents)

    def second(is_stack: bool) -> Any:
        if outer == "a tape":
            return dagad.grad(lambda x: np.sum(np.sin(program_of(x, is_stack))))(X)
        return along(lambda x: program_of(x, is_stack), X, more if outer == "a stack" else list(more))

    right = second(False)
    np.testing.assert_allclose(second(True), right, rtol=1e-12, atol=1e-12 * np.max(np.abs(right)))


def test_the_stack_that_it_began_with_is_not_written_to() -> None:
    stack = np.eye(3)
    for program in PROGRAMS.values():
        jvp_along(program, X, stack)
    np.testing.assert_array_equal(stack, np.eye(3))


@pytest.mark.parametrize("fun", [anp.multiply, anp.exp])
def test_a_rule_that_a_user_gives_counts(fun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(primitive_jvps, fun, primitive_jvps[fun])  # put back afterwards
    defjvp(fun, lambda g, ans, *args: 10.0 * g, lambda g, ans, *args: 100.0 * g)
    assert jvp_along(lambda x: np.exp(x) if fun is anp.exp else x * 2.0, X, np.eye(3))[1][1].tolist() == [
        0.0,
        10.0,
        0.0,
    ]
    assert jvp_along(lambda x: np.exp(x[1]) if fun is anp.exp else x[1] * 2.0, X, np.eye(3))[1][1] == 10.0


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_a_number_is_divided_by_zero_as_numpys() -> None:
    assert jvp_along(lambda x: x[0] / 0.0, X, np.ones((2, 3)))[1].tolist() == [np.inf, np.inf]
