"""The matrix as graphs on local threads: is each mode of each feature right, on each source?"""

from __future__ import annotations

import pytest

from support.matrix import Cell, cells_of, check_cell


@pytest.mark.parametrize("cell", cells_of("local graph"))
def test_a_mode_of_a_feature_on_a_source_is_right(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    check_cell(cell, "threads", monkeypatch)
