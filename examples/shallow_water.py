"""Which water will a gauge see? Shallow water by `map_overlap`, and the adjoint as a film that runs backwards."""

import argparse
from collections.abc import Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np
from matplotlib.figure import Figure

import dagad
from dagad.extend import Revolve
from scheduler_option import add_options, opened

GRAVITY, PACE = 9.81, 0.12  # PACE: seconds in a step, for cells of a metre
WIDTH = 4  # cells in the halo of a block, so that it can take as many steps alone
FRAMES = 5
ROOM = slice(1, -1)


def step(state: Any) -> Any:
    """A step of Lax and Friedrichs, of surface and momenta (h, p, q); the outermost cells have no neighbours."""
    h, p, q = state[0], state[1], state[2]
    along = np.stack([p, p**2 / h + 0.5 * GRAVITY * h**2, p * q / h])
    across = np.stack([q, p * q / h, q**2 / h + 0.5 * GRAVITY * h**2])
    mean = (state[:, 2:, ROOM] + state[:, :-2, ROOM] + state[:, ROOM, 2:] + state[:, ROOM, :-2]) / 4.0
    flow = along[:, 2:, ROOM] - along[:, :-2, ROOM] + across[:, ROOM, 2:] - across[:, ROOM, :-2]
    return mean - 0.5 * PACE * flow


def by_itself(block: Any) -> Any:
    """Take as many steps as the halo is wide; what stands in its place afterwards is cut off by Dask."""
    for _ in range(WIDTH):
        block = step(block)
    for axis in (1, 2):
        edge = np.take(block, [0] * WIDTH, axis)
        block = np.concatenate([edge, block, edge], axis)
    return block


def flowed(start: Any, n_exchanges: int) -> list[Any]:
    """Return the state at the start, and after each exchange of halos; the sea is periodic."""
    states, depth = [start], {0: 0, 1: WIDTH, 2: WIDTH}
    for exchange in range(n_exchanges):
        with dask.annotate(dagad_step=exchange):  # what a schedule counts
            states.append(da.map_overlap(by_itself, states[-1], depth=depth, boundary="periodic", dtype=float))
    return states


def hump(n: int) -> np.ndarray:
    """A hump of water at rest."""
    x, y = np.meshgrid(np.arange(n) / n, np.arange(n) / n, indexing="ij")
    surface = 1.0 + 0.3 * np.exp(-((x - 0.3) ** 2 + (y - 0.35) ** 2) / 0.008)
    return np.stack([surface, 0.0 * x, 0.0 * x])


def gauge(state: Any) -> Any:
    """What the gauge reads: the mean height of a few cells."""
    n = state.shape[1]
    at = slice(int(0.62 * n), int(0.62 * n) + 4)
    return state[0, at, at].mean()


def film(states: Sequence[np.ndarray], adjoints: Sequence[np.ndarray], times: Sequence[float], path: str) -> None:
    """Above the water, below what a little more of it there and then adds to the reading at the end."""
    figure = Figure(figsize=(2.3 * len(times), 5.0), layout="constrained")
    rows = figure.subplots(2, len(times))
    reach = 0.35 * max(float(np.abs(each[0]).max()) for each in adjoints[:-1])
    for column, (state, adjoint, time) in enumerate(zip(states, adjoints, times, strict=True)):
        above = rows[0, column].imshow(state[0].T, cmap="Blues", vmin=0.95, vmax=1.12, origin="lower")
        below = rows[1, column].imshow(adjoint[0].T, cmap="RdBu_r", vmin=-reach, vmax=reach, origin="lower")
        rows[0, column].set_title(f"{time:.1f} s")
        for axis in rows[:, column]:
            axis.plot(0.62 * len(state[0]) + 1.5, 0.62 * len(state[0]) + 1.5, "k+")
            axis.set_axis_off()
    figure.colorbar(above, ax=rows[0], label="height of the water")
    figure.colorbar(below, ax=rows[1], label="d reading / d height")
    figure.savefig(path, dpi=110)


def checks(start: Any, states: Sequence[Any], reading: Any, policy: Any, scheduler: Any) -> dict[str, float]:
    """Return what has to be next to nothing: how far derivatives are from what is known of them."""
    rng = np.random.default_rng(1871)
    along = rng.standard_normal(start.shape)
    mass = dagad.gradient(states[-1][0].sum(), start, policy=policy)  # of water, which is kept: 1 and 0 everywhere
    adjoint, kept = dagad.gradient(reading, start, policy=policy), dagad.gradient(reading, start)
    moved = dagad.jvp(reading, start, da.from_array(along, start.chunks))[1]
    mass, adjoint, kept, moved = dask.compute(mass, adjoint, kept, moved, scheduler=scheduler)
    known = np.stack([np.ones(start.shape[1:]), *np.zeros((2, *start.shape[1:]))])
    return {
        "mass": float(np.abs(mass - known).max()),
        "forward mode": float(abs(np.sum(adjoint * along) / moved - 1.0)),
        "other bits than without a schedule": float(adjoint.tobytes() != kept.tobytes()),
    }


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=64, help="cells along each side of the sea")
    parser.add_argument("--blocks", type=int, default=2, help="into how many blocks each side is cut")
    parser.add_argument("--exchanges", type=int, default=12, help=f"of halos; {WIDTH} steps before each")
    parser.add_argument("--slots", type=int, default=3, help="states that are stored for the way back")
    add_options(parser)
    parser.add_argument("--picture", default="shallow_water.png", help="where the film goes")
    parser.add_argument("--check", action="store_true", help="fail unless the derivatives are what is known of them")
    options = parser.parse_args(argv)
    if options.size < WIDTH * options.blocks:
        parser.error(f"--size {options.size}: blocks of {WIDTH} cells and more, so at least {WIDTH * options.blocks}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    policy = Revolve(options.slots)
    length = -(-options.size // options.blocks)
    start = da.from_array(hump(options.size), (3, length, length))
    states = flowed(start, options.exchanges)
    frames = sorted({round(place) for place in np.linspace(0, options.exchanges, FRAMES)})
    reading, shown = gauge(states[-1]), [states[frame] for frame in frames]
    with opened(options) as scheduler:
        value, adjoints = dagad.value_and_gradient(reading, shown, policy=policy)  # for states on the way, too
        value, adjoints, seen = dask.compute(value, adjoints, shown, scheduler=scheduler)
        found = checks(start, states, reading, Revolve(options.slots), scheduler) if options.check else {}
    size = f"{options.size} x {options.size} cells in {options.blocks**2} blocks, {options.exchanges * WIDTH} steps"
    print(f"{size}; the gauge reads {value:.4f}")
    if policy.n_primal:  # counted in this process
        print(f"{policy.n_primal} runs of tasks, at most {policy.peak_linearizations} tapes at a time")
    film(seen, adjoints, [frame * WIDTH * PACE for frame in frames], options.picture)
    print(f"film: {options.picture}")
    for what, off in found.items():
        print(f"{what}: {off:.1e}")
    limits = {"mass": 1e-13, "forward mode": 1e-11}
    return int(any(off > limits.get(what, 0.0) for what, off in found.items()))


if __name__ == "__main__":
    raise SystemExit(main())
