"""The public function `shard`: data -> Shards, cut once and placed where the chunks will run."""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from dask.base import is_dask_collection
from dask.highlevelgraph import HighLevelGraph
from dask.sizeof import sizeof

from dagad._config import setting
from dagad._errors import DagadError, PlanError, StructureError, add_note_once
from dagad._executors.evaluation import Scheduler, find_scheduler, new_names, run_graph, tasks_annotated
from dagad._graphs.layers import Annotations, annotations_of
from dagad._sources.base import Graph, Key, cut
from dagad._sources.collections import graph_of, loaders_of, read_blocks, without_labels
from dagad._sources.columns import READERS, Sliced, read_sliced
from dagad._sources.plan import AnyPlan, Chunk, Plan, check_grainsize, plan_of
from dagad._sources.rows import Constant, Rows
from dagad._sources.shards import Home, Shards, ignore
from dagad._tracebacks import public
from dagad._types import AnyRows, AnyScheduler, Array, Tree
from dagad._values import pytree
from dagad._values.canonical import canonical, library_of, snapshots
from dagad._values.pytree import SAMPLE
from dagad._values.shipping import PortableResult, opened
from dagad._words import described
from dagad_scheduler.private import Alias, GraphNode, Task, TaskRef

# The function that will run is not known yet: pieces that fit a cache, and some for every worker. Items of lists are
# few and dear more often than rows of arrays.
USUAL_BYTES = 4 * 2**20
FEWEST, FEWEST_OF_ITEMS, MOST = 8, 64, 1024
HOME = Home(new_names, run_graph)


@public
def shard(data: Tree, grainsize: int | str = "auto", scheduler: AnyScheduler = None) -> Shards:
    """Cut data and put them in place once, for reductions that are evaluated many times.

    Parameters
    ----------
    data
        Pytree of arrays, shape (rows, ...), lists, tables (pandas, polars, pyarrow), dask arrays, arrays of zarr, which
        are read where their rows are to stay, and xarray's arrays and datasets, which lose their labels; they agree on
        their first length. Or a dask dataframe; or a list of ``Delayed``, each of which loads some of the rows. All are
        taken as they are now: what is written into the arrays later does not change the Shards.
    grainsize
        Rows per chunk. "auto" takes the pieces as they come where data arrive in pieces (dask collections, loaders,
        zarr). Else it makes 8 chunks, of lists 64, or as many as make chunks of about 4 MiB, up to 1024 (to the next
        power of two, and none empty): it depends on the shapes alone, and not on what a function will cost.
    scheduler
        Where the data go; see `reduce_sum`. Reductions over the Shards run there.

    Returns
    -------
    Shards
        Goes wherever a reduction takes its data. The results are those of the same data with the same grainsize.

    Raises
    ------
    PlanError
        If `grainsize` is neither a positive int nor "auto".
    StructureError
        If the leaves differ in length or have no rows.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> data = dagad.shard({"x": np.arange(6.0), "y": np.ones(6)}, grainsize=2, scheduler="threads")
    >>> data
    <Shards: 6 rows in 3 chunks on threads>
    >>> def loss(rows, theta):
    ...     return np.sum((rows["x"] * theta - rows["y"]) ** 2)
    >>> float(dagad.grad(lambda theta: dagad.reduce_sum(loss, data, theta))(1.0))
    80.0
    """
    target = find_scheduler(scheduler)
    _refuse_shards(data)
    loaders = loaders_of(data)
    if loaders is not None:
        return _from_loaders(loaders, grainsize, target)
    # Copies, on a cluster too: what is sent leaves when Dask gets round to it, and the data are to be those of now.
    columns = read_sliced(snapshots(without_labels(data)), readers=(read_blocks, *READERS))[0]
    plan, names = _plan(grainsize, columns), new_names()
    keys = [names("shard", chunk.number) for chunk in plan]
    rows = {key: columns.rows(chunk) for key, chunk in zip(keys, plan, strict=True)}
    if not target.remote and all(part.stays for part in rows.values()):
        return Shards(plan, target, keys, rows, HOME, None, columns.row_kinds())
    # Bound to a home that is gone, and waiting for nothing, a task would wait for ever. The anchor is bound to none.
    anchor = names("input", "anchor")
    graph: Graph = {anchor: Task(anchor, anchor_task)}
    blocks = [found for column in columns.columns if len(plan) and (found := column.blocks(plan)) is not None]
    for made, _ in blocks:
        graph.update(made)
    for chunk, (key, part) in zip(plan, rows.items(), strict=True):
        refs = [TaskRef(by_chunk[chunk.number]) for _, by_chunk in blocks]
        graph[key] = Task(key, sharded, part, not target.remote, TaskRef(anchor), chunk.stop - chunk.start, *refs)
    _refuse_persisted(graph, target)
    leaves = pytree.flatten(data, is_leaf=pytree.is_list)[0]
    with tasks_annotated(_annotations([leaf.__dask_graph__() for leaf in leaves if is_dask_collection(leaf)], target)):
        kept = run_graph(target, graph, (), ignore, keep=keys).kept
    return Shards(plan, target, keys, kept, HOME, None, columns.row_kinds())


def _annotations(graphs: Iterable[Any], target: Scheduler) -> dict[Key, Annotations]:
    """Return what the tasks of graphs were annotated with; nothing in this process, where none of it counts."""
    found = dict[Key, Annotations]()
    for graph in graphs if target.remote else ():
        found |= annotations_of(graph) if isinstance(graph, HighLevelGraph) else {}
    return found


def _refuse_shards(data: Tree) -> None:
    leaves = pytree.flatten(data, is_leaf=pytree.is_list)[0]
    if any(pytree.is_sharded(item) for leaf in leaves for item in (leaf if isinstance(leaf, list) else [leaf])):
        raise PlanError(
            "There are Shards among the data already. Pass what `.gather()` returns to cut the data in another way."
        )


def _refuse_persisted(graph: Graph, target: Scheduler) -> None:
    if not target.remote and any(not node.dependencies <= graph.keys() for node in graph.values()):
        raise StructureError(
            "The data were persisted on a cluster, where they are, and were to be placed in this process. Place them "
            "there, `dagad.shard(data, scheduler=client)`, or compute them first, `data.compute(scheduler=client)`."
        )


def _plan(grainsize: object, columns: Sliced) -> AnyPlan:
    n_rows = columns.n_rows
    size = check_grainsize(grainsize, n_rows)
    given = next((column.plan for column in columns.columns if column.plan is not None), None)
    if size is None and given is not None and n_rows:
        return given
    size = check_grainsize(setting("grainsize"), n_rows) if size is None else size
    if size is None:
        sample = min(n_rows, SAMPLE)
        nbytes = sys.getsizeof(columns.rows(Chunk(0, 0, sample))) / max(sample, 1) * n_rows
        fewest = FEWEST_OF_ITEMS if any(column.of_items for column in columns.columns) else FEWEST
        count = min(max(nbytes / USUAL_BYTES, fewest), MOST)
        size = max(-(-n_rows // (1 << round(math.log2(count)))), 1)
    return Plan(n_rows, size)


def _from_loaders(loaders: Sequence[Any], grainsize: object, target: Scheduler) -> Shards:
    """Load every piece where it is to stay, and ask how many rows it has."""
    size = check_grainsize(grainsize, len(loaders))
    names, lengths = new_names(), dict[Key, int]()
    graph: Graph = {}
    held = {id(one): one for one in [loader.__dask_graph__() for loader in loaders]}  # often one for all
    for each in held.values():
        graph.update(graph_of(each))
    sources = [names.about(loader.key)("shard", ("loaded", number)) for number, loader in enumerate(loaders)]
    counts = [names("getitem", ("length", number)) for number in range(len(loaders))]
    graph, annotations = _loading(graph, loaders, sources), _annotations(held.values(), target)
    annotations |= {key: annotations.get(loader.key, {}) for key, loader in zip(sources, loaders, strict=True)}
    for number, (key, source) in enumerate(zip(counts, sources, strict=True)):
        graph[key] = Task(key, length, TaskRef(source), number)
    _refuse_persisted(graph, target)
    with tasks_annotated(annotations):
        pieces = run_graph(target, graph, counts, lengths.__setitem__, keep=sources).kept
    chunks = [
        (number, start, min(start + (size or lengths[count]), lengths[count]))
        for number, count in enumerate(counts)
        for start in range(0, lengths[count], size or max(lengths[count], 1))
    ]
    keys = [names("shard", number) for number in range(len(chunks))]
    cuts: Graph = {
        key: Task(key, cut_out, TaskRef(sources[number]), number, start, stop, not target.remote)
        for key, (number, start, stop) in zip(keys, chunks, strict=True)
    }
    stay = {key: _of_workers(annotations[sources[number]]) for key, (number, _, _) in zip(keys, chunks, strict=True)}
    with tasks_annotated(stay):
        kept = run_graph(target, cuts, (), ignore, keep=keys, kept=pieces).kept
    bounds = itertools.accumulate((stop - start for _, start, stop in chunks), initial=0)
    return Shards(plan_of(tuple(bounds)), target, keys, {key: kept[key] for key in keys}, HOME)


def _of_workers(annotations: Annotations) -> Annotations:
    """Return what annotations say of workers, where rows that were loaded there are to stay."""
    return {kind: annotations[kind] for kind in ("workers", "allow_other_workers") if kind in annotations}


def _loading(graph: Graph, loaders: Sequence[Any], keys: Sequence[Key]) -> Graph:
    """Return a graph that gives what each loader returns by one of the keys, as `Loaded`.

    A loader that nobody else reads is part of that task, so that what it returns never moves as it is.
    """
    n_readers = Counter(ref for node in graph.values() for ref in node.dependencies)
    n_readers.update(loader.key for loader in loaders)
    result = dict(graph)
    for number, (key, loader) in enumerate(zip(keys, loaders, strict=True)):
        node = graph.get(loader.key)
        if isinstance(node, Task) and n_readers[loader.key] == 1:
            del result[loader.key]
        else:
            node = Alias(loader.key)
        needed = tuple(node.dependencies)
        result[key] = Task(key, Loading(number, node, needed), *map(TaskRef, needed))
    return result


class Loading:
    """A loader, as a function of what its task needs."""

    __slots__ = ("_needed", "_node", "_number")

    def __init__(self, number: int, node: GraphNode, needed: tuple[Key, ...]) -> None:
        self._number, self._node, self._needed = number, node, needed

    def __call__(self, *values: Any) -> Loaded:
        try:
            return Loaded(self._node(dict(zip(self._needed, values, strict=True))))
        except Exception as error:
            add_note_once(error, f"dagad: loader {self._number} of those given to `dagad.shard`, counted from 0")
            raise


class Loaded(PortableResult):
    """What a loader has returned, whatever it is."""

    __slots__ = ("piece",)

    def __init__(self, piece: AnyRows) -> None:
        self.piece = piece

    def state(self) -> tuple[Any, ...]:
        return (self.piece,)

    def __sizeof__(self) -> int:
        return int(sizeof(self.piece))


# What the tasks do: rows of what came in a message, of blocks, and of loaded pieces


def anchor_task() -> None:
    """Do nothing, wherever there is a worker."""


def sharded(rows: AnyRows, shared: bool, anchor: None, n_rows: int, *blocks: Any) -> Rows:
    """Return rows with blocks of dask arrays where they belong, and with what is made where the rows are.

    A copy where others may write into the blocks, in a process that it is shared with.
    """
    del anchor
    leaf = pytree.flatten(0)[1]
    parts = [Rows(leaf, [Constant(_rows_of_block(block, n_rows))], views=shared) for block in blocks]
    whole: Rows = opened(rows).joined(iter(parts)).made()
    return whole


def _rows_of_block(block: Array, n_rows: int) -> Any:
    """Return a block as rows, which what Dask only believes of it may not be."""
    if library_of(block) is not None or hasattr(block, "todense"):
        raise StructureError(
            f"A dask array was to be placed whose blocks are {described(block)}, and would be another array without "
            "what that has. Make plain ones of it first: `dask.array.ma.filled(array, value)` of a masked array, "
            "`array.map_blocks(lambda block: block.todense())` of a sparse one."
        )
    rows = np.asarray(block)
    if not rows.ndim or len(rows) != n_rows:
        raise StructureError(
            f"A block of a dask array was to have {n_rows} rows, by what the array says of its chunks, and is "
            f"{described(rows)}. Say how many there are, `chunks=` of `map_blocks` and `shape=` of `from_delayed`; or "
            "give loaders, `dagad.shard([dask.delayed(load)(path), ...])`, which may have any number of rows."
        )
    return cut(canonical(rows), slice(None))


def length(loaded: object, number: int) -> int:
    """Return how many rows a piece has."""
    return _piece_of(loaded, number).n_rows


def cut_out(loaded: object, number: int, start: int, stop: int, shared: bool) -> Rows:
    """Return some rows of a piece; see `sharded`."""
    rows: Rows = _piece_of(loaded, number).rows(Chunk(0, start, stop)).made()
    return rows.snapshot() if shared else rows


def _piece_of(loaded: object, number: int) -> Sliced:
    try:
        return read_sliced(without_labels(opened(loaded).piece))[0]
    except DagadError as error:
        add_note_once(error, f"dagad: what loader {number} of those given to `dagad.shard` returned, counted from 0")
        raise
