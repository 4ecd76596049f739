"""Graphs and Dask's annotations: what a task was annotated with stays with its linearization and its pullback.

New tasks make one layer. Dask reads an annotation that is a function by key, so a layer needs no cutting up by what its
tasks are annotated with; cut up, the layers of a graph and its transpose would need each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from dask.base import get_annotations
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from dagad._graphs.activity import Key
from dagad_scheduler.roles import Role, role_of

Annotations = dict[str, Any]
MARK = "dagad_step"  # by which users say which step of a schedule a task belongs to
_WITH_TASK = (Role.VALUE, Role.GETITEM, Role.PULLBACK)
_NOTHING = "_AnnotationsTombstone"  # what Dask writes where a key of an annotated layer has no annotation


def high_level(graph: HighLevelGraph | Mapping[Key, Any], name: str) -> HighLevelGraph:
    """Return a graph as one of layers; a plain dict becomes one layer, without annotations."""
    return graph if isinstance(graph, HighLevelGraph) else HighLevelGraph({name: _layer(graph, {})}, {name: set()})


def annotations_of(graph: HighLevelGraph) -> dict[Key, Annotations]:
    """Return what each key is annotated with; keys without annotations are left out."""
    found: dict[Key, Annotations] = {}
    for layer in graph.layers.values():
        for kind, value in (layer.annotations or {}).items():
            for key in layer:
                own = value(key) if callable(value) else value
                if own is not None and type(own).__name__ != _NOTHING:
                    found.setdefault(key, {})[kind] = own
    return found


def without_mark(own: Annotations) -> Annotations:
    """Return what a task is annotated with in a derivative, where time goes both ways: it belongs to no step."""
    return {kind: value for kind, value in own.items() if kind != MARK}


def inherited(
    keys: Iterable[Key], origins: Mapping[Any, Key], annotations: Mapping[Key, Annotations]
) -> dict[Key, Annotations]:
    """Return the annotations of new keys: those of the task that `origins` says by number, else of who builds them."""
    around = get_annotations()
    found: dict[Key, Annotations] = {}
    for key in keys if around or annotations else ():
        own = {kind: value(key) if callable(value) else value for kind, value in around.items()}
        if annotations and (role := role_of(key)) in _WITH_TASK:
            # A part of a task's result has the number of the task inside its own.
            number = key[1][1] if isinstance(key[1], tuple) else key[1]
            own = without_mark(own | annotations.get(origins.get(number), {}))
            if role is Role.GETITEM:
                own.pop("resources", None)  # it takes a result apart, and would wait in line for nothing
        if own:
            found[key] = own
    return found


def with_layer(
    base: HighLevelGraph | None, name: str, nodes: Mapping[Key, Any], annotations: Mapping[Key, Annotations]
) -> HighLevelGraph:
    """Return a graph with one more layer, which needs those of the graph."""
    below = HighLevelGraph({}, {}) if base is None else base
    own = {key: annotations[key] for key in nodes if key in annotations} if annotations else {}
    layers = {**below.layers, name: _layer(nodes, own)}
    return HighLevelGraph(layers, {**below.dependencies, name: set(below.layers)})


def _layer(nodes: Mapping[Key, Any], annotations: Mapping[Key, Annotations]) -> MaterializedLayer:
    by_kind: dict[str, dict[Key, Any]] = defaultdict(dict)
    for key, own in annotations.items():
        for kind, value in own.items():
            by_kind[kind][key] = value
    layer = MaterializedLayer(nodes)
    # Given none, a layer takes those of who builds it, for all its keys.
    layer.annotations = {kind: values.get for kind, values in by_kind.items()} or None
    return layer
