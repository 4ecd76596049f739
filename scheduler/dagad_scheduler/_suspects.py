"""Which task kills its workers? Dask blames every task that was assigned to a worker when it died; this asks again.

Each suspect is run alone, one after the other: the guilty one loses its worker again, the others do not.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any

from dask._expr import LLGExpr
from dask._task_spec import Task

from dagad_scheduler._roles import Key

ASK_FOR = 10.0  # seconds


def find_guilty(client: Any, graph: dict[Key, Any], n_deaths: int, *, replaced: bool) -> Key | None:
    """Return the task of a graph that brings its worker down when it runs alone; None if that can't be told."""
    found = client.run_on_scheduler(_suspects, keys=list(graph), n_deaths=n_deaths)
    suspects = [key for key in found if isinstance(graph[key], Task)]
    if len(suspects) == 1:
        return suspects[0]
    if not replaced:  # asking costs workers, and nobody would start others
        return None
    return next((key for key in suspects if _kills(client, graph, graph[key])), None)


def _kills(client: Any, graph: dict[Key, Any], node: Task) -> bool:
    alone = f"dagad-suspect-{uuid.uuid4().hex}"
    needed = {key: graph[key] for key in _needed(graph, node.dependencies)}
    needed[alone] = Task(alone, _without_result, node.func, *node.args)
    future = client.get(LLGExpr(needed, _determ_token=alone), [alone], sync=False)[0]
    try:
        return type(future.exception(ASK_FOR)).__name__ == "KilledWorker"
    except TimeoutError:  # there may be no worker left to tell
        return bool(client.run_on_scheduler(_deaths, key=alone))
    finally:
        future.release()


def _deaths(dask_scheduler: Any, key: str) -> int:
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


def _without_result(func: Any, *args: Any) -> None:
    """Run a task for what it does to its worker."""
    func(*args)


def _suspects(dask_scheduler: Any, keys: list[Key], n_deaths: int) -> list[Key]:
    """Return, on the scheduler, those tasks that were there whenever a worker died."""
    tasks = [dask_scheduler.tasks.get(key) for key in keys]
    return [task.key for task in tasks if task is not None and task.suspicious >= n_deaths]
