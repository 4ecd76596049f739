"""Data -> Shards: cut once and placed where the chunks will run, as tasks with a lineage; then reduced many times."""

from __future__ import annotations

import itertools
import math
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dask.base import is_dask_collection
from dask.delayed import Delayed

from dagad._config import setting
from dagad._engines.autograd.shard_boxes import tell_autograd
from dagad._errors import PlanError, PortabilityError, StructureError
from dagad._executors.evaluation import Scheduler, find_scheduler, new_names, run_graph
from dagad._executors.hot_road import HotRoad
from dagad._pytrees import pytree
from dagad._pytrees.canonical import snapshot, snapshots
from dagad._pytrees.pytree import SAMPLE
from dagad._sources.columns import ListColumn, Sliced, read_sliced
from dagad._sources.plan import AnyPlan, Chunk, GivenPlan, Plan, check_grainsize
from dagad._sources.rows import ELSEWHERE, Rows
from dagad._sources.shard_tasks import (
    anchor_task,
    contents,
    cut_out,
    from_blocks,
    joined_data,
    length,
    placed,
    scaled_rows,
)
from dagad_scheduler.private import DataNode, GraphNode, Task, TaskRef, convert_legacy_graph, ensure_dict

Key = Any
Graph = dict[Key, GraphNode]

# The function that will run is not known yet: pieces that fit a cache, and some for every worker. Items of lists are
# few and dear more often than rows of arrays.
USUAL_BYTES = 4 * 2**20
FEWEST, FEWEST_OF_ITEMS, MOST = 8, 64, 1024
MOST_ROADS = 16  # combinations with other Shards whose calls are remembered


class Shards:
    """Rows that were cut and placed once; returned by `shard`, taken by reductions as their sliced argument.

    Where rows are on a cluster each chunk is a task: moved, copied or lost with its worker it is there again when it is
    needed. In one process the chunks are views of a copy, so that what is written into the data later does not show;
    arrays that nobody can write into are not copied. A gradient in Shards is Shards of the same cut: it stays there.

    Attributes
    ----------
    plan
        How the rows were cut.
    n_rows
        Number of rows.
    grainsize
        Largest number of rows in a chunk.
    is_here
        Whether the rows are in this process.
    """

    is_placed = True

    def __init__(self, plan: AnyPlan, scheduler: Scheduler, keys: Sequence[Key], kept: Mapping[Key, Any]) -> None:
        tell_autograd(Shards)
        self.plan, self.scheduler = plan, scheduler
        self.keys, self.kept = list(keys), dict(kept)
        self.is_here = all(hasattr(rows, "with_gaps") or hasattr(rows, "payload") for rows in self.kept.values())
        self._roads: dict[tuple[Key, ...], HotRoad] = {}
        self._lock = threading.Lock()

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.plan.n_rows

    @property
    def grainsize(self) -> int:
        """Largest number of rows in a chunk."""
        return self.plan.grainsize

    def rows(self, number: int) -> Any:
        """Return the rows of a chunk, or a reference where they are elsewhere."""
        key = self.keys[number]
        return self.kept[key] if self.is_here else TaskRef(key)

    def road(self, shards: Sequence[Any]) -> HotRoad | None:
        """Return how to call the workers that hold these Shards and others of the same plan; None if nobody can."""
        lines = self.scheduler.lines()
        if lines is None:
            return None
        which = tuple(one.keys[0] for one in shards if one.keys)
        with self._lock:
            road = self._roads.pop(which, None)
            if road is None:
                road = HotRoad(lines, self.plan, list(zip(*(one.keys for one in shards), strict=True)))
            self._roads[which] = road  # the one used last stands last
            while len(self._roads) > MOST_ROADS:
                del self._roads[next(iter(self._roads))]
        return road

    def mapped(self, task: Any, *others: Any) -> Shards:
        """Return Shards of the same cut: what a task makes of the rows of each chunk, and of those of other Shards."""
        names = new_names()
        keys = [names("shard", number) for number in range(len(self.keys))]
        graph: Graph = {}
        for number, key in enumerate(keys):
            args = [one.rows(number) if isinstance(one, Shards) else one for one in (self, *others)]
            graph[key] = Task(key, task, *args)
        held = {key: rows for one in (self, *others) if isinstance(one, Shards) for key, rows in one.kept.items()}
        kept = run_graph(self.scheduler, graph, (), _ignore, keep=keys, kept=held).kept
        # Not what they were made from: that is as large, and may go when nobody else needs it.
        return Shards(self.plan, self.scheduler, keys, {key: kept[key] for key in keys})

    def zeros(self) -> Shards:
        """Return zeros of the same cut, shapes and dtypes."""
        return self.mapped(scaled_rows, 0.0)

    def scaled(self, factor: float) -> Shards:
        """Return the rows times a number."""
        return self if factor == 1.0 else self.mapped(scaled_rows, factor)

    def gather(self) -> Any:
        """Return the data in one piece.

        Returns
        -------
        pytree
            Of the structure that was given to `shard`; the chunks of arrays are joined along their first axis.
        """
        if self.is_here:
            parts = [contents(self.kept[key]) for key in self.keys]
        else:
            names, results = new_names(), dict[Key, Any]()
            copies = [names("part", number) for number in range(len(self.keys))]
            graph: Graph = {
                copy: Task(copy, contents, TaskRef(key)) for copy, key in zip(copies, self.keys, strict=True)
            }
            run_graph(self.scheduler, graph, copies, results.__setitem__, kept=self.kept)
            parts = [results[copy] for copy in copies]
        return joined_data(parts)

    def __repr__(self) -> str:
        gone = any(getattr(rows, "status", None) == "cancelled" for rows in self.kept.values())
        where = f"{self.scheduler.name}{', gone since it was restarted' if gone else ''}"
        return f"<Shards: {self.n_rows} rows in {len(self.plan)} chunks on {where}>"

    def __reduce__(self) -> Any:
        raise PortabilityError(
            "Shards don't travel: they stand for data that are placed already. Pass them to a reduction as its sliced "
            "argument, outside of chunk functions."
        )


def shard(data: Any, grainsize: int | str = "auto", scheduler: Any = None) -> Shards:
    """Cut data and place them once, for reductions that are evaluated many times.

    Parameters
    ----------
    data
        Pytree of arrays, shape (rows, ...), lists and dask arrays that agree on their first length; or a list of
        ``Delayed`` loaders, each of which gives the rows of one piece. They are taken as they are now: what is written
        into the arrays later does not show.
    grainsize
        Rows per chunk. "auto" takes the pieces as they come where data arrive in pieces (dask arrays, loaders), else
        chunks of a few MiB; it depends on the shapes alone.
    scheduler
        Where the data go, in Dask's words; by default what Dask would choose. Reductions over the Shards run there.

    Returns
    -------
    Shards
        Goes wherever a reduction takes a sliced argument. The bits are those of the same data with the same grainsize.

    Raises
    ------
    PlanError
        If `grainsize` is neither a positive int nor "auto".
    StructureError
        If the leaves differ in length or have no rows.

    Examples
    --------
    >>> import autograd.numpy as np
    >>> import dagad
    >>> data = dagad.shard({"x": np.arange(6.0), "y": np.ones(6)}, grainsize=2, scheduler="threads")
    >>> data
    <Shards: 6 rows in 3 chunks on threads>
    >>> def loss(rows, theta):
    ...     return np.sum((rows["x"] * theta - rows["y"]) ** 2)
    >>> float(dagad.grad(lambda theta: dagad.reduce_sum(loss, data, theta))(1.0))
    80.0
    """
    place = find_scheduler(scheduler)
    leaves, treedef = pytree.flatten(data, is_leaf=lambda tree: isinstance(tree, list))
    if any(isinstance(item, Shards) for leaf in leaves for item in (leaf if isinstance(leaf, list) else [leaf])):
        raise PlanError(
            "There are Shards among the data already. Pass what `.gather()` returns to cut the data in another way."
        )
    if isinstance(data, list) and data and all(map(_is_delayed, data)):
        return _from_loaders(data, grainsize, place)
    if any(map(_is_delayed, leaves)):
        raise StructureError(
            "A Delayed among the data can't be cut. Give a list of loaders, each of which gives the rows of one piece."
        )
    lazy = {number: leaf for number, leaf in enumerate(leaves) if _is_dask_array(leaf)}
    if lazy:
        return _from_dask(leaves, treedef, lazy, grainsize, place)
    # Copies, on a cluster too: what is sent leaves when Dask gets round to it, and the data are to be those of now.
    columns = read_sliced(snapshots(data), itertools.count())[0]
    plan = _plan(grainsize, columns.n_rows, columns)
    names = new_names()
    keys = [names("shard", chunk.number) for chunk in plan]
    rows = {key: columns.rows(chunk) for key, chunk in zip(keys, plan, strict=True)}
    if not place.remote:
        return Shards(plan, place, keys, rows)
    anchor = names("input", "anchor")
    graph: Graph = {key: Task(key, placed, part, TaskRef(anchor)) for key, part in rows.items()}
    # Bound to a home that is gone, and waiting for nothing, a task would wait for ever. The anchor is bound to none.
    graph[anchor] = Task(anchor, anchor_task)
    return Shards(plan, place, keys, run_graph(place, graph, (), _ignore, keep=keys).kept)


def _ignore(key: Key, result: Any) -> None:
    del key, result


def _plan(grainsize: Any, n_rows: int, columns: Sliced) -> Plan:
    size = check_grainsize(grainsize, n_rows)
    size = check_grainsize(setting("grainsize"), n_rows) if size is None else size
    if size is None:
        first = columns.rows(Chunk(0, 0, min(n_rows, SAMPLE)))
        nbytes = sys.getsizeof(first) / max(min(n_rows, SAMPLE), 1) * n_rows
        fewest = FEWEST_OF_ITEMS if any(isinstance(column, ListColumn) for column in columns.columns) else FEWEST
        count = min(max(nbytes / USUAL_BYTES, fewest), MOST)
        size = max(-(-n_rows // (1 << round(math.log2(count)))), 1)
    return Plan(n_rows, size)


def _from_loaders(loaders: Sequence[Any], grainsize: Any, place: Scheduler) -> Shards:
    """Load every piece where it is to stay, and ask how many rows it has."""
    size = check_grainsize(grainsize, len(loaders))
    names, lengths = new_names(), dict[Key, int]()
    graph: Graph = {}
    for loader in loaders:
        graph.update(_graph_of(loader))
    counts = [names("part", ("length", number)) for number in range(len(loaders))]
    graph.update({key: Task(key, length, TaskRef(one.key)) for key, one in zip(counts, loaders, strict=True)})
    pieces = run_graph(
        place, graph, counts, lengths.__setitem__, keep=dict.fromkeys(loader.key for loader in loaders)
    ).kept
    chunks = [
        (loader.key, start, min(start + (size or lengths[count]), lengths[count]))
        for loader, count in zip(loaders, counts, strict=True)
        for start in range(0, lengths[count], size or max(lengths[count], 1))
    ]
    keys = [names("shard", number) for number in range(len(chunks))]
    cuts: Graph = {
        key: Task(key, cut_out, TaskRef(piece), start, stop, not place.remote)
        for key, (piece, start, stop) in zip(keys, chunks, strict=True)
    }
    kept = run_graph(place, cuts, (), _ignore, keep=keys, kept=pieces).kept
    bounds = itertools.accumulate((stop - start for _, start, stop in chunks), initial=0)
    return Shards(GivenPlan(tuple(bounds)), place, keys, {key: kept[key] for key in keys})


def _from_dask(
    leaves: list[Any], treedef: pytree.TreeDef, lazy: dict[int, Any], grainsize: Any, place: Scheduler
) -> Shards:
    """Take the blocks of dask arrays as they are computed, beside the same rows of whatever else there is."""
    for array in lazy.values():
        if not array.ndim or math.isnan(array.shape[0]):
            raise StructureError(
                "A dask array without rows, or with an unknown number of them, can't be cut. Call its "
                "`compute_chunk_sizes()` first."
            )
    others = snapshots(tuple(leaf for number, leaf in enumerate(leaves) if number not in lazy))
    rest = read_sliced(others, itertools.count())[0] if others else None
    n_rows = int(next(iter(lazy.values())).shape[0])
    found = {int(array.shape[0]) for array in lazy.values()} | ({rest.n_rows} if rest else set())
    if len(found) > 1:
        raise StructureError(f"The data have leaves of {sorted(found)} rows. Rows have to agree.")
    size = check_grainsize(grainsize, n_rows)
    first = next(iter(lazy.values()))
    bounds = tuple(dict.fromkeys((0, *itertools.accumulate(first.chunks[0]))))  # without empty blocks
    plan = Plan(n_rows, size or 1) if size or not n_rows else GivenPlan(bounds)
    by_rows = tuple(chunk.stop - chunk.start for chunk in plan)
    graph: Graph = {}
    blocks: dict[int, list[Key]] = {}
    for number, array in lazy.items() if n_rows else ():
        whole = array.rechunk((by_rows, *((length,) for length in array.shape[1:])))
        graph.update(_graph_of(whole))
        blocks[number] = [_first_of(keys) for keys in whole.__dask_keys__()]
    names = new_names()
    keys = [names("shard", chunk.number) for chunk in plan]
    for key, chunk in zip(keys, plan, strict=True):
        column = iter(rest.columns if rest else ())
        pieces = [ELSEWHERE if number in lazy else next(column).piece(chunk) for number in range(len(leaves))]
        refs = [TaskRef(blocks[number][chunk.number]) for number in lazy]
        graph[key] = Task(key, from_blocks, Rows(treedef, pieces, False), not place.remote, *refs)
    return Shards(plan, place, keys, run_graph(place, graph, (), _ignore, keep=keys).kept)


def _graph_of(collection: Any) -> Graph:
    """Return the graph of a collection, with the arrays that it holds as they are now."""
    graph: Graph = convert_legacy_graph(ensure_dict(collection.__dask_graph__()))
    held = {key: node.value for key, node in graph.items() if type(node) is DataNode}
    return graph | {key: DataNode(key, snapshot(value)) for key, value in held.items() if isinstance(value, np.ndarray)}


def _first_of(keys: Any) -> Key:
    while isinstance(keys, list):
        keys = keys[0]
    return keys


def _is_delayed(obj: Any) -> bool:
    return isinstance(obj, Delayed)


def _is_dask_array(obj: Any) -> bool:
    return is_dask_collection(obj) and not isinstance(obj, Delayed) and hasattr(obj, "rechunk")
