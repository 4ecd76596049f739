"""Any other Dask ``get``, such as dask.multiprocessing's: results are reported when all of them are there."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Sequence
from typing import Any

from dagad_scheduler.failures import Standin
from dagad_scheduler.private import DataNode
from dagad_scheduler.process import calmed
from dagad_scheduler.roles import Key
from dagad_scheduler.run import Graph, Keys, OnResult, Run, Scheduler


class ForeignRun(Run):
    """One graph handed whole to somebody else's scheduler, which doesn't tell how far it is."""

    def __init__(self, get: Callable[..., Any], graph: Graph, keys: list[Key], on_result: OnResult, keep: set[Key]):
        self._get, self._graph, self._keys, self._on_result, self._keep = get, graph, keys, on_result, keep
        self.kept: dict[Key, Any] = {}

    def wait(self, timeout: float | None = None) -> None:
        """Compute everything; a Dask ``get`` can't be left early, so `timeout` has no effect."""
        del timeout
        wanted = [*self._keys, *self._keep]
        try:
            results = self._get(self._graph, wanted)
        except Standin as found:  # it has run the task in this process
            error = found.error
        else:
            self._report(wanted, results)
            return
        raise error

    def _report(self, wanted: list[Key], results: Sequence[Any]) -> None:
        for key, result in zip(wanted, results, strict=True):
            if key in self._keep:
                self.kept[key] = result
            else:
                self._on_result(key, result)

    def cancel(self) -> None:
        """Do nothing: a Dask ``get`` can't be left early."""


class Foreign(Scheduler):
    """Run graphs with any Dask ``get``."""

    remote, workers = True, None

    def __init__(self, get: Callable[..., Any]) -> None:
        self._get, self.name = get, getattr(get, "__module__", None) or "get"

    def start(
        self, graph: Graph, keys: Keys, on_result: OnResult, *, keep: Keys = (), kept: Graph | None = None
    ) -> ForeignRun:
        """Prepare the run; `wait` does it."""
        # In a process that is being made and imports a program without a main guard, as `multiprocessing` itself finds
        # out. It can't go on, and its tracebacks, one for each process, would hide what its parent says.
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            sys.exit(1)
        whole = calmed(dict(graph))
        whole.update({key: DataNode(key, value) for key, value in (kept or {}).items()})
        return ForeignRun(self._get, whole, list(keys), on_result, set(keep))
