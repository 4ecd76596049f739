"""Notebooks: do they run in a real kernel, and is what is saved in them still so?"""

from __future__ import annotations

import re
import uuid

import psutil
import pytest

from support.notebooks import EXAMPLES, NAMES, outputs, printed, read, run
from support.waiting import PATIENCE

pytestmark = pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")

MOST_BYTES = 400_000  # of a notebook with its pictures


def processes_of(mark: str) -> list[psutil.Process]:
    """Return the processes that have a variable in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.environ().values():
                found.append(process)
        except psutil.Error:  # another user's, or gone
            continue
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_tour_runs_and_prints_what_is_saved(name: str) -> None:
    mark = uuid.uuid4().hex
    executed = run(name, DAGAD_TOUR=mark)
    saved = printed(read(name))
    assert printed(executed) == saved, f"if this is as it should be: python tests/support/notebooks.py {name}"
    assert len(saved) >= 5
    assert all(saved.values())
    assert [output.text for _, output in outputs(executed) if output.get("name") == "stderr"] == []
    assert [cell.id for cell in executed.cells if cell.cell_type == "code" and cell.execution_count is None] == []
    assert psutil.wait_procs(processes_of(mark), timeout=PATIENCE)[1] == [], "processes outlived the kernel"


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_tour_can_be_read_without_running_it(name: str) -> None:
    saved = read(name)
    kinds = {kind for _, output in outputs(saved) for kind in output.get("data", {output["output_type"]: ""})}
    assert {"stream", "image/png", "text/html"} <= kinds
    assert "error" not in kinds
    assert [cell.id for cell, output in outputs(saved) if output.get("name") == "stderr"] == []
    assert [cell.execution_count for cell in saved.cells if cell.cell_type == "code"] == [
        *range(1, 1 + sum(cell.cell_type == "code" for cell in saved.cells))
    ]
    assert (EXAMPLES / f"{name}.ipynb").stat().st_size < MOST_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_links_of_a_tour_lead_somewhere(name: str) -> None:
    text = "".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)]+)", text)
    assert links
    assert [link for link in links if not (EXAMPLES / link).exists()] == []
