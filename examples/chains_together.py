"""Four chains of NUTS as members of one program: each gradient of all of them is one pass over the rows.

Who has affairs? Fair's survey of 6,366 wives (1974) is in statsmodels. Each chain is a function of its start and its
seed, in plain numpy, with the loops and branches of the sampler; ``dagad.vmap`` runs it for all, and where they ask for
a gradient it is one job. Each chain has the bits that it has alone.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import statsmodels.api as sm
from matplotlib.figure import Figure

import dagad
from dagad.interop.scipy import minimize, standard_errors
from scheduler_option import add_options, opened

COLUMNS = "rate_marriage", "age", "yrs_married", "religious", "educ"
STEP, DEEPEST, WARM_UP = 0.8, 7, 20  # of the sampler, in units of standard errors; draws that are left out
SPREAD = 10.0  # of the prior of each coefficient


def survey() -> tuple[np.ndarray, np.ndarray]:
    """Return what describes each woman, in standard deviations, with a constant; and whether she has had affairs."""
    frame = sm.datasets.fair.load_pandas().data
    columns = frame[list(COLUMNS)].to_numpy(dtype=float)
    columns = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    return sm.add_constant(columns), (frame["affairs"] > 0).to_numpy(dtype=float)


def chunk_loss(rows: Any, beta: Any) -> Any:
    x, y = rows
    eta = x @ beta
    return np.sum(np.logaddexp(0.0, eta) - y * eta)


class Place(NamedTuple):
    """Where a chain is: its position and momentum, the potential and its slope."""

    z: np.ndarray
    r: np.ndarray
    height: float
    slope: np.ndarray

    def energy(self) -> float:
        return float(self.height + 0.5 * self.r @ self.r)


class Path(NamedTuple):
    """A piece of a trajectory: its ends, the place that was chosen of it, how likely it is, and whether it goes on."""

    back: Place
    front: Place
    chosen: Place
    log_weight: float
    goes_on: bool


def leap(potential: Callable[[Any], Any], place: Place, step: float) -> Place:
    r = place.r - 0.5 * step * place.slope
    z = place.z + step * r
    height, slope = potential(z)  # the one reduction, at which chains meet
    return Place(z, r - 0.5 * step * slope, float(height), slope)


def is_straight(back: Place, front: Place) -> bool:
    across = front.z - back.z
    return bool(across @ back.r >= 0.0 and across @ front.r >= 0.0)


def joined(first: Path, second: Path, forwards: bool, chosen: Place) -> Path:
    back, front = (first.back, second.front) if forwards else (second.back, first.front)
    log_weight = float(np.logaddexp(first.log_weight, second.log_weight))
    return Path(back, front, chosen, log_weight, second.goes_on and is_straight(back, front))


def chain(start: np.ndarray, seed: int, potential: Callable[[Any], Any], n_draws: int) -> tuple[np.ndarray, int]:
    """Return the draws of one chain by NUTS, with multinomial choice, and how many gradients they took."""
    rng, n_gradients = np.random.default_rng(int(seed)), 0

    def walk(place: Place, forwards: bool, depth: int, energy: float) -> Path:
        nonlocal n_gradients
        if depth == 0:
            n_gradients += 1
            new = leap(potential, place, STEP if forwards else -STEP)
            log_weight = energy - new.energy()
            return Path(new, new, new, log_weight, log_weight > -1000.0)
        first = walk(place, forwards, depth - 1, energy)
        if not first.goes_on:
            return first
        second = walk(first.front if forwards else first.back, forwards, depth - 1, energy)
        is_second = np.log(rng.random()) < second.log_weight - np.logaddexp(first.log_weight, second.log_weight)
        return joined(first, second, forwards, second.chosen if is_second else first.chosen)

    height, slope = potential(start)
    place, draws = Place(start, start, float(height), slope), []
    for _ in range(n_draws):
        place = place._replace(r=rng.standard_normal(len(start)))
        path, depth = Path(place, place, place, 0.0, True), 0
        while path.goes_on and depth < DEEPEST:
            forwards = bool(rng.random() < 0.5)
            more = walk(path.front if forwards else path.back, forwards, depth, place.energy())
            if not more.goes_on:
                break
            is_new = np.log(rng.random()) < more.log_weight - path.log_weight
            path, depth = joined(path, more, forwards, more.chosen if is_new else path.chosen), depth + 1
        place = path.chosen
        draws.append(place.z)
    return np.array(draws), n_gradients


def r_hat(draws: np.ndarray) -> float:
    """Return how much wider all chains are than each of them, for the parameter where that is worst."""
    within = draws.var(axis=1, ddof=1).mean(axis=0)
    between = draws.mean(axis=1).var(axis=0, ddof=1)
    return float(np.max(np.sqrt((within * (1.0 - 1.0 / draws.shape[1]) + between) / within)))


def draw(draws: np.ndarray, mode: np.ndarray, errors: np.ndarray, path: str) -> None:
    figure = Figure(figsize=(10.0, 6.5), layout="constrained")
    axes = figure.subplots(len(COLUMNS), 2, width_ratios=(2, 1))
    for place, (name, (trace, density)) in enumerate(zip(COLUMNS, axes, strict=True), 1):
        for one in draws[..., place]:
            trace.plot(one, linewidth=0.6)
        trace.set_ylabel(name.replace("_", "\n"), fontsize="small")
        trace.tick_params(labelbottom=place == len(COLUMNS))
        across = mode[place] + errors[place] * np.linspace(-4.0, 4.0, 100)
        normal = np.exp(-0.5 * ((across - mode[place]) / errors[place]) ** 2) / errors[place] / np.sqrt(2.0 * np.pi)
        density.hist(draws[..., place].ravel(), bins=30, density=True, color="0.8")
        density.plot(across, normal, color="C3", linewidth=1.0)
        density.set_yticks([])
    axes[0, 0].set_title(f"{len(draws)} chains, from far away", fontsize="medium")
    axes[0, 1].set_title("all draws, and the mode with its standard error", fontsize="medium")
    axes[-1, 0].set_xlabel("draw")
    axes[-1, 1].set_xlabel("change of the log odds for a standard deviation")
    figure.savefig(path, dpi=110)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200, help="of each chain")
    parser.add_argument("--chains", type=int, default=4)
    add_options(parser)
    parser.add_argument("--picture", default="chains_together.png", help="where it goes")
    parser.add_argument("--check", action="store_true", help="fail unless chains have their bits, and agree")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options, rows = parse(argv), survey()
    with opened(options) as scheduler:
        shards = dagad.shard(rows, grainsize=1_600, scheduler=scheduler)

        def posterior(beta: Any) -> Any:  # minus its logarithm
            return dagad.reduce_sum(chunk_loss, shards, beta) + 0.5 * np.sum(beta**2) / SPREAD**2

        fit = minimize(posterior, np.zeros(len(COLUMNS) + 1), method="trust-exact")
        found = standard_errors(posterior, fit.x)
        root = np.linalg.cholesky(found.covariance)
        potential = dagad.value_and_grad(lambda z: posterior(fit.x + root @ z))

        def one_chain(start: Any, seed: Any) -> Any:
            return chain(start, seed, potential, options.draws)

        starts = 5.0 * np.random.default_rng(0).standard_normal((options.chains, len(fit.x)))
        seeds = np.arange(options.chains)
        z, n_gradients = dagad.vmap(one_chain)(starts, seeds)
        alone = [one_chain(start, seed) for start, seed in zip(starts, seeds, strict=True)] if options.check else []
    draws = fit.x + z @ root.T
    kept = draws[:, WARM_UP:]
    off = float(np.max(np.abs(kept.mean(axis=(0, 1)) - fit.x) / found.flat))
    print(f"gradients of each chain: {n_gradients.tolist()}")
    print(f"R-hat {r_hat(kept):.3f}, means are {off:.2f} standard errors from the mode at most")
    same = all(np.array_equal(one, own) for one, (own, _) in zip(z, alone, strict=False))
    if alone:
        print(f"together and alone the draws are {'the same, bit for bit' if same else 'others'}")
    draw(draws, fit.x, found.flat, options.picture)
    print(f"picture: {options.picture}")
    return 0 if not options.check or (same and r_hat(kept) < 1.05 and off < 0.25) else 1


if __name__ == "__main__":
    raise SystemExit(main())
