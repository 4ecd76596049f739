"""Value and gradient on a cluster, call by call: the hot loop (W5) and the workloads W1 to W4."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import count
from typing import Any

from cluster_competitors import actors, dagad_shards, joblib_on, submit
from cluster_handler import Competitor, Evaluate, handler
from cluster_report import Section, Within, milliseconds, row_of
from competitor_processes import Stamps, stopped, turn, workload
from competitors import Outcome, local
from distributed import Client
from report import console
from run import TOLERANCE, Times, difference, interleaved, started
from workloads import Case, Limit, tiny_case

HOT_ROUNDS = 20
HOT_CALLS = 50
ASKEW = 1.25
STEP = 1e-6

COUNTS = {"W1-1e6": (2, 16, 64), "W1-1e5": (2, 8), "W2": (2, 8, 16), "W3a": (2, 20), "W3b": (1,), "W4": (2, 16)}
AS_HANDLER = Within("at most 1.1x the handler", "handler", 1.1)
BARS: dict[str, tuple[Within, ...]] = {
    "W1-1e6": (Within(">= 1.5x cured", "cured", 1.0 / 1.5), AS_HANDLER),
    "W1-1e5": (AS_HANDLER,),
    "W2": (AS_HANDLER,),
    "W3a": (Within(">= 3.8x plain (goal 6x)", "plain", 1.0 / 3.8),),
    "W3b": (Within("at most 1.05x one worker alone", "handler", 1.05),),
    "W4": (AS_HANDLER,),
}


def reference(case: Case) -> Evaluate:
    """The whole function at once, in this process."""
    return partial(local(case), case.data)


def check(name: str, outcome: Outcome, expected: Outcome) -> None:
    """Raise unless a competitor gives what the reference gives."""
    gap = difference(outcome, expected)
    if not gap <= TOLERANCE:
        raise SystemExit(f"{name}: off by {gap:.1e} (relative), where {TOLERANCE:.0e} is allowed.")


def hot(client: Client, n_rounds: int) -> Section:
    """Two chunks, one on each worker."""
    case, bar = tiny_case(2, 100, explicit=True), Within("at most 1.1x the handler + 0.1 ms", "handler", 1.1, 0.1)
    with joblibs() as found:
        makers = {"handler": handler, "submit": submit, "actors": actors, **found, "dagad": dagad_shards}
        rows = hot_rows(client, case, makers, n_rounds)
    return Section("hot", "W5: explicit function of a few us, 100 parameters, 2 chunks", "handler", rows, (bar,))


def hot_hundred(client: Client, n_rounds: int) -> Section:
    """A hundred chunks on each worker."""
    case, bar = tiny_case(200, 100, explicit=True), Limit("at most 3 ms", "ms", 3.0, 3.0)
    rows = hot_rows(client, case, {"handler": handler, "actors": actors, "dagad": dagad_shards}, n_rounds)
    return Section("hot-100", "the same with 100 chunks on each worker", "handler", rows, (bar,))


@contextmanager
def joblibs() -> Iterator[dict[str, Competitor]]:
    """Joblib, where it is installed, with two processes that go when they are done."""
    if not find_spec("joblib"):
        console.print("`joblib` is not installed, so its row is missing. Install it with `pip install joblib`.")
        yield {}
        return
    from joblib import Parallel
    from joblib.externals.loky import get_reusable_executor

    try:
        with Parallel(n_jobs=2, backend="loky") as parallel:
            yield {"joblib": joblib_on(parallel)}
    finally:
        get_reusable_executor().shutdown(wait=True)


def hot_rows(client: Client, case: Case, makers: dict[str, Competitor], n_rounds: int) -> list[Any]:
    """The times of each with parameters that are new each time; each is checked at two points, first and last."""
    calls = {name: make(client, case, case.n_rows) for name, make in makers.items()}
    right = reference(case)
    for name, call in calls.items():
        check(name, call(*case.params), right(*case.params))
    turns = {name: partial(many, stopped(with_new_parameters(call, case), 1)) for name, call in calls.items()}
    samples = interleaved(turns, n_rounds or HOT_ROUNDS)
    elsewhere = ASKEW * case.params[0]
    for name, call in calls.items():
        check(name, call(elsewhere), right(elsewhere))
    return [row_of(name, case.n_rows, "ms", milliseconds(times)) for name, times in samples.items()]


def with_new_parameters(call: Evaluate, case: Case) -> Evaluate:
    """Each call a little further on, as an optimiser or a sampler goes."""
    steps, theta = count(1), case.params[0]
    return lambda: call(theta + STEP * next(steps))


def many(stamps: Stamps) -> Times:
    """The turn of one competitor in the hot loop, after one call that is not counted."""
    stamps()
    return [stamps() for _ in range(HOT_CALLS)]


def calls(name: str, client: Client, n_rounds: int) -> Section:
    """One of the workloads: plain and cured autograd in processes of their own, the others on the cluster."""
    work = workload(name)
    case, turns = work.build(), {}
    expected = reference(case)(*case.params)
    with started(work, [family for family in ("plain", "cured") if family in work.families]) as processes:
        for process in processes:
            check(process.family, process.ask("outcome", 1), expected)
            turns[process.family, 1] = partial(process.ask, "turn", 1)
        for family, make in {"handler": handler, "dagad": dagad_shards}.items():
            for n_chunks in COUNTS[name]:
                call = make(client, case, n_chunks)
                check(f"{name}, {family} with {n_chunks} chunks", call(*case.params), expected)
                turns[family, n_chunks] = partial(turn, stopped(partial(call, *case.params), 1))
        samples = interleaved(turns, n_rounds or work.rounds)
    rows = [row_of(family, n_chunks, "ms", milliseconds(times)) for (family, n_chunks), times in samples.items()]
    return Section(name, work.title, "plain", rows, BARS[name])
