"""A regression in PyMC on rows that are a Dask array: a potential of dagad's, beside the posterior in closed form."""

import argparse
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

import dagad
from dagad.interop.pytensor import as_pytensor
from scheduler_option import add_options, opened

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # ArviZ tells once a day of its next version
    import arviz
    import pymc as pm

TRUTH, NOISE = np.array([0.8, -0.5, 0.3]), 0.7
SHAPE, RATE = 2.0, 1.0  # of the prior of the variance, an inverse gamma; slopes are normal with that variance


class Posterior(NamedTuple):
    """What conjugate priors make of the rows: a t for each slope, an inverse gamma for the variance."""

    slopes: Any
    variance: Any

    def marginals(self) -> list[Any]:
        return [*(stats.t(*of_one) for of_one in self.slopes), stats.invgamma(self.variance[0], scale=self.variance[1])]


def simulate(n_rows: int, seed: int = 3) -> tuple[Any, Any]:
    """Return rows that are made where they are needed, chunk by chunk."""
    rng, chunks = da.random.default_rng(seed), -(-n_rows // 4)
    x = rng.standard_normal((n_rows, len(TRUTH)), chunks=(chunks, -1))
    return x, x @ TRUTH + NOISE * rng.standard_normal(n_rows, chunks=chunks)


def log_likelihood(rows: Any, slopes: Any, variance: Any) -> Any:
    x, y = rows
    return -0.5 * np.sum((y - np.dot(x, slopes)) ** 2) / variance - 0.5 * len(y) * np.log(variance)


def sample(shards: Any, options: argparse.Namespace) -> Any:
    of_rows = as_pytensor(lambda slopes, variance: dagad.reduce_sum(log_likelihood, shards, slopes, variance))
    with pm.Model():
        variance = pm.InverseGamma("variance", SHAPE, RATE)
        slopes = pm.Normal("slopes", 0.0, pm.math.sqrt(variance), shape=len(TRUTH))
        pm.Potential("rows", of_rows(slopes, variance))
        # Chains one after the other: the rows are spread over workers, and PyMC would fork this process otherwise.
        return pm.sample(
            options.draws, tune=options.draws, chains=options.chains, cores=1, random_seed=1, progressbar=False
        )


def in_closed_form(x: Any, y: Any, scheduler: Any) -> Posterior:
    """Return what is known of slopes and variance, of sums that are computed once."""
    precision, moment, squares = da.compute(x.T @ x, x.T @ y, y @ y, scheduler=scheduler)
    precision = precision + np.eye(len(TRUTH))
    mean = np.linalg.solve(precision, moment)
    shape, rate = SHAPE + len(y) / 2.0, RATE + (squares - moment @ mean) / 2.0
    scales = np.sqrt(rate / shape * np.diag(np.linalg.inv(precision)))
    return Posterior([(2.0 * shape, *pair) for pair in zip(mean, scales, strict=True)], (shape, rate))


def draws_of(trace: Any) -> np.ndarray:
    """Return draws parameter by chain by draw, in the order of the marginals."""
    slopes, variance = (trace.posterior[name].values for name in ("slopes", "variance"))
    return np.concatenate([np.moveaxis(slopes, -1, 0), variance[None]])


def compare(draws: np.ndarray, posterior: Posterior) -> tuple[float, float]:
    """How far means are off at most, in standard errors of theirs, and standard deviations by what part."""
    pairs = list(zip(draws, posterior.marginals(), strict=True))
    errors = [arviz.mcse(arviz.convert_to_dataset({"x": found}))["x"].item() for found in draws]
    means = [abs(found.mean() - known.mean()) / error for (found, known), error in zip(pairs, errors, strict=True)]
    return max(means), max(abs(found.std() / known.std() - 1.0) for found, known in pairs)


def draw(draws: np.ndarray, posterior: Posterior, path: str) -> None:
    figure = Figure(figsize=(11.0, 3.0), layout="constrained")
    names = [*(f"slope {place + 1}" for place in range(len(TRUTH))), "variance"]
    columns = zip(figure.subplots(1, len(names)), names, draws, posterior.marginals(), strict=True)
    for axes, name, found, known in columns:
        axes.hist(found.ravel(), bins=40, density=True, color="C0", alpha=0.5, label="draws")
        grid = np.linspace(*known.interval(0.9999), 200)
        axes.plot(grid, known.pdf(grid), color="C1", label="closed form")
        axes.set_title(name, fontsize="medium")
        axes.set_yticks([])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=110)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="how many")
    parser.add_argument("--draws", type=int, default=1000, help="of each chain, and as many to adapt")
    parser.add_argument("--chains", type=int, default=2, help="one after the other")
    add_options(parser)
    parser.add_argument("--picture", default="pymc_potential.png", help="where it goes")
    parser.add_argument("--check", action="store_true", help="fail unless the draws are of what is known")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    x, y = simulate(options.rows)
    with opened(options) as scheduler:
        draws = draws_of(sample(dagad.shard((x, y), scheduler=scheduler), options))
        posterior = in_closed_form(x, y, scheduler)
    for name, found, known in zip(
        ("slope 1", "slope 2", "slope 3", "variance"), draws, posterior.marginals(), strict=True
    ):
        print(f"{name:9} drawn {found.mean():.5f} ± {found.std():.5f}, known {known.mean():.5f} ± {known.std():.5f}")
    means, spreads = compare(draws, posterior)
    print(f"means are off by {means:.1f} standard errors at most (limit 4.5), standard deviations by {spreads:.0%}")
    draw(draws, posterior, options.picture)
    print(f"picture: {options.picture}")
    return 0 if not options.check or (means <= 4.5 and spreads <= 0.25) else 1


if __name__ == "__main__":
    raise SystemExit(main())
