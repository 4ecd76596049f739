"""Tables among the rows: refused, since their own arithmetic skips what is missing and knows no derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from dagad._errors import StructureError

_LIBRARIES = frozenset({"pandas", "polars", "pyarrow", "xarray", "cudf", "modin"})
_PROTOCOLS = ("__dataframe__", "__arrow_c_stream__", "__arrow_c_array__")


def is_table(leaf: Any) -> bool:
    """Return whether something is a table, a column of one, or an array with labels or with numbers left out."""
    kind = type(leaf)
    roots = _roots(kind)
    return "dask" not in roots and (
        issubclass(kind, np.ma.MaskedArray)
        or not roots.isdisjoint(_LIBRARIES)
        or any(hasattr(kind, protocol) for protocol in _PROTOCOLS)
    )


def _roots(kind: type) -> set[str]:
    return {cls.__module__.partition(".")[0] for cls in kind.__mro__}


def refuse_table(leaf: Any) -> None:
    """Refuse a table as sliced argument.

    Raises
    ------
    StructureError
        The message says how to give its columns as arrays.
    """
    kind = type(leaf)
    library = min(_roots(kind) & _LIBRARIES, default=kind.__module__.partition(".")[0])
    raise StructureError(
        f"The sliced argument, or a part of it, is a `{kind.__name__}` of {library}. Its arithmetic skips missing "
        f"numbers without a word, and can't be differentiated in. Give {_arrays_of(leaf)}, once you have decided what "
        "is to become of what is missing."
    )


def _arrays_of(leaf: Any) -> str:
    if isinstance(leaf, np.ma.MaskedArray):
        return "`array.filled(value)`"
    if hasattr(leaf, "columns") or hasattr(leaf, "data_vars"):
        return "its columns as arrays, `{name: table[name].to_numpy() for name in names}`"
    return "the array behind it, `column.to_numpy()`"
