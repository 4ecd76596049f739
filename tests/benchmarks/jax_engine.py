"""The jax engine beside jax itself: ``python tests/benchmarks/jax_engine.py [--rounds N] [--only NAME]``.

All competitors of a piece of work are timed in turns, so that the ratios hold where the machine drifts. Each has its
data in place before, and gives value and gradient as numpy's.

poisson, binomial   W1, W2 on two threads: dagad over Shards; jax on all rows at once; jitted chunks on a pool of two
kinetics            W3b: all subjects in one chunk, 5,006 gradients; plain `jax.jit(value_and_grad)`
handler             a hot loop on two processes; the same jitted chunks, called by a bare handler on each worker
compilations        1,000 evaluations on two processes: how often each worker has compiled something
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import cluster_handler
import dask
import jax
import jax.numpy as jnp
import models
import numpy as np
import report
from competitors import add_up, cut, grainsize
from distributed import Client, LocalCluster
from jax.scipy.special import gammaln
from models import HOURS_PER_INTERVAL, INTERVALS, SPREAD_OF_SUBJECTS, STEPS_VECTORISED
from rich.table import Table
from workloads import Case, kinetics_case, negative_binomial_case, poisson_case

import dagad

Call = Callable[[], Any]
CHUNKS = (2, 4, 8, 16)
PIECES = ["poisson", "binomial", "kinetics", "handler", "compilations"]


def x64(on: bool) -> Any:
    """jax's switch for this thread, by a name that travels."""
    return jax.enable_x64(on)


def poisson(rows: Any, beta: Any, groups: Any) -> Any:
    """W1, written with jax.numpy."""
    covariates, counts, group = rows
    eta = covariates @ beta + groups[group]
    return jnp.sum(counts * eta - jnp.exp(eta))


def binomial(rows: Any, beta: Any, log_size: Any) -> Any:
    """W2, written with jax.numpy."""
    covariates, counts = rows
    eta = covariates @ beta
    size = jnp.exp(log_size)
    terms = gammaln(counts + size) + counts * eta - (counts + size) * jnp.log(size + jnp.exp(eta))
    return jnp.sum(terms) + len(counts) * (size * log_size - gammaln(size))


def kinetics(rows: Any, shared: Any) -> Any:
    """W3b, written with jax.numpy: a loop over intervals that jax compiles once."""
    own, dose, observed = rows
    absorption, clearance, volume, exchange, other = (jnp.exp(shared[k] + own[:, k]) for k in range(5))
    rates = (absorption, clearance / volume + exchange / volume, exchange / volume, exchange / other)

    def interval(state: Any, seen: Any) -> Any:
        for _ in range(STEPS_VECTORISED):
            state = models._rk4_step(state, rates, HOURS_PER_INTERVAL / STEPS_VECTORISED)
        error = (seen - jnp.log(state[1] / volume)) * jnp.exp(-shared[5])
        return state, -0.5 * error * error - shared[5]

    terms = jax.lax.scan(interval, (dose, 0.0 * dose, 0.0 * dose), observed.T, length=INTERVALS)[1]
    return jnp.sum(terms) - 0.5 * jnp.sum(own * own) / SPREAD_OF_SUBJECTS**2


def as_numpy(outcome: Any) -> Any:
    """What jax gave, as others give it."""
    value, gradients = outcome
    return float(value), tuple(map(np.asarray, gradients))


def jitted(chunk: Callable[..., Any], n_params: int) -> Callable[..., Any]:
    """Value and gradient of a chunk, by jax alone."""
    with x64(True):
        return jax.jit(jax.value_and_grad(chunk, tuple(range(1, 1 + n_params))))


def one_shot(case: Case, n_chunks: int) -> Call:
    """All rows at once, by jax alone, with as many threads as it likes."""
    del n_chunks
    run, data = jitted(case.chunk, len(case.params)), sharded(case.data)

    def call() -> Any:
        with x64(True):
            return as_numpy(run(data, *case.params))

    return call


def pooled(case: Case, n_chunks: int) -> Call:
    """Jitted chunks on a pool of two threads, added up."""
    run, pieces = jitted(case.chunk, len(case.params)), [sharded(piece[0]) for piece in cut(case, n_chunks)]
    pool = ThreadPoolExecutor(2)

    def one(piece: Any) -> Any:
        with x64(True):
            return as_numpy(run(piece, *case.params))

    return lambda: add_up(case, pool.map(one, pieces))


def engine(case: Case, n_chunks: int, scheduler: Any = "threads") -> Call:
    """dagad's, over Shards."""
    shards = dagad.shard(case.data, grainsize=grainsize(case, n_chunks), scheduler=scheduler)

    def total(*params: Any) -> Any:
        return dagad.reduce_sum(case.chunk, shards, *params, engine="jax")

    both = dagad.value_and_grad(total, tuple(range(len(case.params))))
    return lambda: both(*case.params)


def sharded(arrays: Any) -> Any:
    """Arrays on jax's device."""
    with x64(True):
        return tuple(map(jax.device_put, arrays))


def of_subjects(case: Case) -> dict[str, Call]:
    """W3b: own parameters, rows and shared ones; all but the parameters stay in place."""
    own, shared = case.params
    data = sharded(case.data)
    shards = dagad.shard(case.data, grainsize=len(own), scheduler="threads")

    def chunk(rows: Any, own: Any, shared: Any) -> Any:
        return kinetics((own, *rows), shared)

    def joined(rows: Any, shared: Any) -> Any:
        own, (dose, observed) = rows
        return kinetics((own, dose, observed), shared)

    plain = jitted(chunk, 2)

    def call() -> Any:
        with x64(True):
            return as_numpy(plain(data, own, shared))

    def total(own: Any, shared: Any) -> Any:
        return dagad.reduce_sum(joined, (own, shards), shared, engine="jax")

    both = dagad.value_and_grad(total, (0, 1))
    return {"jax": call, "dagad": lambda: both(own, shared)}


_PLACED: dict[int, Any] = {}  # on a worker: rows on its device, by their id; they stay until it ends
_JITTED: dict[str, Any] = {}


def by_hand(rows: Any, *params: Any) -> Any:
    """What the bare handler calls: a jitted chunk on rows that are in place."""
    with x64(True):
        if id(rows) not in _PLACED:
            _PLACED[id(rows)] = rows, sharded(rows)
        if "poisson" not in _JITTED:
            _JITTED["poisson"] = jitted(poisson, len(params))
        value, gradients = as_numpy(_JITTED["poisson"](_PLACED[id(rows)][1], *params))
    return value, lambda seed: (None, *gradients)


@contextmanager
def on_processes(n_rows: int, n_chunks: int) -> Iterator[dict[str, Call]]:
    """A hot loop on two processes, by hand and by dagad."""
    plain = poisson_case(n_rows)
    case = Case(poisson, plain.data, plain.params, explicit=by_hand)
    options: Any = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster, set_as_default=False) as client:
        run = cluster_handler.handler(client, case, n_chunks)
        yield {"handler": lambda: run(*case.params), "dagad": engine(case, n_chunks, client)}


def compiled_here() -> tuple[int, list[tuple[str, int]]]:
    """How often something was compiled in this process; and what, for how many rows."""
    from dagad._engines.jax import _COMPILED, JaxEngine

    entries: Any = _COMPILED._entries
    return JaxEngine().n_compiled, [(key.what, key.sides[0][2][0][0][0]) for key in entries]


def count_compilations(n_evaluations: int) -> None:
    """Print how often workers compile something in a loop, each with a function that is defined anew."""
    plain = poisson_case(10_000)
    options: Any = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster, set_as_default=False) as client:
        shards = dagad.shard(plain.data, grainsize=2_500, scheduler=client)
        for number in range(n_evaluations):
            dagad.value_and_grad(
                lambda *params: dagad.reduce_sum(lambda rows, *own: poisson(rows, *own), shards, *params, engine="jax"),
                (0, 1),
            )(*(param + 1e-3 * number for param in plain.params))
        for count, what in client.run(compiled_here).values():
            report.console.print(f"{count} compilations on a worker in {n_evaluations} evaluations: {what}")


def timed(calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call, in turns; all of them have to agree."""
    outcomes = [call() for call in calls.values()]
    for value, gradients in outcomes[1:]:
        np.testing.assert_allclose(value, outcomes[0][0], rtol=1e-9)
        for one, other in zip(gradients, outcomes[0][1], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-7)
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            found[name].append(1e3 * (time.perf_counter() - began))
    return found


def show(title: str, found: dict[str, list[float]]) -> None:
    """Print the figures of one piece of work, and dagad's best beside the best of the others."""
    table = Table("", "min ms", "median ms", title=title)
    for name, times in found.items():
        table.add_row(name, f"{min(times):.3f}", f"{statistics.median(times):.3f}")
    report.console.print(table)
    rivals = {name: times for name, times in found.items() if not name.startswith("dagad")}
    chunked = {name: times for name, times in rivals.items() if "chunks" in name}
    for others, some in {"the best of the others": rivals, "the best of jax's chunks": chunked}.items():
        for what, of in (("min", min), ("median", statistics.median)) if some else ():
            ours = min(of(times) for name, times in found.items() if name not in rivals)
            theirs = min(of(times) for times in some.values())
            report.console.print(f"{what}: {ours / theirs:.2f} times {others}, {ours - theirs:+.3f} ms")


def on_threads(case: Case) -> dict[str, Call]:
    """All rows at once, and by chunks."""
    calls: dict[str, Call] = {"jax, one shot": one_shot(case, 1)}
    for n_chunks in CHUNKS:
        calls[f"jax, {n_chunks} chunks on 2 threads"] = pooled(case, n_chunks)
        calls[f"dagad, {n_chunks} chunks"] = engine(case, n_chunks)
    return calls


def main() -> None:
    """Read the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of W1 and W2")
    parser.add_argument("--only", choices=PIECES, action="append")
    options = parser.parse_args()
    only = options.only or PIECES
    dask.config.set(num_workers=2)
    for name, build, chunk in (
        ("poisson", poisson_case, poisson),
        ("binomial", negative_binomial_case, binomial),
    ):
        if name in only:
            plain = build(options.rows)
            show(name, timed(on_threads(Case(chunk, plain.data, plain.params)), options.rounds))
    if "kinetics" in only:
        show("kinetics", timed(of_subjects(kinetics_case(1000, kinetics)), 10 * options.rounds))
    if "handler" in only:
        with on_processes(10_000, 4) as calls:
            show("handler", timed(calls, 20 * options.rounds))
    if "compilations" in only:
        count_compilations(1_000)


if __name__ == "__main__":
    main()
