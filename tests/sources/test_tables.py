"""Tables as rows: refused with their remedy before a missing number is skipped; what they were made into is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import dask.bag as db
import numpy as np
import pytest
from dask.delayed import delayed

import dagad

pd: Any = pytest.importorskip("pandas")

FRAME = {"a": [1.0, np.nan, 3.0], "b": [1, 2, 3]}

TABLES: dict[str, Callable[[], Any]] = {
    "frame": lambda: pd.DataFrame(FRAME),
    "series": lambda: pd.DataFrame(FRAME)["a"],
    "index": lambda: pd.Index([1.0, 2.0, 3.0]),
    "missing integers": lambda: pd.array([1, None, 3], dtype="Int64"),
    "masked": lambda: np.ma.masked_array(np.ones(3), [False, True, False]),
    "among others": lambda: {"x": np.ones(3), "table": pd.DataFrame(FRAME)},
}
OTHERS = {
    "pyarrow": lambda lib: lib.table({"a": [1.0, None, 3.0]}),
    "polars": lambda lib: lib.DataFrame({"a": [1.0, None, 3.0]}),
    "xarray": lambda lib: lib.DataArray([1.0, np.nan, 3.0]),
}
REMEDY = r"of {}\. Its arithmetic skips missing numbers.*`.*\.(to_numpy\(\)|filled\(value\))"


def total(rows: Any) -> Any:
    return np.sum(rows["a"] if hasattr(rows, "columns") else rows)


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
def test_a_table_is_refused_before_its_missing_numbers_are_skipped(make: Any, scheduler: Any) -> None:
    uses: list[Callable[[Any], Any]] = [
        lambda table: dagad.reduce_sum(total, table, grainsize=1, scheduler=scheduler),
        lambda table: dagad.map_sum(total, table, grainsize=1, scheduler=scheduler),
        lambda table: dagad.map(total, table, grainsize=1, scheduler=scheduler),
        lambda table: dagad.shard(table, grainsize=1, scheduler=scheduler),
        lambda table: dagad.shard([delayed(table)], scheduler=scheduler),
    ]
    for use in uses:
        with pytest.raises(dagad.StructureError, match=REMEDY.format("(pandas|numpy)")):
            use(make())


@pytest.mark.parametrize("name", OTHERS)
def test_tables_of_other_libraries(name: str) -> None:
    table = OTHERS[name](pytest.importorskip(name))
    for use in (dagad.shard, lambda table, **options: dagad.reduce_sum(total, table, **options)):
        with pytest.raises(dagad.StructureError, match=REMEDY.format(name)):
            use(table, scheduler="sync")


def test_what_the_remedy_says_works() -> None:
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1, 2, 3]})
    data = {name: table[name].to_numpy() for name in table}

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: anp.sum(rows["a"] * rows["b"] * t), data, theta, grainsize=2)

    assert [float(found) for found in dagad.value_and_grad(loss)(2.0)] == [28.0, 14.0]


def test_a_missing_number_that_was_let_in_shows() -> None:
    assert np.isnan(dagad.reduce_sum(np.sum, pd.DataFrame(FRAME)["a"].to_numpy(), grainsize=1))


# Collections of Dask


def test_a_bag_is_placed_piece_by_piece(scheduler: Any) -> None:
    bag = db.from_sequence([1.0, 2.0, 4.0], npartitions=2)
    for use in (dagad.shard, lambda bag, **options: dagad.reduce_sum(sum, bag, **options)):
        with pytest.raises(dagad.StructureError, match=r"`Bag` of Dask.*`dagad\.shard\(collection\.to_delayed\(\)\)`"):
            use(bag, scheduler=scheduler)
    assert dagad.map_sum(float, dagad.shard(bag.to_delayed(), scheduler=scheduler)) == 7.0


def test_a_loader_alone_is_told_to_come_in_a_list() -> None:
    with pytest.raises(dagad.StructureError, match=r"`dagad\.shard\(\[loader, \.\.\.\]\)`, a list of Delayed"):
        dagad.reduce_sum(np.sum, delayed(np.ones)(3))


def test_a_dask_dataframe_is_not_sent_round_in_a_circle() -> None:
    pytest.importorskip("pyarrow")  # or Dask has no dataframes
    dd: Any = pytest.importorskip("dask.dataframe")
    table = dd.from_pandas(pd.DataFrame({"a": [1.0, 2.0, 4.0], "b": [1.0, 1.0, 2.0]}), npartitions=2)
    with pytest.raises(dagad.StructureError, match=r"`dagad\.shard\(\{name: table\[name\]\.to_dask_array"):
        dagad.shard(table, scheduler="sync")
    shards = dagad.shard({name: table[name].to_dask_array(lengths=True) for name in ("a", "b")}, scheduler="sync")
    assert dagad.reduce_sum(lambda rows: np.sum(rows["a"] * rows["b"]), shards) == 11.0
