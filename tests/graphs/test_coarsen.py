"""Coarsening: do fewer tasks give the same bits, and is nothing put together that could have run at the same time?"""

from __future__ import annotations

import functools
import operator
import pickle
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest
from dask.base import annotate, compute as dask_compute, persist as dask_persist
from dask.config import set as dask_set
from dask.delayed import Delayed, delayed
from dask.local import get_sync as dask_get
from hypothesis import given, settings, strategies as st

import dagad
from dagad._graphs import coarsen
from dagad._graphs.fused import FusedLinearization, FusedTasks, Member
from dagad._graphs.sum_trees import Span, add_up, add_up_spans, span_tree, summed
from dagad._graphs.tasks import TaskFunction
from dagad._values import pytree
from dagad.extend import Keep, Preaccumulate, Recompute, explicit
from dagad_scheduler.private import DataNode, Task, TaskRef
from dagad_scheduler.roles import Role, role_of
from support.examples import examples
from support.toy_engine import ComplexStep

pytestmark = [
    pytest.mark.each_value("all combinations of parameters: each value of each is in this tier"),
    pytest.mark.sampled(2),
]

compute: Any = dask_compute  # Dask has few types

X = onp.linspace(0.1, 1.0, 5)


def where(scheduler: Any) -> dict[str, Any]:
    return {"scheduler": scheduler} if isinstance(scheduler, str) else {"scheduler": scheduler.get}


def step(x: Any, theta: Any) -> Any:
    return x + 0.1 * np.sin(x) * theta


def halve(x: Any) -> Any:
    return x / 2


def total(*parts: Any) -> Any:
    return functools.reduce(operator.add, [np.sum(part) for part in parts])


def total_of(parts: Any) -> Any:
    return functools.reduce(operator.add, parts)


def sine(*parts: Any) -> Any:
    return np.sin(total_of(parts))


def squares(x: Any, theta: Any) -> Any:
    return np.sum((x - theta) ** 2)


def chain(length: int, function: Any = step) -> tuple[Any, Any, Any]:
    """Return y, x, theta of a chain of steps that all read theta."""
    x, theta = delayed(X), delayed(0.3)
    state = x
    for number in range(length):
        state = delayed(function, pure=False)(state, theta, dask_key_name=f"x{number}")
    return delayed(total)(state, dask_key_name="y"), x, theta


def fan(width: int) -> tuple[Any, Any, Any]:
    """Return y, one of the leaves, theta."""
    theta = delayed(0.3)
    leaves = [delayed(X + number) for number in range(width)]
    parts = [delayed(squares)(leaf, theta, dask_key_name=f"f{number}") for number, leaf in enumerate(leaves)]
    return delayed(total_of)(parts), leaves[-1], theta


def tree(width: int) -> tuple[Any, Any, Any]:
    theta = delayed(0.3)
    leaves = [delayed(X + number) for number in range(width)]
    level = [delayed(squares)(leaf, theta) for leaf in leaves]
    while len(level) > 1:
        level = [delayed(total)(*level[start : start + 3]) for start in range(0, len(level), 3)]
    return level[0], leaves[-1], theta


def own_tasks(y: Any, *collections: Any) -> list[Any]:
    """Return the keys of a derived graph that the user's does not have."""
    return list({key for one in collections for key in dict(one.dask)} - dict(y.dask).keys())


def pullbacks(gradient: Any) -> int:
    return sum(role_of(key) is Role.PULLBACK for key in dict(gradient.dask))


def bits(obj: Any) -> list[Any]:
    leaves = [onp.asarray(part) for part in pytree.flatten(obj)[0]]
    return [(leaf.dtype, leaf.shape, leaf.tobytes()) for leaf in leaves]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return what builds with every task by itself."""

    def build(make: Callable[[], Any]) -> Any:
        with monkeypatch.context() as patched, dask_set({"dagad.graph-width": 10**9}):
            patched.setattr(coarsen, "LONGEST", 1)
            return make()

    return build


# --- the same bits ----------------------------------------------------------------------------------------------------


GRAPHS = {"chain": lambda: chain(37), "fan": lambda: fan(40), "tree": lambda: tree(40)}
POLICIES = {"keep": Keep, "recompute": Recompute, "preaccumulate": Preaccumulate}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_coarsened_graph_gives_the_bits_of_one_with_more_tasks(
    graph: str, policy: str, scheduler: Any, apart: Any
) -> None:
    y, x, theta = GRAPHS[graph]()

    def make() -> Any:
        return dagad.value_and_gradient(y, [x, theta], policy=POLICIES[policy]())

    with dask_set({"dagad.graph-width": 8}):
        few = make()
    many = apart(make)
    assert len(own_tasks(y, *few[1])) < 0.6 * len(own_tasks(y, *many[1]))
    found = compute(*few[1], few[0], **where(scheduler))
    assert bits(found) == bits(compute(*many[1], many[0], scheduler="sync"))


Programs = st.lists(st.tuples(*[st.integers(0, 20)] * 3), min_size=3, max_size=40)


def drawn(steps: Any) -> tuple[Any, Any, Any]:
    """Return a graph of any shape: each task reads one to three of those before it."""
    x, theta = delayed(X), delayed(0.3)
    made = [x, theta]
    for number, (kind, one, other) in enumerate(steps):
        inputs = [made[-1 - one % min(len(made), 3)], made[other % len(made)], made[-1]][: 1 + kind % 3]
        name = f"{number}"
        if kind % 5 == 4:
            made.append(delayed(total)(*inputs, dask_key_name=f"total-{name}"))
        else:
            made.append(
                delayed(lambda *parts: np.sin(total_of(parts)), pure=False)(*inputs, dask_key_name=f"sin-{name}")
            )
    return delayed(total)(*made[2 + len(steps) // 2 :], x, theta, dask_key_name="y"), x, theta


@given(Programs, st.sampled_from([1, 2, 5, 1024]), st.sampled_from([2, 5, 16]))
@settings(max_examples=examples(60), deadline=None)
def test_coarsened_graphs_of_any_shape_give_the_same_bits(steps: Any, width: int, longest: int) -> None:
    y, x, theta = drawn(steps)
    found = []
    for length, wide in ((1, 10**9), (longest, width)):
        with pytest.MonkeyPatch.context() as patched, dask_set({"dagad.graph-width": wide}):
            patched.setattr(coarsen, "LONGEST", length)
            value, gradients = dagad.value_and_gradient(y, [x, theta])
            tangent_out = dagad.jvp(y, [x, theta], [X, 1.0])[1]
            found.append(bits(compute(value, gradients, tangent_out, scheduler="sync")))
    assert found[0] == found[1]


def test_the_gradient_of_a_coarsened_chain_is_that_of_autograd() -> None:
    y, x, theta = chain(40)

    def plain(x: Any, theta: Any) -> Any:
        for _ in range(40):
            x = step(x, theta)
        return np.sum(x)

    right = autograd.grad(plain, (0, 1))(X, 0.3)
    found = compute(*dagad.gradient(y, [x, theta]), scheduler="sync")
    onp.testing.assert_allclose(found[0], right[0], rtol=1e-14)
    onp.testing.assert_allclose(found[1], right[1], rtol=1e-14)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("graph", GRAPHS)
def test_a_gradient_of_a_coarsened_graph_can_be_differentiated_again(graph: str, scheduler: Any, apart: Any) -> None:
    with dask_set({"dagad.graph-width": 8}):
        y, x, theta = GRAPHS[graph]()
        slope = dagad.gradient(y, theta)
        again = compute(*dagad.gradient(slope, [x, theta]), **where(scheduler))
        second = dagad.jvp(slope, [x, theta], [X, 1.0])[1].compute(**where(scheduler))
    right = apart(lambda: dagad.gradient(dagad.gradient(y, theta), [x, theta]))
    expected = compute(*right, scheduler="sync")
    for one, other in zip(again, expected, strict=True):
        onp.testing.assert_allclose(one, other, rtol=1e-12)
    assert second == pytest.approx(float(onp.sum(again[0] * X) + again[1]), rel=1e-12)


@pytest.mark.parametrize("graph", GRAPHS)
def test_tangents_of_a_coarsened_graph_have_the_same_bits(graph: str, scheduler: Any, apart: Any) -> None:
    y, x, theta = GRAPHS[graph]()
    with dask_set({"dagad.graph-width": 8}):
        few = dagad.jvp(y, [x, theta], [X, 1.0])
    many = apart(lambda: dagad.jvp(y, [x, theta], [X, 1.0]))
    assert len(own_tasks(y, *few)) < 0.6 * len(own_tasks(y, *many))
    assert bits(compute(*few, **where(scheduler))) == bits(compute(*many, scheduler="sync"))


# --- what is put together ---------------------------------------------------------------------------------------------


def test_a_chain_costs_a_few_tasks_for_many() -> None:
    y, x, theta = chain(320)
    value, gradients = dagad.value_and_gradient(y, [x, theta])
    assert pullbacks(value) == 11  # the last one is of y: 321 tasks, 32 each
    assert len(own_tasks(y, value, *gradients)) < 0.2 * 321


def test_coarsening_does_not_join_tasks_across_leaves_of_wrt_and_marked_steps() -> None:
    y, x, theta = chain(16)
    state = Delayed("x7", y.dask)
    inner, slope = compute(*dagad.gradient(y, [state, theta]), scheduler="sync")
    assert onp.shape(inner) == X.shape
    assert onp.isfinite(slope)
    assert pullbacks(dagad.gradient(y, [x, state])[0]) == 2  # up to x7, and from there
    state = delayed(X)
    start = state
    for number in range(6):
        with annotate(dagad_step=number // 2):
            state = delayed(step, pure=False)(state, theta)
    assert pullbacks(dagad.gradient(delayed(total)(state), start)) == 4


def test_tasks_that_could_run_at_the_same_time_stay_separate() -> None:
    x = delayed(X)
    halves = [delayed(halve, pure=False)(x) for _ in range(3)]
    assert pullbacks(dagad.gradient(delayed(total)(*halves), x)) == 4
    # nor does a chain wait for what only its later part needs
    late = delayed(halve, pure=False)(delayed(step)(x, delayed(halve)(0.5)))
    assert pullbacks(dagad.gradient(delayed(total)(delayed(step)(halves[0], late)), x)) == 3


def test_a_step_of_many_small_operations_becomes_one_task() -> None:
    x = delayed(X)
    state = x
    for _ in range(3):
        tangent_out = delayed(np.sin)(state) * 0.1
        state = state + tangent_out  # the state is read twice, and both lead here
    slope = dagad.gradient(delayed(total)(state), x)
    assert pullbacks(slope) == 1
    right = autograd.grad(lambda x: np.sum(functools.reduce(lambda s, _: s + np.sin(s) * 0.1, range(3), x)))(X)
    onp.testing.assert_allclose(slope.compute(scheduler="sync"), right, rtol=1e-14)


def test_a_wide_graph_keeps_as_many_tasks_as_it_may_have_workers() -> None:
    with dask_set({"dagad.graph-width": 16}):
        assert pullbacks(dagad.gradient(*fan(31)[::2])) == 32  # not twice as wide
        assert pullbacks(dagad.gradient(*fan(160)[::2])) == 17
        assert 16 <= pullbacks(dagad.gradient(*tree(160)[::2])) <= 90


def test_wide_graphs_keep_several_tasks_for_each_thread(cluster: Any) -> None:
    def n_pulled(leaves: int) -> int:
        return pullbacks(dagad.gradient(*fan(leaves)[::2])) - 1

    with dask_set({"num_workers": 2, "scheduler": "threads"}):
        assert n_pulled(63) == 63
        assert 32 <= n_pulled(320) <= 40
    with dask_set({"num_workers": 10, "scheduler": "threads"}):
        assert n_pulled(310) == 310
        assert n_pulled(320) == 160
    with cluster.as_current():
        assert n_pulled(320) == 320
        assert 256 <= n_pulled(512) < 512


@pytest.mark.parametrize("width", [0, -1, 2.5, "many"])
def test_a_graph_width_that_is_no_positive_int_is_refused(width: Any) -> None:
    y, x, _ = chain(3)
    with dask_set({"dagad.graph-width": width}), pytest.raises(dagad.PlanError, match=r"Give a positive int.*'auto'"):
        dagad.gradient(y, x)


# --- memory, and journeys ---------------------------------------------------------------------------------------------


def grown(x: Any) -> Any:
    return x * 1.01


def test_states_that_nobody_reads_any_more_are_freed() -> None:
    x = delayed(onp.ones(2**17))
    state = x
    for _ in range(32):
        state = delayed(grown, pure=False)(state)
    y = delayed(total)(state)
    tangent = dagad.jvp(y, x, onp.ones(2**17))[1]
    assert len(own_tasks(y, tangent)) < 12
    tracemalloc.start()
    try:
        tangent.compute(scheduler="sync")
        assert tracemalloc.get_traced_memory()[1] < 9 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_count_what_they_did_for_each_task(policy: str) -> None:
    y, x, _ = chain(32)
    chosen: Any = POLICIES[policy]()
    compute(dagad.gradient(y, x, policy=chosen), scheduler="sync")
    n_primal, peak = {"keep": (33, 33), "recompute": (66, 1), "preaccumulate": (33, 33)}[policy]
    assert (chosen.n_primal, chosen.n_pullback, chosen.peak_linearizations) == (n_primal, 33, peak)


def linearizations(y: Any, x: Any) -> list[Any]:
    slope = dagad.gradient(y, x)
    graph = dict(slope.dask)
    return [one for one in dask_get(graph, list(graph)) if isinstance(one, FusedLinearization)]


def test_a_pickled_linearization_of_several_tasks_gives_the_same_bits_without_its_tape() -> None:
    y, x, _ = chain(7)
    (made,) = linearizations(y, x)  # of 8 tasks, and pulled by now
    first = made.pull_scaled(1.0)
    arrived = pickle.loads(pickle.dumps(made))
    assert bits(arrived.value) == bits(made.value)
    assert sys.getsizeof(arrived) < 500
    assert bits(arrived.pull_scaled(1.0)) == bits(first) == bits(made.pull_scaled(1.0))


def test_a_linearization_of_several_tasks_counts_the_bytes_of_its_tapes() -> None:
    x = delayed(onp.ones(10_000))
    state = delayed(step)(delayed(step)(x, 0.1), 0.2)
    graph = dict(dagad.gradient(delayed(total)(state), x).dask)
    (key,) = (key for key, node in graph.items() if role_of(key) is Role.VALUE)
    made: Any = dask_get(graph, [key])[0]
    assert sys.getsizeof(made) > 4 * 80_000
    made.pull_scaled(1.0)
    assert sys.getsizeof(made) < 1000


def test_a_recipe_that_cannot_travel_is_named_when_it_is_pulled() -> None:
    lock = __import__("threading").Lock()

    def locked(x: Any, theta: Any) -> Any:
        with lock:
            return step(x, theta)

    y, x, _ = chain(3, locked)
    (made,) = linearizations(y, x)
    arrived = pickle.loads(pickle.dumps(made))
    with pytest.raises(dagad.PortabilityError, match="inside the function"):
        arrived.pull_scaled(1.0)


def test_persisted_gradients_leave_nothing_behind(cluster: Any) -> None:
    y, x, theta = chain(40)
    kept = dask_persist(*dagad.gradient(y, [x, theta]), scheduler=cluster.get)
    right = compute(*dagad.gradient(y, [x, theta]), scheduler="sync")
    assert bits(compute(*kept, scheduler=cluster.get)) == bits(right)


# --- functions with derivatives of their own, and engines -------------------------------------------------------------


@explicit
def by_hand(x: Any, theta: Any) -> Any:
    return step(x, theta), lambda seed: (
        seed * (1 + 0.1 * theta * onp.cos(x)),
        onp.sum(seed * 0.1 * onp.sin(x)),
    )


def test_an_explicit_function_can_stand_in_a_chain(scheduler: Any) -> None:
    x, theta = delayed(X), delayed(0.3)
    state = x
    for number in range(12):
        state = delayed([step, by_hand, halve][number % 3], pure=False)(state, *([theta] if number % 3 < 2 else []))
    slopes = dagad.gradient(delayed(total)(state), [x, theta])
    assert pullbacks(slopes[0]) == 1

    def plain(x: Any, theta: Any) -> Any:
        for number in range(12):
            x = step(x, theta) if number % 3 < 2 else halve(x)
        return np.sum(x)

    right = autograd.grad(plain, (0, 1))(X, 0.3)
    for one, other in zip(compute(*slopes, **where(scheduler)), right, strict=True):
        onp.testing.assert_allclose(one, other, rtol=1e-13)


def test_two_engines_can_meet_in_a_chain(scheduler: Any) -> None:
    x, theta = delayed(X), delayed(0.3)
    state = x
    for number in range(6):
        state = delayed([step, by_hand][number % 2], pure=False)(state, theta)
    y = delayed(total)(state)
    slopes = dagad.gradient(y, [x, theta], engine=ComplexStep())
    assert pullbacks(slopes[0]) == 1
    (made,) = (node.args[1] for key, node in dict(slopes[0].dask).items() if role_of(key) is Role.VALUE)
    engines = {type(member.function.state()[-1]).__name__ for member in made.state()[0]}
    assert engines == {"ComplexStep", "ExplicitEngine"}
    right = compute(*dagad.gradient(y, [x, theta]), scheduler="sync")
    for one, other in zip(compute(*slopes, **where(scheduler)), right, strict=True):
        onp.testing.assert_allclose(one, other, rtol=1e-12)


def test_a_second_derivative_goes_through_an_explicit_function_in_a_chain(scheduler: Any) -> None:
    x, theta = delayed(X), delayed(0.3)

    def curvature(middle: Any) -> Any:
        state = delayed(step)(delayed(middle)(delayed(step)(x, theta), theta), theta)
        slope = dagad.gradient(delayed(total)(state), theta)
        return [dagad.gradient(slope, theta), *dagad.gradient(dagad.gradient(delayed(total)(state), theta), [x, theta])]

    found, right = compute(curvature(by_hand), curvature(step), **where(scheduler))
    for one, other in zip(found, right, strict=True):
        onp.testing.assert_allclose(one, other, rtol=1e-12)


# --- sums along the fixed tree ----------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(80), deadline=None)
def test_sums_of_spans_have_the_bits_of_the_whole_tree(counts: Any, seed: int) -> None:
    terms = list(onp.random.default_rng(seed).normal(size=(sum(counts), 3)) * 1e3)
    starts = [sum(counts[:number]) for number in range(len(counts))]
    spans = [Span(start, start + count, len(terms)) for start, count in zip(starts, counts, strict=True)]
    graph: dict[Any, Any] = {}
    for number, span in enumerate(spans):
        part = terms[span.start : span.stop]
        graph["term", number] = DataNode(("term", number), part[0] if counts[number] == 1 else summed(span, part))
    refs = [TaskRef(key) for key in graph]
    found, sums = span_tree(refs, counts, lambda *at: ("sum", *at))
    graph |= sums
    assert bits(dask_get(graph, found.key)) == bits(add_up(*terms))


def test_a_span_from_which_nothing_comes_adds_nothing() -> None:
    spans = (Span(0, 3, 5), Span(3, 5, 5))
    right = add_up(1.0, 2.0, 4.0, None, None)
    assert add_up_spans(spans, summed(spans[0], [1.0, 2.0, 4.0]), None) == right
    assert add_up_spans(spans, None, None) is None


def test_one_task_can_read_a_component_twice() -> None:
    def product(x: Any, y: Any) -> Any:
        return np.sum(x * y)

    both = TaskFunction(Task("y", product, TaskRef("a"), TaskRef("b")), ("a", "b"), (0, 1))
    fused = FusedTasks((Member(both, (1, 1), (1, 1)),), 1, ((0, 0),), None, (0,))
    value, pullback, _ = fused.record((onp.array([1.0, 2.0]),))
    assert value == 5.0
    onp.testing.assert_array_equal(pullback(1.0)[0][0], [2.0, 4.0])
