"""The matrix by residents of a cluster, past its scheduler: is each mode of each feature right, on each source?"""

from __future__ import annotations

import pytest
from distributed import Client

from support.matrix import Cell, cells_of, check_cell


@pytest.mark.parametrize("cell", cells_of("residents"))
def test_a_mode_of_a_feature_on_a_source_is_right(cell: Cell, cluster: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    check_cell(cell, cluster, monkeypatch)
