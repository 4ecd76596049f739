"""Collections: is `dagad.gradient` of a Dask graph a Dask graph, and is what it computes right?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest
from dask.base import compute as dask_compute, persist as dask_persist
from dask.delayed import delayed
from dask.dot import _to_cytoscape_json as dask_drawing
from hypothesis import given, settings, strategies as st

import dagad
from dagad.extend import explicit
from dagad_scheduler import Role, role_of
from support.examples import examples
from support.two_array_program import A, B, Pair, as_function, as_graph, split, total, where

compute: Any = dask_compute  # Dask has few types
persist: Any = dask_persist
to_drawing: Any = dask_drawing


def close(actual: Any, expected: Any, rtol: float = 1e-12) -> bool:
    same = onp.shape(actual) == onp.shape(expected) and onp.asarray(actual).dtype == onp.asarray(expected).dtype
    return same and bool(onp.max(onp.abs(actual - expected), initial=0.0) <= rtol * onp.max(onp.abs(expected)))


def test_the_gradient_of_a_graph_is_what_autograd_says(scheduler: Any) -> None:
    a, b = delayed(A), delayed(B)
    y = as_graph(a, b)
    value, of_a, of_b = compute(y, *dagad.gradient(y, [a, b]), **where(scheduler))
    expected, (expected_a, expected_b) = autograd.value_and_grad(lambda ab: as_function(*ab))([A, B])
    assert close(value, expected)
    assert close(of_a, expected_a)
    assert close(of_b, expected_b)


def test_a_gradient_has_the_shape_of_wrt() -> None:
    a, b = delayed(A), delayed(B)
    y = as_graph(a, b)
    expected = autograd.grad(as_function)(A, B)
    assert close(dagad.gradient(y, a).compute(scheduler="sync"), expected)
    found = dagad.gradient(y, {"x": (a, [b]), "pair": Pair(b, a)})
    assert type(found["pair"]) is Pair
    computed = compute(found, scheduler="sync")[0]
    assert close(computed["x"][0], expected)
    assert computed["pair"].second.tobytes() == computed["x"][0].tobytes()
    assert computed["pair"].first.tobytes() == computed["x"][1][0].tobytes()


def test_a_node_in_the_middle_can_be_wrt() -> None:
    a = delayed(A)
    middle = delayed(np.exp)(a)
    y = delayed(total)(middle, delayed(np.multiply)(middle, middle))
    of_middle, of_a = compute(*dagad.gradient(y, [middle, a]), scheduler="sync")
    assert close(of_middle, 1 + 2 * onp.exp(A))
    assert close(of_a, (1 + 2 * onp.exp(A)) * onp.exp(A))


def test_one_output_of_a_task_can_be_wrt() -> None:
    left, right = delayed(split, nout=2)(delayed(A))
    y = delayed(total)(left, delayed(np.exp)(right))
    of_left, of_right = compute(*dagad.gradient(y, (left, right)), scheduler="sync")
    assert close(of_left, onp.ones(3))
    assert close(of_right, onp.exp(onp.exp(A[1:])))


def test_building_a_gradient_graph_computes_nothing() -> None:
    calls: list[int] = []

    def noted(x: Any) -> Any:
        calls.append(1)
        return np.sum(x**2)

    x = delayed(A)
    slope = dagad.gradient(delayed(noted)(x), x)
    assert not calls
    assert close(slope.compute(scheduler="sync"), 2 * A)
    assert len(calls) == 1


def test_a_value_and_a_gradient_of_a_graph_can_be_persisted(scheduler: Any) -> None:
    a, b = delayed(A), delayed(B)
    y = as_graph(a, b)
    kept_y, kept = persist(y, dagad.gradient(y, a), **where(scheduler))
    expected, expected_gradient = autograd.value_and_grad(as_function)(A, B)
    assert close(kept_y.compute(**where(scheduler)), expected)
    assert close(kept.compute(**where(scheduler)), expected_gradient)
    again = dagad.gradient(kept_y * 2.0, kept_y)
    assert float(again.compute(**where(scheduler))) == 2.0


def test_the_graph_of_a_gradient_can_be_drawn() -> None:
    x = delayed(A)
    slope = dagad.gradient(delayed(total)(delayed(np.exp)(x)), x)
    drawn = to_drawing(dict(slope.__dask_graph__()))  # what `visualize` gives to its engine
    nodes = {node["data"]["id"]: node["data"]["label"] for node in drawn["nodes"]}
    assert {"dagad-value-total", "dagad-pullback-total", "dagad-gradient"} <= set(nodes.values())
    assert all(edge["data"]["source"] in nodes and edge["data"]["target"] in nodes for edge in drawn["edges"])


@pytest.mark.sampled(2)
def test_a_gradient_of_a_gradient_is_right(scheduler: Any) -> None:
    a, b = delayed(A), delayed(B)
    y = as_graph(a, b)
    slope = delayed(np.sum)(dagad.gradient(y, a) * b)
    of_a, of_b = compute(*dagad.gradient(slope, [a, b]), **where(scheduler))

    def plain(ab: Any) -> Any:
        return np.sum(autograd.grad(as_function)(*ab) * ab[1])

    expected_a, expected_b = autograd.grad(plain)([A, B])
    assert close(of_a, expected_a, 1e-11)
    assert close(of_b, expected_b, 1e-11)


def test_a_third_derivative_is_right() -> None:
    x = delayed(0.7)
    y = delayed(np.sin)(x) * x**3
    for _ in range(3):
        y = dagad.gradient(y, x)

    def plain(x: Any) -> Any:
        return np.sin(x) * x**3

    assert close(y.compute(scheduler="sync"), autograd.grad(autograd.grad(autograd.grad(plain)))(0.7), 1e-11)


def test_a_gradient_can_be_used_in_a_graph_that_is_differentiated_too() -> None:
    """A step of gradient descent, and how the loss after it depends on the step's length."""
    x, rate = delayed(A), delayed(0.1)
    loss = delayed(lambda x: np.sum(x**4))
    after = loss(x - rate * dagad.gradient(loss(x), x))
    actual = dagad.gradient(after, rate).compute(scheduler="sync")
    assert close(actual, autograd.grad(lambda r: np.sum((A - r * 4 * A**3) ** 4))(0.1))


def test_a_leaf_that_y_does_not_need_gets_zeros_of_its_own() -> None:
    x, other, number, tree = delayed(A), delayed(onp.ones((2, 3), "f4")), delayed(7), delayed({"a": B, "n": "text"})
    gradients = dagad.gradient(delayed(total)(x), [x, other, number, tree], unused="zeros")
    of_x, of_other, of_number, of_tree = compute(*gradients, scheduler="sync")
    assert close(of_x, onp.ones(3))
    assert (of_other.shape, of_other.dtype, of_other.any()) == ((2, 3), "f4", False)
    assert (of_number, type(of_number)) == (0, int)
    assert of_tree["a"].tolist() == [0.0] * 3
    assert of_tree["n"] is None


@explicit
def along(data: Any, x: Any) -> tuple[Any, Any]:
    return np.sum(data * x), lambda cotangent: (None, data)  # of a number, pulled with 1


def test_gradients_can_be_written_to(scheduler: Any) -> None:
    data = onp.array([1.0, 2.0, 3.0])
    a, b, c = delayed(data + 1.0), delayed((data + 2.0, data)), delayed(data + 3.0)
    y = delayed(np.sum)(a + b[0]) + delayed(along)(delayed(data), c)
    found = compute(*dagad.gradient(y, [a, a, b, c]), **where(scheduler))
    of_b = found[2]
    parts = [found[0], found[1], *of_b, found[3]]
    for part in parts:
        part *= 2.0
    expected = [onp.full(3, 2.0), onp.full(3, 2.0), onp.full(3, 2.0), onp.zeros(3), 2.0 * onp.array([1.0, 2.0, 3.0])]
    onp.testing.assert_array_equal(parts, expected)
    onp.testing.assert_array_equal(data, [1.0, 2.0, 3.0])


def test_constants_in_a_tree_are_left_alone(scheduler: Any) -> None:
    tree = {"x": A, "n": 3, "name": "cube", "nothing": None, "list": [onp.float32(2.0), onp.arange(2)]}
    leaf = delayed(tree, traverse=False, pure=False)

    def cubes(tree: Any) -> Any:
        return np.sum(tree["x"] ** tree["n"]) * tree["list"][0] if tree["name"] == "cube" else None

    gradient = dagad.gradient(delayed(cubes)(leaf), leaf).compute(**where(scheduler))
    assert close(gradient["x"], 6 * A**2)
    assert type(gradient["list"][0]) is onp.float32
    assert [gradient["n"], gradient["name"], gradient["nothing"], gradient["list"][1]] == [None] * 4


def test_a_gradient_of_a_graph_in_float32_is_float32() -> None:
    x = delayed(A.astype("f4"))
    gradient = dagad.gradient(delayed(lambda x: np.sum(x**2))(x), x).compute(scheduler="sync")
    assert gradient.dtype == "f4"


@pytest.mark.parametrize("leaf", [3, onp.arange(3), "text", [1, 2]])
def test_an_integer_leaf_is_refused_with_the_remedy(leaf: Any, scheduler: Any) -> None:
    x = delayed(leaf, traverse=False)
    y = delayed(lambda x: np.sum(np.array([1.0, 2.0]) * len(str(x))))(x)
    with pytest.raises(
        dagad.NotDifferentiableError, match=r"floating point, with `float\(...\)` or `.astype\(float\)`"
    ):
        dagad.gradient(y, x).compute(**where(scheduler))


@pytest.mark.parametrize(
    ("fun", "found"),
    [
        (lambda x: x, r"array of shape \(3,\) and dtype float64"),
        (lambda x: (x[0], x[1]), "tuple"),
        (lambda x: 3, "int"),
        (lambda x: x[0] * 1j, "complex"),
        (lambda x: None, "None"),
    ],
)
def test_a_y_that_is_not_one_real_number_is_refused_with_the_remedy(fun: Any, found: str) -> None:
    x = delayed(A)
    with pytest.raises(dagad.NotDifferentiableError, match=f"{found}.*Reduce it"):
        dagad.gradient(delayed(fun)(x), x).compute(scheduler="sync")


def test_a_y_that_is_no_collection_is_refused() -> None:
    x = delayed(A)
    y = delayed(total)(x)
    refused: list[Any] = [(3.0, x, "`y` holds a float"), (y, A, "`wrt` holds an array"), (y, [], "no Delayed")]
    for bad_y, bad_wrt, found in refused:
        with pytest.raises(dagad.NotDifferentiableError, match=found):
            dagad.gradient(bad_y, bad_wrt)
    with pytest.raises(dagad.NotDifferentiableError, match=r"`wrt` holds a float.*dagad\.grad"):
        dagad.gradient(y, {"a": x, "b": 2.0})


def test_a_branch_that_y_does_not_need_costs_no_pullback() -> None:
    x, z = delayed(A), delayed(B)
    used = delayed(np.exp)(x)
    delayed(np.log)(used)  # part of no graph
    constant = delayed(np.cos)(z)  # y needs it, x does not reach it
    graph = dict(dagad.gradient(delayed(total)(delayed(np.multiply)(used, constant)), x).__dask_graph__())
    pullbacks = [key for key in graph if role_of(key) is Role.PULLBACK]
    assert len(pullbacks) == 1  # exp, multiply and total, as one, with cos in it, which is not recorded


def test_the_cotangents_of_a_fan_out_become_one_sum() -> None:
    x = delayed(2.0)
    y = delayed(total)(*(delayed(np.multiply)(x, float(i), dask_key_name=f"times-{i}") for i in range(5)))
    slope = dagad.gradient(y, x)
    graph = dict(slope.__dask_graph__())
    assert len([key for key in graph if role_of(key) is Role.SUM]) == 1
    assert float(slope.compute(scheduler="sync")) == 10.0


def test_keys_of_a_gradient_graph_have_a_role_and_the_users_keys_stay() -> None:
    a, b = delayed(A), delayed(B)
    y = as_graph(a, b)
    before = dict(y.__dask_graph__())
    graph = dict(dagad.gradient(y, a).__dask_graph__())
    for key in graph.keys() - before.keys():
        assert isinstance(key, tuple)
        assert role_of(key) is not None
    for key in graph.keys() & before.keys():
        assert graph[key] == before[key] or str(graph[key]) == str(before[key])


def test_the_users_tasks_run_twice_at_most() -> None:
    """Once as they are, for `y`, and once with a pullback."""
    calls: list[int] = []
    lock = threading.Lock()

    def noted(x: Any) -> Any:
        with lock:
            calls.append(1)
        return np.sum(x**2)

    x = delayed(A)
    y = delayed(noted)(x)
    value, slope = compute(y, dagad.gradient(y, x), scheduler="threads")
    assert close(value, onp.sum(A**2))
    assert close(slope, 2 * A)
    assert len(calls) <= 2


def test_two_gradients_can_live_in_one_graph() -> None:
    a, b = delayed(A), delayed(B)
    y, z = as_graph(a, b), as_graph(b, a)
    found = compute(dagad.gradient(y, a), dagad.gradient(z, a), dagad.gradient(y, [a, b])[1], scheduler="threads")
    assert close(found[0], autograd.grad(as_function)(A, B))
    assert close(found[1], autograd.grad(as_function, 1)(B, A))
    assert close(found[2], autograd.grad(as_function, 1)(A, B))


def test_a_task_can_be_a_reduction_and_the_graph_be_inside_a_chunk() -> None:
    def reduced(x: Any) -> Any:
        return dagad.reduce_sum(lambda rows, x: np.sum(np.sin(rows * x[0])), onp.arange(9.0), x, grainsize=2)

    x = delayed(A)
    gradient = dagad.gradient(delayed(reduced)(x) * 2.0, x).compute(scheduler="threads")
    expected = autograd.grad(lambda x: 2 * np.sum(np.sin(onp.arange(9.0) * x[0])))(A)
    assert close(gradient, expected)


def test_a_users_exception_says_which_task_it_was() -> None:
    def fail(x: Any) -> Any:
        raise KeyError("mine")

    x = delayed(A)
    with pytest.raises(KeyError, match="mine") as caught:
        dagad.gradient(delayed(fail)(x, dask_key_name="unlucky"), x).compute(scheduler="sync")
    assert any("unlucky" in note for note in caught.value.__notes__)


STEPS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: np.sin(x) * y,
    lambda x, y: np.tanh(x - y),
    lambda x, y: x,
    lambda x, y: np.sum(x) * y,
]
STEP = st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 99), st.integers(0, 99))


def run_steps(a: Any, b: Any, steps: list[tuple[int, int, int]], lift: Callable[[Any], Callable[..., Any]]) -> Any:
    values = [a, b]
    for which, left, right in steps:
        values.append(lift(STEPS[which])(values[left % len(values)], values[right % len(values)]))
    return lift(total)(values[-1], values[len(values) // 2], lift(STEPS[1])(a, lift(STEPS[1])(a, b)))


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(st.lists(STEP, min_size=1, max_size=12), st.booleans())
def test_the_gradient_of_any_graph_is_right(steps: list[tuple[int, int, int]], twice: bool) -> None:
    a, b = delayed(A), delayed(B)
    y = run_steps(a, b, steps, delayed)

    def plain(ab: Any) -> Any:
        return run_steps(ab[0], ab[1], steps, lambda f: f)

    def slope(of_a: Any, of_b: Any) -> Any:
        return np.sum(of_a**2) + np.sum(of_b)

    if twice:
        y = delayed(slope)(*dagad.gradient(y, [a, b]))
    found = compute(*dagad.gradient(y, [a, b]), scheduler="sync")
    expected = autograd.grad((lambda ab: slope(*autograd.grad(plain)(ab))) if twice else plain)([A, B])
    for one, other in zip(found, expected, strict=True):
        assert onp.allclose(one, other, rtol=1e-10, atol=1e-12)
