"""Kernel functions: are pushforwards and pullbacks of chunk functions chunk functions that agree with each other?

Graphs are run by calling their tasks one by one, with a dict of values.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest

import dagad
from dagad._executors.choose import executor_on
from dagad._executors.evaluation import find_scheduler, new_names
from dagad._executors.graph import GraphExecutor, lower
from dagad._executors.inline import Inline
from dagad._graphs.activity import topological
from dagad._kernels.chunks import ChunkContext, ChunkFunction
from dagad._kernels.cuts import ByItem
from dagad._kernels.derivatives import Pullback, Pushforward, ValueAndGrad
from dagad._kernels.inputs import Inputs
from dagad._kernels.joins import EndToEnd, Stack
from dagad._kernels.kernel import Kernel, Outputs, Summed, Unreduced
from dagad._kernels.operation import Operation
from dagad._kernels.over_parts import OverParts
from dagad._sources.arrays import ArraySource
from dagad._sources.columns import Sliced
from dagad._sources.plan import GivenPlan, Plan
from dagad._values import pytree
from dagad._values.shipping import opened
from dagad.extend import CompensatedSum, Keep, Preaccumulate, Recompute
from support import operations_by_hand as by_hand

RNG = onp.random.default_rng(5)
N, WIDTH = 7, 3
X, THETA, SCALE = RNG.standard_normal((N, WIDTH)), RNG.standard_normal(WIDTH), 0.7
ALL: Any = None, frozenset()  # leaves that are stacked have a seed
LEAVES = [THETA, SCALE, X]


def total(rows: Any, theta: Any, scale: Any) -> Any:
    return {"a": np.sum(np.sin(rows * theta) * scale), "n": len(rows), "b": np.sum(rows**2, axis=0) * theta}


def one(item: Any, theta: Any, scale: Any) -> Any:
    return np.sin(item * theta) * scale, 3, np.sum(item * theta) ** 2


def row(item: Any, theta: Any, scale: Any) -> Any:
    return np.sin(item[: int(pytree.plain(item)[0] > 0) * 2] * theta[0]) * scale


def chunk_function(fun: Callable[..., Any]) -> ChunkFunction:
    return by_hand.chunk_function(fun, (THETA, SCALE))


FUNCTIONS: dict[str, Kernel] = {
    "summed": Summed(chunk_function(total)),
    "apart": Unreduced(chunk_function(total)),
    "stacked": OverParts(chunk_function(one), ByItem(), Stack()),
    "end to end": OverParts(chunk_function(row), ByItem(), EndToEnd()),
}
SLICED = Sliced(pytree.flatten(0)[1], [ArraySource(N, None, 2)], N)


SYNC = find_scheduler("sync")
EXECUTORS: dict[str, Any] = {
    "inline": Inline(),
    "graph": GraphExecutor(SYNC),
    "grouped": GraphExecutor(SYNC, 2),
    "chosen": executor_on(SYNC),
}


def operation(name: str, grainsize: int = 3, policy: Any = None, executor: str = "graph", **options: Any) -> Operation:
    plan = options.pop("plan", Plan(N, grainsize))
    inputs = Inputs.of(plan, SLICED, 2)
    return Operation(FUNCTIONS[name], plan, SLICED, inputs, EXECUTORS[executor], policy or Keep(), name, **options)


class Run:
    """An operation at leaves: its value, and pullbacks."""

    def __init__(self, operation: Operation, leaves: Sequence[Any]) -> None:
        self.operation, self.leaves = operation, leaves
        self.value, self.state = operation.forward(leaves)

    def pulled(self, seeds: Sequence[Any]) -> list[Any]:
        found, self.state = self.operation.backward(self.leaves, self.value, self.state, seeds)
        return found

    def many(self, seeds: Sequence[Any]) -> list[list[Any]]:
        found, self.state = self.operation.backward_many(self.leaves, self.value, self.state, seeds)
        return found


def run_by_hand(made: Operation, leaves: Sequence[Any]) -> list[Outputs]:
    """Return what each chunk gives, by calling the tasks of the graph one after the other."""
    lowered, values = lower(made.job(leaves), new_names(), 1), dict[Any, Any]()
    graph = lowered.graph
    for key in topological(graph, list(lowered.batches)):
        values[key] = graph[key]({name: values[name] for name in graph[key].dependencies})
    found = [values[key] for key in lowered.batches]
    if not made.kernel.stacks:
        return [Outputs(summed, []) for summed in found]
    return [Outputs(batched.reduced, batched.stacked[0], batched.notes[0]) for batched in found]


def with_tangents(leaves: Sequence[Any], tangents: Sequence[Any], n_theta: int = 2) -> list[Any]:
    """Return leaves and tangents as a pushforward takes them: shared ones first."""
    return [*leaves[:n_theta], *tangents[:n_theta], *leaves[n_theta:], *tangents[n_theta:]]


def directions() -> list[Any]:
    return [RNG.standard_normal(WIDTH), float(RNG.standard_normal()), RNG.standard_normal((N, WIDTH))]


def seeds_for(value: Outputs) -> list[Any]:
    return [RNG.standard_normal(onp.shape(leaf)) for leaf in value.floats()]


def turned_leaves(value: Outputs, leaves: Sequence[Any], seeds: Sequence[Any], n_theta: int = 2) -> list[Any]:
    n_summed = len(Outputs(value.reduced, []).floats())
    return [*leaves[:n_theta], *seeds[:n_summed], *leaves[n_theta:], *seeds[n_summed:]]


def inner(some: Sequence[Any], others: Sequence[Any]) -> float:
    return float(sum(onp.sum(onp.asarray(a) * b) for a, b in zip(some, others, strict=True)))


def cotangents(parts: Outputs) -> list[Any]:
    return [*(parts.reduced or ()), *parts.stacked]


def same(some: Sequence[Any], others: Sequence[Any], rtol: float = 1e-12) -> None:
    for a, b in zip(some, others, strict=True):
        onp.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


# --- graphs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grainsize", [1, 3, 7, 9])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_graph_run_by_hand_gives_what_the_operation_gives(name: str, grainsize: int) -> None:
    for made in (operation(name, grainsize), operation(name, grainsize).pushforward(2)):
        leaves = LEAVES if made.kernel is FUNCTIONS[name] else [*LEAVES[:2] * 3, *LEAVES[2:] * 3]
        chunks, whole = run_by_hand(made, leaves), made.call(leaves)
        assert len(chunks) == -(-N // grainsize)
        own = [leaf for chunk in chunks for leaf in chunk.stacked]
        assert sum(onp.size(leaf) for leaf in own) == sum(onp.size(leaf) for leaf in whole.stacked)
        if made.kernel.reduces:
            summed = [pytree.flatten(chunk.reduced)[0] for chunk in chunks]
            same([sum(column) for column in zip(*summed, strict=True)], pytree.flatten(whole.reduced)[0])
        assert bool(whole.positions) == made.kernel.stacks
        for chunk, targets in zip(chunks, whole.positions or [[]] * len(chunks), strict=True):
            for part, (leaf, rows) in zip(chunk.stacked, targets, strict=True):
                assert onp.array_equal(part, whole.stacked[leaf] if rows is None else whole.stacked[leaf][rows])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("policy", [Keep(), Recompute(), Preaccumulate()])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_pushforward_and_pullback_are_adjoint(name: str, policy: Any, executor: str) -> None:
    made, tangents = operation(name, policy=policy, executor=executor), directions()
    value, (moving,) = made.split_jvp(made.pushforward(1).call(with_tangents(LEAVES, tangents)), 1)
    run = Run(made, LEAVES)
    same(value.leaves(), run.value.leaves())
    seeds = seeds_for(value)
    pulled = run.pulled(seeds)
    assert inner(moving, seeds) == pytest.approx(inner(tangents, pulled), rel=1e-12)
    same(run.pulled(seeds), pulled, 0)
    many = run.many([seeds, [None] * len(seeds), seeds])
    for leaf, found in zip(pulled, many, strict=True):
        assert found[1] is None
        for part in (found[0], found[2]):
            assert onp.array_equal(part.full() if hasattr(part, "full") else part, leaf)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_pullback_as_an_operation_is_the_pullback(name: str) -> None:
    run = Run(operation(name), LEAVES)
    seeds = seeds_for(run.value)
    back, leaves = run.operation.pullback(LEAVES, run.value, seeds)
    same(cotangents(back.call(leaves)), run.pulled(seeds))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_transpose_of_the_transpose_is_the_pushforward(name: str, executor: str) -> None:
    made, tangents = operation(name, executor=executor), directions()
    value, (moving,) = made.split_jvp(made.pushforward(1).call(with_tangents(LEAVES, tangents)), 1)
    turned = Run(*made.pullback(LEAVES, value, seeds_for(value)))
    again = turned.pulled(tangents)  # a pullback is linear in its seeds, and its transpose sends tangents on
    n_summed = len(Outputs(value.reduced, []).floats())
    same([*again[2 : 2 + n_summed], *again[3 + n_summed :]], moving)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_pushforward_of_the_pullback_is_the_pullback_of_the_pushforward(name: str) -> None:
    run, tangents = Run(operation(name), LEAVES), directions()
    value = run.value
    seeds, zeros = seeds_for(value), [onp.zeros_like(leaf) for leaf in value.floats()]
    n_summed = len(Outputs(value.reduced, []).floats())
    turned, leaves = run.operation.pullback(LEAVES, value, seeds)
    still = turned_leaves(value, tangents, zeros)
    _, (of_pullback,) = turned.split_jvp(turned.pushforward(1).call(with_tangents(leaves, still, 2 + n_summed)), 1)

    along = [*zeros[:n_summed], *seeds[:n_summed], *zeros[n_summed:], *seeds[n_summed:]]
    found = Run(run.operation.pushforward(1), with_tangents(LEAVES, tangents)).pulled(along)
    same([*found[:2], found[4]], of_pullback, 1e-10)
    same([*found[2:4], found[5]], run.pulled(seeds))


def test_a_pushforward_along_several_directions_gives_each_alone() -> None:
    made, some = operation("summed"), [directions() for _ in range(3)]
    leaves = [*LEAVES[:2], *(part for each in some for part in each[:2]), X, *(each[2] for each in some)]
    value, tangents = made.split_jvp(made.pushforward(3).call(leaves), 3)
    for own, found in zip(some, tangents, strict=True):
        same(made.split_jvp(made.pushforward(1).call(with_tangents(LEAVES, own)), 1)[1][0], found, 0)
    assert len(value.floats()) == 2


# --- one chunk --------------------------------------------------------------------------------------------------------


def test_kernels_give_the_same_bits_after_pickling() -> None:
    place, rows = ChunkContext(next(iter(Plan(N, N))), new_names()), SLICED.rows(next(iter(Plan(N, N))))
    args: Any = [[THETA, SCALE]], [[X]]
    for function in FUNCTIONS.values():
        value = function.value(place, rows, *args)
        n_summed = len(Outputs(value.reduced, []).floats())
        seeds = [onp.ones(onp.shape(leaf)) for leaf in value.floats()]
        summed = [pytree.is_differentiable(leaf) for leaf in Outputs(value.reduced, []).all_leaves()]
        back = Pullback(function, tuple(summed), ALL, True, True)
        theta, active = [*args[0], seeds[:n_summed]], [*args[1], seeds[n_summed:]] if function.stacks else args[1]
        others: Any = [(Pushforward(function, 1), (args[0] * 2, args[1] * 2)), (back, (theta, active))]
        for made, own in [(function, args), *others]:
            arrived = opened(pickle.loads(pickle.dumps(made)))
            assert type(arrived) is type(made)
            assert (arrived.reduces, arrived.stacks, arrived.copies) == (made.reduces, made.stacks, made.copies)
            found, expected = arrived.value(place, rows, *own), made.value(place, rows, *own)
            same(found.leaves(), expected.leaves(), 0)
            parts, pull, nbytes = arrived.record(place, rows, *own)
            same(parts.leaves(), expected.leaves(), 0)
            assert len(pull([onp.ones(onp.shape(leaf)) for leaf in parts.floats()])) == 2
            assert nbytes() > 0


def test_a_unit_gradient_is_there_only_for_one_real_number() -> None:
    place, rows = ChunkContext(next(iter(Plan(N, N))), new_names()), SLICED.rows(next(iter(Plan(N, N))))
    scalar = Summed(chunk_function(lambda rows, theta, scale: np.sum(np.sin(rows * theta)) * scale))
    parts = ValueAndGrad(scalar, stacks=True).value(place, rows, [[THETA, SCALE]], [[X]])
    expected = [autograd.grad(lambda *a: np.sum(np.sin(a[2] * a[0])) * a[1], n)(*LEAVES) for n in range(3)]
    same([*parts.reduced[1], *parts.stacked], expected)
    assert parts.reduced[2] == 0
    without = ValueAndGrad(FUNCTIONS["summed"], stacks=True).value(place, rows, [[THETA, SCALE]], [[X]])
    assert without.reduced[1:] == ([None] * 2, 1)


def test_seeds_belong_to_the_leaves_that_have_them_in_any_chunk() -> None:
    parts = Outputs({"a": 0, "b": 2.0, "c": None}, [onp.ones(2), 3])
    assert parts.floats()[0] == 2.0
    assert [seed is None for seed in parts.seeds([1.0, 5.0, 7.0, onp.ones(2), None])] == [True, False, False, True]
    assert parts.seeds([1.0, 5.0, 7.0, None, None])[1] == 5.0
    assert parts.seeds([5.0, None])[1] == 5.0
    with pytest.raises(dagad.StructureError, match=r"integers in this chunk.*`float\(...\)`"):
        parts.seeds([1.0, 5.0, None])
    with pytest.raises(dagad.StructureError, match=r"A cotangent has the shape \(3,\)"):
        parts.seeds([5.0, onp.ones(3)])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_chunks_can_have_no_rows(executor: str) -> None:
    plan = GivenPlan((0, 0, 3, 3, 7))
    for name in ("summed", "apart"):
        made, tangents = operation(name, plan=plan, monoid=CompensatedSum(), executor=executor), directions()
        value, (moving,) = made.split_jvp(made.pushforward(1).call(with_tangents(LEAVES, tangents)), 1)
        run, seeds = Run(made, LEAVES), seeds_for(value)
        assert inner(moving, seeds) == pytest.approx(inner(tangents, run.pulled(seeds)), rel=1e-12)


# --- what is run ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
def test_seeds_that_are_zero_cost_nothing(executor: str) -> None:
    policy = Keep()
    run = Run(operation("stacked", policy=policy, executor=executor), LEAVES)
    assert (policy.n_primal, policy.n_pullback, policy.peak_linearizations) == (3, 0, 3)
    seeds: list[Any] = [onp.zeros_like(leaf) for leaf in run.value.floats()]
    assert all(not onp.any(part) for part in run.many([seeds])[2])
    assert executor != "graph" or policy.n_pullback == 0
    before = policy.n_pullback
    seeds[0][4] = 1.0
    gradient = run.pulled(seeds)[2]
    assert executor != "graph" or policy.n_pullback == before + 1
    assert onp.flatnonzero(onp.any(gradient, axis=1)).tolist() == [4]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("policy", "runs"), [(Keep, 3), (Recompute, 6), (Preaccumulate, 3)])
def test_a_chunk_is_recorded_once_for_any_number_of_seeds(policy: Any, runs: int, executor: str) -> None:
    counted = policy()
    run = Run(operation("apart", policy=counted, executor=executor), LEAVES)
    assert counted.n_pullback == 0
    run.many([seeds_for(run.value) for _ in range(5)])
    assert (counted.n_primal, counted.n_pullback) == (runs, 15)


def test_a_sum_to_one_number_is_pulled_once_and_scaled() -> None:
    for policy in (Keep(), Recompute()):

        def of(theta: Any, policy: Any = policy) -> Any:
            options: Any = {"grainsize": 3, "policy": policy, "sum": CompensatedSum(), "scheduler": "sync"}
            return dagad.reduce_sum(lambda rows, t: np.sum(np.sin(rows * t)), X, theta, **options)

        pullback = dagad.vjp(of, THETA)[1]
        one, two = pullback(1.0)[0], pullback(2.0)[0]
        assert onp.array_equal(two, 2.0 * one)
        assert policy.n_pullback == 3


def test_the_outputs_of_a_pullback_are_cotangents_of_all_groups_that_it_takes_but_of_seeds() -> None:
    rows, tangents, seeds = ["x"], ["dx"], ["the seed"]
    moving = Pushforward(FUNCTIONS["stacked"], 1)
    assert Pullback(moving, (), ALL, True, True).stacked_like([rows, tangents, seeds]) == ["x", "dx"]
    assert Pullback(FUNCTIONS["summed"], (True,), ALL, True, True).stacked_like([rows, tangents]) == ["x", "dx"]


def test_a_kernel_that_changes_the_run_of_a_sum_alone_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`record` goes to the engine past it.*or derive from `Kernel`"):

        class Twice(Summed):
            def run(self, *args: Any) -> Any:
                return super().run(*args)
