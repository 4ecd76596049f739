"""Data as they were: does what is written into arrays afterwards show in a pullback, an evaluation or Shards?"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import dask.array as da
import numpy as np
import pytest
from dask.delayed import delayed
from distributed import Client

import dagad
from dagad._values.canonical import is_frozen, snapshot
from dagad.extend import CompensatedSum, Keep, Preaccumulate, Recompute, explicit
from support.gated_chunks import bits
from support.waiting import PATIENCE

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

X = np.arange(1.0, 9.0)
POLICIES = [None, Keep(), Recompute(), Preaccumulate()]


def power(rows: Any, theta: Any) -> Any:
    return anp.sum(rows * theta[0] ** 2)


def items(item: Any, theta: Any) -> Any:
    return item * theta[0] ** 2


@explicit
def by_hand(rows: Any, theta: Any) -> Any:
    return np.sum(rows * theta[0] ** 2), lambda seed: (
        seed * np.full(rows.shape, theta[0] ** 2),
        np.array([2 * seed * np.sum(rows) * theta[0]]),
    )


def closed_over(x: Any, theta: Any, **options: Any) -> Any:
    return dagad.reduce_sum(lambda rows: power(rows, theta), x, **options)


def of_vectors(x: Any, theta: Any, **options: Any) -> Any:
    return anp.sum(dagad.reduce_sum(lambda rows, theta: power(rows, theta) * anp.ones(3), x, theta, **options)) / 3


def twice(x: Any, theta: Any, **options: Any) -> Any:
    return dagad.reduce_sum(power, x, theta, **options) + 0.0 * dagad.reduce_sum(power, x, theta, **options)


def slope(x: Any, theta: Any, **options: Any) -> Any:
    """Return a gradient whose sum is, at theta = 1.5, what the others return."""
    return 0.75 * anp.sum(dagad.grad(lambda theta: dagad.reduce_sum(power, x, theta, **options))(theta))


SUMS: dict[str, Callable[..., Any]] = {
    "argument": lambda x, theta, **options: dagad.reduce_sum(power, x, theta, **options),
    "closure": closed_over,
    "partial": lambda x, theta, **options: dagad.reduce_sum(functools.partial(power, theta=theta), x, **options),
    "explicit": lambda x, theta, **options: dagad.reduce_sum(by_hand, x, theta, **options),
    "vectors": of_vectors,
    "compensated": lambda x, theta, **options: dagad.reduce_sum(power, x, theta, sum=CompensatedSum(), **options),
    "map_sum": lambda x, theta, **options: dagad.map_sum(items, x, theta, **options),
    "map": lambda x, theta, **options: anp.sum(dagad.map(items, x, theta, **options)),
    "map_rect": lambda x, theta, **options: anp.sum(
        dagad.map_rect(lambda item, theta: items(item, theta) * anp.ones(1), x, theta, **options)
    ),
    "map_reduce": lambda x, theta, **options: dagad.map_reduce(power, anp.add, x, theta, **options),
    "twice": twice,
    "gradient": slope,
}


@pytest.mark.parametrize("total", SUMS.values(), ids=SUMS)
@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("where", ["sync", "threads"])
def test_a_pullback_is_that_of_the_point_where_the_value_was_taken(total: Any, policy: Any, where: Any) -> None:
    theta, options = np.array([1.5]), {"grainsize": 2, "policy": policy, "scheduler": where}
    value, pullback = dagad.vjp(lambda theta: total(X, theta, **options), theta)
    theta += 1.0
    assert float(value) == 81.0
    for _ in range(2):  # a tape is dropped when it has been pulled
        assert pullback(1.0)[0].tolist() == [54.0 if total is slope else 108.0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("total", SUMS.values(), ids=SUMS)
def test_a_pullback_on_a_cluster_is_that_of_the_point_of_its_value(total: Any, cluster: Client) -> None:
    test_a_pullback_is_that_of_the_point_where_the_value_was_taken(total, Recompute(), cluster)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_rows_that_are_differentiated_in_are_those_of_the_value(policy: Any, scheduler: Any) -> None:
    x, items, theta = X.copy(), [np.ones(2), np.ones(3)] * 4, np.array([1.5])

    def program(x: Any, items: Any, theta: Any) -> Any:
        def fun(rows: Any, theta: Any) -> Any:
            return anp.sum(rows[0] * theta[0] ** 2) + sum(anp.sum(item**3) for item in rows[1])

        return dagad.reduce_sum(fun, (x, items), theta, grainsize=2, policy=policy, scheduler=scheduler)

    value, pullback = dagad.vjp(program, x, items, theta)
    for one in (x, *items, theta):
        one += 1.0
    assert float(value) == 101.0
    for _ in range(2):
        of_x, of_items, of_theta = pullback(1.0)
        assert (of_x.tolist(), of_theta.tolist()) == ([2.25] * 8, [108.0])
        assert [one.tolist() for one in of_items] == [[3.0] * 2, [3.0] * 3] * 4


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("where", ["sync", "threads"])
def test_data_that_are_written_into_after_the_value_are_those_of_the_value(policy: Any, where: str) -> None:
    """Rows, shared constants, and what a chunk function, its helpers and its defaults close over."""

    def helper_with(scale: Any) -> Callable[[Any], Any]:
        return lambda theta: scale * theta

    def program(x: Any, items: Any, factor: Any, scale: Any, offset: Any) -> Callable[[Any], Any]:
        helper, options = helper_with(scale), {"grainsize": 2, "policy": policy, "scheduler": where}

        def fun(rows: Any, theta: Any, factor: Any, *, offset: Any = offset) -> Any:
            return anp.sum(rows["x"] * rows["items"][0]["a"] * helper(theta) ** 2 * factor["f"] * offset)

        return lambda theta: dagad.reduce_sum(fun, {"x": x, "items": items}, theta, {"f": factor}, **options)

    def arrays() -> list[Any]:
        return [X.copy(), [{"a": one} for one in np.ones((8, 1))], np.ones(1), np.array([1.0]), np.ones(1)]

    expected = dagad.value_and_grad(program(*arrays()))(1.5)
    mine = arrays()
    value, pullback = dagad.vjp(program(*mine), 1.5)
    for one in (mine[0], *(item["a"] for item in mine[1]), *mine[2:]):
        one += 1.0
    assert [bits([value, *pullback(1.0)]) for _ in range(2)] == [bits(expected)] * 2


@pytest.mark.parametrize("lazy", [False, True])
def test_an_evaluation_has_the_arguments_that_it_was_called_with(lazy: bool, scheduler: Any) -> None:
    theta, x, started = np.array([1.5]), X.copy(), threading.Event()
    more: list[Any] = [{"a": np.array([1.0])}]

    def program(theta: Any, x: Any, more: Any) -> Any:
        started.wait(PATIENCE)
        return dagad.reduce_sum(power, x, theta * more[0]["a"], grainsize=2, scheduler=scheduler)

    evaluation = dagad.evaluate(program, theta, x, more, lazy=lazy)
    theta -= 1.0
    x[:] = 100.0
    more[0]["a"] = 7.0
    started.set()
    assert evaluation.value(PATIENCE) == 81.0
    assert evaluation.gradient(PATIENCE).tolist() == [108.0]


def test_an_evaluation_that_is_under_way_is_at_one_point() -> None:
    """The reproducer: a step in place while chunks run gave a mixture of two points."""
    theta, first, stepped = np.array([1.5]), threading.Event(), threading.Event()

    def slow(rows: Any, theta: Any) -> Any:
        first.set()
        stepped.wait(PATIENCE)
        return power(rows, theta)

    evaluation = dagad.evaluate(lambda theta: dagad.reduce_sum(slow, X, theta, grainsize=1, scheduler="threads"), theta)
    first.wait(PATIENCE)
    theta -= 1.0
    stepped.set()
    assert (evaluation.value(PATIENCE), evaluation.gradient(PATIENCE).tolist()) == (81.0, [108.0])


# Shards

DATA: dict[str, Callable[[], Any]] = {
    "array": X.copy,
    "strided": lambda: np.repeat(X, 2)[::2],
    "fortran": lambda: np.asfortranarray(np.stack([X, X], axis=1)),
    "view": lambda: np.stack([X, X])[0],
    "list": lambda: [np.array([one]) for one in X],
    "items": lambda: [{"a": np.array([one]), "b": (np.array([1.0]), 2)} for one in X],
    "dict": lambda: {"x": X.copy(), "items": [np.array([one]) for one in X]},
}


def leaves_of(data: Any) -> list[Any]:
    return [leaf for leaf in dagad._values.pytree.flatten(data)[0] if isinstance(leaf, np.ndarray)]


@pytest.mark.parametrize("make", DATA.values(), ids=DATA)
def test_shards_hold_the_data_as_they_were_when_they_were_cut(make: Any, scheduler: Any) -> None:
    data = make()
    shards = dagad.shard(data, grainsize=2, scheduler=scheduler)
    for leaf in leaves_of(data):
        leaf[:] = 9.0
    assert bits(leaves_of(shards.gather())) == bits(leaves_of(make()))


def test_shards_do_not_see_changes_of_the_containers_that_they_were_cut_from(scheduler: Any) -> None:
    data: list[Any] = [{"a": 1.0}, {"a": 2.0}]
    shards = dagad.shard(data, grainsize=1, scheduler=scheduler)
    data[0]["a"] = 7.0
    data.append({"a": 3.0})
    assert dagad.map_sum(lambda item: item["a"], shards) == 3.0


def test_shards_do_not_see_changes_of_arrays_behind_loaders_and_beside_dask_arrays(scheduler: Any) -> None:
    x, y, z = X.copy(), X.copy(), X.copy()
    loaded = dagad.shard([delayed(x[:4], pure=False), delayed(x[4:], pure=False)], scheduler=scheduler)
    block = da.from_delayed(delayed(y, pure=False), y.shape, y.dtype)
    beside = dagad.shard({"y": block, "z": z}, scheduler=scheduler)
    for one in (x, y, z):
        one[:] = 9.0
    assert loaded.gather().tolist() == X.tolist()
    assert {name: part.tolist() for name, part in beside.gather().items()} == {"y": X.tolist(), "z": X.tolist()}


# What is copied


def test_a_snapshot_of_an_array_that_nobody_can_write_into_is_no_copy(tmp_path: Path) -> None:
    owned = X.copy()
    owned.flags.writeable = False
    np.save(tmp_path / "x.npy", X)
    on_disk = np.load(tmp_path / "x.npy", mmap_mode="r")
    for frozen in (owned, owned[2:], on_disk, on_disk[:4], np.frombuffer(X.tobytes())):
        assert is_frozen(frozen)
        assert np.shares_memory(snapshot(frozen), frozen)
        assert np.shares_memory(dagad.shard(frozen, grainsize=8, scheduler="sync").kept.popitem()[1].merge(()), frozen)


def test_a_snapshot_of_an_array_that_somebody_can_write_into_is_a_copy(tmp_path: Path) -> None:
    owned, memory = X.copy(), bytearray(X.tobytes())
    view = owned.view()
    view.flags.writeable = False
    np.save(tmp_path / "x.npy", X)
    for mine in (owned, view, np.frombuffer(memory), np.load(tmp_path / "x.npy", mmap_mode="r+")):
        taken = snapshot(mine)
        assert not np.shares_memory(taken, mine)
        assert bits([np.asarray(taken)]) == bits([np.asarray(mine)])
        assert is_frozen(taken)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_copy_is_laid_out_like_its_original(order: Any) -> None:
    matrix = np.array(np.arange(12.0).reshape(3, 4), order=order)
    assert snapshot(matrix).strides == matrix.strides
    assert snapshot(matrix[::2, ::2]).flags.c_contiguous  # as it would arrive in another process
