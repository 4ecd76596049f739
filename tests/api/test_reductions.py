"""Reductions: is every sum and gradient what plain autograd makes of the uncut function, in any program?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import optree
import pytest
from hypothesis import given, settings, strategies as st

import dagad
from dagad.extend import Keep, Preaccumulate, Recompute
from support.examples import examples
from support.sum_cases import (
    CASES,
    RAGGED,
    THETA,
    Case,
    N,
    W,
    X,
    Y,
    assert_close,
    bits,
    cut_on,
    logistic,
    ragged,
    reference,
    squares,
    stacked,
    structured,
    weighted,
)

pytestmark = [
    pytest.mark.each_value("all combinations of parameters: each value of each is in this tier"),
    pytest.mark.sampled(2),
]


def both(case: Case, **options: Any) -> tuple[Any, Any]:
    """Return value and gradients, in all arguments, of a case as a reduction."""

    def total(*args: Any) -> Any:
        return dagad.reduce_sum(case.fun, *args, **options)

    return dagad.value_and_grad(total, tuple(range(1 + len(case.shared))))(case.sliced, *case.shared)


# --- the numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:Argument . .*holds integers:dagad.DagadWarning")  # constants on purpose
@pytest.mark.parametrize("grainsize", [1, 4, 1000, "auto"])
@pytest.mark.parametrize("name", CASES)
def test_a_reduction_is_what_autograd_makes_of_the_uncut_function(name: str, grainsize: Any, scheduler: Any) -> None:
    case = CASES[name]
    value, gradients = both(case, grainsize=grainsize, scheduler=scheduler)
    expected, expected_gradients = reference(case.fun, case.sliced, *case.shared)
    assert_close(value, expected)
    assert_close(gradients, expected_gradients)


@pytest.mark.filterwarnings("ignore:Argument . .*holds integers:dagad.DagadWarning")  # constants on purpose
@pytest.mark.parametrize("name", CASES)
def test_a_value_alone_has_the_bits_of_one_with_a_gradient_untraced(name: str, scheduler: Any) -> None:
    case = CASES[name]
    value = dagad.reduce_sum(case.fun, case.sliced, *case.shared, grainsize=4, scheduler=scheduler)
    assert bits(value) == bits(both(case, grainsize=4, scheduler=scheduler)[0])
    assert_close(value, case.fun(case.sliced, *case.shared))


ROAD = settings(max_examples=examples(40), deadline=None, derandomize=True)
NUMBER = st.floats(-2.0, 2.0, width=32)
LENGTHS = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@ROAD
@given(LENGTHS, st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_a_reduction_of_ragged_rows_is_right_at_any_lengths_and_grainsize(
    lengths: list[int], grainsize: int, seed: int
) -> None:
    rng = onp.random.default_rng(seed)
    case = Case(ragged, [rng.standard_normal(length) for length in lengths], (0.4,))
    value, gradients = both(case, grainsize=grainsize, scheduler="sync")
    expected, expected_gradients = reference(case.fun, case.sliced, *case.shared)
    assert_close(value, expected, 1e-12)
    assert_close(gradients, expected_gradients)


LEAVES = st.one_of(NUMBER.map(float), st.integers(-3, 3), st.text(max_size=2), st.none())
TREES = st.recursive(
    LEAVES,
    lambda trees: st.one_of(
        st.lists(trees, max_size=3), st.tuples(trees, trees), st.dictionaries(st.sampled_from("abc"), trees, max_size=3)
    ),
    max_leaves=6,
)


def floats_of(tree: Any) -> list[Any]:
    return [leaf for leaf in optree.tree_leaves(tree, namespace="dagad") if not isinstance(leaf, int | str)]


def tree_sum(rows: Any, tree: Any) -> Any:
    total = 0.0
    for item, weight in zip(rows["items"], rows["w"], strict=True):
        for power, leaf in enumerate([*floats_of(item), *floats_of(tree)], start=1):
            total = total + weight * leaf**power
    return total


@pytest.mark.filterwarnings("ignore:Argument . .*holds integers:dagad.DagadWarning")  # constants on purpose
@ROAD
@given(st.lists(TREES, min_size=1, max_size=5), TREES, st.integers(1, 6))
def test_a_reduction_takes_any_pytree_and_gives_its_gradient_back_as_one(
    items: list[Any], tree: Any, grainsize: int
) -> None:
    case = Case(tree_sum, {"items": items, "w": W[: len(items)]}, ((tree, 0.5),))
    value, gradients = both(case, grainsize=grainsize, scheduler="sync")
    expected, expected_gradients = reference(case.fun, case.sliced, *case.shared)
    assert_close(value, expected)
    assert_close(gradients, expected_gradients, 1e-11)


def test_some_of_the_rows_can_be_differentiated_and_others_not(scheduler: Any) -> None:
    def total(x: Any, params: Any) -> Any:
        return dagad.reduce_sum(weighted, {"x": x, "y": Y, "w": W}, params, 2.0, grainsize=4, scheduler=scheduler)

    params = {"beta": THETA, "rest": (0.1, THETA[:2])}
    expected = autograd.grad(lambda x: weighted({"x": x, "y": Y, "w": W}, params, 2.0))(X)
    assert_close(dagad.grad(total)(X, params), expected)


def test_some_items_of_a_list_can_be_differentiated_and_others_not() -> None:
    def program(chosen: Any, total: Callable[..., Any]) -> Any:
        return total(ragged, [*RAGGED[:2], chosen["one"], *RAGGED[2:5], chosen["two"] * 2.0, chosen["one"]], 0.3)

    chosen = {"one": onp.array([0.5, 0.1]), "two": onp.array([1.5])}
    expected = autograd.grad(lambda c: program(c, lambda f, rows, rate: f(rows, rate)))(chosen)
    for grainsize in (1, 3, 20):
        assert_close(dagad.grad(program)(chosen, partial(dagad.reduce_sum, grainsize=grainsize)), expected)


def test_one_array_passed_to_a_reduction_twice_has_the_gradient_of_both(scheduler: Any) -> None:
    def pull(rows: Any, a: Any, b: Any) -> Any:
        return np.sum(np.outer(rows, a) ** 2) + np.sum(np.outer(rows, b)) * np.sum(a * b)

    def total(x: Any) -> Any:
        return dagad.reduce_sum(pull, x, x, x, grainsize=5, scheduler=scheduler)

    value, gradient = dagad.value_and_grad(total)(Y)
    assert_close(value, pull(Y, Y, Y))
    assert_close(gradient, autograd.grad(lambda x: pull(x, x, x))(Y))


def test_the_same_array_can_be_in_the_rows_twice() -> None:
    def product(rows: Any) -> Any:
        return np.sum(rows[0] * np.exp(rows[1]["again"]))

    gradient = dagad.grad(lambda x: dagad.reduce_sum(product, (x, {"again": x}), grainsize=4))(Y)
    assert_close(gradient, autograd.grad(lambda x: np.sum(x * np.exp(x)))(Y))


def test_a_sum_of_no_rows_is_zero_without_a_call(scheduler: Any) -> None:
    def refuse(rows: Any, theta: Any) -> Any:
        raise AssertionError((rows, theta))

    empty: Any = [[], onp.zeros((0, 3)), {"a": [], "b": onp.zeros(0)}]
    for nothing in empty:
        assert dagad.reduce_sum(refuse, nothing, THETA, scheduler=scheduler) == 0.0
        assert dagad.map_sum(refuse, nothing, THETA, scheduler=scheduler) == 0.0
        value, gradient = dagad.value_and_grad(
            lambda theta, data=nothing: dagad.reduce_sum(refuse, data, theta, scheduler=scheduler)
        )(THETA)
        assert value == 0.0
        assert bits(gradient) == bits(onp.zeros(3))
    gradient = dagad.grad(lambda rows: dagad.reduce_sum(refuse, rows, THETA))(onp.zeros((0, 3)))
    assert bits(gradient) == bits(onp.zeros((0, 3)))


def test_a_reduction_of_one_row_is_right(scheduler: Any) -> None:
    for grainsize in (1, 7, "auto"):
        value, gradients = both(Case(squares, X[:1], (THETA,)), grainsize=grainsize, scheduler=scheduler)
        expected, expected_gradients = reference(squares, X[:1], THETA)
        assert_close(value, expected)
        assert_close(gradients, expected_gradients)


def test_reductions_of_float32_have_float32_values_and_gradients(scheduler: Any) -> None:
    rows, theta = X.astype("f4"), THETA.astype("f4")
    value, (of_rows, of_theta) = both(Case(squares, rows, (theta,)), grainsize=4, scheduler=scheduler)
    expected, expected_gradients = reference(squares, rows, theta)
    assert value.dtype == of_rows.dtype == of_theta.dtype == "f4"
    assert_close((value, (of_rows, of_theta)), (expected, expected_gradients), 1e-5)
    mixed = both(Case(squares, X, (theta,)), grainsize=4, scheduler=scheduler)[1]
    assert [gradient.dtype for gradient in mixed] == ["f8", "f4"]


def test_a_gradient_in_a_float32_number_is_a_float32_number() -> None:
    gradient = dagad.grad(lambda t: dagad.reduce_sum(squares, Y.astype("f4"), t, grainsize=4))(onp.float32(0.5))
    assert type(gradient) is onp.float32


def test_a_partial_sum_can_be_an_array(scheduler: Any) -> None:
    def total(theta: Any) -> Any:
        return dagad.reduce_sum(stacked, X, theta, grainsize=4, scheduler=scheduler)

    seed = onp.array([1.0, -2.0, 0.5])
    value, pullback = dagad.vjp(total, THETA)
    expected, expected_pullback = autograd.make_vjp(lambda theta: stacked(X, theta))(THETA)[::-1]
    assert_close(value, expected)
    assert_close(pullback(seed), (expected_pullback(seed),))
    gradient = dagad.grad(lambda theta: np.sum(seed * np.exp(total(theta))))(THETA)
    assert_close(gradient, autograd.grad(lambda theta: np.sum(seed * np.exp(stacked(X, theta))))(THETA))


def test_a_partial_sum_can_be_a_pytree(scheduler: Any) -> None:
    def program(theta: Any, total: Callable[..., Any]) -> Any:
        parts = total(structured, X, theta)
        return np.exp(-parts["loss"]) * np.sum(parts["by column"][0] ** 2) + parts["by column"][1][0]

    value, gradient = dagad.value_and_grad(program)(THETA, cut_on(scheduler))
    expected, expected_gradient = autograd.value_and_grad(program)(THETA, lambda f, *args: f(*args))
    assert_close(value, expected)
    assert_close(gradient, expected_gradient)


def test_a_pytree_sum_can_be_differentiated_twice() -> None:
    def program(theta: Any, total: Callable[..., Any]) -> Any:
        parts = total(structured, X, theta)
        return np.sum(parts["by column"][0] ** 3) * parts["loss"]

    def second(grad: Any, total: Any) -> Any:
        return grad(lambda t: np.sum(grad(program)(t, total) * onp.arange(3.0)))(THETA)

    assert_close(
        second(dagad.grad, partial(dagad.reduce_sum, grainsize=4)), second(autograd.grad, lambda f, *a: f(*a)), 1e-11
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("policy", [None, Keep, Recompute, Preaccumulate])
def test_some_partial_sums_can_be_integers(policy: Any, scheduler: Any) -> None:
    """Python's sum of nothing is the int 0, which is what ragged data without entries give."""
    data = [[], [1.0], [], [2.0, 3.0], []] * 3

    def total(rows: Any, t: Any) -> Any:
        return sum([t * x for row in rows for x in row])

    def loss(rows: Any, t: Any) -> Any:
        options = {"policy": policy and policy(), "grainsize": 1, "scheduler": scheduler}
        return dagad.reduce_sum(total, rows, t, **options)

    for _ in range(3):  # the runtime learns from one run for the next
        value, (of_rows, of_t) = dagad.value_and_grad(loss, (0, 1))(data, 2.0)
        assert (value, of_t) == (36.0, 18.0)
        assert of_rows == [[], [2.0], [], [2.0, 2.0], []] * 3
        value, pullback = dagad.vjp(loss, data, 2.0)
        assert (value, pullback(1.0)[1]) == (36.0, 18.0)


def test_one_part_of_a_pytree_sum_can_be_used_alone() -> None:
    gradient = dagad.grad(lambda t: dagad.reduce_sum(structured, X, t, grainsize=4)["loss"])(THETA)
    assert_close(gradient, autograd.grad(lambda t: structured(X, t)["loss"])(THETA))


# --- the programs around ----------------------------------------------------------------------------------------------


def plainly(fun: Callable[..., Any], *args: Any) -> Any:
    return fun(*args)


def around(theta: Any, total: Callable[..., Any]) -> Any:
    return 3.0 * np.exp(-total(logistic, (X, (Y > 0) * 1.0), theta) / N) / (1.0 + np.sum(theta**2))


def several(theta: Any, total: Callable[..., Any]) -> Any:
    center = total(stacked, X, theta) / N
    return total(squares, X, center) * total(squares, X * np.sum(theta), 0.1) + total(ragged, RAGGED, theta[0])


def inside_another(theta: Any, total: Callable[..., Any]) -> Any:
    def group(rows: Any, theta: Any, total: Callable[..., Any] = plainly) -> Any:
        return np.exp(0.01 * total(squares, rows, theta * np.mean(rows))) + total(stacked, rows, theta)[1]

    if total is plainly:
        return sum([group(X[start : start + 4], theta) for start in range(0, N, 4)])
    return total(partial(group, total=partial(dagad.reduce_sum, grainsize=3)), X, theta)


def by_closure(theta: Any, total: Callable[..., Any]) -> Any:
    scale = np.sum(theta**2)

    def residual(rows: Any) -> Any:
        return np.sum(np.sin(rows @ theta) * scale)

    return total(residual, X)


PROGRAMS = [around, several, inside_another, by_closure]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_gradient_of_any_program_around_a_reduction_is_right(program: Callable[..., Any], scheduler: Any) -> None:
    value, gradient = dagad.value_and_grad(program)(THETA, cut_on(scheduler))
    expected, expected_gradient = autograd.value_and_grad(program)(THETA, plainly)
    assert_close(value, expected)
    assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_outer_derivative_can_be_autograds_own(program: Callable[..., Any], scheduler: Any) -> None:
    value, gradient = autograd.value_and_grad(program)(THETA, cut_on(scheduler))
    expected, expected_gradient = autograd.value_and_grad(program)(THETA, plainly)
    assert_close(value, expected)
    assert_close(gradient, expected_gradient)


def test_autograds_elementwise_grad_and_jacobian_around_a_reduction_are_right(scheduler: Any) -> None:
    def elementwise(t: Any, total: Callable[..., Any]) -> Any:
        return t * total(stacked, X, THETA) + np.tanh(t) * total(squares, X, np.mean(t))

    gradient = autograd.elementwise_grad(elementwise)(THETA, cut_on(scheduler))
    assert_close(gradient, autograd.elementwise_grad(elementwise)(THETA, plainly))
    jacobian = autograd.jacobian(lambda t, total: total(stacked, X, t))
    assert_close(jacobian(THETA, cut_on(scheduler)), jacobian(THETA, plainly))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_gradient_of_a_gradient_is_right(program: Callable[..., Any], scheduler: Any) -> None:
    seed = onp.array([1.0, -0.5, 2.0])
    actual = dagad.grad(lambda t: np.sum(seed * dagad.grad(program)(t, cut_on(scheduler))))(THETA)
    assert_close(actual, autograd.grad(lambda t: np.sum(seed * autograd.grad(program)(t, plainly)))(THETA), 1e-11)


def test_a_hessian_in_rows_and_shared_is_right() -> None:
    def mixed(rows: Any, theta: Any) -> Any:
        return np.sum(np.sin(rows @ theta) * rows[:, 0])

    def twice(grad: Any, total: Callable[..., Any]) -> Any:
        def slope(at: Any) -> Any:
            return np.sum(grad(lambda x: total(mixed, x, at["t"]))(at["x"]) ** 2)

        return grad(slope)({"x": X, "t": THETA})

    assert_close(twice(dagad.grad, cut_on("threads")), twice(autograd.grad, plainly), 1e-11)
