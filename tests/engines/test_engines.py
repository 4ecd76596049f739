"""Engines: are derivatives in threads right, is autograd what it was, and are explicit functions held to their word?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest
from autograd import builtins
from autograd.extend import defvjp, primitive

import dagad
from dagad._engines.registry import find_engine
from dagad._tracing.tape import pull, record, tape_nbytes
from dagad.extend import AutogradEngine, ExplicitEngine, FlatFunction, explicit

RNG = onp.random.default_rng(3)
X, THETA = RNG.standard_normal((11, 3)), onp.array([0.4, -0.2, 0.9])

# --- the autograd engine ----------------------------------------------------------------------------------------------


class Whole(FlatFunction):
    """A function all of whose arguments are differentiated."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        self.fun, self.takes = fun, AutogradEngine().takes

    def run(self, leaves: Any) -> Any:
        return self.fun(*leaves)


def test_a_pullback_can_be_called_again_and_leaves_its_seeds_alone() -> None:
    fun = Whole(lambda a, b: {"s": a * b + a + a, "t": [np.sum(b), "text", 3]})
    values, pullback = AutogradEngine().linearize(fun, [THETA, THETA])
    assert fun.merge(values)["t"][1:] == ["text", 3]
    seed = onp.array([1.0, 2.0, 3.0])
    first = pullback([seed, 2.0, None, None])
    again = pullback([seed, 2.0, None, None])
    assert seed.tolist() == [1.0, 2.0, 3.0]
    for one, other, expected in zip(first, again, [seed * (THETA + 2), seed * THETA + 2], strict=True):
        assert (one == other).all()
        assert onp.allclose(one, expected)


def test_a_leaf_that_no_path_leads_to_has_no_cotangent() -> None:
    values, pullback = AutogradEngine().linearize(Whole(lambda a, b: (np.sum(a), np.sum(b))), [THETA, THETA])
    assert values == [THETA.sum(), THETA.sum()]
    assert pullback([None, None]) == [None, None]
    of_a, of_b = pullback([None, 2.0])
    assert of_a is None
    assert of_b.tolist() == [2.0] * 3


def test_a_cotangent_has_the_dtype_of_its_leaf() -> None:
    leaves = [THETA.astype("f4"), onp.float32(2.0), 2.0, THETA, THETA + 1j]
    fun = Whole(lambda a, b, c, d, e: np.sum(a * b * c * d * np.real(e * e)))
    _, pullback = AutogradEngine().linearize(fun, leaves)
    cotangents = pullback([1.0])
    assert [onp.asarray(cotangent).dtype for cotangent in cotangents] == ["f4", "f4", "f8", "f8", "c16"]
    assert [onp.shape(cotangent) for cotangent in cotangents] == [(3,), (), (), (3,), (3,)]


def test_a_long_tape_and_a_wide_one_are_pulled_without_a_deep_stack() -> None:
    def chain(x: Any) -> Any:
        for _ in range(5000):
            x = x + 0.001
        return x

    def wide(x: Any) -> Any:
        parts = [x * 1.0]
        for _ in range(40):
            parts.append(sum(parts))
        return parts[-1]

    for fun, slope in ((chain, 1.0), (wide, 2.0**39)):
        value, ends, roots = record(Whole(fun).run, [1.0])
        assert pull(ends, [1.0], roots, [1.0]) == [slope]
        assert value == pytest.approx(fun(1.0))


# --- engines by name --------------------------------------------------------------------------------------------------


class Doubling(AutogradEngine):
    """An engine from outside: what autograd says, times two."""

    name = "doubling"

    def linearize(self, fun: Any, leaves: Any) -> Any:
        values, pullback = super().linearize(fun, leaves)
        return values, Doubled(pullback)


class Doubled:
    def __init__(self, pullback: Any) -> None:
        self.pullback, self.nbytes = pullback, pullback.nbytes

    def __call__(self, seeds: Any) -> Any:
        return [2 * part for part in self.pullback(seeds)]


def squares(rows: Any, theta: Any) -> Any:
    return np.sum((rows - theta) ** 2)


@pytest.mark.sampled(3)
def test_an_engine_can_come_from_outside(scheduler: Any) -> None:
    loss = partial(dagad.reduce_sum, squares, X, grainsize=4, scheduler=scheduler)
    expected = dagad.grad(partial(loss, engine="autograd"))(THETA)
    assert (dagad.grad(partial(loss, engine=AutogradEngine()))(THETA) == expected).all()
    assert onp.allclose(dagad.grad(partial(loss, engine=Doubling()))(THETA), 2 * expected)


def test_an_unknown_engine_is_refused_with_the_choice() -> None:
    with pytest.raises(dagad.PlanError, match=r"no engine 'jaxx'.*'autograd', 'explicit'"):
        dagad.reduce_sum(squares, X, THETA, engine="jaxx")
    with pytest.raises(dagad.PlanError, match=r"has no method `takes`"):
        find_engine(3, squares)
    assert isinstance(find_engine("autograd", explicit(squares)), ExplicitEngine)  # the function knows best


# --- explicit ---------------------------------------------------------------------------------------------------------


def squares_by_hand(rows: Any, theta: Any) -> Any:
    residual = rows - theta
    return onp.sum(residual**2), lambda seed: (2 * seed * residual, -2 * seed * residual.sum(axis=0))


def test_an_explicit_function_called_by_hand_is_what_it_was() -> None:
    fun: Any = explicit(squares_by_hand)
    value, pullback = fun(X, THETA)
    assert value == squares(X, THETA)
    assert pullback(1.0)[1].shape == (3,)
    assert fun.__name__ == "squares_by_hand"
    not_a_function: Any = 3
    with pytest.raises(dagad.ArgumentsError, match="marks a function"):
        explicit(not_a_function)


def test_the_engine_can_be_named_instead_of_marking(scheduler: Any) -> None:
    expected = dagad.grad(lambda t: dagad.reduce_sum(squares, X, t, grainsize=4))(THETA)
    loss = partial(dagad.reduce_sum, squares_by_hand, X, grainsize=4, engine="explicit", scheduler=scheduler)
    assert onp.allclose(dagad.grad(loss)(THETA), expected)


def test_a_value_alone_runs_no_explicit_pullback() -> None:
    @explicit
    def counted(rows: Any, theta: Any) -> Any:
        def pullback(seed: Any) -> Any:
            raise AssertionError(seed)

        return theta * float(onp.sum(rows)), pullback

    assert dagad.reduce_sum(counted, X, 2.0, grainsize=4) == pytest.approx(2 * X.sum())
    assert dagad.map_sum(counted, X, 2.0, grainsize=4) == pytest.approx(2 * X.sum())
    assert dagad.vjp(lambda t: dagad.reduce_sum(counted, X, t, grainsize=4), 2.0)[0] == pytest.approx(2 * X.sum())


def test_explicit_cotangents_are_pytrees_with_none_for_constants(scheduler: Any) -> None:
    @explicit
    def scaled(rows: Any, params: Any, name: Any) -> Any:
        def pullback(seed: Any) -> Any:
            part = (seed["a"] * rows["x"]).sum() + seed["b"]
            return {"x": seed["a"] * params["t"] * onp.ones_like(rows["x"]), "n": None}, {"t": part, "name": None}, None

        return {"a": params["t"] * rows["x"].sum(), "b": params["t"]}, pullback

    def program(x: Any, t: Any) -> Any:
        rows, params = {"x": x, "n": onp.arange(len(x))}, {"t": t, "name": "p"}
        total = dagad.reduce_sum(scaled, rows, params, "text", grainsize=4, scheduler=scheduler)
        return total["a"] ** 2 + 3.0 * total["b"]

    x = onp.arange(8.0)
    of_x, of_t = dagad.grad(program, (0, 1))(x, 0.5)
    assert onp.allclose(of_x, 2 * 14.0 * 0.5)
    assert of_t == pytest.approx(2 * 14.0 * 28.0 + 6.0)
    only_b = dagad.grad(lambda t: dagad.reduce_sum(scaled, {"x": x, "n": x}, {"t": t, "name": 3}, 4, grainsize=4)["b"])
    assert only_b(0.5) == pytest.approx(2.0)


def marked(pullback: Callable[[Any, Any, Any], Any]) -> Any:
    """Return an explicit function of rows and theta with this pullback of (seed, rows, theta)."""

    @explicit
    def fun(rows: Any, theta: Any) -> Any:
        return float(onp.sum(rows) * onp.sum(theta)), lambda seed: pullback(seed, rows, theta)

    return fun


REFUSED = [
    (
        lambda seed, rows, theta: (None, seed),
        dagad.StructureError,
        r"has the shape \(\), where \(3,\) is needed",
    ),
    (
        lambda seed, rows, theta: (None, onp.ones((3, 1))),
        dagad.StructureError,
        r"shape \(3, 1\), where \(3,\) is needed",
    ),
    (
        lambda seed, rows, theta: (None, None),
        dagad.NotDifferentiableError,
        r"returned None for an argument that is being",
    ),
    (lambda seed, rows, theta: (theta,), dagad.StructureError, r"one cotangent for each of 2 arguments.*it returned 1"),
    (lambda seed, rows, theta: (None, theta, theta), dagad.StructureError, r"each of 2 arguments.*it returned 3"),
    (lambda seed, rows, theta: theta, dagad.StructureError, r"each of 2 arguments.*it returned an array"),
    (lambda seed, rows, theta: None, dagad.StructureError, r"each of 2 arguments.*it returned None"),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("pullback", "error", "found"), REFUSED)
def test_wrong_explicit_cotangents_are_refused_with_their_chunk(
    pullback: Any, error: type[Exception], found: str, scheduler: Any
) -> None:
    for total in (dagad.reduce_sum, dagad.map_sum):
        loss = partial(total, marked(pullback), X, grainsize=6, scheduler=scheduler)
        assert loss(THETA) == pytest.approx(X.sum() * THETA.sum())
        with pytest.raises(error, match=found) as caught:
            dagad.grad(loss)(THETA)
        assert any("chunk" in note for note in getattr(caught.value, "__notes__", []))


def test_an_explicit_cotangent_of_the_wrong_structure_is_refused() -> None:
    @explicit
    def wrong(rows: Any, params: Any) -> Any:
        return 1.0, lambda seed: (None, {"wrong": params["right"]})

    with pytest.raises(dagad.StructureError, match="wrong"):
        dagad.grad(lambda t: dagad.reduce_sum(wrong, X, {"right": t}, grainsize=6))(THETA)


@pytest.mark.parametrize(
    "returned", [1.0, (1.0, 2.0), (1.0, lambda seed: (None,), 3), None, [1.0, lambda seed: (None,)]]
)
def test_an_explicit_function_that_returns_no_pair_is_refused_by_name(returned: Any) -> None:
    @explicit
    def not_a_pair(rows: Any, theta: Any) -> Any:
        return returned

    for total in (dagad.reduce_sum, dagad.map_sum):
        for call in (partial(total, not_a_pair, X), dagad.grad(partial(total, not_a_pair, X))):
            with pytest.raises(dagad.StructureError, match=r"`not_a_pair` is marked explicit.*`\(value, pullback\)`"):
                call(THETA)


def test_an_explicit_cotangent_has_the_dtype_of_its_argument() -> None:
    fun = marked(lambda seed, rows, theta: (None, [seed * rows.sum()] * 3))
    assert dagad.grad(partial(dagad.reduce_sum, fun, X, grainsize=6))(THETA.astype("f4")).dtype == "f4"


def square_by_hand(row: Any, theta: Any) -> Any:
    return (row @ theta) ** 2, lambda seed: (2 * seed * (row @ theta) * theta, 2 * seed * (row @ theta) * row)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("total", "fun"), [(dagad.reduce_sum, squares_by_hand), (dagad.map_sum, square_by_hand)])
def test_a_second_derivative_of_an_explicit_function_is_refused_with_a_sentence(
    total: Any, fun: Any, scheduler: Any
) -> None:
    loss = partial(total, explicit(fun), X, grainsize=4, scheduler=scheduler)
    assert dagad.grad(loss)(THETA).shape == (3,)
    for second in (
        dagad.grad(lambda t: np.sum(dagad.grad(loss)(t) ** 2)),
        autograd.hessian(loss),
        autograd.grad(lambda t: np.sum(autograd.grad(loss)(t))),
    ):
        with pytest.raises(dagad.NotDifferentiableError, match="explicit"):
            second(THETA)


def test_a_traced_value_in_the_closure_of_an_explicit_function_is_refused() -> None:
    def loss(t: Any) -> Any:
        @explicit
        def by_closure(rows: Any) -> Any:
            return onp.sum(rows) * t, lambda seed: (None,)

        return dagad.reduce_sum(by_closure, X, grainsize=4)

    with pytest.raises(dagad.ClosureError, match=r"explicit function.*shared argument"):
        dagad.grad(loss)(2.0)


def test_the_size_of_a_long_tape_is_estimated_from_samples() -> None:
    weights = onp.ones(5_000)

    def chain(leaves: Any) -> Any:
        (x,) = leaves
        for _ in range(1000):
            x = np.tanh(x * weights)  # an array of its own each, and one that all share
        return np.sum(x)

    _, ends, _ = record(chain, [onp.linspace(0.0, 1.0, 5_000)])
    measured, held = tape_nbytes(ends), 1001 * weights.nbytes
    assert 0.9 * held < measured < 1.1 * held


def test_the_size_of_a_tape_counts_arrays_that_a_rule_holds_in_lists() -> None:
    weights = [onp.ones(10_000) for _ in range(5)]
    held = [(array, "a name", 3) for array in weights]

    @primitive  # type: ignore[untyped-decorator]  # autograd has no types
    def weighed(x: Any) -> Any:
        return x * sum(array.sum() for array, _, _ in held)

    defvjp(weighed, lambda ans, x: lambda g: g * sum(array.sum() for array, _, _ in held))
    value, ends, roots = record(lambda leaves: weighed(leaves[0]), [2.0])
    assert value == 100_000.0
    assert 400_000 <= tape_nbytes(ends) < 410_000
    assert pull(ends, [1.0], roots, [2.0]) == [50_000.0]


def test_a_chunk_can_return_a_container_of_autograds_own(scheduler: Any) -> None:
    def both(rows: Any, theta: Any) -> Any:
        return builtins.tuple((np.sum(rows * theta), theta))

    def loss(theta: Any) -> Any:
        first, second = dagad.reduce_sum(both, X, theta, grainsize=6, scheduler=scheduler)
        return first + np.sum(second**2)

    assert onp.allclose(dagad.grad(loss)(THETA), X.sum(axis=0) + 8 * THETA)
