"""Copies: is the gradient whole where Dask has fused, renamed or copied what is differentiated in?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import autograd
import autograd.numpy as np
import dask.array as da
import dask.bag as db
import numpy as onp
import pytest
from dask._task_spec import Alias, DataNode, Dict, GraphNode, List, Task, TaskRef, fuse_linear_task_spec
from dask.base import compute as dask_compute, optimize as dask_optimize
from dask.config import set as dask_set
from dask.delayed import Delayed, delayed
from hypothesis import given, settings, strategies as st

import dagad
from dagad._graphs.activity import INSIDE, references
from dagad._graphs.copies import unfuse
from support.examples import examples

compute: Any = dask_compute  # Dask has few types
optimize: Any = dask_optimize
from_delayed: Any = da.from_delayed
concatenate: Any = da.concatenate
A = onp.arange(1.0, 5.0)


class ProhibitReuse:
    """Dask's own has another home in each release."""

    @staticmethod
    def _identity(x: Any) -> Any:
        return x


def where(scheduler: Any) -> dict[str, Any]:
    return {"scheduler": scheduler} if isinstance(scheduler, str) else {"scheduler": scheduler.get}


def squares(x: Any) -> Any:
    return np.sum(x**2)


def product(pair: Any) -> Any:
    return np.sum(pair[0] * pair[1])


class Pair(NamedTuple):
    left: Any
    right: Any


f: Any = delayed(squares)
exp: Any = delayed(np.exp)


def as_array(w: Any) -> Any:
    return from_delayed(w, A.shape, float)


def fused(y: Any) -> Any:
    return Delayed(y.key, fuse_linear_task_spec(dict(optimize(y)[0].dask), {y.key}))


def optimized(y: Any, fuse: bool) -> Any:
    with dask_set({"optimization.fuse.delayed": fuse}):
        return optimize(y)[0]


# What is made of w, and the gradient in w
COPIES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "an array as an argument": (lambda w: f(as_array(w)), 2 * A),
    "an array beside it": (lambda w: delayed(product)([w, as_array(w)]), 2 * A),
    "an array beside it, in a record": (lambda w: delayed(product)(Pair(w, as_array(w))), 2 * A),
    "an array beside it, in a dict": (
        lambda w: delayed(lambda p: np.sum(p["a"] * p["b"][0]))({"a": w, "b": [as_array(w)]}),
        2 * A,
    ),
    "an array by keyword": (lambda w: delayed(lambda a, b: np.sum(a * b))(w, b=as_array(w)), 2 * A),
    "an array that was worked on": (lambda w: f(as_array(w) * as_array(w)), 4 * A**3),
    "an array of several chunks": (lambda w: f(as_array(w).rechunk(2)), 2 * A),
    "an array that holds it twice": (lambda w: f(concatenate([as_array(w), as_array(w)])), 4 * A),
    "a grid of chunks": (lambda w: f(as_array(w).reshape(2, 2).rechunk((1, 1))), 2 * A),
    "an array made a Delayed": (lambda w: f(delayed(as_array(w))) + f(w), 4 * A),
    "a chunk": (lambda w: f(as_array(w).to_delayed().item()), 2 * A),
    "a node between": (lambda w: f(as_array(exp(w))) + f(exp(w)), 4 * onp.exp(2 * A)),
    "a bag": (
        lambda w: f(db.from_delayed([delayed(lambda w: [w])(w)]).map(lambda x: x * x).to_delayed()[0][0]),
        4 * A**3,
    ),
    "a fused chain": (lambda w: fused(f(exp(w))), 2 * onp.exp(2 * A)),
    "a fused diamond": (lambda w: fused(f(w * w) + f(w)), 4 * A**3 + 2 * A),
    "optimized": (lambda w: optimized(f(exp(w)), False), 2 * onp.exp(2 * A)),
    "optimized and fused": (lambda w: optimized(f(exp(w)), True), 2 * onp.exp(2 * A)),
    "a gradient": (lambda w: f(dagad.gradient(f(w * w), w)), 96 * A**5),
    "a gradient as an array": (lambda w: f(as_array(dagad.gradient(f(w * w), w))), 96 * A**5),
    "a gradient as an array beside it": (
        lambda w: delayed(product)([w, as_array(dagad.gradient(f(w * w), w))]),
        16 * A**3,
    ),
    "a gradient, optimized": (lambda w: optimized(f(dagad.gradient(f(w * w), w)), False), 96 * A**5),
    "a gradient, fused": (lambda w: optimized(f(dagad.gradient(f(w * w), w)), True), 96 * A**5),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_gradient_in_a_leaf_that_dask_has_copied_is_whole(name: str) -> None:
    make, expected = COPIES[name]
    w = delayed(A)
    y = make(w)
    value, again, gradient = compute(*dagad.value_and_gradient(y, w), dagad.gradient(y, w), scheduler="sync")
    onp.testing.assert_allclose(gradient, expected, rtol=1e-12)
    onp.testing.assert_array_equal(again, gradient)
    onp.testing.assert_allclose(value, compute(y, scheduler="sync")[0], rtol=1e-12)
    tangent = compute(dagad.jvp(y, w, onp.ones(4))[1], scheduler="sync")[0]
    onp.testing.assert_allclose(tangent, onp.sum(expected), rtol=1e-12)


@pytest.mark.sampled(2)
def test_a_gradient_in_a_copied_leaf_is_whole_on_every_scheduler(scheduler: Any) -> None:
    w = delayed(A)
    ys = [(COPIES[name][0](w), COPIES[name][1]) for name in ("an array beside it", "a gradient as an array")]
    found = compute([dagad.gradient(y, w) for y, _ in ys], **where(scheduler))[0]
    for gradient, (_, expected) in zip(found, ys, strict=True):
        onp.testing.assert_allclose(gradient, expected, rtol=1e-12)


def test_a_node_that_was_fused_away_can_be_wrt() -> None:
    w = delayed(A)
    middle = exp(w)
    for y in (fused(f(middle)), optimized(f(middle), True), f(as_array(middle))):
        of_middle, of_w = compute(*dagad.gradient(y, [middle, w]), scheduler="sync")
        onp.testing.assert_allclose(of_middle, 2 * onp.exp(A), rtol=1e-12)
        onp.testing.assert_allclose(of_w, 2 * onp.exp(2 * A), rtol=1e-12)


def test_a_copy_itself_can_be_wrt() -> None:
    copied: Any = delayed(as_array(delayed(A)))
    onp.testing.assert_array_equal(compute(dagad.gradient(f(copied), copied), scheduler="sync")[0], 2 * A)
    blocks = list(as_array(delayed(A)).rechunk(2).to_delayed())
    of_last = compute(dagad.gradient(f(blocks[0]) + f(blocks[1]), blocks)[1], scheduler="sync")[0]
    onp.testing.assert_array_equal(of_last, 2 * A[2:])


def test_functions_of_dask_arrays_that_call_numpys_are_differentiated() -> None:
    w = delayed(A)
    total = (as_array(w) * as_array(w)).sum().to_delayed().item()
    found = dagad.gradient(total, w).compute(scheduler="sync")
    onp.testing.assert_allclose(found, 2.0 * A)


def test_an_array_function_without_a_rule_is_refused_with_its_task() -> None:
    w = delayed(A)
    total = delayed(np.sum)(delayed(onp.unique)(w))
    with pytest.raises(dagad.NotDifferentiableError, match="no derivative of `unique`") as caught:
        dagad.gradient(total, w).compute(scheduler="sync")
    assert any("while task" in note for note in caught.value.__notes__)


# --- any graph --------------------------------------------------------------------------------------------------------

B, C = onp.array([0.5, -1.0, 2.0]), onp.array([1.5, 0.25, -0.75])
STEPS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y,
    lambda x, y: 0.3 * x * y,
    lambda x, y: np.sin(x) * y,
    lambda x, y: np.tanh(x - y),
    lambda x, y: 0.2 * np.sum(x) * y,
]
ARGUMENTS = ["plain", "in a list", "a copy in a list", "copies", "a gradient", "a copy of a gradient"]
STEP = st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 9), st.integers(0, 9), st.sampled_from(ARGUMENTS))


def total(*parts: Any) -> Any:
    return sum([np.sum(np.sin(part)) for part in parts])


def mixed(parts: Any) -> Any:
    return 0.5 * parts[0] + 0.3 * parts[1]["y"]


def build(leaves: Any, steps: Any, lift: Any, copied: Any, slope: Any) -> Any:
    values = list(leaves)
    for which, left, right, how in steps:
        x, y, step = values[left % len(values)], values[right % len(values)], lift(STEPS[which])
        if how in ("in a list", "a copy in a list"):
            values.append(lift(mixed)([x if how == "in a list" else copied(x), {"y": y}]))
        elif how in ("a gradient", "a copy of a gradient"):
            found = slope(lambda z: lift(total)(z, lift(STEPS[1])(z, B)), x)
            values.append(step(found if how == "a gradient" else copied(found), y))
        else:
            values.append(step(x, y) if how == "plain" else step(copied(x), copied(y)))
    return lift(total)(values[-1], values[len(values) // 2], *leaves)


@settings(max_examples=examples(25), deadline=None, derandomize=True)
@given(
    st.lists(STEP, min_size=1, max_size=6),
    st.sampled_from([lambda y: y, fused, lambda y: optimized(y, False), lambda y: optimized(y, True)]),
    st.sampled_from([3, 2]),
    st.sampled_from([1, 5]),
)
def test_the_gradient_of_any_graph_is_whole(steps: Any, way: Any, chunk: int, times: int) -> None:
    def copied(x: Any) -> Any:
        return from_delayed(delayed(x), (3,), float).rechunk(chunk)

    leaves = [delayed(B), delayed(C)]
    y = way(build(leaves, steps, delayed, copied, lambda f, x: dagad.gradient(f(x), x)))

    def plain(leaves: Any) -> Any:
        return build(leaves, steps, lambda f: f, lambda x: x, lambda f, x: autograd.grad(f)(x))

    expected_value, expected = autograd.value_and_grad(plain)([B, C])
    value, gradients = compute(*dagad.value_and_gradient(y, leaves * times), scheduler="sync")
    assert value == pytest.approx(expected_value, rel=1e-10)
    for found, right in zip(gradients, expected * times, strict=True):
        onp.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-12)
    tangent = compute(dagad.jvp(y, leaves, [C, B])[1], scheduler="sync")[0]
    assert tangent == pytest.approx(onp.sum(expected[0] * C + expected[1] * B), rel=1e-9, abs=1e-12)


def test_copies_of_copies_are_looked_through() -> None:
    w = delayed(B)

    def copied(x: Any) -> Any:
        return from_delayed(delayed(x), (3,), float)

    inner = dagad.gradient(delayed(total)(w), w)
    y = delayed(total)(copied(delayed(STEPS[1])(copied(inner), w)))
    found = compute(dagad.gradient(y, w), scheduler="sync")[0]
    right = autograd.grad(lambda w: total(0.3 * np.cos(w) * w))(B)
    onp.testing.assert_allclose(found, right, rtol=1e-12)


# --- the graphs -------------------------------------------------------------------------------------------------------


def run(graph: dict[Any, GraphNode], key: Any) -> Any:
    return graph[key]({need: run(graph, need) for need in graph[key].dependencies})


def test_aliases_of_what_is_found_inside_a_task_are_one_alias() -> None:
    value = Task("v", squares, 3.0)
    whole = Task("f", ProhibitReuse._identity, Task("v", squares, 3.0))
    graph: dict[Any, GraphNode] = {"v": value, "f": whole, "y": Task("y", squares, TaskRef("f"))}
    opened = unfuse(graph, ["y"], {"v"})
    assert isinstance(opened["f"], Alias)
    assert opened["f"].target == "v"
    assert run(opened, "y") == 81.0


def test_a_leaf_that_an_earlier_derivative_found_inside_a_task_keeps_its_key() -> None:
    name = (INSIDE, "held", 0, "w")
    graph: dict[Any, GraphNode] = {name: DataNode(name, 2.0), "y": Task("y", squares, TaskRef(name))}
    opened = unfuse(graph, ["y"], {"w"})
    assert references(opened[name]) == ("w",)
    assert run(opened, "w") == 2.0


def test_a_graph_without_copies_is_left_as_it_is() -> None:
    graph: dict[Any, GraphNode] = {"w": DataNode("w", 2.0), "y": Task("y", squares, TaskRef("w"))}
    assert unfuse(graph, ["y"], {"w"}) == graph


def test_tasks_of_a_fused_one_that_share_an_iterator_stay_together() -> None:
    """What a fused task made may be an iterator, which only that task can read."""
    w, m = DataNode("w", [1.0, 2.0]), Task("m", list, TaskRef("w"))
    lazy, y = Task("lazy", map, float, TaskRef("m")), Task("y", sum, TaskRef("lazy"))
    graph: dict[Any, GraphNode] = {"y": Task.fuse(w, m, lazy, y)}
    opened = unfuse(graph, ["y"], {"w", "m"})
    assert opened.keys() == {"w", "m", "y"}
    assert opened["y"].dependencies == {"m"}
    assert run(opened, "y") == 3.0


def test_nodes_nested_in_fused_tasks_and_arguments_are_found() -> None:
    w = DataNode("w", 2.0)
    nested = Task.fuse(Task.fuse(w, Task("m", squares, TaskRef("w"))), Task("n", squares, TaskRef("m")))
    arguments = List(Dict({"a": w, "b": 5.0}), List([1.0, 2.0]), [3.0], nested)

    def add(parts: Any, *, more: Any) -> Any:
        return parts[0]["a"] + parts[0]["b"] + sum(parts[1]) + parts[2][0] + parts[3] + more

    graph: dict[Any, GraphNode] = {"y": Task("y", add, arguments, more=Task("z", squares, w)), "w": Alias("w", "v")}
    opened = unfuse(graph, ["y"], {"w"})
    assert type(opened["w"]) is DataNode
    assert opened["y"].dependencies == {"w"}
    assert run(opened, "y") == 2.0 + 5.0 + 3.0 + 3.0 + 16.0 + 4.0
