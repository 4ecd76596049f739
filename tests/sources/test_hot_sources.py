"""Hot loops: Shards of every kind of rows are called, not submitted, in every mode, and give the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import dask.array as da
import pytest
from dask.delayed import delayed
from distributed import Client
from test_sources import ROWS, N, X

import dagad
from support.gated_chunks import bits
from support.hot_loops import a_watched_cluster, heat_up

TABLE = {"a": X[:, 0].copy(), "b": X[:, 1].copy()}


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows * theta)) + theta**2


def of_a_table(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows["a"] * theta) * rows["b"])


def stored(path: Path) -> Any:
    array = pytest.importorskip("zarr").create_array(str(path / "x.zarr"), shape=X.shape, chunks=(5, 3), dtype="f8")
    array[:] = X
    return array


def frame(path: Path) -> Any:
    return pytest.importorskip("pandas").DataFrame(TABLE)


def frames(path: Path) -> Any:
    return [delayed(frame(path)[start : start + 5]) for start in range(0, N, 5)]


SOURCES: dict[str, tuple[Callable[[Path], Any], Any, Any]] = {
    "drawn": (lambda path: ROWS, X, chunk),
    "stored": (stored, X, chunk),
    "blocks": (lambda path: da.from_array(X, chunks=(5, 2)), X, chunk),
    "labelled": (lambda path: pytest.importorskip("xarray").DataArray(X), X, chunk),
    "table": (frame, TABLE, of_a_table),
    "loaded tables": (frames, TABLE, of_a_table),
}
MODES: dict[str, Callable[[Any], Any]] = {
    "grad": lambda loss: dagad.value_and_grad(loss)(0.7),
    "jvp": lambda loss: dagad.jvp(loss, (0.7,), (1.0,)),
    "hvp": lambda loss: dagad.hvp(loss, (0.7,), (1.0,)),
}


@pytest.fixture(scope="module")
def watched() -> Iterator[Client]:
    with a_watched_cluster() as client:
        yield client


@pytest.mark.sampled(10)
@pytest.mark.parametrize("source", SOURCES)
def test_shards_of_any_rows_are_hot(source: str, watched: Client, tmp_path: Path) -> None:
    make, plain, fun = SOURCES[source]
    shards = dagad.shard(make(tmp_path), grainsize=5, scheduler=watched)
    for run in MODES.values():

        def found(data: Any, run: Any = run, **options: Any) -> list[bytes]:
            return bits(run(lambda theta: dagad.reduce_sum(fun, data, theta, **options)))

        expected = found(plain, grainsize=5, scheduler="sync")

        def act(found: Any = found, expected: Any = expected) -> None:
            assert found(shards) == expected

        heat_up(watched, act)
