"""Two workers at once: values before gradients (W7), and how much faster two processes are than one."""

from __future__ import annotations

import multiprocessing
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from cluster_calls import check, reference
from cluster_competitors import dagad_program, dagad_shards
from cluster_handler import Evaluate, healed, part
from cluster_report import Section, Within, milliseconds, row_of
from competitor_processes import stopped, turn
from competitors import Outcome, add_up, cut, grainsize, keep_memory, local
from distributed import Client, LocalCluster
from models import Array, SlowPullback, slow_linearized
from report import Row
from run import Times, interleaved
from threadpoolctl import threadpool_limits
from workloads import Case, Limit, negative_binomial_case, slow_case

import dagad

EARLY_ROUNDS = 3
ALLOWANCE = 1.03
VALUE_MS, GRADIENT_MS = 226.0, 1040.0

NB_ROWS = 1_000_000
NB_CHUNKS = 16
NB_ROUNDS = 8
LEAST_SPEED_UP = 1.7

Early = Callable[[], tuple[tuple[float, float], Outcome]]


def early(client: Client, n_rounds: int) -> Section:
    """Seconds until the value, and until the gradient."""
    case = slow_case()
    expected = reference(case)(*case.params)
    runs: dict[str, Early] = {
        "stock": partial(stock_early, client, case),
        "dagad": partial(dagad_early, dagad_program(client, case, case.n_rows, on_shards=False), case),
        "dagad shards": partial(dagad_early, dagad_program(client, case, case.n_rows, on_shards=True), case),
    }
    for name, run in runs.items():
        check(f"W7, {name}", run()[1], expected)
    samples = interleaved({name: partial(stamped, run) for name, run in runs.items()}, n_rounds or EARLY_ROUNDS)
    rows = [
        row_of(name, case.n_rows, what, milliseconds(times, k))
        for k, what in enumerate(("value ms", "gradient ms"))
        for name, times in samples.items()
    ]
    bars = tuple(
        Limit(f"at most {limit:.0f} ms (+{ALLOWANCE - 1.0:.0%})", what, ALLOWANCE * limit, ALLOWANCE * limit)
        for what, limit in (("value ms", VALUE_MS), ("gradient ms", GRADIENT_MS))
    )
    return Section("W7", "values early: 8 chunks, 50 ms forward, 200 ms back", "stock", rows, bars)


def stamped(run: Early) -> Times:
    """The stamps of one call."""
    return [run()[0]]


def dagad_early(program: Callable[..., Any], case: Case) -> tuple[tuple[float, float], Outcome]:
    """By `dagad.evaluate`."""
    start = time.perf_counter()
    evaluation = dagad.evaluate(program, *case.params, argnums=(0,))
    value = evaluation.value()
    first = time.perf_counter() - start
    gradient = evaluation.gradient()
    return (first, time.perf_counter() - start), (value, gradient)


def stock_early(client: Client, case: Case) -> tuple[tuple[float, float], Outcome]:
    """Tasks for values and pullbacks by `client.get`, as Dask orders them."""
    (points,), (theta,), token = case.data, case.params, uuid.uuid4().hex
    chunks = range(case.n_rows)
    tasks: dict[Any, Any] = {(f"recorded-{token}", k): (slow_linearized, points[k : k + 1], theta) for k in chunks}
    tasks |= {(f"part-{token}", k): (first_of, (f"recorded-{token}", k)) for k in chunks}
    tasks |= {(f"gradient-{token}", k): (pulled, (f"recorded-{token}", k)) for k in chunks}
    ends = [f"value-{token}", f"gradient-sum-{token}"]
    tasks[ends[0]] = (sum, [(f"part-{token}", k) for k in chunks])
    tasks[ends[1]] = (sum, [(f"gradient-{token}", k) for k in chunks])
    start = time.perf_counter()
    value_future, gradient_future = client.get(tasks, ends, sync=False)
    value = value_future.result()
    first = time.perf_counter() - start
    gradient = gradient_future.result()
    return (first, time.perf_counter() - start), (value, (gradient,))


def first_of(recorded: tuple[float, SlowPullback]) -> float:
    """The value."""
    return recorded[0]


def pulled(recorded: tuple[float, SlowPullback]) -> Array:
    """The gradient."""
    return recorded[1]()


def speed_up(client: Client, n_rounds: int) -> Section:
    """Two against one: dagad on workers, and plain processes on pipes, each with the same chunks."""
    build = partial(negative_binomial_case, NB_ROWS)
    case = build()
    expected = reference(case)(*case.params)
    with ExitStack() as stack:
        lone = stack.enter_context(workers(1))
        runs: dict[str, Evaluate] = {
            "1 process": stack.enter_context(evaluated_apart(build, NB_CHUNKS, 1)),
            "2 processes": stack.enter_context(evaluated_apart(build, NB_CHUNKS, 2)),
            "dagad on 1": dagad_shards(lone, case, NB_CHUNKS),
            "dagad on 2": dagad_shards(client, case, NB_CHUNKS),
        }
        for name, run in runs.items():
            check(f"nb, {name}", run(*case.params), expected)
        turns = {name: partial(turn, stopped(partial(run, *case.params), 1)) for name, run in runs.items()}
        samples = interleaved(turns, n_rounds or NB_ROUNDS)
    rows = [row_of(name, None, "ms", milliseconds(times)) for name, times in samples.items()]
    by_name = {row.family: row for row in rows}
    rows += [ratio("processes", by_name["1 process"], by_name["2 processes"])]
    rows += [ratio("dagad", by_name["dagad on 1"], by_name["dagad on 2"])]
    bar = Within(f">= {LEAST_SPEED_UP}x one worker", "dagad on 1", 1.0 / LEAST_SPEED_UP)
    title = "negative binomial, 1e6 rows x 10: two processes against one"
    return Section("nb", title, "1 process", rows, (bar,), "dagad on 2")


@contextmanager
def workers(count: int) -> Iterator[Client]:
    """A client of a cluster of its own, which is nobody's default."""
    options: Any = {"n_workers": count, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def ratio(family: str, one: Row, two: Row) -> Row:
    """How many times as fast two are, by minima and by medians."""
    return Row(family, None, "speed-up", one.least / two.least, one.median / two.median, two.n)


@contextmanager
def evaluated_apart(build: Callable[[], Case], n_chunks: int, n_processes: int) -> Iterator[Evaluate]:
    """Value and gradient by plain processes, each with its share of the chunks."""
    case = build()
    with processes(partial(share_of, build, n_chunks), n_processes) as ask:
        yield lambda *params: add_up(case, ask(*params))


def share_of(build: Callable[[], Case], n_chunks: int, number: int, n_processes: int) -> Evaluate:
    """Make the rows, in a process that is to have a share of them."""
    case = build()
    size = grainsize(case, n_chunks)
    first, last = (k * n_chunks // n_processes for k in (number, number + 1))
    pieces = [piece[0] for piece in cut(case, n_chunks)[first:last]]
    run, rows = local(case), slice(first * size, last * size)

    def evaluate(*params: Array) -> Outcome:
        return part(run, case, pieces, (params[0][rows], *params[1:]) if case.own else params)

    return evaluate


@contextmanager
def processes(make: Callable[[int, int], Callable[..., Any]], n_processes: int) -> Iterator[Callable[..., list[Any]]]:
    """Plain processes on pipes: `make(number, n_processes)` gives in each what answers."""
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(n_processes)]
    started = [
        context.Process(target=serve_share, args=(partial(make, k, n_processes), theirs), daemon=True)
        for k, (_, theirs) in enumerate(pairs)
    ]
    for process, (_, theirs) in zip(started, pairs, strict=True):
        process.start()
        theirs.close()

    def ask(*params: Array) -> list[Any]:
        for ours, _ in pairs:
            ours.send(params)
        return [ours.recv() for ours, _ in pairs]

    try:
        yield ask
    finally:
        for (ours, _), process in zip(pairs, started, strict=True):
            ours.send(None)
            process.join(10)
            process.kill()


def serve_share(make: Callable[[], Callable[..., Any]], pipe: Connection) -> None:
    """A plain process: answer until told to stop."""
    keep_memory()
    answer = make()
    with threadpool_limits(1):
        while (params := pipe.recv()) is not None:
            pipe.send(answer(*healed(params)))
