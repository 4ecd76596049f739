"""Arrays of Dask's expressions: have the programs that Dask knows for them the derivatives that plain autograd has?"""

from __future__ import annotations

import json
import operator
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dask._task_spec import Task, TaskRef

import dagad
from dagad._graphs import expressions
from support.expression_arrays import PACKAGE, PLANNED

TESTS = Path(__file__).parents[1]
# What Dask's own arrays of expressions can't do yet, as of this release, is more than half of the programs.
FEWEST = {PLANNED: 400, PACKAGE: 1000}  # programs times cuts


def said(kind: str, *arguments: str) -> Any:
    """Return what a process says in which arrays are of a kind."""
    if kind == PACKAGE:
        pytest.importorskip("dask_array")
    command = [sys.executable, "-m", "support.expression_arrays", *arguments]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_some_programs_of_expression_arrays_have_the_derivatives_of_autograd() -> None:
    found = said(PLANNED, "main", PLANNED, "15")
    assert not found["failures"]
    assert found["right"] >= 5


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
@pytest.mark.parametrize("kind", FEWEST)
def test_each_program_of_expression_arrays_has_the_derivatives_of_autograd(kind: str) -> None:
    found = said(kind, "main", kind, "1")
    assert not found["failures"]
    assert found["right"] >= FEWEST[kind]


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
@pytest.mark.parametrize("kind", FEWEST)
def test_derivatives_in_pieces_of_expression_arrays_are_right_on_each_scheduler(kind: str) -> None:
    gaps = said(kind, "pieces", kind)
    assert set(gaps) == {"sync", "threads", "cluster"}
    assert max(gaps.values()) < 1e-11, gaps


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
@pytest.mark.parametrize("kind", FEWEST)
def test_derivatives_by_expression_arrays_that_earlier_derivatives_read_are_right(kind: str) -> None:
    gaps = said(kind, "hidden", kind)
    assert len(gaps) == 4
    assert max(gaps.values()) < 1e-12


def test_no_task_takes_the_name_of_another_one_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {"y": Task("y", operator.neg, TaskRef("x")), "x": Task("x", abs, 1.0)}
    monkeypatch.setattr(expressions, "graph_as_written", lambda written: before)
    monkeypatch.setattr(expressions, "_keys", lambda written: ["y"])
    made = {"y2": Task("y2", operator.neg, TaskRef("x2")), "x2": Task("x2", abs, 1.0), "x": Task("x", abs, -5.0)}
    nodes, keys = expressions.as_named_before(dict(made), ["y2"], None)
    assert keys == ["y"]
    assert set(nodes) == {"y", "x2", "x"}
    assert dagad.get(nodes, ["y", "x"]) == (-1.0, 5.0)
