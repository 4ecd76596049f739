"""Many cotangents of one recorded reduction: `dagad.jacrev` on two workers beside one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import autograd
import numpy as np
from autograd.builtins import tuple as autograd_tuple
from cluster_calls import check
from cluster_pairs import processes, ratio, workers
from cluster_report import Section, Within, at_most, milliseconds, row_of
from competitor_processes import stopped, turn
from competitors import Outcome
from models import Array, features
from report import Row, Verdict
from run import interleaved

import dagad
import dagad.extend
from dagad._api.program import Program
from dagad._kernels.context import VALUES_FIRST, like_here
from dagad._tracing.tape import pull_many
from dagad._values.blocks import Blocks

N_INPUTS, N_HIDDEN, N_OUTPUTS = 10, 32, 64
N_CHUNKS = 4
GRAINSIZE = 8_000
ROUNDS = 5
AT_MOST = 0.6

Jacobians = Callable[[], Any]


def jacrev(n_rounds: int) -> Section:
    """All rows of a Jacobian: recorded and pulled by `jacrev`, pulled alone, and pulled one by one."""
    points, params = data()
    expected = jacobians([points], *params)
    recorded_once, verdict = counted(points, params, expected)
    with ExitStack() as stack:
        runs: dict[str, Jacobians] = {}
        for count in (1, 2):
            ask = stack.enter_context(processes(pulled_apart, count))
            client = stack.enter_context(workers(count))
            total = summed(dagad.shard(points, grainsize=GRAINSIZE, scheduler=client), scheduler=client)
            name = f"{count} process{'es' if count > 1 else ''}"
            runs[name] = partial(added_up, ask, params)
            runs[f"dagad on {count}"] = partial(dagad.jacrev(total, (0, 1)), *params)
            runs[f"pulls on {count}"] = recorded(total, params)
            runs[f"vjp on {count}"] = partial(one_by_one, total, params)
        for name, run in runs.items():
            check(f"jacrev, {name}", outcome(run()), outcome(expected))
        turns = {name: partial(turn, stopped(run, 1)) for name, run in runs.items()}
        samples = interleaved(turns, n_rounds or ROUNDS)
    rows = [row_of(name, None, "ms", milliseconds(times)) for name, times in samples.items()]
    found = {row.family: row for row in rows}
    rows += [ratio("processes", found["1 process"], found["2 processes"])]
    rows += [ratio(name, found[f"{name} on 1"], found[f"{name} on 2"]) for name in ("dagad", "pulls", "vjp")]
    bar = Within(f"at most {AT_MOST} of the time on 1", "dagad on 1", AT_MOST)
    title = f"{N_OUTPUTS} cotangents, {N_CHUNKS} chunks of {GRAINSIZE:,} rows (pulls: recorded before, vjp: one by one)"
    rows = [*rows, recorded_once]
    return Section("jacrev", title, "1 process", rows, (bar,), "dagad on 2", {recorded_once: [verdict]})


def data() -> tuple[Array, tuple[Array, Array]]:
    """Points, and the weights of both layers."""
    rng = np.random.default_rng(7)
    points = rng.standard_normal((N_CHUNKS * GRAINSIZE, N_INPUTS))
    weights = 0.3 * rng.standard_normal((N_INPUTS, N_HIDDEN)), 0.2 * rng.standard_normal((N_HIDDEN, N_OUTPUTS))
    return points, weights


def summed(rows: Any, **options: Any) -> Callable[..., Any]:
    """The function of the weights that a user would write."""
    return lambda *weights: dagad.reduce_sum(features, (rows,), *weights, **options)


def jacobians(chunks: list[Array], *weights: Array) -> list[Array]:
    """By plain autograd: each chunk is recorded once and pulled with every cotangent."""
    totals = [np.zeros((N_OUTPUTS, *array.shape)) for array in weights]
    for points in chunks:
        pullback, _ = autograd.make_vjp(lambda both, points=points: features((points,), *both))(autograd_tuple(weights))
        for row, seed in enumerate(np.eye(N_OUTPUTS)):
            for total, part in zip(totals, pullback(seed), strict=True):
                total[row] += part
    return totals


def pulled_apart(number: int, n_processes: int) -> Callable[..., list[Array]]:
    """A plain process's share."""
    chunks = np.split(data()[0], N_CHUNKS)
    first, last = (k * N_CHUNKS // n_processes for k in (number, number + 1))
    return partial(jacobians, chunks[first:last])


def added_up(ask: Callable[..., list[Any]], weights: tuple[Array, ...]) -> list[Array]:
    """The Jacobians of all plain processes together."""
    return [sum(parts[1:], start=parts[0]) for parts in zip(*ask(*weights), strict=True)]


def recorded(total: Callable[..., Any], weights: tuple[Array, ...]) -> Jacobians:
    """The pulls of `jacrev` alone, on chunks that were recorded before."""
    program = Program(total, (0, 1), weights, {})
    with like_here(VALUES_FIRST):
        value, _, ends, roots = program.tape()
    seeds = [[Blocks.one_hot(np.zeros(N_OUTPUTS), index)] for index in range(N_OUTPUTS)]
    del value
    return lambda: [np.stack(parts) for parts in pull_many(ends, seeds, roots, program.leaves)]


def one_by_one(total: Callable[..., Any], weights: tuple[Array, ...]) -> list[Array]:
    """What a user would write without `jacrev`."""
    pullback = dagad.vjp(total, *weights)[1]
    return [np.stack(parts) for parts in zip(*map(pullback, np.eye(N_OUTPUTS)), strict=True)]


def counted(points: Array, weights: tuple[Array, ...], expected: list[Array]) -> tuple[Row, Verdict]:
    """How many chunks are recorded for all cotangents, on threads, where one can count."""
    policy = dagad.extend.Keep()
    total = summed(points, grainsize=GRAINSIZE, policy=policy, scheduler="threads")
    check("jacrev, threads", outcome(dagad.jacrev(total, (0, 1))(*weights)), outcome(expected))
    row = row_of("dagad on threads", N_CHUNKS, "recordings", [float(policy.n_primal)])
    return row, at_most("each chunk is recorded once", row, N_CHUNKS, N_CHUNKS)


def outcome(arrays: Any) -> Outcome:
    """Jacobians in place of gradients, to be checked as these are."""
    return 0.0, tuple(arrays)
