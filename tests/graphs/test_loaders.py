"""Loaders: are data read by the task that computes with them, with nobody's work done twice?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import autograd.numpy as np
import dask.array as da
import numpy as onp
import pytest
import zarr
from dask.base import annotate, compute as dask_compute
from dask.delayed import delayed

import dagad
from dagad._graphs.activity import references
from dagad.extend import Keep, Recompute
from dagad_scheduler import Role, role_of

compute: Any = dask_compute  # Dask has few types
from_array: Any = da.from_array
X = onp.random.default_rng(5).normal(size=(12, 3))
W = onp.array([0.5, -1.0, 2.0])


def scaled_sum(rows: Any, t: Any) -> Any:
    return np.sum(rows * t)


def loaders(runs: list[int]) -> Any:
    def load(index: int) -> Any:
        runs.append(index)
        return X[index]

    return load


@pytest.mark.parametrize(("policy", "times"), [(Keep(), 1), (Recompute(), 2)])
def test_data_that_one_task_reads_are_loaded_inside_it(policy: Any, times: int) -> None:
    runs: list[int] = []
    t = delayed(2.0)
    parts = [delayed(scaled_sum)(delayed(onp.sin)(delayed(loaders(runs))(index)), t) for index in range(4)]
    value, slope = dagad.value_and_gradient(delayed(sum)(parts), t, policy=policy)
    graph = dict(slope.__dask_graph__())
    assert not [key for key in graph if role_of(key) is None and key != t.key]
    found = compute(value, slope, scheduler="sync")
    onp.testing.assert_allclose(found, [2.0 * onp.sin(X[:4]).sum(), onp.sin(X[:4]).sum()])
    assert sorted(runs) == sorted([0, 1, 2, 3] * times)


def test_data_that_several_tasks_read_are_loaded_once() -> None:
    runs: list[int] = []
    t = delayed(2.0)
    data = delayed(loaders(runs))(0)
    y = delayed(scaled_sum)(data, t) * delayed(scaled_sum)(data, t + 1.0)
    slope = dagad.gradient(y, t, policy=Recompute())
    onp.testing.assert_allclose(slope.compute(scheduler="sync"), X[0].sum() ** 2 * 5.0)
    assert runs == [0]


def drawn_by(module: str, runs: list[int]) -> Any:
    def draw(block: Any) -> Any:
        runs.append(len(runs) + 1)
        return block + runs[-1]

    draw.__module__ = module
    return draw


@pytest.mark.parametrize(("module", "options"), [("mine", {"enforce_ndim": True}), ("numpyro.draws", {})])
def test_a_users_function_that_several_read_runs_once(module: str, options: Any) -> None:
    """In the first case it is an argument of one of Dask's."""
    runs: list[int] = []
    data = da.map_blocks(drawn_by(module, runs), da.zeros(3, chunks=3), dtype=float, meta=X[0, :0], **options)
    t = delayed(2.0)
    block = data.to_delayed()[0]
    y = delayed(scaled_sum)(block, t) + delayed(scaled_sum)(block, t * t)
    value, slope = compute(*dagad.value_and_gradient(y, t), scheduler="sync")
    assert (value, slope, runs) == (18.0, 15.0, [1])


def test_data_of_numpys_own_functions_are_made_inside_each_of_several_readers() -> None:
    t = delayed(2.0)
    data = delayed(onp.linspace)(0.0, 1.0, num=3)  # which gives the same whenever it runs
    y = delayed(scaled_sum)(data, t) + delayed(scaled_sum)(data, t * t)
    value, slope = dagad.value_and_gradient(y, t)
    assert not [key for key in slope.__dask_graph__() if role_of(key) is None and key not in (t.key, (t * t).key)]
    assert compute(value, slope, scheduler="sync") == (1.5 * 6.0, 1.5 * 5.0)


def test_all_who_read_random_numbers_read_the_same() -> None:
    t, data = delayed(2.0), delayed(onp.random.normal)(size=3)  # from numpy's own state: others with each call
    y = delayed(scaled_sum)(data, t) + delayed(scaled_sum)(data, t * t)
    value, slope = compute(*dagad.value_and_gradient(y, t), scheduler="sync")
    onp.testing.assert_allclose(slope / 5.0, value / 6.0, rtol=1e-12)


def test_a_long_computation_is_left_where_it_is() -> None:
    runs: list[int] = []
    t = delayed(2.0)
    several = delayed(sum)([delayed(loaders(runs))(index) for index in range(9)])
    slope = dagad.gradient(delayed(scaled_sum)(several, t), t, policy=Recompute())
    onp.testing.assert_allclose(slope.compute(scheduler="sync"), X[:9].sum())
    assert sorted(runs) == list(range(9))


def test_a_loader_that_is_annotated_otherwise_stays_a_task_of_its_own() -> None:
    t = delayed(2.0)
    with annotate(resources={"DISK": 1}):
        data = delayed(loaders([]))(0)
    graph = dagad.gradient(delayed(scaled_sum)(data, t), t).__dask_graph__()
    assert data.key in graph


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    made: Any = zarr.create_array(str(tmp_path / "x.zarr"), shape=X.shape, chunks=(5, 3), dtype="f8")
    made[:] = X
    opened: Any = da.from_zarr(str(tmp_path / "x.zarr"))
    return opened


@pytest.mark.sampled(4)
def test_blocks_of_a_store_are_loaded_inside_their_readers(stored: Any, scheduler: Any) -> None:
    """X @ w and its transpose read each block, which a recipe would hold from the value to the gradient."""
    w = from_array(W, chunks=3)
    y = ((stored.T @ (stored @ w)) ** 2).sum()
    gradient = dagad.gradient(y, w, policy=Recompute())
    graph = dict(gradient.__dask_graph__())
    assert not [key for key in graph if isinstance(key, tuple) and str(key[0]).startswith("from-zarr")]
    where = {"scheduler": scheduler if isinstance(scheduler, str) else scheduler.get}
    square = X.T @ X
    onp.testing.assert_allclose(gradient.compute(**where), 2.0 * square @ square @ W, rtol=1e-12)


def test_references_of_a_fused_task_are_in_the_order_of_its_parts() -> None:
    """Dask lists it in the order of hashes, which differ from process to process: sums would have other bits."""
    names = ["b", "a", "d", "c"]
    inputs = [delayed(index * 1.0, name=name) for index, name in enumerate(names)]
    y = delayed(lambda *args: sum(args[1:]))(delayed(loaders([]))(0), *inputs)
    graph = dict(dagad.gradient(y, inputs)[0].__dask_graph__())
    (task,) = [node for key, node in graph.items() if role_of(key) is Role.VALUE]
    assert [key for key in references(task) if key in names] == names
