"""Sources: is a new kind of rows one class, which then works in every mode; and what of stored and labelled arrays?"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import dask.array as da
import numpy as np
import pytest
from distributed import Client

import dagad
from dagad._sources.base import Source
from dagad._sources.columns import read_sliced
from dagad._sources.plan import Chunk
from dagad._sources.rows import Made, Piece
from support.every_mode import MODES
from support.gated_chunks import bits

pytestmark = [
    pytest.mark.each_value("all combinations of parameters: each value of each is in this tier"),
    pytest.mark.sampled(2),
]

N = 23


# A source of its own: rows that are drawn where they are used


@dataclass(frozen=True)
class Drawn(Source):
    """Rows drawn from a seed, each for itself."""

    n_rows: int
    seed: int
    log: str = ""

    def piece(self, chunk: Chunk) -> Piece:
        return Made(draw, self.seed, chunk.start, chunk.stop, self.log)


def draw(seed: int, start: int, stop: int, log: str) -> Any:
    if log:
        with open(log, "a") as file:  # short appends are whole
            file.write(f"{os.getpid()} {start}\n")
    return np.array([np.random.default_rng((seed, row)).standard_normal(3) for row in range(start, stop)])


ROWS = Drawn(N, 0)
X = draw(0, 0, N, "")


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows * theta)) + theta**2


def of_an_item(item: Any, theta: Any) -> Any:
    return anp.sum(item[1:] ** 2 * theta) + anp.sin(item[0] * theta)


def outcome(data: Any, **options: Any) -> list[bytes]:
    return bits(dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, data, theta, **options))(0.7))


def in_a_mode(mode: str, data: Any, where: Any) -> list[bytes]:
    run, options = MODES[mode][0], {"grainsize": 5, "scheduler": where}
    losses: list[Callable[[Any], Any]] = [
        lambda theta: dagad.reduce_sum(chunk, data, theta, **options),
        lambda theta: dagad.map_sum(of_an_item, data, theta, **options),
        lambda theta: anp.sum(dagad.map(of_an_item, data, theta, **options)),
        lambda theta: dagad.map_reduce(chunk, anp.logaddexp, data, theta, **options),
    ]
    return [np.asarray(run(loss)).tobytes() for loss in losses]


@cache
def of_arrays(mode: str) -> list[bytes]:
    return in_a_mode(mode, X[:13], "sync")


@pytest.mark.sampled(12)
@pytest.mark.parametrize("mode", MODES)
def test_drawn_rows_have_every_mode(mode: str, scheduler: Any) -> None:
    few = Drawn(13, 0)
    for rows in (few, dagad.shard(few, grainsize=5, scheduler=scheduler)):
        assert in_a_mode(mode, rows, scheduler) == of_arrays(mode)


def test_drawn_rows_stand_beside_others(scheduler: Any) -> None:
    own = np.arange(1.0, N + 1)

    def weighted(rows: Any, theta: Any) -> Any:
        return anp.sum(anp.dot(rows["y"], rows["x"]) * theta) + chunk(rows["again"], theta)

    def found(data: Any, again: Any, where: Any) -> Any:
        def loss(theta: Any, y: Any) -> Any:
            rows = {"x": data, "y": y, "again": again}
            return dagad.reduce_sum(weighted, rows, theta, grainsize=5, scheduler=where)

        value, gradient = dagad.value_and_grad(loss, argnums=(0, 1))(0.7, own)
        return bits([value, *gradient])

    shards = dagad.shard((ROWS, own), grainsize=5, scheduler=scheduler).gather()[0]
    assert shards.tobytes() == X.tobytes()
    assert found(ROWS, dagad.shard(ROWS, grainsize=5, scheduler=scheduler), scheduler) == found(X, X, "sync")


def test_rows_are_drawn_where_their_chunks_run(cluster: Client, tmp_path: Path) -> None:
    log = tmp_path / "log"
    rows = Drawn(N, 0, str(log))
    outcome(rows, grainsize=5, scheduler=cluster)
    drawn = log.read_text().split()
    assert {int(start) for start in drawn[1::2]} == {0, 5, 10, 15, 20}
    assert str(os.getpid()) not in drawn[::2]
    log.unlink()
    shards = dagad.shard(rows, grainsize=5, scheduler=cluster)
    assert outcome(shards) == outcome(shards) == outcome(X, grainsize=5, scheduler="sync")
    assert len(log.read_text().splitlines()) == 5  # once, and they stay there
    assert str(os.getpid()) not in log.read_text().split()[::2]


def test_rows_of_a_source_of_ones_own_are_not_pickled() -> None:
    many = read_sliced(Drawn(10**6, 0))[0]
    assert len(many.rows(Chunk(0, 0, 10**6)).parcel().payload[0]) < 500


def test_drawn_rows_are_cut_automatically(scheduler: Any) -> None:
    assert np.isfinite(dagad.reduce_sum(chunk, ROWS, 0.7, scheduler=scheduler))
    assert dagad.shard(ROWS, scheduler=scheduler).plan == dagad.shard(ROWS, scheduler="sync").plan
    assert dagad.reduce_sum(chunk, Drawn(0, 0), 0.7, scheduler=scheduler) == 0.0


def test_drawn_rows_can_not_be_spoiled() -> None:
    def spoil(rows: Any) -> Any:
        rows *= 2.0
        return np.sum(rows)

    with pytest.raises(ValueError, match="read-only"):
        dagad.reduce_sum(spoil, ROWS, grainsize=5, scheduler="sync")


# Stored arrays


def stored(path: Path, **options: Any) -> Any:
    zarr: Any = pytest.importorskip("zarr")
    array = zarr.create_array(str(path / "x.zarr"), shape=X.shape, chunks=(4, 2), dtype="f8", **options)
    array[:] = X
    return array


def test_a_stored_array_is_read_where_its_chunks_run(tmp_path: Path, scheduler: Any) -> None:
    array = stored(tmp_path)
    shards = dagad.shard(array, scheduler=scheduler)
    assert [piece.stop - piece.start for piece in shards.plan] == [4, 4, 4, 4, 4, 3]
    assert outcome(shards) == outcome(shards) == outcome(X, grainsize=4, scheduler="sync")
    assert shards.gather().tobytes() == X.tobytes()
    by_five = outcome(X, grainsize=5, scheduler="sync")
    assert outcome(dagad.shard({"x": array}["x"], grainsize=5, scheduler=scheduler)) == by_five
    assert outcome(array, grainsize=5, scheduler=scheduler) == by_five
    array[:] = 0.0  # Shards have what was stored then
    assert outcome(shards) == outcome(X, grainsize=4, scheduler="sync")


def test_stored_arrays_stand_beside_others(tmp_path: Path, scheduler: Any) -> None:
    lazy, items = da.from_array(X, chunks=(7, 3)), [{"a": row} for row in X]

    def of_all(rows: Any, theta: Any) -> Any:
        return chunk(rows["z"] + rows["d"], theta) + sum(chunk(item["a"], theta) for item in rows["items"])

    data = {"z": stored(tmp_path), "d": lazy, "items": items}
    shards = dagad.shard(data, grainsize=5, scheduler=scheduler)
    plain = {"z": X, "d": X, "items": items}

    def found(rows: Any, **options: Any) -> list[bytes]:
        return bits(dagad.value_and_grad(lambda theta: dagad.reduce_sum(of_all, rows, theta, **options))(0.7))

    assert found(shards) == found(plain, grainsize=5, scheduler="sync")


def test_a_store_of_many_small_chunks_is_cut_into_fewer(tmp_path: Path) -> None:
    zarr: Any = pytest.importorskip("zarr")
    array = zarr.create_array(str(tmp_path / "many.zarr"), shape=(5000,), chunks=(2,), dtype="f8")
    plan = read_sliced(array)[0].columns[0].plan
    assert plan is not None
    assert (plan.grainsize, len(plan)) == (6, 834)


# Labelled arrays


@pytest.mark.sampled(4)
def test_xarray_is_placed_without_its_labels(scheduler: Any) -> None:
    xr: Any = pytest.importorskip("xarray")
    expected = outcome(X, grainsize=5, scheduler="sync")
    for data in (X, da.from_array(X, chunks=(5, 2))):
        array = xr.DataArray(data, dims=("time", "k"), coords={"time": np.arange(N)})
        assert outcome(dagad.shard(array, grainsize=5, scheduler=scheduler)) == expected
        dataset = xr.Dataset({"x": array, "y": ("time", np.arange(N) * 1.0)})
        shards = dagad.shard(dataset, grainsize=5, scheduler=scheduler)
        total = dagad.reduce_sum(lambda rows: np.sum(rows["x"]) + np.sum(rows["y"]), shards)
        assert total == pytest.approx(X.sum() + sum(range(N)))
        assert {name: part.shape for name, part in shards.gather().items()} == {"x": (N, 3), "y": (N,)}
    assert len(dagad.shard(array, scheduler=scheduler).plan) == 5  # as its blocks lie


def test_a_dataset_whose_rows_lie_elsewhere_is_refused() -> None:
    xr: Any = pytest.importorskip("xarray")
    for other in (("k", np.ones(3)), ((), 1.0)):
        dataset = xr.Dataset({"x": (("time", "k"), X), "other": other})
        with pytest.raises(dagad.StructureError, match=r"'other' along \(.*transpose\(rows, \.\.\.\)"):
            dagad.shard(dataset, scheduler="sync")
    for labelled in (dataset, xr.DataArray(X), xr.DataArray(da.from_array(X))):
        with pytest.raises(dagad.StructureError, match=r"of xarray.*`dagad\.shard\(data\)`"):
            dagad.reduce_sum(chunk, labelled, 1.0, scheduler="sync")
