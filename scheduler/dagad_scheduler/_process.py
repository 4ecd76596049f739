"""What a process is told while chunks run in it: one BLAS thread, a patient collector, memory that stays.

State, all of it in `_Calm` and changed only under its lock:

=============  ======================================================================================
`depth`        how many runs are inside; the first one in changes the process, the last one out restores it
`found`        the BLAS libraries that had more than one thread before the first run came in, and how many
`threshold`    the collector's thresholds before the first run came in
`controller`   the BLAS libraries found; looked for again when more modules have been imported
`n_frozen`     how often in a row tapes were put out of the collector's sight
`tuned`        whether the allocator has been told (once per process, cannot be taken back)
=============  ======================================================================================
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import dask
import threadpoolctl
from dask._task_spec import Task

from dagad_scheduler._roles import PULLBACK_RANK, VALUE_RANK, Key, rank
from dagad_scheduler._run import inside_task

# A tape of a hundred thousand operations holds about a million containers; the collector's stock 700 makes it walk
# the growing tape again and again. Bounded, so that cyclic garbage of a user's function is still collected.
COLLECT_AFTER = 2_000_000
LARGE_TAPE, THAW_EVERY = 100_000, 16
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc refuses more


class _Calm:
    """A reentrant, process-wide hold. Entering from several threads at once is fine."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0
        self.found: list[tuple[Any, int]] = []
        self.threshold: tuple[int, int, int] = (0, 0, 0)
        self.controller: Any = None
        self.modules = 0
        self.tuned = False
        self.n_frozen = 0

    def __enter__(self) -> None:
        with self.lock:
            if not self.depth:
                self._hold()
            self.depth += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0:
                self._restore()

    def _hold(self) -> None:
        if len(sys.modules) != self.modules:
            self.controller, self.modules = threadpoolctl.ThreadpoolController(), len(sys.modules)
        self.threshold = gc.get_threshold()
        # One by one: threadpoolctl's own limiter looks every library over, which costs more than a small chunk.
        libraries = [library for library in self.controller.lib_controllers if library.user_api == "blas"]
        self.found = [(library, number) for library in libraries if (number := library.get_num_threads()) != 1]
        for library, _ in self.found:
            _set_threads(library, 1)
        if 0 < self.threshold[0] < COLLECT_AFTER:
            gc.set_threshold(COLLECT_AFTER, *self.threshold[1:])
        if not self.tuned:
            self.tuned = True
            keep_freed_memory(dask.config.get("dagad.keep-freed-memory", default=256 * 2**20))

    def _restore(self) -> None:
        for library, number in self.found:
            _set_threads(library, number)
        self.found = []
        if gc.isenabled() and gc.get_count()[0] > LARGE_TAPE:
            self._put_away()
        gc.set_threshold(*self.threshold)

    def _put_away(self) -> None:
        """Spare the collector the tapes that live on: with its usual threshold it would walk all of them at once.

        What is frozen is freed as ever when nobody refers to it; only its cycles wait, until every few times it thaws.
        """
        self.n_frozen = (self.n_frozen + 1) % THAW_EVERY
        if self.n_frozen:
            gc.freeze()
        else:
            gc.unfreeze()


def _set_threads(library: Any, number: int) -> None:
    """Set the number of threads of a BLAS library, from whatever thread this is.

    threadpoolctl 3.8 obeys only the first thread that ever set OpenBLAS's, and silently ignores all others. Here the
    lock sees to it that only one does at a time; nobody is left as the one to obey.
    """
    clear = getattr(library, "clear_controlling_thread", _nothing)
    clear(force=True)
    library.set_num_threads(number)
    clear(force=True)


def _nothing(*, force: bool) -> None:
    del force


calm_process = _Calm()


def keep_freed_memory(nbytes: int | None) -> bool:
    """Tell glibc to keep up to `nbytes` of freed memory for the next array instead of returning it at once.

    A Dask nanny starts its workers so that every array above 128 kB is mapped, faulted in page by page and unmapped
    again, which makes numpy about four times slower; plain glibc does the same at some chunk sizes. Elsewhere than
    on glibc nothing happens. `None` leaves the allocator alone.
    """
    if not nbytes or not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, min(nbytes, LARGEST_MMAP_THRESHOLD)) and mallopt(M_TRIM_THRESHOLD, nbytes))


def run_calmly(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run one task in a calm process: the wrapper of tasks that leave for another process."""
    with calm_process, inside_task:
        try:
            return func(*args, **kwargs)
        except Exception as error:
            _say_where(error)
            raise


def _say_where(error: Exception) -> None:
    """Add the worker's address to the note that says which chunk it was."""
    where, notes = _worker(), getattr(error, "__notes__", [])
    for place, note in enumerate(notes):
        if where is not None and note.startswith("dagad: ") and ", worker " not in note:
            notes[place] = f"{note}, worker {where}"


def _worker() -> str | None:
    """Return the address of the worker that this thread runs a task for, if it does."""
    module = sys.modules.get("distributed.worker")
    state = getattr(getattr(module, "thread_state", None), "execution_state", None)
    return None if state is None else str(state["worker"].address)


def calmed(graph: dict[Key, Any]) -> dict[Key, Any]:
    """Return the graph with every value and pullback task wrapped in `run_calmly`."""
    heavy = (VALUE_RANK, PULLBACK_RANK)
    return {
        key: Task(key, run_calmly, node.func, *node.args, **node.kwargs)
        if type(node) is Task and isinstance(key, tuple) and rank(key[0]) in heavy
        else node
        for key, node in graph.items()
    }
