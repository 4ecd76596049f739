"""Many small tasks -> fewer that do the same, before they are linearized: what tasks cost is paid for fewer of them.

Tasks are put together where nothing is lost by it:

* Chains: a task joins the one that it reads if nobody else reads that one, and if it waits for nothing else that the
  chain does not wait for already. They could only have run one after the other, with nobody waiting in between.
* Siblings: where a level of the graph is wider than twice the width that is asked for, tasks that are read by the same
  task, and by no other, and wait for the same, are put together so that about this number remains: with the task that
  reads them if these are all that it reads, else in groups by themselves.

Never more than `LONGEST` in a chain, so that a worker's memory is managed and its loss repaired in small pieces; never
over what the derivative is taken of or with respect to; never tasks of different annotations, steps that the user has
marked by ``dagad_step`` among them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

from dagad._graphs.activity import Graph, Key, Order
from dagad._graphs.fused import FusedTasks, Member
from dagad._graphs.layers import Annotations
from dagad._graphs.linearization import value_of_task
from dagad._graphs.linearize import inputs_of
from dagad._graphs.sum_trees import add_up, add_up_spans
from dagad._graphs.tasks import recordable
from dagad._types import AnyEngine
from dagad._values.shipping import opened
from dagad_scheduler.private import DataNode, GraphNode, Task, TaskRef
from dagad_scheduler.roles import Names

LONGEST = 32
MOST_SIBLINGS = 64
FEW = 4
_SUMS = (add_up, add_up_spans)


def coarsened(
    graph: Graph,
    order: Order,
    live: Order,
    ends: Collection[Key],
    annotations: Mapping[Key, Annotations],
    names: Names,
    engine: AnyEngine,
    width: int,
) -> tuple[dict[Key, GraphNode], Order, dict[Key, Annotations]]:
    """Return a graph with tasks put together, its order, and the annotations, those of new keys among them.

    `order` is that of `graph`, and `live` what carries derivatives; `ends` are what the derivative is taken of and with
    respect to, and `width` how many tasks beside one another are to stay.
    """
    groups = _Groups(graph, order, live, ends, annotations, width)
    for key in live:
        groups.assign(key)
    return groups.fused(names, engine)


class _Groups:
    """Which tasks run together; each group is called by the last of its tasks.

    Tasks of a group follow one another in the order of the graph. So the terms of a cotangent keep their order too.

    =============  ==============================================================================
    `_members`     last task -> all tasks of its group, in their order
    `_waits`       last task -> what its group waits for, beside plain data
    `_readers`     how many tasks read a key
    `_at_hand`     data, which nobody waits for; what is on a cluster already has no node
    `_turn`        where an active key stands in the order of the graph
    `_levels`      how many active tasks lie above a key, on the longest way; none if nothing is wide
    `_widths`      how many keys a level has
    `_bundles`     groups that one task reads, put together as one task with several results
    =============  ==============================================================================
    """

    def __init__(
        self,
        graph: Graph,
        order: Order,
        live: Order,
        ends: Collection[Key],
        annotations: Mapping[Key, Annotations],
        width: int,
    ) -> None:
        self._graph, self._order, self._live, self._annotations = graph, order, live, annotations
        self._members: dict[Key, list[Key]] = {}
        self._waits: dict[Key, frozenset[Key]] = {}
        self._readers = Counter(itertools.chain.from_iterable(live.values()))
        self._readers.update(dict.fromkeys(ends, 2))  # whatever reads it: it is the last of its group
        self._turn = {key: turn for turn, key in enumerate(live)}
        self._at_hand = {key for key, node in graph.items() if type(node) is DataNode}
        self._bundles: list[list[Key]] = []
        self._width = width
        self._levels = _levels(live) if len(live) > 2 * width else {}
        self._widths = Counter(self._levels.values())

    def assign(self, key: Key) -> None:
        """Put a task into the group of what it reads, or begin a group."""
        if not _is_one_task(self._graph[key]):
            return
        graph, readers, groups, at_hand = self._graph, self._readers, self._members, self._at_hand
        waits = frozenset([ref for ref in self._order[key] if ref not in at_hand and ref in graph])
        inputs = [ref for ref in self._live[key] if readers[ref] == 1 and ref in groups]
        quota = self._quota(inputs[0]) if self._levels and inputs else 1
        limit = max(LONGEST, quota) if len(inputs) == 1 else quota
        if 0 < len(inputs) < limit and self._may_join(key, waits.difference(inputs), inputs, limit):
            self._waits[key] = self._waits[inputs[0]]
            members = groups.pop(inputs[0])
            for ref in inputs[1:]:
                members += groups.pop(ref)
            members.append(key)
            groups[key] = members
        else:
            groups[key], self._waits[key] = [key], waits
            if 1 < quota < len(inputs):
                self._bundle(inputs, quota)
        if len(waits) <= FEW:
            self._close(key)

    def _quota(self, key: Key) -> int:
        """Return how many of the tasks beside a task may run as one."""
        return min(self._widths[self._levels[key]] // self._width, MOST_SIBLINGS)

    def _may_join(self, key: Key, waits: frozenset[Key], inputs: Sequence[Key], limit: int) -> bool:
        """Return whether a task that waits for `waits` as well may run with all its inputs."""
        members, first = self._members, inputs[0]
        if not waits <= self._waits[first]:
            return False
        if len(inputs) == 1:
            return len(members[first]) < limit and self._may_follow(first, key)
        if sum(len(members[ref]) for ref in inputs) >= limit:
            return False
        after = [*(members[ref][0] for ref in inputs[1:]), key]
        return all(map(self._may_follow, inputs, after)) and all(map(self._are_alike, inputs, inputs[1:]))

    def _may_follow(self, last: Key, first: Key) -> bool:
        """Return whether a group may begin with one task where another ends with one, for the order's sake."""
        if self._annotations and self._annotations.get(last) != self._annotations.get(first):
            return False
        return self._turn[first] == self._turn[last] + 1

    def _are_alike(self, one: Key, other: Key) -> bool:
        return self._waits[one] == self._waits[other]

    def _close(self, key: Key) -> None:
        """Put a group behind another one if nobody else reads that one's last task, so that both are a longer chain."""
        members, waits = self._members[key], self._waits[key]
        for ref in waits:
            # What one task alone reads, that task has joined if it could.
            if self._readers[ref] < 2 or ref not in self._members or self._turn[members[0]] != self._turn[ref] + 1:
                continue
            if len(self._members[ref]) + len(members) > LONGEST or self._readers[ref] > len(members):
                return
            if sum(ref in self._live[member] for member in members) < self._readers[ref]:
                return
            if waits - {ref} <= self._waits[ref] and self._may_follow(ref, members[0]):
                self._members[key], self._waits[key] = [*self._members.pop(ref), *members], self._waits[ref]
            return  # no other one comes right before it

    def _bundle(self, inputs: Sequence[Key], quota: int) -> None:
        bundles: list[list[Key]] = []
        n_tasks = quota
        for ref in inputs:
            own = self._members[ref]
            last = bundles[-1][-1] if bundles else None
            if n_tasks + len(own) > quota or not (self._may_follow(last, own[0]) and self._are_alike(last, ref)):
                bundles.append([])
                n_tasks = 0
            bundles[-1].append(ref)
            n_tasks += len(own)
        self._bundles += [bundle for bundle in bundles if len(bundle) > 1]

    def fused(self, names: Names, engine: AnyEngine) -> tuple[dict[Key, GraphNode], Order, dict[Key, Annotations]]:
        """Return the graph in which each group is one task, its order, and the annotations, new keys among them."""
        annotations = dict(self._annotations)
        components: dict[Key, tuple[Key, int]] = {}
        groups: dict[Key, tuple[Key, list[Key], Sequence[Key] | None]] = {}  # by the last of their tasks
        for position, bundle in enumerate(self._bundles):
            name = names.about(bundle[0])("input", ("bundle", position))
            components |= {key: (name, index) for index, key in enumerate(bundle)}
            groups[bundle[-1]] = name, [member for key in bundle for member in self._members.pop(key)], bundle
            if bundle[0] in annotations:
                annotations[name] = annotations[bundle[0]]
        for key, members in self._members.items():
            if len(members) > 1 or (components and not components.keys().isdisjoint(self._live[key])):
                groups[key] = key, members, None
        inside = {member for _, members, _ in groups.values() for member in members}
        graph, order = dict[Key, GraphNode](), Order()
        for key, refs in self._order.items():
            if key in groups:
                name, members, outputs = groups[key]
                graph[name], order[name] = self._one_task(name, members, outputs, components, engine)
            elif key not in inside:
                graph[key], order[key] = self._graph[key], refs
        return graph, order, annotations

    def _one_task(
        self,
        name: Key,
        nodes: Sequence[Key],
        outputs: Sequence[Key] | None,
        components: Mapping[Key, tuple[Key, int]],
        engine: AnyEngine,
    ) -> tuple[Task, tuple[Key, ...]]:
        """Return one task for several, which hands out the values of `outputs`, or the last one, and what it reads."""
        found = self._outside(frozenset(nodes), outputs or [name])
        if components:
            at = {
                key: position for position, key in enumerate(dict.fromkeys(components.get(r, (r,))[0] for r in found))
            }
            opened = {ref: components[ref] for ref in found if ref in components}
        else:
            at, opened = {key: position for position, key in enumerate(found)}, {}
        indices = {**at, **{key: position for position, key in enumerate((*opened, *nodes), len(at))}}
        members, active = [], set[int]()
        for key in nodes:
            node: Any = self._graph[key]
            inputs = inputs_of(node, self._live[key])
            function, read = recordable(node, inputs, engine, self._order[key])
            moving = tuple([indices[ref] for ref in inputs])
            members.append(Member(function, tuple([indices[ref] for ref in read]), moving))
            active.update(moving)
        active_inputs = {at[arg] for position, (arg, _) in enumerate(opened.values(), len(at)) if position in active}
        whole = FusedTasks(
            tuple(members),
            len(at),
            tuple([(at[arg], index) for arg, index in opened.values()]),
            None if outputs is None else tuple([indices[key] for key in outputs]),
            tuple(sorted(active_inputs.union([position for position in active if position < len(at)]))),
        )
        return Task(name, value_of_task, whole, *map(TaskRef, at)), tuple(at)

    def _outside(self, nodes: Container[Key], ends: Sequence[Key]) -> list[Key]:
        """Return what nodes read of others, as it is met on the way up: so the order of the graph stays as it was."""
        found, seen, stack = dict[Key, None](), set[Key](), [*ends][::-1]
        while stack:
            key = stack.pop()
            if key not in nodes:
                found[key] = None
            elif key not in seen:
                seen.add(key)
                stack += self._order[key][::-1]
        return list(found)


def _levels(live: Mapping[Key, tuple[Key, ...]]) -> dict[Key, int]:
    found: dict[Key, int] = {}
    level = found.get
    for key, inputs in live.items():
        found[key] = 1 + (max([level(ref, -1) for ref in inputs]) if len(inputs) > 1 else level(inputs[0], -1))
    return found


def _is_one_task(node: GraphNode) -> bool:
    """Return whether a node is a task that is not made of several, nor a sum or an alias."""
    if not isinstance(node, Task) or node.func in _SUMS:
        return False
    first = node.args[0] if node.args else None  # of the user's, it may be anything
    return type(first) is TaskRef or not getattr(opened(first), "is_fused", False)
