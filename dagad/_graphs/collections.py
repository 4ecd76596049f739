"""Any Dask collection as its keys, and a collection of the same kind over other keys, by Dask's own protocol."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from dagad._graphs.activity import Key
from dagad._graphs.drawing import drawn
from dagad._graphs.expressions import (
    as_named_before,
    as_read,
    graph_as_written,
    is_expression,
    named_like,
    over,
    over_blocks,
)
from dagad._graphs.labelled import arrays_of, constants_of, is_labelled, with_arrays
from dagad._graphs.layers import high_level, inherited, with_layer
from dagad._types import AnyCollection
from dagad_scheduler.private import GraphNode, Task, ensure_dict, flatten
from dagad_scheduler.roles import Names, Role, role_of


@dataclass(frozen=True, slots=True)
class KeyedCollection:
    """A dask array, or another collection whose keys begin with one name.

    ===========  ==========================================================
    `made`       the collection
    `keys`       its keys, in Dask's order
    `shapes`     of the block behind each key; None where that is not known
    `dtype`      of its entries; None where that is not known
    `chunks`     Dask's, of an array; None of others
    `nodes`      its graph, where that is not as `made` has it
    ===========  ==========================================================
    """

    made: Any
    keys: list[Key]
    shapes: list[tuple[int, ...] | None]
    dtype: Any
    chunks: Any
    nodes: dict[Key, GraphNode] | None = None

    @classmethod
    def of(cls, made: AnyCollection) -> KeyedCollection:
        keys, chunks = list(flatten(made.__dask_keys__())), attribute(made, "chunks")
        shapes: Iterable[Any] = [None] * len(keys) if chunks is None else itertools.product(*chunks)
        known = [None if shape is None or any(map(math.isnan, shape)) else shape for shape in shapes]
        return cls(made, keys, known, attribute(made, "dtype"), chunks)

    @property
    def name(self) -> Key:
        """What Dask knows it by."""
        return _name_of(self.keys[0])

    @property
    def graph(self) -> HighLevelGraph:
        if self.nodes is not None:
            graph: Any = self.nodes
        else:
            graph = graph_as_written(self.made) if is_expression(self.made) else self.made.__dask_graph__()
        return high_level(graph, f"dagad-primal-{self.name}")

    def over_blocks(self, arrays: Sequence[Any]) -> KeyedCollection:
        """Return the same, computed from the blocks of arrays of expressions as they are."""
        if not is_expression(self.made):
            return self
        made = KeyedCollection.of(over_blocks(self.made, arrays))
        nodes, keys = as_named_before(graph_as_written(made.made), made.keys, self.made)
        return replace(made, keys=keys, nodes=nodes)

    def as_read_in(self, graph: Mapping[Key, Any]) -> KeyedCollection:
        """Return the same by the keys under which a graph reads it."""
        return replace(self, keys=as_read(self.keys, self.made, graph)) if is_expression(self.made) else self


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection of Dask's, taken apart."""

    made: Any
    parts: list[KeyedCollection]

    @classmethod
    def of(cls, made: AnyCollection) -> Collection:
        return cls(made, [KeyedCollection.of(each) for each in arrays_of(made)])

    @property
    def constants(self) -> dict[Any, Any]:
        """What it labels that is no array of Dask's, by its name."""
        return constants_of(self.made)

    def over_blocks(self, wrt: Iterable[Collection]) -> Collection:
        """Return the same, computed from the blocks of other collections as they are."""
        arrays = [part.made for one in wrt for part in one.parts if is_expression(part.made)]
        if not arrays or not any(is_expression(part.made) for part in self.parts):
            return self
        return replace(self, parts=[part.over_blocks(arrays) for part in self.parts])

    def as_read_in(self, graph: Mapping[Key, Any]) -> Collection:
        """Return the same by the keys under which a graph reads it."""
        return replace(self, parts=[part.as_read_in(graph) for part in self.parts])

    @property
    def keys(self) -> list[Key]:
        return [key for part in self.parts for key in part.keys]

    def blocks(self) -> Iterator[tuple[Key, tuple[int, ...] | None, Any]]:
        """Yield its keys, each with the shape and the dtype of what is behind it; None where that is not known."""
        for part in self.parts:
            for key, shape in zip(part.keys, part.shapes, strict=True):
                yield key, shape, part.dtype

    @property
    def graph(self) -> HighLevelGraph:
        graphs = [part.graph for part in self.parts]
        return graphs[0] if len(graphs) == 1 else HighLevelGraph.merge(*graphs)


def attribute(made: AnyCollection, name: str) -> Any:
    """Return an attribute of a collection, None if its kind has none; a Delayed makes another Delayed of any name."""
    return getattr(made, name) if hasattr(type(made), name) else None


def _name_of(key: Key) -> Key:
    return key[0] if isinstance(key, tuple) else key


# What is handed out


@dataclass(frozen=True, slots=True)
class End:
    """What is to be made of a part: over what, its new names by the old ones, and the tasks behind its new keys."""

    form: Any
    names: dict[Key, Key]
    tasks: dict[Key, GraphNode]

    @classmethod
    def of(cls, part: KeyedCollection, name: Key, calls: Iterator[tuple[Any, ...]]) -> End:
        if is_expression(part.made):
            form, keys = named_like(part.made, name)
        else:
            form, keys = part.made, [(name, *key[1:]) if isinstance(key, tuple) else name for key in part.keys]
        return cls(form, {part.name: name}, {key: Task(key, *next(calls)) for key in keys})

    def rebuilt(self, base: HighLevelGraph) -> Any:
        """Return the part; what it is computed from is in `base`."""
        (name,) = self.names.values()
        if is_expression(self.form):
            return drawn(over(self.form, {**ensure_dict(base), **self.tasks}, name))
        rebuild, args = self.form.__dask_postpersist__()
        if isinstance(self.form, Delayed):
            return drawn(rebuild(base, *args, rename=self.names))
        made = rebuild(with_layer(base, name, self.tasks, inherited(self.tasks, {}, {})), *args, rename=self.names)
        if isinstance(getattr(made, "__dict__", None), dict):
            # Dask's own optimization of arrays drops annotations, and fuses tasks that other collections share.
            made.__dask_optimize__ = Delayed.__dask_optimize__
        return drawn(made)


@dataclass(frozen=True, slots=True)
class Derived:
    """A collection to be made: of which kind, of which parts, and whether what is constant in it stays or is zero."""

    like: Collection
    ends: list[End]
    is_value: bool

    @classmethod
    def of(cls, like: Collection, names: Names, role: Role, label: object, calls: Iterable[tuple[Any, ...]]) -> Derived:
        """Give each key a function and its arguments; `label` tells the collection from others."""
        ends, rest = [], iter(calls)
        for number, part in enumerate(like.parts):
            alone = not isinstance(part.keys[0], tuple)
            own = names if alone else Names(f"{names.token}.{label}.{number}", names.function)
            ends.append(End.of(part, own(role, label) if alone else own(role, label)[0], rest))
        return cls(like, ends, role is Role.VALUE)

    @classmethod
    def renamed(cls, like: Collection, key: Key) -> Derived:
        """Give a Delayed another key, which is in the graph already."""
        return cls(like, [End(like.made, {like.parts[0].name: key}, {})], True)

    @property
    def tasks(self) -> dict[Key, GraphNode]:
        return {key: task for end in self.ends for key, task in end.tasks.items()}

    def rebuilt(self, base: HighLevelGraph) -> Any:
        """Return the collection; what it is computed from is in `base`."""
        made = [end.rebuilt(base) for end in self.ends]
        if not is_labelled(self.like.made):
            return made[0]
        return with_arrays(self.like.made, made, constants=self.is_value)


class Unfused(Task):
    """A task that Dask fuses with no other: fused, it would run once for each collection that shares it."""

    __slots__ = ()
    block_fusion = True


def keep_unfused(graph: Mapping[Key, GraphNode]) -> None:
    """Make tasks of ours such as Dask fuses with no other, in place."""
    for key, node in graph.items():
        if type(node) is Task and role_of(key) is not None:
            node.__class__ = Unfused


def handed_out(
    ends: Iterable[Derived],
    name: str,
    graph: Mapping[Key, GraphNode],
    annotations: Callable[[Iterable[Key]], dict[Key, dict[str, Any]]],
) -> list[Any]:
    """Return collections that share one layer of the graph; `annotations` says what its keys are annotated with."""
    ends, whole = list(ends), dict(graph)
    kinds = [isinstance(end.like.made, Delayed) for end in ends]
    for end, is_delayed in zip(ends, kinds, strict=True):
        whole |= end.tasks if is_delayed else {}
    if not all(kinds):
        keep_unfused(whole)
    base = with_layer(None, name, whole, annotations(whole))
    return [end.rebuilt(base) for end in ends]
