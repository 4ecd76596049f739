"""What only loads data -> part of the task that reads them: kept to be run again, that task then holds no data.

Of what a task reads and is not differentiated, these become part of it:

* What nobody else needs, down to where it comes from: a file, a store, a seed. At most `MOST_TASKS` tasks that need
  nothing from elsewhere, so that no long computation moves into a task, and none is run for several.
* Parts of arrays that are stored, as Dask itself reads them (zarr, HDF5, memory maps), and what functions of Dask's and
  numpy's make of them alone. Up to `MOST_READERS` tasks may need the same part: reading it again gives the same
  numbers, and costs less than to keep it.

What lies in memory is data in the graph, and stays there. Under a schedule, which runs a step many times, only stored
arrays are read inside: what else is not differentiated runs once, as the schedule's counts have it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Mapping

from dagad._engines.registry import own_engine
from dagad._graphs.activity import Graph, Key, Order
from dagad._graphs.layers import Annotations, without_mark
from dagad._graphs.linearization import value_of_task
from dagad._graphs.linearize import is_sum
from dagad._types import Function
from dagad_scheduler.private import DataNode, GraphNode, Task, TaskRef

MOST_TASKS = 8
MOST_READERS = 4
_REPEATABLE = ("dask.array.", "numpy.", "operator.", "_operator.", "dask._task_spec.")


def with_loaders_inside(
    graph: Graph,
    order: Order,
    carrying: Order,
    ends: Collection[Key],
    annotations: Mapping[Key, Annotations],
    only_stored: bool = False,
) -> dict[Key, GraphNode]:
    """Return the tasks that are to take the place of others: what loads data for one only is part of it.

    `carrying` is what carries derivatives, `ends` what they are taken of and with respect to.
    """
    if not any(key not in carrying and isinstance(graph[key], Task) for key in order):
        return {}  # nothing but data
    loaders = _Loaders(graph, order, {*ends, *carrying}, annotations, only_stored)
    result = dict[Key, GraphNode]()
    for key in carrying:
        node = graph[key]
        if not isinstance(node, Task) or node.func is value_of_task or is_sum(node) or own_engine(node.func)[1]:
            continue
        inside = {one: graph[one] for ref in order[key] for one in loaders.of(ref, key)}
        if inside:
            result[key] = Task.fuse(*inside.values(), node, key=key)
    return result


class _Loaders:
    """Which tasks are loaders, and whose."""

    def __init__(
        self,
        graph: Graph,
        order: Order,
        kept: Collection[Key],
        annotations: Mapping[Key, Annotations],
        only_stored: bool,
    ) -> None:
        self._graph, self._order, self._kept, self._annotations = graph, order, kept, annotations
        self._only_stored = only_stored
        self._n_readers = Counter(ref for refs in order.values() for ref in refs)

    def of(self, key: Key, reader: Key) -> list[Key]:
        """Return the tasks behind a key of which nothing but the reader needs to know; none if there are others."""
        found: dict[Key, int] = {}  # and how many of those in it read it
        stack = [key]
        while stack:
            one = stack.pop()
            if isinstance(self._graph.get(one), DataNode):
                continue
            found[one] = found.get(one, 0) + 1
            if found[one] > 1:
                continue
            if len(found) > MOST_TASKS or not self._may_move(one, reader):
                return []
            stack += self._order[one]
        stored = self._only_stored or any(self._n_readers[one] != count for one, count in found.items())
        if stored and not (self._n_readers[key] <= MOST_READERS and all(map(self._is_repeatable, found))):
            return []
        return list(found)

    def _may_move(self, key: Key, reader: Key) -> bool:
        if key in self._kept or not isinstance(self._graph.get(key), Task):
            return False
        return not self._annotations or self._annotated(key) == self._annotated(reader)

    def _annotated(self, key: Key) -> Annotations:
        """Return what a task is annotated with, beside the step of a schedule, which is of no account here."""
        return without_mark(self._annotations.get(key, {}))

    def _is_repeatable(self, key: Key) -> bool:
        return self._n_readers[key] <= MOST_READERS and _is_repeatable(self._graph[key])


def _is_repeatable(part: object) -> bool:
    """Return whether a task is made of functions of Dask's and numpy's, which give the same whenever they run.

    Some of Dask's are given a function of the user's: that one is another matter.
    """
    if isinstance(part, Task) and part.has_subgraph():
        inside, _, _, *given = part.args
        return all(map(_is_repeatable, (*inside.values(), *given)))
    if isinstance(part, Task):
        return _is_repeatable_function(part.func) and all(map(_is_repeatable, (*part.args, *part.kwargs.values())))
    if isinstance(part, GraphNode | TaskRef | type) or not callable(part):
        return True
    return _is_repeatable_function(part)


def _is_repeatable_function(function: Function) -> bool:
    if isinstance(function, functools.partial):  # some of its arguments are given
        return all(map(_is_repeatable, (function.func, *function.args, *function.keywords.values())))
    module = f"{getattr(function, '__module__', None)}."
    return module.startswith(_REPEATABLE) and not module.startswith("numpy.random.")  # which draws with each call
