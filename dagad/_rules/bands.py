"""Where the entries of a band matrix are in the rows that scipy keeps of it: indices, for arrays of any engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from dagad._types import Array

NOWHERE = 0  # the index of a zero, before all entries


def of_dense(n: int, below: int, above: int) -> Any:
    """Return the places, from 1 on, of the entries of a square matrix in its diagonals, raveled."""
    row, column = np.arange(n)[:, None], np.arange(n)
    return _indices(above + row - column, column, below + above + 1, n)


def of_rows(n: int, below: int, above: int) -> Any:
    """Return, for each diagonal and each row of the matrix, the place of the entry in that row, and its column."""
    row = np.arange(n)
    column = row - np.arange(-above, below + 1)[:, None]
    at = _indices(above + row - column, column, below + above + 1, n)
    return at, np.where(at == NOWHERE, 0, column)


def of_columns(n: int, below: int, above: int) -> Any:
    """Return the row of the matrix that each entry kept is in, and whether it is in the matrix."""
    row = np.arange(n) + np.arange(-above, below + 1)[:, None]
    inside = (row >= 0) & (row < n)
    return np.where(inside, row, 0), inside


def of_transposed(n: int, below: int, above: int) -> Any:
    """Return the indices of the entries of the transposed matrix, as scipy would keep that."""
    column = np.arange(n) + np.arange(-below, above + 1)[:, None]  # in the matrix as it is
    row = np.broadcast_to(np.arange(n), column.shape)
    return _indices(above + row - column, column, below + above + 1, n)


def _indices(kept: Array, column: Array, n_kept: int, n: int) -> Any:
    inside = (kept >= 0) & (kept < n_kept) & (column >= 0) & (column < n)
    return np.where(inside, 1 + kept * n + column, NOWHERE)
