"""Dask's arrays of expressions: their low-level graphs, and such arrays over graphs of ours.

`array.query-planning` makes them in Dask itself, the package dask-array beside it. They know no layers: what says how
they are computed is an expression, which Dask optimizes before it makes a graph of it. Such a graph no longer has the
keys of the arrays it was written with, so we take the one that Dask makes without optimizing.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import dask

from dagad._graphs.activity import Key, references, substituted
from dagad._types import AnyCollection, AnyTask
from dagad_scheduler.private import Alias, GraphNode, Task, convert_legacy_graph, flatten

_PLAIN = frozenset({int, float, str, slice, type(None)})


def is_expression(made: AnyCollection) -> bool:
    """Return whether a collection is an array of an expression."""
    return hasattr(type(made), "expr") and not hasattr(type(made), "__dask_layers__")


def graph_as_written(made: AnyCollection) -> dict[Key, GraphNode]:
    """Return the graph of an array of an expression, with all keys of what the expression was made of."""
    with dask.config.set({"array.optimize-graph": False}):  # dask-array's; an array keeps the graph it was asked for
        nodes: dict[Key, GraphNode] = convert_legacy_graph(type(made)(made.expr).__dask_graph__())
    return nodes


def as_read(keys: Collection[Key], made: AnyCollection, graph: Mapping[Key, Any]) -> list[Key]:
    """Return the keys under which a graph reads the blocks of an array, its own where it reads none of them.

    The keys of dask-array's arrays are aliases of those that the lowered expression has, which are what others read.
    """
    own, found = graph_as_written(made), list(keys)
    while not any(key in graph for key in found):
        nodes = [own.get(key) for key in found]
        if not all(isinstance(node, Alias) for node in nodes):
            return list(keys)
        found = [node.target for node in nodes if isinstance(node, Alias)]
    return found


def over_blocks(made: AnyCollection, arrays: Iterable[Any]) -> Any:
    """Return an array computed from the blocks of others as they are.

    Dask moves slices, cuts and transposes past what an expression reads, up to the data, and then no task has a block
    of the array that the user wrote. Past an array over a graph it moves nothing: each of `arrays` becomes one, those
    that others of them are made of first. Its blocks go by the keys of the array, as others may read them by these.
    """
    held: list[tuple[Any, Any]] = []
    for one in sorted(arrays, key=_size):
        made_anew, name = _substituted(one, held), f"dagad-held-{one.name}"
        form, keys = named_like(one, name)
        graph = dict(graph_as_written(made_anew))
        for key, own, anew in zip(keys, _keys(one), _keys(made_anew), strict=True):
            graph[key] = Alias(key, own)
            if own != anew:
                graph[own] = Alias(own, anew)
        held.append((one, over(form, graph, name)))
    return _substituted(made, held)


def as_named_before(
    nodes: dict[Key, GraphNode], keys: Sequence[Key], written: object
) -> tuple[dict[Key, GraphNode], list[Key]]:
    """Return the graph of what `over_blocks` made of an array, and its keys, all by the names that they had before.

    Dask names what is made of an array after it. Over blocks they are computed from the same numbers, and whoever
    differentiates once more knows them by the names that the user's arrays have.
    """
    before, renamed, work = graph_as_written(written), dict[Key, Key](), list(zip(keys, _keys(written), strict=True))
    while work:
        key, old = work.pop()
        one, other = nodes.get(key), before.get(old)
        known = key == old or key in renamed or old in nodes
        if known or one is None or other is None or not _are_alike(one, other):
            continue
        renamed[key] = old
        work += zip(references(one), references(other), strict=True)
    found = {renamed.get(key, key): substituted(node, renamed, renamed.get(key, key)) for key, node in nodes.items()}
    return (found if renamed else nodes), [renamed.get(key, key) for key in keys]


def _are_alike(one: GraphNode, other: GraphNode) -> bool:
    """Return whether two nodes do the same with as many others."""
    if type(one) is not type(other) or len(references(one)) != len(references(other)):
        return False
    return isinstance(one, Alias) or (isinstance(one, Task) and _does(one) == _does(other))


def _does(task: AnyTask) -> tuple[str, list[str]]:
    """Return what a task's function is called, and its arguments that are written down in a few words."""
    plain = [repr(arg) for arg in task.args if type(arg) in _PLAIN]
    return getattr(task.func, "__qualname__", type(task.func).__qualname__), plain


def _substituted(made: AnyCollection, held: Sequence[tuple[Any, Any]]) -> Any:
    expr = made.expr
    for one, block in reversed(held):  # what is made of others goes first
        if one.name != made.name and hasattr(expr, "substitute"):
            expr = expr.substitute(one.expr, block.expr)
    return made if expr is made.expr else type(made)(expr)


def _size(made: AnyCollection) -> int:
    return sum(1 for _ in made.expr.walk())


def _keys(made: AnyCollection) -> list[Key]:
    return list(flatten(made.__dask_keys__()))


def named_like(made: AnyCollection, name: str) -> tuple[Any, list[Key]]:
    """Return an array of the same shape, chunks and dtype, whose keys are nobody else's, and its keys.

    It is only the form of what `over` makes: Dask's protocol makes an array over a graph that has the array's own keys,
    and those of `made` are taken.
    """
    form = made.map_blocks(_block, name=name, dtype=made.dtype)
    return form, _keys(form)


def _block(block: object) -> Any:
    return block


class Named(UserDict[Key, Any]):
    """A graph that Dask knows by a name, in place of hashing all that it holds."""

    def __init__(self, nodes: Mapping[Key, Any], name: str) -> None:
        super().__init__(nodes)
        self.name = name

    def __dask_tokenize__(self) -> str:
        return self.name


def over(form: Any, graph: Mapping[Key, Any], name: str) -> Any:
    """Return an array of an expression like `form`, which is computed by a graph that has its keys."""
    rebuild: tuple[Callable[..., Any], tuple[Any, ...]] = form.__dask_postpersist__()
    return rebuild[0](Named(graph, name), *rebuild[1])
