"""Two-compartment pharmacokinetics of 1,000 subjects: Runge-Kutta inside `map_rect`, a hierarchical fit around it.

With ``--engine jax`` the subjects of a chunk are arrays, and what is summed over them is compiled.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from autograd.misc.flatten import flatten
from matplotlib.figure import Figure, SubFigure
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from scipy.linalg import expm
from scipy.optimize import OptimizeResult, minimize

import dagad
from dagad.testing import taylor_rate
from scheduler_option import add_options, opened

HOURS = 0.5  # a Runge-Kutta step; doses are given, and blood is taken, at whole steps
STEPS = 48
OWN = ("absorption rate, 1/h", "clearance, L/h", "central volume, L", "exchange flow, L/h")
NAMES = (*OWN, "peripheral volume, L", "error of a sample")
SPREAD = np.array([0.3, 0.25, 0.2, 0.3])  # of the logs of what is each subject's own; taken as known
TRUTH = {"population": np.log([1.2, 5.0, 30.0, 4.0]), "log_v2": np.log(50.0), "log_error": np.log(0.1)}
# Absorption starts out faster than what follows: with the two the other way round the curves look much the same, a
# second summit ("flip-flop") from which no climb comes back.
START = {"population": np.log([2.0, 3.0, 20.0, 3.0]), "log_v2": np.log(20.0), "log_error": np.log(0.3)}


class Subject(NamedTuple):
    """What was done to one subject: milligrams by step, and the steps at which blood was taken, however many."""

    doses: dict[int, float]
    samples: Sequence[int]


@dataclass(frozen=True, slots=True)
class Study:
    subjects: list[Subject]
    log_observed: np.ndarray  # concentrations of all subjects, one after the other
    log_theta: np.ndarray  # what a real study would not know


@dataclass(frozen=True, slots=True)
class Fit:
    params: dict[str, Any]
    log_predicted: np.ndarray
    evaluations: int
    seconds: float


def flows(log_theta: Any, log_v2: Any, xp: Any = np) -> Any:
    """Amounts per hour that flow into gut, centre and periphery (rows), per amount in each of them (columns).

    What computes, `xp`, is numpy or jax's.
    """
    absorption, clearance, v1, exchange = xp.exp(log_theta)
    away, back = exchange / v1, exchange / xp.exp(log_v2)
    gut = [-absorption, 0.0, 0.0]
    centre = [absorption, -clearance / v1 - away, back]
    periphery = [0.0, away, -back]
    return xp.stack([xp.stack(gut), xp.stack(centre), xp.stack(periphery)])


def runge_kutta_step(A: Any, x: Any, xp: Any = np) -> Any:
    """Classic fourth order, for x' = A x; `x` is a state, or a matrix with a state in each column."""
    k1 = xp.dot(A, x)
    k2 = xp.dot(A, x + HOURS / 2 * k1)
    k3 = xp.dot(A, x + HOURS / 2 * k2)
    k4 = xp.dot(A, x + HOURS * k3)
    return x + HOURS / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def unit_dose(step: Any) -> Any:
    """Amounts in gut, centre and periphery (rows) after 0, 1, 2... steps (columns), of 1 mg that is swallowed."""
    states = np.array([[1.0], [0.0], [0.0]])
    while states.shape[1] <= STEPS:  # n states are known, and `step` is n steps at once: they lead to the next n
        states = np.concatenate([states, np.dot(step, states)], axis=1)
        step = np.dot(step, step)
    return states


def log_concentrations(step: Any, log_theta: Any, subject: Subject) -> Any:
    """Log(mg/L) in the centre whenever blood was taken: what is left of the doses adds up."""
    centre = unit_dose(step)[1]  # nothing after 0 steps, so nothing of a dose still to come
    since = (np.maximum(np.array(subject.samples) - given, 0) for given in subject.doses)
    amounts = sum(mg * centre[steps] for mg, steps in zip(subject.doses.values(), since, strict=True))
    return np.log(amounts) - log_theta[2]


def predict(item: Any, log_v2: Any) -> Any:
    """Log-concentrations of one subject: as many as samples were taken."""
    log_theta, subject = item
    # The equations are linear and autonomous: the step that the three unit vectors take is the step of every state.
    step = runge_kutta_step(flows(log_theta, log_v2), np.eye(3))
    return log_concentrations(step, log_theta, subject)


class Samples(NamedTuple):
    """All subjects in arrays, a row for each, a column for each step: as a compiler wants them.

    Doses are those at the beginning of a step, samples those at its end.
    """

    doses: Any
    log_observed: Any
    is_sampled: Any


def tabulated(study: Study) -> Samples:
    shape = len(study.subjects), STEPS
    doses, log_observed, is_sampled = np.zeros(shape), np.zeros(shape), np.zeros(shape, bool)
    for row, subject in enumerate(study.subjects):
        doses[row, list(subject.doses)] = list(subject.doses.values())
        is_sampled[row, np.array(subject.samples) - 1] = True
    log_observed[is_sampled] = study.log_observed
    return Samples(doses, log_observed, is_sampled)


def predict_by_jax(item: Any, log_v2: Any) -> Any:
    """Log-concentrations of one subject after each step; zeros where no blood was taken."""
    import jax
    import jax.numpy as jnp

    log_theta, samples = item
    step = runge_kutta_step(flows(log_theta, log_v2, jnp), jnp.eye(3), jnp)

    def taken(state: Any, dose: Any) -> Any:
        state = step @ state.at[0].add(dose)
        return state, state[1]

    amounts = jax.lax.scan(taken, jnp.zeros(3), samples.doses)[1]
    logs = jnp.log(jnp.where(samples.is_sampled, amounts, 1.0)) - log_theta[2]
    return jnp.where(samples.is_sampled, logs, 0.0)


def misfit_by_jax(rows: Any, log_v2: Any) -> Any:
    """Sum of squares over all samples of some subjects."""
    import jax

    misses = jax.vmap(lambda item: item[1].log_observed - predict_by_jax(item, log_v2))(rows)
    return (misses * misses).sum()


def simulate(n_subjects: int, seed: int = 20) -> Study:
    """Draw subjects, doses, times and errors; the curves are exact solutions, not Runge-Kutta's."""
    rng = np.random.default_rng(seed)
    log_theta = TRUTH["population"] + SPREAD * rng.standard_normal((n_subjects, 4))
    subjects, observed = [], []
    for row in log_theta:
        doses = {0: 100.0} if rng.random() < 0.5 else {0: 60.0, STEPS // 2: 60.0}
        early = rng.choice(np.arange(1, 9), rng.integers(5, 9), replace=False)
        late = rng.choice(np.arange(9, STEPS + 1), rng.integers(6, 13), replace=False)
        subjects.append(Subject(doses, sorted([*early.tolist(), *late.tolist()])))
        exact = log_concentrations(expm(HOURS * flows(row, TRUTH["log_v2"])), row, subjects[-1])
        observed.append(exact + np.exp(TRUTH["log_error"]) * rng.standard_normal(len(exact)))
    return Study(subjects, np.concatenate(observed), log_theta)


class Loss:
    """Minus the log of the posterior density, by subject."""

    def __init__(self, study: Study, **how: Any) -> None:
        self.study = study
        # Once; on a cluster only parameters, predictions and their gradients travel from then on.
        self.placed = dagad.shard(self.data(), **how)

    def data(self) -> Any:
        return self.study.subjects

    def predict(self, params: Any) -> Any:
        """Log-concentrations of all subjects, one after the other, as they were observed."""
        return dagad.map_rect(predict, (params["subjects"], self.placed), params["log_v2"])

    def misfit(self, params: Any) -> Any:
        return np.sum((self.study.log_observed - self.predict(params)) ** 2)

    def __call__(self, params: Any) -> Any:
        misfit = self.misfit(params) / np.exp(2 * params["log_error"])
        prior = np.sum(((params["subjects"] - params["population"]) / SPREAD) ** 2)
        # Four numbers per subject are fitted to the same samples: if they were not taken off, as in a variance's n - 1,
        # the error would come out too small.
        freedom = len(self.study.log_observed) - params["subjects"].size
        return (misfit / 2 + prior / 2 + freedom * params["log_error"]) / len(self.study.subjects)


class CompiledLoss(Loss):
    """The same, compiled by jax: once for all chunks, which are equally long."""

    def data(self) -> Any:
        return tabulated(self.study)

    def predict(self, params: Any) -> Any:
        found = dagad.map(predict_by_jax, (params["subjects"], self.placed), params["log_v2"], engine="jax")
        return found[tabulated(self.study).is_sampled]

    def misfit(self, params: Any) -> Any:
        return dagad.reduce_sum(misfit_by_jax, (params["subjects"], self.placed), params["log_v2"], engine="jax")


def neutral(n_subjects: int) -> dict[str, Any]:
    return START | {"subjects": np.tile(START["population"], (n_subjects, 1))}


def maximize(loss: Loss, progress: Progress) -> Fit:
    """Climb in units in which curvatures are alike: n subjects know what they share better by the root of n."""
    n_subjects = len(loss.study.subjects)
    share = 1.0 / np.sqrt(n_subjects)
    units = {"population": share * SPREAD, "log_v2": 0.3 * share, "log_error": 0.3 * share}
    unit, _ = flatten(units | {"subjects": np.tile(SPREAD / 2, (n_subjects, 1))})
    start, restore = flatten(neutral(n_subjects))
    task = progress.add_task("starting", total=None)

    def value_and_slope(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = dagad.value_and_grad(loss)(restore(unit * x))
        progress.advance(task)
        return value, unit * flatten(gradient)[0]

    def show(intermediate_result: OptimizeResult) -> None:
        progress.update(task, description=f"log-posterior {-intermediate_result.fun * n_subjects:.2f}")

    began = time.perf_counter()
    options = {"ftol": 1e-6, "gtol": 1e-6, "maxiter": 300, "maxcor": 40}
    found = minimize(value_and_slope, start / unit, jac=True, method="L-BFGS-B", callback=show, options=options)
    progress.update(task, total=found.nfev, completed=found.nfev)
    seconds = time.perf_counter() - began
    params = restore(unit * found.x)
    return Fit(params, loss.predict(params), found.nfev, seconds)


def fit(loss: Loss, console: Console) -> Fit:
    counted, told = TextColumn("{task.completed} evaluations,"), TextColumn("{task.description}")
    with Progress(SpinnerColumn(finished_text=" "), counted, told, TimeElapsedColumn(), console=console) as progress:
        return maximize(loss, progress)


def shared(params: dict[str, Any]) -> np.ndarray:
    """Logs of what the subjects have in common."""
    return np.array([*params["population"], params["log_v2"], params["log_error"]])


def estimates(study: Study, fitted: Fit) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=f"Pharmacokinetics of {len(study.subjects):,} subjects", pad_edge=False)
    for header in ("", "start", "true", "estimated", "off by", "subjects' rms"):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    misses = np.sqrt(np.mean((fitted.params["subjects"] - study.log_theta) ** 2, axis=0))
    each = (*(f"{miss:.1%}" for miss in misses), "", "")
    logs = shared(START), shared(TRUTH), shared(fitted.params)
    for name, *numbers, miss in zip(NAMES, *logs, each, strict=True):
        texts = (f"{np.exp(number):.3f}" for number in numbers)
        table.add_row(name, *texts, f"{np.expm1(numbers[2] - numbers[1]):+.1%}", miss)
    table.add_section()
    per_evaluation = fitted.seconds / fitted.evaluations
    table.add_row("seconds, and per evaluation", "", f"{fitted.seconds:.1f}", f"{per_evaluation:.3f}", "", "")
    return table


def draw(study: Study, fitted: Fit, path: str) -> None:
    """Some subjects beside all predictions: what was observed lies on the curves, and about the diagonal."""
    figure = Figure(figsize=(11.0, 5.5), layout="constrained")
    halves: Any = figure.subfigures(1, 2, width_ratios=(3, 2))
    draw_curves(study, fitted, halves[0])
    axes = halves[1].subplots()
    observed, predicted = np.exp(study.log_observed), np.exp(fitted.log_predicted)
    ends = [observed.min(), observed.max()]
    axes.loglog(predicted, observed, ".", color="C1", markersize=2.0, alpha=0.5)
    axes.loglog(ends, ends, color="C0", linewidth=1.0)
    axes.set(xlabel="predicted, mg/L", ylabel="observed, mg/L")
    axes.set_title(f"{len(study.subjects):,} subjects, {len(observed):,} samples", fontsize="medium")
    figure.savefig(path, dpi=120)


def draw_curves(study: Study, fitted: Fit, figure: SubFigure) -> None:
    """Nine subjects, each with its own curve and the one that the population's parameters would give it."""
    n_subjects, steps = len(study.subjects), range(1, STEPS + 1)
    chosen = np.linspace(0, n_subjects - 1, min(9, n_subjects)).astype(int)
    asked = [Subject(study.subjects[i].doses, steps) for i in chosen]
    typical = np.tile(fitted.params["population"], (len(chosen), 1))
    own, population = (
        np.exp(dagad.map_rect(predict, (rows, asked), fitted.params["log_v2"], scheduler="sync")).reshape(-1, STEPS)
        for rows in (fitted.params["subjects"][chosen], typical)
    )
    observed = np.split(study.log_observed, np.cumsum([len(subject.samples) for subject in study.subjects]))
    grid = figure.subplots(3, 3, sharex=True, sharey=True)
    for place, (i, axes) in enumerate(zip(chosen, grid.flat, strict=False)):
        axes.semilogy(HOURS * np.array(steps), population[place], color="0.7", linewidth=1.0, label="population")
        axes.semilogy(HOURS * np.array(steps), own[place], color="C0", linewidth=1.2, label="predicted")
        taken = HOURS * np.array(study.subjects[i].samples)
        axes.semilogy(taken, np.exp(observed[i]), "o", color="C1", markersize=3.5, label="observed")
        axes.set_title(f"subject {i + 1}", fontsize="small")
    grid[0, 0].set_ylim(0.05, 5.0)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    figure.supxlabel("hours", fontsize="medium")
    figure.supylabel("concentration in the centre, mg/L", fontsize="medium")


def agrees(fitted: Fit, rate: float, console: Console) -> bool:
    """Four standard errors, roughly; and something for what the prior and a step of half an hour do."""
    limits = 0.02 + 4.0 * np.array([*SPREAD, 0.3, 0.3]) / np.sqrt(len(fitted.params["subjects"]))
    misses = np.abs(shared(fitted.params) - shared(TRUTH))
    worst = np.argmax(misses / limits)
    console.print(
        f"{NAMES[worst]}: the log is off by {misses[worst]:.3f} (limit {limits[worst]:.3f}), the others by less"
    )
    console.print(f"Taylor remainders fall at the rate {rate:.3f} (2 for a right gradient, limit 0.1)")
    return bool(np.all(misses <= limits) and abs(rate - 2.0) <= 0.1)


def count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


def grainsize(text: str) -> int | str:
    return text if text == "auto" else count(text)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subjects", type=count, help="how many (default: 1000, with --check 30)")
    add_options(parser)
    parser.add_argument("--engine", choices=["autograd", "jax"], default="autograd", help="what differentiates a chunk")
    parser.add_argument("--grainsize", type=grainsize, help="subjects per chunk, or auto (default: a quarter)")
    parser.add_argument("--picture", default="pharmacokinetics.png", help="where it goes")
    parser.add_argument("--check", action="store_true", help="fail unless estimates and gradient are right")
    options = parser.parse_args(argv)
    options.subjects = options.subjects or (30 if options.check else 1000)
    # Subjects cost alike, and a chunk costs a few messages: few are enough for few workers.
    options.grainsize = options.grainsize or -(-options.subjects // 4)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    console = Console()
    console.width = max(console.width, 90)  # the table needs it, also where the output is a file
    study = simulate(options.subjects)
    with opened(options) as scheduler:
        kind = CompiledLoss if options.engine == "jax" else Loss
        loss = kind(study, scheduler=scheduler, grainsize=options.grainsize)
        fitted = fit(loss, console)
        rate = taylor_rate(loss, neutral(options.subjects)) if options.check else 2.0
    console.print(estimates(study, fitted))
    draw(study, fitted, options.picture)
    console.print(f"picture: {options.picture}")
    return 0 if not options.check or agrees(fitted, rate, console) else 1


if __name__ == "__main__":
    raise SystemExit(main())
