"""Tables among the rows: refused, since their own arithmetic skips what is missing and knows no derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from dagad._errors import StructureError
from dagad._pytrees.canonical import library_of


def refuse_table(leaf: Any) -> None:
    """Refuse a table as sliced argument.

    Raises
    ------
    StructureError
        The message says how to give its columns as arrays.
    """
    raise StructureError(
        f"The sliced argument, or a part of it, is a `{type(leaf).__name__}` of {library_of(leaf)}. Its arithmetic "
        f"skips missing numbers without a word, and can't be differentiated in. Give {_arrays_of(leaf)}, once you have "
        "decided what is to become of what is missing."
    )


def _arrays_of(leaf: Any) -> str:
    if isinstance(leaf, np.ma.MaskedArray):
        return "`array.filled(value)`"
    if hasattr(leaf, "columns") or hasattr(leaf, "data_vars"):
        return "its columns as arrays, `{name: table[name].to_numpy() for name in names}`"
    return "the array behind it, `column.to_numpy()`"
