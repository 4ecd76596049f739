"""Rows that are tables, of pandas, polars, pyarrow and their like: columns by name, made arrays where they are read."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from dagad._errors import MissingNameError, StructureError
from dagad._sources.base import Source, Taken, cut
from dagad._sources.labels import CATEGORIES, DATES, DECIMALS, MISSING, OBJECTS, WORDS, Labels, objects
from dagad._sources.plan import Chunk
from dagad._sources.rows import Constant, Piece
from dagad._types import DType, Leaf
from dagad._values.canonical import as_given, canonical, library_of, snapshot


class Table(Source, Mapping[str, Any]):
    """Some rows of a table as a mapping from names to arrays.

    A column becomes an array when it is first read: what nobody reads need not be numbers, and costs nothing. What
    travels, and what is gathered, are arrays: nobody needs the library there.
    """

    __slots__ = ("_columns", "_read", "_rows", "n_rows")
    is_rows = has_columns = True

    def __init__(self, columns: Mapping[str, Any], n_rows: int, rows: slice | None = None) -> None:
        self._columns, self._rows, self._read = columns, slice(0, n_rows) if rows is None else rows, dict[str, Any]()
        self.n_rows = self._rows.stop - self._rows.start

    def __getitem__(self, name: str) -> Any:
        if isinstance(name, list):
            raise StructureError(f"A table gives one column at a time in a chunk. For several write {_matrix(name)}.")
        if name not in self._read:
            if name not in self._columns:
                raise KeyError(f"The table has no column {name!r}; it has {', '.join(map(repr, self._columns))}.")
            self._read[name] = as_given(cut(self._columns[name], self._rows))
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """Return the number of rows, as tables do whose rows these are; that of columns is ``rows.shape[1]``."""
        return self.n_rows

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise MissingNameError(f"A table has no `{name}`.")
        names = list(self._columns)
        how = f'Write `rows["{name if name in names else names[0]}"]` for a column'
        how += "." if name in names else f", and for a matrix {_matrix(names)}."
        raise MissingNameError(
            f"A table has no `.{name}` in a chunk: there it is a mapping from names to numpy's arrays. {how}"
        )

    def __array__(self, dtype: DType = None, copy: bool | None = None) -> NoReturn:
        raise StructureError(
            "A table was used as an array in a chunk, where it is a mapping from names to arrays. Take a column, "
            f"`rows[name]`, or make a matrix: {_matrix(list(self._columns))}."
        )

    @property
    def read_from(self) -> tuple[Any, ...]:
        """The table of some library, or the arrays; and which rows of it."""
        return getattr(self._columns, "read_from", self._columns), self._rows.start, self._rows.stop

    def piece(self, chunk: Chunk) -> Piece:
        start = self._rows.start
        return Constant(Table(self._columns, self.n_rows, slice(start + chunk.start, start + chunk.stop)))

    def by_item(self) -> Sequence[TableItem]:
        return [TableItem(self, index) for index in range(self.n_rows)]

    def snapshot(self) -> Table:
        return Table({name: snapshot(self[name]) for name in self}, self.n_rows)

    def cut(self, rows: slice) -> Table:
        """Return some of these rows."""
        return Table({name: self[name][rows] for name in self}, len(range(self.n_rows)[rows]))

    def joined(self, others: Sequence[Table]) -> Table:
        """Return these rows and those of other pieces of the same table."""
        parts = (self, *others)
        n_rows = sum(part.n_rows for part in parts)
        return Table({name: np.concatenate([part[name] for part in parts]) for name in self}, n_rows)

    @property
    def row_kind(self) -> Hashable:
        """Names of the columns, each of which has one number in a row."""
        return tuple(self._columns)

    @property
    def nbytes(self) -> int:
        """About how many bytes the rows have; nothing is read to find out."""
        if type(self._columns) is dict:
            return sum(self[name].nbytes for name in self)
        return 8 * self.n_rows * len(self._columns)

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns there are."""
        return self.n_rows, len(self._columns)

    def __repr__(self) -> str:
        return f"<{self.n_rows} row{'s' * (self.n_rows != 1)} of {', '.join(map(repr, self))}>"

    def __reduce__(self) -> Any:
        return Table, ({name: self[name] for name in self}, self.n_rows)


def _matrix(names: list[str]) -> str:
    return f"`np.stack([rows[name] for name in {[*names[:3], '...'] if len(names) > 3 else names}], axis=1)`"


class TableItem(Mapping[str, Any]):
    """One row of a table: a mapping from names to numbers, words, dates."""

    __slots__ = ("_index", "_table")
    has_columns = True

    def __init__(self, table: Table, index: int) -> None:
        self._table, self._index = table, index

    def __getitem__(self, name: str) -> Any:
        return self._table[name][self._index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return self._table.shape[1]

    def __repr__(self) -> str:
        return repr(dict(self))


class Frame(Mapping[str, Any]):
    """All columns of a table in some library's memory, each read once."""

    __slots__ = ("_frame", "_names", "_read")

    def __init__(self, frame: Any) -> None:
        self._frame, self._names, self._read = frame, frame.columns, dict[str, Any]()

    @property
    def read_from(self) -> Any:
        """The table itself."""
        return self._frame.to_native()

    def __getitem__(self, name: str) -> Any:
        if name not in self._read:
            self._read[name] = as_given(canonical(_array_of(self._frame.get_column(name), name)))
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


_KINDS = {"String": WORDS, "Categorical": CATEGORIES, "Enum": CATEGORIES, "Decimal": DECIMALS}
_KINDS |= dict.fromkeys(("Datetime", "Date", "Duration", "Time"), DATES)
_KINDS |= dict.fromkeys(("Struct", "List", "Binary", "Object"), OBJECTS)


def _array_of(column: Any, name: str) -> np.ndarray[Any, Any]:
    """Return a column as numbers of its own type, or as labels; what is missing among floats is nan."""
    kind, missing = _KINDS.get(str(column.dtype).partition("(")[0]), column.null_count()
    if kind == DATES or (kind is None and (column.dtype.is_float() or not missing)):
        with contextlib.suppress(Exception):  # the library's own, for numbers of 128 bits, say, which numpy has not
            array: np.ndarray[Any, Any] = column.to_numpy()
            if array.dtype.kind in "mM":
                return Labels.of(array, name, DATES)
            if array.dtype.kind in "biufc":
                return array
    return Labels.of(
        objects(column.to_list(), column.is_null().to_numpy()), name, kind or (MISSING if missing else OBJECTS)
    )


def read_table(leaf: Leaf, taken: Taken) -> Source | None:
    """Return a table as a source; a column of one, say, is refused with how to give the numbers in it."""
    del taken
    library = library_of(leaf)
    if library is None:
        return None
    kind = type(leaf)
    if not hasattr(kind, "columns") and (hasattr(kind, "to_numpy") or not hasattr(kind, "__arrow_c_stream__")):
        raise StructureError(
            f"The sliced argument, or a part of it, is a `{type(leaf).__name__}` of {library}. Its arithmetic skips "
            "missing numbers silently, and can't be differentiated. Once you have decided what to do about missing "
            f"numbers, give {_numbers_of(leaf, library)}."
        )
    columns = Frame(_frame_of(leaf, library))
    if not len(columns) or not all(isinstance(name, str) for name in columns):
        raise StructureError(
            f"The table's columns are {list(columns)}. There has to be at least one, and their names have to be "
            "strings: `table.rename(columns=str)`."
        )
    return Table(columns, len(columns._frame))


def _frame_of(table: object, library: str) -> Any:
    try:
        import narwhals  # an optional package
    except ImportError:
        raise StructureError(
            f"The sliced argument, or a part of it, is a table of {library}, and narwhals, which reads tables, is not "
            'installed here. Install it, `pip install "dagad[tables]"`, or give '
            "`{name: table[name].to_numpy() for name in names}`."
        ) from None
    try:
        if narwhals.dependencies.is_into_dataframe(table) or not hasattr(table, "__arrow_c_stream__"):
            return narwhals.from_native(table, eager_only=True)
        return narwhals.from_arrow(table, backend="pyarrow")  # of whom nobody has heard, but it speaks Arrow
    except (ImportError, TypeError, ValueError) as error:
        raise StructureError(
            f"The sliced argument, or a part of it, is a `{type(table).__name__}` of {library} that can't be read "
            f"({error}). Compute it, name each column once, or give its columns as arrays, "
            "`{name: table[name].to_numpy() for name in names}`."
        ) from error


def _numbers_of(leaf: Leaf, library: str) -> str:
    if isinstance(leaf, np.ma.MaskedArray):
        return "`array.filled(value)`"
    if library == "xarray" and hasattr(leaf, "to_numpy"):
        return "the array in it, `data.to_numpy()`; of one in chunks, what `dagad.shard(data)` makes of it"
    if library == "xarray":
        return "its arrays, `{name: data[name].to_numpy() for name in names}`, or what `dagad.shard(data)` makes of it"
    return "the array behind it, `column.to_numpy()`"
