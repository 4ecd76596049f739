"""A bare handler on each worker: the fastest that distributed can be asked, and what the others share with it.

A case is cut into chunks, dealt out to the workers and put in place with all cured that a journey spoils: dtypes that
numpy does not know by sight, odd addresses, and the allocator settings of the nanny.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from competitors import Local, Outcome, add_up, cut, grainsize, keep_memory, local
from distributed import Client, Worker, WorkerPlugin
from distributed.protocol.serialize import to_serialize
from models import Array, Rows
from workloads import Case

HANDLER = "benchmark_evaluate"

Evaluate = Callable[..., Outcome]
Competitor = Callable[[Client, Case, int], Evaluate]


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker does: neighbouring chunks, and which rows of a sliced parameter belong to them."""

    address: str
    case: Case  # all that the worker has to know beside the rows
    pieces: list[Rows]
    rows: slice

    def params(self, params: tuple[Array, ...]) -> tuple[Array, ...]:
        """The parameters that this worker needs."""
        return (params[0][self.rows], *params[1:]) if self.case.own else params


def shares(client: Client, case: Case, n_chunks: int) -> list[Share]:
    """The chunks, dealt out to the workers that get any."""
    addresses = sorted(client.nthreads())
    pieces, size = [piece[0] for piece in cut(case, n_chunks)], grainsize(case, n_chunks)
    each = -(-len(pieces) // len(addresses))
    dealt = []
    for address, start in zip(addresses, range(0, len(pieces), each), strict=False):
        rows = slice(start * size, (start + each) * size)
        params = (case.params[0][rows], *case.params[1:]) if case.own else case.params
        dealt.append(Share(address, replace(case, data=(), params=params), pieces[start : start + each], rows))
    return dealt


def healed(arrays: Iterable[Array]) -> tuple[Array, ...]:
    """The same arrays with the dtype that numpy knows by sight, at an address that suits it.

    What comes off the wire may lie at any address; numpy copies such an array in every matrix product.
    """
    return tuple((a if a.flags.aligned else a.copy()).view(np.dtype(a.dtype.str)) for a in arrays)


def part(run: Local, case: Case, pieces: list[Rows], params: tuple[Array, ...]) -> Outcome:
    """One worker's share of value and gradient."""
    params = healed(params)
    if not case.own:
        return add_up(case, (run(piece, *params) for piece in pieces))
    stops = list(accumulate(len(piece[0]) for piece in pieces))
    owned = np.split(params[0], stops[:-1])
    return add_up(case, (run(piece, own, *params[1:]) for piece, own in zip(pieces, owned, strict=True)))


def part_alone(case: Case, pieces: list[Rows], params: tuple[Array, ...]) -> Outcome:
    """The same as a task that finds nothing prepared."""
    return part(local(case), case, pieces, params)


def packed(*arrays: Any) -> Any:
    """All numbers in one array, wrapped for the wire: each array on its own would cost some 50 us."""
    return to_serialize(np.concatenate([np.ravel(a) for a in arrays]))


def unpacked(numbers: Array, like: tuple[Array, ...]) -> tuple[Array, ...]:
    """What was packed, in the shapes of `like`."""
    parts = np.split(numbers, list(accumulate(a.size for a in like))[:-1])
    return tuple(some.reshape(a.shape) for some, a in zip(parts, like, strict=True))


class BareHandler(WorkerPlugin):
    """The least that distributed can do: no task, no state machine, one answer from each worker."""

    name = "benchmark-bare-handler"
    idempotent = True  # registered again, it stays, and remembers its jobs

    def setup(self, worker: Worker) -> None:
        """Register the handler; `jobs`: what has been announced to this worker."""
        keep_memory()
        self.jobs: dict[str, tuple[Local, Case]] = {}

        def work(job: str, keys: list[Any], numbers: Array) -> Any:
            run, case = self.jobs[job]
            pieces: list[Any] = [worker.data[key] for key in keys]
            value, gradients = part(run, case, pieces, unpacked(numbers, case.params))
            return packed(value, *gradients)

        async def evaluate(job: str, keys: list[Any], numbers: Array) -> dict[str, Any]:
            loop, executor = asyncio.get_running_loop(), worker.executors["default"]
            return {"status": "OK", "result": await loop.run_in_executor(executor, work, job, keys, numbers)}

        worker.handlers[HANDLER] = evaluate


def announce(job: str, case: Case, *, dask_worker: Worker) -> None:
    """Tell a worker what to run."""
    plugin = dask_worker.plugins[BareHandler.name]
    assert isinstance(plugin, BareHandler)
    plugin.jobs[job] = (local(case), case)


def resident(client: Client, share: Share) -> list[Any]:
    """Futures of a share's pieces on its worker."""
    sent = client.scatter(share.pieces, workers=[share.address], hash=False, direct=True)
    futures = client.map(healed, sent, workers=[share.address], pure=False)
    client.gather(client.map(len, futures))
    return list(futures)


def handler(client: Client, case: Case, n_chunks: int) -> Evaluate:
    """One call of the handler for each worker, side by side."""
    client.register_plugin(BareHandler())
    job, dealt = uuid.uuid4().hex, shares(client, case, n_chunks)
    for share in dealt:
        client.run(announce, job, share.case, workers=[share.address])
    futures = [resident(client, share) for share in dealt]

    async def ask(params: tuple[Array, ...]) -> list[Any]:
        calls = []
        for share, some in zip(dealt, futures, strict=True):
            keys, numbers = [future.key for future in some], packed(*share.params(params))
            calls.append(getattr(client.rpc(share.address), HANDLER)(job=job, keys=keys, numbers=numbers))
        return await asyncio.gather(*calls)

    def evaluate(*params: Array) -> Outcome:
        answers = [answer["result"] for answer in client.sync(ask, params)]
        pairs = zip(answers, dealt, strict=True)
        return add_up(case, ((float(numbers[0]), unpacked(numbers[1:], share.case.params)) for numbers, share in pairs))

    return evaluate
