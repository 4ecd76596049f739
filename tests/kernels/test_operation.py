"""Operations: which state is left after the value and after the gradient, and does no mode run a chunk once more?"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest

import dagad
from dagad._executors.choose import executor_on
from dagad._executors.evaluation import find_scheduler
from dagad._executors.graph import GraphExecutor
from dagad._kernels import pullbacks
from dagad._kernels.kernel import Summed, Unreduced
from dagad._kernels.operation import Recorded, ValueOnly, WithGrad
from dagad._sources.plan import Plan
from dagad._values.blocks import full
from dagad.extend import CompensatedSum, Keep, Linearization, PlainSum, Preaccumulate, Recompute
from support.gated_chunks import bits
from support.operations_by_hand import EXECUTORS, SYNC, Run, operation

pytestmark = pytest.mark.sampled(3)

X, THETA = onp.arange(1.0, 9.0), 0.3
PLAN = Plan(8, 1)
PLACES: dict[str, Callable[[], Any]] = {
    **{name: functools.partial(EXECUTORS.__getitem__, name) for name in EXECUTORS},
    "threads": lambda: GraphExecutor(find_scheduler("threads"), 2),
    "chosen": lambda: executor_on(SYNC),
}


def number(rows: Any, t: Any) -> Any:
    return np.sum(np.sin(rows * t))


def vector(rows: Any, t: Any) -> Any:
    return np.sin(rows[0] * t) * onp.arange(1.0, 4.0)


def sometimes_nothing(rows: Any, t: Any) -> Any:
    return sum([np.sin(row * t) for row in rows if row not in (1.0, 4.0, 5.0)])


def sometimes_integers(rows: Any, t: Any) -> Any:
    return onp.zeros(3, int) if rows[0] in (1.0, 4.0, 5.0) else vector(rows, t)


def tree(rows: Any, t: Any) -> Any:
    return {"a": np.sin(rows[0] * t), "b": 0 if rows[0] == 3 else np.cos(rows[0] * t)}


def integers_and_trees(rows: Any, t: Any) -> Any:
    return {"a": 0, "b": 1} if rows[0] in (1.0, 4.0, 5.0) else tree(rows, t)


def sometimes_complex(rows: Any, t: Any) -> Any:
    return number(rows, t) * (1.0 if rows[0] < 4 else 1 + 2j)


FUNCTIONS = [number, vector, sometimes_nothing, sometimes_integers, tree, integers_and_trees, sometimes_complex]
NUMBERS = [number, sometimes_nothing]


class Alternating:
    """A policy of the user's own: keeps every other tape."""

    value_and_grad = False

    def __init__(self) -> None:
        self.turn, self.counters = 0, Keep().counters

    def linearize(self, task: Any, args: tuple[Any, ...]) -> Linearization:
        self.turn += 1
        return (Linearization.recorded if self.turn % 2 else Linearization.unrecorded)(task, args, self.counters)


def seeds_of(value: Any) -> list[Any]:
    rng = onp.random.default_rng(0)
    return [
        rng.standard_normal(onp.shape(leaf)) * (1 - 2j if onp.iscomplexobj(leaf) else 1.0) for leaf in value.floats()
    ]


def expected_of(fun: Any, seeds: list[Any]) -> float:
    """Return what autograd says, for the float leaves of the sum."""

    def total(t: Any) -> Any:
        parts = [fun(X[at : at + 1], t) for at in range(len(X))]
        leaves = [list(part.values()) if isinstance(part, dict) else [part] for part in parts]
        sums = [sum(column) for column in zip(*leaves, strict=True)]
        return sum(np.sum(np.real(seed * one)) for seed, one in zip(seeds, sums, strict=True))

    return float(autograd.grad(total)(THETA))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("policy", [Keep, Recompute, Preaccumulate, Alternating])
@pytest.mark.parametrize("fun", FUNCTIONS)
def test_the_state_of_an_operation_is_one_of_three_kinds(fun: Any, policy: Any, place: str) -> None:
    own = policy()
    run = Run(operation(fun, X, [THETA], PLAN, executor=PLACES[place](), policy=own), [THETA])
    state, at_once = run.state, isinstance(own, Preaccumulate)
    if at_once and fun in NUMBERS:
        assert isinstance(state, WithGrad)
    elif fun is sometimes_complex and at_once:  # the tapes of those that were pulled are gone
        assert isinstance(state, Recorded | ValueOnly)
    else:
        assert isinstance(state, Recorded)
    run.pulled(seeds_of(run.value))
    assert isinstance(run.state, WithGrad) if fun in NUMBERS else run.state is state


@pytest.mark.sampled(15)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("policy", [Keep, Recompute, Preaccumulate, Alternating])
@pytest.mark.parametrize("fun", FUNCTIONS)
def test_gradients_are_those_of_autograd_again_and_again(fun: Any, policy: Any, place: str) -> None:
    found = []
    for monoid in (PlainSum(), CompensatedSum()):
        made = operation(fun, X, [THETA], PLAN, executor=PLACES[place](), policy=policy(), monoid=monoid)
        run = Run(made, [THETA])
        seeds = seeds_of(run.value)
        assert run.pulled(seeds)[0] == pytest.approx(expected_of(fun, seeds), rel=1e-12)
        twice = [2.0 * seed for seed in seeds]
        assert run.pulled(twice)[0] == pytest.approx(expected_of(fun, twice), rel=1e-12)
        many = run.many([seeds, None, twice])[0] if fun in NUMBERS else run.many([seeds, twice])[0]
        assert many[0] == pytest.approx(expected_of(fun, seeds), rel=1e-12)
        assert many[-1] == pytest.approx(expected_of(fun, twice), rel=1e-12)
        found.append(bits([*run.value.leaves(), *run.pulled(seeds)]))
    reference = Run(operation(fun, X, [THETA], PLAN), [THETA])
    assert found[0] == bits([*reference.value.leaves(), *reference.pulled(seeds_of(reference.value))])


RUNS = [(Keep, 8), (Recompute, 16), (Preaccumulate, 8)]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("policy", "runs"), RUNS)
@pytest.mark.parametrize("fun", [fun for fun in FUNCTIONS if fun is not sometimes_complex])
def test_no_chunk_is_run_once_more_than_the_policy_says(fun: Any, policy: Any, runs: int, place: str) -> None:
    calls = []

    def counted(rows: Any, t: Any) -> Any:
        calls.append(float(rows[0]))
        return fun(rows, t)

    own = policy()
    for _ in range(3):  # how it went before must not change how often it runs
        calls.clear()
        before = own.n_primal
        run = Run(operation(counted, X, [THETA], PLAN, executor=PLACES[place](), policy=own), [THETA])
        assert len(calls) == 8
        run.pulled(seeds_of(run.value))
        assert sorted(calls) == sorted([*X] * (runs // 8))
        assert own.n_primal - before == runs


@pytest.mark.parametrize("place", PLACES)
def test_functions_that_look_the_same_are_taken_for_numbers_once_at_most(place: str) -> None:
    """One gives numbers, one vectors: where numbers were expected, all chunks run again for their gradients."""
    n_runs = []

    def counted(rows: Any, t: Any, fun: Any) -> Any:
        n_runs.append(rows)
        return fun(rows, t)

    wasted = 0
    for turn in range(20):
        fun = functools.partial(counted, fun=vector if turn % 2 else number)
        made = operation(fun, X, [THETA], PLAN, executor=PLACES[place](), policy=Preaccumulate())
        n_runs.clear()
        run = Run(dataclasses.replace(made, owner=("shared", place)), [THETA])
        run.pulled(seeds_of(run.value))
        wasted += len(n_runs) > 8
    assert wasted <= 1


@pytest.mark.parametrize("place", PLACES)
def test_a_later_cotangent_of_a_number_costs_nothing(place: str) -> None:
    for policy in (Keep(), Recompute(), Preaccumulate()):
        run = Run(operation(number, X, [THETA], PLAN, executor=PLACES[place](), policy=policy), [THETA])
        one = run.pulled([1.0])[0]
        counts = policy.n_primal, policy.n_pullback
        assert [run.pulled([factor])[0] for factor in (1.0, 2.0, -0.1)] == [one, 2.0 * one, -0.1 * one]
        assert run.many([[3.0], None, [1.0]])[0] == [3.0 * one, None, one]
        assert (policy.n_primal, policy.n_pullback) == counts == (counts[0], 8)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("policy", [Keep, Recompute, Preaccumulate])
def test_an_operation_has_gradients_in_its_rows_too(policy: Any, place: str) -> None:
    for fun in (number, sometimes_nothing):
        made = operation(
            fun, X, [THETA], Plan(8, 3), executor=PLACES[place](), policy=policy(), active=True, monoid=CompensatedSum()
        )
        run = Run(made, [THETA, X])
        mask = onp.isin(X, (1.0, 4.0, 5.0)) if fun is sometimes_nothing else onp.zeros(8, bool)
        of_theta, of_rows = run.pulled([2.0])
        kept = onp.where(mask, 0.0, 1.0)
        onp.testing.assert_allclose(of_rows, 2.0 * kept * THETA * onp.cos(X * THETA), rtol=1e-13)
        assert of_theta == pytest.approx(2.0 * onp.sum(kept * X * onp.cos(X * THETA)), rel=1e-13)


def test_a_value_alone_traces_nothing() -> None:
    for policy in (Keep(), Recompute(), Preaccumulate()):
        for place, make in PLACES.items():
            made = operation(number, X, [THETA], PLAN, executor=make(), policy=policy)
            assert made.call([THETA]).reduced == Run(operation(number, X, [THETA], PLAN), [THETA]).value.reduced, place
        assert (policy.n_primal, policy.n_pullback, policy.peak_linearizations) == (0, 0, 0)


@pytest.mark.parametrize("place", PLACES)
def test_an_exception_of_a_chunk_comes_out_of_every_method_of_an_operation(place: str) -> None:
    def late(rows: Any, t: Any) -> Any:
        if rows[0] == 6.0:
            raise ArithmeticError("the sixth")
        return number(rows, t)

    for policy in (Keep(), Recompute(), Preaccumulate()):
        made = operation(late, X, [THETA], PLAN, executor=PLACES[place](), policy=policy)
        acts: list[Callable[[], Any]] = [
            lambda made=made: made.call([THETA]),  # type: ignore[misc]  # mypy knows no defaults of lambdas
            lambda made=made: made.forward([THETA]),  # type: ignore[misc]  # likewise
            lambda made=made: made.pushforward(1).call([THETA, 1.0]),  # type: ignore[misc]  # likewise
        ]
        for act in acts:
            with pytest.raises(ArithmeticError, match="the sixth") as caught:
                act()
            assert any("chunk 5" in note or "rows 5" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fun", FUNCTIONS)
def test_an_operation_runs_lost_linearizations_again(fun: Any, place: str) -> None:
    made = operation(fun, X, [THETA], PLAN, executor=PLACES[place](), policy=Keep())
    run = Run(made, [THETA])
    run.state, seeds = ValueOnly(), seeds_of(run.value)
    assert run.pulled(seeds)[0] == pytest.approx(expected_of(fun, seeds), rel=1e-12)
    run.state = ValueOnly()
    assert run.many([seeds, seeds])[0] == [run.pulled(seeds)[0]] * 2


N_SEEDS = 11


def many_seeds(run: Run) -> list[Any]:
    """Return seeds of which some are zero, some as a whole, some in places."""
    many: list[Any] = [[onp.array(seed * number) for seed in seeds_of(run.value)] for number in range(N_SEEDS)]
    many[3] = None
    many[5][0].reshape(-1)[:1] = 0.0
    return many


KERNELS: dict[str, tuple[Any, Any]] = {
    "summed": (lambda rows, t: np.sum(np.sin(rows * t)) * onp.arange(1.0, 4.0), Summed),
    "trees": (
        lambda rows, t: {"a": 0, "b": 1} if len(rows) < 3 else {"a": np.sin(rows[0] * t), "b": np.cos(rows[1] * t)},
        Summed,
    ),
    "its own": (lambda rows, t: {"a": np.sin(rows * t), "n": 3, "b": np.cos(t)}, Unreduced),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("active", [False, True], ids=["parameters", "rows too"])
@pytest.mark.parametrize("name", KERNELS)
def test_many_seeds_run_each_chunk_once_where_linearizations_are_lost(
    name: str, active: bool, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the bits that they have where none is lost; seeds are cut where their cotangents take much memory."""
    fun, kernel = KERNELS[name]
    n_runs = 0

    def counted(rows: Any, t: Any) -> Any:
        nonlocal n_runs
        n_runs += 1
        return fun(rows, t)

    leaves = [THETA, X] if active else [THETA]
    made = operation(counted, X, [THETA], Plan(8, 3), executor=PLACES[place](), kernel=kernel, active=active)
    run = Run(made, leaves)
    many = many_seeds(run)

    def filled() -> Any:
        pairs = [(part, leaf) for leaf, parts in zip(leaves, run.many(many), strict=True) for part in parts]
        return onp.hstack([onp.zeros_like(leaf) if part is None else full(part) for part, leaf in pairs])

    expected = filled()
    for most_bytes, n_passes in ((2**28, 1), (1100 + 700 * active, 2), (0, N_SEEDS - 2)):  # two are zero
        monkeypatch.setattr(pullbacks, "MOST_BYTES", most_bytes)
        run.state, n_runs = ValueOnly(), 0
        onp.testing.assert_array_equal(filled(), expected)
        assert n_runs == 3 * n_passes


# Elsewhere


@pytest.mark.sampled(9)
@pytest.mark.parametrize("fun", FUNCTIONS)
def test_value_and_gradient_on_a_cluster_have_the_bits_of_sync(fun: Any, cluster: Any) -> None:
    def loss(t: Any, **options: Any) -> Any:
        total = dagad.reduce_sum(fun, X, t, grainsize=1, **options)
        parts = list(total.values()) if isinstance(total, dict) else [total]
        return sum(np.sum(np.real(part * (2.0 - 1j))) + np.sum(np.real(part)) ** 2 for part in parts)

    expected = dagad.value_and_grad(loss)(THETA, scheduler="sync")
    for policy in (None, Keep(), Recompute(), Preaccumulate()):
        for _ in range(2):
            found = dagad.value_and_grad(lambda t, p=policy: loss(t, scheduler=cluster, policy=p))(THETA)
            assert bits(list(found)) == bits(list(expected))
