"""Drawing: does a gradient graph show both halves side by side, in colours that a legend explains?"""

from __future__ import annotations

import gc
import json
import pickle
import shutil
import weakref
from pathlib import Path
from typing import Any

import autograd.numpy as np
import cloudpickle
import dask.array as da
import numpy as onp
import pytest
from dask.base import compute as dask_compute
from dask.delayed import Delayed, delayed

import dagad
from dagad._graphs.drawing import drawing
from dagad_scheduler.private import convert_legacy_graph

pytestmark = [
    pytest.mark.needs("graphviz"),
    pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed here"),
]
compute: Any = dask_compute  # Dask has few types
ones: Any = da.ones
X = onp.arange(1.0, 5.0)


def scaled(x: Any, theta: Any) -> Any:
    return np.sin(x) * theta


def total(*parts: Any) -> Any:
    return sum(np.sum(part) for part in parts)


def forked() -> tuple[Any, Any, Any]:
    x, theta = delayed(X), delayed(0.3)
    state = delayed(np.exp)(x)
    return delayed(total)(*(delayed(scaled, pure=False)(state, theta) for _ in range(3))), x, theta


def laid_out(*collections: Any) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return what graphviz makes of a picture: the boxes by their titles, and the nodes in them."""
    graph: dict[Any, Any] = {}
    for one in collections:
        graph |= convert_legacy_graph(dict(one.__dask_graph__()))
    made = json.loads(drawing(graph).pipe("json"))
    objects = made["objects"]
    boxes = {one["label"]: one for one in objects if one["name"].startswith("cluster")}
    return boxes, {title: [objects[place] for place in one["nodes"]] for title, one in boxes.items()}


def test_a_drawing_of_a_gradient_graph_has_both_halves_side_by_side() -> None:
    y, x, theta = forked()
    value, gradients = dagad.value_and_gradient(y, [x, theta])
    boxes, nodes = laid_out(value, *gradients)
    assert boxes.keys() == {"forward", "reverse", "legend"}
    (_, _, right, top), (left, low, *_) = (
        [float(at) for at in boxes[half]["bb"].split(",")] for half in boxes if half != "legend"
    )
    assert right <= left
    assert low < top  # beside one another, not one above the other
    up = {node["label"]: float(node["pos"].split(",")[1]) for node in nodes["forward"] if node["label"]}
    down = {node["label"]: float(node["pos"].split(",")[1]) for node in nodes["reverse"] if node["label"]}
    assert up["exp"] < up["scaled"] < up["total"]  # the one goes up, the other down, on the same heights
    assert down["exp"] < down["scaled"] < down["total"] < down["seed"]


def test_a_drawing_of_a_gradient_graph_has_a_legend_of_its_colours() -> None:
    y, x, theta = forked()
    _, nodes = laid_out(dagad.gradient(y, [x, theta])[0])
    told = {node["fillcolor"]: node["label"] for node in nodes["legend"]}
    assert {node["fillcolor"] for half in ("forward", "reverse") for node in nodes[half]} == told.keys()
    means = {
        half: {(node["label"], told[node["fillcolor"]]) for node in nodes[half]} for half in ("forward", "reverse")
    }
    assert ("total", "value, with its tape") in means["forward"]
    assert {("total", "pullback"), ("seed", "seed"), ("gradient", "gradient")} <= means["reverse"]
    assert ("sum", "sum of cotangents") in means["reverse"]
    assert not any(what in ("pullback", "gradient") for _, what in means["forward"])


def test_a_drawing_names_all_tasks_that_run_as_one() -> None:
    state = x = delayed(X)
    for _ in range(4):
        state = delayed(np.sin)(state)
    _, nodes = laid_out(dagad.gradient(delayed(total)(delayed(np.exp)(state)), x))
    (label,) = (node["label"] for node in nodes["reverse"] if "total" in node["label"])
    assert label == "sin \u00d7 4\nexp\ntotal"


@pytest.mark.parametrize("kind", ["svg", "png", "pdf", "dot"])
def test_gradients_draw_themselves(kind: str, tmp_path: Path) -> None:
    y, x, _ = forked()
    dagad.gradient(y, x).visualize(filename=str(tmp_path / f"a.{kind}"))
    dagad.jvp(y, x, X)[1].visualize(str(tmp_path / "b"), format=kind)
    begin = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF", "dot": b"digraph"}[kind]
    for name in "ab":
        assert (tmp_path / f"{name}.{kind}").read_bytes().startswith(begin)


def test_gradients_of_dask_arrays_are_drawn_too(tmp_path: Path) -> None:
    x = ones((4, 4), chunks=2)
    y = ((x + x.T) ** 2).sum()
    slope = dagad.gradient(y, x)
    slope.visualize(filename=str(tmp_path / "array.svg"))
    drawn = (tmp_path / "array.svg").read_text()
    assert {"forward", "reverse", "legend", "pullback"} <= {text.split("<")[0] for text in drawn.split(">")}
    assert isinstance(slope, da.Array)
    assert isinstance(cloudpickle.loads(cloudpickle.dumps(slope)), da.Array)


def test_gradients_are_freed_without_the_garbage_collector() -> None:
    """A graph may hold data, and futures that keep data on a cluster."""
    x = ones(4, chunks=2)
    gc.disable()
    try:
        slope = dagad.gradient((x**2).sum(), x)
        graph = weakref.ref(slope.dask)
        del slope
        assert graph() is None
    finally:
        gc.enable()


def test_a_drawing_of_several_gradients_has_each_task_once(tmp_path: Path) -> None:
    y, x, theta = forked()
    value, gradients = dagad.value_and_gradient(y, {"x": x, "theta": theta})
    dagad.visualize(value, gradients, filename=str(tmp_path / "all.dot"))
    text = (tmp_path / "all.dot").read_text()
    assert text.count("label=gradient") == 3  # two, and the legend
    assert text.count("label=total") == 2  # forward and reverse


def test_a_drawing_with_options_of_dask_is_left_to_dask(tmp_path: Path) -> None:
    y, x, _ = forked()
    dagad.gradient(y, x).visualize(filename=str(tmp_path / "order.dot"), color="order")
    text = (tmp_path / "order.dot").read_text()
    assert "legend" not in text
    assert "color=" in text


def test_gradients_that_draw_themselves_are_dasks_own_for_everything_else(scheduler: Any) -> None:
    y, x, _ = forked()
    slope = dagad.gradient(y, x)
    where: Any = {"scheduler": scheduler if isinstance(scheduler, str) else scheduler.get}
    right = slope.compute(**where)
    assert isinstance(slope, Delayed)
    for other in (pickle.loads(cloudpickle.dumps(slope)), slope.persist(**where), delayed(slope)):
        assert onp.array_equal(other.compute(**where), right)
    assert float(delayed(np.sum)(slope).compute(**where)) == float(onp.sum(right))
    assert repr(slope).startswith("Delayed(")
