"""How large should a ridge be? The penalty whose fit judges other rows best, by derivatives through the fit.

The fit is a minimum over rows in Shards, found by scipy; its derivative with respect to the penalty follows from the
equation that holds there, by Hessian-vector products on the same rows. The normal equations say the same.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import minimize_scalar

import dagad
from dagad.solvers import minimize
from scheduler_option import add_options, opened

N_COLUMNS = 60


class Rows(NamedTuple):
    """What explains, a row for each observation, and what is observed."""

    x: Any
    y: Any


def simulate(n_rows: int, seed: int = 3) -> tuple[Rows, Rows]:
    """Return rows to fit to, and four times as many to judge the fit by; columns resemble their neighbours."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(5 * n_rows, N_COLUMNS))
    x[:, 1:] = 0.6 * x[:, :-1] + 0.8 * x[:, 1:]
    y = x @ rng.normal(scale=0.15, size=N_COLUMNS) + 1.5 * rng.normal(size=len(x))
    return Rows(x[:n_rows], y[:n_rows]), Rows(x[n_rows:], y[n_rows:])


def squares(rows: Rows, beta: Any) -> Any:
    residual = rows.y - rows.x @ beta
    return 0.5 * residual @ residual


class Ridge:
    """Fits to some rows, judged by others, as functions of the logarithm of the penalty; the rows are Shards."""

    def __init__(self, train: Any, test: Any) -> None:
        self._train, self._test = train, test

    def estimate(self, log_penalty: Any) -> Any:
        """Return the coefficients: the minimum of a reduction over the rows."""

        def loss(beta: Any) -> Any:
            return dagad.reduce_sum(squares, self._train, beta) + 0.5 * np.exp(log_penalty) * beta @ beta

        options = {"gtol": 1e-7}
        return minimize(loss, np.zeros(N_COLUMNS), jac=dagad.grad(loss), method="BFGS", options=options).x

    def judged(self, log_penalty: Any) -> Any:
        """Return the mean of squares of what the fit misses in rows that it has not seen."""
        return 2.0 * dagad.reduce_sum(squares, self._test, self.estimate(log_penalty)) / self._test.n_rows


class NormalEquations:
    """The same by linear algebra: value and slope."""

    def __init__(self, train: Rows, test: Rows) -> None:
        self._test, self._square, self._right = test, train.x.T @ train.x, train.x.T @ train.y

    def estimate(self, log_penalty: float) -> np.ndarray:
        penalty = np.exp(log_penalty) * np.eye(N_COLUMNS)
        return np.linalg.solve(self._square + penalty, self._right)

    def judged(self, log_penalty: float) -> float:
        return 2.0 * float(squares(self._test, self.estimate(log_penalty))) / len(self._test.y)

    def slope(self, log_penalty: float) -> float:
        beta, penalty = self.estimate(log_penalty), np.exp(log_penalty)
        moved = -penalty * np.linalg.solve(self._square + penalty * np.eye(N_COLUMNS), beta)
        missed = self._test.y - self._test.x @ beta
        return -2.0 * float(missed @ (self._test.x @ moved)) / len(self._test.y)


class Step(NamedTuple):
    """A penalty that was tried, and what is known of it."""

    log_penalty: float
    value: float
    slope: float


def newton(judged: Callable[[Any], Any], log_penalty: float, n_steps: int = 12) -> list[Step]:
    """Descend to the best penalty by slopes and curvatures, by at most a factor of e^1.5 at a time."""
    steps = []
    for _ in range(n_steps):
        value, slope = dagad.value_and_grad(judged)(log_penalty)
        steps.append(Step(log_penalty, float(value), float(slope)))
        if abs(slope) < 1e-7:
            break
        log_penalty -= float(np.clip(slope / abs(dagad.hessian(judged)(log_penalty)), -1.5, 1.5))
    return steps


def draw(steps: Sequence[Step], exact: NormalEquations, path: str) -> None:
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axis = figure.subplots()
    ends = min(step.log_penalty for step in steps) - 1.0, max(step.log_penalty for step in steps) + 3.0
    grid = np.linspace(*ends, 200)
    axis.plot(np.exp(grid), [exact.judged(each) for each in grid], color="0.6", label="normal equations")
    for number, step in enumerate(steps):
        near = step.log_penalty + np.array([-0.6, 0.6])
        label = "dagad: values and slopes, step by step" if not number else None
        axis.plot(np.exp(near), step.value + step.slope * (near - step.log_penalty), color="C0", linewidth=1.6)
        axis.plot(np.exp(step.log_penalty), step.value, "o", color="C0", markersize=5.0, label=label)
    axis.axvline(np.exp(steps[-1].log_penalty), color="C1", linewidth=0.8, label="the penalty that is chosen")
    axis.set(xscale="log", xlabel="penalty", ylabel="mean square of what is missed in other rows")
    axis.legend(frameon=False)
    figure.savefig(path, dpi=110)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400, help="how many rows are fitted to")
    add_options(parser)
    parser.add_argument("--picture", default="penalty.png", help="where the picture goes")
    parser.add_argument("--check", action="store_true", help="fail unless the penalty is that of the normal equations")
    options = parser.parse_args(argv)
    train, test = simulate(options.rows)
    exact = NormalEquations(train, test)
    with opened(options) as scheduler:
        placed = [dagad.shard(rows, scheduler=scheduler, grainsize=-(-len(rows.y) // 4)) for rows in (train, test)]
        ridge = Ridge(*placed)
        steps = newton(ridge.judged, 0.0)
        chosen = steps[-1].log_penalty
        missed = np.abs(ridge.estimate(chosen) - exact.estimate(chosen)).max()
    for step in steps:
        print(f"penalty {np.exp(step.log_penalty):10.4f}: {step.value:.6f}, slope {step.slope:10.2e}")
    slopes = max(abs(step.slope - exact.slope(step.log_penalty)) for step in steps)
    best = float(minimize_scalar(exact.judged, (chosen - 0.5, chosen + 0.5), tol=1e-9).x)
    print(f"slopes differ from the normal equations' by {slopes:.1e}, coefficients by {missed:.1e}")
    print(f"the best penalty is {np.exp(chosen):.4f}; by the normal equations alone {np.exp(best):.4f}")
    draw(steps, exact, options.picture)
    print(f"picture: {options.picture}")
    right = slopes < 1e-6 and missed < 1e-6 and abs(chosen - best) < 1e-4
    return 0 if right or not options.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
