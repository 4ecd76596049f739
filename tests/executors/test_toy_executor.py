"""A new executor is one file: does a toy of 150 lines run every operation in every mode, with the same bits?

What can't exist: Shards on a cluster, which live where Dask runs. Nothing else is missing.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import autograd.numpy as np
import numpy as onp
import pytest

import dagad
from dagad._kernels.job import Executor
from dagad._values import pytree
from dagad.extend import CompensatedSum, Keep, Linearization, Preaccumulate, Recompute
from support.evaluations_seen import evaluations_seen
from support.every_mode import AT, MODES, derivatives, numbers
from support.gated_chunks import bits
from support.toy_executor import Pipes
from support.waiting import PATIENCE

pytestmark = pytest.mark.sampled(2)

ROWS = onp.linspace(0.2, 1.3, 11)
PAIRS = ROWS[:10].reshape(5, 2)
LISTS = [ROWS[:2], ROWS[2:5], ROWS[5:], ROWS[:0], ROWS[3:4], ROWS[1:9]]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pipes]:
    with Pipes(2) as made:
        yield made


# Lambdas travel by value, functions of a module by their names.


def wave(rows: Any, t: Any) -> Any:
    return np.sum(np.sin(rows * t) * np.exp(-t * t))


def either(left: Any, right: Any) -> Any:
    return left + right - 0.1 * left * right


def weighed(tree: Any) -> Any:
    """Return one number of all that an operation gave, which is not linear in it."""
    leaves = [tree[key] for key in sorted(tree)] if isinstance(tree, dict) else tree
    leaves = leaves if isinstance(leaves, tuple | list) else [leaves]
    return sum(np.sum(np.sin(leaf + 1.0)) for leaf in leaves)


def mapped(item: Any, t: Any) -> Any:
    return np.sin(item * t), np.cos(t) * item**2


def folded(t: Any) -> Any:
    values = [wave(ROWS[start : start + 2], t) for start in range(0, 11, 2)]
    first, second, third = (either(*values[at : at + 2]) for at in (0, 2, 4))
    return either(either(first, second), third)


class Wide:
    """A monoid of its own: sums in extended precision."""

    def lift(self, term: Any) -> Any:
        return self._cast(term, onp.longdouble)

    def add(self, a: Any, b: Any, ours: bool) -> Any:
        columns = zip(pytree.flatten(a)[0], pytree.flatten(b)[0], strict=True)
        return pytree.unflatten(pytree.flatten(a)[1], [left + right for left, right in columns])

    def lower(self, total: Any) -> Any:
        return self._cast(total, onp.float64)

    def _cast(self, tree: Any, dtype: Any) -> Any:
        leaves, treedef = pytree.flatten(tree)
        return pytree.unflatten(treedef, [onp.asarray(leaf, dtype)[()] for leaf in leaves])


# Each with the options of the operation, and the whole before it was cut.
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "sum": (
        lambda t, **o: dagad.reduce_sum(wave, ROWS, t, grainsize=2, **o),
        lambda t: wave(ROWS, t),
    ),
    "sum of vectors": (
        lambda t, **o: weighed(
            dagad.reduce_sum(
                lambda rows, t: np.sin(np.outer(rows, np.arange(3.0)) * t).sum(0), ROWS, t, grainsize=2, **o
            )
        ),
        lambda t: weighed(np.sum(np.sin(np.outer(ROWS, np.arange(3.0)) * t), axis=0)),
    ),
    "sum of trees": (
        lambda t, **o: weighed(
            dagad.reduce_sum(lambda rows, t: {"a": wave(rows, t), "n": len(rows)}, ROWS, t, grainsize=3, **o)
        ),
        lambda t: weighed({"a": wave(ROWS, t), "n": len(ROWS)}),
    ),
    "sum of rows": (
        lambda t, **o: dagad.reduce_sum(wave, ROWS * t, t, grainsize=2, **o),
        lambda t: wave(ROWS * t, t),
    ),
    "sum over a closure": (
        lambda t, **o: dagad.reduce_sum(lambda rows: wave(rows, t), ROWS, grainsize=2, **o),
        lambda t: wave(ROWS, t),
    ),
    "compensated sum": (
        lambda t, **o: dagad.reduce_sum(wave, ROWS * t, t, grainsize=2, sum=CompensatedSum(), **o),
        lambda t: wave(ROWS * t, t),
    ),
    "sum in another precision": (
        lambda t, **o: dagad.reduce_sum(wave, ROWS * t, t, grainsize=2, sum=Wide(), **o),
        lambda t: wave(ROWS * t, t),
    ),
    "sum of ragged lists": (
        lambda t, **o: dagad.map_sum(wave, [item * t for item in LISTS], t, grainsize=2, **o),
        lambda t: sum(wave(item * t, t) for item in LISTS),
    ),
    "map": (
        lambda t, **o: weighed(dagad.map(mapped, PAIRS * t, t, grainsize=2, **o)),
        lambda t: weighed(mapped(PAIRS * t, t)),
    ),
    "map_rect": (
        lambda t, **o: weighed(
            dagad.map_rect(lambda item, t: np.sin(item * t), [item * t for item in LISTS], t, grainsize=2, **o)
        ),
        lambda t: weighed([np.sin(item * t * t) for item in LISTS]),
    ),
    "map_reduce": (
        lambda t, **o: dagad.map_reduce(wave, either, ROWS, t, grainsize=2, **o),
        folded,
    ),
    "map_reduce of rows": (
        lambda t, **o: dagad.map_reduce(wave, lambda left, right: left + right, ROWS * t, t, grainsize=1, **o),
        lambda t: wave(ROWS * t, t),
    ),
}
RIGHT = {name: derivatives(whole) for name, (_, whole) in OPERATIONS.items()}


@pytest.mark.sampled(56)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("mode", MODES)
def test_a_new_executor_runs_everything_in_every_mode(mode: str, name: str, pool: Pipes) -> None:
    run, orders = MODES[mode]
    with evaluations_seen() as seen:
        found = numbers(run(partial(OPERATIONS[name][0], scheduler=pool)))
    assert onp.allclose(found, [RIGHT[name][order] for order in orders], rtol=1e-9, atol=1e-9)
    assert found == numbers(run(partial(OPERATIONS[name][0], scheduler="sync")))
    assert {job.executor for job in seen.calls} == {"pipes"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["sum", "sum of vectors", "sum of rows", "map_rect", "map_reduce"])
@pytest.mark.parametrize("policy", [Keep(), Recompute(), Preaccumulate()], ids=["keep", "recompute", "preaccumulate"])
def test_every_policy_works_on_a_new_executor(policy: Any, name: str, pool: Pipes) -> None:
    for mode in ("value_and_grad", "vjp", "hessian"):
        run = MODES[mode][0]
        here, there = (partial(OPERATIONS[name][0], scheduler=place, policy=policy) for place in ("sync", pool))
        assert numbers(run(there)) == numbers(run(here))


# What is uneven: chunks that give different kinds of numbers


def some_integers(rows: Any, t: Any) -> Any:
    return wave(rows, t) if rows[0] > 0.5 else 0


def some_complex(rows: Any, t: Any) -> Any:
    return np.sum(rows * t) ** 3 if rows[0] > 0.5 else np.sum(np.exp(1j * rows * t))


@pytest.mark.parametrize("fun", [some_integers, some_complex])
@pytest.mark.parametrize("mode", ["value_and_grad", "vjp", "jvp", "hvp", "hessian"])
def test_a_new_executor_takes_chunks_that_give_different_dtypes(mode: str, fun: Any, pool: Pipes) -> None:
    def loss(t: Any, place: Any) -> Any:
        return np.abs(dagad.reduce_sum(fun, ROWS, t, grainsize=2, scheduler=place)) ** 2

    right = derivatives(lambda t: np.abs(sum(fun(ROWS[at : at + 2], t) for at in range(0, 11, 2))) ** 2)
    run, orders = MODES[mode]
    here, there = (numbers(run(partial(loss, place=place))) for place in ("sync", pool))
    assert there == here
    assert onp.allclose(there, [right[order] for order in orders], rtol=1e-9)


# What runs where, and what stays there


def test_chunks_run_in_processes_of_the_pool(pool: Pipes) -> None:
    ran = dagad.map(lambda row: float(os.getpid()), ROWS, grainsize=1, scheduler=pool)
    assert len(set(ran)) == 2
    assert os.getpid() not in ran


def test_a_gradient_after_its_value_runs_nothing_twice(pool: Pipes, tmp_path: Path) -> None:
    log = tmp_path / "runs"

    def noted(rows: Any, t: Any) -> Any:
        with log.open("a") as file:
            file.write("run\n")
        return wave(rows, t) * np.ones(2)

    evaluation = dagad.evaluate(lambda t: weighed(dagad.reduce_sum(noted, ROWS, t, grainsize=2, scheduler=pool)), AT)
    evaluation.gradient(PATIENCE)
    dagad.jacrev(lambda t: dagad.reduce_sum(noted, ROWS, t, grainsize=2, scheduler=pool))(AT)
    assert log.read_text().split() == ["run"] * 6 * 2


def test_a_new_executor_drops_linearizations_that_nobody_will_pull(pool: Pipes) -> None:
    def count(row: Any) -> float:
        gc.collect()
        return float(sum(type(one) is Linearization for one in gc.get_objects()))

    def left() -> Any:
        return dagad.map(count, ROWS[:2], grainsize=1, scheduler=pool)

    gc.collect()
    before = left()
    _, pull = dagad.vjp(lambda t: OPERATIONS["sum of vectors"][0](t, scheduler=pool), AT)
    assert all(left() > before)
    del pull
    gc.collect()
    assert all(left() == before)
    _, pull = dagad.vjp(lambda t: OPERATIONS["sum"][0](t, scheduler=pool), AT)
    pull(1.0)  # a number has one gradient, which is there now
    assert all(left() == before)


@pytest.mark.parametrize("mode", ["value_and_grad", "vjp", "jvp", "hvp", "hessian"])
def test_shards_of_this_process_are_rows_like_others(mode: str, pool: Pipes) -> None:
    shards: Any = dagad.shard(ROWS, grainsize=2, scheduler="threads")
    found = numbers(MODES[mode][0](lambda t: dagad.reduce_sum(wave, shards, t, scheduler=pool)))
    assert found == numbers(MODES[mode][0](partial(OPERATIONS["sum"][0], scheduler="sync")))
    gradient = dagad.grad(lambda shards: dagad.reduce_sum(wave, shards, AT, scheduler=pool))(shards)
    expected = dagad.grad(lambda rows: dagad.reduce_sum(wave, rows, AT, grainsize=2, scheduler="sync"))(ROWS)
    assert bits(gradient.gather()) == bits(expected)


# What goes wrong


def test_an_exception_of_a_chunk_on_a_new_executor_has_its_type_and_note(pool: Pipes) -> None:
    class Own(Exception):
        pass

    def fussy(rows: Any, t: Any) -> Any:
        if rows[0] > 0.9:
            raise Own("too much", len(rows))
        return wave(rows, t)

    for mode in ("value_and_grad", "vjp", "jvp", "hessian"):
        with pytest.raises(Own) as raised:
            MODES[mode][0](lambda t: dagad.reduce_sum(fussy, ROWS, t, grainsize=2, scheduler=pool))
        assert raised.value.args == ("too much", 2)
        assert "chunk 4 (rows 8:10)" in raised.value.__notes__[0]
    assert OPERATIONS["sum"][0](AT, scheduler=pool) == OPERATIONS["sum"][0](AT, scheduler="sync")


def test_an_exception_of_a_pullback_on_a_new_executor_names_its_chunk(pool: Pipes) -> None:
    @dagad.extend.explicit
    def own(rows: Any, t: Any) -> Any:
        def pullback(seed: Any) -> Any:
            raise ZeroDivisionError("not today")

        return onp.sum(rows) * t, pullback

    with pytest.raises(ZeroDivisionError) as raised:
        dagad.grad(lambda t: dagad.reduce_sum(own, ROWS, t, grainsize=6, scheduler=pool))(AT)
    assert "pullback of chunk 0 (rows 0:6)" in raised.value.__notes__[0]


def test_a_new_executor_refuses_functions_and_results_that_cannot_be_pickled(pool: Pipes) -> None:
    lock = threading.Lock()

    def stuck(rows: Any) -> Any:
        raise ValueError(threading.Lock())

    with pytest.raises(dagad.DagadError, match="can't be pickled"):
        dagad.reduce_sum(lambda rows: lock and np.sum(rows), ROWS, grainsize=2, scheduler=pool)
    with pytest.raises(dagad.DagadError, match="can't be pickled"):  # what comes back
        dagad.reduce_sum(stuck, ROWS, grainsize=2, scheduler=pool)
    assert OPERATIONS["sum"][0](AT, scheduler=pool) == OPERATIONS["sum"][0](AT, scheduler="sync")


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_pool_whose_process_has_died_says_so() -> None:
    with Pipes(1) as pool:
        for _ in range(2):
            with pytest.raises(dagad.DagadError, match="Make a new `Pipes`"):
                dagad.reduce_sum(lambda rows: os._exit(1), ROWS, grainsize=2, scheduler=pool)


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_the_toy_executor_gives_the_same_bits_with_any_number_of_processes(pool: Pipes) -> None:
    rows, theta = onp.random.default_rng(0).standard_normal((17, 3)), onp.array([0.3, -0.7, 1.1])

    def found(place: Any) -> Any:
        def loss(theta: Any, rows: Any) -> Any:
            options = {"grainsize": 1, "scheduler": place}
            return dagad.reduce_sum(lambda rows, theta: np.tanh(rows * theta).sum(0), rows, theta, **options)

        value, pull = dagad.vjp(loss, theta, rows)
        slopes = [dagad.jacrev(loss)(theta, rows), dagad.hessian(lambda theta: np.sum(loss(theta, rows) ** 2))(theta)]
        return bits([value, *pull(onp.arange(3.0)), *slopes])

    before = set(multiprocessing.active_children())
    other: Executor
    with Pipes(3) as other:
        assert len(set(multiprocessing.active_children()) - before) == 3
        assert found(other) == found(pool) == found("sync")
    assert set(multiprocessing.active_children()) == before
