"""What a process is told while chunks run in it: one BLAS thread, a patient collector, memory that stays.

All of it is taken back when the last chunk has left; a setting that somebody else has changed meanwhile is left as it
is. Three things outlast the chunks: the collector stays patient while large tapes live, what the allocator has learned
can't be unlearned (`keep_freed_memory`), and a Dask worker looks whether it is paused (`_return_memory_while_paused`).

State, all of it in `_ProcessSettings` and changed only under its lock, but `spared`, which single operations change:

=============  ======================================================================================
`depth`        how many runs are inside; the first one in changes the process, the last one out restores it
`patient`      how many are inside of `patient_collector`, for which the collector alone is held
`found`        the BLAS libraries that had more than one thread before the first run came in, and how many
`collector`    the collector's thresholds as they were found and as they were set; None while they are not held
`spared`       what lives on and is not to be walked by the collector again and again: the ids of `Spared`
`libraries`    the BLAS libraries there are; looked for again when more modules have been imported
`tuned`        whether the allocator has been told (once per process)
=============  ======================================================================================
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import dask
import threadpoolctl

from dagad_scheduler.failures import portable_error, say_where
from dagad_scheduler.private import Task
from dagad_scheduler.roles import PULLBACK_RANK, VALUE_RANK, Key, Role, rank_of, role_of
from dagad_scheduler.run import inside_task

# A tape of a hundred thousand operations holds about a million containers; the collector's stock 700 makes it walk
# the growing tape again and again. Bounded, so that cyclic garbage of a user's function is still collected.
COLLECT_AFTER = 2_000_000
LARGE_TAPE = 100_000  # containers; to walk fewer of them takes less than 20 ms
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
TRIM_VARIABLE = "MALLOC_TRIM_THRESHOLD_"
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc refuses more
LOOK_EVERY = 0.5  # seconds, whether Dask has paused a worker

Thresholds = tuple[int, int, int]


class _ProcessSettings:
    """A reentrant, process-wide hold. Entering from several threads at once is fine."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = self.patient = 0
        self.found: list[tuple[Library, int]] = []
        self.collector: tuple[Thresholds, Thresholds] | None = None
        self.spared: set[int] = set()
        self.libraries: list[Library] = []
        self.modules = 0
        self.tuned = False

    def __enter__(self) -> None:
        with self.lock:
            if not self.depth:
                try:
                    self._hold()
                except BaseException:  # KeyboardInterrupt, half way
                    self._restore()
                    raise
            self.depth += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0:
                self._restore()
        self.look_again()

    def _hold(self) -> None:
        if len(sys.modules) != self.modules:
            controllers = threadpoolctl.ThreadpoolController().lib_controllers
            self.libraries = [Library.of(each) for each in controllers if each.user_api == "blas"]
            self.modules = len(sys.modules)
        self.found = [(library, number) for library in self.libraries if (number := library.n_threads()) != 1]
        for library, _ in self.found:
            library.set_n_threads(1)
        self.hold_collector()
        if not self.tuned:
            self.tuned = True
            keep_freed_memory(dask.config.get("dagad.keep-freed-memory", default=256 * 2**20))

    def hold_collector(self) -> None:
        """Make the collector patient; called under the lock."""
        found = gc.get_threshold()
        if self.collector is not None and self.collector[1] == found:
            return  # held since an earlier run, for tapes that live
        self.collector = None
        if 0 < found[0] < COLLECT_AFTER:
            self.collector = found, (COLLECT_AFTER, *found[1:])
            gc.set_threshold(*self.collector[1])

    def _restore(self) -> None:
        for library, number in self.found:
            if library.n_threads() == 1:  # else somebody has set it meanwhile
                library.set_n_threads(number)
        self.found = []
        if not self.spared and not self.patient:
            self._restore_collector()

    def _restore_collector(self) -> None:
        if self.collector is not None and gc.get_threshold() == self.collector[1]:
            gc.set_threshold(*self.collector[0])
        self.collector = None

    def look_again(self) -> None:
        """Give the collector back once nothing is spared any more and no run is inside.

        It is called by `Spared.__del__`, so wherever memory is freed, maybe by the thread that has the lock: it never
        waits for the lock. Who has it calls this once more when it has let go.
        """
        while self.collector is not None and not self._is_held() and self.lock.acquire(blocking=False):
            try:
                if not self._is_held():
                    self._restore_collector()
            finally:
                self.lock.release()

    def _is_held(self) -> bool:
        return bool(self.spared or self.depth or self.patient)


class Spared:
    """As long as this lives, something large does, and the collector stays patient after the runs that made it.

    Called with a cotangent it returns no cotangents, so that it may stand where a tape begins.
    """

    __slots__ = ("_calm",)

    def __init__(self, calm: _ProcessSettings) -> None:
        self._calm = calm
        calm.spared.add(id(self))

    def __call__(self, cotangent: object) -> tuple[()]:
        """Return nothing: what stands at the beginning has no parents."""
        del cotangent
        return ()

    def __del__(self) -> None:
        self._calm.spared.discard(id(self))
        self._calm.look_again()


process_settings = _ProcessSettings()


class _PatientCollector:
    """Holds the collector alone, by the same state: where many objects are made, all of which live on."""

    def __enter__(self) -> None:
        with process_settings.lock:
            if not (process_settings.depth or process_settings.patient):
                process_settings.hold_collector()
            process_settings.patient += 1

    def __exit__(self, *_: object) -> None:
        with process_settings.lock:
            process_settings.patient -= 1
        process_settings.look_again()


patient_collector = _PatientCollector()


def spared_if_large() -> Spared | None:
    """Return what is to be kept along with something that has just been made, if that is of many containers."""
    return Spared(process_settings) if gc.get_count()[0] > LARGE_TAPE else None


class Library(NamedTuple):
    """How many threads a BLAS library has, and how to change it."""

    n_threads: Callable[[], int]
    set_n_threads: Callable[[int], Any]

    @classmethod
    def of(cls, controller: Any) -> Library:
        """Return the C functions of OpenBLAS with threads of its own, which are one pool for the whole process.

        threadpoolctl 3.8 obeys only the first thread that ever set that pool, and silently ignores all others; here the
        lock sees to it that only one does at a time. Its way there also costs more than a small chunk.
        """
        if controller.internal_api == "openblas" and controller.threading_layer == "pthreads":
            for prefix, suffix in itertools.product(("", "scipy_"), ("", "64_", "_64")):
                count = getattr(controller.dynlib, f"{prefix}openblas_get_num_threads{suffix}", None)
                change = getattr(controller.dynlib, f"{prefix}openblas_set_num_threads{suffix}", None)
                if count is not None and change is not None:
                    return cls(count, change)
        return cls(controller.get_num_threads, controller.set_num_threads)


def keep_freed_memory(nbytes: int | None) -> bool:
    """Have glibc keep freed memory for the next array instead of returning it at once; None leaves it alone.

    Left to itself glibc maps large arrays, faults them in page by page and unmaps them again, until it has seen some
    freed: numpy is up to four times slower then. This tells it that an array of 32 MB has been freed, by freeing one
    (which was never touched): it then keeps up to 64 MB, as after any such array of the user's.

    A Dask nanny has switched that off for its workers: every array above 128 kB is mapped and unmapped again. There,
    and only there, the thresholds are set, to `nbytes`. Who has set glibc's variables for another process is obeyed,
    and elsewhere than on glibc nothing happens. Returns whether anything was done.
    """
    if not nbytes or not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL(None)
        mallopt, malloc, free = libc.mallopt, libc.malloc, libc.free
    except (AttributeError, OSError):
        return False
    if _is_child_of_a_nanny():
        _return_memory_while_paused(libc)
        largest = min(nbytes, LARGEST_MMAP_THRESHOLD)
        return bool(mallopt(M_MMAP_THRESHOLD, largest) and mallopt(M_TRIM_THRESHOLD, nbytes))
    malloc.restype, malloc.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    free(malloc(min(nbytes, LARGEST_MMAP_THRESHOLD) - 2**16))  # with its head it must not be larger than that
    return True


def _return_memory_while_paused(libc: Any) -> None:
    """Have this process's Dask worker return what is kept whenever Dask has paused it for want of memory.

    It goes on when the process is smaller. What is kept does not shrink by itself while nothing runs, so that it would
    wait for ever.
    """
    distributed: Any = sys.modules.get("distributed")
    try:
        worker = distributed.get_worker()
    except (AttributeError, ValueError):  # no worker's thread
        return

    def look() -> None:
        if worker.status.name == "paused":
            libc.malloc_trim(0)
        worker.loop.call_later(LOOK_EVERY, look)

    worker.loop.add_callback(look)


def _is_child_of_a_nanny() -> bool:
    """Return whether a Dask nanny started this process, with its own setting of glibc's trim threshold."""
    pinned = dask.config.get(f"distributed.nanny.pre-spawn-environ.{TRIM_VARIABLE}", None)
    return multiprocessing.parent_process() is not None and os.environ.get(TRIM_VARIABLE) == str(pinned)


def run_calmly(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run one task in a calm process: the wrapper of values and pullbacks that leave for another process."""
    with process_settings, inside_task:
        return run_elsewhere(func, *args, **kwargs)


def run_elsewhere(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run one task so that its error arrives in the process that waits for it."""
    try:
        return func(*args, **kwargs)
    except BaseException as error:
        if not isinstance(error, Exception):  # which no function of a user's is to catch
            say_where(error)
            raise
        found = portable_error(error)
        if found is error:
            raise
    raise found  # outside, where what it stands for is not its context, which would travel along


def calmed(graph: dict[Key, Any]) -> dict[Key, Any]:
    """Return the graph with its tasks wrapped as those that leave: values and pullbacks, and what places rows."""
    return {key: _calmed(key, node) if type(node) is Task else node for key, node in graph.items()}


def _calmed(key: Key, node: Task) -> Task:
    if not isinstance(key, tuple):
        return node
    if rank_of(key) in (VALUE_RANK, PULLBACK_RANK):
        return Task(key, run_calmly, node.func, *node.args, **node.kwargs)
    return Task(key, run_elsewhere, node.func, *node.args, **node.kwargs) if role_of(key) == Role.SHARD else node
