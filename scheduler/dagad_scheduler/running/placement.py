"""Where the tasks of a graph go first on a cluster: neighbours together, rows and pullbacks to their values."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from typing import Any

from dagad_scheduler.private import DataNode, Task, TaskRef
from dagad_scheduler.roles import PULLBACK_RANK, VALUE_RANK, Key, Names, Role, rank_of, role_of


def _index_of(key: Key) -> int:
    index = key[1] if isinstance(key, tuple) and len(key) > 1 else 0
    index = index[-1] if isinstance(index, tuple) and index else index
    return index if isinstance(index, int) else 0


def homes_of(graph: dict[Key, Any], workers: list[str], kept: Collection[Key]) -> Callable[[Key], list[str]]:
    """Return where each task of a graph goes first, if not anywhere; `kept` are keys that earlier runs left there."""
    homes: dict[Key, list[str]] = {}
    # What depends on nothing is bound to nothing: with its worker gone it would wait for ever.
    bound = [key for key, node in graph.items() if node.dependencies]
    pullbacks = [key for key in bound if rank_of(key) == PULLBACK_RANK]
    for keys in (
        [key for key in bound if rank_of(key) == VALUE_RANK],
        [key for key in bound if role_of(key) == Role.SHARD],
        [key for key in kept if rank_of(key) == VALUE_RANK or role_of(key) == Role.GETITEM],
    ):  # as many neighbours for each worker, so that most sums stay on one
        for index, key in enumerate(sorted(keys, key=_index_of)):
            homes[key] = workers[index * len(workers) // len(keys) :][:1]
    for key in bound:  # what it is to find may have been left on one of them
        if role_of(key) != Role.SHARD:  # a task of ours: what users pass to theirs is not to be asked
            continue
        args = getattr(graph[key], "args", ())[:2]  # the first may be the function itself; see `calmed`
        wanted = next((arg.home for arg in args if isinstance(getattr(arg, "home", None), str)), "")
        if wanted in workers:
            homes[key] = [wanted]
    for key in pullbacks:  # where its value is, be there pullbacks of all values or of some
        homes[key] = next((homes[needed] for needed in graph[key].dependencies if needed in homes), [])
    for key, readers in _readers(graph).items():  # rows of one chunk would land anywhere, and travel on
        homes[key] = homes.get(readers[0], []) if len(readers) == 1 else []

    def home(key: Key) -> list[str]:
        return homes.get(key, [])

    return home


def _readers(graph: dict[Key, Any]) -> dict[Key, list[Key]]:
    """Return for each input that has an anchor who reads it."""
    found: dict[Key, list[Key]] = {
        key: []
        for key, node in graph.items()
        if role_of(key) == Role.INPUT and type(node) is Task and node.func is _after
    }
    for key, node in graph.items():
        for needed in node.dependencies & found.keys():
            found[needed].append(key)
    return found


def anchored(graph: dict[Key, Any]) -> dict[Key, Any]:
    """Return the graph with values, and what loads rows, depending on something, so that they may have a home.

    See `ClusterRun`.
    """
    roots = [
        node
        for key, node in graph.items()
        if type(node) is Task
        and not node.dependencies
        and role_of(key) in (Role.VALUE, Role.VALUE_AND_GRAD, Role.PULLBACK, Role.SHARD)
    ]
    # Rows of one chunk; what all chunks need goes wherever it is needed.
    rows = [key for key, node in graph.items() if type(node) is DataNode and _is_of_one_chunk(key)]
    if roots or rows:
        anchor = Names(uuid.uuid4().hex)(Role.INPUT, "anchor")
        graph[anchor] = Task(anchor, _nothing)
    for key in rows:
        graph[key] = Task(key, _after, TaskRef(anchor), _given, graph[key].value)
    for node in roots:
        graph[node.key] = Task(node.key, _after, TaskRef(anchor), node.func, *node.args, **node.kwargs)
    return graph


def _is_of_one_chunk(key: Key) -> bool:
    return role_of(key) == Role.INPUT and isinstance(key, tuple) and isinstance(key[1], tuple)


def _given(value: object) -> Any:
    """Return what was sent with the graph."""
    return value


def _nothing() -> None:
    """Do nothing, wherever there is a worker."""


def _after(anchor: None, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a task that needs nothing but a worker."""
    del anchor
    return func(*args, **kwargs)
