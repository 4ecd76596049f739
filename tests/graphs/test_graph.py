"""The kernel: pure functions, Dask graph to Dask graph. Every graph here is run by calling its tasks with a dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest
from dask._task_spec import Alias, DataNode, Dict, GraphNode, List, Task, TaskRef, convert_legacy_graph
from hypothesis import given, settings, strategies as st

import dagad
from dagad._graphs.activity import active, references, topological
from dagad._graphs.delinearize import delinearize
from dagad._graphs.linearization import Linearization
from dagad._graphs.linearize import linearize
from dagad._graphs.sum_trees import FAN_IN, RunningTree, add_up, sum_tree
from dagad._graphs.transpose import transpose
from dagad.extend import Keep, Preaccumulate, Recompute
from dagad_scheduler import Names, Role, role_of
from support.examples import examples

A, B = onp.array([0.5, -1.0, 2.0]), onp.array([1.5, 0.25, -0.75])
Graph = dict[Any, GraphNode]


def run(graph: Mapping[Any, Any], key: Any) -> Any:
    """Return what `key` is, by calling the tasks it needs one after the other."""
    values: dict[Any, Any] = {}
    for each in topological(graph, [key]):
        values[each] = graph[each]({name: values[name] for name in graph[each].dependencies})
    return values[key]


def times(x: Any, y: Any, factor: float = 1.0) -> Any:
    return factor * x * y


def collect(parts: Any, *, more: Any) -> Any:
    return np.sum(parts[0] * parts[1]["x"]) + np.sum(more["y"][0])


def both(x: Any) -> Any:
    return {"sin": np.sin(x), "square": [x**2, "text"]}


def pick(parts: Any) -> Any:
    return np.sum(parts["sin"] * parts["square"][0])


def example() -> Graph:
    """A graph with nesting, keyword arguments, an alias, a fan-out, an output of several parts and tuple keys."""
    nodes = [
        DataNode("a", A),
        DataNode(("b", 0), B),
        Task("ab", times, TaskRef("a"), TaskRef(("b", 0)), factor=2.0),
        Alias("again", "ab"),
        Task("parts", both, TaskRef("again")),
        Task("picked", pick, TaskRef("parts")),
        Task(
            "collected",
            collect,
            List(Task(None, np.exp, TaskRef("a")), Dict({"x": TaskRef("ab")})),
            more=Dict({"y": List(TaskRef("again"), 3)}),
        ),
        Task("y", times, TaskRef("picked"), TaskRef("collected")),
        Task("unused", np.log, TaskRef("a")),
    ]
    return {node.key: node for node in nodes}


def plain_example(a: Any, b: Any) -> Any:
    ab = 2.0 * a * b
    return np.sum(np.sin(ab) * ab**2) * (np.sum(np.exp(a) * ab) + np.sum(ab))


def reverse(graph: Graph, y: Any, wrt: Any, policy: Any = None) -> tuple[Graph, dict[Any, Any], Any]:
    """Return the whole graph, where the cotangents are, and where the value is."""
    names = Names("t")
    linearized = linearize(graph, [y], set(wrt), names, policy or Keep())
    seed = names("input", "seed")
    cotangents, turned = transpose(linearized.steps, {y: TaskRef(seed)}, names)
    return linearized.graph | turned | {seed: DataNode(seed, 1.0)}, cotangents, linearized.values[y]


def gradient_of(graph: Graph, y: Any, wrt: Any, **options: Any) -> list[Any]:
    whole, cotangents, _ = reverse(graph, y, wrt, **options)
    return [run(whole, cotangents[key].key) for key in wrt]


# --- activity ---------------------------------------------------------------------------------------------------------


def test_references_are_found_in_the_order_of_the_arguments_each_once() -> None:
    node = Task(
        "n", collect, List(TaskRef("d"), Task(None, times, TaskRef("c"), TaskRef("d"))), more=Dict({"y": TaskRef("b")})
    )
    assert references(node) == ("d", "c", "b")
    assert references(Alias("x", "target")) == ("target",)
    assert references(DataNode("x", [TaskRef("no")])) == ()


def test_every_key_comes_after_what_it_needs() -> None:
    graph = example()
    order = list(topological(graph, ["y"]))
    assert "unused" not in order
    for place, key in enumerate(order):
        assert graph[key].dependencies <= set(order[:place])


def test_a_topological_order_does_not_depend_on_the_order_of_the_dict() -> None:
    shuffled = dict(sorted(example().items(), key=lambda item: str(hash(item[0]))))
    assert list(topological(shuffled, ["y"])) == list(topological(example(), ["y"]))


def test_a_key_is_active_that_depends_on_wrt_and_that_y_needs() -> None:
    order = topological(example(), ["y"])
    assert list(active(order, {("b", 0)})) == ["ab", "again", "parts", "picked", "collected", "y"]
    assert active(order, {("b", 0)})["y"] == ("picked", "collected")
    assert active(order, {("b", 0)})["ab"] == (("b", 0),)
    assert "unused" not in active(order, {"a"})
    assert active(order, {"nowhere"}) == {}


def test_a_long_chain_needs_no_deep_stack() -> None:
    graph: Graph = {0: DataNode(0, 1.5)} | {i: Task(i, np.sin, TaskRef(i - 1)) for i in range(1, 3001)}
    order = topological(graph, [3000])
    assert list(order) == list(range(3001))
    expected = 1.0
    value = 1.5
    for _ in range(3000):
        expected, value = expected * onp.cos(value), onp.sin(value)
    assert gradient_of(graph, 3000, [0])[0] == pytest.approx(expected, rel=1e-12)


# --- linearize and transpose ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Keep, Recompute, Preaccumulate])
def test_the_transposed_graph_is_the_gradient(policy: Any) -> None:
    whole, cotangents, value = reverse(example(), "y", ["a", ("b", 0)], policy())
    assert run(whole, value) == pytest.approx(plain_example(A, B), rel=1e-13)
    expected = autograd.grad(lambda ab: plain_example(*ab))((A, B))
    for key, gradient in zip(["a", ("b", 0)], expected, strict=True):
        onp.testing.assert_allclose(run(whole, cotangents[key].key), gradient, rtol=1e-12)


@pytest.mark.parametrize("policy", [Keep, Recompute, Preaccumulate])
def test_sums_read_values_under_keys_of_their_own(policy: Any) -> None:
    graph: Graph = {"x": DataNode("x", 0.5)}
    graph |= {("f", i): Task(("f", i), times, TaskRef("x"), TaskRef("x"), float(i)) for i in range(20)}
    total, sums = sum_tree([TaskRef(("f", i)) for i in range(20)], lambda level, place: ("s", level, place))
    whole, cotangents, value = reverse(graph | dict(sums), total.key, ["x"], policy())
    assert len([key for key in whole if role_of(key) is Role.GETITEM]) == 20
    assert run(whole, value) == pytest.approx(190 * 0.25)
    assert run(whole, cotangents["x"].key) == pytest.approx(190 * 1.0)


def test_building_a_gradient_graph_changes_no_given_graph() -> None:
    graph = example()
    before = dict(graph)
    whole = reverse(graph, "y", ["a"])[0]
    assert graph == before
    assert all(node is whole[key] for key, node in graph.items() if key in whole)


def test_a_node_that_does_not_carry_the_derivative_is_left_as_it_is() -> None:
    graph = example() | {"constant": Task("constant", np.exp, TaskRef(("b", 0)))}
    graph["y2"] = Task("y2", times, TaskRef("y"), TaskRef("constant"))
    graph["y3"] = Task("y3", np.sum, TaskRef("y2"))
    whole = reverse(graph, "y3", ["a"])[0]
    assert whole["constant"] is graph["constant"]
    assert [key for key in whole if role_of(key) is Role.PULLBACK and key[1] == "constant"] == []


def test_every_new_key_of_a_transposed_graph_has_a_role() -> None:
    graph = example()
    whole = reverse(graph, "y", ["a", ("b", 0)])[0]
    assert all(isinstance(key, tuple) and role_of(key) is not None for key in whole.keys() - graph.keys())


def test_edges_are_reversed_and_fan_outs_summed_once() -> None:
    graph: Graph = {"x": DataNode("x", 2.0)}
    graph |= {("f", i): Task(("f", i), times, TaskRef("x"), float(i)) for i in range(5)}
    graph["y"] = Task("y", add_up, *(TaskRef(("f", i)) for i in range(5)))
    whole, cotangents, _ = reverse(graph, "y", ["x"])
    assert role_of(cotangents["x"].key) is Role.SUM
    assert len(whole[cotangents["x"].key].dependencies) == 5
    assert len([key for key in whole if role_of(key) is Role.SUM]) == 2  # this one, and the user's own
    assert run(whole, cotangents["x"].key) == 10.0


def test_a_term_that_comes_twice_in_a_sum_counts_twice() -> None:
    graph: Graph = {"x": DataNode("x", 3.0), "y": Task("y", add_up, TaskRef("x"), TaskRef("x"))}
    assert gradient_of(graph, "y", ["x"]) == [2.0]


def test_a_diamond_of_sums_counts_twice() -> None:
    graph: Graph = {"x": DataNode("x", 3.0), "z": DataNode("z", 5.0)}
    graph["left"] = Task("left", add_up, TaskRef("x"), TaskRef("z"))
    graph["right"] = Task("right", add_up, TaskRef("x"), TaskRef("left"))
    graph["y"] = Task("y", add_up, TaskRef("left"), TaskRef("right"))
    whole, cotangents, _ = reverse(graph, "y", ["x", "z"])
    assert [run(whole, cotangents[key].key) for key in "xz"] == [3.0, 2.0]


def test_a_sum_is_its_own_transpose() -> None:
    graph: Graph = {"x": DataNode("x", 3.0), "z": DataNode("z", 5.0)}
    graph["s"] = Task("s", add_up, TaskRef("x"), TaskRef("z"))
    graph["y"] = Alias("y", "s")
    whole, cotangents, _ = reverse(graph, "y", ["x", "z"])
    assert cotangents["x"].key == cotangents["z"].key == ("dagad-input-t", "seed")
    assert not [key for key in whole if role_of(key) is Role.PULLBACK]


def test_an_output_that_is_differentiated_in_has_its_seed_as_cotangent() -> None:
    graph = example()
    names = Names("t")
    linearized = linearize(graph, ["y"], {"y"}, names, Keep())
    cotangents, turned = transpose(linearized.steps, {"y": TaskRef("seed")}, names)
    assert cotangents["y"].key == "seed"
    assert turned == {}
    assert linearized.graph == {key: graph[key] for key in topological(graph, ["y"])}


def test_several_outputs_are_transposed_together() -> None:
    graph: Graph = {"x": DataNode("x", A)}
    graph["u"] = Task("u", np.sin, TaskRef("x"))
    graph["v"] = Task("v", times, TaskRef("u"), TaskRef("x"))
    names = Names("t")
    linearized = linearize(graph, ["u", "v"], {"x"}, names, Keep())
    seeds = {"u": DataNode("su", A), "v": DataNode("sv", B)}
    cotangents, turned = transpose(linearized.steps, {key: TaskRef(node.key) for key, node in seeds.items()}, names)
    whole = linearized.graph | turned | {node.key: node for node in seeds.values()}
    expected = autograd.make_vjp(lambda x: np.concatenate([np.sin(x), np.sin(x) * x]))(A)[0](onp.concatenate([A, B]))
    onp.testing.assert_allclose(run(whole, cotangents["x"].key), expected, rtol=1e-13)


def test_a_task_at_its_arguments_keeps_constants_out_of_them() -> None:
    graph: Graph = {"x": DataNode("x", {"n": 3, "name": "cube", "x": A, "none": None})}
    graph["y"] = Task("y", lambda tree: np.sum(tree["x"] ** tree["n"]), TaskRef("x"))
    (gradient,) = gradient_of(graph, "y", ["x"])
    onp.testing.assert_allclose(gradient["x"], 3 * A**2)
    assert [gradient["n"], gradient["name"], gradient["none"]] == [None] * 3


def test_legacy_graphs_are_understood() -> None:
    legacy = convert_legacy_graph({"x": 0.5, "s": (np.sin, "x"), "y": (times, "s", (np.exp, "x"))})
    assert gradient_of(legacy, "y", ["x"])[0] == pytest.approx(autograd.grad(lambda x: np.sin(x) * np.exp(x))(0.5))


# --- sums -------------------------------------------------------------------------------------------------------------


def summed_by_tree(values: list[Any]) -> Any:
    graph: Graph = {i: DataNode(i, value) for i, value in enumerate(values)}
    total, tasks = sum_tree([TaskRef(i) for i in range(len(values))], lambda level, place: ("s", level, place))
    return run(graph | dict(tasks), total.key)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(st.integers(1, 700), st.integers(0, 2**32 - 1))
def test_all_sums_are_the_same_tree(count: int, seed: int) -> None:
    values = list(onp.random.default_rng(seed).standard_normal(count))
    tree, running = summed_by_tree(values), RunningTree()
    for value in values:
        running.push(value)
    assert tree == running.total()
    assert tree == pytest.approx(sum(values), rel=1e-12, abs=1e-12)
    if count <= FAN_IN:
        assert tree == add_up(*values)


def test_terms_are_added_in_their_order() -> None:
    assert add_up(1.0, 1e16, -1e16) == 0.0
    assert add_up(1e16, -1e16, 1.0) == 1.0
    assert summed_by_tree([1.0, 1e16, -1e16] + [0.0] * 20) == 0.0
    assert summed_by_tree([0.0] * 20 + [1e16, -1e16, 1.0]) == 1.0


def test_a_tree_of_sums_has_no_wide_nodes() -> None:
    total, tasks = sum_tree([TaskRef(i) for i in range(100)], lambda level, place: ("s", level, place))
    assert max(len(task.dependencies) for task in tasks.values()) <= FAN_IN
    assert len(topological(dict(tasks), [total.key])) == len(tasks) == 13 + 2 + 1


def test_add_up_writes_into_none_of_its_terms() -> None:
    terms = [A.copy() for _ in range(5)]
    nested = [{"a": term, "b": [term, None]} for term in terms]
    assert add_up(*terms).tolist() == (5 * A).tolist()
    result = add_up(*nested)
    assert result["a"].tolist() == result["b"][0].tolist() == (5 * A).tolist()
    assert result["b"][1] is None
    assert all(term.tolist() == A.tolist() for term in terms)
    assert add_up(terms[0]) is terms[0]


def test_add_up_takes_none_for_nothing() -> None:
    assert add_up(None, None) is None
    assert add_up(None, A, None).tolist() == A.tolist()
    assert add_up([None, 1.0], [2.0, None], [None, None]) == [2.0, 1.0]
    assert add_up((None, A), (1.5, None))[0] == 1.5


def test_sums_keep_their_type() -> None:
    assert type(add_up(onp.float32(1.0), onp.float32(2.0))) is onp.float32
    assert add_up(A.astype("f4"), A.astype("f4"), A.astype("f4")).dtype == "f4"
    assert type(add_up(1, 2, 3)) is int
    assert add_up(onp.arange(2), onp.arange(2)).dtype == int
    assert add_up(A.astype("f4"), A, A).dtype == "f8"


@pytest.mark.parametrize(
    "terms", [(A, A[:2]), (A, 1.0), ([A], [A, A]), ({"a": 1.0}, {"b": 1.0}), ((1.0,), [1.0]), (A, A, A[:1]), ([A], A)]
)
def test_terms_that_do_not_agree_are_refused(terms: Any) -> None:
    with pytest.raises(dagad.StructureError, match="partial sums of two chunks differ in"):
        add_up(*terms)


# --- forget -----------------------------------------------------------------------------------------------------------


def test_a_forgotten_graph_is_the_same_function_without_linearizations() -> None:
    whole, cotangents, _ = reverse(example(), "y", ["a", ("b", 0)])
    plain, renamed = delinearize(whole, Names("u"))
    for key in ("a", ("b", 0)):
        expected = run(whole, cotangents[key].key)
        onp.testing.assert_array_equal(run(plain, renamed[cotangents[key].key]), expected)
    used = topological(plain, [renamed[cotangents["a"].key]])
    assert not any(isinstance(run(plain, key), Linearization) for key in used)


def test_forgotten_keys_do_not_meet_the_old_ones() -> None:
    whole, _, _ = reverse(example(), "y", ["a"])
    plain, renamed = delinearize(whole, Names("u"))
    ours = {key for key in whole if role_of(key) is not None}
    assert renamed.keys() == ours
    assert not ours & plain.keys()
    assert example().keys() & whole.keys() <= plain.keys()
    assert all(role_of(key) is not None for key in renamed.values())


def test_a_graph_of_the_users_has_nothing_to_forget() -> None:
    plain, renamed = delinearize(example(), Names("u"))
    assert renamed == {}
    assert plain == example()


@pytest.mark.parametrize("order", [2, 3, 4])
def test_a_gradient_can_be_differentiated_again_and_again(order: int) -> None:
    """Sums of sums, which meet in diamonds from the third derivative on."""

    def f(x: Any) -> Any:
        return np.sin(x) * np.exp(x * x)

    graph: Graph = {
        "x": DataNode("x", 0.3),
        "s": Task("s", np.sin, TaskRef("x")),
        "q": Task("q", times, TaskRef("x"), TaskRef("x")),
        "e": Task("e", np.exp, TaskRef("q")),
        "y": Task("y", times, TaskRef("s"), TaskRef("e")),
    }
    y: Any = "y"
    expected = f
    for level in range(order):
        names = Names(f"t{level}")
        plain, renamed = delinearize(graph, names)
        y = renamed.get(y, y)
        linearized = linearize(plain, [y], {"x"}, names, Keep())
        seed = names("input", "seed")
        cotangents, turned = transpose(linearized.steps, {y: TaskRef(seed)}, names)
        graph = linearized.graph | turned | {seed: DataNode(seed, 1.0)}
        y = cotangents["x"].key
        expected = autograd.grad(expected)
    assert float(run(graph, y)) == pytest.approx(float(expected(0.3)), rel=1e-9)
