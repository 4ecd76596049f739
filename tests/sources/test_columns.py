"""Rows as they come: read-only, from a file, of a kind of their own; are they taken, and can a chunk spoil them?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dagad

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

X = np.arange(8.0)


def frozen() -> Any:
    array = X.copy()
    array.flags.writeable = False
    return array


def on_disk(mode: Any) -> Callable[[Path], Any]:
    def load(path: Path) -> Any:
        np.save(path / "x.npy", X)
        return np.load(path / "x.npy", mmap_mode=mode)

    return load


ROWS: dict[str, Callable[[Path], Any]] = {
    "read-only": lambda path: frozen(),
    "of a buffer": lambda path: np.frombuffer(X.tobytes()),
    "broadcast": lambda path: np.broadcast_to(np.array(3.5), 8),
    "mapped, to be read": on_disk("r"),
    "mapped, to be written": on_disk("r+"),
    "mapped, copied on writing": on_disk("c"),
    "items": lambda path: [{"a": one} for one in np.split(frozen(), 8)],
    "mapped items": lambda path: list(np.split(on_disk("r+")(path), 8)),
}


def total(rows: Any) -> Any:
    return sum(np.sum(row["a"] if isinstance(row, dict) else row) for row in rows)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", ROWS.values(), ids=ROWS)
def test_rows_that_cannot_be_written_to_are_rows(make: Any, tmp_path: Path, scheduler: Any) -> None:
    rows = make(tmp_path)
    assert dagad.reduce_sum(total, rows, grainsize=3, scheduler=scheduler) == 28.0
    assert dagad.reduce_sum(total, dagad.shard(rows, grainsize=3, scheduler=scheduler)) == 28.0


@pytest.mark.parametrize("make", [lambda path: X.copy(), *ROWS.values()], ids=["array", *ROWS])
def test_a_chunk_cannot_spoil_the_users_rows(make: Any, tmp_path: Path) -> None:
    def spoil(rows: Any) -> Any:
        for row in rows if isinstance(rows, list) else [rows]:
            array = row["a"] if isinstance(row, dict) else row
            array[:] = 0.0
        return 0.0

    rows = make(tmp_path)
    with pytest.raises(ValueError, match="read-only"):
        dagad.reduce_sum(spoil, rows, grainsize=3, scheduler="sync")
    assert total(rows) == 28.0


class Variable:
    """An array in a file, as libraries have it: what is read of it is of a kind of its own."""

    shape, ndim = (8,), 1

    def __init__(self, kind: Callable[[Any], Any]) -> None:
        self._kind = kind

    def __getitem__(self, rows: slice) -> Any:
        return self._kind(X[rows])


def test_an_array_in_a_file_is_read_chunk_by_chunk(scheduler: Any) -> None:
    assert dagad.reduce_sum(total, Variable(np.array), grainsize=3, scheduler=scheduler) == 28.0
    assert dagad.reduce_sum(total, dagad.shard(Variable(np.array), grainsize=3, scheduler=scheduler)) == 28.0
    for use in (dagad.shard, lambda rows, **options: dagad.reduce_sum(total, rows, **options)):
        with pytest.raises(dagad.StructureError, match=r"`Variable` whose rows.*`array\[:\]\.filled\(value\)`"):
            use(Variable(np.ma.masked_array), scheduler=scheduler)


def test_the_users_array_stays_writable() -> None:
    mine = X.copy()
    dagad.reduce_sum(total, mine, grainsize=3, scheduler="sync")
    assert mine.flags.writeable


def test_a_subclass_of_array_as_rows_keeps_its_class_in_chunks() -> None:
    def of_records(rows: Any) -> Any:
        assert type(rows) is np.recarray
        assert not rows.flags.writeable
        return np.sum(rows.x)

    records = np.rec.array([(one,) for one in X], dtype=[("x", "f8")])
    assert dagad.reduce_sum(of_records, records, grainsize=3, scheduler="sync") == 28.0
