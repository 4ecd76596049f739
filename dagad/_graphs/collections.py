"""Any Dask collection as its keys, and a collection of the same kind over other keys, by Dask's own protocol.

What is differentiated in a collection of xarray's are its variables; coordinates come along as they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dask.base import is_dask_collection
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from dagad._graphs.activity import Key
from dagad._graphs.drawing import drawn
from dagad._graphs.layers import high_level, inherited, with_layer
from dagad_scheduler.private import GraphNode, Task, flatten
from dagad_scheduler.roles import Names, Role, role_of


@dataclass(frozen=True, slots=True)
class Part:
    """A dask array, or another collection whose keys begin with one name.

    ===========  ==========================================================
    `keys`       its keys, in Dask's order
    `shapes`     of the block behind each key; None where that is not known
    `dtype`      of its entries; None where that is not known
    `chunks`     Dask's, of an array; None of others
    ===========  ==========================================================
    """

    keys: list[Key]
    shapes: list[tuple[int, ...] | None]
    dtype: Any
    chunks: Any

    @classmethod
    def of(cls, made: Any) -> Part:
        keys, chunks = list(flatten(made.__dask_keys__())), attribute(made, "chunks")
        shapes: Iterable[Any] = [None] * len(keys) if chunks is None else itertools.product(*chunks)
        known = [None if shape is None or any(map(math.isnan, shape)) else shape for shape in shapes]
        return cls(keys, known, attribute(made, "dtype"), chunks)

    @property
    def name(self) -> Key:
        """What Dask knows it by."""
        return _name_of(self.keys[0])


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection of Dask's, taken apart."""

    made: Any
    parts: list[Part]

    @classmethod
    def of(cls, made: Any) -> Collection:
        return cls(made, [Part.of(each) for each in _arrays_of(made)])

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
        return high_level(self.made.__dask_graph__(), f"dagad-primal-{self.parts[0].name}")


def attribute(made: Any, name: str) -> Any:
    """Return an attribute of a collection, None if its kind has none; a Delayed makes another Delayed of any name."""
    return getattr(made, name) if hasattr(type(made), name) else None


def _name_of(key: Key) -> Key:
    return key[0] if isinstance(key, tuple) else key


def _arrays_of(made: Any) -> Iterable[Any]:
    if type(made).__module__.partition(".")[0] != "xarray":
        return [made]
    held = made.data_vars.values() if hasattr(type(made), "data_vars") else [made]
    return [each.variable for each in held if is_dask_collection(each.variable)]


# What is handed out


@dataclass(frozen=True, slots=True)
class Derived:
    """A collection to be made: of which kind, its new names by the old ones, and the tasks behind its new keys."""

    like: Collection
    names: dict[Key, Key]
    tasks: dict[Key, GraphNode]

    @classmethod
    def of(cls, like: Collection, names: Names, role: Role, place: Any, calls: Iterable[tuple[Any, ...]]) -> Derived:
        """Give each key a function and its arguments; `place` tells the collection from others."""
        found: dict[Key, Key] = {}
        for number, part in enumerate(like.parts):
            alone = not isinstance(part.keys[0], tuple)
            own = names if alone else Names(f"{names.token}.{place}.{number}", names.function)
            found[part.name] = own(role, place) if alone else own(role, place)[0]
        keys = [(found[key[0]], *key[1:]) if isinstance(key, tuple) else found[key] for key in like.keys]
        return cls(like, found, {key: Task(key, *call) for key, call in zip(keys, calls, strict=True)})

    def rebuilt(self, base: HighLevelGraph) -> Any:
        """Return the collection; what it is computed from is in `base`."""
        rebuild, args = self.like.made.__dask_postpersist__()
        if isinstance(self.like.made, Delayed):
            return drawn(rebuild(base, *args, rename=self.names))
        apart: dict[Key, dict[Key, GraphNode]] = {name: {} for name in self.names.values()}
        for key, task in self.tasks.items():
            apart[key if key in apart else key[0]][key] = task
        graphs = [with_layer(base, name, tasks, inherited(tasks, {}, {})) for name, tasks in apart.items()]
        if len(self.like.made.__dask_layers__()) > len(self.like.parts):  # coordinates
            graphs.append(self.like.graph)
        made = rebuild(HighLevelGraph.merge(*graphs), *args, rename=self.names)
        if isinstance(getattr(made, "__dict__", None), dict):
            # Dask's own optimization of arrays drops annotations, and fuses tasks that other collections share.
            made.__dask_optimize__ = Delayed.__dask_optimize__
        return drawn(made)


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
