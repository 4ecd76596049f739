"""Reductions: is every sum and gradient what plain autograd makes of the uncut function, and to the bit the same?"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import autograd
import autograd.numpy as np
import dask
import dask.array
import numpy as onp
import optree
import pytest
from hypothesis import given, settings, strategies as st

import dagad
from dagad.extend import Keep, Preaccumulate, Recompute, explicit

RNG = onp.random.default_rng(0)
N = 23
X, Y, W = RNG.standard_normal((N, 3)), RNG.standard_normal(N), RNG.uniform(0.5, 2.0, N)
THETA = onp.array([0.3, -0.7, 1.1])
RAGGED = [RNG.standard_normal(length) for length in (3, 1, 0, 5, 2, 2, 7)]


class Table(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Model:
    slope: Any
    offset: Any


register: Any = optree.register_pytree_node
register(Model, lambda model: ((model.slope, model.offset), None), lambda _, parts: Model(*parts), namespace="dagad")


@dataclass(frozen=True)
class Case:
    """A chunk function that sums over its rows, so that the uncut function is the function itself."""

    fun: Callable[..., Any]
    sliced: Any
    shared: tuple[Any, ...]


def logistic(rows: Any, theta: Any) -> Any:
    x, y = rows
    return np.sum(np.logaddexp(0.0, x @ theta) - y * (x @ theta))


def squares(rows: Any, center: Any) -> Any:
    return np.sum((rows - center) ** 2)


def weighted(rows: Any, params: Any, scale: Any) -> Any:
    residual = rows["y"] - rows["x"] @ params["beta"] - params["rest"][0]
    return np.sum(rows["w"] * residual**2) / scale + np.sum(params["rest"][1] ** 2) * len(rows["y"])


def line(rows: Any, model: Any) -> Any:
    return np.sum(np.tanh(rows.x @ model.slope + model.offset) * rows.y)


def ragged(rows: Any, rate: Any) -> Any:
    return sum([np.sum(np.exp(rate * row)) for row in rows], 0.0)


def visits(rows: Any, rate: Any) -> Any:
    return sum([row["n"] * np.sum(np.sin(rate * row["x"])) * row["deep"][0] for row in rows], 0.0)


def columns(rows: Any, offset: Any) -> Any:
    named = np.array([name == "a" for name in rows["name"]])
    return np.sum((rows["x"] * rows["count"] + offset) ** 2 * np.where(named, 1.0, 0.5))


def pairs(rows: Any, theta: Any) -> Any:
    lists, (array, nothing) = rows
    assert nothing is None
    return sum([item[0] * np.sum(item[1] * theta) for item in lists], 0.0) + np.sum(array**3)


def with_options(rows: Any, options: Any, numbers: Any) -> Any:
    assert options["name"] == "cubic"
    assert options["nothing"] is None
    return numbers[0] * options["factor"] * np.sum(rows ** options["power"]) + numbers[1]["a"] * len(rows)


CASES = {
    "tuple": Case(logistic, (X, (Y > 0).astype(float)), (THETA,)),
    "array": Case(squares, X, (THETA,)),
    "number": Case(squares, Y, (0.25,)),
    "fortran": Case(squares, onp.asfortranarray(X), (THETA,)),
    "dict": Case(weighted, {"x": X, "y": Y, "w": W}, ({"beta": THETA, "rest": (0.1, THETA[:2])}, 2.5)),
    "records": Case(line, Table(X, Y), (Model(THETA, 0.5),)),
    "ragged": Case(ragged, RAGGED, (0.3,)),
    "list of dicts": Case(
        visits, [{"n": i, "x": x, "id": "p", "deep": [0.5 + i]} for i, x in enumerate(RAGGED)], (onp.float64(1.5),)
    ),
    "mixed columns": Case(columns, {"x": Y, "count": onp.arange(N), "name": onp.array(["a", "b"] * N)[:N]}, (0.2,)),
    "lists in tuples": Case(pairs, ([(w, x) for w, x in zip(W, X, strict=True)], (Y, None)), (THETA,)),
    "constants": Case(
        with_options, W, ({"name": "cubic", "nothing": None, "factor": 2.0, "power": 3}, [1.5, {"a": onp.array(0.5)}])
    ),
}


def reference(fun: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """Return plain autograd's value and gradients, None for what is not floating point."""
    leaves, treedef = flatten(args, none_is_leaf=False)
    places = [place for place, leaf in enumerate(leaves) if onp.asarray(leaf).dtype.kind == "f"]

    def flat(taken: Any) -> Any:
        full = dict(enumerate(leaves)) | dict(zip(places, [taken[i] for i in range(len(places))], strict=True))
        return fun(*optree.tree_unflatten(treedef, full.values()))

    value, taken = autograd.value_and_grad(flat)([leaves[place] for place in places])
    full = dict.fromkeys(range(len(leaves))) | dict(zip(places, taken, strict=True))
    return value, optree.tree_unflatten(treedef, full.values())


def flatten(tree: Any, none_is_leaf: bool = True) -> tuple[list[Any], Any]:
    return optree.tree_flatten(tree, none_is_leaf=none_is_leaf, namespace="dagad")


def assert_close(actual: Any, expected: Any, rtol: float = 1e-12) -> None:
    leaves, treedef = flatten(actual)
    others, other_treedef = flatten(expected)
    assert treedef == other_treedef
    for leaf, other in zip(leaves, others, strict=True):
        assert (leaf is None) == (other is None)
        if leaf is not None:
            assert onp.shape(leaf) == onp.shape(other)
            gap = onp.max(onp.abs(onp.asarray(leaf) - other), initial=0.0)
            assert gap <= rtol * max(onp.max(onp.abs(other), initial=0.0), 1e-300)


def bits(tree: Any) -> list[Any]:
    """Return what has to be equal for two results to be bitwise equal."""
    leaves, treedef = flatten(tree)
    found = [None if leaf is None else (onp.asarray(leaf).dtype.str, onp.asarray(leaf).tobytes()) for leaf in leaves]
    return [treedef, *found]


def both(case: Case, **options: Any) -> tuple[Any, Any]:
    """Return value and gradients, in all arguments, of a case as a reduction."""

    def total(*args: Any) -> Any:
        return dagad.reduce_sum(case.fun, *args, **options)

    return dagad.value_and_grad(total, tuple(range(1 + len(case.shared))))(case.sliced, *case.shared)


# --- the numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Argument . .*holds integers:dagad.DagadWarning")  # constants on purpose
@pytest.mark.parametrize("grainsize", [1, 4, 1000, "auto"])
@pytest.mark.parametrize("name", CASES)
def test_is_a_reduction_what_autograd_makes_of_the_uncut_function(name: str, grainsize: Any, scheduler: Any) -> None:
    case = CASES[name]
    value, gradients = both(case, grainsize=grainsize, scheduler=scheduler)
    expected, expected_gradients = reference(case.fun, case.sliced, *case.shared)
    assert_close(value, expected)
    assert_close(gradients, expected_gradients)


@pytest.mark.filterwarnings("ignore:Argument . .*holds integers:dagad.DagadWarning")  # constants on purpose
@pytest.mark.parametrize("name", CASES)
def test_is_the_value_alone_the_same_and_does_nobody_trace_it(name: str, scheduler: Any) -> None:
    case = CASES[name]
    value = dagad.reduce_sum(case.fun, case.sliced, *case.shared, grainsize=4, scheduler=scheduler)
    assert bits(value) == bits(both(case, grainsize=4, scheduler=scheduler)[0])
    assert_close(value, case.fun(case.sliced, *case.shared))


ROAD = settings(max_examples=40, deadline=None, derandomize=True)
NUMBER = st.floats(-2.0, 2.0, width=32)
LENGTHS = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@ROAD
@given(LENGTHS, st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_do_ragged_lengths_and_grainsizes_matter(lengths: list[int], grainsize: int, seed: int) -> None:
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
def test_does_any_pytree_go_in_and_come_back(items: list[Any], tree: Any, grainsize: int) -> None:
    case = Case(tree_sum, {"items": items, "w": W[: len(items)]}, ((tree, 0.5),))
    value, gradients = both(case, grainsize=grainsize, scheduler="sync")
    expected, expected_gradients = reference(case.fun, case.sliced, *case.shared)
    assert_close(value, expected)
    assert_close(gradients, expected_gradients, 1e-11)


def test_may_only_a_part_of_the_rows_be_differentiated(scheduler: Any) -> None:
    def total(x: Any, params: Any) -> Any:
        return dagad.reduce_sum(weighted, {"x": x, "y": Y, "w": W}, params, 2.0, grainsize=4, scheduler=scheduler)

    params = {"beta": THETA, "rest": (0.1, THETA[:2])}
    expected = autograd.grad(lambda x: weighted({"x": x, "y": Y, "w": W}, params, 2.0))(X)
    assert_close(dagad.grad(total)(X, params), expected)


def test_may_some_items_of_a_list_be_differentiated_and_others_not() -> None:
    def program(chosen: Any, total: Callable[..., Any]) -> Any:
        return total(ragged, [*RAGGED[:2], chosen["one"], *RAGGED[2:5], chosen["two"] * 2.0, chosen["one"]], 0.3)

    chosen = {"one": onp.array([0.5, 0.1]), "two": onp.array([1.5])}
    expected = autograd.grad(lambda c: program(c, lambda f, rows, rate: f(rows, rate)))(chosen)
    for grainsize in (1, 3, 20):
        assert_close(dagad.grad(program)(chosen, partial(dagad.reduce_sum, grainsize=grainsize)), expected)


def test_may_the_same_array_be_passed_twice(scheduler: Any) -> None:
    def pull(rows: Any, a: Any, b: Any) -> Any:
        return np.sum(np.outer(rows, a) ** 2) + np.sum(np.outer(rows, b)) * np.sum(a * b)

    def total(x: Any) -> Any:
        return dagad.reduce_sum(pull, x, x, x, grainsize=5, scheduler=scheduler)

    value, gradient = dagad.value_and_grad(total)(Y)
    assert_close(value, pull(Y, Y, Y))
    assert_close(gradient, autograd.grad(lambda x: pull(x, x, x))(Y))


def test_may_the_same_array_be_in_the_rows_twice() -> None:
    def product(rows: Any) -> Any:
        return np.sum(rows[0] * np.exp(rows[1]["again"]))

    gradient = dagad.grad(lambda x: dagad.reduce_sum(product, (x, {"again": x}), grainsize=4))(Y)
    assert_close(gradient, autograd.grad(lambda x: np.sum(x * np.exp(x)))(Y))


def test_is_the_sum_of_no_rows_zero_without_a_call(scheduler: Any) -> None:
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


def test_is_one_row_enough(scheduler: Any) -> None:
    for grainsize in (1, 7, "auto"):
        value, gradients = both(Case(squares, X[:1], (THETA,)), grainsize=grainsize, scheduler=scheduler)
        expected, expected_gradients = reference(squares, X[:1], THETA)
        assert_close(value, expected)
        assert_close(gradients, expected_gradients)


def test_does_float32_stay_float32(scheduler: Any) -> None:
    rows, theta = X.astype("f4"), THETA.astype("f4")
    value, (of_rows, of_theta) = both(Case(squares, rows, (theta,)), grainsize=4, scheduler=scheduler)
    expected, expected_gradients = reference(squares, rows, theta)
    assert value.dtype == of_rows.dtype == of_theta.dtype == "f4"
    assert_close((value, (of_rows, of_theta)), (expected, expected_gradients), 1e-5)
    mixed = both(Case(squares, X, (theta,)), grainsize=4, scheduler=scheduler)[1]
    assert [gradient.dtype for gradient in mixed] == ["f8", "f4"]


def test_do_float32_numbers_keep_their_type() -> None:
    gradient = dagad.grad(lambda t: dagad.reduce_sum(squares, Y.astype("f4"), t, grainsize=4))(onp.float32(0.5))
    assert type(gradient) is onp.float32


def stacked(rows: Any, theta: Any) -> Any:
    return rows.T @ np.tanh(rows @ theta)


def structured(rows: Any, theta: Any) -> Any:
    return {"loss": np.sum((rows @ theta) ** 2), "by column": (np.sum(rows * theta, axis=0), [len(rows)])}


def test_may_a_partial_sum_be_an_array(scheduler: Any) -> None:
    def total(theta: Any) -> Any:
        return dagad.reduce_sum(stacked, X, theta, grainsize=4, scheduler=scheduler)

    seed = onp.array([1.0, -2.0, 0.5])
    value, pullback = dagad.vjp(total, THETA)
    expected, expected_pullback = autograd.make_vjp(lambda theta: stacked(X, theta))(THETA)[::-1]
    assert_close(value, expected)
    assert_close(pullback(seed), (expected_pullback(seed),))
    gradient = dagad.grad(lambda theta: np.sum(seed * np.exp(total(theta))))(THETA)
    assert_close(gradient, autograd.grad(lambda theta: np.sum(seed * np.exp(stacked(X, theta))))(THETA))


def test_may_a_partial_sum_be_a_pytree(scheduler: Any) -> None:
    def program(theta: Any, total: Callable[..., Any]) -> Any:
        parts = total(structured, X, theta)
        return np.exp(-parts["loss"]) * np.sum(parts["by column"][0] ** 2) + parts["by column"][1][0]

    value, gradient = dagad.value_and_grad(program)(THETA, cut_on(scheduler))
    expected, expected_gradient = autograd.value_and_grad(program)(THETA, lambda f, *args: f(*args))
    assert_close(value, expected)
    assert_close(gradient, expected_gradient)


def test_may_a_pytree_sum_be_differentiated_twice() -> None:
    def program(theta: Any, total: Callable[..., Any]) -> Any:
        parts = total(structured, X, theta)
        return np.sum(parts["by column"][0] ** 3) * parts["loss"]

    def second(grad: Any, total: Any) -> Any:
        return grad(lambda t: np.sum(grad(program)(t, total) * onp.arange(3.0)))(THETA)

    assert_close(
        second(dagad.grad, partial(dagad.reduce_sum, grainsize=4)), second(autograd.grad, lambda f, *a: f(*a)), 1e-11
    )


@pytest.mark.parametrize("policy", [None, Keep, Recompute, Preaccumulate])
def test_may_some_partial_sums_be_integers(policy: Any, scheduler: Any) -> None:
    """Python's sum of nothing is the int 0, which is what ragged data without entries give."""
    data = [[], [1.0], [], [2.0, 3.0], []] * 7

    def total(rows: Any, t: Any) -> Any:
        return sum([t * x for row in rows for x in row])

    def loss(rows: Any, t: Any) -> Any:
        options = {"policy": policy and policy(), "grainsize": 1, "scheduler": scheduler}
        return dagad.reduce_sum(total, rows, t, **options)

    for _ in range(3):  # the runtime learns from one run for the next
        value, (of_rows, of_t) = dagad.value_and_grad(loss, (0, 1))(data, 2.0)
        assert (value, of_t) == (84.0, 42.0)
        assert of_rows == [[], [2.0], [], [2.0, 2.0], []] * 7
        value, pullback = dagad.vjp(loss, data, 2.0)
        assert (value, pullback(1.0)[1]) == (84.0, 42.0)


def test_may_only_a_part_of_a_pytree_sum_be_used() -> None:
    gradient = dagad.grad(lambda t: dagad.reduce_sum(structured, X, t, grainsize=4)["loss"])(THETA)
    assert_close(gradient, autograd.grad(lambda t: structured(X, t)["loss"])(THETA))


# --- the programs around ----------------------------------------------------------------------------------------------


def plainly(fun: Callable[..., Any], *args: Any) -> Any:
    return fun(*args)


def cut_on(scheduler: Any) -> Callable[..., Any]:
    return partial(dagad.reduce_sum, grainsize=4, scheduler=scheduler)


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
def test_does_the_program_around_matter(program: Callable[..., Any], scheduler: Any) -> None:
    value, gradient = dagad.value_and_grad(program)(THETA, cut_on(scheduler))
    expected, expected_gradient = autograd.value_and_grad(program)(THETA, plainly)
    assert_close(value, expected)
    assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("program", PROGRAMS)
def test_may_the_outer_derivative_be_autograds_own(program: Callable[..., Any], scheduler: Any) -> None:
    value, gradient = autograd.value_and_grad(program)(THETA, cut_on(scheduler))
    expected, expected_gradient = autograd.value_and_grad(program)(THETA, plainly)
    assert_close(value, expected)
    assert_close(gradient, expected_gradient)


def test_may_an_elementwise_derivative_be_taken_around(scheduler: Any) -> None:
    def elementwise(t: Any, total: Callable[..., Any]) -> Any:
        return t * total(stacked, X, THETA) + np.tanh(t) * total(squares, X, np.mean(t))

    gradient = autograd.elementwise_grad(elementwise)(THETA, cut_on(scheduler))
    assert_close(gradient, autograd.elementwise_grad(elementwise)(THETA, plainly))
    jacobian = autograd.jacobian(lambda t, total: total(stacked, X, t))
    assert_close(jacobian(THETA, cut_on(scheduler)), jacobian(THETA, plainly))


@pytest.mark.parametrize("program", PROGRAMS)
def test_is_a_gradient_of_a_gradient_right(program: Callable[..., Any], scheduler: Any) -> None:
    seed = onp.array([1.0, -0.5, 2.0])
    actual = dagad.grad(lambda t: np.sum(seed * dagad.grad(program)(t, cut_on(scheduler))))(THETA)
    assert_close(actual, autograd.grad(lambda t: np.sum(seed * autograd.grad(program)(t, plainly)))(THETA), 1e-11)


def test_is_a_hessian_in_rows_and_shared_right() -> None:
    def mixed(rows: Any, theta: Any) -> Any:
        return np.sum(np.sin(rows @ theta) * rows[:, 0])

    def twice(grad: Any, total: Callable[..., Any]) -> Any:
        def slope(at: Any) -> Any:
            return np.sum(grad(lambda x: total(mixed, x, at["t"]))(at["x"]) ** 2)

        return grad(slope)({"x": X, "t": THETA})

    assert_close(twice(dagad.grad, cut_on("threads")), twice(autograd.grad, plainly), 1e-11)


# --- map_sum ----------------------------------------------------------------------------------------------------------


def one_visit(item: Any, rate: Any) -> Any:
    return item["n"] * np.sum(np.sin(rate * item["x"])) * item["deep"][0]


ITEMS = {
    "list of dicts": (one_visit, CASES["list of dicts"].sliced, (1.5,)),
    "rows of an array": (lambda row, theta: np.exp(row @ theta), X, (THETA,)),
    "dict of arrays": (lambda item, t: item["x"] @ t * item["y"], {"x": X, "y": Y}, (THETA,)),
    "array and list": (lambda item, t: item[0] * np.sum(item[1] ** 2) * t, (Y[: len(RAGGED)], RAGGED), (0.5,)),
    "numbers": (lambda item, t: item**2 * t, [0.5, 1.5, -1.0], (2.0,)),
    "records": (lambda item, t: item.slope * t + item.offset**2, [Model(0.5, 1.0), Model(2.0, 3.0)], (0.7,)),
}


def loop(fun: Callable[..., Any], items: Any, *shared: Any) -> Any:
    if not isinstance(items, list):
        leaves, treedef = optree.tree_flatten(items, lambda tree: isinstance(tree, list), namespace="dagad")
        items = [optree.tree_unflatten(treedef, [leaf[i] for leaf in leaves]) for i in range(len(leaves[0]))]
    return sum([fun(item, *shared) for item in items])


@pytest.mark.parametrize("name", ITEMS)
def test_is_map_sum_the_sum_over_items(name: str, scheduler: Any) -> None:
    fun, items, shared = ITEMS[name]
    expected, expected_gradients = reference(lambda *args: loop(fun, *args), items, *shared)
    for grainsize in (1, 3, "auto"):
        total = partial(dagad.map_sum, fun, grainsize=grainsize, scheduler=scheduler)
        assert_close(total(items, *shared), expected)
        value, gradients = dagad.value_and_grad(total, (0, 1))(items, *shared)
        assert_close(value, expected)
        assert_close(gradients, expected_gradients)


def test_may_items_be_summed_to_a_pytree() -> None:
    def parts(row: Any, theta: Any) -> Any:
        return {"a": row * theta, "b": (np.sum(row) * theta[0],)}

    def program(theta: Any) -> Any:
        total = dagad.map_sum(parts, X, theta, grainsize=4)
        return np.sum(total["a"] ** 2) * total["b"][0]

    expected = autograd.grad(lambda theta: np.sum((X.sum(0) * theta) ** 2) * X.sum() * theta[0])(THETA)
    assert_close(dagad.grad(program)(THETA), expected)


@explicit
def line_by_hand(row: Any, theta: Any) -> Any:
    return row @ theta, lambda seed: (seed * theta, seed * row)


@explicit
def squares_by_hand(rows: Any, center: Any) -> Any:
    residual = rows - center
    return onp.sum(residual**2), lambda seed: (2 * seed * residual, -2 * seed * residual.sum(axis=0))


def test_may_a_function_bring_its_own_derivative(scheduler: Any) -> None:
    for total, fun, uncut in (
        (dagad.reduce_sum, squares_by_hand, squares),
        (dagad.map_sum, line_by_hand, lambda x, t: np.sum(x @ t)),
    ):

        def loss(x: Any, t: Any, total: Any = total, fun: Any = fun) -> Any:
            return total(fun, x, t, grainsize=4, scheduler=scheduler)

        expected, expected_gradients = reference(uncut, X, THETA)
        assert_close(loss(X, THETA), expected)
        value, gradients = dagad.value_and_grad(loss, (0, 1))(X, THETA)
        assert_close(value, expected)
        assert_close(gradients, expected_gradients)


def test_may_items_with_their_own_derivative_be_ragged() -> None:
    @explicit
    def total_of(item: Any, rate: Any) -> Any:
        grown = onp.exp(rate * item["x"])
        return grown.sum(), lambda seed: ({"x": seed * rate * grown}, seed * (grown * item["x"]).sum())

    items = [{"x": x} for x in RAGGED]
    gradients = dagad.grad(lambda x, t: dagad.map_sum(total_of, x, t, grainsize=3), (0, 1))(items, 0.3)
    assert_close(gradients, reference(lambda x, t: loop(lambda i, t: np.sum(np.exp(t * i["x"])), x, t), items, 0.3)[1])


# --- the bits ---------------------------------------------------------------------------------------------------------

TALL = RNG.uniform(0.1, 3.0, (211, 6))
WIDE = RNG.standard_normal((6, 6))
EXPRESSIONS: dict[str, Callable[[Any, Any], Any]] = {
    "x ** 0.5": lambda x, t: (x * t) ** 0.5,
    "x ** -1": lambda x, t: (x + t) ** -1,
    "x ** 2": lambda x, t: (x - t) ** 2,
    "x ** 3": lambda x, t: (x - t) ** 3,
    "x ** 2.0": lambda x, t: (x - t) ** 2.0,
    "x ** 1.7": lambda x, t: (x * t) ** onp.float64(1.7),
    "x ** array": lambda x, t: (x * t) ** onp.array(2),
    "x ** t": lambda x, t: x**t,
    "t ** x": lambda x, t: t**x,
    "2 ** x": lambda x, t: 2.0 ** (x * t),
    "powers of t": lambda x, t: x * (t**0.5 + t**2 + t**-1 + t**3 + (2 * t) ** 0.5 + 1.7**t),
    "powers of numbers": lambda x, t: sum([(v * t) ** p for v in x[:, 0] for p in (0.5, -1, 2, 3, -2.0, 1.7)]),
    "powers by numbers": lambda x, t: sum([(base * t) ** v for v in x[:, 0] for base in (0.3, 2)]),
    "power": lambda x, t: np.power(x * t, 2) + np.power(x, 0.5),
    "t % and //": lambda x, t: x * (7.7 % t) + (x * t) % 0.7,
    "abs and neg": lambda x, t: abs(-x + t) / (1 + t),
    "t / x": lambda x, t: t / x + x / t,
    "matmul": lambda x, t: np.tanh(x @ WIDE * t) @ WIDE.T,
    "strided": lambda x, t: x[::-1, ::2] @ WIDE[::2] * t,
    "transposed": lambda x, t: (x.T @ (x * t)).T,
    "statistics": lambda x, t: np.mean(x * t) + np.var(x * t) + np.std(x) + np.linalg.norm(x * t),
    "cumsum": lambda x, t: np.cumsum(x * t, axis=0)[-1] + np.sum(x * t, axis=1)[0],
    "einsum": lambda x, t: np.einsum("ij,jk->k", x * t, WIDE) + np.tensordot(x * t, WIDE, 1)[0],
    "mixed": lambda x, t: np.logaddexp(x, t) + np.where(x > t, x * t, np.sin(x)) + np.maximum(x, t),
    "builtin sum": lambda x, t: sum([row @ row * t for row in x]),
}


NUMBERS = [1.37, onp.float64(1.37), onp.float32(1.37), onp.array(1.37), onp.full(6, 1.37)]


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_do_the_bits_of_a_value_depend_on_which_gradients_are_asked_for(name: str, number: Any) -> None:
    def partial_sum(rows: Any, t: Any) -> Any:
        return np.sum(EXPRESSIONS[name](rows, t))

    def total(x: Any, t: Any) -> Any:
        return dagad.reduce_sum(partial_sum, x, t, grainsize=50, scheduler="sync")

    plain = bits(total(TALL, number))
    assert bits(dagad.value_and_grad(total, 0)(TALL, number)[0]) == plain
    assert bits(dagad.value_and_grad(total, 1)(TALL, number)[0]) == plain
    assert bits(dagad.value_and_grad(total, (0, 1))(TALL, number)[0]) == plain
    assert bits(dagad.vjp(total, TALL, number)[0]) == plain
    assert bits(dagad.evaluate(total, TALL, number, argnums=1).value()) == plain


def test_do_the_bits_of_a_value_depend_on_who_differentiates() -> None:
    def total(t: Any) -> Any:
        return dagad.reduce_sum(squares, TALL, t, grainsize=50)

    values = [total(0.3), autograd.value_and_grad(total)(0.3)[0], autograd.make_vjp(total)(0.3)[1]]
    inner: list[Any] = []

    def nested(t: Any) -> Any:
        inner.append(total(t))
        return inner[-1] * t

    dagad.grad(dagad.grad(nested))(0.3)
    while hasattr(inner[0], "_value"):
        inner[0] = inner[0]._value
    assert len({float(value) for value in (*values, inner[0])}) == 1


def loaded(rows: Any, theta: Any) -> Any:
    """A chunk that takes an unforeseeable time and whose sums show every change of order or layout."""
    time.sleep(random.random() * 2e-3)
    x, y = rows
    return np.sum(np.log1p(np.exp(x @ theta))) + np.sum((y * (x @ theta)) ** 2) + np.sum(x * np.sum(theta))


COLUMN = onp.arange(12.0)[::2] / 7.0
LAYOUTS = {
    "C": (TALL, COLUMN.copy()),
    "F": (onp.asfortranarray(TALL), COLUMN.copy()),
    "strided": (onp.repeat(TALL, 2, axis=0)[::2], COLUMN),
    "strided columns": (onp.repeat(TALL, 2, axis=1)[:, ::2], COLUMN),
    "backwards": (TALL[::-1], COLUMN[::-1]),
    "transposed": (TALL.T.copy().T, onp.stack([COLUMN, COLUMN], axis=1)[:, 0]),
    "broadcast": (onp.broadcast_to(TALL[0], TALL.shape), onp.broadcast_to(onp.float64(0.3), 6)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_are_the_bits_the_same_on_every_scheduler(layout: str, cluster: Any) -> None:
    x, theta = LAYOUTS[layout]

    def once(argnums: Any, **options: Any) -> Any:
        def loss(x: Any, t: Any) -> Any:
            return dagad.reduce_sum(loaded, (x, x[:, :1]), t, grainsize=10, **options)

        return bits(dagad.value_and_grad(loss, argnums)(x, theta))

    for argnums in (1, (0, 1)):
        expected = once(argnums, scheduler="sync")
        for workers in (1, 2, 4):
            with dask.config.set(num_workers=workers):
                assert once(argnums, scheduler="threads") == expected
        for _ in range(2):
            assert once(argnums, scheduler=cluster) == expected


CUBE = RNG.standard_normal((40, 30, 20))
ODD = {
    "C": CUBE,
    "F": onp.asfortranarray(CUBE),
    "strided": CUBE[:, ::2],
    "backwards": CUBE[:, ::-1],
    "permuted": CUBE.transpose(1, 2, 0),
    "permuted and cut": CUBE[3:9, ::2, 1:].transpose(2, 1, 0),
    "cut out of F": onp.asfortranarray(CUBE[:, :, 0])[3:20, 5:17],
}


def sums(array: Any, t: Any) -> Any:
    return np.sum(array * t) + np.sum(np.sin(array)) + np.sum(np.sum(array, axis=0) ** 2) * np.mean(array)


@pytest.mark.parametrize("layout", ODD)
@pytest.mark.parametrize("way", ["shared", "closure", "items", "deep items"])
def test_does_the_layout_of_an_array_show_in_the_bits(layout: str, way: str, cluster: Any) -> None:
    """It may arrive in another layout elsewhere, or where it is differentiated in."""

    def value(array: Any, where: Any) -> Any:
        options = {"grainsize": 2, "scheduler": where}
        if way == "shared":
            return dagad.reduce_sum(lambda rows, a: sums(a, rows[0]), THETA, array, **options)
        if way == "closure":
            return dagad.reduce_sum(lambda rows: sums(array, rows[0]), THETA, **options)
        if way == "items":
            return dagad.reduce_sum(
                lambda rows: sum([sums(row, 0.3) for row in rows]), [array, array * 2.0, array], **options
            )
        return dagad.reduce_sum(
            lambda rows: sum([sums(row["a"][0], 0.3) for row in rows]), [{"a": (array,)}] * 3, **options
        )

    expected = bits(value(ODD[layout], cluster))
    for where in ("sync", "threads", cluster):
        assert bits(value(ODD[layout], where)) == expected
        assert bits(dagad.value_and_grad(value)(ODD[layout], where)[0]) == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_are_the_bits_the_same_under_every_policy(layout: str, scheduler: Any) -> None:
    x, theta = LAYOUTS[layout]

    def once(policy: Any) -> Any:
        def loss(x: Any, t: Any) -> Any:
            return dagad.reduce_sum(loaded, (x, x[:, :1]), t, grainsize=30, scheduler=scheduler, policy=policy)

        return bits((dagad.value_and_grad(loss, (0, 1))(x, theta), dagad.vjp(loss, x, theta)[1](1.0)))

    expected = once(None)
    assert all(once(policy()) == expected for policy in (Keep, Recompute, Preaccumulate))


@pytest.mark.parametrize("fun", [squares, stacked, structured])
def test_are_the_bits_the_same_the_next_time(fun: Any, cluster: Any) -> None:
    """What was learnt from the first run, such as how many chunks pay for a task, changes no bit."""
    x, theta = TALL[:100, :3], THETA

    def once(where: Any) -> Any:
        total = partial(dagad.reduce_sum, fun, grainsize=1, scheduler=where)
        value, pullback = dagad.vjp(total, x, theta)
        seed = optree.tree_map(onp.ones_like, value, namespace="dagad")
        together = dagad.value_and_grad(total, (0, 1))(x, theta) if fun is squares else None
        return bits((value, pullback(seed), total(x, theta), together))

    expected = once(cluster)
    for where in ("sync", "threads"):
        for _ in range(4):
            assert once(where) == expected


# --- what is refused --------------------------------------------------------------------------------------------------


def test_are_rows_of_different_lengths_refused_by_name() -> None:
    with pytest.raises(dagad.StructureError, match=r"\['a'\] has 23, \['b'\] has 22"):
        dagad.reduce_sum(lambda rows: 0.0, {"a": Y, "b": Y[:-1]})


def test_is_something_without_rows_refused() -> None:
    refused: Any = [
        (1.5, "float"),
        (onp.array(1.5), "array"),
        ((Y, 1.5), r"\[1\]"),
        ({}, "no arrays"),
        (None, "no "),
    ]
    for sliced, found in refused:
        with pytest.raises(dagad.StructureError, match=found):
            dagad.reduce_sum(lambda rows: 0.0, sliced)


def test_are_partial_sums_of_different_shape_refused_even_where_numpy_would_broadcast(scheduler: Any) -> None:
    def ones(rows: Any, theta: Any) -> Any:
        return theta * np.ones(len(rows) if len(rows) < 4 else 1)

    with pytest.raises(dagad.StructureError, match="differ in shape"):
        dagad.reduce_sum(ones, Y, 2.0, grainsize=4, scheduler=scheduler)
    with pytest.raises(dagad.StructureError, match="differ in shape"):
        dagad.grad(lambda t: np.sum(dagad.reduce_sum(ones, Y, t, grainsize=4, scheduler=scheduler)))(2.0)


def test_are_partial_sums_of_different_structure_refused() -> None:
    def changing(rows: Any, theta: Any) -> Any:
        return {"a": theta} if len(rows) == 4 else {"b": theta}

    with pytest.raises(dagad.StructureError, match=r"'a'.*'b'"):
        dagad.reduce_sum(changing, Y, 2.0, grainsize=4)


def test_is_something_that_has_no_sum_refused_with_its_chunk(scheduler: Any) -> None:
    text = onp.array(["a"])
    for returned, found in (("text", "str"), (None, "None"), ([], "empty"), (text, "an array"), (object(), "object")):

        def partial_sum(rows: Any, returned: Any = returned) -> Any:
            return returned

        with pytest.raises(dagad.StructureError, match=found) as caught:
            dagad.reduce_sum(partial_sum, Y, grainsize=4)
        assert "chunk 0 (rows 0:4)" in "".join(caught.value.__notes__)
    with pytest.raises(dagad.StructureError, match="str"):
        dagad.grad(lambda t: dagad.reduce_sum(lambda rows, t: "text", Y, t, scheduler=scheduler))(1.0)


class UnluckyError(Exception):
    """A user's exception with arguments of its own."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(code, what)
        self.code = code


def unlucky(rows: Any, theta: Any) -> Any:
    if rows[0] == 8.0:
        raise UnluckyError(7, "eight")
    return np.sum(rows) * theta


def test_does_a_users_exception_arrive_unchanged_with_its_chunk_and_rows(scheduler: Any) -> None:
    data = onp.arange(12.0)
    total = partial(cut_on(scheduler), unlucky)
    for call in (partial(total, data), dagad.grad(partial(total, data))):
        with pytest.raises(UnluckyError) as caught:
            call(1.0)
        assert caught.value.code == 7
        notes = [note for note in caught.value.__notes__ if note.startswith("dagad:")]
        assert len(notes) == 1
        assert "value of chunk 2 (rows 8:12), key ('dagad-value" in notes[0]
        assert total(data[:8], 1.0) == 28.0


def test_is_a_missing_rule_named_with_its_remedy() -> None:
    def unruly(rows: Any, t: Any) -> Any:
        return np.sum(np.spacing(rows * t))

    with pytest.raises(dagad.NotDifferentiableError, match=r"`spacing`.*defvjp"):
        dagad.grad(lambda t: dagad.reduce_sum(unruly, Y, t, grainsize=4))(1.0)


def test_is_an_integer_array_being_differentiated_refused() -> None:
    with pytest.raises(TypeError):
        autograd.grad(lambda n: dagad.reduce_sum(squares, Y, n))(3)


def test_are_rows_that_a_function_spoils_refused(scheduler: Any) -> None:
    def spoil(rows: Any, theta: Any) -> Any:
        rows *= 2.0
        return np.sum(rows * theta)

    data = Y.copy()
    total = partial(cut_on(scheduler), spoil, data)
    for call in (total, dagad.grad(total)):
        with pytest.raises(ValueError, match="read-only") as caught:
            call(1.0)
        assert any("value of chunk" in note for note in caught.value.__notes__)
    assert bits(data) == bits(Y)


def test_are_rows_that_a_function_spoils_refused_in_items(scheduler: Any) -> None:
    def spoil(rows: Any, theta: Any) -> Any:
        for row in rows:
            row["x"] *= 2.0
        return sum([np.sum(row["x"]) for row in rows]) * theta

    data = [{"x": onp.ones(2)} for _ in range(5)]
    with pytest.raises(ValueError, match="read-only"):
        dagad.reduce_sum(spoil, data, 1.0, grainsize=2, scheduler=scheduler)
    assert all(row["x"].tolist() == [1.0, 1.0] for row in data)


def test_is_a_shared_argument_that_a_function_spoils_refused(scheduler: Any) -> None:
    def spoil(rows: Any, theta: Any, more: Any) -> Any:
        more["a"] += 1.0
        return np.sum(rows @ more["a"]) * theta

    shared = {"a": onp.ones(3)}
    total = partial(cut_on(scheduler), spoil, X)
    for call in (total, dagad.grad(total)):
        with pytest.raises(ValueError, match="read-only"):
            call(1.0, shared)
    assert shared["a"].tolist() == [1.0, 1.0, 1.0]


def test_are_dask_collections_refused() -> None:
    with pytest.raises(dagad.DagadError):
        dagad.reduce_sum(lambda rows, t: np.sum(rows) * t, dask.array.from_array(X, chunks=5), 1.0, grainsize=3)
    with pytest.raises(dagad.DagadError):
        dagad.reduce_sum(lambda rows: dask.array.from_array(rows, chunks=5).sum(), X, grainsize=3)


def test_is_in_place_work_on_copies_and_float_of_data_fine(scheduler: Any) -> None:
    def work(rows: Any, theta: Any) -> Any:
        mine = rows.copy()
        mine -= float(rows[0])
        mine[mine < 0] = 0.0
        return np.sum(mine * theta)

    value, gradient = dagad.value_and_grad(partial(cut_on(scheduler), work, Y))(2.0)
    assert_close(value, 2.0 * gradient)


@pytest.mark.filterwarnings("ignore:`<lambda>` gave:dagad.DagadWarning")
def test_do_nan_and_inf_pass_through(scheduler: Any) -> None:
    data = onp.array([1.0, onp.nan, 2.0, onp.inf])
    value, gradient = dagad.value_and_grad(
        lambda t: dagad.reduce_sum(lambda rows, t: t * np.sum(rows), data[[0, 1]], t, grainsize=1, scheduler=scheduler)
    )(1.0)
    assert onp.isnan(value)
    assert onp.isnan(gradient)
    assert dagad.reduce_sum(lambda rows: np.sum(rows), data[[0, 3]], grainsize=1, scheduler=scheduler) == onp.inf
