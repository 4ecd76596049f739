"""Which task kills its workers? Dask blames every task that was assigned to a worker when it died.

What Dask knows is reported; nothing is run to find out more unless the user asks for that (`find_deadly`): then each
suspect runs alone, one after the other. The guilty one loses its worker again, the others do not.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any

from dagad_scheduler._types import Client, Server
from dagad_scheduler.private import LLGExpr, Task
from dagad_scheduler.roles import Key


def suspects_of(client: Client, graph: dict[Key, Any], blamed: Key, n_deaths: int) -> tuple[Key, ...]:
    """Return the tasks of a graph that were there whenever a worker died; at least the one that Dask blames."""
    found = client.run_on_scheduler(_suspects, keys=list(graph), n_deaths=n_deaths)
    return tuple(key for key in found if isinstance(graph[key], Task)) or (blamed,)


def _suspects(dask_scheduler: Server, keys: list[Key], n_deaths: int) -> list[Key]:
    """Return, on the scheduler, those tasks that were there whenever a worker died."""
    tasks = [dask_scheduler.tasks.get(key) for key in keys]
    return [task.key for task in tasks if task is not None and task.suspicious >= n_deaths]


def find_deadly(client: Client, graph: dict[Key, Any], suspects: Sequence[Key], timeout: float | None) -> Key | None:
    """Return the task that brings its worker down when it runs alone; None if none does. It costs workers."""
    tasks = [key for key in suspects if isinstance(graph.get(key), Task)]
    return next((key for key in tasks if _kills(client, graph, graph[key], timeout)), None)


def _kills(client: Client, graph: dict[Key, Any], node: Task, timeout: float | None) -> bool:
    alone = f"dagad-suspect-{uuid.uuid4().hex}"
    needed = {key: graph[key] for key in _needed(graph, node.dependencies)}
    needed[alone] = Task(alone, _without_result, node.func, *node.args, **node.kwargs)
    future = client.get(LLGExpr(needed, _determ_token=alone), [alone], sync=False)[0]
    try:
        return type(future.exception(timeout)).__name__ == "KilledWorker"
    except TimeoutError:  # there may be no worker left to tell
        return bool(client.run_on_scheduler(_deaths, key=alone))
    finally:
        future.release()


def _deaths(dask_scheduler: Server, key: str) -> int:
    """Return, on the scheduler, how many workers have died with a task."""
    task = dask_scheduler.tasks.get(key)
    return 0 if task is None else int(task.suspicious)


def _needed(graph: dict[Key, Any], keys: Collection[Key]) -> set[Key]:
    found: set[Key] = set()
    stack = list(keys)
    while stack:
        key = stack.pop()
        if key in graph and key not in found:
            found.add(key)
            stack.extend(graph[key].dependencies)
    return found


def _without_result(func: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Run a task for what it does to its worker."""
    func(*args, **kwargs)
