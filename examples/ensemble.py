"""What will the weather be, and how sure are we? An ensemble of 4D-Vars, all members in one loop over the observations.

The model is Lorenz's of 1996, forty places on a ring. Each member has a background and observations of its own,
disturbed as much as these may be wrong, and looks for the state from which the model comes closest to both.
``dagad.vmap`` runs the search, by scipy, for all members: each model is plain numpy, and the observations are visited
once for all of them.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import minimize

import dagad
from scheduler_option import add_options, opened

SIZE, FORCING, STEP = 40, 8.0, 0.025
WINDOW, BEYOND = 12, 48  # steps of the assimilation, and of the forecast after it
OF_BACKGROUND, OF_OBSERVATIONS = 1.0, 0.7  # standard deviations of errors
N_OBSERVATIONS = 600


def tendency(x: Any) -> Any:
    return (np.roll(x, -1, -1) - np.roll(x, 2, -1)) * np.roll(x, 1, -1) - x + FORCING


def advance(x: Any) -> Any:
    """One step of Runge and Kutta."""
    a = tendency(x)
    b = tendency(x + 0.5 * STEP * a)
    c = tendency(x + 0.5 * STEP * b)
    return x + STEP / 6.0 * (a + 2.0 * b + 2.0 * c + tendency(x + STEP * c))


def trajectory(x: Any, n_steps: int) -> Any:
    states = [x]
    for _ in range(n_steps):
        states.append(advance(states[-1]))
    return np.stack(states)


def observed(rng: np.random.Generator, truth: np.ndarray, n_members: int) -> tuple[np.ndarray, ...]:
    """Draw when and where is observed, what, and how each member's observations are disturbed."""
    when, where = rng.integers(1, WINDOW + 1, N_OBSERVATIONS), rng.integers(SIZE, size=N_OBSERVATIONS)
    value = truth[when, where] + OF_OBSERVATIONS * rng.standard_normal(N_OBSERVATIONS)
    return when, where, value, OF_OBSERVATIONS * rng.standard_normal((N_OBSERVATIONS, n_members))


def misfit(rows: Any, states: Any, member: Any) -> Any:
    when, where, value, disturbed = rows
    return 0.5 * np.sum(((states[when, where] - value - disturbed[:, member]) / OF_OBSERVATIONS) ** 2)


def analysis(observations: Any) -> Callable[..., Any]:
    """Return the 4D-Var of one member: of its background, and of its number."""

    def of_member(background: np.ndarray, member: Any) -> tuple[np.ndarray, float, int]:
        def cost(away: Any) -> Any:  # from the background, in standard deviations: well-conditioned
            states = trajectory(background + OF_BACKGROUND * away, WINDOW)
            return dagad.reduce_sum(misfit, observations, states, int(member)) + 0.5 * np.sum(away**2)

        found = minimize(
            dagad.value_and_grad(cost), np.zeros(SIZE), jac=True, method="L-BFGS-B", options={"maxiter": 25}
        )
        return background + OF_BACKGROUND * found.x, found.fun, found.nit

    return of_member


def error(states: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """How wrong the mean of an ensemble is, at each time."""
    return np.sqrt(np.mean((states.mean(axis=0) - truth) ** 2, axis=-1))


def spread(states: np.ndarray) -> np.ndarray:
    """How wrong it says it is."""
    return np.sqrt(np.mean(states.var(axis=0, ddof=1), axis=-1) * (1.0 + 1.0 / len(states)))


def draw(truth: np.ndarray, before: np.ndarray, after: np.ndarray, path: str) -> None:
    figure = Figure(figsize=(11.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for states, colour, label in ((before, "0.75", "backgrounds"), (after, "C0", "analyses")):
        lines = left.plot(states[:, 0].T, color=colour, linewidth=0.7)
        lines[0].set_label(label)
    left.plot(truth[0], color="C3", linewidth=1.5, label="truth")
    left.set(xlabel="place on the ring", title="the state at the beginning")
    left.legend(frameon=False, ncols=3, loc="lower center")
    days = 5.0 * STEP * np.arange(len(truth))  # a unit of time is five days, by the growth of errors
    for states, colour, label in ((before, "0.6", "without observations"), (after, "C0", "with observations")):
        right.plot(days, error(states, truth), color=colour, label=f"error, {label}")
        right.plot(days, spread(states), color=colour, linestyle="--", label=f"spread, {label}")
    right.axvspan(0.0, days[WINDOW], color="0.93")
    right.set(xlabel="days", title="of the mean of all members", ylim=(0.0, None))
    right.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=110)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=16)
    add_options(parser)
    parser.add_argument("--picture", default="ensemble.png", help="where it goes")
    parser.add_argument("--check", action="store_true", help="fail unless members have their bits, and errors are told")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options, rng = parse(argv), np.random.default_rng(1)
    truth = trajectory(trajectory(FORCING + rng.standard_normal(SIZE), 400)[-1], WINDOW + BEYOND)
    believed = truth[0] + OF_BACKGROUND * rng.standard_normal(SIZE)
    backgrounds = believed + OF_BACKGROUND * rng.standard_normal((options.members, SIZE))
    rows = observed(rng, truth, options.members)
    with opened(options) as scheduler:
        search = analysis(dagad.shard(rows, grainsize=N_OBSERVATIONS // 2, scheduler=scheduler))
        analyses, costs, n_iterations = dagad.vmap(search)(backgrounds, np.arange(options.members))
        alone = search(backgrounds[-1], options.members - 1)[0]
    before, after = (np.stack([trajectory(x, WINDOW + BEYOND) for x in one]) for one in (backgrounds, analyses))
    same = np.array_equal(alone, analyses[-1])
    print(f"{options.members} members: {max(n_iterations)} iterations at most, to costs near {np.mean(costs):.0f}")
    for when, what in ((0, "at the beginning"), (WINDOW, "at the end of the window"), (-1, "at the end")):
        print(
            f"{what:25} error {error(before, truth)[when]:.2f} without observations, {error(after, truth)[when]:.2f} "
            f"with them; spread {spread(after)[when]:.2f}"
        )
    print(f"the last member together and alone: {'the same, bit for bit' if same else 'others'}")
    draw(truth, before, after, options.picture)
    print(f"picture: {options.picture}")
    ratio = error(after, truth)[WINDOW] / spread(after)[WINDOW]
    right = same and error(after, truth)[WINDOW] < 0.4 * error(before, truth)[WINDOW] and 0.5 < ratio < 2.0
    return 0 if right or not options.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
