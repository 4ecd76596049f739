"""What a cluster costs beside the work itself: bytes on the wire, and the graph road's time for each chunk."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import psutil
from cluster_calls import check, reference
from cluster_competitors import dagad_rows, dagad_shards, delayed
from cluster_handler import Evaluate, handler
from cluster_report import Section, at_most, milliseconds, row_of
from competitor_processes import stopped
from distributed import Client
from models import weighted_explicit
from report import Row, Verdict
from run import Times, interleaved
from workloads import Case, Limit, tiny_case

N_WIRE_PARAMETERS = 1_250_000
N_WIRE_ROWS = 16
WIRE_ROUNDS = 3
WIRE_CALLS = 10
WIRE_FACTOR = 1.2

GRAPH_ROUNDS = 3
GRAPH_COUNTS = {"delayed": (100, 1_000), "dagad": (100, 1_000, 10_000)}
WARM_FROM = 10_000
PATIENCE_S = 60.0
GRAPH_LIMIT_MS = 0.7
LINEAR_WITHIN = 1.2


def wire(client: Client, n_rounds: int) -> Section:
    """Bytes of an evaluation, with next to no work and very many parameters."""
    case = wire_case()
    expected, turns = reference(case)(*case.params), {}
    for family, make in {"handler": handler, "dagad": dagad_shards}.items():
        for n_chunks in (2, 16):
            call = make(client, case, n_chunks)
            check(f"wire, {family} with {n_chunks} chunks", call(*case.params), expected)
            turns[family, n_chunks] = partial(counted, partial(call, *case.params))
    samples = interleaved(turns, n_rounds or WIRE_ROUNDS)
    n_workers = len(client.nthreads())
    needed = n_workers * 2 * case.params[0].nbytes / 1e6
    rows = [Row("needed", None, "MB", needed, needed, 0)]
    rows += [row_of(family, count, "MB", [v for (v,) in times]) for (family, count), times in samples.items()]
    bar = Limit(f"at most {WIRE_FACTOR} x workers x (parameters + gradient)", "MB", *(2 * [WIRE_FACTOR * needed]))
    title = "MB on the loopback for each evaluation, 10 MB of parameters"
    return Section("wire", title, "needed", rows, (bar,))


def wire_case() -> Case:
    """A weight a row, and ten megabytes of parameters."""
    rng = np.random.default_rng(6)
    weights, theta = rng.uniform(0.5, 1.5, N_WIRE_ROWS), rng.standard_normal(N_WIRE_PARAMETERS)
    return Case(weighted_explicit, (weights,), (theta,), explicit=weighted_explicit)


def counted(call: Evaluate) -> Times:
    """Megabytes of one evaluation, counted over several: what the loopback has sent, which is what it has received."""
    before = loopback_bytes()
    for _ in range(WIRE_CALLS):
        call()
    return [((loopback_bytes() - before) / WIRE_CALLS / 1e6,)]


def loopback_bytes() -> int:
    """All bytes that were ever sent over the loopback of this machine."""
    return int(psutil.net_io_counters(pernic=True)["lo"].bytes_sent)


def graph(client: Client, n_rounds: int) -> Section:
    """Cheap chunks of plain arrays: what is left is the road."""
    makers = {"delayed": delayed, "dagad": dagad_rows}
    turns, at_rest = {}, n_tasks(client)
    for family, counts in GRAPH_COUNTS.items():
        for n_chunks in counts:
            case = tiny_case(n_chunks, 10, explicit=True)
            call = makers[family](client, case, n_chunks)
            check(f"graph, {family} with {n_chunks} chunks", call(*case.params), reference(case)(*case.params))
            turns[family, n_chunks] = partial(settled, client, at_rest, partial(call, *case.params), n_chunks)
    samples = interleaved(turns, n_rounds or GRAPH_ROUNDS)
    times = {label: milliseconds(some) for label, some in samples.items()}
    rows = [row_of(*label, "ms a chunk", [t / label[1] for t in some]) for label, some in times.items()]
    by_label = {(row.family, row.chunks): row for row in rows}
    rows += [slope(family, by_label) for family in GRAPH_COUNTS]
    thousand, most = by_label["dagad", 1_000], by_label["dagad", 10_000]
    more = {
        thousand: [at_most(f"at most {GRAPH_LIMIT_MS} ms", thousand, GRAPH_LIMIT_MS, GRAPH_LIMIT_MS)],
        most: [linear(most, thousand)],
    }
    title = "the graph road: value and gradient of cheap chunks on plain arrays, one row each"
    return Section("graph", title, "delayed", rows, more=more)


def settled(client: Client, at_rest: int, call: Evaluate, n_chunks: int) -> Times:
    """A single call, when the tasks of the one before are gone, and after one that is not counted.

    Ten thousand chunks are warmed up by the check alone: beside so many, what others have left behind is nothing.
    """
    deadline = time.monotonic() + PATIENCE_S
    while n_tasks(client) > at_rest:
        if time.monotonic() > deadline:
            raise SystemExit(f"Tasks were still on the scheduler {PATIENCE_S} seconds after the results were gone.")
        time.sleep(0.05)
    if n_chunks < WARM_FROM:
        call()
    return [stopped(call, 1)()]


def n_tasks(client: Client) -> int:
    """How many tasks the scheduler knows."""
    return int(client.run_on_scheduler(count_tasks))


def count_tasks(dask_scheduler: Any) -> int:
    """On the scheduler."""
    return len(dask_scheduler.tasks)


def slope(family: str, rows: dict[tuple[str, int | None], Row]) -> Row:
    """Milliseconds for each further chunk, from the fewest chunks to the most."""
    few, many = (rows[family, GRAPH_COUNTS[family][k]] for k in (0, -1))
    assert few.chunks is not None
    assert many.chunks is not None
    least, median = (
        (getattr(many, name) * many.chunks - getattr(few, name) * few.chunks) / (many.chunks - few.chunks)
        for name in ("least", "median")
    )
    return Row(family, None, f"slope, {few.chunks} to {many.chunks}", least, median, 2)


def linear(most: Row, fewer: Row) -> Verdict:
    """Whether a chunk costs about as much among ten thousand as among a thousand."""
    text = f"linear: at most {LINEAR_WITHIN}x what it is at {fewer.chunks}"
    return at_most(text, most, LINEAR_WITHIN * fewer.least, LINEAR_WITHIN * fewer.median)
