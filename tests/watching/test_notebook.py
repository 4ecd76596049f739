"""Notebooks: does a real kernel show progress, and is it in the file that is saved?"""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import nbformat
import pytest
from nbclient import NotebookClient

from support.waiting import PATIENCE

SETUP = """
import time
import dask
import numpy as np
import dagad

def chunk(rows, theta):
    time.sleep(0.03)
    return np.sum(rows) * theta

def loss(theta):
    return dagad.reduce_sum(chunk, np.arange(24.0), theta, grainsize=1, scheduler="threads")
"""

BLOCK = """
with dagad.progress() as seen:
    for theta in (1.0, 2.0):
        dagad.value_and_grad(loss)(theta)
"""

BY_SETTING = """
dask.config.set({"dagad.progress": True})
dagad.value_and_grad(loss)(3.0);
"""

OBJECT = """
evaluation = dagad.evaluate(loss, 1.0)
evaluation.gradient()
evaluation
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The file of a notebook that a kernel has run."""
    path = tmp_path_factory.mktemp("notebook") / "watched.ipynb"
    new: Any = nbformat.v4
    cells = [new.new_code_cell(code) for code in (SETUP, BLOCK, BY_SETTING, BY_SETTING, OBJECT)]
    notebook = new.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=int(2 * PATIENCE), kernel_name="python3").execute()
    path.write_text(nbformat.writes(notebook), encoding="utf-8")  # type: ignore[no-untyped-call]  # nbformat's
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def rows_of(output: dict[str, Any]) -> list[list[str]]:
    tree = ElementTree.fromstring("".join(output["data"]["text/html"]))
    return [["".join(cell.itertext()) for cell in row] for row in tree.iter("tr")]


def test_a_progress_block_leaves_its_last_state_in_the_notebook_cell(saved: dict[str, Any]) -> None:
    (output,) = saved["cells"][1]["outputs"]
    head, first, second, *bars = rows_of(output)
    assert head[:4] == ["#", "function", "value", "|gradient|"]
    assert first[:4] == ["1", "loss", "276", "276"]
    assert second[:4] == ["2", "loss", "552", "276"]
    assert [bar[0] for bar in bars] == ["#2 values", "#2 gradients"]
    assert all(bar[2].startswith("24/24") for bar in bars)
    assert "#2 values: 24/24" in "".join(output["data"]["text/plain"])


def test_the_progress_setting_shows_each_notebook_cell_what_it_evaluates(saved: dict[str, Any]) -> None:
    for number in (1, 2):
        (output,) = saved["cells"][1 + number]["outputs"]
        _, row, *bars = rows_of(output)
        assert row[:3] == [str(number), "loss", "828"]
        assert [bar[2].partition(" ")[0] for bar in bars] == ["24/24", "24/24"]


def test_an_evaluation_is_shown_as_a_table(saved: dict[str, Any]) -> None:
    shown = saved["cells"][4]["outputs"][-1]
    assert ["values", "", "24/24"] in rows_of(shown)
