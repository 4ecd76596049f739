"""Which keys carry derivatives: those that depend on `wrt` and that `y` depends on."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dagad_scheduler.private import Alias, GraphNode, Task, TaskRef
from dagad_scheduler.roles import Names, role_of

Key = Any
Graph = Mapping[Key, GraphNode]
Order = dict[Key, tuple[Key, ...]]  # what each key reads, each after what it reads


def references(node: GraphNode | TaskRef) -> tuple[Key, ...]:
    """Return the keys a node depends on, each once, in the order of its arguments.

    Dask keeps them as a set, and an order that depends on hashes would make the order of sums depend on them.
    """
    known = getattr(node, "dependencies", None)
    if known is not None:
        if len(known) < 2:
            return tuple(known)
        args: Any = getattr(node, "args", ())
        plain = [arg.key for arg in args if type(arg) is TaskRef]
        if len(plain) == len(args) == len(known):  # nothing is read twice, or stands deeper
            return tuple(plain)
    found: dict[Key, None] = {}
    _collect(node, found)
    return tuple(found)


def _collect(part: object, found: dict[Key, None]) -> None:
    if isinstance(part, Task):
        if part.has_subgraph():
            _collect_inside(part, found)
        for item in part.args:
            if type(item) is TaskRef:
                found[item.key] = None
            else:
                _collect(item, found)
        for item in part.kwargs.values():
            _collect(item, found)
    elif isinstance(part, Alias):
        found[part.target] = None
    elif isinstance(part, TaskRef):  # a Future is one too
        found[part.key] = None


def _collect_inside(part: Task, found: dict[Key, None]) -> None:
    """Find what a fused task depends on in the order of its parts, since Dask lists it in the order of hashes."""
    inside, _, names, *given = part.args
    outside = dict(zip(names, given, strict=True))
    for node in inside.values():
        for ref in references(node):
            if ref in outside:
                _collect(outside[ref], found)


def is_ours(key: Key) -> bool:
    """Return whether a key is one of dagad's."""
    return isinstance(key, tuple) and role_of(key) is not None


INSIDE = "dagad-inside"  # (INSIDE, the task that held it, where, its own key): keys inside of tasks repeat
PLAIN = "plain"  # the first part of the number of what `delinearize` has rewritten, before its key
SAME = "same"  # of what `unfused` has found, and of an alias in a derivative, before its own key


def own_key(key: Key) -> Key:
    """Return the key that the user knows a node by, before it was found inside a task or rewritten by `delinearize`."""
    while type(key) is tuple and key:
        if key[0] == INSIDE:
            key = key[-1]
        elif len(key) != 2 or type(key[1]) is not tuple or not is_ours(key):
            break
        elif key[1][:1] == (PLAIN,):
            key = key[1][1:]
        elif key[1][:1] == (SAME,):
            key = key[1][1]
        else:
            break
    return key


def keep_alias(graph: dict[Key, GraphNode], node: Alias, at: Key, names: Names, index: object) -> Key:
    """Return what stands for an alias in a derivative, whose target is at a key of its graph.

    One of the user's stays, under a name of its own: a derivative by it is another one than that by its target, which
    others may read too. In the place of others their target stands.
    """
    own = own_key(node.key)
    if is_ours(own) or own == own_key(node.target):
        return at
    name = names.about(own)("input", (SAME, own, index))
    graph[name] = Alias(name, at)
    return name


def is_copy(node: GraphNode) -> bool:
    """Return whether Dask has wrapped a node to be a copy of it: the node is the only argument."""
    return isinstance(node, Task) and getattr(node.func, "__qualname__", None) == "ProhibitReuse._identity"


def substituted(node: GraphNode, renamed: dict[Key, Any], key: Key) -> GraphNode:
    """Return a node that reads renamed keys, under a key of its own, which Dask's `substitute` forgets now and then."""
    if isinstance(node, Alias):
        return Alias(key, renamed.get(node.target, node.target))
    found = node.substitute(renamed, key=key)
    if found.key != key:
        found = copy.copy(found)
        found.key = key
    return found


def topological(graph: Graph, keys: Iterable[Key]) -> Order:
    """Return what `keys` need, each key after its dependencies, with them; the order depends on the graph alone."""
    done, found = Order(), Order()
    stack = list(keys)[::-1]
    while stack:
        key = stack[-1]
        if key in done or key not in graph:
            stack.pop()
        elif key in found:
            done[stack.pop()] = found[key]
        elif refs := references(graph[key]):
            found[key] = refs
            stack += [ref for ref in refs[::-1] if ref not in done]
        else:
            done[stack.pop()] = refs
    return done


def active(order: Order, wrt: Collection[Key]) -> Order:
    """Return the keys of `order` that depend on `wrt`, each with the dependencies that do, in the same order."""
    carrying: set[Key] = set(wrt)
    result = {}
    for key, refs in order.items():
        if refs and not carrying.isdisjoint(refs):
            carrying.add(key)
            result[key] = tuple([ref for ref in refs if ref in carrying]) if len(refs) > 1 else refs
    return result
