"""Tasks that Dask has put inside other tasks -> tasks of their own again, where a derivative has to see them.

`optimize`, `fuse`, `to_delayed()` and collections given to a Delayed function leave their sources inside a fused
task, or in a copy under another name: `delayed(f)(array)` reads a copy of what `array` was made of. In such a graph the
key to differentiate with respect to stands nowhere, or not everywhere, and a gradient would miss a part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from dagad._graphs.activity import INSIDE, Graph, Key, is_copy, is_ours, own_key, references, substituted, topological
from dagad._types import AnyNode
from dagad_scheduler.private import Alias, DataNode, Dict, GraphNode, List, Set, Task, TaskRef, Tuple

CONTAINERS = (List, Tuple, Set, Dict)


def unfuse(graph: Graph, keys: Iterable[Key], wrt: Collection[Key]) -> dict[Key, GraphNode]:
    """Return the graph with all nodes that matter under their own keys; what else stood together stays together.

    Those of `wrt` matter, and dagad's own. Dask gives equal keys to equal values only, so what is found twice is the
    same.
    """
    work, seen = list(keys), set[Key]()
    opening = _Opening(_under_own_keys(graph, work, wrt), wrt)
    if not any(map(opening.holds, graph.values())):
        return opening.graph
    while work:
        key = work.pop()
        if key in seen or key not in opening.graph:
            continue
        seen.add(key)
        again = opening.open(key)
        seen.difference_update(again)
        # What is needed now, which may not be what was: a node from inside has its own inputs, copies among them.
        work += [*again, *references(opening.graph[key])]
    return opening.graph


def standing_in(node: GraphNode) -> Iterator[tuple[Key, GraphNode]]:
    """Return all nodes that stand inside a task, with their keys."""
    if not isinstance(node, Task):
        return
    inside = node.args[0].items() if node.has_subgraph() else ()
    parts = [(part.key, part) for part in (*node.args, *node.kwargs.values()) if isinstance(part, GraphNode)]
    for key, part in (*inside, *parts):
        yield key, part
        yield from standing_in(part)


def _under_own_keys(graph: Graph, keys: Iterable[Key], wrt: Collection[Key]) -> Graph:
    """Return the graph with nodes of `wrt` that an earlier derivative has renamed under their own keys."""
    own_keys = {key: own for key in graph if (own := own_key(key)) != key and own in wrt}
    if not own_keys:
        return graph
    found: dict[Key, GraphNode] = {}
    # The first of several: a later one waits for what has read the first, where a schedule has run it again.
    for old in (*topological(graph, keys), *own_keys):
        if old in own_keys and own_keys[old] not in graph:
            found.setdefault(own_keys[old], substituted(graph[old], {}, own_keys[old]))
    return {**graph, **found, **{old: Alias(old, new) for old, new in own_keys.items()}}


class _Opening:
    """A graph that is being laid open."""

    def __init__(self, graph: Graph, wrt: Collection[Key]) -> None:
        self.graph, self._wrt = dict(graph), wrt

    def _matters(self, key: Key) -> bool:
        head = key[0] if type(key) is tuple and key else key
        if type(head) is str and not head.startswith("dagad-"):  # nearly always
            return key in self._wrt
        return is_ours(key) or own_key(key) in self._wrt

    def open(self, key: Key) -> list[Key]:
        """Put the nodes that matter and stand inside one node beside it; return the keys of those that are new."""
        node = self.graph[key]
        if not self.holds(node):
            return []
        inside = self._unpacked(key, node)
        marks = {name for name in inside if self._matters(name)}
        # A task of ours is known by its function, so what it reads is not put into it.
        marks.update(
            ref for name in {key, *marks} if is_ours(name) for ref in references(inside[name]) if ref in inside
        )
        marks.discard(key)
        self.graph[key] = _put_together(inside, key, marks)
        # An alias under such a name leads to the task that it was fused into.
        new = [name for name in marks if isinstance(self.graph.get(name), Alias) or name not in self.graph]
        self.graph |= {name: _put_together(inside, name, marks) for name in new}
        return new

    def holds(self, node: AnyNode) -> bool:
        """Return whether a node that matters stands inside another."""
        if not isinstance(node, Task):
            return False
        if node.has_subgraph():
            inside = node.args[0]
            return any(self._matters(key) or self.holds(part) for key, part in inside.items())
        parts = [part for part in node.args if type(part) is not TaskRef and isinstance(part, GraphNode)]
        if node.kwargs:
            parts += [part for part in node.kwargs.values() if isinstance(part, GraphNode)]
        return any(self._matters(part.key) or self.holds(part) for part in parts) if parts else False

    def _unpacked(self, key: Key, node: GraphNode) -> dict[Key, GraphNode]:
        """Return a node and all that it holds, each under a key of its own; new ones can't meet others."""
        found: dict[Key, GraphNode] = {}
        work: list[tuple[Key, Any]] = [(key, node)]

        def named(part: Key, *where: Any) -> Key:
            if (own := own_key(part)) in self._wrt:
                return own
            if is_ours(part):
                return part
            new = (INSIDE, key, *where, part)
            while new in self.graph:
                new = (INSIDE, new)
            return new

        def put(part: GraphNode) -> Key:
            name = named(part.key, len(found), len(work))
            work.append((name, part))
            return name

        while work:
            name, part = work.pop()
            if not self.holds(part):
                found[name] = substituted(part, {}, name)
            elif part.has_subgraph():
                inside, result, outer, *given = part.args
                renamed = {own: named(own, name) for own in inside}
                for own, ref in zip(outer, given, strict=True):
                    renamed[own] = ref.key if isinstance(ref, TaskRef) else put(_node(ref))
                work.extend((renamed[own], substituted(each, renamed, renamed[own])) for own, each in inside.items())
                found[name] = Alias(name, renamed[result])
            else:
                found[name] = self._emptied(name, part, put)
        return found

    def _emptied(self, key: Key, node: Task, put: Callable[[GraphNode], Key]) -> GraphNode:
        """Return a task with references in place of the nodes that it holds and that matter, or hold such."""

        def outside(part: object) -> Any:
            if not isinstance(part, GraphNode) or isinstance(part, Alias):
                return part
            if not self._matters(part.key) and not self.holds(part):
                return part
            if isinstance(part, CONTAINERS):
                return container(part, list(map(outside, part.args)))
            return TaskRef(put(part))

        args = list(map(outside, node.args))
        if is_copy(node) and isinstance(args[0], TaskRef | Alias):
            return Alias(key, references(args[0])[0])
        if isinstance(node, CONTAINERS):
            return substituted(container(node, args), {}, key)
        return Task(key, node.func, *args, **{name: outside(part) for name, part in node.kwargs.items()})


def _put_together(inside: Graph, key: Key, marks: Collection[Key]) -> GraphNode:
    """Return one task for a key and all that only it needs; it reads those in `marks`."""
    target = _end_of_aliases(inside, key, marks)
    if target != key and (target not in inside or target in marks):
        return Alias(key, target)
    own, work = {key: inside[key]}, [key]
    while work:
        for ref in references(inside[work.pop()]):
            if ref in inside and ref not in marks and ref not in own:
                own[ref] = inside[ref]
                work.append(ref)
    return substituted(Task.fuse(*own.values()), {}, key)


def _end_of_aliases(inside: Graph, key: Key, marks: Collection[Key]) -> Key:
    """Return what a key stands for: fused, a chain of aliases would be a task, which nobody looks through."""
    while isinstance(node := inside.get(key), Alias):
        key = node.target
        if key in marks:
            break
    return key


def _node(part: object) -> GraphNode:
    return part if isinstance(part, GraphNode) else DataNode(None, part)


def container(node: AnyNode, args: list[Any]) -> Any:
    """Return one of Dask's containers like another, of other nodes."""
    # A single list among the arguments would be taken for the arguments.
    return type(node)(node.klass(args)) if isinstance(node, List | Tuple) else type(node)(*args)
