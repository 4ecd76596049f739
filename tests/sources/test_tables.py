"""Tables as rows: the bits of their columns as arrays, everywhere; what is no numbers is refused by name."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import dask.bag as db
import numpy as np
import pandas as pd
import pytest
from dask.delayed import delayed

import dagad
from dagad._sources.labels import Labels
from support.every_mode import MODES
from support.gated_chunks import bits
from support.tiers import optional
from support.waiting import PATIENCE

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

pl, pa = optional("polars"), optional("pyarrow")
of_polars, of_pyarrow = pytest.mark.needs("polars"), pytest.mark.needs("pyarrow")

N = 23
RNG = np.random.default_rng(0)
NUMBERS: dict[str, Any] = {
    "x": RNG.standard_normal(N),
    "k": np.arange(N) % 5,
    "b": RNG.random(N) > 0.5,
    "single": RNG.standard_normal(N).astype("f4"),
    "tiny": np.arange(N, dtype="u1"),
}
CITY = [["Paris", "Rome", None][index % 3] for index in range(N)]
COLUMNS = NUMBERS | {"city": np.array(CITY, object)}

FRAME = pd.DataFrame(
    NUMBERS
    | {
        "city": CITY,
        "when": pd.date_range("2020-01-01", periods=N, freq="D"),
        "kind": pd.Categorical([CITY[0], CITY[1]] * (N // 2) + [CITY[0]]),
        "some": pd.array([None, *range(N - 1)], dtype="Int64"),
        "flag": pd.array([None, *[True] * (N - 1)], dtype="boolean"),
    }
)
TABLES: dict[str, Any] = {
    "pandas": FRAME,
    "polars": pl and pa and pl.from_pandas(FRAME),
    "pyarrow": pa and pa.Table.from_pandas(FRAME),
}
tables = pytest.mark.parametrize(
    "table",
    [
        FRAME,
        pytest.param(TABLES["polars"], marks=[of_polars, of_pyarrow]),
        pytest.param(TABLES["pyarrow"], marks=of_pyarrow),
    ],
    ids=TABLES,
)


def chunk(rows: Any, theta: Any) -> Any:
    """Return a number that depends on every kind of column, in its bits."""
    numbers = anp.tanh(rows["x"] * theta) * rows["k"] + rows["single"] * theta**2 + rows["tiny"]
    return anp.sum(numbers) + anp.sum(rows["b"] * theta) + anp.sum((rows["city"] == "Paris") * theta**3)


def of_an_item(item: Any, theta: Any) -> Any:
    return anp.tanh(item["x"] * theta) * item["k"] + item["b"] * theta + (theta**2 if item["city"] == "Rome" else 0.0)


def outcome(data: Any, reduction: Any = dagad.reduce_sum, fun: Any = chunk, **options: Any) -> list[bytes]:
    return bits(dagad.value_and_grad(lambda theta: reduction(fun, data, theta, **options))(0.7))


# The same bits as of the columns


@pytest.mark.sampled(4)
@tables
def test_rows_of_a_table_give_the_bits_of_its_columns_as_arrays(table: Any, scheduler: Any) -> None:
    for grainsize in (5, N):
        options = {"grainsize": grainsize, "scheduler": scheduler}
        expected = outcome(COLUMNS, **(options | {"scheduler": "sync"}))
        assert outcome(table, **options) == expected
        shards = dagad.shard(table, **options)
        assert outcome(shards) == outcome(shards) == expected
        items = outcome(COLUMNS, dagad.map_sum, of_an_item, **(options | {"scheduler": "sync"}))
        assert outcome(table, dagad.map_sum, of_an_item, **options) == items
        assert outcome(shards, dagad.map_sum, of_an_item) == items


@tables
def test_a_column_is_a_read_only_array_of_its_own_type(table: Any) -> None:
    def look(rows: Any) -> float:
        assert {name: rows[name].dtype for name in NUMBERS} == {name: part.dtype for name, part in NUMBERS.items()}
        assert not any(rows[name].flags.writeable for name in rows)
        assert all(type(rows[name]) is np.ndarray for name in NUMBERS)
        assert (list(rows), rows.shape[1], "x" in rows, "z" in rows) == (list(FRAME), 10, True, False)
        with pytest.raises(KeyError, match="no column 'z'; it has 'x', 'k'"):
            rows["z"]
        return 0.0

    dagad.reduce_sum(look, table, grainsize=5, scheduler="sync")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_takes_tables(mode: str, scheduler: Any) -> None:
    run, _ = MODES[mode]

    def found(data: Any, where: Any) -> Any:
        def loss(theta: Any) -> Any:
            total = dagad.reduce_sum(chunk, data, theta, grainsize=5, scheduler=where)
            each = dagad.map(of_an_item, data, theta, grainsize=5, scheduler=where)
            return total + anp.sum(each * np.arange(N)) * 1e-2

        return np.asarray(run(loss)).tobytes()

    assert found(FRAME, scheduler) == found(COLUMNS, "sync")


@tables
def test_map_rect_and_map_reduce_take_tables(table: Any, scheduler: Any) -> None:
    def several(item: Any, theta: Any) -> Any:
        return theta * np.ones(int(item["k"])) * item["x"]

    options = {"grainsize": 5, "scheduler": scheduler}
    uses: list[Callable[[Any], Any]] = [
        lambda data: dagad.map_rect(several, data, 2.0, **options),
        lambda data: dagad.map_reduce(chunk, anp.logaddexp, data, 2.0, **options),
    ]
    for use in uses:
        assert use(table).tobytes() == use(COLUMNS).tobytes()


@tables
def test_a_table_stands_beside_arrays_lists_and_shards(table: Any, scheduler: Any) -> None:
    own, ragged = RNG.standard_normal(N), [np.ones(index % 3) for index in range(N)]

    def mixed(rows: Any, theta: Any) -> Any:
        (first, y), items, again = rows["pair"], rows["items"], rows["again"]
        return chunk(first, theta) + anp.sum(y * again["x"]) + sum(anp.sum(item * theta) for item in items)

    def loss(data: Any, again: Any, where: Any) -> Any:
        def of(theta: Any, y: Any, items: Any) -> Any:
            rows = {"pair": (data, y), "items": items, "again": again}
            return dagad.reduce_sum(mixed, rows, theta, grainsize=5, scheduler=where)

        value, gradient = dagad.value_and_grad(of, argnums=(0, 1, 2))(0.7, own, ragged)
        return bits([value, *gradient[:2], *gradient[2]])

    shards = dagad.shard(table, grainsize=5, scheduler=scheduler)
    assert loss(table, shards, scheduler) == loss(COLUMNS, COLUMNS, "sync")


def test_a_chunk_reduces_its_own_rows(scheduler: Any) -> None:
    def nested(rows: Any, theta: Any) -> Any:
        return dagad.reduce_sum(chunk, rows, theta, grainsize=2)

    found = outcome(TABLES["pandas"], fun=nested, grainsize=10, scheduler=scheduler)
    assert found == outcome(COLUMNS, fun=nested, grainsize=10, scheduler="sync")


@tables
def test_gathered_shards_of_a_table_are_its_columns(table: Any, scheduler: Any) -> None:
    gathered = dagad.shard((table, list(range(N))), grainsize=5, scheduler=scheduler).gather()[0]
    assert {name: gathered[name].tobytes() for name in NUMBERS} == {
        name: part.tobytes() for name, part in NUMBERS.items()
    }
    assert (gathered["city"].tolist(), gathered["kind"].tolist()) == (CITY, FRAME["kind"].tolist())
    assert outcome(dagad.shard(gathered, grainsize=4, scheduler=scheduler)) == outcome(COLUMNS, grainsize=4)


def test_a_table_is_taken_as_it_is_now(scheduler: Any) -> None:
    mine = pd.DataFrame({"x": np.ones(6)})

    def loss(theta: Any, **options: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: anp.sum(rows["x"] * t), mine, theta, grainsize=2, scheduler=scheduler)

    shards = dagad.shard(mine, grainsize=2, scheduler=scheduler)
    _, pullback = dagad.vjp(loss, 2.0)
    evaluation = dagad.evaluate(loss, 2.0, lazy=True)
    assert evaluation.value(PATIENCE) == 12.0
    mine.loc[:, "x"] = 100.0
    assert [float(pullback(1.0)[0]), float(evaluation.gradient(PATIENCE))] == [6.0, 6.0]
    assert dagad.reduce_sum(lambda rows: np.sum(rows["x"]), shards) == 6.0


@of_polars
@of_pyarrow
def test_only_the_rows_of_a_chunk_travel() -> None:
    data = {"word": [f"{index:0100}" for index in range(1000)], "number": np.arange(1000.0)}
    for made in (pd.DataFrame(data), pl.DataFrame(data), pa.table(data)):
        few = dagad.shard(made, grainsize=10, scheduler="sync").kept
        assert max(len(pickle.dumps(part)) for part in few.values()) < 3000


class Spoken:
    """A table of a library of its own, which shows its rows as Arrow's."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


@of_pyarrow
def test_an_object_with_the_arrow_interface_is_taken_as_a_table(scheduler: Any) -> None:
    expected = outcome(COLUMNS, grainsize=5, scheduler="sync")
    for table in (Spoken(TABLES["pyarrow"]), TABLES["pyarrow"].combine_chunks().to_batches()[0]):
        assert outcome(table, grainsize=5, scheduler=scheduler) == expected
        assert outcome(dagad.shard(table, grainsize=5, scheduler=scheduler)) == expected
    with pytest.raises(dagad.StructureError, match=r"`Spoken` of .* that can't be read"):
        dagad.reduce_sum(chunk, Spoken(pa.chunked_array([[1.0]])), 0.7, scheduler="sync")


# What is no numbers


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a sum of words": (lambda rows: np.sum(rows["city"]), r"'city' .* words\. Compare it, `rows\['city'\] == value`"),
    "words times a number": (lambda rows: anp.sum(rows["city"] * 2.0), r"'city' .* words"),
    "missing integers": (lambda rows: anp.sum(rows["some"]), r"'some' .* missing values\. Fill them in or drop"),
    "their mean": (lambda rows: rows["some"].mean(), r"'some' .* missing values"),
    "as floats": (lambda rows: rows["some"].astype(float), r"'some' .* missing values"),
    "their order": (lambda rows: np.sum(rows["some"] > 0), r"'some' .* missing values"),
    "missing booleans": (lambda rows: np.sum(~rows["flag"]), r"'flag' .* missing values"),
    "a product": (lambda rows: anp.dot(rows["some"], np.ones(len(rows["some"]))), r"'some' .* missing values"),
    "dates": (lambda rows: anp.sum(rows["when"] * 2.0), r"'when' .* dates or times\. Take the time since"),
    "dates above a number": (lambda rows: np.sum(rows["when"] > 3), r"'when' .* dates or times"),
    "dates and integers": (lambda rows: np.sum(rows["when"] + 1), r"'when' .* dates or times"),
    "dates as integers": (lambda rows: np.sum(rows["when"].astype(int)), r"'when' .* dates or times"),
    "their differences": (lambda rows: (rows["when"] - rows["when"][0]).astype(float), r"'when' .* dates or times"),
    "one by one": (lambda rows: sum(rows["some"]), r"'some' .* missing values"),
    "categories": (lambda rows: anp.exp(rows["kind"]), r"'kind' .* categories\. .* zeros and ones"),
}


@tables
@pytest.mark.parametrize("read", REFUSED, ids=REFUSED)
def test_a_column_that_is_no_numbers_is_refused_by_name(table: Any, read: str) -> None:
    fun, message = REFUSED[read]
    with pytest.raises(dagad.StructureError, match=f"The column {message}") as caught:
        dagad.reduce_sum(fun, table, grainsize=5, scheduler="threads")
    assert "dagad: value of chunk 0 (rows 0:5)" in str(caught.value.__notes__)


def test_a_column_that_is_no_numbers_is_refused_on_every_scheduler_and_in_shards(scheduler: Any) -> None:
    def total(theta: Any, data: Any) -> Any:
        return dagad.reduce_sum(
            lambda rows, t: anp.sum(rows["some"] * t), data, theta, grainsize=5, scheduler=scheduler
        )

    for data in (FRAME, dagad.shard(FRAME, grainsize=5, scheduler=scheduler)):
        for run in (total, dagad.grad(total)):
            with pytest.raises(dagad.StructureError, match="The column 'some' of a table was read as numbers"):
                run(2.0, data)


@of_polars
def test_columns_of_categories_objects_and_decimals_are_no_numbers() -> None:
    groups, wide = (
        pd.DataFrame({"a": pd.Categorical([1, 2, 1])}),
        pl.DataFrame({"a": [1, 2, 3]}, schema={"a": pl.Int128}),
    )
    records, money = pl.DataFrame({"a": [{"b": 1}] * 3}), pl.DataFrame({"a": [1, 2, 3]}, schema={"a": pl.Decimal(9, 2)})
    kinds = {"categories": groups, "objects of Python": wide, "objects .*": records, "decimals": money}
    for kind, table in kinds.items():
        with pytest.raises(dagad.StructureError, match=f"The column 'a' of a table was read as numbers.*{kind}"):
            dagad.reduce_sum(lambda rows: np.sum(rows["a"]), table, grainsize=2, scheduler="sync")


def test_an_entry_of_a_column_that_is_no_numbers_is_refused_too() -> None:
    for name, use in {"some": lambda entry: entry * 2, "when": lambda entry: entry * 2.0}.items():
        with pytest.raises(dagad.StructureError, match=f"The column '{name}'"):
            dagad.map(lambda item, name=name, use=use: use(item[name]), FRAME, grainsize=5, scheduler="sync")


@tables
def test_columns_of_dates_and_words_may_be_compared_and_counted(table: Any, scheduler: Any) -> None:
    def of_rows(rows: Any, theta: Any) -> Any:
        days = (rows["when"] - np.datetime64("2020-01-01")) / np.timedelta64(1, "D")
        late, equal = rows["when"] > np.datetime64("2020-01-10"), rows["some"] == 3
        rome = np.isin(rows["city"], ["Rome"]) | (rows["kind"] == "Rome")
        names, counts = np.unique(rows["kind"], return_counts=True)
        weights = {"Paris": 1.0, "Rome": 2.0}
        by_name = sum(weights[name] * count for name, count in zip(names, counts, strict=True))
        return theta * (np.sum(days) + np.sum(late) + np.sum(equal) + np.sum(rows["x"][rome]) + by_name)

    def of_items(item: Any, theta: Any) -> Any:
        days = (item["when"] - np.datetime64("2020-01-01")) / np.timedelta64(1, "D")
        rome = item["city"] == "Rome" or item["kind"] == "Rome"
        weight = {"Paris": 1.0, "Rome": 2.0}[item["kind"]]
        data = days + bool(item["when"] > np.datetime64("2020-01-10")) + bool(item["some"] == 3) + weight
        return theta * (data + (item["x"] if rome else 0.0))

    rome = np.array([city == "Rome" for city in CITY]) | (FRAME["kind"] == "Rome").to_numpy()
    expected = sum(range(N)) + (N - 10) + 1 + NUMBERS["x"][rome].sum() + 1.0 * 12 + 2.0 * 11
    for reduction, fun in ((dagad.reduce_sum, of_rows), (dagad.map_sum, of_items)):
        found = dagad.grad(lambda theta, run=reduction, f=fun: run(f, table, theta, grainsize=5, scheduler=scheduler))(
            1.0
        )
        assert float(found) == pytest.approx(expected, abs=1e-12)


def test_columns_of_words_may_be_mapped_and_searched() -> None:
    def look(rows: Any) -> float:
        codes = np.vectorize({"Paris": 1, "Rome": 2, None: 0}.get)(rows["city"])
        initials = rows["kind"].astype("U1")
        assert codes.tolist() == [{"Paris": 1, "Rome": 2, None: 0}[city] for city in rows["city"]]
        assert set(np.strings.upper(initials)) <= {"P", "R"}
        assert ("Paris" in rows["kind"], list(rows["city"])[:2]) == (True, ["Paris", "Rome"])
        with pytest.raises(TypeError, match="not supported between"):
            np.sort(rows["city"])  # numpy's own: words and None
        return 0.0

    dagad.reduce_sum(look, FRAME, grainsize=6, scheduler="sync")


@of_polars
@of_pyarrow
@pytest.mark.filterwarnings("ignore:`<lambda>` gave nan:dagad.DagadWarning")
def test_missing_entries_of_a_float_column_are_nan() -> None:
    for lib in (pd.DataFrame, pl.DataFrame, pa.table):
        assert np.isnan(dagad.reduce_sum(lambda rows: np.sum(rows["a"]), lib({"a": [1.0, None, 3.0]}), grainsize=1))


def test_labels_stay_what_they_are() -> None:
    labels = Labels.of(np.array(["a", None, "b"], object), "name", "words")
    made: list[Any] = [labels[1:], labels.copy(), np.concatenate([labels, labels]), pickle.loads(pickle.dumps(labels))]
    for one in made:
        assert (type(one), one.name, one.kind) == (Labels, "name", "words")
    assert type(labels == "a") is np.ndarray
    assert np.where(labels == "a", 1.0, 2.0).tolist() == [1.0, 2.0, 2.0]


# Differentiated in


@tables
def test_a_gradient_in_a_table_is_refused_with_its_columns_as_the_remedy(table: Any) -> None:
    def loss(data: Any) -> Any:
        return dagad.reduce_sum(lambda rows: anp.sum(rows["x"] ** 2 * rows["k"]), data, grainsize=5, scheduler="sync")

    remedy = r"`(DataFrame|Table)`, which can't be differentiated.*`\{name: table\[name\]\.to_numpy\(\) for name"
    for use in (
        dagad.grad(loss),
        dagad.jacfwd(loss),
        lambda t: dagad.vjp(loss, t),
        lambda t: dagad.jvp(loss, (t,), (t,)),
    ):
        with pytest.raises(dagad.NotDifferentiableError, match=remedy):
            use(table)
    with pytest.raises(dagad.NotDifferentiableError, match=remedy):
        dagad.grad(lambda pair: loss(pair[0]))((table, 1.0))
    gradient = dagad.grad(loss)({name: FRAME[name].to_numpy() for name in ("x", "k")})
    np.testing.assert_allclose(gradient["x"], 2 * NUMBERS["x"] * NUMBERS["k"])
    assert gradient["k"] is None


def test_shards_of_a_table_are_not_differentiated_in(scheduler: Any) -> None:
    shards = dagad.shard(FRAME, grainsize=5, scheduler=scheduler)
    with pytest.raises(dagad.NotDifferentiableError, match="with respect to the rows of a table"):
        dagad.grad(lambda s: dagad.reduce_sum(lambda rows: anp.sum(rows["x"]), s))(shards)


# What is refused


OTHERS: dict[str, tuple[Callable[[], Any], str]] = {
    "series": (lambda: FRAME["x"], r"`Series` of pandas.*`column\.to_numpy\(\)`"),
    "index": (lambda: pd.Index([1.0, 2.0]), r"`Index` of pandas.*`column\.to_numpy\(\)`"),
    "polars' series": (lambda: TABLES["polars"]["x"], r"`Series` of polars.*`column\.to_numpy\(\)`"),
    "pyarrow's column": (lambda: TABLES["pyarrow"]["x"], r"of pyarrow.*`column\.to_numpy\(\)`"),
    "missing integers": (lambda: pd.array([1, None], dtype="Int64"), r"of pandas.*`column\.to_numpy\(\)`"),
    "masked": (
        lambda: np.ma.masked_array(np.ones(3), [False, True, False]),
        r"`MaskedArray` of numpy.*`array\.filled\(value\)`",
    ),
    "lazy": (lambda: TABLES["polars"].lazy(), r"`LazyFrame` of polars that can't be read.*Compute it"),
    "two of a name": (
        lambda: pd.DataFrame(np.ones((2, 2)), columns=["a", "a"]),
        r"(?s)can't be read.*name each column once",
    ),
    "numbered": (lambda: pd.DataFrame(np.ones((2, 2))), r"columns are \[0, 1\].*`table\.rename\(columns=str\)`"),
    "no columns": (lambda: pd.DataFrame(index=range(3)), r"columns are \[\]\. There has to be at least one"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.needs({"polars' series": "polars", "lazy": "polars"}.get(name, "pyarrow")))
        if name in ("polars' series", "lazy", "pyarrow's column")
        else name
        for name in OTHERS
    ],
)
def test_a_series_or_lazy_frame_as_rows_is_refused_with_the_remedy(name: str) -> None:
    make, message = OTHERS[name]
    for use in (dagad.shard, lambda data, **options: dagad.reduce_sum(np.sum, data, **options)):
        for data in (make(), {"x": make(), "y": make()}):
            with pytest.raises(dagad.StructureError, match=message):
                use(data, scheduler="sync")


def test_columns_of_another_length_are_refused() -> None:
    with pytest.raises(dagad.StructureError, match=rf"\[0\] has {N}, \[1\] has 3\. Each chunk gets the same rows"):
        dagad.reduce_sum(chunk, (FRAME, np.ones(3)))


def test_a_table_without_the_package_that_reads_it_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "narwhals", None)
    with pytest.raises(dagad.StructureError, match=r'`pip install "dagad\[tables\]"`, or give'):
        dagad.reduce_sum(chunk, FRAME, 1.0, scheduler="sync")


# Collections of Dask


def test_a_bag_is_placed_piece_by_piece(scheduler: Any) -> None:
    bag = db.from_sequence([1.0, 2.0, 4.0], npartitions=2)
    for use in (dagad.shard, lambda bag, **options: dagad.reduce_sum(sum, bag, **options)):
        with pytest.raises(dagad.StructureError, match=r"`Bag` of Dask.*`dagad\.shard\(collection\.to_delayed\(\)\)`"):
            use(bag, scheduler=scheduler)
    assert dagad.map_sum(float, dagad.shard(bag.to_delayed(), scheduler=scheduler)) == 7.0


def test_a_lone_loader_is_refused_with_a_list_to_write() -> None:
    with pytest.raises(dagad.StructureError, match=r"`dagad\.shard\(\[load\(path\), \.\.\.\]\)`, a list of Delayed"):
        dagad.reduce_sum(np.sum, delayed(np.ones)(3))


def test_loaders_may_give_tables(scheduler: Any) -> None:
    pieces = [delayed(FRAME[start : start + 5], pure=False) for start in range(0, N, 5)]
    assert outcome(dagad.shard(pieces, scheduler=scheduler)) == outcome(COLUMNS, grainsize=5, scheduler="sync")


@of_pyarrow
def test_a_dask_dataframe_comes_by_partition(scheduler: Any) -> None:
    dd: Any = importlib.import_module("dask.dataframe")  # which needs pyarrow
    table = dd.from_pandas(FRAME, npartitions=4)
    lengths = table.map_partitions(len).compute().tolist()
    shards = dagad.shard(table, scheduler=scheduler)
    assert [piece.stop - piece.start for piece in shards.plan] == lengths
    assert lengths[:-1] == [lengths[0]] * 3
    assert outcome(shards) == outcome(COLUMNS, grainsize=lengths[0], scheduler="sync")
    assert outcome(dagad.shard(table, grainsize=3, scheduler=scheduler)) == outcome(dagad.shard(table, grainsize=3))
    for rows in (table, {"table": table}):
        with pytest.raises(dagad.StructureError, match=r"`DataFrame` of Dask.*`dagad\.shard\(table\)`"):
            dagad.reduce_sum(chunk, rows, 1.0, scheduler=scheduler)
    with pytest.raises(dagad.StructureError, match=r"`dagad\.shard\(column\.to_dask_array\(lengths=True\)\)`"):
        dagad.shard(table["x"], scheduler=scheduler)
