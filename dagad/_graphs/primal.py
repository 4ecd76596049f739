"""What a user asks the derivative of: the graph of `y`, checked, with copies looked through, ready to be linearized."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask.highlevelgraph import HighLevelGraph

from dagad._engines.registry import own_engine
from dagad._errors import NotDifferentiableError, StructureError
from dagad._graphs.activity import Graph, Key, active, substituted, topological
from dagad._graphs.copies import laid_open
from dagad._graphs.delinearize import forget, is_ours
from dagad._graphs.layers import Annotations, annotations_of, high_level
from dagad_scheduler.private import GraphNode, Task, TaskRef, convert_legacy_graph, ensure_dict
from dagad_scheduler.roles import Names


@dataclass(frozen=True, slots=True)
class Primal:
    """A graph to be differentiated.

    =============  ==================================================================================
    `nodes`        what `output` needs, in the order of the graph; what is active is a plain function
    `output`       the key of `y` in `nodes`
    `sources`      the keys of `wrt`, likewise
    `others`       nodes that are needed as they are, beside those of `y`
    `futures`      what is needed and stands on a cluster already
    `layers`       the graph as the user built it
    `annotations`  what Dask was told about keys of `nodes`
    =============  ==================================================================================
    """

    nodes: dict[Key, GraphNode]
    output: Key
    sources: list[Key]
    others: dict[Key, GraphNode]
    futures: dict[Key, Any]
    layers: HighLevelGraph
    annotations: dict[Key, Annotations]

    @classmethod
    def of(cls, y: Any, wrt: Sequence[Any], names: Names, unused: str = "raise", beside: Sequence[Any] = ()) -> Primal:
        """Read the graph of a Delayed; see `gradient` for `unused`. `beside` are Delayed that are needed as well."""
        layers = _layers(y)
        raw = ensure_dict(layers)
        nodes, futures = _read(raw)
        keys = {leaf.key for leaf in wrt}
        nodes = laid_open(nodes, [y.key], lambda key: key in keys or is_ours(key))
        order = topological(nodes, [y.key])
        needed = _checked(order, y.key, futures)
        missing = {leaf.key: leaf for leaf in wrt if leaf.key not in needed}
        if missing and unused == "raise":
            raise NotDifferentiableError(_not_in_graph(y, missing, raw))
        nodes, others = {key: nodes[key] for key in order}, dict[Key, GraphNode]()
        for part in (*missing.values(), *beside):
            graph = _layers(part)
            own, own_futures = _read(ensure_dict(graph))
            others |= {key: own[key] for key in topological(own, [part.key])}
            futures, layers = own_futures | futures, HighLevelGraph.merge(graph, layers)
        annotations = annotations_of(layers)
        nodes, renamed = _without_pairs_and_tapes(nodes, y.key, keys, names)
        annotations |= {new: annotations[old] for old, new in renamed.items() if old in annotations}
        sources = [renamed.get(leaf.key, leaf.key) for leaf in wrt]
        return cls(nodes, renamed.get(y.key, y.key), sources, others, futures, layers, annotations)


def _layers(part: Any) -> HighLevelGraph:
    return high_level(part.__dask_graph__(), f"dagad-primal-{part.key}")


def _without_pairs_and_tapes(
    nodes: dict[Key, GraphNode], y: Key, wrt: Collection[Key], names: Names
) -> tuple[dict[Key, GraphNode], dict[Key, Key]]:
    """Rewrite what can't be differentiated as it stands; return also what got new names by it."""
    nodes, valued = _explicit_as_values(nodes, names)
    y, carrying = valued.get(y, y), {valued.get(key, key) for key in wrt}
    nodes, forgotten = forget(nodes, names, active(topological(nodes, [y]), carrying))
    return nodes, forgotten | {old: forgotten.get(new, new) for old, new in valued.items()}


def _read(raw: Mapping[Key, Any]) -> tuple[dict[Key, GraphNode], dict[Key, Any]]:
    """Return the nodes of a graph, and the futures that it holds, by their keys."""
    nodes = convert_legacy_graph(raw)  # leaves out futures under their own keys
    futures = {future.key: future for node in raw.values() for future in _futures(node)}
    # A task that is recorded travels as data, in which a future would look for a client of its own.
    references: dict[Key, Any] = {key: TaskRef(key) for key in futures}
    reading = [key for key, node in nodes.items() if futures and isinstance(node, Task)]
    return nodes | {key: nodes[key].substitute(references) for key in reading}, futures


def _futures(part: Any) -> Iterator[Any]:
    if isinstance(part, TaskRef):
        if type(part) is not TaskRef:
            yield part
    elif isinstance(part, Task):
        for inner in (*part.args, *part.kwargs.values()):
            yield from _futures(inner)
    elif type(part) in (tuple, list):  # a task as Dask wrote them once
        for inner in part:
            yield from _futures(inner)


def _checked(order: Mapping[Key, Iterable[Key]], y: Key, futures: Mapping[Key, Any]) -> set[Key]:
    """Return all keys that are needed, after making sure that each is somewhere."""
    needed = {y, *order}
    for key, refs in order.items():
        for ref in refs:
            needed.add(ref)
            if ref not in order and ref not in futures:
                raise StructureError(
                    f"The graph of `y` is not whole: its task {key!r} needs {ref!r}, which is nowhere in it. Build the "
                    "Delayed with the graphs of all that it uses."
                )
    if y not in order and y not in futures:
        raise StructureError(f"The graph of `y` does not hold its key, {y!r}. Build the Delayed with its whole graph.")
    return needed


def _not_in_graph(y: Any, missing: Mapping[Key, Any], raw: Mapping[Key, Any]) -> str:
    keys, apart = list(missing), missing.values()
    if any(y.key in ensure_dict(one.__dask_graph__()) for one in apart):
        return (
            f"The graph of `wrt` needs `y`, {y.key!r}, and not the other way round: they are swapped. The result comes "
            "first, then what to differentiate it with respect to: `dagad.gradient(y, wrt)`."
        )
    some = ", ".join(map(repr, keys[:3])) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
    why = "It lies in the mapping, but nothing that `y` needs reads it" if keys[0] in raw else "It is not there"
    return (
        f"`wrt` holds what the graph of `y` does not need: {some}. {why}: it was made apart, or the graph was "
        f"persisted, optimized or cloned, and what {y.key!r} reads has another name now. Take the derivative before "
        "that, or in the object that `y` was built from. If it is meant to have no influence, leave it out, or give "
        '`gradient` `unused="zeros"`.'
    )


def _explicit_as_values(nodes: Graph, names: Names) -> tuple[dict[Key, GraphNode], dict[Key, Key]]:
    """Return the graph with the values of explicit functions in place of their pairs, and what got new names by it."""
    renamed: dict[Key, Key] = {}
    if not any(map(_gives_pairs, nodes.values())):
        return dict(nodes), renamed
    result = dict(nodes)
    for place, (key, refs) in enumerate(topological(nodes, nodes).items()):
        node, gives_a_pair = nodes[key], _gives_pairs(nodes[key])
        if not gives_a_pair and not any(ref in renamed for ref in refs):
            continue
        new = renamed[key] = names("input", ("explicit", place))
        if gives_a_pair:
            assert isinstance(node, Task)
            marked: Any = node.func
            node = Task(key, marked.value, *node.args, **node.kwargs)
        result[new] = substituted(node, renamed, new)
        del result[key]
    return result, renamed


def _gives_pairs(node: Any) -> bool:
    """Return whether a task runs a function that brings its own engine, rather than the `value` of one."""
    fun = getattr(node, "func", None)
    found, engine = own_engine(fun)
    return engine is not None and found is fun
