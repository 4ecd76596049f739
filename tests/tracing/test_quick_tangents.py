"""Quick tangents: have they the bits of autograd's rules, and are others' rules the ones that count?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from autograd.extend import defjvp

import dagad
from dagad._tracing import forward, quick_tangents
from dagad._tracing.forward import push
from dagad._tracing.private import primitive_jvps
from dagad._tracing.rules import jvp_rule, learn_rules

X = np.array([0.3, -1.7, 2.9])
Z = np.array([0.3 + 1.0j, -1.7, 2.9 - 0.4j])
M = np.arange(9.0).reshape(3, 3) / 7.0
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "products": lambda x: x * x + x * 3.0 + 2 * x,
    "products of numbers": lambda x: x[0] * x[1] * x[0] * 1.7,
    "differences": lambda x: x - x[::-1] - (1.0 - x),
    "quotients": lambda x: x / (x * x) + 1.0 / x + x / 3.0,
    "powers of e": lambda x: np.exp(-x) + np.exp(x[0]),
    "broadcast": lambda x: x[:, None] * x + x[0] - x / x[1],
    "entries": lambda x: x[[2, 0]] * x[1:] + x[x > 0.0],
    "made of numbers": lambda x: np.stack([x[0], 2.0, x[2] * x[1], -x[1]]),
    "made of a list": lambda x: anp.array([x[0], 0.0, x[2] * x[1]]) * anp.array([[x[0]], [x[1]]]),
    "end to end": lambda x: np.concatenate([x, np.ones(2), x[:1] * x[1:2]]) * np.concatenate([np.zeros(3), x]),
    "functions of entries": lambda x: np.sin(x) * np.cos(x) + np.tanh(x) + np.log(x * x) + np.sqrt(2.0 + x * x),
    "products of matrices": lambda x: (x[:, None] * M) @ x + M @ x + np.dot(x, M) + x @ x + np.dot(M, x[:, None])[:, 0],
    "laid out otherwise": lambda x: np.reshape(x[:, None] * x, (3, 3)).T + x - (x - (x[:, None] * M).T) + x[0],
    "sums": lambda x: (x[:, None] * x).sum(0) * np.sum(x) + np.sum(x[:, None] * x, axis=-1) + np.sum(M),
    "powers": lambda x: x**2 + (x * x + 1.0) ** -1.5 + x[0] ** 3 + x**1 + x**0,
    "shapes": lambda x: np.reshape(x[:, None] * x, (9,))[2:5] + np.squeeze(x[:, None], 1) + np.ravel(x[None])[:3],
    "more functions": lambda x: np.log1p(x * x) + np.square(x) + np.sinh(x) - np.cosh(x[0]),
    "sums of exponentials": lambda x: (
        np.logaddexp(0.0, x) + np.logaddexp(x[0], x) * np.logaddexp(x, x[::-1]) + np.sum(np.logaddexp(x[:, None], M))
    ),
    "in place of none": lambda x: x * np.ones((2, 3)) + 0.0 * x,
}


QUICK = "of_two", "of_one", "of_slope", "of_linear", "entry_of", "sum_of", "power_of"


@pytest.mark.parametrize("at", [X, X.astype(np.float32), Z], ids=["double", "single", "complex"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_quick_tangents_have_the_bits_of_autograds_rules(
    program: str, at: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    if program in ("entries", "sums of exponentials") and at is Z:
        pytest.skip("complex numbers have no order")
    fun = PROGRAMS[program]

    def tangents() -> list[Any]:
        parts = [part for each in (at, np.ones_like(at)) for part in dagad.jvp(fun, (at,), (each,))]
        return parts if at is Z else [*parts, dagad.jacfwd(fun)(at), dagad.jacfwd(dagad.jacfwd(fun))(at)]

    quick = tangents()
    monkeypatch.setattr(forward, "quick_jvp", lambda *_: None)
    for name in QUICK:
        monkeypatch.setattr(quick_tangents, name, lambda *_: None)
    for one, other in zip(quick, tangents(), strict=True):
        np.testing.assert_array_equal(one, other)
        assert (type(one), one.dtype) == (type(other), other.dtype)


@pytest.mark.parametrize("program", PROGRAMS)
def test_products_of_hessians_have_the_bits_of_autograds_rules(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def total(x: Any) -> Any:
        return np.sum(PROGRAMS[program](x) ** 2) + np.sum(np.logaddexp(0.0, M @ x))

    quick = dagad.hvp(total, X, np.cos(X))
    monkeypatch.setattr(forward, "quick_jvp", lambda *_: None)
    for name in QUICK:
        monkeypatch.setattr(quick_tangents, name, lambda *_: None)
    assert quick.tobytes() == dagad.hvp(total, X, np.cos(X)).tobytes()


def test_a_rule_that_a_user_gives_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(primitive_jvps, anp.multiply, primitive_jvps[anp.multiply])  # put back afterwards
    defjvp(anp.multiply, lambda g, ans, x, y: 10.0 * g, lambda g, ans, x, y: 100.0 * g)
    assert dagad.jvp(lambda x: x * 2.0, (3.0,), (1.0,))[1] == 10.0


@pytest.mark.parametrize(
    ("fun", "call"),
    [
        (anp.multiply, lambda x: x * x),
        (anp.sin, np.sin),
        (anp.power, lambda x: (x * x) ** 3),
        (anp.sum, np.sum),
        (quick_tangents._GETITEM, lambda x: x[1:]),
        (anp.reshape, lambda x: x.reshape(3, 1)),
    ],
    ids=["product", "function", "power", "sum", "entries", "shape"],
)
def test_a_rule_that_a_user_gives_counts_in_each_quick_operation(
    fun: Any, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slopes() -> tuple[Any, Any]:
        return dagad.jvp(call, (X,), (M[1],))[1], dagad.jacfwd(call)(X)

    usual, stock = slopes(), primitive_jvps[fun]
    monkeypatch.setitem(primitive_jvps, fun, lambda *args: 10.0 * stock(*args))
    for found, before in zip(slopes(), usual, strict=True):
        np.testing.assert_allclose(found, 10.0 * before, rtol=1e-14)


@pytest.mark.parametrize("name", ["reshape", "matmul", "squeeze"])
def test_a_rule_that_a_user_gives_counts_in_the_pullback_of_a_product(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fun, seen = getattr(anp, name), list[str]()
    stock = primitive_jvps[fun]

    def rule(*args: Any) -> Any:
        seen.append(name)
        return stock(*args)

    monkeypatch.setitem(primitive_jvps, fun, rule)
    dagad.hvp(lambda x: np.sum((M @ x) ** 3), X, X)
    assert seen


OTHERS = {anp.tanh, anp.logaddexp}  # dagad's own rules of these, which are here too


def test_no_rule_of_dagads_own_is_left_out() -> None:
    learn_rules()
    shapes = quick_tangents._SHAPES - {anp.reshape}  # which has one for other orders, and these are not quick
    for fun in {*quick_tangents.BY_ENTRIES, *quick_tangents.UNARY, *shapes, anp.matmul, anp.dot} - OTHERS:
        assert jvp_rule(fun, (X,), {}) is primitive_jvps[fun], fun
    rule, y = jvp_rule(anp.logaddexp, (X, X), {}), X[::-1] ** 2
    for argnums, parts in [((0, 1), (X, y)), ((0,), (X, None)), ((1,), (None, y))]:
        usual = rule(argnums, [each for each in parts if each is not None], np.logaddexp(X, y), (X, y), {})
        found = quick_tangents.BY_ENTRIES[anp.logaddexp](np.logaddexp(X, y), X, y, *parts)
        assert found.tobytes() == usual.tobytes()
    usual = jvp_rule(anp.tanh, (X,), {})((0,), [X], np.tanh(X), (X,), {})  # dagad's own: another derivative, these bits
    assert quick_tangents.UNARY[anp.tanh](np.tanh(X), X, X).tobytes() == usual.tobytes()


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_a_tangent_that_is_a_number_of_pythons_is_divided_as_numpys() -> None:
    assert push(lambda leaves: [leaves[0] / 0.0], [np.float64(1.0)], [[1.0]])[1] == [[np.inf]]


def test_a_product_of_numbers_is_refused_as_numpy_refuses_it() -> None:
    with pytest.raises(ValueError, match="does not have enough dimensions"):
        dagad.jvp(lambda x: np.matmul(x, x), (np.float64(1.0),), (1.0,))
