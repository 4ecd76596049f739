"""Many at once: members beside single evaluations, directions side by side, steps on samples beside full ones.

    python tests/benchmarks/many_at_once.py [--members 32] [--rounds 7]

Each figure is a ratio of the shortest of some rounds, in which both sides take turns; both have the same bits, which is
looked at.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import autograd
import autograd.numpy as anp
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


def by_hand(thetas: Any, rows: Sequence[Any]) -> list[Any]:
    """Return value and gradient of each member, summed over some chunks, by autograd alone."""

    def cost(theta: Any, some: Any) -> Any:
        return anp.sum(anp.tanh(some @ theta) ** 2)

    of_chunk = autograd.value_and_grad(cost)
    found = [[of_chunk(theta, some) for some in rows] for theta in thetas]
    return [(sum(value for value, _ in each), sum(gradient for _, gradient in each)) for each in found]


def handler(place: Any, rows: Any, thetas: Any) -> Callable[[], Any] | None:
    """Return what one task of Dask's on each worker does for all members at once; rows stay there."""
    if place == "threads":
        return None
    chunks = np.split(rows, N_CHUNKS)
    workers = list(place.scheduler_info(n_workers=-1)["workers"])
    each = N_CHUNKS // len(workers)
    own = [
        place.scatter([chunks[number * each : (number + 1) * each]], workers=[where])[0]
        for number, where in enumerate(workers)
    ]

    def run() -> Any:
        tasks = [place.submit(by_hand, thetas, part, pure=False) for part in own]
        parts = zip(*place.gather(tasks), strict=True)
        return [(sum(value for value, _ in some), sum(gradient for _, gradient in some)) for some in parts]

    return run


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in pytree.flatten(tree)[0]]


def members(place: Any, n_rows: int, n_members: int, rounds: int) -> str:
    """Compare a `vmap` with a loop of as many evaluations."""
    whole = RNG.standard_normal((n_rows * N_CHUNKS, N_PARAMETERS))
    data = dagad.shard(whole, grainsize=n_rows, scheduler=place)
    alone = dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, data, theta))
    together, thetas = dagad.vmap(alone), RNG.standard_normal((n_members, N_PARAMETERS)) / 10
    for _ in range(4):  # both are hot then
        found, expected = together(thetas), [alone(theta) for theta in thetas]
    assert bits(found) == bits([np.stack(column) for column in zip(*expected, strict=True)])
    sides = {"loop": lambda: [alone(theta) for theta in thetas], "vmap": lambda: together(thetas)}
    hand = handler(place, whole, thetas)
    if hand is not None:
        np.testing.assert_allclose([value for value, _ in hand()], found[0])
        sides["by hand"] = hand
    seconds = shortest(sides, rounds, time.perf_counter)
    beside = f", by hand {seconds['by hand'] / seconds['loop']:.2f}" if hand is not None else ""
    ratio = seconds["vmap"] / seconds["loop"]
    rows = RNG.standard_normal((n_rows, N_PARAMETERS))
    one = dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, rows, theta, grainsize=n_rows, scheduler="sync"))
    one(thetas[0])
    each = min(shortest({"": lambda: one(thetas[0])}, 50, time.perf_counter).values())
    return (
        f"{n_members} members, {N_CHUNKS} chunks of {n_rows} rows (about {each * 1e3:.2f} ms each): loop "
        f"{seconds['loop'] * 1e3:.1f} ms, vmap {seconds['vmap'] * 1e3:.1f} ms, ratio {ratio:.2f}{beside}"
    )


def stepping(x: Any) -> Any:
    """Take 40 steps of 20,000 numbers."""
    state = x @ BASIS
    for _ in range(40):
        state = state + 0.01 * (np.sin(state) - state * np.exp(-state * state))
    return np.sum(np.reshape(state, (64, -1)), axis=1)


TWO_THREADS = ThreadPoolExecutor(2)
BASIS = 0.1 * RNG.standard_normal((64, 19968))


def half(name: str, number: int, x: Any) -> Any:
    """Return half of the Jacobian, by one thread: what two would take side by side that know nothing of each other."""
    some = slice(32 * number, 32 * number + 32)
    if name == "jacrev":
        return dagad.jacrev(lambda x: stepping(x)[some])(x)
    unit = np.eye(64)[:, some]

    def moved(along: Any) -> Any:
        return stepping(x + unit @ along)

    return dagad.jacfwd(moved)(np.zeros(32))


def bare(name: str, place: Any, x: Any) -> Callable[[], Any]:
    """Return what computes both halves at once, by two threads or by two of Dask's own tasks."""
    if place == "threads":
        return lambda: list(TWO_THREADS.map(half, [name] * 2, range(2), [x] * 2))
    workers = list(place.scheduler_info(n_workers=-1)["workers"])

    def both() -> Any:
        sent = [place.submit(half, name, number, x, pure=False, workers=[at]) for number, at in enumerate(workers)]
        return place.gather(sent)

    return both


def directions(mode: Any, place: Any, rounds: int) -> str:
    """Compare directions side by side with one after the other, and with two halves that nobody coordinates."""
    x = RNG.standard_normal(64)
    alone, beside, halves = mode(stepping), mode(stepping, scheduler=place), bare(mode.__name__, place, x)
    assert bits(alone(x)) == bits(beside(x))
    np.testing.assert_allclose(np.concatenate(halves(), axis=int(mode is dagad.jacfwd)), alone(x), atol=1e-9)
    sides = {"alone": lambda: alone(x), "beside": lambda: beside(x), "halves": halves}
    seconds = shortest(sides, rounds, time.perf_counter)
    return (
        f"{mode.__name__} of 64 inputs, 40 steps of 20,000 numbers: {seconds['alone']:.2f} s, "
        f"{seconds['alone'] / seconds['beside']:.2f} times; by two halves that nobody coordinates "
        f"{seconds['alone'] / seconds['halves']:.2f} times"
    )


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
    TWO_THREADS.shutdown()


if __name__ == "__main__":
    main()
