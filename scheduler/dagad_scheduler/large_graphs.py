"""Held while a graph is sent to a cluster: Dask's advice against large graphs is not for rows with a lineage."""

from __future__ import annotations

import contextlib
import threading

import dask

_WARN_FROM = "distributed.admin.large-graph-warning-threshold"


class LargeGraphs:
    """Keeps Dask from advising against large graphs: rows that are to have a lineage have to travel in one.

    State: `_depth`, how many submissions are under way, and `_config`, the setting held for them; under `_lock`.
    """

    def __init__(self) -> None:
        self._lock, self._depth, self._config = threading.Lock(), 0, contextlib.ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._config.enter_context(dask.config.set({_WARN_FROM: "1 PB"}))

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if not self._depth:
                self._config.close()


LARGE_GRAPHS = LargeGraphs()
