"""The competitors on a cluster: each puts the rows of a case in place once and gives a function of the parameters.

handler     a handler on each worker (`client.rpc`), which runs its chunks in the worker's executor; resident rows
submit      a task for each worker by `client.submit`, then `gather`; resident rows
actors      an Actor on each worker that owns its rows
joblib      joblib's own processes (loky); the rows travel in each call
delayed     `dask.delayed`: a task a chunk, and one that adds up; the rows travel in each call
dagad       `dagad.value_and_grad` over `dagad.reduce_sum` on Shards; on plain arrays where a parameter is sliced too
            (W3), and where that is the question (W7, graph)

All but joblib and delayed have cured what a journey spoils; see `cluster_handler`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from cluster_handler import (
    Competitor,
    Evaluate,
    healed,
    part,
    part_alone,
    resident,
    shares,
)
from competitors import Outcome, add_up, cut, grainsize, keep_memory, local
from dask.delayed import delayed as dask_delayed
from distributed import Client
from models import Array, Rows
from workloads import Case

import dagad
import dagad.extend


def submit(client: Client, case: Case, n_chunks: int) -> Evaluate:
    """A task for each worker."""
    client.run(keep_memory)
    dealt = shares(client, case, n_chunks)
    futures = [resident(client, share) for share in dealt]
    task = partial(client.submit, part_alone, pure=False)

    def evaluate(*params: Array) -> Outcome:
        tasks = [
            task(share.case, pieces, share.params(params), workers=[share.address])
            for share, pieces in zip(dealt, futures, strict=True)
        ]
        return add_up(case, client.gather(tasks))

    return evaluate


class ChunkActor:
    """Owns a share."""

    def __init__(self, case: Case, pieces: list[Rows]) -> None:
        keep_memory()
        self._run, self._case, self._pieces = local(case), case, [healed(piece) for piece in pieces]

    def evaluate(self, params: tuple[Array, ...]) -> Outcome:
        """The share's value and gradient."""
        return part(self._run, self._case, self._pieces, params)


def actors(client: Client, case: Case, n_chunks: int) -> Evaluate:
    """A method call for each worker."""
    dealt = shares(client, case, n_chunks)
    futures = [
        client.submit(ChunkActor, share.case, share.pieces, workers=[share.address], actor=True) for share in dealt
    ]
    made: list[Any] = [future.result() for future in futures]

    def evaluate(*params: Array) -> Outcome:
        calls = [actor.evaluate(share.params(params)) for actor, share in zip(made, dealt, strict=True)]
        return add_up(case, [call.result() for call in calls])

    return evaluate


def joblib_on(parallel: Any) -> Competitor:
    """Give the competitor that runs on a `joblib.Parallel`."""

    def make(client: Client, case: Case, n_chunks: int) -> Evaluate:
        from joblib import delayed

        dealt = shares(client, case, n_chunks)

        def evaluate(*params: Array) -> Outcome:
            calls = (delayed(part_alone)(share.case, share.pieces, share.params(params)) for share in dealt)
            return add_up(case, parallel(calls))

        return evaluate

    return make


def delayed(client: Client, case: Case, n_chunks: int) -> Evaluate:
    """A task a chunk."""
    stub, pieces = replace(case, data=()), [piece[0] for piece in cut(case, n_chunks)]
    run, total = dask_delayed(part_alone, pure=False), dask_delayed(add_up, pure=False)

    def evaluate(*params: Array) -> Outcome:
        tasks = [run(stub, [piece], params) for piece in pieces]
        outcome: Outcome = client.compute(total(stub, tasks)).result()
        return outcome

    return evaluate


def dagad_program(client: Client, case: Case, n_chunks: int, *, on_shards: bool) -> Callable[..., Any]:
    """The function of the parameters that a user would write."""
    chunk = dagad.extend.explicit(case.explicit) if case.explicit else case.chunk
    size = grainsize(case, n_chunks)
    if on_shards:
        shards = dagad.shard(case.data, grainsize=size, scheduler=client)
        return lambda *params: dagad.reduce_sum(chunk, shards, *params, scheduler=client)

    def total(*params: Any) -> Any:
        rows = (params[0], *case.data) if case.own else case.data
        shared = params[1:] if case.own else params
        return dagad.reduce_sum(chunk, rows, *shared, grainsize=size, scheduler=client)

    return total


def dagad_shards(client: Client, case: Case, n_chunks: int) -> Evaluate:
    """On Shards; on plain arrays where a parameter is sliced together with the data."""
    return dagad_call(dagad_program(client, case, n_chunks, on_shards=not case.own), case)


def dagad_rows(client: Client, case: Case, n_chunks: int) -> Evaluate:
    """On plain arrays."""
    return dagad_call(dagad_program(client, case, n_chunks, on_shards=False), case)


def dagad_call(program: Callable[..., Any], case: Case) -> Evaluate:
    """Value and gradient in all parameters."""
    call: Evaluate = dagad.value_and_grad(program, argnums=tuple(range(len(case.params))))
    return call
