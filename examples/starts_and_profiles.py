"""A mixture is fitted from many starts in one loop, and its parameters are profiled in another one.

Each start, and each point of a profile, is a member of one program: scipy climbs for each, by ``dagad.vmap``, and where
they ask for a gradient the rows are visited once for all. Each member has the bits that it has alone.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import minimize

import dagad
from dagad.interop.scipy import standard_errors
from scheduler_option import add_options, opened

NAMES = (
    "logit of the share",
    "mean of the first",
    "distance of the second",
    "log sd of the first",
    "log sd of the second",
)
LOW = np.array([-4.0, -6.0, 0.0, -3.0, -3.0])  # the second mean is above the first, so that they can't be swapped
HIGH = np.array([4.0, 6.0, 8.0, 2.0, 2.0])
N_ROWS, N_STARTS, N_POINTS, LONGEST = 300, 16, 13, 120
CUT = 1.92  # half of the 95 % point of a chi square


def simulate() -> np.ndarray:
    rng = np.random.default_rng(2)
    is_first = rng.random(N_ROWS) < 0.7
    return np.where(is_first, rng.normal(0.0, 1.0, N_ROWS), rng.normal(2.2, 0.7, N_ROWS))


def chunk_loss(y: Any, theta: Any) -> Any:
    logit, mean, distance, log_sd, log_sd_second = (theta[k] for k in range(5))
    first = -np.logaddexp(0.0, -logit) - 0.5 * ((y - mean) / np.exp(log_sd)) ** 2 - log_sd
    away = (y - mean - distance) / np.exp(log_sd_second)
    second = -np.logaddexp(0.0, logit) - 0.5 * away**2 - log_sd_second
    return -np.sum(np.logaddexp(first, second))


def climbed(both: Callable[[Any], Any], start: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[Any, ...]:
    """Return the loss at the end of a climb by L-BFGS-B, where that is, and the losses on the way."""
    losses = [float(both(start)[0])]
    found = minimize(
        both,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(low, high, strict=True)),
        callback=lambda intermediate_result: losses.append(intermediate_result.fun),
        options={"ftol": 1e-13, "gtol": 1e-7, "maxiter": LONGEST},
    )
    way = np.full(LONGEST + 1, np.nan)
    way[: len(losses)] = losses
    return found.fun, found.x, way


def profiled(loss: Callable[[Any], Any], place: int, best: np.ndarray) -> Callable[[Any], Any]:
    """Return the profile of a parameter: the least loss where it has a value, over all other parameters."""
    others = [k for k in range(len(best)) if k != place]

    def at(value: Any) -> Any:
        def with_held(free: Any) -> Any:
            return loss(np.concatenate([free[:place], np.array([value]), free[place:]]))

        return climbed(dagad.value_and_grad(with_held), best[others], LOW[others], HIGH[others])[0]

    return at


def interval(values: np.ndarray, profile: np.ndarray, best: float) -> np.ndarray:
    """Return the ends of the 95 % interval, between points of the profile: its signed root is nearly a line."""
    root = np.sign(values - best) * np.sqrt(np.maximum(profile - profile.min(), 0.0))
    return np.interp([-np.sqrt(CUT), np.sqrt(CUT)], root, values, left=np.nan, right=np.nan)


def draw(
    ways: np.ndarray, profiles: Sequence[tuple[np.ndarray, np.ndarray]], best: Any, errors: Any, path: str
) -> None:
    """Draw the losses on all ways, and those of profiles, above the least one."""
    figure = Figure(figsize=(11.0, 6.0), layout="constrained")
    axes = figure.subplots(2, 3).ravel()
    for way in ways:
        axes[0].semilogy(way + 1e-3, linewidth=0.9)
    axes[0].set(xlabel="iteration", ylabel="loss above the least one", title=f"{len(ways)} starts")
    for place, (axis, (values, profile)) in enumerate(zip(axes[1:], profiles, strict=True)):
        axis.plot(values, profile, "o-", markersize=3.0, label="profile")
        across = np.linspace(values[0], values[-1], 100)
        axis.plot(across, 0.5 * ((across - best[place]) / errors[place]) ** 2, "--", linewidth=0.9, label="quadratic")
        axis.axhline(CUT, color="0.6", linewidth=0.8)
        axis.set(title=NAMES[place], ylim=(0.0, 6.0))
    axes[1].legend(frameon=False)
    figure.savefig(path, dpi=110)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--picture", default="starts_and_profiles.png", help="where it goes")
    parser.add_argument("--check", action="store_true", help="fail unless the loops have the bits of single climbs")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    with opened(options) as scheduler:
        shards = dagad.shard(simulate(), grainsize=150, scheduler=scheduler)

        def loss(theta: Any) -> Any:
            return dagad.reduce_sum(chunk_loss, shards, theta)

        def climb(start: Any) -> Any:
            return climbed(dagad.value_and_grad(loss), start, LOW, HIGH)

        starts = np.random.default_rng(5).uniform(0.8 * LOW, 0.8 * HIGH, size=(N_STARTS, len(LOW)))
        found, places, ways = dagad.vmap(climb)(starts)
        lowest, best = found.min(), places[np.argmin(found)]
        errors = standard_errors(loss, best).flat
        values = np.clip(best + errors * np.linspace(-4.0, 4.0, N_POINTS)[:, None], LOW, HIGH).T
        ats = [profiled(loss, place, best) for place in range(len(best))]
        profiles = [dagad.vmap(at)(column) for at, column in zip(ats, values, strict=True)]
        same_starts = np.array_equal(found, [climb(start)[0] for start in starts]) if options.check else True
        same_points = np.array_equal(profiles[2], [ats[2](value) for value in values[2]]) if options.check else True
    print(f"{np.sum(found < lowest + 1e-3)} of {N_STARTS} starts end at the least loss, {lowest:.4f}")
    for name, middle, error, column, profile in zip(NAMES, best, errors, values, profiles, strict=True):
        low, high = interval(column, profile, middle)
        print(f"    {name:24} {middle:7.3f}   profile {low:.3f} to {high:.3f}   quadratic ± {1.96 * error:.3f}")
    if options.check:
        for what, same in (("starts", same_starts), ("points of a profile", same_points)):
            print(f"{what} together and alone: {'the same, bit for bit' if same else 'others'}")
    above = [(column, profile - lowest) for column, profile in zip(values, profiles, strict=True)]
    draw(ways - lowest, above, best, errors, options.picture)
    print(f"picture: {options.picture}")
    right = same_starts and same_points and all(np.all(profile >= lowest - 1e-6) for profile in profiles)
    return 0 if right or not options.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
