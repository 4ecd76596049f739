"""Many at once: members beside single evaluations, directions side by side, steps on samples beside full ones.

    python tests/benchmarks/many_at_once.py [--members 32] [--rounds 7]

Each figure is a ratio of the shortest of some rounds, in which both sides take turns; both have the same bits, which is
looked at.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster
from report import shortest

import dagad
from dagad._values import pytree

N_PARAMETERS, N_CHUNKS = 50, 8
RNG = np.random.default_rng(0)


def chunk(rows: Any, theta: Any) -> Any:
    return np.sum(np.tanh(rows @ theta) ** 2)


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in pytree.flatten(tree)[0]]


def members(place: Any, n_rows: int, n_members: int, rounds: int) -> str:
    """Compare a `vmap` with a loop of as many evaluations."""
    data = dagad.shard(RNG.standard_normal((n_rows * N_CHUNKS, N_PARAMETERS)), grainsize=n_rows, scheduler=place)
    alone = dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, data, theta))
    together, thetas = dagad.vmap(alone), RNG.standard_normal((n_members, N_PARAMETERS)) / 10
    for _ in range(4):  # both are hot then
        found, expected = together(thetas), [alone(theta) for theta in thetas]
    assert bits(found) == bits([np.stack(column) for column in zip(*expected, strict=True)])
    sides = {"loop": lambda: [alone(theta) for theta in thetas], "vmap": lambda: together(thetas)}
    seconds = shortest(sides, rounds, time.perf_counter)
    ratio = seconds["vmap"] / seconds["loop"]
    rows = RNG.standard_normal((n_rows, N_PARAMETERS))
    one = dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, rows, theta, grainsize=n_rows, scheduler="sync"))
    one(thetas[0])
    each = min(shortest({"": lambda: one(thetas[0])}, 50, time.perf_counter).values())
    return (
        f"{n_members} members, {N_CHUNKS} chunks of {n_rows} rows (about {each * 1e3:.2f} ms each): loop "
        f"{seconds['loop'] * 1e3:.1f} ms, vmap {seconds['vmap'] * 1e3:.1f} ms, ratio {ratio:.2f}"
    )


def stepping(x: Any) -> Any:
    """Take 40 steps of 20,000 numbers."""
    state = x @ BASIS
    for _ in range(40):
        state = state + 0.01 * (np.sin(state) - state * np.exp(-state * state))
    return np.sum(np.reshape(state, (64, -1)), axis=1)


BASIS = 0.1 * RNG.standard_normal((64, 19968))


def directions(mode: Any, place: Any, rounds: int) -> str:
    """Compare directions side by side with one after the other."""
    x = RNG.standard_normal(64)
    alone, beside = mode(stepping), mode(stepping, scheduler=place)
    assert bits(alone(x)) == bits(beside(x))
    seconds = shortest({"alone": lambda: alone(x), "beside": lambda: beside(x)}, rounds, time.perf_counter)
    ratio = seconds["alone"] / seconds["beside"]
    return f"{mode.__name__} of 64 inputs, 40 steps of 20,000 numbers: {seconds['alone']:.2f} s, {ratio:.2f} times"


def samples(client: Client, rounds: int) -> str:
    """Compare steps on samples of 8 of 32 chunks with a full loop over 8 chunks."""
    n_rows, theta = 500, RNG.standard_normal(N_PARAMETERS) / 10
    whole = dagad.shard(RNG.standard_normal((n_rows * 32, N_PARAMETERS)), grainsize=n_rows, scheduler=client)
    full = dagad.shard(RNG.standard_normal((n_rows * 8, N_PARAMETERS)), grainsize=n_rows, scheduler=client)

    def on(data: Any) -> None:
        dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, data, theta))(theta)

    def steps(first: int) -> None:
        for number in range(first, first + 50):
            on(whole.sample(8, step=number))

    def full_ones() -> None:
        for _ in range(50):
            on(full)

    steps(0)
    full_ones()
    seconds = shortest({"samples": lambda: steps(50), "full": full_ones}, rounds, time.perf_counter)
    ratio = seconds["samples"] / seconds["full"]
    return f"a step on 8 of 32 chunks {seconds['samples'] * 20:.2f} ms, of a full loop over 8 chunks, ratio {ratio:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--members", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with (
        dask.config.set(num_workers=2),
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        for name, place in (("threads", "threads"), ("processes", client)):
            for n_rows in (50, 500, 5000):
                print(f"{name}: {members(place, n_rows, options.members, options.rounds)}", flush=True)
        for name, place in (("threads", "threads"), ("processes", client)):
            for mode in (dagad.jacfwd, dagad.jacrev):
                print(f"{name}: {directions(mode, place, max(options.rounds // 2, 1))}", flush=True)
        print(f"processes: {samples(client, options.rounds)}")


if __name__ == "__main__":
    main()
