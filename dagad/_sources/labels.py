"""A table's column that is no numbers: words, dates, what is missing; refused by name when it is read as numbers."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from dagad._errors import StructureError
from dagad._types import Args, Array, DType, Function, Index, Kwargs, Value

MISSING, WORDS, CATEGORIES = "missing values", "words", "categories"
DATES, DECIMALS, OBJECTS = "dates or times", "decimals", "objects of Python"

_REMEDIES = {
    MISSING: "Fill them in or drop these rows of the table first, once you have decided what to do about them.",
    WORDS: "Compare it, `rows[{name!r}] == value`, or make numbers of it in the table first.",
    CATEGORIES: "Compare it, `rows[{name!r}] == value`, or give each category a column of zeros and ones in the table.",
    DATES: 'Take the time since some date, `(rows[{name!r}] - np.datetime64("2000-01-01")) / np.timedelta64(1, "D")`.',
    DECIMALS: "Convert it to a column of floats in the table first.",
    OBJECTS: "Convert it to a column of floats or integers in the table first.",
}

# What asks nothing of numbers. With dates there is arithmetic too, which numpy knows: nothing is taken for a number.
_COMPARING = frozenset(
    {np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal, np.isnat, np.isnan, np.isfinite}
)
_OF_DATES = frozenset(
    {np.add, np.subtract, np.divide, np.floor_divide, np.remainder, np.negative, np.absolute, np.maximum, np.minimum}
)
_SELECTING = frozenset(
    {
        *(np.shape, np.ndim, np.size, np.array_repr, np.array_str, np.array2string, np.array_equal, np.copy, np.take),
        *(np.unique, np.isin, np.where, np.searchsorted, np.sort, np.argsort, np.compress, np.flip, np.repeat),
        *(np.concatenate, np.stack, np.hstack, np.split, np.array_split, np.reshape, np.ravel, np.broadcast_to),
    }
)
_OF_STRINGS = ("numpy.strings", "numpy.char")
_SELECTING_DATES = frozenset({np.max, np.min, np.diff})
_TIMES = (datetime.date, datetime.timedelta, np.datetime64, np.timedelta64)


class Labels(np.ndarray[Any, Any]):
    """An array of what is no numbers; what is selected of it, and the time between dates, is of this kind too."""

    name: Any
    kind: str

    @classmethod
    def of(cls, values: np.ndarray[Any, Any], name: str, kind: str) -> Labels:
        """Return values as the column of a table."""
        made = values.view(cls)
        made.name, made.kind = name, kind
        return made

    def __array_finalize__(self, obj: object) -> None:
        self.name, self.kind = getattr(obj, "name", ""), getattr(obj, "kind", OBJECTS)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        of_data = ufunc in _COMPARING or self.dtype.kind in "UST" or _is_of_python(ufunc)
        if not of_data and not (ufunc in _OF_DATES and all(map(_is_time, inputs))):
            self._refuse()
        try:
            return self._labelled(getattr(ufunc, method)(*_plain(inputs), **options))
        except TypeError as error:
            if self.kind in (WORDS, CATEGORIES):  # words and None have no order
                raise
            self._refuse(error)

    def __array_function__(self, func: Function, types: object, args: Args, kwargs: Kwargs) -> Any:
        del types
        of_data = func in _SELECTING or func.__module__ in _OF_STRINGS
        if not of_data and not (func in _SELECTING_DATES and self.dtype.kind in "mM"):
            self._refuse()
        return self._labelled(func(*_plain(args), **{name: _plain(value) for name, value in kwargs.items()}))

    def astype(self, dtype: DType, *args: Any, **kwargs: Any) -> Any:
        """Return the column as another kind of words, dates or objects."""
        if np.dtype(dtype).kind in "biufc":
            self._refuse()
        return super().astype(dtype, *args, **kwargs)

    def dot(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse."""
        del args, kwargs
        self._refuse()

    def __getitem__(self, key: Index) -> Any:
        """Return some entries; a word as it is, any other single entry as labels without dimensions."""
        found = super().__getitem__(key)
        if isinstance(found, np.ndarray | str) or (found is None and self.kind in (WORDS, CATEGORIES)):
            return found
        entry = np.empty((), self.dtype)
        entry[()] = found
        return Labels.of(entry, self.name, self.kind)

    def __hash__(self) -> int:  # type: ignore[override]  # arrays have none, but an entry can be looked up in a dict
        return hash(self.item())

    def __reduce__(self) -> Any:
        return Labels.of, (np.asarray(self), self.name, self.kind)

    def refuse_engine(self, name: str) -> NoReturn:
        """Tell that an engine has numbers only."""
        raise StructureError(
            f"The column {self.name!r} of a table holds {self.kind}, and `engine={name!r}` has only numbers, whether "
            "the function reads the column or not. Give the columns that are numbers, as by `table[[...]]`, or leave "
            "out `engine=`."
        )

    def _labelled(self, result: Value) -> Any:
        if isinstance(result, tuple | list):
            return type(result)(self._labelled(part) for part in result)
        if not isinstance(result, np.ndarray) or result.dtype.kind in "biufc":
            return result
        return Labels.of(result, self.name, self.kind)

    def _refuse(self, cause: Exception | None = None) -> NoReturn:
        raise StructureError(
            f"The column {self.name!r} of a table was read as numbers, and it holds {self.kind}. "
            f"{_REMEDIES[self.kind].format(name=self.name)}"
        ) from cause


def _is_time(operand: Array) -> bool:
    return isinstance(operand, _TIMES) or getattr(getattr(operand, "dtype", None), "kind", "") in ("m", "M")


def _is_of_python(ufunc: np.ufunc) -> bool:
    """Return whether a function was made by `np.vectorize` or `np.frompyfunc`: it knows what it is given."""
    return list(ufunc.types) == [f"{'O' * ufunc.nin}->{'O' * ufunc.nout}"]


def _plain(value: Value) -> Any:
    if isinstance(value, Labels):
        return np.asarray(value)
    return type(value)(map(_plain, value)) if isinstance(value, tuple | list) else value


def objects(values: Sequence[Any], missing: Any) -> np.ndarray[Any, Any]:
    """Return values as an array of objects, None where they are missing."""
    array = np.fromiter(values, object, len(values))
    array[missing] = None
    return array
