"""The competitors: each takes a case and a number of chunks and gives a function that returns the value and gradient.

plain       `autograd.value_and_grad` on the whole function, as it comes
pickled     the same, on data that came out of a pickle: their dtype is slow in `np.add.at` with fresh parameters
cured       the same, with that dtype put right and an allocator that keeps its memory
loop        a bare loop over chunks that were cut beforehand, one `autograd.value_and_grad` each, added up
pool        the same through `ThreadPoolExecutor(2).map`
delayed     the same through `dask.delayed` and `dask.compute`, two threads
dagad       `dagad.value_and_grad` over `dagad.reduce_sum`, two threads, a fixed grainsize or "auto"
"""

from __future__ import annotations

import ctypes
import pickle
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import autograd
import dask
import numpy as np
from dask.base import compute
from dask.delayed import delayed as dask_delayed
from models import Array, Rows
from workloads import MIB, Case

N_THREADS = 2
AUTO = 0

Outcome = tuple[float, tuple[Array, ...]]
Call = Callable[[], Outcome]
Local = Callable[..., Outcome]

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def whole(case: Case) -> Callable[..., Any]:
    """The chunk function as a function of (data, *params): a sliced parameter joins the rows inside."""
    if not case.own:
        return case.chunk

    def joined(data: Rows, own: Any, *shared: Any) -> Any:
        return case.chunk((own, *data), *shared)

    return joined


def local(case: Case) -> Local:
    """(data, *params) -> value and gradient of one chunk by autograd, or in closed form where the case has one."""
    return explicit_local(case) if case.explicit else autograd_local(case)


def autograd_local(case: Case) -> Local:
    """By autograd, with as little around it as can be."""
    if len(case.params) == 1:
        single = autograd.value_and_grad(whole(case), 1)

        def one(data: Rows, param: Array) -> Outcome:
            value, gradient = single(data, param)
            return value, (gradient,)

        return one
    several: Local = autograd.value_and_grad(whole(case), tuple(range(1, len(case.params) + 1)))
    return several


def explicit_local(case: Case) -> Local:
    """By the case's own closed form."""
    function = case.explicit
    assert function is not None

    def closed_form(data: Rows, *params: Array) -> Outcome:
        value, pullback = function(data, *params)
        return value, pullback(1.0)[1:]

    return closed_form


def cut(case: Case, n_chunks: int) -> list[tuple[Any, ...]]:
    """The arguments of `local` for each chunk, cut by the grainsize that dagad is given too."""
    size = grainsize(case, n_chunks)
    pieces = []
    for start in range(0, case.n_rows, size):
        rows = slice(start, start + size)
        params = (case.params[0][rows], *case.params[1:]) if case.own else case.params
        pieces.append((tuple(a[rows] for a in case.data), *params))
    return pieces


def grainsize(case: Case, n_chunks: int) -> int:
    """Rows a chunk."""
    return -(-case.n_rows // n_chunks)


def add_up(case: Case, parts: Iterable[Outcome]) -> Outcome:
    """Sum the values and the shared gradients, put the sliced ones one after the other."""
    own: list[Array] = []
    value: float = 0.0
    totals: list[Any] = [0.0] * len(case.params)
    for part_value, gradients in parts:
        value = value + part_value
        for k, gradient in enumerate(gradients):
            if k == 0 and case.own:
                own.append(gradient)
            else:
                totals[k] = totals[k] + gradient
    return value, (np.concatenate(own) if own else totals[0], *totals[1:])


def plain(case: Case, n_chunks: int) -> Call:
    """One shot, as it comes."""
    del n_chunks
    return partial(autograd_local(case), case.data, *case.params)


def pickled(case: Case, n_chunks: int) -> Call:
    """One shot on data that travelled, and parameters that did not, as in a process that was sent its data."""
    return plain(through_pickle(case), n_chunks)


def cured(case: Case, n_chunks: int) -> Call:
    """One shot on data that travelled and had their dtype put right, with memory that the allocator keeps."""
    keep_memory()
    data = tuple(a.view(np.dtype(a.dtype.str)) for a in through_pickle(case).data)
    return plain(replace(case, data=data), n_chunks)


def through_pickle(case: Case) -> Case:
    """The case with data that came out of a pickle."""
    return replace(case, data=pickle.loads(pickle.dumps(case.data)))


def keep_memory() -> None:
    """Stop glibc from mapping and unmapping large arrays; 32 MiB is the highest threshold it takes."""
    libc = ctypes.CDLL(None)
    if not (libc.mallopt(M_MMAP_THRESHOLD, 32 * MIB) and libc.mallopt(M_TRIM_THRESHOLD, 2000 * MIB)):
        raise RuntimeError("`mallopt` refused the thresholds. Run the cured competitor on glibc.")


def loop(case: Case, n_chunks: int) -> Call:
    """One chunk after the other."""
    run, pieces = local(case), cut(case, n_chunks)
    return lambda: add_up(case, (run(*piece) for piece in pieces))


def pool(case: Case, n_chunks: int) -> Call:
    """Two threads; the results are added up in the order of the chunks."""
    run, pieces = local(case), cut(case, n_chunks)
    executor = ThreadPoolExecutor(N_THREADS)
    return lambda: add_up(case, executor.map(lambda piece: run(*piece), pieces))


def delayed(case: Case, n_chunks: int) -> Call:
    """A task a chunk, on Dask's threads."""
    run, pieces = dask_delayed(local(case), pure=False), cut(case, n_chunks)

    def call() -> Outcome:
        tasks = [run(*piece) for piece in pieces]
        parts = compute(*tasks, scheduler="threads", num_workers=N_THREADS)
        return add_up(case, parts)

    return call


def program(case: Case, n_chunks: int) -> Callable[..., Any]:
    """The function of the parameters that a user of dagad would write."""
    import dagad
    import dagad.extend

    chunk = dagad.extend.explicit(case.explicit) if case.explicit else case.chunk
    size = "auto" if n_chunks == AUTO else grainsize(case, n_chunks)

    def total(*params: Any) -> Any:
        rows, shared = ((params[0], *case.data), params[1:]) if case.own else (case.data, params)
        return dagad.reduce_sum(chunk, rows, *shared, grainsize=size, scheduler="threads")

    return total


def dagad_call(case: Case, n_chunks: int) -> Call:
    """`dagad.value_and_grad` of the program."""
    import dagad

    dask.config.set(num_workers=N_THREADS)
    argnums = tuple(range(len(case.params)))
    return partial(dagad.value_and_grad(program(case, n_chunks), argnums=argnums), *case.params)


def dagad_early(case: Case, n_chunks: int) -> Callable[[], tuple[float, float]]:
    """Seconds until `dagad.evaluate` has the value, and until it has the gradient."""
    import dagad

    dask.config.set(num_workers=N_THREADS)
    function, argnums = program(case, n_chunks), tuple(range(len(case.params)))

    def stamps() -> tuple[float, float]:
        start = time.perf_counter()
        evaluation = dagad.evaluate(function, *case.params, argnums=argnums)
        evaluation.value()
        first = time.perf_counter() - start
        evaluation.gradient()
        return first, time.perf_counter() - start

    return stamps


def dagad_pickled(case: Case, n_chunks: int) -> Call:
    """The same on data that travelled."""
    return dagad_call(through_pickle(case), n_chunks)


COMPETITORS: dict[str, Callable[[Case, int], Call]] = {
    "plain": plain,
    "pickled": pickled,
    "cured": cured,
    "loop": loop,
    "pool": pool,
    "delayed": delayed,
    "dagad": dagad_call,
    "dagad pickled": dagad_pickled,
}
ONE_SHOT = ("plain", "pickled", "cured")
