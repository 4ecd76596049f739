"""What a user asks the derivative of: the graph of `y`, optimized, copies looked through, ready to be linearized."""

from __future__ import annotations

from collections.abc import Callable, Collection as Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from dagad._engines.registry import own_engine
from dagad._errors import NotDifferentiableError, StructureError
from dagad._graphs.activity import Graph, Key, Order, active, is_ours, substituted, topological
from dagad._graphs.blockwise import names_in, refuse_nameless, with_blocks_fused
from dagad._graphs.coarsen import coarsened
from dagad._graphs.collections import Collection
from dagad._graphs.copies import unfuse
from dagad._graphs.delinearize import delinearize
from dagad._graphs.layers import MARK, Annotations, annotations_of, inherited, without_mark
from dagad._graphs.loaders import with_loaders_inside
from dagad._graphs.unfused import hidden, unfused
from dagad._types import AnyEngine, AnyNode
from dagad_scheduler.private import (
    Alias,
    DataNode,
    GraphNode,
    Task,
    TaskRef,
    convert_legacy_graph,
    ensure_dict,
)
from dagad_scheduler.roles import Names


@dataclass(frozen=True, slots=True)
class Primal:
    """A graph to be differentiated.

    =============  ==================================================================================
    `nodes`        what `outputs` need; what is active is a plain function
    `order`        what each of them reads, in the order of the graph
    `live`         those that carry derivatives, and what they read of those that do or are in `sources`
    `outputs`      the keys of `y` in `nodes`
    `sources`      the keys of each collection of `wrt`, likewise
    `others`       what is needed as it is, beside `y`; what both need is in both
    `futures`      what is needed and stands on a cluster already
    `annotations`  what Dask was told about keys of `nodes`
    =============  ==================================================================================
    """

    nodes: dict[Key, GraphNode]
    order: Order
    live: Order
    outputs: list[Key]
    sources: list[list[Key]]
    others: dict[Key, GraphNode]
    futures: dict[Key, Any]
    annotations: dict[Key, Annotations]

    @classmethod
    def of(
        cls,
        y: Collection,
        wrt: Sequence[Collection],
        names: Names,
        unused: str = "raise",
        beside: Sequence[Collection] = (),
    ) -> Primal:
        """Read the graph of a collection; see `gradient` for `unused`. `beside` are collections needed as well."""
        y = y.over_blocks(wrt)
        whole = y.graph
        wrt = [one.as_read_in(whole) for one in wrt]
        keys = {key for one in wrt for key in one.keys}
        layers = optimized(whole, y.keys, keys)
        nodes, futures = _read(ensure_dict(layers))
        nodes = unfuse(nodes, y.keys, keys)
        order = topological(nodes, y.keys)
        beyond = _checked(order, y.keys, futures)
        refuse_nameless((part for key in order for part in names_in(nodes[key])), keys)
        held = {key: found for key in order if (found := hidden(nodes[key], keys))}
        seen = set(order).union(beyond, *held.values())
        missing = [one for one in wrt if seen.isdisjoint(one.keys)]
        if missing and unused == "raise":
            raise NotDifferentiableError(_not_in_graph(y, missing))
        nodes, others, annotations = {key: nodes[key] for key in order}, dict[Key, GraphNode](), annotations_of(layers)
        lacking = [
            (one, [key for key, shape, _ in one.blocks() if shape is None and key not in order and key not in beyond])
            for one in wrt
        ]
        for one, lacked in (*lacking, *((one, one.keys) for one in beside)):
            if lacked:
                own, own_futures = _read(ensure_dict(one.graph))
                # What carries derivatives has another key in the end, and what is fused has none: both are here too.
                others |= {key: own[key] for key in topological(own, lacked)}
                futures, annotations = own_futures | futures, annotations_of(one.graph) | annotations
        nodes, order, renamed = _without_pairs_and_tapes(nodes, order, y.keys, keys, held, names)
        annotations |= {new: annotations[old] for old, new in renamed.items() if old in annotations}
        sources = [[renamed.get(key, key) for key in one.keys] for one in wrt]
        live = active(order, {key for each in sources for key in each})
        return cls(nodes, order, live, [renamed.get(key, key) for key in y.keys], sources, others, futures, annotations)

    def loading_inside(self, only_stored: bool) -> Primal:
        """Return the same with what only loads data inside the tasks that read them; see `loaders`."""
        made = with_loaders_inside(self.nodes, self.order, self.live, self._ends(), self.annotations, only_stored)
        if not made:
            return self
        nodes = self.nodes | made
        order = topological(nodes, self.outputs)
        return replace(self, nodes=nodes, order=order, live=active(order, self.moving))

    def coarsened(self, names: Names, width: int, engine: AnyEngine = None) -> Primal:
        """Return the same with fewer tasks; see `coarsen`."""
        found = coarsened(self.nodes, self.order, self.live, self._ends(), self.annotations, names, engine, width)
        return replace(self, nodes=found[0], order=found[1], live=active(found[1], self.moving), annotations=found[2])

    def _ends(self) -> set[Key]:
        return {*self.moving, *self.outputs}

    @property
    def is_marked(self) -> bool:
        """Whether steps are marked, for schedules."""
        return any(MARK in self.annotations.get(key, ()) for key in self.nodes)

    @property
    def moving(self) -> set[Key]:
        """All keys of `wrt`."""
        return {key for keys in self.sources for key in keys}

    def annotated(self, numbers: Mapping[Any, Key]) -> Callable[[Iterable[Key]], dict[Key, Annotations]]:
        """Return what says of the keys of a derived graph what they are annotated with.

        `numbers` says by the numbers in new keys which tasks they belong to.
        """

        def annotations(keys: Iterable[Key]) -> dict[Key, Annotations]:
            known = self.nodes.keys() | self.others.keys()
            found = inherited([key for key in keys if key not in known], numbers, self.annotations)
            return found | {key: without_mark(own) for key, own in self.annotations.items() if key in known}

        return annotations

    def with_futures(self, graph: dict[Key, Any]) -> dict[Key, Any]:
        """Return a graph with what it needs and stands on a cluster already."""
        if not self.futures:
            return graph
        needed = {ref for node in graph.values() for ref in node.dependencies}
        return graph | {key: self.futures[key] for key in needed if key in self.futures}


def optimized(graph: HighLevelGraph, outputs: Sequence[Key], kept: Container[Key]) -> HighLevelGraph:
    """Return what some keys need, with runs of blockwise operations made one; tasks under `kept` keys stay apart."""
    if all(type(layer) is MaterializedLayer for layer in graph.layers.values()):
        return graph  # nothing blockwise
    return with_blocks_fused(graph, outputs, kept)


def _without_pairs_and_tapes(
    nodes: dict[Key, GraphNode],
    order: Order,
    outputs: Sequence[Key],
    wrt: Container[Key],
    held: Container[Key],
    names: Names,
) -> tuple[dict[Key, GraphNode], Order, dict[Key, Key]]:
    """Rewrite what can't be differentiated as it stands; return also what got new names by it.

    `held` are tasks that hold nodes of `wrt`, as `hidden` says.
    """
    if not any(is_ours(key) or _gives_pairs(node) for key, node in nodes.items()):
        return nodes, order, {}
    nodes, valued = _explicit_as_values(nodes, names)
    outputs, carrying = [valued.get(key, key) for key in outputs], {valued.get(key, key) for key in wrt}
    holding = dict.fromkeys([valued.get(key, key) for key in held])
    rewritten = {**holding, **active(topological(nodes, outputs), carrying.union(holding))}
    nodes, forgotten = delinearize(nodes, names, rewritten)
    if held:
        here = {key: forgotten[key] for key in wrt if key in forgotten}
        nodes = unfused(nodes | {key: Alias(key, new) for key, new in here.items()}, wrt, names)
    renamed = forgotten | {old: forgotten.get(new, new) for old, new in valued.items()}
    order = topological(nodes, [renamed.get(key, key) for key in outputs])
    return {key: nodes[key] for key in order}, order, renamed


def _read(raw: Mapping[Key, Any]) -> tuple[dict[Key, GraphNode], dict[Key, Any]]:
    """Return the nodes of a graph, and the futures that it holds, by their keys."""
    nodes = convert_legacy_graph(raw)  # leaves out futures under their own keys
    futures: dict[Key, Any] = {}
    for node in raw.values():
        if type(node) is not DataNode:
            _collect_futures(node, futures)
    # A task that is recorded travels as data, in which a future would look for a client of its own.
    references: dict[Key, Any] = {key: TaskRef(key) for key in futures}
    reading = [key for key, node in nodes.items() if futures and isinstance(node, Task)]
    return nodes | {key: nodes[key].substitute(references) for key in reading}, futures


def _collect_futures(part: Any, found: dict[Key, Any]) -> None:
    if isinstance(part, TaskRef):
        if type(part) is not TaskRef:
            found[part.key] = part
    elif isinstance(part, Task):
        for inner in part.args:
            if type(inner) is not TaskRef:
                _collect_futures(inner, found)
        for inner in part.kwargs.values():
            _collect_futures(inner, found)
    elif type(part) in (tuple, list):  # a task as Dask wrote them once
        for inner in part:
            _collect_futures(inner, found)


def _checked(order: Order, outputs: Sequence[Key], futures: Mapping[Key, Any]) -> set[Key]:
    """Return which keys are needed beside those of `order`, after making sure that each is somewhere."""
    outside = {ref for refs in order.values() for ref in refs if ref not in order}
    lost = outside.difference(futures)
    for key, ref in ((key, ref) for key, refs in order.items() for ref in refs if ref in lost) if lost else ():
        raise StructureError(
            f"The graph of `y` is not whole: its task {key!r} needs {ref!r}, which is nowhere in it. Build the "
            "collection with the graphs of all that it uses."
        )
    for key in outputs:
        if key not in order and key not in futures:
            raise StructureError(
                f"The graph of `y` does not hold its key, {key!r}. Build the collection with its whole graph."
            )
    return outside.union(outputs)


def _not_in_graph(y: Collection, missing: Sequence[Collection]) -> str:
    names = [one.parts[0].name for one in missing]
    if any(set(y.keys).intersection(one.graph) for one in missing):
        return (
            f"The graph of `wrt` needs `y`, {y.parts[0].name!r}, and not the other way round: they are swapped. The "
            "result comes first, then what to differentiate it with respect to: `dagad.gradient(y, wrt)`."
        )
    some = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    lies = not set(missing[0].keys).isdisjoint(y.graph)
    why = "It lies in the mapping, but nothing that `y` needs reads it" if lies else "It is not there"
    return (
        f"`wrt` holds what the graph of `y` does not need: {some}. {why}: it was made apart, or the graph was "
        f"persisted, optimized or cloned, and what {y.parts[0].name!r} reads has another name now. Take the derivative "
        "before that, or in the object that `y` was built from. If it is meant to have no influence, leave it out, or "
        'give `gradient` `unused="zeros"`.'
    )


def _explicit_as_values(nodes: Graph, names: Names) -> tuple[dict[Key, GraphNode], dict[Key, Key]]:
    """Return the graph with the values of explicit functions in place of their pairs, and what got new names by it."""
    renamed: dict[Key, Key] = {}
    result = dict(nodes)
    for index, (key, refs) in enumerate(topological(nodes, nodes).items()):
        node, gives_a_pair = nodes[key], _gives_pairs(nodes[key])
        if not gives_a_pair and not any(ref in renamed for ref in refs):
            continue
        new = renamed[key] = names("input", ("explicit", index))
        if gives_a_pair:
            assert isinstance(node, Task)
            marked: Any = node.func
            node = Task(key, marked.value, *node.args, **node.kwargs)
        result[new] = substituted(node, renamed, new)
        del result[key]
    return result, renamed


def _gives_pairs(node: AnyNode) -> bool:
    """Return whether a task runs a function that brings its own engine, rather than the `value` of one."""
    fun = getattr(node, "func", None)
    found, engine = own_engine(fun)
    return engine is not None and found is fun
