"""Tangents of graphs: is `dagad.jvp` of a Dask graph a graph, and are its tangents those of what it stands for?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest
from dask._task_spec import Alias, Task, TaskRef
from dask.base import compute as dask_compute, persist as dask_persist
from dask.config import set as dask_set
from dask.delayed import Delayed as DaskDelayed, delayed
from hypothesis import given, settings, strategies as st

import dagad
from dagad.extend import explicit
from dagad_scheduler import Role, role_of
from support import two_array_program as one_program
from support.examples import examples
from support.two_array_program import A, B, Pair, scale, where

compute: Any = dask_compute  # Dask has few types
persist: Any = dask_persist
Delayed: Any = DaskDelayed
DA, DB = onp.array([1.0, 0.5, -2.0]), onp.array([-0.25, 1.0, 3.0])


def as_graph(a: Any, b: Any) -> Any:
    return one_program.as_graph(a, b, power=delayed(2))  # an integer leaf


def as_function(a: Any, b: Any) -> Any:
    return one_program.as_function(a, b, power=2)


def close(actual: Any, expected: Any, rtol: float = 1e-12) -> bool:
    gap = onp.max(onp.abs(onp.asarray(actual) - expected), initial=0.0)
    return onp.shape(actual) == onp.shape(expected) and bool(gap <= rtol * onp.max(onp.abs(expected), initial=1e-300))


def slope(fun: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    gradients = autograd.grad(lambda parts: fun(*parts))(tuple(primals))
    return sum([onp.sum(gradient * tangent) for gradient, tangent in zip(gradients, tangents, strict=True)])


# --- the numbers ------------------------------------------------------------------------------------------------------


def test_the_tangent_of_a_graph_is_what_autograd_says(scheduler: Any) -> None:
    a, b = delayed(A), delayed(B)
    value, tangent = compute(*dagad.jvp(as_graph(a, b), [a, b], [DA, DB]), **where(scheduler))
    assert close(value, as_function(A, B))
    assert close(tangent, slope(as_function, (A, B), (DA, DB)))


def test_tangent_and_gradient_agree_in_one_compute(scheduler: Any) -> None:
    a, b = delayed(A), delayed(B)
    y = as_graph(a, b)
    tangent = dagad.jvp(y, (a, b), (DA, DB))[1]
    tangent_out, of_a, of_b = compute(tangent, *dagad.gradient(y, (a, b)), **where(scheduler))
    pulled = onp.sum(of_a * DA) + onp.sum(of_b * DB)
    assert abs(tangent_out - pulled) <= 1e-12 * (onp.sum(onp.abs(of_a * DA)) + onp.sum(onp.abs(of_b * DB)))


@pytest.mark.sampled(3)
def test_derivatives_of_graphs_nest_in_any_order(scheduler: Any) -> None:
    a, b = delayed(A), delayed(B)
    y = as_graph(a, b)
    along_a = dagad.jvp(y, a, DA)[1]
    (again,) = compute(dagad.jvp(along_a, a, DA)[1], **where(scheduler))
    of_tangent, tangent_of = compute(
        dagad.gradient(along_a, [a, b]),
        dagad.jvp(delayed(list)(dagad.gradient(y, [a, b])), a, DA)[1],
        **where(scheduler),
    )
    gradient = autograd.grad(lambda ab: as_function(*ab))
    expected = autograd.grad(lambda ab: np.sum(gradient(ab)[0] * DA))((A, B))
    assert close(again, onp.sum(expected[0] * DA), 1e-10)
    for found in (of_tangent, tangent_of):
        assert close(found[0], expected[0], 1e-10)
        assert close(found[1], expected[1], 1e-10)


def test_a_node_in_the_middle_of_a_graph_may_have_a_tangent() -> None:
    a, b = delayed(A), delayed(B)
    middle = delayed(scale)(a, b)
    y = delayed(lambda m, a: np.sum(m**3) * a[0])(middle, a)
    sine = onp.sin(A) * B
    cubes = 3.0 * sine**2 * A[0]
    assert close(compute(dagad.jvp(y, middle, DA)[1], scheduler="sync")[0], onp.sum(cubes * DA))
    both = compute(dagad.jvp(y, [middle, a], [DA, DB])[1], scheduler="sync")[0]
    with_a = DA + onp.cos(A) * B * DB  # as it is told, and with `a`
    assert close(both, onp.sum(cubes * with_a) + onp.sum(sine**3) * DB[0])
    value, tangent = compute(*dagad.jvp(middle, middle, DB), scheduler="sync")
    assert close(value, sine)
    assert close(tangent, DB)


def test_several_outputs_and_aliases_of_a_graph_have_tangents() -> None:
    graph = {
        "a": 2.0,
        "b": Task("b", lambda a: (a**2, {"cube": a**3, "n": 3}), TaskRef("a")),
        "same": Alias("same", "b"),
        "y": Task("y", lambda pair, again: pair[0] * again[1]["cube"] ** again[1]["n"], TaskRef("same"), TaskRef("b")),
        "end": Alias("end", "y"),
    }
    y, a = Delayed("end", graph), Delayed("a", graph)
    value, tangent = compute(*dagad.jvp(y, a, 1.0), scheduler="sync")
    assert (value, tangent) == (2.0**11, 11 * 2.0**10)
    pairs, tangent_out = compute(*dagad.jvp(Delayed("same", graph), a, 1.0), scheduler="sync")
    assert pairs == (4.0, {"cube": 8.0, "n": 3})
    assert tangent_out == (4.0, {"cube": 12.0, "n": None})
    assert compute(*dagad.jvp(Delayed("alias", graph | {"alias": Alias("alias", "a")}), a, 5.0), scheduler="sync") == (
        2,
        5,
    )


def test_tangents_of_pytrees_in_a_graph_are_none_for_constants() -> None:
    p = delayed({"x": 2.0, "pair": Pair(onp.array([1.0, 3.0]), "text"), "n": 3})
    y = delayed(lambda p: Pair(p["x"] ** p["n"] * p["pair"].first, p["n"]))(p)
    value, tangent = compute(*dagad.jvp(y, p, {"x": 1.0, "pair": Pair(None, None), "n": None}), scheduler="sync")
    assert type(value) is type(tangent) is Pair
    assert tangent.first.tolist() == [12.0, 36.0]
    assert (value.second, tangent.second) == (3, None)
    tangent = compute(dagad.jvp(y, [p], [{"x": 0.0, "pair": Pair(DA[:2], None), "n": 1}])[1], scheduler="sync")
    assert tangent[0].first.tolist() == [8.0, 4.0]


def test_tangents_can_be_delayed_or_none(scheduler: Any) -> None:
    a, b = delayed(A), delayed(B)
    y = delayed(scale)(a, b)
    direction = delayed(lambda a: 2.0 * a)(a)
    found = compute(dagad.jvp(y, [a, b], [direction, None])[1], **where(scheduler))[0]
    assert close(found, onp.cos(A) * B * 2.0 * A)
    assert not compute(dagad.jvp(y, [a, b], [None, None])[1], scheduler="sync")[0].any()


@pytest.mark.parametrize("width", [1, 10**6])
def test_a_tangent_of_a_graph_may_be_made_of_its_primals(width: int) -> None:
    w = delayed(A)
    square = w * w
    y = delayed(np.sum)(square * square)
    with dask_set({"dagad.graph-width": width}):
        tangents = [dagad.jvp(y, w, direction)[1] for direction in (square, square + 1.0, dagad.gradient(y, w))]
        tangents.append(dagad.jvp(y, [w, square], [None, w])[1])
    expected = [onp.sum(4 * A**3 * D) for D in (A**2, A**2 + 1.0, 4 * A**3)]
    found = compute(*tangents, scheduler="sync")
    assert all(map(close, found, [*expected, onp.sum(2 * A**2 * A)]))


def test_the_tangent_of_a_graph_is_zero_where_nothing_depends_on_its_primal() -> None:
    unread = delayed(1.0)
    y = delayed(lambda a, unread: {"a": a.astype("f4"), "n": 3})(delayed(A), unread)
    value, tangent = compute(*dagad.jvp(y, unread, 1.0), scheduler="sync")
    assert (value["a"].dtype, tangent["a"].dtype, tangent["n"]) == ("f4", "f4", None)
    assert not tangent["a"].any()
    n = delayed(3)
    assert compute(*dagad.jvp(delayed(lambda n, a: n * a)(n, 2.0), n, None), scheduler="sync") == (6.0, 0.0)


def test_reductions_inside_tasks_of_a_graph_have_tangents(scheduler: Any) -> None:
    def cubes(x: Any, rows: Any) -> Any:
        return dagad.reduce_sum(lambda rows, x: np.sum(rows * x**3), rows, x, grainsize=1)

    a, b = delayed(2.0), delayed(B)
    y = delayed(cubes)(a, b)
    tangent_out, twice, mixed = compute(
        dagad.jvp(y, [a, b], [1.0, DB])[1],
        dagad.jvp(dagad.jvp(y, a, 1.0)[1], a, 1.0)[1],
        dagad.jvp(dagad.gradient(y, b), a, 1.0)[1],
        **where(scheduler),
    )
    assert close(tangent_out, 12.0 * onp.sum(B) + 8.0 * onp.sum(DB))
    assert close(twice, 12.0 * onp.sum(B))
    assert close(mixed, onp.full(3, 12.0))


def test_a_persisted_node_of_a_graph_may_have_a_tangent(cluster: Any) -> None:
    a, b = delayed(A), delayed(B)
    scaled = delayed(scale)(a, b)
    (kept,) = cluster.persist([scaled])
    y = delayed(lambda s: np.sum(s**2))(kept)
    (found,) = cluster.compute([dagad.jvp(y, kept, DA)[1]], sync=True)
    assert close(found, 2.0 * onp.sum(onp.sin(A) * B * DA))


ROAD = settings(max_examples=examples(30), deadline=None, derandomize=True)
OPERATIONS: list[Any] = [
    lambda x, y: x * y,
    lambda x, y: np.sin(x) + y**2,
    lambda x, y: np.exp(-(x**2)) * np.sum(y),
    lambda x, y: np.where(x > y, x, y * 0.5),
]


@ROAD
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=8))
def test_random_graphs_have_the_tangents_of_their_functions(steps: list[tuple[int, int, int]]) -> None:
    def run(leaves: list[Any], lift: Any) -> Any:
        nodes = list(leaves)
        for operation, left, right in steps:
            nodes.append(lift(OPERATIONS[operation])(nodes[left % len(nodes)], nodes[right % len(nodes)]))
        return lift(lambda last, *leaves: np.sum(last))(nodes[-1], *leaves)  # so that all of them are in the graph

    leaves = [delayed(A), delayed(B)]
    value, tangent = compute(*dagad.jvp(run(leaves, delayed), leaves, [DA, DB]), scheduler="sync")
    expected, tangent_out = dagad.jvp(lambda a, b: run([a, b], lambda f: f), (A, B), (DA, DB))
    assert close(value, expected)
    assert close(tangent, tangent_out)


# --- graphs -----------------------------------------------------------------------------------------------------------


def test_building_a_tangent_graph_computes_nothing() -> None:
    calls: list[str] = []

    def noted(x: Any) -> Any:
        calls.append("x")
        return x**2

    a = delayed(3.0)
    y = delayed(noted)(a)
    before = dict(y.__dask_graph__())
    value, tangent = dagad.jvp(y, a, delayed(noted)(1.0))
    both = dagad.jvp(tangent, a, 1.0)
    gradient = dagad.gradient(tangent, a)
    assert not calls
    assert dict(y.__dask_graph__()) == before
    assert compute(value, tangent, scheduler="sync") == (9.0, 6.0)
    assert len(calls) == 2  # the function once, and the tangent
    assert compute(*both, gradient, scheduler="sync") == (6.0, 2.0, 2.0)


def test_keys_of_a_tangent_graph_have_a_role_and_are_its_own() -> None:
    a = delayed(A)
    y = delayed(np.sum)(delayed(np.sin)(a))
    graphs = [dict(dagad.jvp(y, a, tangent)[1].__dask_graph__()) for tangent in (DA, DB)]
    old = set(dict(y.__dask_graph__()))
    new = [{key for key in graph if role_of(key) is not None} for graph in graphs]
    assert not new[0] & new[1]
    assert {role_of(key) for key in new[0]} >= {Role.VALUE, Role.GETITEM, Role.GRADIENT}
    assert old.isdisjoint(new[0])


def test_a_tangent_of_a_graph_has_the_same_bits_on_every_scheduler(cluster: Any) -> None:
    a, b = delayed(A), delayed(B)
    pair = dagad.jvp(as_graph(a, b), [a, b], [DA, DB])
    results = [compute(*pair, **where(scheduler)) for scheduler in ("sync", "threads", cluster)]
    assert len({onp.asarray(result).tobytes() for result in results}) == 1


# --- what is refused --------------------------------------------------------------------------------------------------


def test_primals_and_tangents_that_do_not_fit_are_refused() -> None:
    a, b = delayed(A), delayed(B)
    y = delayed(scale)(a, b)
    for tangents in ([DA], DA, {"a": DA, "b": DB}):
        with pytest.raises(dagad.StructureError, match=r"structure than the primals.*one tangent per collection"):
            dagad.jvp(y, [a, b], tangents)
    with pytest.raises(dagad.StructureError, match=r"holds a collection twice.*sum of its tangents"):
        dagad.jvp(y, [a, a], [DA, DB])
    with pytest.raises(
        dagad.NotDifferentiableError, match=r"`jvp` takes collections.*`primals` holds an array.*delayed"
    ):
        dagad.jvp(y, A, DA)
    with pytest.raises(dagad.NotDifferentiableError, match="`primals` holds no Delayed"):
        dagad.jvp(y, [], [])
    with pytest.raises(dagad.StructureError, match=r"shape \(2,\), where \(3,\) is needed"):
        compute(dagad.jvp(y, a, onp.ones(2))[1], scheduler="sync")
    with pytest.raises(dagad.StructureError, match="structure than the value of its Delayed"):
        compute(dagad.jvp(delayed(lambda p: p["x"])(p := delayed({"x": 1.0})), p, {"y": 1.0})[1], scheduler="sync")


def test_a_tangent_of_an_integer_is_refused() -> None:
    n = delayed(3)
    with pytest.raises(dagad.NotDifferentiableError, match=r"A primal is an int.*astype\(float\)"):
        compute(dagad.jvp(delayed(lambda n: n * 2.0)(n), n, 1.0)[1], scheduler="sync")


def test_a_primitive_without_a_rule_is_named_with_its_task() -> None:
    a = delayed(A)
    with pytest.raises(dagad.NotDifferentiableError, match=r"`polyfit`.*functions of numpy") as caught:
        compute(dagad.jvp(delayed(lambda a: np.polyfit(a, A, 1)[0])(a), a, DA)[1], scheduler="sync")
    assert any("was moved" in note for note in caught.value.__notes__)


def test_an_explicit_function_inside_a_task_moves_by_the_transpose_of_its_pullback() -> None:
    a = delayed(2.0)
    square = explicit(lambda rows, t: (np.sum(rows) * t**2, lambda seed: (None, 2.0 * seed * t * np.sum(rows))))
    tangent_out = dagad.jvp(delayed(lambda t: dagad.reduce_sum(square, A, t, grainsize=2))(a), a, 1.0)[1]
    assert compute(tangent_out, scheduler="sync")[0] == pytest.approx(4.0 * onp.sum(A))
