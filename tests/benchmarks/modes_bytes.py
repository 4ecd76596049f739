"""What workers send for each evaluation of a map, beside the values and gradients that are asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakSet

import autograd
import autograd.numpy as anp
import numpy as np
from cluster_calls import check, reference
from cluster_costs import loopback_bytes
from cluster_handler import Evaluate
from cluster_pairs import workers
from cluster_report import Section, at_most, row_of
from competitors import Outcome
from distributed import Client, Worker, WorkerPlugin
from distributed.comm.tcp import TCP
from models import Array, kinetics_looped, waves
from modes_map import COUNTS, N_JOBS, likelihood
from report import Row, Verdict
from run import Times, interleaved
from workloads import kinetics_case

import dagad

N_OUTPUTS = 40_000
ROUNDS = 3
CALLS = 10
FACTOR = 1.1
AT_REST_S = 3.0


@dataclass(frozen=True, slots=True)
class Payload:
    """A map whose outputs and cotangents travel. `make(client, n_chunks)` gives its value and gradient."""

    unit: str
    make: Callable[[Client, int], Evaluate]
    params: tuple[Array, ...]
    expected: Outcome
    n_outputs: int

    @property
    def packed(self) -> float:
        """Bytes of all outputs and of the gradient."""
        return self.n_outputs * 8.0 + sum(array.nbytes for array in self.params)


def map_bytes(n_rounds: int) -> Section:
    """Bytes that workers send back (to client or scheduler), for a large payload and for a small one."""
    rows, more = list[Row](), dict[Row, list[Verdict]]()
    with workers(2) as client:
        client.register_plugin(Sent())
        for payload, unit in ((large(), 1e6), (small(), 1e3)):
            turns = {}
            for count in COUNTS:
                call = payload.make(client, count)
                check(f"bytes, {payload.unit} with {count} chunks", call(*payload.params), payload.expected)
                turns[count] = partial(counted, client, partial(call, *payload.params))
            samples = interleaved(turns, n_rounds or ROUNDS)
            packed = payload.packed / unit
            rows.append(Row("packed", None, payload.unit, packed, packed, 0))
            for k, family in enumerate(("to client", "to workers", "loopback")):
                found = [row_of(family, n, payload.unit, in_units(times, k, unit)) for n, times in samples.items()]
                if payload.unit == "MB":
                    rows += found
                elif k < 2:  # so few that others who use the loopback show in it
                    rows += [*found, a_chunk(found)]
                if payload.unit == "MB" and not k:
                    text = f"at most {FACTOR} x packed"
                    more |= {row: [at_most(text, row, FACTOR * packed, FACTOR * packed)] for row in found}
        rows.append(at_rest(client))
    title = f"bytes that workers send for each evaluation: {N_JOBS} jobs of {N_OUTPUTS:,} outputs (MB), W3a (kB)"
    return Section("bytes", title, "packed", rows, more=more)


def large() -> Payload:
    """Next to no work, and as many outputs as parameters."""
    jobs = np.random.default_rng(9).standard_normal((N_JOBS, N_OUTPUTS))
    params = (jobs, np.array(0.7))
    expected = autograd.value_and_grad(lambda jobs, rate: energy(waves(jobs, rate)), (0, 1))(*params)

    def make(client: Client, n_chunks: int) -> Evaluate:
        options: dict[str, Any] = {"grainsize": N_JOBS // n_chunks, "scheduler": client}
        call: Evaluate = dagad.value_and_grad(
            lambda jobs, rate: energy(dagad.map_rect(waves, jobs, rate, **options)), (0, 1)
        )
        return call

    return Payload("MB", make, params, expected, jobs.size)


def energy(outputs: Any) -> Any:
    """What is made of the outputs."""
    return 0.5 * anp.sum(outputs * outputs)


def small() -> Payload:
    """W3a."""
    case = kinetics_case(N_JOBS, kinetics_looped)

    def make(client: Client, n_chunks: int) -> Evaluate:
        return likelihood(case, n_chunks, client)

    return Payload("kB", make, case.params, reference(case)(*case.params), case.data[1].size)


class Sent(WorkerPlugin):
    """Counts the bytes that a worker writes: `home`, to client and scheduler, and `across`, to other workers."""

    name = "benchmark-sent"

    def setup(self, worker: Worker) -> None:
        """Count from now on."""
        write: Any = TCP.write
        get_data: Any = worker.handlers["get_data"]
        lines_to_workers: WeakSet[Any] = WeakSet()
        self.home = self.across = 0

        async def counting(comm: Any, *args: Any, **kwargs: Any) -> Any:
            written = await write(comm, *args, **kwargs)
            if comm in lines_to_workers:
                self.across += written
            else:
                self.home += written
            return written

        async def telling(comm: Any, who: str | None = None, **kwargs: Any) -> Any:
            if who is not None:  # only workers say who asks
                lines_to_workers.add(comm)
            return await get_data(comm, who=who, **kwargs)

        worker.handlers["get_data"] = telling
        TCP.write = counting  # type: ignore[method-assign, assignment]  # distributed itself counts no such thing


def sent(client: Client) -> tuple[int, int]:
    """What all workers have sent so far: home, and across."""
    home, across = zip(*client.run(own_counts).values(), strict=True)
    return sum(home), sum(across)


def own_counts(*, dask_worker: Worker) -> tuple[int, int]:
    """What this worker has sent so far."""
    plugin = dask_worker.plugins[Sent.name]
    assert isinstance(plugin, Sent)
    return plugin.home, plugin.across


def counted(client: Client, call: Callable[[], Any]) -> Times:
    """Bytes of one evaluation: home, across, and all on the loopback; counted over several evaluations."""
    before = (*sent(client), loopback_bytes())
    for _ in range(CALLS):
        call()
    after = (*sent(client), loopback_bytes())
    return [tuple((b - a) / CALLS for a, b in zip(before, after, strict=True))]


def in_units(times: Times, k: int, unit: float) -> list[float]:
    """One of the counts of each sample."""
    return [counts[k] / unit for counts in times]


def a_chunk(found: list[Row]) -> Row:
    """How much each further chunk adds: messages of Dask's, one after the other."""
    few, many = found[0], found[-1]
    assert few.chunks is not None
    assert many.chunks is not None
    least, median = ((getattr(many, k) - getattr(few, k)) / (many.chunks - few.chunks) for k in ("least", "median"))
    return Row(few.family, None, f"{few.what} a chunk", least, median, few.n)


def at_rest(client: Client) -> Row:
    """What workers send when nothing is asked of them, in each second."""
    before = sum(sent(client))
    time.sleep(AT_REST_S)
    rate = (sum(sent(client)) - before) / AT_REST_S / 1e3
    return Row("workers at rest", None, "kB a second", rate, rate, 1)
