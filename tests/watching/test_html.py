"""What notebooks show: is it well-formed, escaped, without anything from elsewhere, and what is the case?"""

from __future__ import annotations

import threading
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from distributed import Client

import dagad
from dagad._sources.plan import GivenPlan, Plan

X, WAIT = np.random.default_rng(0).standard_normal((40, 3)), 60


def parsed(shown: Any) -> ElementTree.Element:
    """Parse what a notebook is given; all of it is XML, whose entities are HTML's."""
    text = shown._repr_html_()
    assert not [word for word in ("http", "<script", "<img", "<link", "src=") if word in text]
    return ElementTree.fromstring(text)


def cells(shown: Any) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in parsed(shown).iter("tr")]


def a_loss(name: str, go: threading.Event | None = None) -> Any:
    def chunk(rows: Any, theta: Any) -> Any:
        assert go is None or go.wait(WAIT)
        return np.sum(np.tanh(rows @ theta))

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, X, theta, grainsize=5, scheduler="threads")

    chunk.__name__, loss.__name__ = f"{name}-chunk", name
    return loss


def test_an_evaluation_is_shown_with_its_calls() -> None:
    evaluation = dagad.evaluate(a_loss("fit"), np.ones(3))
    evaluation.gradient(WAIT)
    for shown in (evaluation, evaluation.profile()):
        rows = cells(shown)
        assert rows[0] == ["value", f"{evaluation.value():.6g}"]
        assert ["values", "", "8/8"] in rows
        assert ["gradients", "", "8/8"] in rows
        assert [row[:5] for row in rows if row[0] == "fit-chunk"] == [
            ["fit-chunk", gives, "40", "8", "graph"] for gives in ("value", "gradient")
        ]
    assert "pullback " in cells(evaluation)[-1][7]


def test_an_evaluation_that_runs_says_so() -> None:
    go = threading.Event()
    evaluation = dagad.evaluate(a_loss("fit", go), np.ones(3))
    profile = evaluation.profile()
    assert ["time", "running"] in cells(evaluation)
    assert "running" in repr(profile)
    go.set()
    evaluation.gradient(WAIT)
    assert "'fit' over" in repr(profile)


def test_the_html_of_an_evaluation_escapes_names_and_errors() -> None:
    def fails(rows: Any, theta: Any) -> Any:
        raise ValueError("<b>5 < 6 & 'so' on</b>")

    evaluation = dagad.evaluate(lambda theta: dagad.reduce_sum(fails, X, theta, scheduler="sync"), np.ones(3))
    with pytest.raises(ValueError, match="so"):
        evaluation.gradient(WAIT)
    assert ["error", "ValueError: <b>5 < 6 & 'so' on</b>"] in cells(evaluation)
    caption = parsed(evaluation).find("table/caption")
    assert caption is not None
    assert caption.text == "<lambda>"
    assert "failed: ValueError" in repr(evaluation.profile())


@pytest.mark.parametrize(("plan", "grainsize"), [(Plan(10, 4), "4"), (GivenPlan((0, 1, 5, 10)), "5")])
def test_a_plan_is_drawn_as_its_chunks(plan: Any, grainsize: str) -> None:
    assert cells(plan) == [["rows", "10"], ["chunks", "3"], ["grainsize", grainsize]]
    boxes = list(parsed(plan).iter("rect"))
    widths = [float(box.attrib["width"]) for box in boxes]
    lengths = [chunk.stop - chunk.start for chunk in plan]
    assert np.allclose(np.array(widths) / sum(widths), np.array(lengths) / 10)
    assert "".join(boxes[-1].itertext()).endswith(":10")


def test_a_plan_of_very_many_chunks_or_of_none_is_not_drawn() -> None:
    for plan in (Plan(10_000, 1), Plan(0, 4)):
        assert not list(parsed(plan).iter("rect"))
    assert ["rows", "10,000"] in cells(Plan(10_000, 1))


def test_shards_say_how_they_are_cut_and_where_they_are(cluster: Client) -> None:
    here, there = (dagad.shard(X, grainsize=10, scheduler=scheduler) for scheduler in ("threads", cluster))
    assert cells(here)[:4] == [["rows", "40"], ["chunks", "4"], ["grainsize", "10"], ["on", "threads"]]
    assert cells(here)[4][1].startswith("about 1.")
    assert cells(there)[3][1] == there.scheduler.name
    assert len(list(parsed(there).iter("rect"))) == 4
