"""How often do patients come? A hierarchical model sampled by NUTS, with rows that are spread over worker processes."""

import argparse
import itertools
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

import dagad
from dagad.interop.jax import as_jax
from dagad.interop.nutpie import compile_model
from scheduler_option import add_options, opened

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # ArviZ tells once a day of its next version
    import arviz
    import blackjax
    import nutpie

jax.config.update("jax_enable_x64", True)

TRUTH = {"mean": np.array([0.5, -0.3]), "log_spread": np.log([0.4, 0.2])}
NAMES = ("mean of the rates' logs", "mean of the slopes", "log of the rates' spread", "log of the slopes' spread")
SEED = 11


@dataclass(frozen=True, slots=True)
class Run:
    """What a sampler drew, and how long it took; draws by name are chain by draw by what the parameter's shape is."""

    name: str
    draws: dict[str, np.ndarray]
    seconds: float

    def effective(self) -> float:
        """How many independent draws those of the parameter that mixes worst are worth."""
        return min(float(found.min()) for found in arviz.ess(arviz.convert_to_dataset(self.draws)).values())

    def means(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the means of what all clinics have in common, and their standard errors."""
        found = arviz.convert_to_dataset({key: self.draws[key] for key in TRUTH})
        both = found.mean(("chain", "draw")), arviz.mcse(found)
        return tuple(np.concatenate([one[key].values for key in TRUTH]) for one in both)


def simulate(n_rows: int, n_groups: int) -> tuple[np.ndarray, ...]:
    """Draw, for each row, the clinic, the patient's age in standard deviations, and how often the patient came."""
    rng = np.random.default_rng(SEED)
    effects = TRUTH["mean"] + np.exp(TRUTH["log_spread"]) * rng.standard_normal((n_groups, 2))
    group, age = rng.integers(n_groups, size=n_rows), rng.standard_normal(n_rows)
    return group, age, rng.poisson(np.exp(effects[group, 0] + effects[group, 1] * age)).astype(float)


def log_likelihood(rows: Any, effects: Any) -> Any:
    """Return that of a chunk of rows, or of all: counts are Poisson, each clinic has its own rate and slope."""
    group, age, visits = rows
    log_rate = effects[group, 0] + effects[group, 1] * age
    return jnp.sum(visits * log_rate - jnp.exp(log_rate))


def log_density(params: Any, of_rows: Callable[[Any], Any], np: Any) -> Any:
    """Return the log of the posterior density, written with numpy or with jax.numpy."""
    away = (params["effects"] - params["mean"]) / np.exp(params["log_spread"])
    of_groups = -0.5 * np.sum(away**2) - len(params["effects"]) * np.sum(params["log_spread"])
    return (
        of_rows(params["effects"]) + of_groups - 0.5 * np.sum(params["mean"] ** 2 + (params["log_spread"] + 1.0) ** 2)
    )


def on_shards(shards: Any) -> Callable[[Any], Any]:
    """Return the log-density of rows that are where the shards are."""

    def posterior(params: Any) -> Any:
        return log_density(params, lambda effects: dagad.reduce_sum(log_likelihood, shards, effects, engine="jax"), np)

    return posterior


def in_one_piece(rows: Any) -> Callable[[Any], Any]:
    """Return the log-density for jax to compile, rows and all."""
    return lambda params: log_density(params, lambda effects: log_likelihood(rows, effects), jnp)


def start(n_groups: int) -> dict[str, np.ndarray]:
    return {"mean": np.zeros(2), "log_spread": np.full(2, -1.0), "effects": np.zeros((n_groups, 2))}


def by_nutpie(name: str, posterior: Callable[[Any], Any], options: argparse.Namespace) -> Run:
    model = compile_model(posterior, start(options.groups), jitter=0.1)
    began = time.perf_counter()
    how = {"draws": options.draws, "tune": options.draws, "chains": options.chains, "cores": 1, "seed": SEED}
    trace = nutpie.sample(model, progress_bar=False, **how)
    seconds = time.perf_counter() - began
    return Run(name, {key: trace.posterior[key].values for key in start(1)}, seconds)


def by_blackjax(name: str, posterior: Callable[[Any], Any], options: argparse.Namespace) -> Run:
    began = time.perf_counter()
    chains = [chain(key, posterior, options) for key in jax.random.split(jax.random.key(SEED), options.chains)]
    seconds = time.perf_counter() - began
    return Run(name, {key: np.stack([np.asarray(one[key]) for one in chains]) for key in start(1)}, seconds)


def chain(key: Any, posterior: Callable[[Any], Any], options: argparse.Namespace) -> dict[str, Any]:
    """Adapt, then draw; the loop is compiled, and calls for the density where that is no function of jax's own."""
    warm, drawn = jax.random.split(key)
    adaptation = blackjax.window_adaptation(blackjax.nuts, posterior)
    (state, parameters), _ = adaptation.run(warm, start(options.groups), options.draws)
    step = blackjax.nuts(posterior, **parameters).step
    _, states = jax.lax.scan(
        lambda state, key: (step(key, state)[0],) * 2, state, jax.random.split(drawn, options.draws)
    )
    return states.position


SAMPLERS = {"nutpie": by_nutpie, "blackjax": by_blackjax}


def apart(runs: Sequence[Run]) -> float:
    """How far the means of two runs are apart at most, in standard errors of the difference."""
    found = [run.means() for run in runs]
    gaps = [abs(a - b) / np.hypot(e, f) for (a, e), (b, f) in itertools.combinations(found, 2)]
    return float(np.max(gaps))


def is_same(run: Run, other: Run) -> bool:
    return all(np.array_equal(run.draws[key], other.draws[key]) for key in run.draws)


def report(runs: Sequence[Run], options: argparse.Namespace) -> Table:
    title = f"{options.rows:,} rows, {options.groups} clinics, {options.chains} x {options.draws:,} draws"
    table = Table(box=box.SIMPLE_HEAD, title=title, pad_edge=False)
    for header in ("", "seconds", "worth", "per second"):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    for run in runs:
        worth = run.effective()
        table.add_row(run.name, f"{run.seconds:.1f}", f"{worth:.0f}", f"{worth / run.seconds:.2f}")
    return table


def draw(runs: Sequence[Run], path: str) -> None:
    """Trace and density of what all clinics have in common; and each clinic's own, from shards and in one piece."""
    figure = Figure(figsize=(12.0, 7.0), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(3, 2))
    on_shards, *_, in_one_piece = runs
    for place, pair in enumerate(left.subplots(len(NAMES), 2, width_ratios=(2, 1))):
        draw_parameter(runs, place, *pair)
    axes = right.subplots()
    for place, what in enumerate(("rate", "slope")):
        x, y = (run.draws["effects"][..., place] for run in (in_one_piece, on_shards))
        bars: dict[str, Any] = {"xerr": x.std((0, 1)), "yerr": y.std((0, 1)), "elinewidth": 0.5}
        axes.errorbar(x.mean((0, 1)), y.mean((0, 1)), **bars, fmt=".", color=f"C{place}", label=f"log of the {what}")
    axes.axline((0.0, 0.0), slope=1.0, color="0.6", linewidth=0.8)
    axes.set(xlabel=in_one_piece.name, ylabel=on_shards.name)
    axes.set_title("the clinics' own: means and standard deviations", fontsize="medium")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110)


def draw_parameter(runs: Sequence[Run], place: int, trace: Any, density: Any) -> None:
    key, at = tuple(TRUTH)[place // 2], place % 2
    for draws in runs[0].draws[key]:
        trace.plot(draws[:, at], linewidth=0.5)
    trace.locator_params(axis="both", nbins=4)
    trace.set_title(NAMES[place], fontsize="medium")
    for run, style in zip(runs, ("-", "--", "-.", ":"), strict=False):
        density.plot(*arviz.kde(run.draws[key][..., at].ravel()), style, label=run.name)
    density.axvline(TRUTH[key][at], color="0.6", linewidth=0.8)
    density.locator_params(axis="x", nbins=3)
    density.set_yticks([])
    if place == 0:
        density.figure.legend(*density.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)


def agrees(runs: Sequence[Run], options: argparse.Namespace, console: Console) -> bool:
    gap = apart(runs)
    draws = np.concatenate([runs[0].draws[key] for key in TRUTH], axis=-1)
    off = float(np.max(np.abs(draws.mean((0, 1)) - np.concatenate([*TRUTH.values()])) / draws.std((0, 1))))
    console.print(f"means of the samplers are {gap:.1f} standard errors apart at most (limit 4.5)")
    console.print(f"what the rows were drawn from is {off:.1f} standard deviations away (limit 4)")
    right = gap <= 4.5 and off <= 4.0
    if "nutpie" in options.samplers:
        same = is_same(runs[0], runs[1])
        console.print(
            f"nutpie's draws on shards and in this process are {'the same, bit for bit' if same else 'others'}"
        )
        right = right and same
    return right


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help="patients (default: 200000, with --check 4000)")
    parser.add_argument("--groups", type=int, help="clinics (default: 200, with --check 20)")
    parser.add_argument(
        "--draws", type=int, help="of each chain, and as many to adapt (default: 300, with --check 100)"
    )
    parser.add_argument("--chains", type=int, default=1, help="one after the other")
    parser.add_argument("--samplers", nargs="+", choices=tuple(SAMPLERS), default=list(SAMPLERS), help="which of them")
    add_options(parser)
    parser.set_defaults(scheduler="processes")
    parser.add_argument("--picture", default="nuts_on_shards.png", help="where it goes")
    parser.add_argument("--check", action="store_true", help="fail unless draws and means are right")
    options = parser.parse_args(argv)
    options.rows = options.rows or (4_000 if options.check else 200_000)
    options.groups = options.groups or (20 if options.check else 200)
    options.draws = options.draws or (100 if options.check else 300)
    return options


def sample(rows: Any, scheduler: Any, options: argparse.Namespace, console: Console) -> list[Run]:
    grainsize = -(-options.rows // 4)  # the same chunks everywhere, so the same bits
    there = on_shards(dagad.shard(rows, grainsize=grainsize, scheduler=scheduler))
    here = on_shards(dagad.shard(rows, grainsize=grainsize, scheduler="sync"))
    asked = {
        "nutpie": [("nutpie on shards", there), ("nutpie in this process", here)],
        "blackjax": [
            ("blackjax on shards", as_jax(there)),
            ("blackjax, compiled in one piece", in_one_piece(tuple(map(jnp.asarray, rows)))),
        ],
    }
    runs = []
    for sampler in options.samplers:
        for name, posterior in asked[sampler]:
            with console.status(name):
                runs.append(SAMPLERS[sampler](name, posterior, options))
    return runs


def main(argv: Sequence[str] | None = None) -> int:
    options, console = parse(argv), Console()
    rows = simulate(options.rows, options.groups)
    with opened(options) as scheduler:
        runs = sample(rows, scheduler, options, console)
    console.print(report(runs, options))
    draw(runs, options.picture)
    console.print(f"picture: {options.picture}")
    return 0 if agrees(runs, options, console) or not options.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
