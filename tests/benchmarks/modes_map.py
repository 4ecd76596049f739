"""W3a as a map of many outputs, `dagad.map_rect`: two workers beside one, two plain processes, plain autograd."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import autograd.numpy as anp
from cluster_calls import check, reference
from cluster_handler import Evaluate
from cluster_pairs import evaluated_apart, ratio, workers
from cluster_report import Section, Within, milliseconds, row_of
from competitor_processes import stopped, turn, workload
from competitors import grainsize
from distributed import Client
from models import SPREAD_OF_SUBJECTS, kinetics_curve, kinetics_looped
from run import interleaved, started
from workloads import Case, kinetics_case

import dagad

N_JOBS = 20
COUNTS = (2, 20)
ROUNDS = 6
LEAST_SPEED_UP, LEAST_BESIDE_PLAIN = 1.7, 3.8


def map_rect(n_rounds: int) -> Section:
    """Value and gradient of a likelihood around a map."""
    build = partial(kinetics_case, N_JOBS, kinetics_looped)
    case = build()
    expected = reference(case)(*case.params)
    with ExitStack() as stack:
        (process,) = stack.enter_context(started(workload("W3a"), ["plain"]))
        check("map_rect, plain", process.ask("outcome", 1), expected)
        turns: dict[tuple[str, int | None], Any] = {("plain", None): partial(process.ask, "turn", 1)}
        for n_workers in (1, 2):
            name = f"{n_workers} process{'es' if n_workers > 1 else ''}"
            runs: dict[tuple[str, int | None], Evaluate] = {
                (name, None): stack.enter_context(evaluated_apart(build, N_JOBS, n_workers))
            }
            client = stack.enter_context(workers(n_workers))
            runs |= {(f"dagad on {n_workers}", count): likelihood(case, count, client) for count in COUNTS}
            for label, run in runs.items():
                check(f"map_rect, {label}", run(*case.params), expected)
                turns[label] = partial(turn, stopped(partial(run, *case.params), 1))
        samples = interleaved(turns, n_rounds or ROUNDS)
    rows = [row_of(*label, "ms", milliseconds(times)) for label, times in samples.items()]
    found = {(row.family, row.chunks): row for row in rows}
    rows += [ratio("processes", found["1 process", None], found["2 processes", None])]
    rows += [ratio("dagad", found["dagad on 1", count], found["dagad on 2", count]) for count in COUNTS]
    bars = (
        Within(f">= {LEAST_SPEED_UP}x one worker", "dagad on 1", 1.0 / LEAST_SPEED_UP),
        Within(f">= {LEAST_BESIDE_PLAIN}x plain", "plain", 1.0 / LEAST_BESIDE_PLAIN),
    )
    title = f"W3a as a map in a Gaussian likelihood, {N_JOBS} subjects"
    return Section("map_rect", title, "plain", rows, bars, "dagad on 2")


def likelihood(case: Case, n_chunks: int, client: Client) -> Evaluate:
    """Value and gradient of what a user would write: W3a, with the sum of squares outside of the map."""
    dose, observed = case.data
    options: dict[str, Any] = {"grainsize": grainsize(case, n_chunks), "scheduler": client}

    def log_likelihood(own: Any, shared: Any) -> Any:
        curves = dagad.map_rect(kinetics_curve, (own, dose), shared, **options)
        errors = (observed.ravel() - curves) * anp.exp(-shared[5])
        prior = -0.5 * anp.sum(own * own) / SPREAD_OF_SUBJECTS**2
        return prior - anp.sum(0.5 * errors * errors + shared[5])

    call: Evaluate = dagad.value_and_grad(log_likelihood, (0, 1))
    return call
