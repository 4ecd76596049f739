"""Graphs for threads to run, and the schedulers that run them in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask._task_spec import Task

from dagad_scheduler import Sync, Threads

LOCAL = [Sync(), Threads(2), Threads(4)]


def increase(x: float) -> float:
    return x + 1


def nothing(*args: Any) -> None:
    pass


def each(function: Callable[[int], Any], n: int) -> dict[Any, Any]:
    """Return a graph of n tasks that call a function with their number."""
    return {f"x{i}": Task(f"x{i}", function, i) for i in range(n)}
