"""Where was it hot? The temperatures that a plate began with, from noisy ones at the end, through halos and time."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import minimize

import dagad
from dagad.extend import Segment
from scheduler_option import add_options, opened

RATE = 0.24  # of heat to each of the four neighbours in a step; beyond a quarter steps are unstable
NOISE = 0.01  # standard deviation of what is measured
WIDTH = 4  # cells in the halo of a block, so that it can take as many steps alone


def by_itself(block: Any) -> Any:
    """Take as many steps as the halo is wide, each from one more row at either end that is not right any more.

    No heat flows out: beyond the edge of the plate the temperatures are mirrored, by Dask along the first axis.
    """
    for _ in range(WIDTH):
        wide = np.concatenate([block[:, :1], block, block[:, -1:]], axis=1)
        inner = wide[1:-1, 1:-1]
        flow = wide[2:, 1:-1] + wide[:-2, 1:-1] + wide[1:-1, 2:] + wide[1:-1, :-2] - 4.0 * inner
        block = inner + RATE * flow
    return np.concatenate([block[:1]] * WIDTH + [block] + [block[-1:]] * WIDTH)  # Dask cuts these off


def cooled(start: Any, n_exchanges: int) -> Any:
    """Temperatures after some steps; before each exchange of halos the blocks take `WIDTH` of them."""
    state = start
    for exchange in range(n_exchanges):
        with dask.annotate(dagad_step=exchange):  # what a schedule counts
            state = da.map_overlap(by_itself, state, depth={0: WIDTH, 1: 0}, boundary="reflect", dtype=float)
    return state


def plate(n: int) -> np.ndarray:
    """A ring and a bar, hot."""
    x, y = np.meshgrid(np.linspace(0.0, 1.0, n), np.linspace(0.0, 1.0, n))
    radius = np.hypot(x - 0.36, y - 0.42)
    bar = (np.abs(x - 0.8) < 0.06) & (np.abs(y - 0.55) < 0.33)
    return np.where((np.abs(radius - 0.2) < 0.06) | bar, 1.0, 0.0)


def misfit(start: Any, measured: Any, n_exchanges: int) -> Any:
    """Half the mean square of what is off at the end, in units of the noise: a half where the start is right."""
    return (((cooled(start, n_exchanges) - measured) / NOISE) ** 2).mean() / 2.0


def value_and_gradient(options: argparse.Namespace, measured: Any, policy: Any, scheduler: Any) -> Callable[..., Any]:
    """Return what computes the misfit of a start and its gradient, a temperature for each cell."""
    chunks = (-(-options.size // options.blocks), options.size)

    def both(flat: np.ndarray) -> tuple[float, np.ndarray]:
        start = da.from_array(flat.reshape(measured.shape), chunks)
        ends = da.from_array(measured, chunks)
        graphs = dagad.value_and_gradient(misfit(start, ends, options.exchanges), start, policy=policy)
        value, gradient = dask.compute(*graphs, scheduler=scheduler)
        return float(value), gradient.ravel()

    return both


def recover(both: Callable[..., Any], measured: np.ndarray, iterations: int) -> tuple[np.ndarray, list[float]]:
    """Go downhill from what was measured, until that is explained up to its noise; beyond, noise would be fitted."""
    history: list[float] = []

    def enough(intermediate_result: Any) -> None:
        history.append(intermediate_result.fun)
        if intermediate_result.fun <= 0.5:
            raise StopIteration

    bounds = [(0.0, None)] * measured.size  # nothing is colder than the surroundings
    how: dict[str, Any] = {"method": "L-BFGS-B", "bounds": bounds, "options": {"maxiter": iterations, "ftol": 0.0}}
    found = minimize(both, np.maximum(measured, 0.0).ravel(), jac=True, callback=enough, **how)
    return found.x.reshape(measured.shape), history


def gap(both: Callable[..., Any], at: np.ndarray, rng: np.random.Generator) -> float:
    """How far the gradient is from a central difference, which is exact here but for rounding: it is a parabola."""
    along = rng.standard_normal(at.size)
    slope = (both(at.ravel() + along)[0] - both(at.ravel() - along)[0]) / 2.0
    return float(abs(both(at.ravel())[1] @ along / slope - 1.0))


def draw(panels: dict[str, np.ndarray], history: list[float], path: str) -> None:
    figure = Figure(figsize=(12.0, 3.2), layout="constrained")
    *axes, last = figure.subplots(1, len(panels) + 1)
    for axis, (title, field) in zip(axes, panels.items(), strict=True):
        image = axis.imshow(field, cmap="inferno", vmin=0.0, vmax=1.0)
        axis.set_title(title)
        axis.set_axis_off()
    figure.colorbar(image, ax=axes, shrink=0.8)
    last.semilogy(history)
    last.axhline(0.5, color="0.6", linestyle="--", label="noise")
    last.set_title("misfit")
    last.set_xlabel("iteration")
    last.legend(frameon=False)
    figure.savefig(path, dpi=110)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=64, help="cells along each side of the plate")
    parser.add_argument("--blocks", type=int, default=2, help="into how many strips it is cut")
    parser.add_argument("--exchanges", type=int, default=6, help=f"of halos; {WIDTH} steps before each")
    parser.add_argument("--segment", type=int, default=2, help="exchanges whose tapes are in memory at a time")
    add_options(parser)
    parser.add_argument("--picture", default="heat.png", help="where the picture goes")
    parser.add_argument("--check", action="store_true", help="fail unless gradient and recovered plate are right")
    options = parser.parse_args(argv)
    if options.size < options.blocks * WIDTH:
        parser.error(f"--size {options.size}: strips of {WIDTH} rows and more, so at least {options.blocks * WIDTH}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options, rng = parse(argv), np.random.default_rng(1822)
    truth, policy = plate(options.size), Segment(options.segment)
    with opened(options) as scheduler:
        in_blocks = da.from_array(truth, (-(-options.size // options.blocks), options.size))
        measured = cooled(in_blocks, options.exchanges).compute(scheduler=scheduler)
        measured = measured + NOISE * rng.standard_normal(measured.shape)
        both = value_and_gradient(options, measured, policy, scheduler)
        off = gap(both, truth, rng)
        found, history = recover(both, measured, 150)
    errors = [float(np.linalg.norm(field - truth) / np.linalg.norm(truth)) for field in (measured, found)]
    print(f"{options.size} x {options.size} cells, {options.exchanges * WIDTH} steps; gradient off by {off:.1e}")
    print(f"misfit {history[0]:.1f} to {history[-1]:.2f} in {len(history)} iterations; noise explains 0.50")
    print("relative error: {:.2f} of what was measured, {:.2f} of what was recovered".format(*errors))
    if policy.peak_linearizations:  # counted in this process
        print(f"at most {policy.peak_linearizations} tapes at a time")
    draw({"start": truth, "measured at the end": measured, "recovered start": found}, history, options.picture)
    print(f"picture: {options.picture}")
    right = off <= 1e-9 and history[-1] <= 0.5 and errors[1] <= 0.6 * errors[0]
    return 0 if right or not options.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
